"""What an atlas leaves in its folder: the page, figures, the rows of all runs, and what describes them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from fedskew.atlas.atlas_chapter import chapter
from fedskew.atlas.atlas_map import AtlasMap
from fedskew.atlas.atlas_page import GOAL_TITLES, atlas_page
from fedskew.atlas.atlas_runs import Atlas
from fedskew.atlas.cell_results import as_table
from fedskew.atlas.nearest_cells import Regret, regrets
from fedskew.atlas.published import places_of
from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically
from fedskew.plots.atlas_figures import GridSquare, gains_figure, grid_figure
from fedskew.runs.goals import Goal

PAGE, CHAPTER, ROWS, CROISSANT, DATASHEET, SUMS = (
    "atlas.html",
    "atlas.md",
    "runs.parquet",
    "croissant.json",
    "datasheet.md",
    "SHA256SUMS",
)
_TYPES = {"int64": "sc:Integer", "float64": "sc:Float"}
_COLUMNS = {
    "cell": "name of the cell in the protocol",
    "goal": "shared: one model for everybody; own: the model that each client uses",
    "method": "as it is written in the protocol",
    "purpose": "choose: a run by which the learning rate was chosen; judge: a run that methods are judged by",
    "lr": "learning rate",
    "seed": "block: partition, initial weights, samples and batches",
    "fate": "done, collapsed or diverged",
    "score": "on test rows in the last round: balanced accuracy (shared) or mean accuracy of the clients (own)",
    "validation": "the same on validation rows",
    "accuracy": "on test rows",
    "worst": "mean of the worst tenth of the clients",
    "ece": "expected calibration error",
    "sent": "bytes in both directions in all rounds",
    "simulated": "seconds of the virtual clock",
    "seconds": "seconds of training",
    "score_at_bytes": "score in the last evaluated round within the bytes of FedAvg",
    "score_at_time": "score in the last evaluated round within the simulated seconds of FedAvg",
}


def write_atlas(atlas: Atlas, folder: Path) -> list[Path]:
    """Write the page, figures and rows of what has ended, with their description and checksums; return the paths."""
    results = atlas.results
    if not results:
        raise FedskewError(
            f"no study of {atlas.folder} has ended: run it first, fedskew atlas run --out {atlas.folder}"
        )
    found = AtlasMap(atlas.protocol, results)
    lost = regrets_of(found)
    files = {PAGE: atlas_page(found, lost), CHAPTER: chapter(found, lost).encode()}
    files |= _figures(found)
    rows = as_table(list(results.values()))
    files[ROWS] = _parquet(rows)
    files[DATASHEET] = _datasheet(found, rows).encode()
    files[CROISSANT] = _croissant(found, rows, files[ROWS]).encode()
    files[SUMS] = _sums(files).encode()
    paths = []
    for name, content in files.items():
        write_atomically(folder / name, content)
        paths.append(folder / name)
    return paths


def regrets_of(found: AtlasMap) -> dict[Goal, Sequence[Regret]]:
    """Return what is lost by choosing by rules, for the goals with cells of several data sets."""
    places = places_of(found)
    lost: dict[Goal, Sequence[Regret]] = {}
    for goal in GOAL_TITLES:
        families = {place.family for place in places if place.goal == goal}
        if len(families) > 1:
            lost[goal] = regrets(places, goal)
    return lost


def _figures(found: AtlasMap) -> dict[str, bytes]:
    """Return the figures as PDF, by name."""
    files = {}
    for goal, title in GOAL_TITLES.items():
        cells = found.cells(goal)
        if not cells:
            continue
        squares = {}
        points: dict[str, list[tuple[float, float, bool]]] = {}
        for square in found.squares:
            if square.goal != goal:
                continue
            method = found.title_of(square.method)
            gain = 100 * square.gain
            squares[square.cell.title, method] = GridSquare(f"{gain:+.1f}", square.contrast.verdict)
            level = found.measured(square.cell, goal)["labels"]
            points.setdefault(method, []).append((level, gain, square.cell.natural))
        names = [cell.title for cell in cells]
        methods = [found.title_of(method) for method in found.methods(goal)]
        files[f"verdicts-{goal}.pdf"] = grid_figure(names, methods, squares, title)
        files[f"gains-{goal}.pdf"] = gains_figure(
            points,
            "label distance between clients (Hellinger)",
            "gain over FedAvg in points",
            title,
        )
    return files


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the rows of all runs as a Parquet file."""
    import pandas as pd

    content = BytesIO()
    try:
        pd.DataFrame(list(rows)).to_parquet(content, index=False)
    except ImportError:
        raise FedskewError(
            f"{ROWS} needs an extra of fedskew: pip install 'fedskew[parquet]'"
        ) from None
    return content.getvalue()


def _croissant(found: AtlasMap, rows: Sequence[Mapping[str, Any]], content: bytes) -> str:
    """Return the description of the rows by the Croissant vocabulary, version 1.0."""
    import pandas as pd

    kinds = pd.DataFrame(list(rows)).dtypes
    fields = []
    for name, says in _COLUMNS.items():
        fields.append(
            {
                "@type": "cr:Field",
                "@id": f"runs/{name}",
                "name": name,
                "description": says,
                "dataType": _TYPES.get(str(kinds[name]), "sc:Text"),
                "source": {"fileObject": {"@id": ROWS}, "extract": {"column": name}},
            }
        )
    described = {
        "@context": {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "conformsTo": "http://purl.org/dc/terms/conformsTo",
            "recordSet": "cr:recordSet",
            "field": "cr:field",
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            "source": "cr:source",
            "fileObject": "cr:fileObject",
            "extract": "cr:extract",
            "column": "cr:column",
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "fedskew-atlas",
        "description": found.protocol.title,
        "version": found.protocol.version,
        "license": "https://spdx.org/licenses/CC-BY-4.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": ROWS,
                "name": ROWS,
                "contentUrl": ROWS,
                "encodingFormat": "application/vnd.apache.parquet",
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        ],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "runs", "name": "runs", "field": fields}],
    }
    return json.dumps(described, indent=1) + "\n"


def _datasheet(found: AtlasMap, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the datasheet of the rows, after Gebru et al. (2021)."""
    runs = found.runs
    protocol = found.protocol
    columns = [f"| `{name}` | {says} |" for name, says in _COLUMNS.items()]
    versions = ", ".join(sorted({result.version for result in found.results.values()}))
    return "\n".join(
        [
            f"# Datasheet: {protocol.title}",
            "",
            "**Motivation.** The runs answer which method helps federated learning on which heterogeneity.",
            "",
            f"**Composition.** {len(rows):,} runs, one per row: {runs['choose']:,} chose learning rates, and methods "
            f"are judged by {runs['judge']:,}. {runs['diverged']:,} diverged and {runs['collapsed']:,} collapsed. "
            f"{len(found.results)} of {len(protocol.studies)} studies have ended.",
            "",
            f"**Collection.** fedskew {versions}, protocol version {protocol.version}, SHA-256 {protocol.digest}. It "
            "was frozen before the first run. Data sets keep their own terms: none of their rows is in this table.",
            "",
            "**Uses.** Comparing methods, planning studies, testing recommendations. A gain holds for its cell: data "
            "set, clients, model, rounds and tuning.",
            "",
            "**Distribution and maintenance.** CC BY 4.0. A new version has a new protocol, and rows of two protocols "
            "are not comparable.",
            "",
            "| column | meaning |",
            "|---|---|",
            *columns,
            "",
        ]
    )


def _sums(files: Mapping[str, bytes]) -> str:
    """Return the checksums of files, as sha256sum writes them."""
    lines = []
    for name, content in files.items():
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    return "".join(lines)
