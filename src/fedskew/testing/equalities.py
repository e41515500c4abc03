"""Checks that two trainings give the same result: engines, repeats, relabelled clients, identical clients."""

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, get_args, get_origin
from unittest.mock import patch

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm
from fedskew.core.errors import FedskewError
from fedskew.core.registry import options_of
from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors
from fedskew.engine.job import Engine
from fedskew.testing.check_report import ContractError, NotApplicableError, Passed
from fedskew.testing.hook_checks import random_states
from fedskew.testing.lab import (
    DROPOUT,
    FULL,
    LATE,
    LOCAL,
    MERGED,
    PLAIN,
    SIZES,
    Difference,
    Lab,
    Scene,
    Trained,
    names_of,
)

WIDE, NARROW = 1e-8, 1e-3  # float64 after five rounds, float32 after two
EXACT = 1e-10  # the same sums in another order


def engines_agree(lab: Lab) -> Passed:
    """Check that every engine agrees with the reference: weights, server state, client states and all tables."""
    if len(lab.engines) < 2:
        raise NotApplicableError("it takes two engines that run the method")
    reference, *others = lab.engines
    wide = Difference()
    narrow = Difference()
    for scene in lab.scenes():
        right = lab.run(5, scene, reference).everything()
        for engine in others:
            what = f"{type(engine).__name__} and {type(reference).__name__} after 5 rounds with {scene.name}"
            wide.compare(lab.run(5, scene, engine).everything(), right, WIDE, what)
    for scene in lab.scenes(PLAIN, MERGED):
        right = lab.run(2, scene, reference, dtype="float32").everything()
        for engine in others:
            what = f"{type(engine).__name__} and {type(reference).__name__} after 2 rounds in float32 with {scene.name}"
            left = lab.run(2, scene, engine, dtype="float32").everything()
            narrow.compare(left, right, NARROW, what)
    kinds = ", ".join(scene.name for scene in lab.scenes())
    return Passed(
        f"{names_of(lab.engines)} after 5 rounds with {kinds}; float32 {narrow.worst:.1e} after 2",
        wide.worst,
    )


def one_seed_one_result(lab: Lab) -> Passed:
    """Check that a seed gives the same bits whatever the global generators and clocks are, and another seed others."""
    for engine in lab.engines:
        for scene in lab.scenes(LOCAL, DROPOUT):
            _same_seed(lab, scene, engine)
        for scene in lab.scenes(PLAIN):
            _other_seed(lab, scene, engine)
    return Passed(
        f"all bits after {LATE} rounds of two runs in {names_of(lab.engines)}; other bits with another seed",
        0.0,
    )


def _same_seed(lab: Lab, scene: Scene, engine: Engine) -> None:
    """Check that two runs with one seed have the same bits."""
    name = type(engine).__name__
    rounds = 2
    if scene is LOCAL:
        rounds = LATE
    before = random_states()
    first = lab.run(rounds, scene, engine).everything()
    if random_states() != before:
        raise ContractError(
            f"{name} with {scene.name}: training moves the global random generators"
        )
    with _other_random_numbers():
        again = lab.run(rounds, scene, engine).everything()
    what = f"{name} twice with the same seed and {scene.name}"
    Difference().compare(again, first, 0.0, what)


def _other_seed(lab: Lab, scene: Scene, engine: Engine) -> None:
    """Check that two runs with different seeds have different bits."""
    # Enough rounds for a server that takes a step for every update to hear from all clients.
    one = lab.run(8, scene, engine, seed=0)
    other = lab.run(8, scene, engine, seed=1)
    left = {**one.model(), **one.client_states()}
    right = {**other.model(), **other.client_states()}
    if all(name in right and torch.equal(value, right[name]) for name, value in left.items()):
        raise ContractError(
            f"{type(engine).__name__}: another seed gives the same bits, neither batches nor choice of clients depend "
            "on it"
        )


@contextmanager
def _other_random_numbers() -> Iterator[None]:
    """Change the global generators, the process number and the time, which two runs within a second would share."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    then = time.time() + 100_003
    other = os.getpid() + 1
    try:
        with (
            patch("time.time", lambda: then),
            patch("time.time_ns", lambda: int(1e9 * then)),
            patch("os.getpid", lambda: other),
        ):
            yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def clients_in_any_order(lab: Lab) -> Passed:
    """Check that relabelled clients give the same weights; with full batches, as batches are drawn by client number."""
    if lab.scheduled():
        raise NotApplicableError(
            "the schedule draws clients by their numbers, so other numbers make another schedule"
        )
    if lab.on_graph():
        raise NotApplicableError("clients have their places on the graph by their numbers")
    if lab.has_ranks():
        raise NotApplicableError("clients have the ranks of their adapters by their numbers")
    usual = lab.federation()
    old_number = Stream(0, "conformance order").permutation(len(SIZES))
    relabelled = lab.federation([usual.partition.of(int(client)) for client in old_number])
    numbers = None
    pooled = ""
    if lab.pools():
        pooled = "; trivially so, the method pools all rows"
    else:
        numbers = dict(enumerate(old_number.tolist()))
    seen = Difference()
    for engine in lab.engines:
        for scene in lab.scenes(PLAIN, MERGED, LOCAL):
            first = lab.run(2, scene, engine, usual, **FULL)
            second = lab.run(2, scene, engine, relabelled, **FULL)
            what = f"{type(engine).__name__}, clients relabelled, {scene.name}"
            seen.compare(_by_number(second, numbers), _by_number(first), EXACT, what)
    return Passed(
        f"weights, client states and tables after 2 rounds with relabelled clients{pooled}",
        seen.worst,
    )


def _by_number(trained: Trained, numbers: Mapping[int, int] | None = None) -> Tensors:
    """Return all that training changes and reports, with clients named by these numbers."""
    return {
        **trained.common(),
        **trained.rounds(),
        **trained.client_states(numbers),
        **trained.models_in_use(numbers),
        **trained.tables(numbers),
    }


def identical_clients(lab: Lab) -> Passed:
    """Check that three clients with the same rows equal one client, running statistics of BatchNorm included."""
    if lab.pools():
        raise NotApplicableError(
            "the method pools all rows, so that three equal clients are one with three times the rows"
        )
    if lab.scheduled():
        raise NotApplicableError(
            "one model is trained on all samples: three times the rows are three times the steps"
        )
    if (lab.buffer_size() or 3) < 3:
        raise NotApplicableError("the server takes a step before all three have answered")
    try:
        lab.fresh().check_clients(1)
    except FedskewError as reason:
        raise NotApplicableError(f"the method refuses one client: {reason}") from None
    rows = np.arange(12)
    one = lab.federation([rows])
    three = lab.federation([rows] * 3)
    seen = Difference()
    variants = weightings(lab.fresh())
    for engine in lab.engines:
        for algorithm in variants:
            for scene in lab.scenes(PLAIN, MERGED, LOCAL):
                alone = lab.run(2, scene, engine, one, replace(algorithm), **FULL)
                together = lab.run(2, scene, engine, three, replace(algorithm), **FULL)
                what = f"{type(engine).__name__}, three identical clients and one, {scene.name}"
                seen.compare(together.common(), alone.common(), EXACT, what)
                _compare_clients(seen, together, alone, what)
    kinds = ""
    if len(variants) > 1:
        kinds = f" with {len(variants)} kinds of weights"
    return Passed(
        f"weights, server and client states after 2 rounds of three identical clients and of one{kinds}",
        seen.worst,
    )


def _compare_clients(seen: Difference, three: Trained, one: Trained, what: str) -> None:
    """Compare what each of three clients keeps and uses with that of the only client of another run."""
    for client in range(3):
        for found in (Trained.client_states, Trained.models_in_use):
            seen.compare(found(three, {client: 0}), found(one, {0: 0}), EXACT, what)


def weightings(algorithm: Algorithm) -> list[Algorithm]:
    """Return the algorithm with every choice of its option ``weights``, if it has one."""
    option = options_of(type(algorithm)).get("weights")
    if option is None or get_origin(option.type) is not Literal:
        return [algorithm]
    variants: list[Algorithm] = []
    for value in get_args(option.type):
        variants.append(replace(algorithm, **{"weights": value}))
    return variants
