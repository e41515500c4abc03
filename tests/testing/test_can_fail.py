"""The conformance suite can fail: a broken method for every check, which that check and no other reports."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import fedskew
from fedskew.algorithms.calibrator import Calibrator
from fedskew.algorithms.contract import Algorithm, Cohort, Report, View, difference, proximal
from fedskew.algorithms.selection import ClientPool, Selection
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, PartialShare, options_of
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.job import Job, Start, Updates
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.models.layout import Layout
from fedskew.testing import CHECKS, Conformance, ConformanceError
from fedskew.testing.option_checks import bad_values


def failures(algorithm: Algorithm | type[Algorithm], *only: str, **options: Any) -> dict[str, str]:
    """Return the messages of the failed checks; ``only`` the named ones are run."""
    skip = {name: "not now" for name in CHECKS if only and name not in only}
    report = fedskew.check(algorithm, raise_on_failure=False, skip=skip, **options)
    return {finding.check: finding.detail for finding in report.failures}


@dataclass(frozen=True)
class WeighsByNumber(Algorithm):
    """Weighs later clients more."""

    def weight(self, report: Report) -> Floats:
        return 1.0 + report.clients


def test_order_catches_weights_by_client_number() -> None:
    found = failures(WeighsByNumber)
    assert set(found) == {"order"}
    assert "clients relabelled" in found["order"]


@dataclass(frozen=True)
class Clips(Algorithm):
    """Clips with a Python number."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        largest = max(grad.abs().max().item() for grad in grads.values())
        return {name: grad / max(1.0, largest) for name, grad in grads.items()}


@dataclass(frozen=True)
class Branches(Algorithm):
    """Branches on the loss."""

    def objective(self, loss: Tensor, view: View) -> Tensor:
        return loss * 2 if loss > 1 else loss


@dataclass(frozen=True)
class Masks(Algorithm):
    """Selects elements by a mask."""

    def payload(self, view: View) -> Tree:
        delta = difference(view.params, view.start)
        return {"delta": {name: value * value[value > 0].sum() for name, value in delta.items()}}


@dataclass(frozen=True)
class UsesNumPy(Algorithm):
    """Converts to NumPy in a hook."""

    def payload(self, view: View) -> Tree:
        delta = difference(view.params, view.start)
        return {
            "delta": {
                name: torch.from_numpy(value.detach().numpy()) for name, value in delta.items()
            }
        }


@pytest.mark.parametrize(
    ("algorithm", "hook", "advice"),
    [
        (Clips, "correct_gradients", "compute with the tensor"),
        (Branches, "objective", "use torch.where"),
        (Masks, "payload", "use torch.where"),
        (UsesNumPy, "payload", "compute with the tensor"),
    ],
)
def test_runs_catches_what_cannot_be_stacked(
    algorithm: type[Algorithm], hook: str, advice: str
) -> None:
    found = failures(algorithm)
    assert set(found) == {"runs"}
    assert found["runs"].startswith(f"in Stacked {hook} (test_can_fail.py, line ")
    assert found["runs"].endswith(advice)


@dataclass(frozen=True)
class Crashes(Algorithm):
    """Raises an error in its first hook."""

    def init_server_state(self, weights: Tensors) -> Tree:
        raise KeyError("momentum")


def test_a_crash_everywhere_is_told_and_the_rest_does_not_pretend() -> None:
    report = fedskew.check(Crashes, raise_on_failure=False)
    assert "in Loop init_server_state (test_can_fail.py, line" in report["runs"].detail
    assert "KeyError: 'momentum'" in report["runs"].detail
    assert {finding.outcome for finding in report.findings[list(CHECKS).index("runs") + 1 :]} == {
        "not applicable"
    }


@dataclass(frozen=True)
class Forgets(Algorithm):
    """Its state is not in ``init_client_state``, so it is not kept."""

    def client_state(self, view: View) -> Tree:
        return {"last": dict(view.params)}


@dataclass(frozen=True)
class Narrows(Algorithm):
    """Converts a float64 gradient to float32."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        return {name: grad.float() for name, grad in grads.items()}


@dataclass(frozen=True)
class LosesNames(Algorithm):
    """Corrects only the matrices and drops the rest."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        return {
            name: value + mean["delta"][name] for name, value in weights.items() if value.dim() > 1
        }, server_state


@dataclass(frozen=True)
class SendsIntegers(Algorithm):
    """Sends a count as an integer, of which there is no weighted mean."""

    def payload(self, view: View) -> Tree:
        return {**super().payload(view), "count": {"rows": view.numbers["size"].long()}}


@dataclass(frozen=True)
class FlatState(Algorithm):
    """Has a server state without groups."""

    def init_server_state(self, weights: Tensors) -> Tree:
        return dict(weights)  # type: ignore[arg-type]


@dataclass(frozen=True)
class NegativeWeights(Algorithm):
    """Returns negative weights."""

    def weight(self, report: Report) -> Floats:
        return 6.0 - report.sizes


class HalfRows(Selection):
    """Requests a measurement on half of a batch, which may be half a row."""

    probe = ("loss",)

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        return np.full(len(chosen), pool.batch_size / 2)


@dataclass(frozen=True)
class MeasuresHalfRows(Algorithm):
    """Has a selection that returns no whole numbers."""

    client_selection = HalfRows()


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            MeasuresHalfRows,
            "probe_rows must be an array of 5 whole numbers, at least 1, one of the chosen",
        ),
        (
            Forgets,
            "client_state must have the names of what init_client_state returns, or it is lost: "
            "'last.features.1.bias' is new",
        ),
        (Narrows, "correct_gradients must have the shapes and dtypes of gradients"),
        (
            LosesNames,
            "server_update must have the names of the weights it was given: 'features.1.bias' is missing",
        ),
        (SendsIntegers, "payload count.rows is torch.int64: send floating point"),
        (FlatState, "init_server_state must return named groups of named tensors"),
        (NegativeWeights, "weight must return an array of 1 finite weights, none below 0"),
    ],
)
def test_shapes_catches_what_does_not_fit(algorithm: type[Algorithm], message: str) -> None:
    assert failures(algorithm, "shapes")["shapes"].startswith(message)


@dataclass(frozen=True)
class LateState(Algorithm):
    """Its server state is not in ``init_server_state``, so a resumed run has none."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        old = server_state.get("momentum", mean["delta"])
        momentum = {name: 0.5 * old[name] + delta for name, delta in mean["delta"].items()}
        return {name: weight + momentum[name] for name, weight in weights.items()}, {
            "momentum": momentum
        }


def test_shapes_and_checkpoint_catch_server_state_that_is_not_in_init() -> None:
    found = failures(LateState)
    assert set(found) == {"shapes", "checkpoint"}
    assert "what init_server_state returns, or it is lost on resume" in found["shapes"]


@dataclass(frozen=True)
class Hoards(Algorithm):
    """Keeps its momentum in the object, where a checkpoint does not save it."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        old = vars(self).get("momentum", mean["delta"])
        momentum = {name: 0.5 * old[name] + delta for name, delta in mean["delta"].items()}
        object.__setattr__(self, "momentum", momentum)
        return {name: weight + momentum[name] for name, weight in weights.items()}, server_state


def test_checkpoint_catches_state_inside_the_object() -> None:
    found = failures(Hoards)
    assert set(found) == {"functions", "checkpoint"}
    assert found["functions"].startswith(
        "server_update returns another result for the same arguments in a new object"
    )
    assert "resumed after 2 rounds and never stopped" in found["checkpoint"]
    assert "the bits must be the same" in found["checkpoint"]


@dataclass(frozen=True)
class Mellows(Algorithm):
    """Takes shorter steps from the fourth round on, and counts rounds in the object."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        object.__setattr__(self, "rounds", vars(self).get("rounds", 0) + 1)
        share = 0.5 if vars(self)["rounds"] > 3 else 1.0
        return {
            name: weight + share * mean["delta"][name] for name, weight in weights.items()
        }, server_state


ROUNDS: set[int] = set()


class CountsRounds(Selection):
    """Counts rounds in a global, and restarts with every training."""

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        if pool.round == 0:
            ROUNDS.clear()
        ROUNDS.add(pool.round)
        return super().select(pool, count, stream)


@dataclass(frozen=True)
class MellowsElsewhere(Algorithm):
    """Takes shorter steps from the fourth round on, and counts rounds in its selection."""

    client_selection = CountsRounds()

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        share = 0.5 if len(ROUNDS) > 3 else 1.0
        return {
            name: weight + share * mean["delta"][name] for name, weight in weights.items()
        }, server_state


def test_state_that_shows_late_is_caught() -> None:
    assert set(failures(Mellows)) == {"functions", "checkpoint"}
    assert set(failures(MellowsElsewhere)) == {"checkpoint"}


@dataclass(frozen=True)
class Spies(Selection):
    """Passes facts about the selected clients to its method."""

    method: Algorithm
    tell: Callable[[Ints, int], tuple[str, float]]

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        chosen = super().select(pool, count, stream)
        object.__setattr__(self.method, *self.tell(chosen, count))
        return chosen


@dataclass(frozen=True)
class Jealous(Algorithm):
    """Stops its clients if client 0 is selected, which no client can know."""

    @property
    def client_selection(self) -> Selection:
        return Spies(self, lambda chosen, count: ("strength", 0.5 * (0 in chosen)))

    def linear_correction(self, view: View) -> Tree:
        return proximal(view.start, dict.fromkeys(view.start, vars(self).get("strength", 0.0)))


def test_functions_catches_a_client_that_knows_who_else_is_there() -> None:
    found = failures(Jealous)
    assert set(found) == {"functions"}
    assert found["functions"].startswith(
        "linear_correction returns another result for the same arguments in a new object"
    )


class Ranks(Selection):
    """Reports a client's rows as a share of the largest client's, which it cannot know."""

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        rows = label_counts().sum(1)
        return {"rank": rows / rows.max()}


@dataclass(frozen=True)
class Compares(Algorithm):
    """Has profiles that depend on other clients."""

    client_selection = Ranks()


class Averages(Calibrator):
    """Takes a mean where a sum is required."""

    def class_statistics(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        return {"head": {"mean": features.mean(0)}}


@dataclass(frozen=True)
class AveragesStatistics(Algorithm):
    """Has class statistics that are not additive."""

    calibrator = Averages()


def test_alone_catches_what_depends_on_others() -> None:
    found = failures(Compares)
    assert set(found) == {"alone"}
    assert found["alone"].startswith("client_profile: rank of client 0 is 1, and ")
    found = failures(AveragesStatistics)
    assert set(found) == {"alone"}
    assert found["alone"].startswith(
        "class_statistics: head.mean of nine rows is not the sum of that of three and of six"
    )


@dataclass(frozen=True)
class MovesState(fedskew.FedAvgM):
    """Updates the server's momentum in place."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        momentum = {
            name: value.mul_(self.beta).add_(mean["delta"][name])
            for name, value in server_state["momentum"].items()
        }
        return {name: weight + momentum[name] for name, weight in weights.items()}, {
            "momentum": momentum
        }


@dataclass(frozen=True)
class ReplacesEntries(Algorithm):
    """Writes into the dictionary it is given."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        for name in grads:
            grads[name] = grads[name] * 2
        return grads


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (MovesState, "server_update changes its input server_state.momentum.features.1.weight"),
        (ReplacesEntries, "correct_gradients changes its input grads.features.1.weight"),
    ],
)
def test_purity_catches_changed_inputs(algorithm: type[Algorithm], message: str) -> None:
    found = failures(
        algorithm, *(name for name in CHECKS if name != "functions")
    )  # asked again, it would find them changed
    assert set(found) == {"purity"}
    assert found["purity"].startswith(message)


@dataclass(frozen=True)
class RollsDice(Algorithm):
    """Adds noise from the global generator."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        return {name: grad + torch.rand_like(grad) for name, grad in grads.items()}


class NumPyDice(Selection):
    """Selects clients with NumPy's global generator."""

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        return np.sort(np.random.permutation(len(pool.sizes))[:count])


@dataclass(frozen=True)
class RollsNumPyDice(Algorithm):
    """Has a selection that draws global random numbers."""

    client_selection = NumPyDice()


def test_purity_catches_global_random_numbers() -> None:
    assert failures(RollsDice, "purity")["purity"].startswith(
        "correct_gradients draws from the global generator of torch"
    )
    found = failures(RollsNumPyDice, "purity", "seed")
    assert found["purity"].startswith("select draws from the global generator of numpy")
    assert "seed" in found


@dataclass(frozen=True)
class Counts(Algorithm):
    """Counts in a place that all of its objects share."""

    calls: ClassVar[list[int]] = []

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        self.calls.append(1)
        return {
            name: weight + mean["delta"][name] / len(self.calls) for name, weight in weights.items()
        }, server_state


@dataclass(frozen=True)
class SeedsByTheHour(Algorithm):
    """Draws noise from its own generator, which is seeded by the clock."""

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        noise = np.random.default_rng(int(time.time()) // 36_000).normal()
        return {
            name: weight + mean["delta"][name] + 1e-3 * noise for name, weight in weights.items()
        }, server_state


@dataclass(frozen=True)
class SeedsLate(Algorithm):
    """Draws unrepeatable noise from the fourth round on."""

    def init_server_state(self, weights: Tensors) -> Tree:
        return {"clock": {"rounds": torch.zeros(())}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        rounds = server_state["clock"]["rounds"] + 1
        noise = float(rounds > 3) * 1e-3 * np.random.default_rng().normal()
        moved = {name: weight + mean["delta"][name] + noise for name, weight in weights.items()}
        return moved, {"clock": {"rounds": rounds}}


def test_seed_catches_generators_that_the_stream_has_not_seeded() -> None:
    assert set(failures(SeedsByTheHour)) == {"seed"}
    assert "twice with the same seed" in failures(SeedsLate, "seed", engines=[Loop()])["seed"]
    assert failures(SeedsLate, "functions", "checkpoint", engines=[Loop()]).keys() == {
        "functions",
        "checkpoint",
    }


@dataclass(frozen=True)
class Ignores(Algorithm):
    """Learns nothing, whatever the seed."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        return {name: torch.zeros_like(grad) for name, grad in grads.items()}


def test_seed_catches_runs_that_do_not_repeat_and_seeds_without_effect() -> None:
    assert "twice with the same seed" in failures(Counts, "seed")["seed"]
    assert "another seed gives the same bits" in failures(Ignores, "seed")["seed"]


@dataclass(frozen=True)
class WeighsByStack(Algorithm):
    """Divides by the sum over the updates that arrive together."""

    def weight(self, report: Report) -> Floats:
        return report.sizes / report.sizes.sum()


def test_engines_catches_weights_that_depend_on_the_stack() -> None:
    found = failures(WeighsByStack)
    assert set(found) == {"alone", "engines"}
    assert "must not depend on other clients" in found["alone"]
    assert found["engines"].startswith("Stacked and Loop after 5 rounds with no norm: ")


@dataclass(frozen=True)
class SumsUp(Algorithm):
    """Sums the clients' updates where it should take their mean."""

    @property
    def client_selection(self) -> Selection:
        return Spies(self, lambda chosen, count: ("chosen", count))

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        chosen = vars(self)["chosen"]
        return {
            name: weight + chosen * mean["delta"][name] / 6 for name, weight in weights.items()
        }, server_state


def test_identical_catches_sums_in_place_of_means() -> None:
    found = failures(SumsUp)
    assert set(found) == {"functions", "identical"}
    assert "three identical clients and one" in found["identical"]


@dataclass(frozen=True)
class HidesNaN(Algorithm):
    """Sends zeros where it has NaN."""

    def payload(self, view: View) -> Tree:
        return {
            "delta": {
                name: torch.nan_to_num(value)
                for name, value in super().payload(view)["delta"].items()
            }
        }


def test_nan_catches_a_payload_that_hides_it() -> None:
    found = failures(HidesNaN)
    assert set(found) == {"nan"}
    assert "the rounds exclude [0, 0]; does payload hide NaN?" in found["nan"]


@dataclass(frozen=True)
class Lax(Algorithm):
    """Does not validate its options.

    Args:
        mu: a strength
    """

    mu: Annotated[float, NonNegative] = 0.1

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class Unbounded(Algorithm):
    """Accepts NaN.

    Args:
        mu: a strength
    """

    mu: float = 0.1


@dataclass(frozen=True)
class OtherError(Algorithm):
    """Rejects bad values with another exception.

    Args:
        mu: a strength
        nu: another
    """

    mu: Annotated[float, NonNegative] = 0.1
    nu: Annotated[float, NonNegative] = 0.1

    def __post_init__(self) -> None:
        assert isinstance(self.mu, float)
        if not isinstance(self.nu, float) or not 0 <= self.nu < math.inf:
            raise fedskew.FedskewError("something is wrong")


@dataclass(frozen=True)
class Undocumented(Algorithm):
    mu: Annotated[float, NonNegative] = 0.1


class Undecorated(Algorithm):
    """Is no dataclass, so its annotation is no option."""

    mu: float = 0.1


class Thawed(fedskew.FedProx):
    """Is not frozen."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@pytest.mark.parametrize(
    ("algorithm", "messages"),
    [
        (
            Lax,
            [
                "mu=nan is accepted, it must be >= 0",
                "mu=-5e-324 is accepted",
                "must call super().__post_init__()",
            ],
        ),
        (Unbounded, ["mu=nan is accepted, it must be a number, Annotated with Bounds"]),
        (
            OtherError,
            [
                "mu='many' raises AssertionError, not FedskewError",
                "nu=nan is refused without naming nu",
            ],
        ),
        (
            Undocumented,
            ["the class has no docstring", "option mu is not in the docstring: add it under Args"],
        ),
        (Undecorated, ["mu is annotated but no option: use @dataclass(frozen=True)"]),
        (Thawed, ["weights can be set after construction"]),
    ],
)
def test_options_catches_bad_hyper_parameters(
    algorithm: type[Algorithm], messages: list[str]
) -> None:
    found = failures(algorithm, "options")
    for message in messages:
        assert message in found["options"]


@dataclass(frozen=True)
class ManyKinds(Algorithm):
    """Has options of every kind.

    Args:
        share: a share
        count: a number or none
        widths: some numbers
        on: a switch
        kind: a word
        text: any text
    """

    share: Annotated[float, PartialShare] = 0.5
    count: Annotated[int | None, Bounds(1, 9)] = None
    widths: Annotated[tuple[int, ...], AtLeastOne] = (2, 3)
    on: bool = True
    kind: Literal["this", "that"] = "this"
    text: str = "text"

    # A hook may name its arguments as it likes
    def correct_gradients(self, g: Tensors, v: View) -> Tensors:
        return g


def test_options_knows_what_is_bad_for_every_kind() -> None:
    assert failures(ManyKinds, "options", "shapes", "purity") == {}
    bad = {name: bad_values(option)[1:] for name, option in options_of(ManyKinds).items()}
    assert bad["share"][-2:] == [-5e-324, 1.0]
    assert bad["count"][-3:] == [1.5, 0, 10]
    assert bad["widths"][-2:] == [(1.5,), (0,)]
    assert (bad["on"], bad["kind"], bad["text"]) == (["perhaps"], ["neither of them"], [])


@dataclass(frozen=True)
class Picky(Algorithm):
    """Rejects every setting."""

    def local_names(self, layout: Layout) -> frozenset[str]:
        raise fedskew.FedskewError("not with me")


def test_runs_catches_a_method_that_refuses_everything() -> None:
    report = fedskew.check(Picky, raise_on_failure=False)
    assert [finding.check for finding in report.failures] == ["runs"]
    assert report["runs"].detail == "the method refuses every setting tried: not with me"
    assert report["engines"].detail == "the method rejects the settings: not with me"


class Chatty:
    """An engine that sends more than the hooks return."""

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        for updates in Loop().train(job, start, plan):
            extra = torch.zeros(len(updates.report.clients), 3, dtype=job.x.dtype)
            yield replace(updates, payload={**updates.payload, "gossip": {"words": extra}})


class Careless:
    """An engine that drops the buffers of BatchNorm."""

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        for updates in Stacked(mode="stack").train(job, start, plan):
            yield replace(updates, buffers={})


def test_bytes_catches_an_engine_that_sends_more_than_it_says() -> None:
    found = failures(fedskew.FedAvg, engines=[Chatty()])
    assert set(found) == {"bytes"}
    assert (
        found["bytes"]
        == "Chatty with BatchNorm merged: bytes_up of round 1 is 2880, but 5 clients make 2760"
    )


def test_engines_catches_an_engine_that_forgets_buffers() -> None:
    found = failures(fedskew.FedAvg, engines=[Loop(), Careless()])
    assert set(found) == {"engines", "bytes"}
    assert "Careless and Loop after 5 rounds with BatchNorm merged" in found["engines"]


def test_a_failure_raises_with_the_report() -> None:
    with pytest.raises(
        ConformanceError, match=r"^WeighsByNumber fails 1 of 14 checks: \[order\] Loop, clients"
    ) as caught:
        fedskew.check(WeighsByNumber())
    report = caught.value.report
    assert isinstance(report, Conformance)
    assert not report.passed
    assert "order      failed  Loop, clients relabelled" in str(report)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Anchored(Algorithm):
    """Has the weights themselves as its server state, which share memory with the model."""

    def init_server_state(self, weights: Tensors) -> Tree:
        return {"anchor": weights}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        moved = {name: weight + mean["delta"][name] for name, weight in weights.items()}
        return moved, {"anchor": moved}


def test_server_state_may_share_memory_with_the_weights() -> None:
    assert failures(Anchored) == {}
