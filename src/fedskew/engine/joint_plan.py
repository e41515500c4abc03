"""The plans of several runs as one, so that their clients can be trained in one stack."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedskew.core.streams import Bits, Floats, Ints
from fedskew.engine.plan import Plan

OPTION = "option."  # before the names of a method's options among the numbers of a joint plan


@dataclass(frozen=True, eq=False)
class JointPlan(Plan):
    """A plan whose clients belong to several runs: each has the seed, the round and the learning rate of its run.

    Its numbers are those of the runs' plans and, with the prefix ``OPTION``, those options of the method in which the
    runs differ.

    Args:
        member: the run of each client
        held_at: the place of each client in the joint partition
        lrs: the learning rate of each client
        plans: the plan of each run
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*Plan.COLUMNS, "member", "held_at", "lrs")

    member: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    held_at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lrs: Floats = field(default_factory=lambda: np.zeros(0))
    plans: tuple[Plan, ...] = ()

    @classmethod
    def of(
        cls,
        plans: Sequence[Plan],
        first: Sequence[int],
        lrs: Sequence[float],
        options: Sequence[dict[str, float]],
    ) -> "JointPlan":
        """Return the plans of several runs as one.

        Args:
            plans: the plan of each run
            first: where the clients of each run begin in the joint partition
            lrs: the learning rate of each run
            options: the options of each run that differ
        """
        clients = [len(plan.clients) for plan in plans]
        columns: dict[str, Any] = {}
        for name in Plan.COLUMNS:
            columns[name] = np.concatenate([getattr(plan, name) for plan in plans])
        places = [plan.places + begin for plan, begin in zip(plans, first, strict=True)]
        numbers = {}
        for name in plans[0].numbers:
            numbers[name] = np.concatenate([plan.numbers[name] for plan in plans])
        for name in options[0]:
            numbers[OPTION + name] = np.repeat([one[name] for one in options], clients)
        one = plans[0]
        return cls(
            one.seed,
            one.round,
            **columns,
            least=one.least,
            numbers=numbers,
            purpose=one.purpose,
            member=np.repeat(np.arange(len(plans)), clients),
            held_at=np.concatenate(places),
            lrs=np.repeat(lrs, clients),
            plans=tuple(plans),
        )

    def streams(self, purpose: str) -> Bits:
        """Return the state of the random stream of each client's run."""
        return np.concatenate([plan.streams(purpose) for plan in self.plans])[self.member]

    @property
    def places(self) -> Ints:
        """Return the clients' places in the joint partition."""
        return self.held_at
