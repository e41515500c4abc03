"""The forest of a comparison: each method's difference to its control, with interval, verdict and costs."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH = 41  # characters of the axis, an odd number so that 0 can be in the middle
_POINT, _LINE, _ZERO, _ZONE = "●", "─", "│", "░"


@dataclass(frozen=True)
class ForestRow:
    """One line of a forest plot.

    Args:
        cell: the skew, or what else the cells differ in; empty where there is one cell
        name: of the method, with its control if they differ
        mean: the mean difference
        low: the end of the interval; None with too few blocks
        high: the other end
        verdict: in a word, with failures
        costs: by what factor it sends, and takes simulated time, compared with the control; empty where unknown
    """

    cell: str
    name: str
    mean: float
    low: float | None
    high: float | None
    verdict: str
    costs: Sequence[str] = ()

    def numbers(self, digits: int) -> str:
        """Return the difference with its interval.

        >>> ForestRow("", "fedprox", 0.031, 0.012, 0.05, "better").numbers(3)
        '+0.031 (+0.012 to +0.050)'
        """
        mean = f"{self.mean:+z.{digits}f}"
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({self.low:+z.{digits}f} to {self.high:+z.{digits}f})"


@dataclass(frozen=True)
class Forest:
    """A forest plot as values: its lines, the zone, and what the differences are of."""

    rows: Sequence[ForestRow]
    title: str
    zone: float | None
    digits: int

    @property
    def reach(self) -> float:
        """Return how far the axis goes on both sides of 0."""
        most = 1.5 * (self.zone or 0.0)
        for row in self.rows:
            for end in (row.mean, row.low, row.high):
                if end is not None:
                    most = max(most, abs(end))
        return most or 1.0

    @property
    def cells(self) -> list[str]:
        """Return the cells, in order."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    def of_cell(self, cell: str) -> list[ForestRow]:
        """Return the lines of a cell."""
        return [row for row in self.rows if row.cell == cell]

    def text(self) -> list[str]:
        """Return the plot as lines of text."""
        if not self.rows:
            return []
        wide, numbers, verdicts = 0, 0, 0
        for row in self.rows:
            wide = max(wide, len(row.name))
            numbers = max(numbers, len(row.numbers(self.digits)))
            verdicts = max(verdicts, len(row.verdict))
        lines = [self.title]
        for cell in self.cells:
            if cell:
                lines.append(cell)
            for row in self.of_cell(cell):
                parts = [
                    f"{row.name:<{wide}}",
                    self._axis(row),
                    f"{row.numbers(self.digits):<{numbers}}",
                    f"{row.verdict:<{verdicts}}",
                    "  ".join(row.costs),
                ]
                lines.append("  ".join(parts).rstrip())
        end = f"{self.reach:.{self.digits}f}"
        inside = _WIDTH - 2 * len(end) - 2
        lines.append(f"{'':<{wide}}  -{end}{'0':^{inside}}+{end}")
        return lines

    def _axis(self, row: ForestRow) -> str:
        """Return the interval of a line on the axis."""
        signs = [" "] * _WIDTH
        if self.zone:
            for place in range(self._at(-self.zone), self._at(self.zone) + 1):
                signs[place] = _ZONE
        if row.low is not None and row.high is not None:
            for place in range(self._at(row.low), self._at(row.high) + 1):
                signs[place] = _LINE
        signs[self._at(0.0)] = _ZERO
        signs[self._at(row.mean)] = _POINT
        return "".join(signs)

    def _at(self, difference: float) -> int:
        """Return the place of a difference on the axis."""
        share = (difference / self.reach + 1) / 2
        return round(share * (_WIDTH - 1))
