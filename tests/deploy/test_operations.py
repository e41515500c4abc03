"""A run on nodes that is watched: its log of events, also after a kill, and its metrics for Prometheus."""

import http.client
import json
import re
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tests.deploy.silos import NAMES, SETTINGS, SilosInProcess, write_silos
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs fedskew[flower]")

from fedskew.cli import server_app
from fedskew.cli.app import app as cli
from fedskew.core.config import to_toml
from fedskew.core.errors import FedskewError
from fedskew.core.lock import locked
from fedskew.deploy.flower_app import DEPLOYMENT
from fedskew.deploy.flower_processes import RUNS
from fedskew.deploy.requests import Refusal, to_bytes
from fedskew.report.event_log import EventLog, append_line, recording
from fedskew.report.prometheus import PATH, serving_metrics
from fedskew.report.recorded_events import read_events
from fedskew.report.status import status

PLANTED, GONE = "31337.4242", "Error: Node Unavailable"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[a-z_]+",?)+)\})? ([-+.\w]+)')


class Killed(BaseException):
    pass


class Watched(SilosInProcess):
    """Silos of which one may be silent or refuse, and that call a function before they answer."""

    watch: Callable[[str], None] = staticmethod(lambda asked: None)
    refuse: frozenset[int] = frozenset()
    waited_for: tuple[int, ...] = ()

    def numbers(self) -> list[int]:
        return [2**63 + client for client in range(len(self.paths))]

    gone: frozenset[int] = frozenset()  # Flower says so

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
    ) -> dict[int, bytes]:
        answers = super().ask(requests, about, *patience)
        waits = self.waited_for and self.rounds[-1] == "Train"
        if waits:
            patience[0].told(self.waited_for)
        self.watch(self.rounds[-1])
        if waits:
            patience[0].told([])
        refused = to_bytes(Refusal(f"hospital_B.csv: {PLANTED} is no number"))
        changed = {
            **dict.fromkeys(self.refuse, refused),
            **dict.fromkeys(self.gone, to_bytes(Refusal(GONE, True))),
        }
        return {client: changed.get(client, content) for client, content in answers.items()}


@pytest.fixture
def silos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    (tmp_path / "data").mkdir()
    found = Watched(write_silos(tmp_path / "data", numbers=False), tmp_path / "state")
    monkeypatch.setattr(server_app, "try_again", lambda grid: None)
    monkeypatch.setattr(server_app, "nodes_of", lambda grid, count, timeout: list(range(count)))
    monkeypatch.setattr(server_app, "GridTransport", lambda grid, nodes, timeout: found)
    return found


@pytest.fixture
def go(silos: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that starts the app of the server, and returns the run folder."""

    def started(rounds: int = 3, **config: Any) -> Path:
        silos.paths.sort()
        settings = {**SETTINGS, "rounds": rounds, "checkpoint_every": 1}
        experiment = to_toml(
            {"data": "silos:label=outcome", "model": "logreg", "algorithm": "scaffold", **settings}
        )
        given = {
            "nodes": 3,
            "timeout": 5.0,
            DEPLOYMENT: "1" * 32,
            "experiment": experiment,
            **config,
        }
        monkeypatch.setattr(server_app, "run_folder", lambda number, runs: tmp_path / "run")
        monkeypatch.setenv(RUNS, str(tmp_path))
        server_app.main(None, SimpleNamespace(run_config=given))  # type: ignore[arg-type]
        return tmp_path / "run"

    return started


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the events; every line must be one."""
    text = (folder / "events.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def named(events: list[dict[str, Any]]) -> list[str]:
    return [f"{event['event']} {event.get('round', '')}".strip() for event in events]


def test_the_events_of_a_run(go: Callable[..., Path]):
    began = datetime.now(UTC) - timedelta(milliseconds=1)
    events = lines(folder := go(2))
    assert named(events) == [
        "start",
        "nodes 0",
        "round 1",
        "checkpoint 1",
        "round 2",
        "checkpoint 2",
        "end 2",
    ]
    times = [datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)
    assert began <= times[0]
    assert times[-1] <= datetime.now(UTC)
    assert events[1]["clients"] == list(NAMES)
    assert events[1]["numbers"] == [
        "9223372036854775808",
        "9223372036854775809",
        "9223372036854775810",
    ]
    shown = CliRunner().invoke(cli, ["status", str(folder)]).output
    assert f"{NAMES[1]} (9223372036854775809)" in shown
    (_, row) = [event for event in events if event["event"] == "round"]
    assert (row["rounds"], row["clients"], row["dropped"], row["late"], row["excluded"]) == (
        2,
        3,
        0,
        0,
        0,
    )
    assert 0 < row["seconds"] < 60
    table = (folder / "rounds.csv").read_text().splitlines()
    last = dict(zip(table[0].split(","), table[-1].split(","), strict=True))
    for name in ("bytes_up", "bytes_down", "test_accuracy"):
        assert row[name] == float(last[name])
    go(2)  # a finished run has nothing to add
    assert lines(folder) == events


def test_who_does_not_answer_is_named_and_no_words_of_a_node_are_written(
    go: Callable[..., Path], silos: Watched
):
    def watch(asked: str) -> None:
        if asked == "Train" and silos.rounds.count("Train") == 2:
            silos.silent, silos.refuse = {0}, frozenset({1})
        if asked == "Evaluate" and silos.rounds.count("Evaluate") == 3:
            silos.refuse, silos.gone = frozenset(), frozenset({1})

    silos.watch = watch
    with pytest.warns(UserWarning, match="clients are left out") as warned:
        folder = go(3)
    assert any(PLANTED in str(one.message) for one in warned)
    told = [event for event in lines(folder) if event["event"] == "unanswered"]
    silent = {"client": "hospital_A", "reason": "no answer in time"}
    refused = {
        "client": "hospital_B",
        "reason": "the node refused: the output of the run has its words",
    }
    found = [(event["asked"], event["round"], event["client"], event["reason"]) for event in told]
    # The other had its message
    assert found[0] == ("train", 2, refused["client"], refused["reason"])
    assert [one for one in found if one[:2] == ("train", 3)] == [
        ("train", 3, silent["client"], silent["reason"]),
        ("train", 3, refused["client"], refused["reason"]),
    ]
    assert [one for one in found if one[:2] == ("evaluate", 3)][:2] == [
        ("evaluate", 3, silent["client"], silent["reason"]),
        ("evaluate", 3, "hospital_B", GONE),
    ]
    assert PLANTED not in (folder / "events.jsonl").read_text()
    now = status(folder)
    assert (now.state, now.round, now.nodes, now.clients) == ("finished", 3, list(NAMES), 3)
    assert now.dropped == ["hospital_A", "hospital_B"]
    assert {one["client"] for one in now.unanswered} == {"hospital_A", "hospital_B"}
    assert {one["round"] for one in now.unanswered} == {3}


def test_a_run_that_stops_says_why_and_goes_on_in_the_same_file(
    go: Callable[..., Path], silos: Watched, tmp_path: Path
):
    def watch(asked: str) -> None:
        if asked == "Evaluate" and silos.rounds.count("Evaluate") == 2:
            silos.refuse = frozenset({0, 1, 2})

    silos.watch = watch
    with pytest.raises(FedskewError, match=PLANTED):
        go()
    folder = tmp_path / "run"
    first = lines(folder)
    assert named(first)[-5:] == [
        "checkpoint 1",
        "unanswered 2",
        "unanswered 2",
        "unanswered 2",
        "error 1",
    ]
    assert (first[-1]["kind"], first[-1]["reason"]) == (
        "UnansweredError",
        "none of 3 clients answered",
    )
    assert PLANTED not in (folder / "events.jsonl").read_text()
    assert (status(folder).state, status(folder).round) == ("stopped", 1)
    assert status(folder).then == "go on with it: flwr run APP --stream"

    # Before the first round of what goes on
    with pytest.raises(FedskewError, match="3 of 3 clients did not answer"):
        go()
    second = lines(folder)[len(first) :]
    assert named(second) == ["start", "unanswered", "unanswered", "unanswered", "error"]
    now = status(folder)
    assert now.error == second[-1]["reason"] == "3 of 3 clients did not answer"
    assert [(one["round"], one["client"], one["asked"]) for one in now.unanswered] == [
        (None, client, "question") for client in "012"
    ]

    def kill(asked: str) -> None:
        if asked == "Train":
            raise Killed

    silos.watch, silos.refuse = kill, frozenset()
    with pytest.raises(Killed):
        go()
    with (folder / "events.jsonl").open("ab") as file:  # as after a power failure
        file.write(b'{"time": "2026-')
    assert read_events(folder)[-1]["kind"] == "Killed"
    silos.watch = lambda asked: None
    go()
    assert named(lines(folder))[-7:] == [
        "start", "nodes 1", "round 2", "checkpoint 2", "round 3", "checkpoint 3", "end 3",
    ]  # fmt: skip
    assert lines(folder)[: len(first)] == first
    assert (status(folder).error, status(folder).unanswered) == (None, [])


def test_scores_over_fewer_rows_are_told_in_the_tables(
    go: Callable[..., Path], silos: Watched, tmp_path: Path
):
    silos.watch = lambda asked: silos.silent.update({1} if asked == "Train" else ())

    with pytest.warns(UserWarning, match="scores are of 24 of 36 test rows"):
        folder = go(1)
    table = pd.read_csv(folder / "rounds.csv")
    assert table["scored_test_rows"].tolist() == [24]
    silos.silent.clear()
    silos.watch = lambda asked: None


def test_whom_a_run_waits_for_is_told(go: Callable[..., Path], silos: Watched, tmp_path: Path):
    folder = tmp_path / "run"
    waits: list[list[str]] = []
    silos.waited_for = (0, 2)
    silos.watch = lambda asked: waits.append(status(folder).waits_for if folder.exists() else [])
    go(1)
    assert [names for names in waits if names] == [[NAMES[0], NAMES[2]]]
    events = [event for event in lines(folder) if event["event"] == "waiting"]
    assert [(event["round"], event["asked"]) for event in events] == [(1, "train")] * 2
    assert [event["clients"] for event in events] == [[NAMES[0], NAMES[2]], []]
    assert status(folder).waits_for == []


@pytest.mark.parametrize("stop", [SystemExit(0), KeyboardInterrupt()])
def test_a_run_that_is_asked_to_stop_has_no_error(
    go: Callable[..., Path], silos: Watched, tmp_path: Path, stop: BaseException
):
    def stopped(asked: str) -> None:
        if asked == "Train":
            raise stop

    silos.watch = stopped
    with pytest.raises(type(stop)):
        go(2)
    last = lines(tmp_path / "run")[-1]
    assert (last["event"], last["round"]) == ("stopped", 0)
    assert "flwr stop" in last["reason"]
    found = status(tmp_path / "run")
    assert found.state == "stopped"
    assert "flwr run" in (found.then or "")


def test_a_line_that_is_cut_anywhere_breaks_nothing(tmp_path: Path):
    path, whole = tmp_path / "events.jsonl", b'{"event": "start"}\n{"event": "round", "round": 1}\n'
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = whole[:length].count(b"\n")
        assert len(read_events(tmp_path)) == kept
        append_line(path, b'{"event": "end"}\n')
        assert (
            path.read_bytes()
            == b"".join(whole.splitlines(keepends=True)[:kept]) + b'{"event": "end"}\n'
        )


def test_a_long_line_that_is_cut_is_removed(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "start"}\n{"event": "nodes", "clients": ["' + b"a" * 2**18)
    append_line(path, b'{"event": "end"}\n')
    assert path.read_bytes() == b'{"event": "start"}\n{"event": "end"}\n'


def test_nothing_is_written_into_a_folder_that_is_no_run_of_nodes(
    go: Callable[..., Path], tmp_path: Path
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    with pytest.raises(FedskewError, match="run"):
        go()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_the_log_of_a_run_of_another_process_is_left_alone(tmp_path: Path):
    (tmp_path / "nodes.json").touch()
    with locked(tmp_path), pytest.raises(KeyError), recording(tmp_path):
        raise KeyError
    assert not (tmp_path / "events.jsonl").exists()
    with pytest.raises(KeyError), recording(tmp_path):
        raise KeyError("why")
    assert [event["event"] for event in read_events(tmp_path)] == ["start", "error"]
    assert read_events(tmp_path)[1]["reason"] == "'why'"


def test_the_checkpoint_of_a_run_that_stops_is_noted_before_the_error(tmp_path: Path):
    (tmp_path / "nodes.json").touch()
    log = EventLog(tmp_path)
    log.note("start")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/00000003.json").touch()
    log.failed(KeyError())
    assert named(lines(tmp_path)) == ["start", "checkpoint 3", "error"]


def test_a_log_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path):
    (tmp_path / "events.jsonl").mkdir()
    log = EventLog(tmp_path)
    log.note("start")
    with pytest.warns(
        UserWarning, match=r"events.jsonl could not be made .*; the run itself is whole"
    ):
        log._begin()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def get(port: int, path: str = PATH, host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def parsed(text: str) -> dict[str, float]:
    """Return the samples of the text format; metrics are described once, before their samples, which are together."""
    assert text == "" or text.endswith("\n")
    found: dict[str, float] = {}
    described: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described.append(line.split(" ", 3)[2])
            assert described.count(described[-1]) == 1
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == described[-1]
            assert kind == ("counter" if name.endswith("_total") else "gauge")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == described[-1]
            sample = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
            assert sample not in found
            found[sample] = float(match[3])
    return found


def test_the_metrics_of_a_run(go: Callable[..., Path], silos: Watched):
    port, seen = free_port(), list[dict[str, float]]()

    def watch(asked: str) -> None:
        if asked == "Train":
            code, kind, text = get(port)
            assert (code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
            seen.append(parsed(text))
            silos.silent = {2} if len(seen) > 1 else set()
            if len(seen) == 4:
                raise Killed
            if len(seen) == 1:
                assert get(port, "/")[0] == 404
                assert get(port, host=f"fl.example.org:{port}")[0] == 403

    silos.watch = watch
    with (
        pytest.warns(UserWarning, match="client hospital_C: no answer in time"),
        pytest.raises(Killed),
    ):
        go(4, metrics_port=port)
    assert seen[0] == {"fedskew_round": 0, "fedskew_rounds": 4}
    assert [one["fedskew_round"] for one in seen] == [0, 1, 2, 3]
    fates = [
        {fate: one[f'fedskew_clients{{fate="{fate}"}}'] for fate in ("answered", "dropped")}
        for one in seen[1:]
    ]
    assert fates == [
        {"answered": 3, "dropped": 0},
        {"answered": 3, "dropped": 0},
        {"answered": 2, "dropped": 1},
    ]
    rows = [
        line.split(",") for line in (silos.state.parent / "run/rounds.csv").read_text().splitlines()
    ]
    table = {name: [float(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}
    for way in ("up", "down"):
        assert seen[3][f'fedskew_bytes_total{{way="{way}"}}'] == sum(table[f"bytes_{way}"])
    assert seen[3]['fedskew_metric{name="accuracy",rows="test"}'] == table["test_accuracy"][2]
    assert 0 < seen[3]["fedskew_round_seconds"] < 60
    assert abs(seen[3]["fedskew_last_round_timestamp_seconds"] - datetime.now(UTC).timestamp()) < 60
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", port)) != 0  # the port is free again

    again: list[dict[str, float]] = []
    silos.silent = set()
    silos.watch = lambda asked: again.append(parsed(get(port)[2]))
    go(4, metrics_port=port)
    resumed = next(one for one in again if one)
    assert resumed["fedskew_round"] == 3
    assert resumed['fedskew_bytes_total{way="up"}'] == seen[3]['fedskew_bytes_total{way="up"}']
    assert "fedskew_round_seconds" not in resumed


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    go: Callable[..., Path], tmp_path: Path
):
    with (
        serving_metrics(port := free_port()),
        pytest.raises(FedskewError, match=f"port {port} of 127.0.0.1 cannot be"),
    ):
        go(metrics_port=port)
    assert not (tmp_path / "run").exists()
    with serving_metrics(None) as none:
        assert none == []
