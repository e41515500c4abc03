"""LSTM layers of all clients of a stack at once, with a backward pass of their own.

``torch.func.vmap`` has no LSTM: it would take one client after the other. Here a step of time is one batched product
for all clients and the arithmetic of the cell, which on a GPU is one kernel.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fedskew.core.errors import FedskewError

aten = torch.ops.aten
State: TypeAlias = tuple[Tensor, Tensor]
_DIRECTIONS = ("", "_reverse")


def vmappable(model: nn.Module) -> nn.Module:
    """Make the LSTM layers of a model ones that run under ``torch.func.vmap``; return the model itself."""
    for module in model.modules():
        if type(module) is nn.LSTM and not module.proj_size:
            module.__class__ = VmappedLSTM
    return model


class VmappedLSTM(nn.LSTM):
    """An LSTM that runs under ``torch.func.vmap``: the same tensors and results as PyTorch's."""

    # Whether PyTorch's own runs instead, which a stack of one on a CPU can: it is 2 to 5 times as fast there
    alone = False

    def forward(self, input: Any, hx: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """Return what the last layer says of every token, and the last states of all layers."""
        single = not isinstance(input, Tensor) or input.dim() != 3  # or rows of several lengths
        if self.alone or single:
            found: tuple[Tensor, State] = super().forward(input, hx)
            return found
        x = input
        if self.batch_first:
            x = x.transpose(0, 1)
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            x = self._layer(x, layer, hx, last)
        if self.batch_first:
            x = x.transpose(0, 1)
        return x, (torch.stack([h for h, _ in last]), torch.stack([c for _, c in last]))

    def _layer(self, x: Tensor, layer: int, hx: State | None, last: list[State]) -> Tensor:
        """Return the outputs of a layer in all its directions, and add its last states to ``last``."""
        outputs = []
        for direction in _DIRECTIONS[: 1 + self.bidirectional]:
            before = x
            if direction:
                before = x.flip(0)
            states, state = self._direction(before, f"_l{layer}{direction}", hx, len(last))
            if direction:
                states = states.flip(0)
            outputs.append(states)
            last.append(state)
        return torch.cat(outputs, -1)

    def _direction(
        self, x: Tensor, name: str, hx: State | None, place: int
    ) -> tuple[Tensor, State]:
        """Return the states after every token ``[token, row, unit]``, and the last ones."""
        weight_ih = getattr(self, f"weight_ih{name}")
        weight_hh = getattr(self, f"weight_hh{name}")
        if self.bias:
            bias = getattr(self, f"bias_ih{name}") + getattr(self, f"bias_hh{name}")
        else:
            bias = weight_hh.new_zeros(len(weight_hh))
        if hx is None:
            h0 = c0 = x.new_zeros(x.shape[1], self.hidden_size)
        else:
            h0, c0 = hx[0][place], hx[1][place]
        operands = (x, weight_ih, weight_hh, bias, h0, c0)
        stacks = (operand.unsqueeze(0) for operand in operands)
        cell, states, *_ = _Lstm.apply(*stacks)  # type: ignore[no-untyped-call]
        return states[0], (states[0, -1], cell[0])


class _Lstm(torch.autograd.Function):
    """One direction of one layer: ``x[client, token, row, input]`` -> the last cell, and the states of all tokens.

    Also all cells, and gates side by side in PyTorch's order (input, forget, cell, output) after their sigmoid or tanh.
    """

    @staticmethod
    def forward(
        x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor, h0: Tensor, c0: Tensor
    ) -> tuple[Tensor, ...]:
        of_inputs = torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), weight_ih.mT)
        # In memory time comes first, here and in what is kept, so that what a step needs lies together
        of_tokens = of_inputs.view(*x.shape[:3], of_inputs.shape[-1])
        by_time = of_tokens.transpose(0, 1).contiguous()
        onward = weight_hh.mT
        state, cell = h0, c0
        states, cells, gates = [], [], []
        for of_input in by_time.unbind():
            state, cell, after = _cell(of_input, torch.bmm(state, onward), cell)
            states.append(state)
            cells.append(cell)
            gates.append(after)
        kept = (torch.stack(steps).transpose(0, 1) for steps in (states, cells, gates))
        return cell, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, states, cells, gates = output
        ctx.mark_non_differentiable(cells, gates)
        ctx.save_for_backward(*inputs, states, cells, gates)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        operands = (*slopes[:2], *ctx.saved_tensors)
        found: tuple[Tensor, ...] = _LstmBackward.apply(*operands)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *operands: Tensor) -> Any:
        return _as_one_stack(_Lstm, info.batch_size, in_dims, operands)


class _LstmBackward(torch.autograd.Function):
    """The gradients of the inputs of ``_Lstm`` from those of its last cell and of its states."""

    @staticmethod
    def forward(
        of_cell: Tensor,
        of_states: Tensor,
        x: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor,
        h0: Tensor,
        c0: Tensor,
        states: Tensor,
        cells: Tensor,
        gates: Tensor,
    ) -> tuple[Tensor, ...]:
        weight_hh = (
            weight_hh.mT.contiguous().mT
        )  # products with few rows are twice as fast on a GPU
        after = of_states.unbind(1)
        cell = [c0, *cells.unbind(1)]
        of_state = after[-1]
        slopes: list[Tensor] = []
        for token in reversed(range(x.shape[1])):
            slope, of_cell = _cell_backward(
                of_state, of_cell, cell[token], cell[token + 1], gates[:, token]
            )
            slopes.append(slope)
            if token:
                of_state = torch.baddbmm(after[token - 1], slope, weight_hh)
            else:
                of_state = torch.bmm(slope, weight_hh)
        slopes.reverse()
        flat = torch.stack(slopes, 1).flatten(1, 2)
        before_states = torch.cat([h0.unsqueeze(1), states[:, :-1]], 1).flatten(1, 2)
        of_x = torch.bmm(flat, weight_ih).view(x.shape)
        of_ih = torch.bmm(flat.mT, x.flatten(1, 2))
        of_hh = torch.bmm(flat.mT, before_states)
        return of_x, of_ih, of_hh, flat.sum(1), of_state, of_cell

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        raise FedskewError(
            "an LSTM in a stack has no second derivative: train client by client with engine=loop"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *operands: Tensor) -> Any:
        return _as_one_stack(_LstmBackward, info.batch_size, in_dims, operands)


def _as_one_stack(
    function: Any, clients: int, in_dims: Sequence[int | None], operands: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return the outputs of a function of stacks for a stack of stacks, and the axes that are that of ``vmap``."""
    flat = []
    for value, dim in zip(operands, in_dims, strict=True):
        if dim is None:
            value = value.expand(clients, *value.shape)
        else:
            value = value.movedim(dim, 0)
        flat.append(value.flatten(0, 1))
    outputs = []
    for value in function.apply(*flat):
        outputs.append(value.unflatten(0, (clients, -1)))
    return tuple(outputs), (0,) * len(outputs)


def _cell(of_input: Tensor, of_state: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next state and cell, and the gates; ``before`` is the cell so far."""
    if of_input.is_cuda:
        flat = (value.flatten(0, 1) for value in (of_input, of_state, before))
        state, cell, gates = aten._thnn_fused_lstm_cell(*flat)
        return state.view(before.shape), cell.view(before.shape), gates.view(of_input.shape)
    gates = of_state.add_(of_input)
    units = before.shape[-1]
    gates[..., : 2 * units].sigmoid_()
    gates[..., 2 * units : 3 * units].tanh_()
    gates[..., 3 * units :].sigmoid_()
    into, forget, new, out = gates.chunk(4, -1)
    cell = (forget * before).addcmul_(into, new)
    return cell.tanh().mul_(out), cell, gates


def _cell_backward(
    of_state: Tensor, of_cell: Tensor, before: Tensor, cell: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates, before their sigmoid or tanh, and of the cell before."""
    if gates.is_cuda:
        flat = (value.flatten(0, 1) for value in (of_state, of_cell, before, cell, gates))
        slopes, below, _ = aten._thnn_fused_lstm_cell_backward_impl(*flat, False)
        return slopes.view(gates.shape), below.view(before.shape)
    into, forget, new, out = gates.chunk(4, -1)
    shown = cell.tanh()
    of_cell = aten.tanh_backward(of_state * out, shown).add_(of_cell)
    slopes = torch.empty_like(gates)
    of_into, of_forget, of_new, of_out = slopes.chunk(4, -1)
    of_into.copy_(aten.sigmoid_backward(of_cell * new, into))
    of_forget.copy_(aten.sigmoid_backward(of_cell * before, forget))
    of_new.copy_(aten.tanh_backward(of_cell * into, new))
    of_out.copy_(aten.sigmoid_backward(of_state * shown, out))
    return slopes, of_cell * forget
