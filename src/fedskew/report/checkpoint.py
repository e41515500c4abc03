"""Checkpoints of a run: one file with the weights and the server's state, and a journal of what clients keep.

The journal is a row of numbered files. A checkpoint adds the rows of those clients that changed since the one before, so it
costs what the clients of a round cost, however many were ever seen. The checkpoint file says which numbers go with it: reading
them in order, later rows win. When the journal holds much more than the clients do, it begins anew with everybody.

A run may be killed between any two steps of ``save``. New files have numbers that the checkpoint in place does not name, and
old ones are removed only when one that does without them is in place: all that the checkpoint in place names is always there.
"""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from fedskew.algorithms.base import Tensors
from fedskew.engine.store import ClientStore
from fedskew.engine.training import Training
from fedskew.errors import FedskewError
from fedskew.report.folder import CHECKPOINT, CONFIG, MODEL, SUMMARY, RunFolder

PIECE = 2**25  # bytes of rows in one file of the journal, so that writing and reading it takes no more memory than that
LEAST = 2**16  # bytes that a journal may hold in any case
FILES = "journal"  # name in the checkpoint: the first number of the journal and the one behind its last
FIXED = ("params/", "buffers/", "server/", "round", FILES)  # names whose shapes follow from the model and the algorithm


def to_bytes(tensors: Tensors) -> bytes:
    """A safetensors file."""
    return tensors_to_bytes({name: value.detach().contiguous().cpu() for name, value in tensors.items()})


class Checkpoints:
    """Writes the state of a training to its folder after some rounds, and reads it back."""

    def __init__(self, disk: RunFolder) -> None:
        self.disk = disk
        self._files, self._bytes = range(1, 1), 0  # of the journal that goes with the checkpoint in place

    def save(self, training: Training) -> None:
        """Replace the checkpoint by one of the training as it is now."""
        stores = training.stores()
        files, size = self._write_journal(stores)
        self.disk.save_checkpoint(to_bytes({**training.head(), FILES: torch.tensor([files.start, files.stop])}))
        if files.start != self._files.start:
            self.disk.trim_journal(files)
        self._files, self._bytes = files, size
        for store in stores.values():
            store.settle()

    def _write_journal(self, stores: Mapping[str, ClientStore]) -> tuple[range, int]:
        """Write those who changed, or everybody if those are all or the journal is too long; returns its numbers and bytes."""
        first, number, size = self._files.start, self._files.stop, self._bytes
        clients = {name: store.changed for name, store in stores.items()}
        held = sum(store.all_bytes for store in stores.values())
        added = sum(store.row_bytes * len(clients[name]) for name, store in stores.items())
        if added == held or size + added > max(LEAST, 2 * held):
            first, size = number, 0
            clients = {name: store.clients for name, store in stores.items()}
        for name, store in stores.items():
            step = max(1, PIECE // store.row_bytes)
            for start in range(0, len(clients[name]), step):
                content = to_bytes(_named(name, store.rows(clients[name][start : start + step])))
                self.disk.write_journal(number, content)
                number, size = number + 1, size + len(content)
        return range(first, number), size

    def restore(self, training: Training) -> None:
        """Bring a fresh training to the state of the checkpoint, if there is one."""
        path, stored = self.disk.path / CHECKPOINT, self.disk.load_checkpoint()
        if stored is None and self.disk.finished:
            raise FedskewError(f"{path} is gone; the finished run's result is in {SUMMARY} and {MODEL}")
        if stored is not None:
            try:
                flat = tensors_from_bytes(stored)
            except SafetensorError as problem:
                raise FedskewError(
                    f"{path} is damaged ({problem}): put it back, or remove it to start again from the first round"
                ) from None
            if _fixed({**training.head(), FILES: torch.zeros(2)}) != _fixed(flat):
                raise FedskewError(f"{path} does not fit the model and the algorithm of {CONFIG}: were they changed?")
            training.restore(flat)
            self._read_journal(range(*flat[FILES].tolist()), training.stores())
        if not self.disk.finished:
            self.disk.trim_journal(self._files)

    def _read_journal(self, files: range, stores: Mapping[str, ClientStore]) -> None:
        self._files, self._bytes = files, sum(self._read(number, stores) for number in files)
        for store in stores.values():
            store.settle()

    def _read(self, number: int, stores: Mapping[str, ClientStore]) -> int:
        """Put the rows of one file into their store; returns its bytes."""
        path = self.disk.journal(number)
        fix = f"put it back, or remove {CHECKPOINT} to start again from the first round"
        if self.disk.finished:
            fix = f"put it back; the finished run's result is in {SUMMARY} and {MODEL}"
        try:
            content = path.read_bytes()
            rows = tensors_from_bytes(content)
        except FileNotFoundError:
            raise FedskewError(f"{path} is gone: {fix}") from None
        except SafetensorError as problem:
            raise FedskewError(f"{path} is damaged ({problem}): {fix}") from None
        for name, store in stores.items():
            if _fits(rows, _named(name, store.rows([])), f"{name}/clients"):
                store.add({key.removeprefix(f"{name}/"): value for key, value in rows.items()})
                return len(content)
        raise FedskewError(f"{path} does not fit the model and the algorithm of {CONFIG}: were they changed?")


def _named(name: str, rows: Tensors) -> Tensors:
    return {f"{name}/{key}": value for key, value in rows.items()}


def _fixed(flat: Tensors) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in flat.items() if name.startswith(FIXED)}


def _fits(rows: Tensors, form: Tensors, clients: str) -> bool:
    """Whether names, types and shapes are those of ``form``, with a row for each of the clients."""
    count = rows[clients].numel() if clients in rows else 0
    found = {name: (value.dtype, value.shape) for name, value in rows.items()}
    return found == {name: (value.dtype, (count, *value.shape[1:])) for name, value in form.items()}
