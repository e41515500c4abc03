"""How many seeds a table is measured with: five, then more until its claims are known closely enough, at most twenty.

The rule was fixed before it was first used. It looks at the widths of intervals only: never at who is ahead, and never
at a verdict.
"""

from collections.abc import Mapping
from typing import TypeAlias

from fedskew.papers.comparison import Measured
from fedskew.papers.paper_claims import Claim
from fedskew.papers.verdicts import findings_on
from fedskew.study.grid import parse_seeds

STAGES = (
    5,
    10,
    20,
)  # seeds from 0 on that a claim is judged with, until its intervals are narrow enough
Key: TypeAlias = tuple[str, str]  # a case and a method


def wanted_seeds(found: Measured) -> dict[Key, list[int]]:
    """Return the seeds that every cell is to be measured with, given what was measured so far.

    Cells that no claim compares have the seeds of the table, and so has a quick version.
    """
    table = found.table
    wanted: dict[Key, list[int]] = {}
    for case in table.cases:
        for method in table.methods_of(case):
            wanted[case.name, method.name] = parse_seeds(table.seeds)
    if not table.may_grow:
        return wanted
    for claim in table.claims:
        if claim.kind in ("chosen", "untestable"):
            continue
        cells = _cells(claim, wanted)
        seeds = range(_stage(found, claim, cells))
        for key in cells:
            wanted[key] = sorted({*wanted[key], *seeds})
    return wanted


def cells_that_lack_seeds(found: Measured) -> int:
    """Return how many cells have fewer seeds than the rule asks for."""
    lacking = 0
    for (case, method), seeds in wanted_seeds(found).items():
        if len(found.cell(case, method).runs) < len(seeds):
            lacking += 1
    return lacking


def _cells(claim: Claim, all_cells: Mapping[Key, object]) -> list[Key]:
    """Return the cells that a claim compares."""
    methods = (claim.method, *claim.others)
    cases = (*claim.cases, *claim.elsewhere)
    if claim.kind == "gap" and not claim.elsewhere:
        cases = ()  # all of them
    cells = []
    for case, method in all_cells:
        if method in methods and (not cases or case in cases):
            cells.append((case, method))
    return cells


def _stage(found: Measured, claim: Claim, cells: list[Key]) -> int:
    """Return with how many seeds a claim is to be judged: the first stage that is not measured, or that suffices."""
    for stage in STAGES:
        for case, method in cells:
            if len(found.cell(case, method).runs) < stage:
                return stage
        if is_narrow_enough(found, claim):
            return stage
    return STAGES[-1]


def is_narrow_enough(found: Measured, claim: Claim) -> bool:
    """Return whether every interval of a claim is within the width that its value asks for."""
    width = found.table.value(claim.value).width_in_use
    if width is None:
        return True
    for part in findings_on(found, claim).parts:
        interval = part.contrast.interval
        if interval is None or interval.half_width > width:
            return False
    return True
