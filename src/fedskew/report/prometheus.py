"""Metrics of a run in Prometheus' text format, for a collector on this machine: http://127.0.0.1:PORT/metrics."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.report.loopback import ADDRESS, LoopbackServer
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import Row
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server

PATH = "/metrics"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOST = ("late", "dropped", "excluded")
_PARTS = ("validation", "test")
_METRICS = {  # by name, kind and meaning
    "fedskew_round": ("gauge", "Rounds that have ended."),
    "fedskew_rounds": ("gauge", "Rounds of the run."),
    "fedskew_metric": (
        "gauge",
        "The metric that decides, of the global model when it was evaluated last.",
    ),
    "fedskew_clients": ("gauge", "Clients of the last round by what became of their updates."),
    "fedskew_bytes_total": (
        "counter",
        "Bytes sent to clients (down) and by them (up) in all rounds.",
    ),
    "fedskew_round_seconds": ("gauge", "Seconds that the last round took, with its checkpoint."),
    "fedskew_last_round_timestamp_seconds": (
        "gauge",
        "When the last round ended, in seconds since 1970.",
    ),
}


class Metrics(Callback):
    """A callback that knows the numbers of a run so far, those of the rounds before it was resumed included."""

    def __init__(self) -> None:
        # Of each metric, the values by their labels
        self._values: dict[str, dict[str, float]] = {name: {} for name in _METRICS}
        self._metric = ""
        self._since = time.monotonic()
        self.content = b""

    def on_run_start(self, server: Server, folder: Path | None, rows: Sequence[Row]) -> None:
        """Begin with the earlier rounds of a resumed run."""
        self._metric = server.headline.name
        self._since = time.monotonic()
        self._set("fedskew_round", server.round)
        self._set("fedskew_rounds", server.settings.rounds)
        for row in rows:
            self._count(row)
        self.content = exposition(self._values)

    def on_round_end(self, result: RoundResult, rounds: int) -> None:
        """Count a round."""
        now = time.monotonic()
        self._count(result.round)
        self._set("fedskew_round_seconds", now - self._since)
        self._set("fedskew_last_round_timestamp_seconds", time.time())
        self._since = now
        self.content = exposition(self._values)

    def _count(self, row: Row) -> None:
        self._set("fedskew_round", row["round"])
        lost = {fate: row[fate] for fate in _LOST}
        for fate, count in {"answered": row["clients"] - sum(lost.values()), **lost}.items():
            self._set("fedskew_clients", count, f'fate="{fate}"')
        sent = self._values["fedskew_bytes_total"]
        for way in ("down", "up"):
            self._set(
                "fedskew_bytes_total",
                sent.get(f'way="{way}"', 0) + row[f"bytes_{way}"],
                f'way="{way}"',
            )
        for part in _PARTS:
            value = row.get(f"{part}_{self._metric}")
            if value is not None:
                self._set("fedskew_metric", value, f'name="{self._metric}",rows="{part}"')

    def _set(self, name: str, value: float, labels: str = "") -> None:
        self._values[name][labels] = value

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return what is served under a path."""
        if path == PATH:
            return (_TYPE, self.content)
        return None


def exposition(values: Mapping[str, Mapping[str, float]]) -> bytes:
    """Return metrics, whose values have labels, in the text format.

    >>> print(exposition({"fedskew_round": {"": 3}, "fedskew_rounds": {}}).decode(), end="")
    # HELP fedskew_round Rounds that have ended.
    # TYPE fedskew_round gauge
    fedskew_round 3
    """
    lines = []
    for name, samples in values.items():
        kind, meaning = _METRICS[name]
        if samples:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        for labels, value in samples.items():
            sample = name
            if labels:
                sample += f"{{{labels}}}"
            lines.append(f"{sample} {_number(value)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _number(value: float) -> str:
    """Return a number as Prometheus reads it.

    >>> _number(0.25), _number(float("nan")), _number(float("-inf"))
    ('0.25', 'NaN', '-Inf')
    """
    if math.isnan(value):
        return "NaN"
    if math.isfinite(value):
        return repr(value)
    if value < 0:
        return "-Inf"
    return "+Inf"


@contextmanager
def serving_metrics(port: int | None) -> Iterator[list[Metrics]]:
    """Yield the callback whose metrics are served on a port, if one is given; the port is free afterwards."""
    if port is None:
        yield []
        return
    metrics = Metrics()
    try:
        http = LoopbackServer(metrics.answer, port)
    except OSError as problem:
        raise FedskewError(
            f"port {port} of {ADDRESS} cannot be used for metrics ({problem.strerror or problem}): end what has it, or "
            "change metrics_port in the app's pyproject.toml"
        ) from None
    http.start()
    try:
        yield [metrics]
    finally:
        http.stop()
