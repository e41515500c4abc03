"""The methods worth a trial, and what the measures of the clients' heterogeneity say, in words."""

import math
from dataclasses import dataclass

from fedskew.heterogeneity.result import Heterogeneity

DISTANCE = "hellinger"
SLIGHT, STRONG = 0.05, 0.25  # of this distance above what chance makes of clients of the same sizes


@dataclass(frozen=True)
class Candidate:
    """A method that is tried, and what speaks for it."""

    method: str
    because: str


def candidates(found: Heterogeneity, normalised: bool) -> list[Candidate]:
    """Return the methods to try, the most promising first; the baselines come before all.

    Args:
        found: what was measured of the clients
        normalised: whether the model has BatchNorm
    """
    labels = _excess(found, "labels")
    features = _excess(found, _view_of_features(found))
    baselines = [Candidate("fedavg", "the control"), Candidate("local", "every client alone")]
    for_labels = _for_labels(_difference("labels", labels), labels >= SLIGHT)
    for_features = _for_features(_difference("features", features), normalised)
    if features > labels:
        return [*baselines, *for_features, *for_labels]
    return [*baselines, *for_labels, *for_features]


def _difference(what: str, excess: float) -> str:
    if excess < SLIGHT:
        return f"{what} hardly differ ({excess:.2f})"
    return f"{what} differ ({excess:.2f})"


def _for_labels(differ: str, beyond_chance: bool) -> list[Candidate]:
    """Return the methods that train one model where clients have different labels.

    Those made for other label shares are no candidates where shares do not differ beyond chance: they could only be
    better by taking more steps.
    """
    drift = "clients' updates drift apart where they differ"
    against_drift = [
        Candidate("scaffold", f"{drift}: control variates correct it"),
        Candidate("fedprox:mu=0.01", f"{drift}: a proximal term holds them back"),
    ]
    if not beyond_chance:
        return against_drift
    return [
        Candidate("stratify-batch", f"{differ}: steps over all clients in balanced batches"),
        against_drift[0],
        Candidate("fedlc", f"{differ}: the loss is corrected for a client's label shares"),
        against_drift[1],
    ]


def _for_features(differ: str, normalised: bool) -> list[Candidate]:
    """Return the methods that give each client something of its own."""
    found = []
    if normalised:
        found.append(Candidate("fedbn", f"{differ}: each client keeps its BatchNorm"))
    found.append(
        Candidate("ditto", "each client gets a model of its own, held near the common one")
    )
    return found


def findings(found: Heterogeneity) -> list[str]:
    """Return what the measures say, in words."""
    lines = []
    for view in ("labels", _view_of_features(found)):
        if view in found.views:
            lines.append(_finding(view, _excess(found, view)))
    lines.append(f"they have {found.sizes['least']:g} to {found.sizes['most']:g} rows")
    return lines


def _finding(view: str, excess: float) -> str:
    what = view.replace("given label", "of rows with the same label")
    if excess < SLIGHT:
        how = "do not differ beyond chance"
    elif excess < STRONG:
        how = "differ"
    else:
        how = "differ strongly"
    return f"{what} {how} between clients ({DISTANCE} distance {excess:.2f} above chance)"


def _excess(found: Heterogeneity, view: str) -> float:
    """Return by how much the distance between clients exceeds what chance makes of clients of the same sizes."""
    spread = found.views.get(view, {}).get(DISTANCE)
    if spread is None or not math.isfinite(spread.mean):
        return 0.0
    return max(spread.mean - (spread.by_chance or 0.0), 0.0)


def _view_of_features(found: Heterogeneity) -> str:
    """Return the view of the features that counts: that among rows of one label, if clients have enough such rows."""
    given = "features given label"
    if DISTANCE in found.views.get(given, {}):
        return given
    return "features"
