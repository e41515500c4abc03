"""The hooks of a method, which are written for one client, run for all clients of a stack at once."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.contract import Algorithm, Batch, View
from fedskew.core.trees import Tensors, Tree, rows_of, tensors_of
from fedskew.engine.features import Tap
from fedskew.engine.job import Job
from fedskew.engine.joint_plan import OPTION
from fedskew.engine.stacked_model import StackedModel


@dataclass(eq=False)
class RoundState:
    """What the clients of a stack have in a round, as tensors whose first axis is the client.

    Args:
        params: what they train; ``buffers`` likewise
        begin: the weights they received: one for all, but for the names in ``own_begin``
        server: what the server sent along: one for all, but in a joint stack
        client_state: what they kept from their last round
        optimizer_state: that of the local optimiser
        class_counts: their rows of each class, for methods that require it
        packed: their numbers as one tensor; ``numbers`` has them by name, in that order
        lr: the learning rate: of each client where runs differ in it, else one
        full_gradient: for methods that require it
        rows: row numbers ``[step, client, slot]``, of which ``real_rows`` [step, client] are real
        moves: of augmented images, likewise
        sums: losses and scores ``[which, client]``
        at: on a GPU, the steps that were taken, and those since the last sums
        correction: the linear correction of gradients, with ``scratch`` memory to compute it in
        payload: what they send
        kept: what they keep for their next round
    """

    params: Tensors
    buffers: Tensors
    begin: Tensors
    own_begin: list[str]
    server: Tree
    client_state: Tree
    optimizer_state: Tree
    class_counts: Tensor | None
    packed: Tensor
    numbers: Tensors
    lr: Tensor
    full_gradient: Tensors
    rows: Tensor
    real_rows: Tensor
    moves: Tensor | None
    sums: Tensor
    at: Tensor
    correction: Tree = field(default_factory=dict)
    scratch: Tensors = field(default_factory=dict)
    payload: Tree = field(default_factory=dict)
    kept: Tree = field(default_factory=dict)


class Seen(NamedTuple):
    """The batches of the first clients of a stack, as hooks see them."""

    logits: Tensor | None
    features: Tensor | None
    x: Tensor
    y: Tensor
    real: Tensor | None  # which rows are no padding; None where all are
    buffers: Tensors


class _Numbers(dict[str, Tensor]):
    """Numbers of one client by name, sliced from one tensor when read, because under ``vmap`` each slice costs time."""

    def __init__(self, names: list[str], packed: Tensor) -> None:
        self.names, self.packed = names, packed

    def __missing__(self, name: str) -> Tensor:
        return self.packed[self.names.index(name)]


class StackHooks:
    """Runs the hooks of a job's method under ``torch.func.vmap``.

    Args:
        job: the job
        layers: the stacked form of its model
        joint: whether the clients belong to several runs
    """

    def __init__(self, job: Job, layers: StackedModel, joint: bool) -> None:
        self.job, self.layers, self.joint = job, layers, joint
        # Hooks run the model of one client with other weights, and may ask for its features.
        self.tap = Tap(layers.model) if "features" in job.algorithm.requires else None

    def on_receive(self, state: RoundState, seen: Seen) -> Tensors:
        """Return the weights from which the clients with these first batches start."""

        def hook(method: Algorithm, given: Tensors, view: View) -> Tensors:
            start = method.on_receive(view)
            return {name: start.get(name, value) for name, value in given.items()}

        head = {name: value[: len(seen.y)] for name, value in state.params.items()}
        found: Tensors = self._run(hook, head, head, state, seen)
        return found

    def linear_correction(self, state: RoundState) -> Tree:
        """Return the linear correction of every client, before the first step."""

        def one_client(*client: Any) -> Tree:
            view = self._view(*client)
            return self._method(state, view.numbers).linear_correction(view)

        found: Tree = vmap(one_client, in_dims=self._dims(state))(*_clients(state))
        return found

    def objective(self, loss: Tensor, params: Tensors, state: RoundState, seen: Seen) -> Tensor:
        """Return what every client minimises."""

        def hook(method: Algorithm, loss: Tensor, view: View) -> Tensor:
            return method.objective(loss, view)

        found: Tensor = self._run(hook, loss, params, state, seen)
        return found

    def correct_gradients(
        self, grads: Tensors, params: Tensors, state: RoundState, seen: Seen
    ) -> Tensors:
        """Return the gradients that every client uses."""

        def hook(method: Algorithm, grads: Tensors, view: View) -> Tensors:
            return method.correct_gradients(grads, view)

        found: Tensors = self._run(hook, grads, params, state, seen)
        return found

    def finish(self, state: RoundState) -> tuple[Tree, Tree]:
        """Return what every client sends, and what it keeps."""

        def one_client(full: Tensors, *client: Any) -> tuple[Tree, Tree]:
            view = replace(self._view(*client), full_gradient=full)
            method = self._method(state, view.numbers)
            return method.payload(view), method.client_state(view)

        found: tuple[Tree, Tree] = vmap(one_client, in_dims=(0, *self._dims(state)))(
            state.full_gradient, *_clients(state)
        )
        return found

    def _dims(self, state: RoundState) -> tuple[Any, ...]:
        """Return the axes of the clients in ``_clients``."""
        begin = {name: 0 if name in state.own_begin else None for name in state.begin}
        return (
            0,
            begin,
            0 if self.joint else None,
            0,
            0,
            None if state.class_counts is None else 0,
        )

    def _view(
        self,
        params: Tensors,
        begin: Tensors,
        server: Tree,
        state: Tree,
        numbers: Tensors,
        counts: Tensor | None,
    ) -> View:
        """Return one client's view for the hooks; called inside ``vmap``."""
        return View(
            params, begin, server, state, numbers, self.job.optimizer.momentum, class_counts=counts
        )

    def _method(self, state: RoundState, numbers: Tensors) -> Algorithm:
        """Return the method of one client: in a joint stack with its run's options; called inside ``vmap``."""
        names = [name for name in state.numbers if name.startswith(OPTION)]
        return _with_options(
            self.job.algorithm, {name.removeprefix(OPTION): numbers[name] for name in names}
        )

    def _run(
        self,
        hook: Callable[[Algorithm, Any, View], Any],
        value: Tensor | Tensors,
        params: Tensors,
        state: RoundState,
        seen: Seen,
    ) -> Any:
        """Return a hook's results for the clients whose batches are ``seen``, the first ones of the stack.

        Arguments of ``vmap`` are flat here too, with numbers in one tensor; values that all clients share are not
        arguments.
        """
        active = len(seen.y)
        if isinstance(value, Tensor):
            given = [value]
        else:
            given = list(value.values())
        own = rows_of({"": {name: state.begin[name] for name in state.own_begin}}, slice(active))[
            ""
        ]
        if self.joint:
            sent = rows_of(state.server, slice(active))
        else:
            sent = {}
        states = [tensor[:active] for tensor in tensors_of(state.client_state)]
        names = list(state.numbers)
        numbers = state.packed[:active]
        *of_batch, buffers = seen
        if state.class_counts is None:
            counts = None
        else:
            counts = state.class_counts[:active]
        optional: list[Any] = [*of_batch, counts]

        def one_client(
            numbers: Tensor,
            logits: Any,
            features: Any,
            x: Any,
            y: Any,
            real: Any,
            counts: Any,
            *leaves: Tensor,
        ) -> Any:
            left = iter(leaves)
            mine = [next(left) for _ in given]
            weights = {name: next(left) for name in params}
            begin = {**state.begin, **{name: next(left) for name in own}}
            server = {
                part: {name: next(left) for name in tensors} for part, tensors in sent.items()
            } or state.server
            old = {}
            for part, tensors in state.client_state.items():
                old[part] = {name: next(left) for name in tensors}
            moving = {name: next(left) for name in buffers}
            view = self._view(weights, begin, server, old, _Numbers(names, numbers), counts)
            method = self._method(state, view.numbers)
            view = self._with_batch(method, view, Seen(logits, features, x, y, real, moving))
            if isinstance(value, Tensor):
                return hook(method, mine[0], view)
            result = hook(method, dict(zip(value, mine, strict=True)), view)
            return tuple(result[name] for name in value)

        leaves = [
            *given,
            *params.values(),
            *own.values(),
            *tensors_of(sent),
            *states,
            *buffers.values(),
        ]
        dims = (0, *(None if part is None else 0 for part in optional), *(0 for _ in leaves))
        result = vmap(one_client, in_dims=dims, randomness="different")(numbers, *optional, *leaves)
        if isinstance(value, Tensor):
            return result
        return dict(zip(value, result, strict=True))

    def _with_batch(self, method: Algorithm, view: View, seen: Seen) -> View:
        """Return the view with the batch of one client; called inside ``vmap``."""
        logits, features, x, y, real, buffers = seen
        own = {name: value.detach() for name, value in view.params.items()}

        def forward(weights: Tensors) -> tuple[Tensor, Tensor | None]:
            self.layers.mask.rows = real
            # Must not change running statistics
            still = {name: value.clone() for name, value in buffers.items()}
            outputs: Tensor = functional_call(
                self.layers.model, {**own, **weights, **still}, (x.clone(),)
            )
            return outputs, self.tap.features if self.tap else None

        def mean(values: Tensor) -> Tensor:
            if real is None:
                return values.mean()
            return (values * real).sum() / real.sum()

        @torch.no_grad()
        def logits_at(weights: Tensors) -> Tensor:
            return forward(weights)[0]

        @torch.no_grad()
        def features_at(weights: Tensors) -> Tensor:
            found = forward(weights)[1]
            assert found is not None, "features_at is for methods that require features"
            return found

        def loss(outputs: Tensor) -> Tensor:
            return mean(self.job.task.losses(outputs, y, "none"))

        def minimised(weights: Tensors) -> Tensor:
            outputs, inside = forward(weights)
            other = replace(
                view,
                params=weights,
                batch=Batch(outputs, y, loss, mean, logits_at, features_at, inside),
            )
            return method.objective(loss(outputs), other)

        def gradient_at(weights: Tensors) -> Tensors:
            found: Tensors = grad(minimised)({**own, **weights})
            return found

        if logits is not None:
            view = replace(
                view, batch=Batch(logits, y, loss, mean, logits_at, features_at, features)
            )
        return replace(view, gradient_at=gradient_at)


def _clients(state: RoundState) -> tuple[Any, ...]:
    """Return the arguments of ``_view`` for all clients."""
    return (
        state.params,
        state.begin,
        state.server,
        state.client_state,
        state.numbers,
        state.class_counts,
    )


def _with_options(method: Algorithm, options: Tensors) -> Algorithm:
    """Return a method whose options are tensors, which the check of options would not take."""
    if not options:
        return method
    other = copy.copy(method)
    for name, value in options.items():
        object.__setattr__(other, name, value)
    return other
