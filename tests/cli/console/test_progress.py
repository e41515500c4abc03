"""The progress of a training: what is counted, the time left, and lines in a log, neither too few nor too many."""

import io
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedskew.cli.console import show_progress
from fedskew.cli.console.progress_lines import log_lines
from fedskew.cli.console.run_progress import Progress


def row(number: int, **more: Any) -> dict[str, Any]:
    usual = {
        "clients": 10,
        "dropped": 0,
        "late": 0,
        "excluded": 0,
        "bytes_down": 1000,
        "bytes_up": 500,
    }
    scores = {"test_loss": 1.0, "test_accuracy": 0.5 + number / 1000}
    return {"round": number, "local_loss": 0.25, "clock": 2.0 * number, **usual, **scores, **more}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_recent_rounds() -> None:
    clock = Clock()
    one = Progress("fedavg", 200, clock)
    assert one.seconds_left is None
    one.begin([])
    assert one.seconds_left is None
    for number, seconds in enumerate([1.0] * 60 + [3.0] * 60, 1):
        clock.now += seconds
        one.add(row(number), 200)
        if number == 1:
            assert one.seconds_left == 199.0
    assert one.seconds_left == 240.0  # 80 rounds of 3 s: the first 60 count no more
    clock.now += 2.0  # inside a round
    assert one.seconds_left == 238.0
    clock.now += 1000.0
    assert one.seconds_left == 0.0


def test_a_resumed_run_counts_its_earlier_rounds() -> None:
    one = Progress("fedavg", 4)
    one.begin([row(1, dropped=2, bytes_up=1_380_000), row(2, late=1)])
    one.add(row(3, test_accuracy=None, own_test_loss=1.0, own_test_accuracy=0.75), 4)
    assert one.score == ["test accuracy 50.2%", "personal models 75.0%"]
    assert one.curve == [0.501, 0.502]
    assert one.details == ["local loss 0.250", "3 of 30 lost", "1,384 kB sent", "6 s simulated"]


def test_fast_rounds_have_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with log_lines(clock=clock) as follow:
        one = Progress("fedavg", 100, clock)
        one.begin([])
        for number in range(1, 101):
            clock.now += 0.03
            one.add(row(number), 100)
            follow(one)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"fedavg: round {k}/100" for k in (10, 44, 78, 100)
    ]
    assert lines[0].endswith("local loss 0.250  15 kB sent  20 s simulated  0:03 left")
    assert "left" not in lines[-1]


def test_slow_rounds_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with log_lines(clock=clock) as follow:
        one = Progress("fedavg", 3, clock)
        for number in (1, 2, 3):
            clock.now += 4.0
            one.add(row(number), 3)
            follow(one)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_inside_a_long_round_there_are_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    clock = Clock()
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)

    def interrupted() -> None:
        with log_lines(most=0.0625, clock=clock) as follow:
            follow(Progress("fedavg", 50))
            for lines in (1, 2, 3):
                clock.now += 0.0625
                while log.getvalue().count("\n") < lines:
                    time.sleep(0.001)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before  # the watch has ended, whatever happened
    assert log.getvalue().splitlines() == ["fedavg: round 0/50  -:-- left"] * 3


def test_an_error_of_the_log_does_not_stop_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, text: str) -> int:
            raise OSError("no space left on device")

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stderr", Full())
    with show_progress(["fedavg"], 1) as callbacks_of:
        (callback,) = callbacks_of("fedavg")
        callback.on_run_start(None, None, [])
        assert callback.on_round_end(type("Result", (), {"round": row(1)}), 1) is None


def test_a_narrow_terminal_has_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=50, height=20)
    monkeypatch.setattr("fedskew.cli.console.progress.Console", lambda **look: screen)
    with show_progress(["fedavg"], 10) as callbacks_of:
        (callback,) = callbacks_of("fedavg")
        callback.on_run_start(None, None, [])
        callback.on_round_end(
            SimpleNamespace(round=row(1, dropped=3, bytes_up=123_456_789, clock=98765.0)), 10
        )
    assert isinstance(screen.file, io.StringIO)
    last = [line for line in screen.file.getvalue().splitlines() if " left " in line][-1]
    assert "…" in last
    assert "simulated" not in screen.file.getvalue().replace("\n", "")
