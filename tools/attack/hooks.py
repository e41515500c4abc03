"""What a hostile or failing node does instead of answering: read by the copy of the package that such a node runs.

``ATTACK`` names a JSON file: by kind of answer, what to do with the first, the second and so on; ``""`` is the truth. A
second file beside it counts the answers, as every message has a process of its own.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.deploy.requests import Refusal, Scored, Waiting, from_bytes, to_bytes
from fedskew.engine.job import Updates

Answer = Callable[[Mapping[str, Any], bytes], bytes]


def attacking(answer: Answer) -> Answer:
    """Return what answers as ``answer`` does, except for what the plan says."""
    plan_path = Path(os.environ["ATTACK"])

    def attacked(about: Mapping[str, Any], request: bytes) -> bytes:
        plan = json.loads(plan_path.read_text())
        kind = kind_of_request(request)
        number = _count(plan_path.with_suffix(".count"), kind)
        deeds = plan.get(kind, [])
        deed = ""
        if number < len(deeds):
            deed = deeds[number]
        if deed.startswith("before:"):
            _fail(deed.removeprefix("before:"))
            deed = ""
        content = answer(about, request)
        if not deed:
            return content
        if deed.startswith("after:"):
            _fail(deed.removeprefix("after:"))
            return content
        print(f"attack: {kind} {number}: {deed}", file=sys.stderr)
        return lie(deed, content)

    return attacked


def kind_of_request(request: bytes) -> str:
    """Return what a request is, in one word; questions of a fit by what they ask."""
    asked = from_bytes(request)
    if hasattr(asked, "content") and hasattr(asked, "what"):
        return str(asked.what)
    if getattr(asked, "final", False):
        return "final"
    return type(asked).__name__.lower()


def _count(path: Path, kind: str) -> int:
    """Return how often this kind was counted before, and count it."""
    counts = {}
    if path.exists():
        counts = json.loads(path.read_text())
    number = int(counts.get(kind, 0))
    counts[kind] = number + 1
    path.write_text(json.dumps(counts))
    return number


def _fail(deed: str) -> None:
    """Die, all of the node, or sleep."""
    what, _, value = deed.partition(" ")
    if what == "die":
        os.kill(_node(), signal.SIGKILL)
        time.sleep(60)
    elif what == "sleep":
        time.sleep(float(value))


def _node() -> int:
    """Return the process of the node: the parent of the one that has started this one."""
    parent = multiprocessing.parent_process()
    assert parent
    stat = Path(f"/proc/{parent.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def lie(name: str, content: bytes) -> bytes:
    """Return what is sent instead of an answer."""
    if name in BYTES:
        return BYTES[name](content)
    told = from_bytes(content)
    if name in OBJECTS:
        return to_bytes(OBJECTS[name])
    if isinstance(told, Updates):
        return to_bytes(UPDATES[name](told))
    if isinstance(told, Scored):
        return to_bytes(SCORES[name](told))
    return to_bytes(told)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "one byte": lambda content: b"x",
    "noise": lambda content: bytes(range(256)) * 8,
    "cut": lambda content: content[: len(content) // 2],
    "end missing": lambda content: content[:-1],
    "length of the text is huge": lambda content: b"\xff" * 8 + content[8:],
    "ten times": lambda content: content * 1000,
    "pickle": lambda content: b"\x80\x04\x95" + content,
}
OBJECTS: dict[str, Any] = {
    "a number": 7,
    "a text": "trust me",
    "a list": [1, 2],
    "nobody": None,
    "a dict": {"delta": 1},
    "a refusal": Refusal("I will not"),
    "a refusal of Flower's": Refusal("gone", True),
    "a refusal of another kind": Refusal({"a": 1}),  # type: ignore[arg-type]
    "it waits": Waiting(torch.zeros(3)),
    "it waits for text": Waiting("?"),
    "no update": Updates(None, None, None, None),  # type: ignore[arg-type]
    "no scores": Scored(None, None, None),  # type: ignore[arg-type]
}


def _first(update: Updates, change: Callable[[torch.Tensor], Any]) -> Updates:
    name, value = next(iter(update.payload["delta"].items()))
    delta = {**update.payload["delta"], name: change(value)}
    return replace(update, payload={**update.payload, "delta": delta})


def _report(**parts: Any) -> Callable[[Updates], Updates]:
    return lambda update: replace(update, report=replace(update.report, **parts))


UPDATES: dict[str, Callable[[Updates], Updates]] = {
    "another name": lambda u: replace(u, payload={"delta": {"x": torch.zeros(1)}}),
    "no part": lambda u: replace(u, payload={}),
    "one part more": lambda u: replace(u, payload={**u.payload, "more": {}}),
    "transposed": lambda u: _first(u, lambda v: v.transpose(-1, -2).contiguous()),
    "longer": lambda u: _first(u, lambda v: torch.cat([v, v])),
    "flat": lambda u: _first(u, lambda v: v.reshape(-1)),
    "half": lambda u: _first(u, lambda v: v.half()),
    "whole numbers": lambda u: _first(u, lambda v: v.long()),
    "truth values": lambda u: _first(u, lambda v: v.bool()),
    "text": lambda u: _first(u, lambda v: "weights"),
    "none": lambda u: _first(u, lambda v: None),
    "an array": lambda u: _first(u, lambda v: v.numpy()),
    "empty": lambda u: _first(u, lambda v: v[:0]),
    "1e30": lambda u: _first(u, lambda v: torch.full_like(v, 1e30)),
    "1e300": lambda u: _first(u, lambda v: torch.full_like(v, 1e300)),
    "buffers": lambda u: replace(u, buffers={"running_var": -torch.ones(1)}),
    "no report": lambda u: replace(u, report=None),  # type: ignore[arg-type]
    "loss below 0": _report(loss=np.array([-1.0])),
    "loss of text": _report(loss=np.array(["low"])),
    "three losses": _report(loss=np.zeros(3)),
    "endless loss": _report(loss=np.array([np.inf])),
    "accuracy of 5": _report(accuracy=np.array([5.0])),
    "accuracy below 0": _report(accuracy=np.array([-0.1])),
    "accuracy of NaN": _report(accuracy=np.array([np.nan])),
    "numbers": _report(numbers={"rate": np.ones(1)}),
}


def _sums(part: str, **changes: Any) -> Callable[[Scored], Scored]:
    def changed(scored: Scored) -> Scored:
        sums: dict[str, Any] = dict(scored.parts[part])
        for name, change in changes.items():
            sums[name] = change(sums[name])
        return replace(scored, parts={**scored.parts, part: sums})

    return changed


SCORES: dict[str, Callable[[Scored], Scored]] = {
    "a row more": _sums("test", rows=lambda v: v + 1),
    "a row less": _sums("test", rows=lambda v: v - 1),
    "half a row": _sums("test", rows=lambda v: v + 0.5),
    "no rows": _sums("test", rows=lambda v: v * 0),
    "training rows": _sums("train", rows=lambda v: v * 10),
    "loss of NaN": _sums("test", loss=lambda v: v * np.nan),
    "loss below 0": _sums("test", loss=lambda v: v * 0 - 1),
    "confusion below 0": _sums("test", confusion=lambda v: -v),
    "confusion of others": _sums("test", confusion=lambda v: v + 1),
    "broken confusion": _sums("test", confusion=lambda v: v + 0.5),
    "larger confusion": _sums("test", confusion=lambda v: np.zeros((9, 9))),
    "text": _sums("test", loss=lambda v: "low"),
    "a part less": lambda s: replace(s, parts={"train": s.parts["train"]}),
    "a part more": lambda s: replace(s, parts={**s.parts, "elsewhere": {}}),
    "no parts": lambda s: replace(s, parts=None),  # type: ignore[arg-type]
    "own scores of 5": lambda s: replace(s, own=dict.fromkeys(s.own, 5.0)),
    "own scores below 0": lambda s: replace(s, own=dict.fromkeys(s.own, -1.0)),
    "own scores of text": lambda s: replace(s, own=dict.fromkeys(s.own, "good")),  # type: ignore[arg-type]
    "no own scores": lambda s: replace(s, own={}),
    "own test": lambda s: replace(s, own_test={"loss": 0.0}),
    "a last row": lambda s: replace(s, row={"loss": 0.0}),
    "a matrix": lambda s: replace(s, confusion=np.zeros((2, 2), np.int64)),
    "held out": lambda s: replace(s, held_out={"loss": 0.0}),
}
