"""Checks that two trainings give the same result: engines, repeats, relabelled clients, identical clients."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, get_args, get_origin
from unittest.mock import patch

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm
from fedskew.core.registry import options_of
from fedskew.core.streams import Stream
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
    federation,
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
            narrow.compare(
                lab.run(2, scene, engine, dtype="float32").everything(), right, NARROW, what
            )
    kinds = ", ".join(scene.name for scene in lab.scenes())
    return Passed(
        f"{names_of(lab.engines)} after 5 rounds with {kinds}; float32 {narrow.worst:.1e} after 2",
        wide.worst,
    )


def one_seed_one_result(lab: Lab) -> Passed:
    """Check that a seed gives the same bits whatever the global generators and clocks are, and another seed others."""
    for engine in lab.engines:
        name = type(engine).__name__
        for scene, rounds in (
            (scene, LATE if scene is LOCAL else 2) for scene in lab.scenes(LOCAL, DROPOUT)
        ):
            before = random_states()
            first = lab.run(rounds, scene, engine).everything()
            if random_states() != before:
                raise ContractError(
                    f"{name} with {scene.name}: training moves the global random generators"
                )
            with _other_random_numbers():
                again = lab.run(rounds, scene, engine).everything()
            Difference().compare(
                again, first, 0.0, f"{name} twice with the same seed and {scene.name}"
            )
        for scene in lab.scenes(PLAIN):
            # Enough rounds for a server that takes a step for every update to hear from all clients.
            one, other = (lab.run(8, scene, engine, seed=seed) for seed in (0, 1))
            left, right = (
                {**trained.model(), **trained.client_states()} for trained in (one, other)
            )
            if all(
                name in right and torch.equal(value, right[name]) for name, value in left.items()
            ):
                raise ContractError(
                    f"{name}: another seed gives the same bits, neither batches nor choice of clients depend on it"
                )
    return Passed(
        f"all bits after {LATE} rounds of two runs in {names_of(lab.engines)}; other bits with another seed",
        0.0,
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
    usual = federation()
    old_number = Stream(0, "conformance order").permutation(len(SIZES))
    relabelled = federation([usual.partition.of(int(client)) for client in old_number])
    seen = Difference()
    for engine in lab.engines:
        for scene in lab.scenes(PLAIN, MERGED, LOCAL):
            first, second = (lab.run(2, scene, engine, fed, **FULL) for fed in (usual, relabelled))
            if lab.pools():
                numbers = None
            else:
                numbers = {new: int(old) for new, old in enumerate(old_number)}
            left = {
                **second.model(),
                **second.rounds(),
                **second.client_states(numbers),
                **second.tables(numbers),
            }
            seen.compare(
                left,
                first.everything(),
                EXACT,
                f"{type(engine).__name__}, clients relabelled, {scene.name}",
            )
    if lab.pools():
        pooled = "; trivially so, the method pools all rows"
    else:
        pooled = ""
    return Passed(
        f"weights, client states and tables after 2 rounds with relabelled clients{pooled}",
        seen.worst,
    )


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
    rows = np.arange(12)
    one = federation([rows])
    three = federation([rows] * 3)
    seen = Difference()
    variants = weightings(lab.fresh())
    for engine in lab.engines:
        for algorithm in variants:
            for scene in lab.scenes(PLAIN, MERGED, LOCAL):
                alone = lab.run(2, scene, engine, one, replace(algorithm), **FULL)
                together = lab.run(2, scene, engine, three, replace(algorithm), **FULL)
                what = f"{type(engine).__name__}, three identical clients and one, {scene.name}"
                seen.compare(together.model(), alone.model(), EXACT, what)
                for client in range(3):
                    seen.compare(
                        together.client_states({client: 0}),
                        alone.client_states({0: 0}),
                        EXACT,
                        what,
                    )
    if len(variants) > 1:
        kinds = f" with {len(variants)} kinds of weights"
    else:
        kinds = ""
    return Passed(
        f"weights, server and client states after 2 rounds of three identical clients and of one{kinds}",
        seen.worst,
    )


def weightings(algorithm: Algorithm) -> list[Algorithm]:
    """Return the algorithm with every choice of its option ``weights``, if it has one."""
    option = options_of(type(algorithm)).get("weights")
    if option is None or get_origin(option.type) is not Literal:
        return [algorithm]
    result: list[Algorithm] = []
    for value in get_args(option.type):
        result.append(replace(algorithm, **{"weights": value}))
    return result
