"""What the atlas says of clients that were measured: the nearest cells, a first learning rate, methods to leave out."""

from collections.abc import Mapping
from typing import TypeAlias, get_args

from fedskew.atlas.cell_results import vector_of
from fedskew.atlas.nearest_cells import Nearest, nearest
from fedskew.atlas.published import published_places
from fedskew.data.targets import Target
from fedskew.heterogeneity.result import Heterogeneity
from fedskew.runs.goals import Goal

Evidence: TypeAlias = Mapping[Goal, Nearest]


def evidence_for(found: Heterogeneity, target: Target) -> Evidence:
    """Return the nearest cells for each goal; none for targets that are no classes, or far from every cell."""
    if target != "class":
        return {}
    measured = vector_of(found.as_dict())
    near = {}
    for goal in get_args(Goal):
        cells = nearest(published_places(), goal, measured)
        if not cells.is_far:
            near[goal] = cells
    return near


def first_learning_rate(evidence: Evidence, otherwise: float) -> float:
    """Return the learning rate that was chosen for FedAvg in the nearest cell."""
    for near in evidence.values():
        return near.places[0].control_lr
    return otherwise


def ruled_out(evidence: Evidence, method: str) -> str:
    """Return why a method needs no trial: it was equal or worse in all of the nearest cells; empty if it needs one."""
    name = method.partition(":")[0]
    cells = 0
    for near in evidence.values():
        for prediction in near.predictions:
            if prediction.method.partition(":")[0] != name:
                continue
            if not prediction.is_ruled_out:
                return ""
            cells += len(prediction.verdicts)
    if not cells:
        return ""
    return f"equal to FedAvg or worse in the {cells} nearest cells of the atlas"
