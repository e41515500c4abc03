"""Runs on silos' own files: the numbers of a simulation, few messages, no values, clear errors, and going on again."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.deploy.silos import (
    NAMES,
    PLANTED,
    SETTINGS,
    SilosInProcess,
    assert_hidden,
    assert_same_run,
    in_one_place,
    plant,
    write_silos,
)

import fedskew as fs
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.remote_clients import Nodes
from fedskew.inference.prediction import features
from fedskew.runs.run import Run


@pytest.fixture
def silos(tmp_path: Path) -> SilosInProcess:
    (tmp_path / "data").mkdir()
    return SilosInProcess(write_silos(tmp_path / "data"), tmp_path / "state")


@pytest.fixture
def started(silos: SilosInProcess, tmp_path: Path) -> Callable[..., Run]:
    def start(algorithm: str, **settings: Any) -> Run:
        chosen = {"model": "logreg", **SETTINGS, **settings}
        experiment = Experiment(data="silos:label=outcome", algorithm=algorithm, **chosen)
        return run_on_nodes(Nodes(silos), len(silos.paths), experiment, tmp_path / "run")

    return start


@pytest.mark.parametrize("method", ["fedavg", "fedpbs", "scaffold", "afl-cp", "fedbn", "sfl"])
@pytest.mark.filterwarnings("ignore:.*here it is fed")
def test_a_run_is_that_of_all_rows_in_one_place(
    started: Callable[..., Run], silos: SilosInProcess, method: str
):
    paths = list(silos.paths)
    assert_same_run(started(method), in_one_place(paths, method))


@pytest.mark.parametrize(
    "method", ["fedavg + dp:noise=2", "afl-cp:epsilon=0.5", "afl-cp:epsilon=0.5 + median"]
)
def test_noise_that_is_no_secret_is_refused_before_a_node_is_asked(
    started: Callable[..., Run], silos: SilosInProcess, tmp_path: Path, method: str
):
    with pytest.raises(
        FedskewError,
        match="its noise is drawn from the seed of the run, which the server and every",
    ):
        started(method)
    assert silos.rounds == []
    assert not (tmp_path / "run").exists()


def test_predictions_and_the_names_of_silos_are_there(
    started: Callable[..., Run], silos: SilosInProcess
):
    run = started("fedavg")
    assert list(run.final_clients["name"]) == list(NAMES)
    new = pd.read_csv(silos.paths[0]).drop(columns="outcome")
    assert set(fs.open_run(run.folder).predict(new)["prediction"]) <= {"sick", "well"}


@pytest.mark.parametrize("method", ["fedbn", "ditto"])
def test_models_of_clients_are_with_them(
    started: Callable[..., Run], silos: SilosInProcess, method: str
):
    run = started(method, rounds=1, model="tabular")
    new = pd.read_csv(silos.paths[0]).drop(columns="outcome")
    for one in (run, fs.open_run(run.folder)):
        assert one.personalised
        with pytest.raises(
            FedskewError, match="the model of hospital_B stays with the client, on its own machine"
        ):
            one.predict(new, client="hospital_B")
        if method == "ditto":
            assert len(one.predict(new)) == len(new)
            continue
        with pytest.raises(FedskewError, match="every client keeps a part of the model"):
            one.predict(new)


def test_a_run_on_nodes_is_gone_on_with_where_they_are(started: Callable[..., Run]):
    run = started("fedavg", rounds=1)
    with pytest.raises(
        FedskewError, match="its rows are with its nodes: go on with it by flwr run"
    ):
        fs.resume(run.folder)


MESSAGES = {
    "fedavg": ["Train", "Evaluate"],
    "scaffold": ["Train", "Evaluate"],
    "afl-cp": ["Train", "Evaluate"],
    "fedpbs": ["Measure", "Train", "Evaluate"],
    "ditto": ["Train", "Train", "Evaluate"],
}


@pytest.mark.parametrize("method", MESSAGES)
def test_rounds_of_messages(started: Callable[..., Run], silos: SilosInProcess, method: str):
    """A round costs two rounds of messages, before it the schema, and after it one."""
    started(method, rounds=2)
    first = silos.rounds.index("CountRows") + 1
    assert silos.rounds[:first] == ["Question"] * (first - 1) + ["CountRows"]
    assert first <= 9  # describe, six counts for medians, one for moments, numbers of rows
    assert silos.rounds[first:] == [*MESSAGES[method] * 2, "Evaluate"]


def test_without_numbers_a_schema_is_there_after_two_messages(tmp_path: Path):
    silos = SilosInProcess(write_silos(tmp_path, numbers=False), tmp_path / "state")
    run_on_nodes(
        Nodes(silos),
        3,
        Experiment(data="silos:label=outcome", model="logreg", **SETTINGS),
        tmp_path / "run",
    )
    assert silos.rounds[:3] == ["Question", "CountRows", "Train"]


@pytest.mark.parametrize("method", ["fedavg", "fedpbs", "scaffold", "stratify-batch"])
def test_no_value_of_a_row_is_in_any_message(
    started: Callable[..., Run], silos: SilosInProcess, method: str
):
    largest = plant(silos.paths[1])
    run = started(method, rounds=1)
    assert_hidden(b"".join(silos.sent), largest, run.server.fed.data.schema)
    # Nor where the server keeps its files
    assert str(run.folder).encode() not in b"".join(silos.sent)


@pytest.mark.filterwarnings("ignore:.*training rows equal an earlier one")
@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_nodes_may_join_in_any_order(tmp_path: Path, order: tuple[int, ...]):
    paths = write_silos(tmp_path, numbers=False)
    silos = SilosInProcess([paths[number] for number in order], tmp_path / "state")
    experiment = Experiment(data="silos:label=outcome", model="logreg", **SETTINGS)
    assert_same_run(
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run"), in_one_place(paths, "fedavg")
    )
    assert silos.paths == paths


def test_tables_with_semicolons(tmp_path: Path):
    silos = SilosInProcess(write_silos(tmp_path, numbers=False), tmp_path / "state")
    for path in silos.paths:
        path.write_text(path.read_text().replace(",", ";"))
    experiment = Experiment(
        data="silos:label=outcome,separator=semicolon", model="logreg", **{**SETTINGS, "rounds": 1}
    )
    assert len(run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run").rounds) == 1


@pytest.mark.filterwarnings("ignore:left out, as they are not features")
@pytest.mark.filterwarnings("ignore:hospital_.*csv")
def test_nodes_read_files_and_leave_columns_out_as_one_place_does(tmp_path: Path):
    """Each silo writes its table in its own way, with an id, dates and a constant."""
    (tmp_path / "data").mkdir()
    paths = write_silos(tmp_path / "data")
    writings: list[dict[str, Any]] = [
        {"sep": ","},
        {"sep": ";", "decimal": ",", "encoding": "latin-1"},
        {"sep": "\t", "encoding": "utf-16"},
    ]
    for path, writing in zip(paths, writings, strict=True):
        frame = pd.read_csv(path)
        days = 20240101 + np.arange(len(frame)) % 28
        frame = frame.assign(case=np.arange(len(frame)), admitted=days, site="all", ä=frame["age"])
        frame.to_csv(path, index=False, **writing)
    silos = SilosInProcess(list(paths), tmp_path / "state")
    experiment = Experiment(data="silos:label=outcome", model="logreg", **SETTINGS)
    found = run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    expected = in_one_place(paths, "fedavg")
    assert_same_run(found, expected)
    assert found.pipeline == expected.pipeline
    said = " ".join(found.summary["data_warnings"])
    for title in ("case", "admitted", "site"):
        assert title in said


def test_spellings_of_classes_are_refused_by_nodes_too(tmp_path: Path):
    paths = write_silos(tmp_path)
    paths[1].write_text(paths[1].read_text().replace("sick", "Sick"))
    silos = SilosInProcess(list(paths), tmp_path / "state")
    settings = {**SETTINGS, "rounds": 1}
    experiment = Experiment(data="silos:label=outcome", model="logreg", **settings)
    with pytest.raises(FedskewError, match=r"hospital_B has .*'Sick'.*labels=.*sick:Sick"):
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    told = Experiment(data="silos:label=outcome,labels=sick+well", model="logreg", **settings)
    run = run_on_nodes(Nodes(silos), 3, told, tmp_path / "told")
    assert run.pipeline.label.classes == ("sick", "well")


@pytest.mark.filterwarnings("ignore:hospital_.* lacks? column")
def test_the_owner_of_a_file_says_how_it_is_written(tmp_path: Path):
    paths = write_silos(tmp_path, numbers=False)
    header, *lines = paths[0].read_text().splitlines()
    odd = [header.replace(",", ";").replace("colour", "colour,shade")]
    odd += [line.replace(",", ";").replace(";", ",x;", 1) for line in lines]
    paths[0].write_text("\n".join(odd) + "\n")
    experiment = Experiment(data="silos:label=outcome", model="logreg", **{**SETTINGS, "rounds": 1})
    silos = SilosInProcess(list(paths), tmp_path / "state")
    with pytest.raises(FedskewError, match=r"hospital_A.*separator=comma or separator=semicolon"):
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    told = [Path(f"{paths[0]}:separator=semicolon"), *paths[1:]]
    silos = SilosInProcess(told, tmp_path / "state")
    assert len(run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "told").rounds) == 1


def test_a_silo_whose_rows_change_in_a_run_is_left_out(tmp_path: Path):
    class Growing(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
            if self.rounds[-1:] == ["CountRows"]:
                text = self.paths[1].read_text()
                self.paths[1].write_text(text + text.split("\n", 1)[1])
            return super().ask(requests, about, *patience)

    silos = Growing(write_silos(tmp_path, numbers=False), tmp_path / "state")
    experiment = Experiment(data="silos:label=outcome", model="logreg", **{**SETTINGS, "rounds": 1})
    with pytest.warns(UserWarning, match="left out") as warned:
        run = run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    told = " ".join(str(one.message) for one in warned)
    assert "hospital_B: hospital_B.csv holds other rows than when the run began" in told
    assert run.rounds["dropped"].tolist() == [1]


def test_a_silo_that_fails_is_named(started: Callable[..., Run], silos: SilosInProcess):
    silos.silent = {1}
    with pytest.raises(FedskewError, match="1 of 3 clients did not answer in time"):
        started("fedavg")


def test_an_unexpected_error_is_named_and_its_text_stays_with_the_silo(
    started: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*about: Any) -> None:
        raise ValueError(f"could not convert {PLANTED}")

    monkeypatch.setattr("fedskew.deploy.silo_node.row_counts_of", broken)
    with pytest.raises(
        FedskewError, match="a ValueError, which is told in the log of the node"
    ) as stopped:
        started("fedavg")
    assert str(PLANTED) not in str(stopped.value)
    assert str(PLANTED) in capsys.readouterr().err


def test_another_version_is_refused(
    started: Callable[..., Run], silos: SilosInProcess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedskew.deploy.silo_node.__version__", "0.0.1")
    with pytest.raises(
        FedskewError,
        match=r"node hospital_A runs fedskew 0.0.1, and the server .*: install the same",
    ):
        started("fedavg")


def test_a_run_does_not_go_on_with_other_nodes(started: Callable[..., Run], silos: SilosInProcess):
    started("fedavg", rounds=1)
    silos.own = {"name": "clinic"}
    with pytest.raises(
        FedskewError,
        match=r"is a run of hospital_A, hospital_B, .*there are clinic, hospital_B, .*same",
    ):
        started("fedavg", rounds=1)


def test_two_silos_of_one_name(started: Callable[..., Run], silos: SilosInProcess):
    silos.own = {"name": "hospital_B"}
    with pytest.raises(
        FedskewError, match="several nodes are named hospital_B: start them with names of their own"
    ):
        started("fedavg")


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_does_not_go_on_with_other_values(
    silos: SilosInProcess, tmp_path: Path, finished: bool
):
    """The numbers of rows are the same; means and deviations, by which features are made, are not."""

    class Killed(BaseException):
        pass

    class Mortal(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
            if self.rounds.count("Train") == 2 and not finished:
                raise Killed
            return super().ask(requests, about, *patience)

    def go(transport: SilosInProcess) -> Run:
        experiment = Experiment(
            data="silos:label=outcome",
            model="logreg",
            **{**SETTINGS, "rounds": 3, "checkpoint_every": 1},
        )
        return run_on_nodes(Nodes(transport), 3, experiment, tmp_path / "run")

    with nullcontext() if finished else pytest.raises(Killed):
        go(Mortal(sorted(silos.paths), tmp_path / "state"))
    path = sorted(silos.paths)[1]
    frame = pd.read_csv(path)
    frame["age"] += 1
    frame.to_csv(path, index=False)
    with pytest.raises(
        FedskewError,
        match=r"the nodes' files give another schema \(columns\) than when the run began",
    ):
        go(SilosInProcess(sorted(silos.paths), tmp_path / "state"))


@pytest.mark.parametrize("method", ["scaffold", "fedbuff:buffer=2"])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    silos: SilosInProcess, tmp_path: Path, method: str
):
    """The server is killed in the middle of a round, at every message of the run; nodes keep what they did."""

    class Killed(BaseException):
        pass

    def go(folder: Path, transport: SilosInProcess) -> Run:
        settings = {**SETTINGS, "rounds": 2, "checkpoint_every": 1}
        experiment = Experiment(
            data="silos:label=outcome", model="logreg", algorithm=method, **settings
        )
        return run_on_nodes(Nodes(transport), 3, experiment, folder)

    expected = go(tmp_path / "whole", silos)
    first = silos.rounds.index("Train") + 1
    for last in range(first, len(silos.rounds) + 1):

        class Mortal(SilosInProcess):
            def ask(
                self, requests: Any, about: Any, *patience: Any, last: int = last
            ) -> dict[int, bytes]:
                answers = super().ask(requests, about, *patience)
                if len(self.rounds) == last:
                    raise Killed
                return answers

        folder, state = tmp_path / f"run{last}", tmp_path / f"state{last}"
        with pytest.raises(Killed):
            go(folder, Mortal(sorted(silos.paths), state))
        found = go(folder, SilosInProcess(sorted(silos.paths), state))
        for name, value in expected.model.state_dict().items():
            assert (found.model.state_dict()[name] == value).all(), (
                f"killed after {last} rounds of messages"
            )
        assert found.summary["test_accuracy_last"] == expected.summary["test_accuracy_last"]


def test_a_node_does_not_go_on_with_other_rows(tmp_path: Path):
    """The number of rows is the same, and so is the schema; the run goes on when the file is as it was."""
    silos = SilosInProcess(write_silos(tmp_path, numbers=False), tmp_path / "state")
    asked, path = silos.ask, silos.paths[0]
    experiment = Experiment(
        data="silos:label=outcome",
        model="logreg",
        algorithm="scaffold",
        checkpoint_every=1,
        **SETTINGS,
    )

    def ask(requests: Any, about: Any, *patience: Any) -> Any:
        if silos.rounds.count("Train") == 2:
            raise FedskewError("the server has gone")
        return asked(requests, about)

    silos.ask = ask  # type: ignore[method-assign]
    with pytest.raises(FedskewError, match="the server has gone"):
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    silos.ask = asked  # type: ignore[method-assign]
    before = path.read_text()
    frame = pd.read_csv(path)
    frame["shape"] = frame["shape"].to_numpy()[::-1]
    frame.to_csv(path, index=False)
    with pytest.raises(
        FedskewError, match=r"hospital_A\.csv holds other rows than when the run began"
    ):
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    path.write_text(before)
    assert len(run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run").rounds) == 3


def test_a_file_that_does_not_fit_is_named_without_its_folder(
    started: Callable[..., Run], silos: SilosInProcess
):
    frame = pd.read_csv(silos.paths[1])
    frame.rename(columns={"outcome": "result"}).to_csv(silos.paths[1], index=False)
    with pytest.raises(FedskewError, match="hospital_B: ") as stopped:
        started("fedavg")
    assert str(silos.paths[1].parent) not in str(stopped.value)


def test_scores_without_a_node_say_so(started: Callable[..., Run], silos: SilosInProcess):
    asked = silos.ask

    def ask(requests: Any, about: Any, *patience: Any) -> Any:
        silos.silent = {0} if b'"Evaluate"' in next(iter(requests.values()))[:200] else set()
        return asked(requests, about)

    silos.ask = ask  # type: ignore[method-assign]
    said = (
        "client hospital_A: no answer in time; scores are of 26 of 36 test rows, not to be compared"
    )
    with pytest.warns(UserWarning, match=said):
        started("fedavg", rounds=1)


@pytest.mark.filterwarnings("ignore:only hospital_B has 'grey'")
def test_categories_of_few_rows_never_leave_a_node(
    started: Callable[..., Run], silos: SilosInProcess
):
    for path, value, rows in (
        (silos.paths[0], "mayor", 4),
        (silos.paths[1], "grey", 30),
        (silos.paths[2], "king", 1),
    ):
        frame = pd.read_csv(path)
        frame.loc[: rows - 1, "colour"] = value
        frame.to_csv(path, index=False)
    run = started("fedavg")
    sent = b"".join(silos.sent)
    assert b"grey" in sent
    assert b"mayor" not in sent
    assert b"king" not in sent
    [colour] = [column for column in run.server.fed.data.schema.columns if column.name == "colour"]
    assert colour.values == ("blue", "green", "grey", "red")
    assert colour.features[-1] == "colour=other"
    for unknown in ("mayor", "somebody"):  # both are other, at nodes and in new rows
        new = pd.read_csv(silos.paths[0]).drop(columns="outcome").assign(colour=unknown)
        encoded = features(run.server.fed.data.schema, "new", new)
        assert encoded[:, run.server.fed.data.features.index("colour=other")].tolist() == [
            1.0
        ] * len(new)


def test_a_column_of_rare_categories_alone_is_other(
    started: Callable[..., Run], silos: SilosInProcess
):
    for path in silos.paths:
        frame = pd.read_csv(path)
        frame["shape"] = [f"shape {row // 3}" for row in range(len(frame))]
        frame.to_csv(path, index=False)
    run = started("fedavg")
    [shape] = [column for column in run.server.fed.data.schema.columns if column.name == "shape"]
    assert shape.features == ("shape=other",)
    assert b"shape 1" not in b"".join(silos.sent)
