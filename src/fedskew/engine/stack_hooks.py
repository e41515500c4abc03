"""The hooks of a method, which are written for one client, run for all clients of a stack at once."""

import copy
from collections.abc import Callable, Iterator
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
        self.names = names
        self.packed = packed

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
        self.job = job
        self.layers = layers
        self.joint = joint
        # Hooks run the model of one client with other weights, and may ask for its features.
        self.tap: Tap | None = None
        if "features" in job.algorithm.requires:
            self.tap = Tap(layers.model)

    def on_receive(self, state: RoundState, seen: Seen) -> Tensors:
        """Return the weights from which the clients with these first batches start."""

        def hook(method: Algorithm, given: Tensors, view: View) -> Tensors:
            return {**given, **method.on_receive(view)}

        head = {name: value[: len(seen.y)] for name, value in state.params.items()}
        start: Tensors = self._run(hook, head, head, state, seen)
        return start

    def linear_correction(self, state: RoundState) -> Tree:
        """Return the linear correction of every client, before the first step."""

        def one_client(*client: Any) -> Tree:
            view = self._view(*client)
            return self._method(state, view.numbers).linear_correction(view)

        correction: Tree = vmap(one_client, in_dims=self._dims(state))(*_clients(state))
        return correction

    def objective(self, loss: Tensor, params: Tensors, state: RoundState, seen: Seen) -> Tensor:
        """Return what every client minimises."""

        def hook(method: Algorithm, loss: Tensor, view: View) -> Tensor:
            return method.objective(loss, view)

        objectives: Tensor = self._run(hook, loss, params, state, seen)
        return objectives

    def correct_gradients(
        self, grads: Tensors, params: Tensors, state: RoundState, seen: Seen
    ) -> Tensors:
        """Return the gradients that every client uses."""

        def hook(method: Algorithm, grads: Tensors, view: View) -> Tensors:
            return method.correct_gradients(grads, view)

        corrected: Tensors = self._run(hook, grads, params, state, seen)
        return corrected

    def finish(self, state: RoundState) -> tuple[Tree, Tree]:
        """Return what every client sends, and what it keeps."""

        def one_client(full: Tensors, *client: Any) -> tuple[Tree, Tree]:
            view = replace(self._view(*client), full_gradient=full)
            method = self._method(state, view.numbers)
            return method.payload(view), method.client_state(view)

        run_all = vmap(one_client, in_dims=(0, *self._dims(state)))
        sent_and_kept: tuple[Tree, Tree] = run_all(state.full_gradient, *_clients(state))
        return sent_and_kept

    def _dims(self, state: RoundState) -> tuple[Any, ...]:
        """Return the axes of the clients in ``_clients``."""
        begin: dict[str, int | None] = dict.fromkeys(state.begin)
        for name in state.own_begin:
            begin[name] = 0
        server = None
        if self.joint:
            server = 0
        return (0, begin, server, 0, 0, _axis(state.class_counts))

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
        options = {}
        for name in state.numbers:
            if name.startswith(OPTION):
                options[name.removeprefix(OPTION)] = numbers[name]
        return _with_options(self.job.algorithm, options)

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
        active = slice(len(seen.y))
        if isinstance(value, Tensor):
            given = {"": value}
        else:
            given = value
        own = {name: state.begin[name][active] for name in state.own_begin}
        server: Tree = {}
        if self.joint:
            server = rows_of(state.server, active)
        clients: list[Tree] = [
            {"": given},
            {"": params},
            {"": own},
            server,
            rows_of(state.client_state, active),
            {"": seen.buffers},
        ]
        names = list(state.numbers)
        counts = state.class_counts
        if counts is not None:
            counts = counts[active]

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
            mine, weights, own, server, kept, buffers = (_filled(tree, left) for tree in clients)
            view = self._view(
                weights[""],
                {**state.begin, **own[""]},
                server or state.server,
                kept,
                _Numbers(names, numbers),
                counts,
            )
            method = self._method(state, view.numbers)
            view = self._with_batch(method, view, Seen(logits, features, x, y, real, buffers[""]))
            if isinstance(value, Tensor):
                return hook(method, mine[""][""], view)
            changed = hook(method, mine[""], view)
            return tuple(changed[name] for name in given)

        leaves: list[Tensor] = []
        for tree in clients:
            leaves.extend(tensors_of(tree))
        optional: list[Any] = [seen.logits, seen.features, seen.x, seen.y, seen.real, counts]
        axes = [_axis(part) for part in optional]
        in_dims = (0, *axes, *[0] * len(leaves))
        run_all = vmap(one_client, in_dims=in_dims, randomness="different")
        found = run_all(state.packed[active], *optional, *leaves)
        if isinstance(value, Tensor):
            return found
        return dict(zip(given, found, strict=True))

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
            if self.tap is None:
                return outputs, None
            return outputs, self.tap.features

        def mean(values: Tensor) -> Tensor:
            if real is None:
                return values.mean()
            return (values * real).sum() / real.sum()

        @torch.no_grad()
        def logits_at(weights: Tensors) -> Tensor:
            return forward(weights)[0]

        @torch.no_grad()
        def features_at(weights: Tensors) -> Tensor:
            inside = forward(weights)[1]
            assert inside is not None, "features_at is for methods that require features"
            return inside

        def loss(outputs: Tensor) -> Tensor:
            return mean(self.job.task.losses(outputs, y, "none"))

        def minimised(weights: Tensors) -> Tensor:
            outputs, inside = forward(weights)
            batch = Batch(outputs, y, loss, mean, logits_at, features_at, inside)
            other = replace(view, params=weights, batch=batch)
            return method.objective(loss(outputs), other)

        def gradient_at(weights: Tensors) -> Tensors:
            grads: Tensors = grad(minimised)({**own, **weights})
            return grads

        if logits is not None:
            batch = Batch(logits, y, loss, mean, logits_at, features_at, features)
            view = replace(view, batch=batch)
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


def _axis(stacked: Tensor | None) -> int | None:
    """Return the axis of the clients for ``vmap``; None where there is nothing."""
    if stacked is None:
        return None
    return 0


def _filled(tree: Tree, values: Iterator[Tensor]) -> Tree:
    """Return a tree with the same names and the next values, in the order of ``tensors_of``."""
    filled: Tree = {}
    for part, tensors in tree.items():
        filled[part] = {name: next(values) for name in tensors}
    return filled


def _with_options(method: Algorithm, options: Tensors) -> Algorithm:
    """Return a method whose options are tensors, which the check of options would not take."""
    if not options:
        return method
    other = copy.copy(method)
    for name, value in options.items():
        object.__setattr__(other, name, value)
    return other
