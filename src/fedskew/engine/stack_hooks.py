"""The hooks of a method, which are written for one client, run for all clients of a stack at once."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.contract import TRAINED, Algorithm, Batch, View
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
        class_features: sums of features by class after local training, for methods that require them
        answer: what the server sent each of them alone
        candidate_losses: their losses of the models that they may choose from, for methods that require them
        own_state: that of the local optimiser for tensors of the client state that are trained
        class_counts: their rows of each class, for methods that require it
        packed: their numbers as one tensor; ``numbers`` has them by name, in that order
        lr: the learning rate: of each client where runs differ in it, else one
        full_gradient: for methods that require it
        rows: row numbers ``[step, client, slot]``, of which ``real_rows`` [step, client] are real; ``second_rows``
            are those of second batches, for methods that require them
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
    own_state: Tree = field(default_factory=dict)
    second_rows: Tensor | None = None
    class_features: Tensors = field(default_factory=dict)
    answer: Tree = field(default_factory=dict)
    candidate_losses: Tensor | None = None

    @property
    def own(self) -> Tensors:
        """Return the tensors of the client state that are trained."""
        return self.client_state.get(TRAINED, {})


class Seen(NamedTuple):
    """The batches of the first clients of a stack, as hooks see them."""

    logits: Tensor | None
    features: Tensor | None
    x: Tensor
    y: Tensor
    real: Tensor | None  # which rows are no padding; None where all are
    buffers: Tensors
    second_x: Tensor | None = None  # a second batch of as many rows
    second_y: Tensor | None = None


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

    def on_receive(self, state: RoundState, seen: Seen) -> tuple[Tensors, Tree]:
        """Return weights and client state from which the clients with these first batches start."""

        def hook(method: Algorithm, given: Tensors, view: View) -> Tensors:
            weights, client_state = method.on_receive(view)
            return {**given, **weights, **_joined(client_state)}

        active = slice(len(seen.y))
        head = {name: value[active] for name, value in state.params.items()}
        given = {**head, **_joined(rows_of(state.client_state, active))}
        found: Tensors = self._run(hook, given, head, state, seen)
        client_state: Tree = {}
        for part, tensors in state.client_state.items():
            client_state[part] = {name: found[_name(part, name)] for name in tensors}
        return {name: found[name] for name in head}, client_state

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

        def one_client(full: Tensors, sums: Tensors, *client: Any) -> tuple[Tree, Tree]:
            view = replace(self._view(*client), full_gradient=full, class_features=sums)
            method = self._method(state, view.numbers)
            return method.payload(view), method.client_state(view)

        run_all = vmap(one_client, in_dims=(0, 0, *self._dims(state)))
        sent_and_kept: tuple[Tree, Tree] = run_all(
            state.full_gradient, state.class_features, *_clients(state)
        )
        return sent_and_kept

    def _dims(self, state: RoundState) -> tuple[Any, ...]:
        """Return the axes of the clients in ``_clients``."""
        begin: dict[str, int | None] = dict.fromkeys(state.begin)
        for name in state.own_begin:
            begin[name] = 0
        server = None
        if self.joint:
            server = 0
        axes = (_axis(state.class_counts), _axis(state.candidate_losses))
        return (0, begin, server, 0, 0, 0, *axes)

    def _view(
        self,
        params: Tensors,
        begin: Tensors,
        server: Tree,
        state: Tree,
        answer: Tree,
        numbers: Tensors,
        counts: Tensor | None,
        losses: Tensor | None,
    ) -> View:
        """Return one client's view for the hooks; called inside ``vmap``."""
        return View(
            params,
            begin,
            server,
            state,
            numbers,
            self.job.optimizer.momentum,
            class_counts=counts,
            sent=self.job.sent,
            answer=answer,
            candidate_losses=losses,
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
            rows_of(state.answer, active),
            {"": seen.buffers},
        ]
        names = list(state.numbers)
        counts = _first(state.class_counts, active)
        losses = _first(state.candidate_losses, active)

        def one_client(
            numbers: Tensor,
            logits: Any,
            features: Any,
            x: Any,
            y: Any,
            real: Any,
            counts: Any,
            losses: Any,
            second_x: Any,
            second_y: Any,
            *leaves: Tensor,
        ) -> Any:
            left = iter(leaves)
            filled = map(partial(_filled, values=left), clients)
            mine, weights, own, server, kept, answer, buffers = filled
            view = self._view(
                weights[""],
                {**state.begin, **own[""]},
                server or state.server,
                kept,
                answer,
                _Numbers(names, numbers),
                counts,
                losses,
            )
            method = self._method(state, view.numbers)
            rows = Seen(logits, features, x, y, real, buffers[""], second_x, second_y)
            view = self._with_batch(method, view, rows)
            if isinstance(value, Tensor):
                return hook(method, mine[""][""], view)
            changed = hook(method, mine[""], view)
            return tuple(changed[name] for name in given)

        leaves = list(chain.from_iterable(map(tensors_of, clients)))
        optional: list[Any] = [seen.logits, seen.features, seen.x, seen.y, seen.real, counts]
        optional += [losses, seen.second_x, seen.second_y]
        axes = [_axis(part) for part in optional]
        in_dims = (0, *axes, *[0] * len(leaves))
        run_all = vmap(one_client, in_dims=in_dims, randomness="different")
        found = run_all(state.packed[active], *optional, *leaves)
        if isinstance(value, Tensor):
            return found
        return dict(zip(given, found, strict=True))

    def _with_batch(self, method: Algorithm, view: View, seen: Seen) -> View:
        """Return the view with the batch of one client; called inside ``vmap``."""
        own = {name: value.detach() for name, value in view.params.items()}
        rows = _Rows(self.job, self.layers, self.tap, own, seen)
        if seen.logits is not None:
            view = replace(view, batch=rows.batch(seen.logits, seen.features))
        view = replace(view, gradient_at=partial(rows.gradient_at, method, view))
        if seen.second_x is None or seen.second_y is None:
            return view
        second = seen._replace(x=seen.second_x, y=seen.second_y)
        others = _Rows(self.job, self.layers, self.tap, own, second)
        return replace(view, second_gradient_at=partial(others.gradient_at, method, view))


class _Rows:
    """Rows of one client, with the model under any weights; its methods are called inside ``vmap``.

    Args:
        job: the job
        layers: the stacked form of its model
        tap: what finds features, for methods that require them
        own: the client's weights, for names that other weights lack
        seen: the rows
    """

    def __init__(
        self, job: Job, layers: StackedModel, tap: Tap | None, own: Tensors, seen: Seen
    ) -> None:
        self.job = job
        self.layers = layers
        self.tap = tap
        self.own = own
        self.seen = seen

    def forward(self, weights: Tensors) -> tuple[Tensor, Tensor | None]:
        """Return outputs and features under other weights."""
        self.layers.mask.rows = self.seen.real
        # Must not change running statistics
        still = {name: value.clone() for name, value in self.seen.buffers.items()}
        outputs: Tensor = functional_call(
            self.layers.model, {**self.own, **weights, **still}, (self.seen.x.clone(),)
        )
        if self.tap is None:
            return outputs, None
        return outputs, self.tap.features

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the rows that are no padding."""
        real = self.seen.real
        if real is None:
            return values.mean()
        return (values * real).sum() / real.sum()

    def logits_at(self, weights: Tensors) -> Tensor:
        """Return the outputs under other weights."""
        return self.forward(weights)[0]

    def features_at(self, weights: Tensors) -> Tensor:
        """Return the features under other weights."""
        inside = self.forward(weights)[1]
        assert inside is not None, "features_at is for methods that require features"
        return inside

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the mean loss of these outputs."""
        return self.mean(self.job.task.losses(outputs, self.seen.y, "none"))

    def batch(self, logits: Tensor, features: Tensor | None) -> Batch:
        """Return the rows as hooks see them."""
        return Batch(
            logits, self.seen.y, self.loss, self.mean, self.logits_at, self.features_at, features
        )

    def gradient_at(self, method: Algorithm, view: View, weights: Tensors) -> Tensors:
        """Return the gradient of what the client minimises on these rows, at other weights."""

        def minimised(weights: Tensors) -> Tensor:
            outputs, inside = self.forward(weights)
            other = replace(view, params=weights, batch=self.batch(outputs, inside))
            return method.objective(self.loss(outputs), other)

        grads: Tensors = grad(minimised)({**self.own, **weights})
        return grads


def _clients(state: RoundState) -> tuple[Any, ...]:
    """Return the arguments of ``_view`` for all clients."""
    return (
        state.params,
        state.begin,
        state.server,
        state.client_state,
        state.answer,
        state.numbers,
        state.class_counts,
        state.candidate_losses,
    )


def _joined(tree: Tree) -> Tensors:
    """Return the tensors of a tree under names that no weight has."""
    joined: Tensors = {}
    for part, tensors in tree.items():
        for name, value in tensors.items():
            joined[_name(part, name)] = value
    return joined


def _name(part: str, name: str) -> str:
    return f"{part}/{name}"


def _first(stacked: Tensor | None, active: slice) -> Tensor | None:
    """Return the entries of the first clients; None where there is nothing."""
    if stacked is None:
        return None
    return stacked[active]


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
