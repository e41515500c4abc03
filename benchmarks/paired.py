"""Means with their 95 % t intervals, and verdicts on paired differences, for the tables that benchmarks print."""

from scipy.stats import t as student

from fedskew.core.streams import Floats

ZONE = 0.5  # points; smaller differences are of no interest


def half_width(values: Floats) -> float:
    """Return half of the 95 % t interval of a mean."""
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def interval(values: Floats, style: str = ".1f") -> str:
    """Return the mean with its 95 % t interval."""
    return f"{values.mean():{style}} ± {half_width(values):{style}}"


def verdict(differences: Floats) -> str:
    """Return better, equal, worse or undecided: where the interval of paired differences lies to the zone."""
    low = differences.mean() - half_width(differences)
    high = differences.mean() + half_width(differences)
    if low > ZONE:
        return "better"
    if high < -ZONE:
        return "worse"
    if low >= -ZONE and high <= ZONE:
        return "equal"
    return "undecided"
