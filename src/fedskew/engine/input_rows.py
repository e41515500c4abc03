"""Rows as the input of a model: a tensor of them all, or stored rows that become one batch by batch."""

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.streams import Ints
from fedskew.data.stored_rows import AnyRows, StoredRows
from fedskew.models.tokens import as_input, takes_tokens, tokens

_TRIED = 2  # rows that say whether a model takes tokens
_AS_STORED = ("uint8", "float16", "float32")  # what goes to the device as it is


class InputRows:
    """Stored rows where a run has a tensor: the rows that are asked for become one, in the run's precision.

    What is in memory moves to the device as it is stored (a byte stays a byte), and what is elsewhere is read for every
    batch. Features are made in float32, as ``Scaling.encode`` makes them, and then given the run's precision.
    """

    def __init__(self, rows: StoredRows, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size(rows.shape)
        self.dtype = dtype
        self.device = device
        self._rows = rows
        self._channels_last = False
        self._held: Tensor | None = None
        if rows.in_memory:
            self._held = _tensor(np.asarray(rows.source)).to(device)
        self._offset, self._factor = self._scaling()

    @property
    def in_memory(self) -> bool:
        """Return whether all rows are in memory, as they are stored."""
        return self._held is not None

    @property
    def nbytes(self) -> int:
        """Return the memory that the rows take."""
        return self._rows.nbytes

    @property
    def row_bytes(self) -> int:
        """Return the memory that a row takes as it is stored."""
        return math.prod(self._rows.shape[1:]) * self._rows.stored.itemsize

    def dim(self) -> int:
        """Return the number of axes, with that of the rows."""
        return len(self.shape)

    def element_size(self) -> int:
        """Return the bytes of one number of an input."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Return whether inputs are features and no tokens."""
        return self.dtype.is_floating_point

    def new_empty(self, *shape: int) -> Tensor:
        """Return a tensor of this precision and device."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def with_channels_last(self) -> "InputRows":
        """Return the same images, given as ``[row, height, width, channel]``."""
        other = copy.copy(self)
        other._channels_last = True
        rows, channels, *space = self.shape
        other.shape = torch.Size([rows, *space, channels])
        return other

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int):
            return self[index : index + 1][0]
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)), device=self.device)
        chosen = self.index_select(0, index.flatten())
        return chosen.view(*index.shape, *chosen.shape[1:])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the inputs of these rows."""
        assert dim == 0
        if self._held is not None:
            return self._laid_out(self._features(self._held.index_select(0, rows)))
        return self.of_read(self.read(rows.cpu().numpy()))

    def read(self, rows: Ints) -> NDArray[Any]:
        """Return these rows as they are stored; any thread may call it."""
        return self._rows.raw(rows)

    def of_read(self, read: NDArray[Any]) -> Tensor:
        """Return rows that were read as inputs."""
        if self.dtype == torch.int64 and read.dtype.kind != "f":
            return torch.from_numpy(read.astype(np.int64)).to(self.device)
        if read.dtype.name in _AS_STORED:
            x = self._features(_tensor(read).to(self.device))
        else:
            x = self._input(torch.from_numpy(self._rows.encoded(read)).to(self.device))
        return self._laid_out(x)

    def _laid_out(self, x: Tensor) -> Tensor:
        """Return inputs with their channels last, if they are to be."""
        if self._channels_last:
            return x.movedim(1, -1).contiguous()
        return x

    def _features(self, stored: Tensor) -> Tensor:
        """Return numbers of bytes or of half or single precision as inputs."""
        scales = self._offset is not None or self._factor is not None
        x = stored.to(torch.float32, copy=scales)
        if self._offset is not None:
            x -= self._offset
        if self._factor is not None:
            x *= self._factor
        return self._input(x)

    def _input(self, x: Tensor) -> Tensor:
        if self.dtype == torch.int64:
            return tokens(x)
        return x.to(self.dtype)

    def _scaling(self) -> tuple[Tensor | None, Tensor | None]:
        """Return what is subtracted from and multiplied with each channel; None where it changes nothing."""
        scaling = self._rows.scaling
        if scaling is None:
            return None, None
        offset = factor = None
        if any(scaling.offset):
            offset = self._by_channel(scaling.offset)
        if set(scaling.factor) != {1.0}:
            factor = self._by_channel(scaling.factor)
        return offset, factor

    def _by_channel(self, values: tuple[float, ...]) -> Tensor:
        column = torch.tensor(values, dtype=torch.float32, device=self.device)
        return column.view(1, -1, *(1,) * (self.dim() - 2))


def _tensor(read: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, which shares its memory where it may be written to."""
    return torch.from_numpy(np.require(read, requirements=["C", "W"]))


Inputs: TypeAlias = Tensor | InputRows


def reads_rows(x: Inputs) -> bool:
    """Return whether inputs are read on the host, batch by batch."""
    return isinstance(x, InputRows) and not x.in_memory


def inputs_of(model: nn.Module, x: AnyRows, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Return rows as the input of a model: as tokens if it takes those alone, else in this precision."""
    if not isinstance(x, StoredRows):
        return as_input(model, torch.from_numpy(x), dtype).to(device)
    if takes_tokens(model, torch.from_numpy(x[:_TRIED])):
        dtype = torch.int64
    return InputRows(x, dtype, device)


def joined(parts: Sequence[Inputs]) -> Tensor:
    """Return the inputs of several tables as one; stored rows are joined to nothing."""
    tensors: list[Tensor] = []
    for part in parts:
        assert isinstance(part, Tensor)
        tensors.append(part)
    return torch.cat(tensors)


def placed(x: AnyRows, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Return further rows as inputs of this type: whole numbers are tokens."""
    if isinstance(x, StoredRows):
        return InputRows(x, dtype, device)
    rows = torch.from_numpy(x)
    if dtype == torch.int64:
        rows = tokens(rows)
    return rows.to(device, dtype)
