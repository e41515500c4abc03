"""The result of one study of the atlas: what was measured of its clients, how it is judged, and a row per run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedskew import __version__
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.writing import write_atomically
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.heterogeneity.result import VIEWS
from fedskew.runs.goals import Goal
from fedskew.runs.run import open_run
from fedskew.study.judging import CONTROL, read_judging
from fedskew.study.member import FAILED, Member, read_members
from fedskew.study.partitions import Partitions
from fedskew.study.run_data import RunData
from fedskew.study.run_scores import collapse_of, column_on_test, score_of, validation_of
from fedskew.study.stages import wanted

if TYPE_CHECKING:
    from fedskew.atlas.protocol import CellStudy

SCHEMA = 1
_TEXTS = ("method", "purpose", "fate")  # columns of a row; all others are numbers
DISTANCE = "hellinger"
MEASURED_BLOCKS = 3  # partitions that are measured; their mean stands for the cell
_BEYOND_THE_SCORE = {  # of the summary, by the name of the column
    "shared": {"accuracy": "test_accuracy_last", "ece": "test_ece_last"},
    "own": {"accuracy": "client_accuracy_mean", "ece": "client_ece_mean"},
}
_WORST = "client_{metric}_worst_10_percent"


@dataclass(frozen=True)
class RunRow:
    """One run of a cell.

    Args:
        method: as it is written in the protocol
        purpose: judge, or choose for one by which the learning rate is chosen
        lr: its learning rate
        seed: its block
        fate: done, collapsed, or diverged
        score: on test rows, in the last round; None without one
        validation: on validation rows, in the last round
        accuracy: on test rows
        worst: the mean of the worst tenth of the clients
        ece: the expected calibration error
        sent: bytes in both directions, in all rounds
        simulated: seconds of the virtual clock
        seconds: of training here
        score_at_bytes: in the last evaluated round by which it had sent no more than FedAvg in all of its rounds
        score_at_time: likewise, by the virtual clock
    """

    method: str
    purpose: str
    lr: float
    seed: int
    fate: str
    score: float | None = None
    validation: float | None = None
    accuracy: float | None = None
    worst: float | None = None
    ece: float | None = None
    sent: float | None = None
    simulated: float | None = None
    seconds: float | None = None
    score_at_bytes: float | None = None
    score_at_time: float | None = None


@dataclass(frozen=True)
class CellResult:
    """What one study found.

    Args:
        cell: the name of the cell
        goal: what the models are for
        protocol: the hash of the protocol
        version: of fedskew
        metric: that decides
        zone: differences up to this are of no interest; None for none
        row: how much one test row changes a score
        chosen: the learning rate of every method
        measured: of the clients, by name
        rows: one per run
    """

    cell: str
    goal: Goal
    protocol: str
    version: str
    metric: str
    zone: float | None
    row: float
    chosen: Mapping[str, float]
    measured: Mapping[str, float]
    rows: Sequence[RunRow]

    @property
    def judged(self) -> list[RunRow]:
        """Return the runs that methods are judged by."""
        return [row for row in self.rows if row.purpose == "judge"]

    @property
    def seconds(self) -> float:
        """Return the seconds that its runs took."""
        return math.fsum(row.seconds or 0.0 for row in self.rows)


# -- from the folder of a study ----------------------------------------------------------------------------------------


def result_of(study: "CellStudy", folder: Path) -> CellResult:
    """Return the result of a study whose runs have all ended."""
    judging = read_judging(folder)
    if judging is None or judging.goal is None:
        raise FedskewError(f"{folder} holds no study: remove it, and run the cell again")
    members = wanted(folder, read_members(folder), judging)
    runs = {}
    for member in members:
        if not (folder / member.name / FAILED).is_file():
            runs[member.name] = RunData(open_run(folder / member.name))
    budgets = _budgets(members, runs)
    rows = []
    for member in members:
        rows.append(_row(member, runs.get(member.name), judging.goal, budgets))
    return CellResult(
        cell=study.cell.name,
        goal=judging.goal,
        protocol=study.protocol.digest,
        version=__version__,
        metric=str(study.protocol.goals[study.goal]["metric"]),
        zone=judging.zone,
        row=judging.row,
        chosen=_chosen(rows),
        measured=_measured(members),
        rows=rows,
    )


def _chosen(rows: Sequence[RunRow]) -> dict[str, float]:
    """Return the learning rate that each method is judged with."""
    chosen = {}
    for row in rows:
        if row.purpose == "judge":
            chosen[row.method] = row.lr
    return chosen


def _budgets(
    members: Sequence[Member], runs: Mapping[str, RunData]
) -> dict[int, tuple[float, float]]:
    """Return what FedAvg sends in all of its rounds, and its simulated seconds, by block."""
    budgets = {}
    for member in members:
        run = runs.get(member.name)
        if run is None or member.algorithm != CONTROL or _purpose(member) != "judge":
            continue
        sent = run.summary["bytes_down"] + run.summary["bytes_up"]
        budgets[_seed(member)] = (float(sent), float(run.summary["simulated_seconds"]))
    return budgets


def _purpose(member: Member) -> str:
    """Return whether a run chooses or is judged."""
    if member.purpose == "choose":
        return "choose"
    return "judge"


def _seed(member: Member) -> int:
    return int(member.values["seed"])


def _row(
    member: Member,
    run: RunData | None,
    goal: Goal,
    budgets: Mapping[int, tuple[float, float]],
) -> RunRow:
    """Return one run as a row."""
    head: dict[str, Any] = {
        "method": member.algorithm,
        "purpose": _purpose(member),
        "lr": float(member.varied["lr"]),
        "seed": _seed(member),
    }
    if run is None:
        return RunRow(**head, fate="diverged")
    fate = "done"
    if collapse_of(run, goal):
        fate = "collapsed"
    summary = run.summary
    found: dict[str, Any] = {}
    for name, column in _BEYOND_THE_SCORE[goal].items():
        found[name] = summary.get(column)
    at_bytes, at_time = _within(run, goal, budgets.get(head["seed"]))
    return RunRow(
        **head,
        **found,
        fate=fate,
        score=score_of(run, goal, "last"),
        validation=validation_of(run, goal, "last"),
        worst=summary.get(_WORST.format(metric=run.metric)),
        sent=summary["bytes_down"] + summary["bytes_up"],
        simulated=summary["simulated_seconds"],
        seconds=summary.get("seconds"),
        score_at_bytes=at_bytes,
        score_at_time=at_time,
    )


def _within(
    run: RunData, goal: Goal, budget: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """Return the scores of a run in its last evaluated rounds within a budget of bytes, and of simulated seconds."""
    if budget is None:
        return None, None
    rounds = run.rounds
    scores = rounds.get(column_on_test(run, goal), [])
    both = map(sum, zip(rounds["bytes_down"], rounds["bytes_up"], strict=True))
    sent = list(accumulate(both))
    return last_within(scores, sent, budget[0]), last_within(scores, rounds["clock"], budget[1])


def last_within(
    scores: Sequence[float | None], spent: Sequence[float], budget: float
) -> float | None:
    """Return the last score until which no more than the budget was spent; None if there is none.

    >>> last_within([None, 0.5, 0.7, 0.8], [1, 2, 3, 4], 3)
    0.7
    """
    found = None
    for score, so_far in zip(scores, spent, strict=False):
        if so_far > budget * (1 + 1e-9):
            break
        if score is not None:
            found = score
    return found


# -- what was measured of the clients ----------------------------------------------------------------------------------


def _measured(members: Sequence[Member]) -> dict[str, float]:
    """Return the measures of the first partitions, as means."""
    partitions = Partitions()
    by_name: dict[str, list[float]] = {}
    seeds: dict[int, Member] = {}
    for member in members:
        if _purpose(member) == "judge":
            seeds.setdefault(_seed(member), member)
    for seed in sorted(seeds)[:MEASURED_BLOCKS]:
        found = measure(partitions.of(seeds[seed].experiment()))
        for name, value in vector_of(found.as_dict()).items():
            by_name.setdefault(name, []).append(value)
    means = {}
    for name, values in by_name.items():
        means[name] = fmean(values)
    return means


def vector_of(printed: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that the map and its predictions go by: distances and their floors, sizes, numbers.

    ``printed`` is what ``fedskew measure --json`` prints. A view that could not be measured is left out.
    """
    vector = {
        "clients": float(printed["clients"]),
        "rows": float(printed["rows"]),
        "classes": float(printed["classes"]),
        "size_gini": float(printed["sizes"]["gini"]),
    }
    for view in VIEWS:
        name = view.replace(" ", "_")
        spread = printed.get(name, {}).get(DISTANCE)
        if spread is None or spread["mean"] is None:
            continue
        vector[name] = float(spread["mean"])
        vector[f"{name}_by_chance"] = float(spread["by_chance"] or 0.0)
    return vector


# -- on disk -----------------------------------------------------------------------------------------------------------


def write_result(path: Path, result: CellResult) -> None:
    """Write a result as JSON, a line per run."""
    whole = asdict(result)
    rows = [json.dumps(row) for row in whole.pop("rows")]
    head = json.dumps({"schema": SCHEMA, **whole}, indent=1)
    content = head.removesuffix("\n}") + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    write_atomically(path, content.encode())


def read_result(path: Path) -> CellResult:
    """Return a result that was written; a damaged file is an error."""
    with reading(path):
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
            if whole.pop("schema") != SCHEMA:
                raise FedskewError(
                    f"{path} is not of schema {SCHEMA}: use the version that wrote it"
                )
            whole["rows"] = [RunRow(**row) for row in whole["rows"]]
            result = CellResult(**whole)
            _check_numbers(result)
            return result
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise FedskewError(f"{path} is damaged: {problem}") from None


def _check_numbers(result: CellResult) -> None:
    """Raise an error for what is no number where one belongs, and for a result without rows of its control."""
    numbers = [result.row, *result.chosen.values(), *result.measured.values()]
    for row in result.rows:
        for name, value in asdict(row).items():
            if name not in _TEXTS and value is not None:
                numbers.append(value)
    for number in numbers:
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a finite number")
    if CONTROL not in result.chosen:
        raise ValueError(f"no run of {CONTROL} is in it")
    if not result.rows:
        raise ValueError("it has no runs")


def as_table(results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """Return one row per run of all results, with its cell and goal."""
    table = []
    for result in results:
        for row in result.rows:
            table.append({"cell": result.cell, "goal": result.goal, **asdict(row)})
    return table
