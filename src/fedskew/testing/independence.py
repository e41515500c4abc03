"""Checks that a client's profile, weight and class statistics do not depend on the other clients."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm, Report
from fedskew.core.streams import Floats, Stream
from fedskew.engine.loop import Loop
from fedskew.testing.check_report import ContractError, Passed
from fedskew.testing.lab import CLASSES, LOCAL, MERGED, PLAIN, Lab, federation, watched


def clients_are_independent(lab: Lab) -> Passed:
    """Check that a client's profile, weight and class statistics do not depend on other clients."""
    _profile_alone(lab.fresh())
    _statistics_add_up(lab.fresh())
    if lab.scheduled():
        return Passed("profiles and class statistics of clients")
    return Passed(
        f"profiles, weights ({_weights_alone(lab)} updates) and class statistics of clients"
    )


def _profile_alone(method: Algorithm) -> None:
    fed = federation()
    counts = fed.partition.counts(fed.train.y, CLASSES)
    profile_of = method.client_selection.client_profile
    profile = profile_of(lambda: counts, Stream(0, "profile"))
    for client in range(len(counts)):
        among_others = 3 * counts + 1
        among_others[client] = counts[client]
        for name, values in profile_of(lambda: among_others, Stream(0, "profile")).items():  # noqa: B023
            if values[client] != profile[name][client]:
                raise ContractError(
                    f"client_profile: {name} of client {client} is {profile[name][client]:g}, and {values[client]:g} "
                    "with other clients: a client knows only its own row of counts"
                )


def _weights_alone(lab: Lab) -> int:
    """Check that updates have the same weights together as one by one; returns their number."""
    recorded: list[tuple[Report, Floats]] = []

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = method(*args, **kwargs)
        if hook == "weight":
            recorded.append((args[0], result))
        return result

    (scene, *_) = lab.scenes(PLAIN, MERGED, LOCAL)
    rounds = 1 + lab.begins_with_gradients()
    lab.run(rounds, scene, Loop(), None, watched(lab.fresh(), around))
    reports = []
    weights = []
    for report, weight in recorded:
        reports.append(report)
        weights.append(weight)
    alone = np.concatenate(weights)
    joined: dict[str, Any] = {}
    for one in fields(Report):
        if one.name not in ("numbers", "weights"):
            joined[one.name] = np.concatenate([getattr(report, one.name) for report in reports])
    numbers = {}
    for name in reports[0].numbers:
        numbers[name] = np.concatenate([report.numbers[name] for report in reports])
    together = lab.fresh().weight(replace(reports[0], **joined, numbers=numbers))
    if not np.allclose(together, alone, rtol=1e-12, atol=0):
        raise ContractError(
            f"weight gives {len(reports)} clients {_listed(together)} together and {_listed(alone)} one by one: a "
            "client's weight must not depend on other clients; the server divides by the sum"
        )
    return len(reports)


def _listed(values: Floats) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _statistics_add_up(method: Algorithm) -> None:
    if not method.calibrator:
        return
    statistics = method.calibrator.class_statistics
    draw = Stream(0, "conformance tally").generator()
    features = torch.from_numpy(draw.normal(size=(9, 4)))
    labels = torch.from_numpy(draw.integers(0, CLASSES, 9))
    whole = statistics(features, labels, CLASSES)
    first = statistics(features[:3], labels[:3], CLASSES)
    second = statistics(features[3:], labels[3:], CLASSES)
    for group, tensors in whole.items():
        for name, value in tensors.items():
            added = torch.stack([first[group][name], second[group][name]]).sum(0)
            if not torch.allclose(added, value, rtol=1e-9, atol=1e-9):
                raise ContractError(
                    f"class_statistics: {group}.{name} of nine rows is not the sum of that of three and of six: "
                    "class statistics must add up over rows"
                )
