"""Checks that a method does something where it is tested: its models are not those of FedAvg."""

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.trees import Tensors
from fedskew.models.low_rank import plain_weights
from fedskew.testing.check_report import Passed, VacuousError
from fedskew.testing.lab import Lab, Scene, Trained, distance

ROUNDS, SAME = 3, 1e-12


def method_has_effect(lab: Lab) -> Passed:
    """Check that the shared model, or that of some client, differs from FedAvg's in one of the scenes."""
    if type(lab.algorithm) in (Algorithm, FedAvg):
        return Passed("the method is FedAvg: it overrides no hook")
    if lab.algorithm.calibrator:
        return Passed("another head after the last round")
    scenes = lab.scenes()
    for scene in scenes:
        gap = _gap(lab, scene)
        if gap > SAME:
            return Passed(
                f"other models than FedAvg's after {ROUNDS} rounds with {scene.name}", gap
            )
    raise VacuousError(
        f"all models are FedAvg's after {ROUNDS} rounds of {len(scenes)} scenes, so that the other checks say nothing "
        "of its hooks: give model= and data= with which they act, or other options"
    )


def _gap(lab: Lab, scene: Scene) -> float:
    """Return the largest difference of a model from FedAvg's."""
    engine = lab.engines[0]
    mine = _models(lab.run(ROUNDS, scene, engine))
    plain = _models(lab.run(ROUNDS, scene, engine, None, FedAvg()))
    largest = 0.0
    for name in mine.keys() & plain:  # a model with adapters also has what is frozen
        value = mine[name]
        largest = max(largest, distance(value, plain[name]))
    return largest


def _models(trained: Trained) -> Tensors:
    """Return the shared model, and those that clients use."""
    server = trained.server
    found = {}
    for name, value in plain_weights(server.model, server.state.model()).items():
        found[f"shared {name}"] = value
    for client in range(server.trained_on.clients):
        for name, value in plain_weights(server.model, server.client_model(client)).items():
            found[f"client {client} {name}"] = value
    return found
