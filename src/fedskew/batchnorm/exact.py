"""One step over the batches of several clients that equals a central step on all their rows (Stratify, section III-E).

Everything that a step needs of the whole batch is a sum: BatchNorm's sums forward and backward, the gradients, the
loss. Parties (clients) send sums, a hub adds them up in the order of the clients, and divides once. They exchange
only bytes, so the same two classes work in one process and on separate machines.

A BatchNorm layer needs three exchanges per step: the sum of x and the count; the sum of squares around the resulting
mean; and backward the paper's G and G_x. The paper's formula has the mean inside the square, so the second exchange
is its own. One exchange of sum x and sum x^2 would be enough, but E x^2 - (E x)^2 loses all digits where the mean is
large and the spread small, in float64 only later than in float32.

With ``masks`` parties send their sums in fixed point under masks that cancel (``label_privacy.secure_sum``): the hub
can read only the totals.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.batchnorm.masked import replace_batch_norms
from fedskew.batchnorm.turns import in_turn
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.label_privacy.secure_sum import Masks, opened
from fedskew.models.layout import layout
from fedskew.models.parameters import trainable
from fedskew.tasks.classification import Classification
from fedskew.tasks.task import Task
from fedskew.transport.frames import Frame, Kind, check, frame_bytes, unpack

Ask: TypeAlias = Callable[[bytes], bytes]  # send the hub a message, wait for its answer

# An input of every layer that requires a gradient: the third exchange takes place even where no layer before is
# trained, so that messages do not depend on frozen layers.
_ANCHOR = torch.zeros(0, requires_grad=True)

# Binary places of numbers in secure sums. Activations are summed over whole images: room for 2^35, gradients have 2^23.
CLASSIFICATION = Classification()
_PLACES = {Kind.SUM: 28, Kind.SPREAD: 28, Kind.SLOPE: 40, Kind.GRADIENT: 40, Kind.SCORE: 40}


class SynchronousStep(NamedTuple):
    """The result of one step; bytes are those of all parties together."""

    grads: Tensors  # of the mean loss on the pooled batch
    buffers: Tensors
    loss_sum: Tensor
    score_sum: Tensor
    bytes_up: int
    bytes_down: int
    scores: list[tuple[float, float]]  # summed loss and score of each party; none with secure sums


def presence(parties: Sequence[int], clients: int) -> Tensor:
    """Return which of all clients take part in a step, one bit each.

    >>> presence([0, 9], clients=10).tolist()
    [128, 64]
    """
    there = torch.zeros(clients, dtype=torch.bool)
    there[list(parties)] = True
    return torch.from_numpy(np.packbits(there.numpy()))


def bn_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of BatchNorm's messages per party and step; a layer named twice is used twice.

    >>> bn_bytes(nn.BatchNorm1d(8), torch.float32)  # three frames: 24 bytes, 4 per axis, 4 per number (8 + 8 + 16)
    216
    """
    total = 0
    for _, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, _BatchNorm):
            width = layer.num_features
            total += 2 * frame_bytes((width,), dtype) + frame_bytes((2, width), dtype)
    return total


def step_bytes(model: nn.Module, dtype: torch.dtype, among: int | None = None) -> tuple[int, int]:
    """Return the bytes of one party in a step: weights down, gradients and scores up, BatchNorm's messages.

    With secure sums ``among`` so many clients every number sent up takes 8 bytes, and the list of clients is sent down.
    """
    summed = dtype
    present = 0
    if among is not None:
        summed = torch.int64
        present = frame_bytes(presence([], among).shape, torch.uint8)
    weights = 0
    gradients = 0
    for value in trainable(model).values():
        weights += frame_bytes(value.shape, dtype)
        gradients += frame_bytes(value.shape, summed)
    buffers = 0
    for name in _other_buffers(model):
        value = model.get_buffer(name)
        kind = value.dtype
        if value.is_floating_point():
            kind = dtype
        buffers += frame_bytes(value.shape, kind)
    up = gradients + frame_bytes((2,), torch.float64) + bn_bytes(model, summed)
    return up, weights + buffers + present + bn_bytes(model, dtype)


def _layers(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return BatchNorm layers with the prefix of their tensors' names; both sides number them equally."""
    layers: list[tuple[str, _BatchNorm]] = []
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            prefix = ""
            if name:
                prefix = f"{name}."
            layers.append((prefix, layer))
    return layers


def _other_buffers(model: nn.Module) -> list[str]:
    """Return the buffers that parties get; running statistics are not among them, as training does not use them."""
    normed = layout(model).batch_norm
    return [name for name, _ in model.named_buffers() if name not in normed]


class Party:
    """One client's side of a step: its copy of the model and a connection to the hub.

    ``ask`` sends a message by any transport and returns the answer, or raises an error. With ``masks`` the party's
    sums are masked.
    """

    def __init__(
        self, model: nn.Module, ask: Ask, masks: Masks | None = None, task: Task = CLASSIFICATION
    ) -> None:
        self.ask = ask
        self.masks = masks
        self._step = 0
        self._task = task
        self._params = trainable(model)
        self._sent: Tensors = dict(self._params)
        for name in _other_buffers(model):
            self._sent[name] = model.get_buffer(name)
        # Structure only: every step gets its weights, and frozen ones are never written.
        held = {}
        for value in (*model.parameters(), *model.buffers()):
            held[id(value)] = value
        own = copy.deepcopy(model, held)
        number = {layer: place for place, (_, layer) in enumerate(_layers(own))}
        self._model = replace_batch_norms(
            own, lambda layer: ExactBatchNorm(layer, number[layer], self._total)
        ).train()

    def step(self, opening: bytes, x: Tensor, y: Tensor) -> bytes:
        """Return this party's last message: its summed gradients, its summed loss and number of correct predictions."""
        frames = unpack(opening)
        self._step = frames[0].step
        if self.masks:
            self._enter(frames.pop(), self.masks)
        if len(frames) != len(self._sent):
            raise FedskewError(
                f"the hub sent {len(frames)} tensors for a model of {len(self._sent)}: use the same model"
            )
        for place, (frame, value) in enumerate(zip(frames, self._sent.values(), strict=True)):
            check(frame, Frame(self._step, Kind.WEIGHT, place, 0, value), "the hub")
        received = {}
        for name, frame in zip(self._sent, frames, strict=True):
            received[name] = frame.values.to(x.device)
        params = [received[name].requires_grad_() for name in self._params]
        logits = functional_call(self._model, received, (x,))
        loss = self._task.losses(logits, y, "sum")
        grads = torch.autograd.grad(loss, [*params, _ANCHOR], materialize_grads=True)[:-1]
        right = self._task.row_scores(logits, y).sum()
        score = torch.stack([loss.detach().double(), right.double()])
        last = []
        for place, grad in enumerate(grads):
            last.append(Frame(self._step, Kind.GRADIENT, place, len(y), grad))
        last.append(Frame(self._step, Kind.SCORE, 0, len(y), score))
        return b"".join(self._packed(frame) for frame in last)

    def _enter(self, frame: Frame, masks: Masks) -> None:
        """Begin a secure sum over the clients that the hub names."""
        check(frame, Frame(self._step, Kind.PRESENT, 0, 0, presence([], masks.clients)), "the hub")
        masks.enter(self._step, np.flatnonzero(np.unpackbits(frame.values.numpy())).tolist())

    def _packed(self, frame: Frame) -> bytes:
        """Return the message with this party's sums."""
        if self.masks:
            frame = replace(frame, values=self.masks.hide(frame.values, _PLACES[frame.kind]))
        return frame.pack()

    def _total(self, kind: Kind, place: int, values: Tensor, count: int) -> tuple[Tensor, int]:
        """Return these numbers and this count, summed over all parties."""
        mine = Frame(self._step, kind, place, count, values)
        answer = unpack(self.ask(self._packed(mine)))
        if len(answer) != 1:
            raise FedskewError(
                f"the hub answered one frame with {len(answer)}: refused, all must be at the same step"
            )
        check(answer[0], mine, "the hub")
        return answer[0].values.to(values.device), answer[0].count


class Parties:
    """Parties in one process, which run in threads, one at a time; each is kept from step to step.

    A party's copy of the model takes as long as a step of a small one. Layers that draw random numbers (dropout) draw
    them from the global generator, party by party.
    """

    def __init__(self, model: nn.Module, task: Task = CLASSIFICATION) -> None:
        self._model = model
        self._task = task
        self._parties: dict[int, Party] = {}

    def step(
        self,
        tensors: Tensors,
        batches: Sequence[tuple[Tensor, Tensor]],
        masks: Sequence[Masks] | None = None,
        step: int = 0,
    ) -> SynchronousStep:
        """Run one step of parties that have these batches (x, y), in the order of the clients.

        ``tensors`` are the trainable parameters and the buffers by name. With ``masks``, one for each party, the hub
        learns only sums over all parties; ``step`` must then be a number that was not used with these masks.
        """
        if not sum(len(y) for _, y in batches):
            raise FedskewError(
                f"a step of {len(batches)} parties without a row: give at least one of them a batch"
            )
        present = None
        if masks:
            present = presence([own.me for own in masks], masks[0].clients)
        hub = Hub(self._model, tensors, len(batches), step, present)
        opening = hub.opening()

        def work(number: int, x: Tensor, y: Tensor, own: Masks | None) -> Callable[[Ask], bytes]:
            def run(ask: Ask) -> bytes:
                if number not in self._parties:
                    self._parties[number] = Party(self._model, ask, own, self._task)
                party = self._parties[number]
                party.ask = ask
                party.masks = own
                return party.step(opening, x, y)

            return run

        ends: Sequence[Masks | None] = masks or [None] * len(batches)
        workers = []
        for number, ((x, y), own) in enumerate(zip(batches, ends, strict=True)):
            workers.append(work(number, x, y, own))

        def reply(sent: dict[int, bytes]) -> bytes:
            return hub.add([sent[party] for party in sorted(sent)])

        return hub.finish(in_turn(workers, reply))


class ExactBatchNorm(nn.Module):
    """A BatchNorm layer over the batches of all parties, which ``total`` sums; the hub has the running statistics."""

    def __init__(
        self,
        layer: _BatchNorm,
        place: int,
        total: "Callable[[Kind, int, Tensor, int], tuple[Tensor, int]]",
    ) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.eps = layer.eps
        self.place = place
        self.total = total

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift."""
        channels = (1, -1) + (1,) * (x.dim() - 2)
        result: Tensor = _Normalise.apply(x, _ANCHOR, self.eps, self._ask)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            result = result * self.weight.view(channels)
        if self.bias is None:
            return result
        return result + self.bias.view(channels)

    def _ask(self, kind: Kind, values: Tensor, count: int) -> tuple[Tensor, int]:
        return self.total(kind, self.place, values, count)


class _Normalise(torch.autograd.Function):
    """``xhat = (x - mean) / sqrt(variance + eps)`` with the statistics of all parties, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        eps: float,
        total: "Callable[[Kind, Tensor, int], tuple[Tensor, int]]",
    ) -> Tensor:
        over = [0, *range(2, x.dim())]
        channels = (1, -1) + (1,) * (x.dim() - 2)
        mine = x.numel() // x.shape[1]
        added, count = total(Kind.SUM, x.sum(over), mine)
        centred = x - (added / count).view(channels)
        squares, _ = total(Kind.SPREAD, centred.square().sum(over), mine)
        scale = torch.rsqrt(squares / count + eps).view(channels)
        unit = centred * scale
        ctx.save_for_backward(unit, scale)
        ctx.total, ctx.mine = total, mine
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        unit, scale = ctx.saved_tensors
        grad = grads[0]
        over = [0, *range(2, unit.dim())]
        channels = (1, -1) + (1,) * (unit.dim() - 2)
        slopes = torch.stack([grad.sum(over), (grad * unit).sum(over)])  # the paper's G and G_x
        added, count = ctx.total(Kind.SLOPE, slopes, ctx.mine)
        g, g_x = (added / count).view(2, *channels)
        return scale * (grad - g - unit * g_x), None, None, None


class Hub:
    """The server's side of one step: it adds up, divides once, and updates the running statistics as central BatchNorm.

    Buffers that are not BatchNorm's are sent to the parties and do not change. With ``present``, the clients that
    take part, sums are masked, and totals are opened once all parties have sent theirs; if one is missing, none is.
    """

    def __init__(
        self,
        model: nn.Module,
        tensors: Tensors,
        parties: int,
        step: int = 0,
        present: Tensor | None = None,
    ) -> None:
        self._step = step
        self._layers = _layers(model)
        self._tensors = tensors
        self._present = present
        self._params = list(trainable(model))
        self._others = _other_buffers(model)
        self._moved = {name: tensors[name].detach().cpu() for name, _ in model.named_buffers()}
        self._mean: dict[int, Tensor] = {}
        self.bytes_up = [0] * parties
        self.bytes_down = [0] * parties

    def opening(self) -> bytes:
        """Return the first message to every party: the parameters, and the buffers that it needs."""
        frames = []
        for place, name in enumerate([*self._params, *self._others]):
            frames.append(Frame(self._step, Kind.WEIGHT, place, 0, self._tensors[name]))
        if self._present is not None:
            frames.append(Frame(self._step, Kind.PRESENT, 0, 0, self._present))
        return self._sent(b"".join(frame.pack() for frame in frames))

    def add(self, messages: Sequence[bytes]) -> bytes:
        """Return the answer to the parties' messages, in the order of the clients: the total of their frames."""
        received = [frame for [frame] in self._received(messages, 1)]
        total = self._total(received, self._due(received[0].kind, received[0].place))
        if total.count < 2:
            raise FedskewError(
                f"BatchNorm cannot normalise {total.count} values a channel: the pooled batch needs 2 rows, use a "
                "larger batch"
            )
        if total.kind == Kind.SUM:
            self._mean[total.place] = total.values / total.count
        elif total.kind == Kind.SPREAD:
            self._track(total.place, self._mean.pop(total.place), total.values / (total.count - 1))
        return self._sent(total.pack())

    def _due(self, kind: Kind, place: int) -> Frame:
        """Return the frame that all parties must send, if the first one has the right kind and layer."""
        known = kind in (Kind.SUM, Kind.SPREAD, Kind.SLOPE) and place < len(self._layers)
        if not known or (kind == Kind.SPREAD) != (place in self._mean):
            raise FedskewError(
                f"party 0 sent {kind.name.lower()} {place}, which is not expected: use the same model everywhere"
            )
        width = self._layers[place][1].num_features
        shape: tuple[int, ...] = (width,)
        if kind == Kind.SLOPE:
            shape = (2, width)
        values = torch.zeros(shape, dtype=self._tensors[self._params[0]].dtype)
        return Frame(self._step, kind, place, 0, values)

    def finish(self, messages: Sequence[bytes]) -> SynchronousStep:
        """Return the result of the step from the parties' last messages."""
        received = self._received(messages, len(self._params) + 1)
        grads: Tensors = {}
        for place, name in enumerate(self._params):
            weight = self._tensors[name]
            due = Frame(self._step, Kind.GRADIENT, place, 0, weight)
            total = self._total([frames[place] for frames in received], due)
            grads[name] = (total.values / total.count).to(weight.device)
        due = Frame(self._step, Kind.SCORE, 0, 0, torch.zeros(2, dtype=torch.float64))
        loss_sum, score_sum = self._total([frames[-1] for frames in received], due).values
        buffers = {}
        for name, value in self._moved.items():
            buffers[name] = value.to(self._tensors[name].device)
        scores: list[tuple[float, float]] = []
        if self._present is None:
            for frames in received:
                loss, score = frames[-1].values
                scores.append((float(loss), float(score)))
        return SynchronousStep(
            grads, buffers, loss_sum, score_sum, sum(self.bytes_up), sum(self.bytes_down), scores
        )

    def _received(self, messages: Sequence[bytes], due: int) -> list[list[Frame]]:
        """Return the frames of every party's message, ``due`` from each."""
        if len(messages) != len(self.bytes_up):
            raise FedskewError(
                f"{len(messages)} of {len(self.bytes_up)} parties sent a message: all must be at the same step"
            )
        received = []
        for party, message in enumerate(messages):
            self.bytes_up[party] += len(message)
            received.append(unpack(message))
            if len(received[-1]) != due:
                raise FedskewError(
                    f"party {party} sent {len(received[-1])} frames where {due} are expected: use the same model"
                )
        return received

    def _total(self, frames: list[Frame], due: Frame) -> Frame:
        """Return their sum, in the order of the clients."""
        masked = self._present is not None
        wanted = due
        if masked:
            wanted = replace(due, values=due.values.long())
        for party, frame in enumerate(frames):
            check(frame, wanted, f"party {party}")
        values = frames[0].values
        for frame in frames[1:]:
            values = values + frame.values
        if masked:
            values = opened(values, _PLACES[due.kind], due.values.dtype)
        return Frame(due.step, due.kind, due.place, sum(frame.count for frame in frames), values)

    def _sent(self, message: bytes) -> bytes:
        self.bytes_down = [so_far + len(message) for so_far in self.bytes_down]
        return message

    def _track(self, place: int, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics of a layer; ``variance`` is the unbiased one of the pooled batch."""
        prefix, layer = self._layers[place]
        if f"{prefix}num_batches_tracked" not in self._moved:
            return
        batches = self._moved[f"{prefix}num_batches_tracked"] + 1
        share: float | Tensor
        if layer.momentum is None:
            share = 1 / batches.to(variance.dtype)
        else:
            share = layer.momentum
        self._moved[f"{prefix}num_batches_tracked"] = batches
        for name, found in (("running_mean", mean), ("running_var", variance)):
            old = self._moved[prefix + name]
            self._moved[prefix + name] = old + share * (found - old)
