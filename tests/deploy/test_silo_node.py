"""What a node on a silo's file lets a server ask, and where it writes: a hostile server gets refusals."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.deploy.silos import SETTINGS, SilosInProcess, write_silos

from fedskew import __version__
from fedskew.core.config import Experiment
from fedskew.data.dataset import datasets
from fedskew.data.fitting import Description, Moments, Request
from fedskew.deploy import silo_node
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.node import Files
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.requests import (
    CountRows,
    Evaluate,
    Question,
    Refusal,
    Train,
    Version,
    from_bytes,
    to_bytes,
)
from fedskew.deploy.silo_node import SiloNode

RUN = "0123456789abcdef" * 2
WHOLE = (0, 2**64 - 1)
ALLOWED = ("describe", "count", "add_up")
Ask = Callable[..., Any]


def about(data: Path, **changed: Any) -> dict[str, Any]:
    """Return what a message says of a run on this file."""
    label = "y" if data.suffix == ".npz" else "outcome"
    known = {
        name: option.default
        for name, option in datasets.options("silos").items()
        if name != "paths"
    }
    options = {**known, "label": label, **changed.pop("options", {})}
    own = {"data": str(data), "state": str(data.parent / "state"), **changed.pop("node", {})}
    said = {
        "run": RUN,
        "options": json.dumps(options),
        "validation": 0.0,
        "seed": 0,
        "version": __version__,
    }
    return {**said, "client": 0, "node": own, **changed}


def ask(data: Path, request: Any, **changed: Any) -> Any:
    return from_bytes(silo_node.answer(about(data, **changed), to_bytes(request)))


def refused(answer: Any) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.reason


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_silos(tmp_path)[0]


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "scans.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(60, 3)), y=np.arange(60) % 2)
    return path


def request_of(**changed: Any) -> Request:
    return replace(Request("outcome", keep=(), compared=True), **changed)


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "arrays"])
def test_no_attribute_of_a_silo_is_a_question(kind: str, request: pytest.FixtureRequest):
    data = request.getfixturevalue(kind)
    names = set(dir(SiloNode(about(data)).silo)) - set(ALLOWED)
    assert {"__getattribute__", "__class__", "__init__", "_classes"} <= names
    for name in sorted(names):
        for content in ("income", request_of(), {}):
            said = refused(ask(data, Question(name, content)))  # type: ignore[arg-type]
            assert (
                said == f"{name!r} is not a question of a fit, which are describe, count and add_up"
            )


STRANGE = [None, 3, 1.5, True, b"count".decode("utf-16-be", "replace"), "", "Count", "count ", ("count",), ["count"],
           {"count": 1}, np.array(["count"] == 1), np.zeros(2), torch.zeros(2), "x" * 9999, 10**4000]  # fmt: skip


@pytest.mark.parametrize("what", STRANGE, ids=lambda what: type(what).__name__)
def test_no_other_thing_is_a_question(table: Path, arrays: Path, what: Any):
    for data in (table, arrays):
        assert "is not a question of a fit, which are describe, count and add_up" in refused(
            ask(data, Question(what, {}))
        )


def test_arrays_are_not_counted(arrays: Path):
    assert "arrays" in refused(ask(arrays, Question("count", {"0": [WHOLE]})))


# -- contents ----------------------------------------------------------------------------------------------------------


def test_only_what_the_options_of_the_run_say_is_described(table: Path):
    """Another label or other categories than the run's would tell the values of any column."""
    honest = ask(table, Question("describe", request_of()))
    assert isinstance(honest, Description)
    assert honest.columns["income"].counts == {}
    for other in ({"label": "income"}, {"label": "colour"}, {"categorical": ("income",)}, {"max_categories": 10**9},
                  {"compared": False}, {"target": "labels"}, {"window": 3}, {"keep": ("income",)},
                  {"labels": ("as-is",)}, {"dates": "days"}):  # fmt: skip
        said = refused(ask(table, Question("describe", request_of(**other))))
        assert "describe: other options than those of the run" in said
    for content in (None, {}, "outcome", np.zeros(3)):
        assert "describe: other options than those of the run" in refused(
            ask(table, Question("describe", content))
        )


def test_a_column_of_mostly_different_texts_is_not_told_however_many_categories_a_server_allows(
    tmp_path: Path,
):
    data = tmp_path / "persons.csv"
    rows = 200
    names = [f"person {number}" for number in range(rows)]
    frame = pd.DataFrame(
        {"name": names, "age": np.arange(rows) % 50, "outcome": np.arange(rows) % 2}
    )
    frame.to_csv(data, index=False)
    many = {"max_categories": 10**6}
    told = ask(data, Question("describe", request_of(**many)), options=many)
    assert (told.columns["name"].counts, told.columns["name"].texts) == ({}, 160)
    as_label = ask(data, Question("describe", request_of(label="name")), options={"label": "name"})
    assert "label 'name' has 200 classes in 200 rows, too many to be told" in refused(as_label)
    assert "person 1" not in refused(as_label)
    label = {"columns": ["name"], "target": "class", "classes": ["person 0", "person 1"]}
    schema = {"format": 1, "kind": "table", "columns": [], "label": label, "window": 0, "stride": 0}
    guessed = refused(ask(data, CountRows(), options={"label": "name"}, schema=json.dumps(schema)))
    assert "label 'name' has 200 classes in 200 rows, too many to be told" in guessed


def test_a_schema_about_another_label_is_refused(table: Path):
    """Its errors would name the values of any column, one after the other."""
    label = {"columns": ["colour"], "target": "class", "classes": ["none", "of them"]}
    schema = {"format": 1, "kind": "table", "columns": [], "label": label, "window": 0, "stride": 0}
    said = refused(ask(table, CountRows(), schema=json.dumps(schema)))
    assert (
        said
        == "the schema has the label colour, and the run the label outcome: use the same version of fedskew"
    )


def test_a_server_does_not_choose_another_file(table: Path, tmp_path: Path):
    other = tmp_path / "other.csv"
    pd.DataFrame({"secret": [1.0, 2.0, 3.0], "outcome": [0, 1, 0]}).to_csv(other, index=False)
    for more in ({"name": "csv", "path": str(other)}, {"name": str(other)}, {"paths": [str(other)]},
                 {"name": str(tmp_path / "*.csv")}):  # fmt: skip
        told = ask(table, Question("describe", request_of()), options=more)
        assert isinstance(told, Refusal) or "secret" not in told.columns


INTERVALS: dict[str, Any] = {
    "no columns": None,
    "a list": [WHOLE],
    "a column by number": {0: [WHOLE]},
    "no list": {"income": WHOLE},
    "none": {"income": []},
    "more than a median needs": {"income": [(0, 5), (6, 9), (10, 12)]},
    "lists": {"income": [[0, 5]]},
    "three ends": {"income": [(0, 1, 2)]},
    "fractions": {"income": [(0.0, 5.0)]},
    "below 0": {"income": [(-1, 5)]},
    "above all keys": {"income": [(0, 2**64)]},
    "ends in the wrong order": {"income": [(5, 1)]},
    "arrays": {"income": [np.zeros(2, np.int64)]},
    "truth values": {"income": [(False, True)]},
}


@pytest.mark.parametrize("case", INTERVALS)
def test_intervals_that_no_median_asks_for(table: Path, case: str):
    said = refused(ask(table, Question("count", INTERVALS[case])))
    assert said.startswith("count: told ")
    assert "expected one or two intervals of keys for each column" in said


FILLS: dict[str, Any] = {
    "no columns": None,
    "a column by number": {0: 1.0},
    "a whole number": {"income": 10**4000},
    "NaN": {"income": float("nan")},
    "infinity": {"income": float("-inf")},
    "an array": {"income": np.zeros(50)},
}


@pytest.mark.parametrize("case", FILLS)
def test_fills_that_are_no_numbers(table: Path, arrays: Path, case: str):
    for data in (table, arrays):
        said = refused(ask(data, Question("add_up", FILLS[case])))
        assert said.startswith("add_up: told ")
        assert "expected a finite number for each column" in said


@pytest.mark.parametrize("title", ["3", "-1", "x", "", "0 ", "٠", "1e0"])
def test_arrays_have_the_columns_that_they_have(arrays: Path, title: str):
    assert f"add_up: {title!r} is not a column of x, which has 3" in refused(
        ask(arrays, Question("add_up", {title: 0.0}))
    )


def test_what_a_fit_asks_is_answered(table: Path, arrays: Path):
    counted = ask(table, Question("count", {"income": [WHOLE], "elsewhere": [WHOLE]}))
    assert {title: [int(each.sum()) for each in counts] for title, counts in counted.items()} == {
        "income": [40]
    }
    added = ask(table, Question("add_up", {"income": 0.0, "elsewhere": 2.5}))
    assert (added["income"].count, added["elsewhere"]) == (40, Moments(40, 2.5, 0.0, 0.0))
    assert isinstance(
        ask(arrays, Question("describe", Request("y", keep=(), compared=True))), Description
    )
    assert set(ask(arrays, Question("add_up", {"0": 0.0, "2": 0.0}))) == {"0", "2"}


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the messages that the first node gets in a run with something to keep."""
    seen, folder = [], tmp_path_factory.mktemp("messages")

    class Recorded(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
            seen.append((requests[0], dict(about)))
            return super().ask(requests, about, *patience)

    silos = Recorded(write_silos(folder), folder / "states")
    experiment = Experiment(
        data="silos:label=outcome", model="logreg", algorithm="scaffold", **SETTINGS
    )
    run_on_nodes(Nodes(silos), 3, experiment, folder / "run")
    return seen


ELSEWHERE = ["../../x", "..", ".", "", "/nowhere/x", "a/b", "a\\b", RUN + "/..", RUN + "\n", RUN.upper(), "x" * 300,
             "flower", "messages.secret", "\0", 7, None, 1.5]  # fmt: skip


@pytest.mark.parametrize("run", ELSEWHERE, ids=repr)
def test_a_run_writes_into_a_folder_of_its_own(
    table: Path, tmp_path: Path, messages: list[tuple[bytes, dict[str, Any]]], run: Any
):
    inside = tmp_path / "deep" / "deeper" / "state"
    own = {"data": str(table), "state": str(inside)}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for content, said in messages:
        answer = from_bytes(
            silo_node.answer({**said, "run": run, "client": 0, "node": own}, content)
        )
        if not isinstance(from_bytes(content), Question):
            assert "is not a name of a run, expected 32 hexadecimal digits" in refused(answer)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_link_does_not_lead_out_of_the_state(
    table: Path, tmp_path: Path, messages: list[tuple[bytes, dict[str, Any]]]
):
    state, outside = tmp_path / "linked", tmp_path / "outside"
    state.mkdir()
    outside.mkdir()
    (outside / "0-1.safetensors").write_bytes(b"somebody else's")
    (state / RUN).symlink_to(outside)
    own = {"data": str(table), "state": str(state)}
    for content, said in messages:
        answer = from_bytes(
            silo_node.answer({**said, "run": RUN, "client": 0, "node": own}, content)
        )
        if not isinstance(from_bytes(content), Question):
            assert "leads out of the node's --state" in refused(answer)
    assert [path.name for path in outside.iterdir()] == ["0-1.safetensors"]
    assert (outside / "0-1.safetensors").read_bytes() == b"somebody else's"


def test_a_state_behind_a_link_is_used(
    table: Path, tmp_path: Path, messages: list[tuple[bytes, dict[str, Any]]]
):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    own = {"data": str(table), "state": str(tmp_path / "link")}
    for content, said in messages:
        answer = from_bytes(
            silo_node.answer({**said, "run": RUN, "client": 0, "node": own}, content)
        )
        assert not isinstance(answer, Refusal)
    assert {path.name for path in (real / RUN).iterdir()} >= {"rows.sha256", "0-3.safetensors"}


def test_folders_of_the_node_are_not_told(
    table: Path, messages: list[tuple[bytes, dict[str, Any]]], tmp_path: Path
):
    own = {"data": str(table), "state": str(tmp_path / "lost")}
    train = [
        (content, said) for content, said in messages if isinstance(from_bytes(content), Train)
    ]
    content, said = train[-1]
    told = refused(from_bytes(silo_node.answer({**said, "client": 0, "node": own}, content)))
    assert told.startswith("0-2.safetensors is gone")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / said["run"]).touch()
    own["state"] = str(tmp_path / "full")
    found = refused(from_bytes(silo_node.answer({**said, "client": 0, "node": own}, content)))
    assert found.startswith("cannot write --state/")
    assert str(tmp_path) not in told + found


@pytest.mark.parametrize("odd", ["../../x", -2, 1.0, None, True, np.int64(3)], ids=repr)
def test_files_have_numbers_as_names(tmp_path: Path, odd: Any):
    folder = tmp_path / "a" / "b"
    tree = {"state.control": {"w": torch.zeros(2)}}
    files = Files(folder, [tree])
    files.save(0, 4, tree, -1)
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: files.save(odd, 2, tree, -1),
        lambda: files.save(0, odd, tree, -1),
        lambda: files.save(0, 2, tree, odd),
        lambda: files.load(0, Version(odd, odd), ()),
        lambda: files.load(0, Version(4, odd), ("state.control",)),
    ):
        with pytest.raises(silo_node.FedskewError, match="are not numbers of a model and a round"):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "client", ["../../x", "", None, [0], 1.5, "1" * 5000], ids=lambda client: repr(client)[:20]
)
def test_a_client_has_a_number(
    table: Path, tmp_path: Path, messages: list[tuple[bytes, dict[str, Any]]], client: Any
):
    own = {"data": str(table), "state": str(tmp_path / "fresh")}
    for content, said in messages:
        if isinstance(from_bytes(content), (Train, Evaluate)):
            answer = silo_node.answer({**said, "client": client, "node": own}, content)
            assert "is not a number of a client" in refused(from_bytes(answer))
