"""How a study is judged: settled before its first run, and frozen with it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.writing import write_atomically
from fedskew.runs.goals import Goal
from fedskew.study.grid import seeds_of
from fedskew.study.judge import checked_zone

JUDGING = "study.json"
CONTROL = "fedavg"  # where it is among the methods, and no other was given
ALONE = "local"  # every client alone, which stands beside the methods under the goal own
SCHEMA = 1  # of this file, and of the tables as JSON
ScoreRule: TypeAlias = Literal["last", "validation-best"]
ChooseRule: TypeAlias = Literal["validation", "none"]
NAMES = ("goal", "score", "control", "equal", "pool", "choose", "choose_seeds")  # as they are given


@dataclass(frozen=True)
class Judging:
    """How a study is judged.

    Args:
        goal: ``shared``, the shared model on the common test rows; ``own``, the model that each client uses on its
            held-out rows; None until it is settled
        score: the score of a run: that of the last round, or of the round that is best on validation rows
        control: the method that all others are compared with; None for all pairs
        zone: differences up to this are of no interest; None for none
        row: how much one test row changes a score, 0 if the metric is no share
        pool: whether the mean over the skews is judged, too
        choose: rows by which the numbers of a grid are chosen; ``none`` compares all of them
        choose_seeds: seeds of the runs by which numbers are chosen; empty for those that methods are judged by
        references: methods that were added to the table, and are not judged
        set_aside: settings that were added so that there are rows to choose by
    """

    goal: Goal | None = None
    score: ScoreRule = "last"
    control: str | None = None
    zone: float | None = None
    row: float = 0.0
    pool: bool = False
    choose: ChooseRule = "none"
    choose_seeds: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    set_aside: Mapping[str, float] = field(default_factory=dict)


def judging_of(given: Mapping[str, Any]) -> Judging:
    """Return how a study is to be judged, from what was given by name; what is left out is settled later."""
    choose_seeds: tuple[int, ...] = ()
    if given.get("choose_seeds") is not None:
        choose_seeds = tuple(seeds_of(given["choose_seeds"]))
    choose: ChooseRule = _one_of("choose", given.get("choose"), ChooseRule) or "validation"
    if choose == "none" and choose_seeds:
        raise FedskewError(
            f"choose_seeds={given['choose_seeds']} clashes with choose=none: give one of them"
        )
    control = given.get("control")
    if control is not None:
        control = str(control)
    return Judging(
        goal=_one_of("goal", given.get("goal"), Goal),
        score=_one_of("score", given.get("score"), ScoreRule) or "last",
        control=control,
        zone=checked_zone(given.get("equal")),
        pool=bool(given.get("pool")),
        choose=choose,
        choose_seeds=choose_seeds,
    )


def _one_of(name: str, given: Any, kind: Any) -> Any:
    """Return what was given, if it is one of the words of a kind; None if nothing was given."""
    known = get_args(kind)
    if given is not None and given not in known:
        raise unknown(name, str(given), known)
    return given


def written(judging: Judging) -> bytes:
    """Return the file that freezes how a study is judged."""
    return (json.dumps({"schema": SCHEMA, **asdict(judging)}, indent=2) + "\n").encode()


def read_judging(folder: Path) -> Judging | None:
    """Return how the study of a folder is judged; None where nothing was frozen."""
    path = folder / JUDGING
    if not path.is_file():
        return None
    with reading(path):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise FedskewError(f"{path} is damaged: {problem}") from None
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise FedskewError(f"{path} is not of schema {SCHEMA}: use the version that wrote it")
    known = {one.name for one in fields(Judging)}
    if values.keys() != known:
        raise FedskewError(f"{path} is damaged: it needs {', '.join(sorted(known))}")
    return _checked(path, values)


def _checked(path: Path, values: dict[str, Any]) -> Judging:
    """Return what a file says, if it is what a study writes."""
    try:
        for name, kind in (("goal", Goal), ("score", ScoreRule), ("choose", ChooseRule)):
            _one_of(name, values[name], kind)
        values["zone"] = checked_zone(values["zone"])
        values["row"] = float(values["row"])
        values["choose_seeds"] = tuple(int(seed) for seed in values["choose_seeds"])
        values["references"] = tuple(str(name) for name in values["references"])
        values["set_aside"] = {str(k): float(v) for k, v in values["set_aside"].items()}
        values["pool"] = bool(values["pool"])
        if values["control"] is not None:
            values["control"] = str(values["control"])
    except (FedskewError, TypeError, ValueError, AttributeError) as problem:
        raise FedskewError(f"{path} is damaged: {problem}") from None
    if not 0 <= values["row"] < math.inf:
        raise FedskewError(f"{path} is damaged: row is {values['row']}")
    return Judging(**values)


def freeze_judging(folder: Path, judging: Judging) -> None:
    """Freeze how a study is judged."""
    write_atomically(folder / JUDGING, written(judging))
