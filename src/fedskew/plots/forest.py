"""The forest of a comparison: each method's difference to its control, with interval, verdict and costs."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDEST, _NARROWEST = 41, 15  # characters of the axis, odd numbers so that 0 can be in the middle
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

    def text(self, width: int) -> list[str]:
        """Return the plot as lines of text; where ``width`` is too small, without costs and with a shorter axis."""
        if not self.rows:
            return []
        names = numbers = verdicts = costs = 0
        for row in self.rows:
            names = max(names, len(row.name))
            numbers = max(numbers, len(row.numbers(self.digits)))
            verdicts = max(verdicts, len(row.verdict))
            costs = max(costs, len("  ".join(row.costs)))
        room = width - names - numbers - verdicts - 6  # two blanks before each part
        with_costs = room - costs - 2 >= _WIDEST
        axis = min(max(room - 1 + room % 2, _NARROWEST), _WIDEST)
        lines = [self.title]
        for cell in self.cells:
            if cell:
                lines.append(cell)
            for row in self.of_cell(cell):
                parts = [
                    f"{row.name:<{names}}",
                    self._axis(row, axis),
                    f"{row.numbers(self.digits):<{numbers}}",
                    f"{row.verdict:<{verdicts}}",
                ]
                if with_costs:
                    parts.append("  ".join(row.costs))
                lines.append("  ".join(parts).rstrip())
        end = f"{self.reach:.{self.digits}f}"
        inside = axis - 2 * len(end) - 2
        lines.append(f"{'':<{names}}  -{end}{'0':^{inside}}+{end}")
        return lines

    def _axis(self, row: ForestRow, width: int) -> str:
        """Return the interval of a line on the axis."""
        signs = [" "] * width
        if self.zone:
            for place in range(self._at(-self.zone, width), self._at(self.zone, width) + 1):
                signs[place] = _ZONE
        if row.low is not None and row.high is not None:
            for place in range(self._at(row.low, width), self._at(row.high, width) + 1):
                signs[place] = _LINE
        signs[self._at(0.0, width)] = _ZERO
        signs[self._at(row.mean, width)] = _POINT
        return "".join(signs)

    def _at(self, difference: float, width: int) -> int:
        """Return the place of a difference on an axis of this many characters."""
        share = (difference / self.reach + 1) / 2
        return round(share * (width - 1))
