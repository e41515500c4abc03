"""The results of the atlas that come with the package: every run of every cell, one file."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fedskew.atlas.atlas_map import AtlasMap
from fedskew.atlas.cell_results import CellResult, RunRow
from fedskew.atlas.nearest_cells import Gain, Place
from fedskew.atlas.protocol import OWN_PROTOCOL, Protocol, read_protocol
from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically
from fedskew.study.judging import CONTROL

PUBLISHED = Path(__file__).parent / "published.json.gz"
_DIGITS = 7  # of a score: float32 has no more


@cache
def published_map() -> AtlasMap:
    """Return the map that comes with the package."""
    return AtlasMap(read_protocol(OWN_PROTOCOL), read_published(PUBLISHED))


@cache
def published_places() -> tuple[Place, ...]:
    """Return the cells of that map as predictions see them."""
    return tuple(places_of(published_map()))


def places_of(found: AtlasMap) -> list[Place]:
    """Return the cells of a map as predictions see them."""
    places = []
    for study in found.protocol.studies:
        result = found.results.get(study.name)
        if result is None:
            continue
        gains = {}
        for square in found.squares:
            if square.cell.name == study.cell.name and square.goal == study.goal:
                gains[square.method] = Gain(square.gain, square.contrast.verdict, square.lr)
        places.append(
            Place(
                cell=study.cell.name,
                title=study.cell.title,
                family=study.cell.family,
                goal=study.goal,
                measured=result.measured,
                control_lr=result.chosen["fedavg"],
                gains=gains,
                by_trials=_best_in_trials(result, list(gains)),
            )
        )
    return places


def _best_in_trials(result: CellResult, methods: Sequence[str]) -> str:
    """Return the method with the best mean on validation rows in the runs that chose its learning rate."""
    scores: dict[str, list[float]] = {}
    for row in result.rows:
        at_its_rate = result.chosen.get(row.method) == row.lr
        if row.purpose == "choose" and at_its_rate and row.validation is not None:
            scores.setdefault(row.method, []).append(row.validation)
    best = CONTROL
    for method in methods:
        if method in scores and fmean(scores[method]) > fmean(scores[best]):
            best = method
    return best


def write_published(path: Path, protocol: Protocol, results: Mapping[str, CellResult]) -> None:
    """Write results as the package has them: compressed, rows as lists of values."""
    studies = []
    for name, result in results.items():
        whole = asdict(result)
        rows = []
        for row in result.rows:
            rows.append([_rounded(value) for value in asdict(row).values()])
        studies.append({**whole, "name": name, "rows": rows})
    columns = list(RunRow.__dataclass_fields__)
    content = {"protocol": protocol.digest, "columns": columns, "studies": studies}
    text = json.dumps(content, separators=(",", ":"))
    write_atomically(path, gzip.compress(text.encode(), mtime=0))


def _rounded(value: Any) -> Any:
    """Return a number with seven significant digits, and anything else as it is."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value


def read_published(path: Path) -> dict[str, CellResult]:
    """Return the results of a file by study."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError):
        raise FedskewError(
            f"{path} cannot be read: install fedskew again, the results of the atlas are a part of it"
        ) from None
    found = {}
    for study in content["studies"]:
        name = study.pop("name")
        rows = []
        for values in study.pop("rows"):
            rows.append(RunRow(**dict(zip(content["columns"], values, strict=True))))
        found[name] = CellResult(**study, rows=rows)
    return found
