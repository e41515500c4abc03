"""Checkpoints of a run: a file with the weights and the server's state, a journal of what clients keep, and a manifest.

The journal is a row of numbered files. A checkpoint adds the rows of those clients that changed since the one before, so it
costs what the clients of a round cost, however many were ever seen. The checkpoint file says which numbers go with it: reading
them in order, later rows win. When the journal holds much more than the clients do, it begins anew with everybody.

The manifest is written last and lists every file that the checkpoint relies on, with its checksum: the state, the journal, the
tables as long as they were. A run may be killed, and the power may fail, between any two
steps of ``save``: a checkpoint without a manifest is none, new files have numbers that no manifest in place names, and old ones
are removed only when two later checkpoints are in place. The last two are kept, so that a damaged one has a predecessor.
"""

from collections.abc import Mapping

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    JOURNAL,
    MODEL,
    SUMMARY,
    Digest,
    RunFolder,
    manifest,
    read_manifest,
    resume_command,
)
from fedskew.server.client_store import ClientStore
from fedskew.server.server import Server

PIECE = 2**25  # bytes of rows in one file of the journal, so that writing and reading it takes no more memory than that
LEAST = 2**16  # bytes that a journal may hold in any case
FILES = "journal"  # name in the checkpoint: the first number of the journal and the one behind its last
FIXED = ("params/", "buffers/", "server/", "round", FILES)  # names whose shapes follow from the model and the algorithm


def to_bytes(tensors: Tensors) -> bytes:
    """A safetensors file."""
    return tensors_to_bytes({name: value.detach().contiguous().cpu() for name, value in tensors.items()})


KEPT = 2  # checkpoints that stay on the disk


class Checkpoints:
    """Writes the state of a training to its folder after some rounds, and reads it back."""

    def __init__(self, disk: RunFolder) -> None:
        self.disk = disk
        self._files, self._bytes = range(1, 1), 0  # of the journal that goes with the last checkpoint
        self._digests: dict[str, Digest] = {}  # of the journal's files
        self._named: dict[int, set[str]] = {}  # for each checkpoint in place the files of the journal that it relies on

    def save(self, server: Server) -> None:
        """Add a checkpoint of the training as it is now, and remove the oldest."""
        disk, stores = self.disk, server.stores()
        files, size = self._write_journal(stores)
        state = to_bytes({**server.checkpoint_without_stores(), FILES: torch.tensor([files.start, files.stop])})
        path = disk.checkpoint(server.round, "safetensors")
        disk.write_inside(path, state)
        journal = {f"{JOURNAL}/{disk.journal(number).name}" for number in files}
        relied = {name: self._digests[name] for name in sorted(journal)}
        relied |= {f"{CHECKPOINTS}/{path.name}": Digest.of(state), **disk.sync_tables()}
        disk.write_inside(disk.checkpoint(server.round, "json"), manifest(relied, round=server.round))
        self._files, self._bytes = files, size
        self._named[server.round] = journal
        self._remove_old()
        for store in stores.values():
            store.settle()

    def _remove_old(self) -> None:
        """Leave the last checkpoints, and of the journal what they rely on; the manifests go first."""
        self._named = {round: self._named[round] for round in sorted(self._named, reverse=True)[:KEPT]}
        manifests, states = ({f"{round:08d}.{suffix}" for round in self._named} for suffix in ("json", "safetensors"))
        self.disk.remove_inside(CHECKPOINTS, manifests, "json")
        self.disk.remove_inside(CHECKPOINTS, states, "safetensors")
        journal = {name.partition("/")[2] for names in self._named.values() for name in names}
        self.disk.remove_inside(JOURNAL, journal, "safetensors")

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
                path = self.disk.journal(number)
                self.disk.write_inside(path, content)
                self._digests[f"{JOURNAL}/{path.name}"] = Digest.of(content)
                number, size = number + 1, size + len(content)
        return range(first, number), size

    def restore(self, server: Server, force: bool = False) -> None:
        """Bring a fresh training to the state of the last checkpoint, if there is one, and the tables to its length.

        What it relies on is verified first; nothing is changed before. With ``force`` the last checkpoint that is whole is
        taken, whatever became of later ones.
        """
        rounds = self.disk.checkpoints()
        if not rounds and self.disk.finished:
            raise FedskewError(f"{self.disk.path / CHECKPOINTS} is gone; the finished run's result is in {SUMMARY} and {MODEL}")
        chosen = self._choose(rounds, force)
        tables: Mapping[str, Digest] = {}
        if chosen is not None:
            round, tables = chosen
            path = self.disk.checkpoint(round, "safetensors")
            flat = tensors_from_bytes(path.read_bytes())
            if _fixed({**server.checkpoint_without_stores(), FILES: torch.zeros(2)}) != _fixed(flat):
                raise FedskewError(f"{path} does not fit the model and the algorithm of {CONFIG}: were they changed?")
            server.restore(flat)
            self._read_journal(range(*flat[FILES].tolist()), server.stores())
        if self.disk.finished:
            return
        self._remove_old()
        self.disk.cut_back(tables)

    def _choose(self, rounds: list[int], force: bool) -> tuple[int, dict[str, Digest]] | None:
        """The checkpoint to go on from, with the tables that go with it; None where there is none at all."""
        problems: list[tuple[int, FedskewError]] = []
        whole: tuple[int, dict[str, Digest]] | None = None
        for round in rounds:
            try:
                files = self._verified(round)
            except FedskewError as problem:
                problems.append((round, problem))
                continue
            self._named[round] = {name for name in files if name.startswith(f"{JOURNAL}/")}
            self._digests |= files
            whole = whole or (round, files)
        if problems and (whole is None or (problems[0][0] > whole[0] and not force)):
            raise FedskewError(f"{problems[0][1]}: {self._advice(whole)}")
        self._digests = {name: digest for name, digest in self._digests.items() if name.startswith(f"{JOURNAL}/")}
        return whole

    def _verified(self, round: int) -> dict[str, Digest]:
        found = read_manifest(self.disk.checkpoint(round, "json"))
        files: dict[str, Digest] = found["files"]
        state = f"{CHECKPOINTS}/{round:08d}.safetensors"
        if found.get("round") != round or state not in files:
            raise FedskewError(f"{self.disk.checkpoint(round, 'json')} is damaged: it is not that of round {round}")
        known = self._digests.items()  # what a later checkpoint relies on too was read before
        self.disk.verify({name: digest for name, digest in files.items() if (name, digest) not in known})
        return files

    def _advice(self, whole: tuple[int, dict[str, Digest]] | None) -> str:
        if self.disk.finished:
            return f"put it back; the finished run's result is in {SUMMARY} and {MODEL}"
        if whole is None:
            return f"put it back, or remove {CHECKPOINTS} to start again from the first round"
        return (
            f"put it back, or go on from the checkpoint of round {whole[0]}, which is whole: "
            f"{resume_command(self.disk.path)} --force"
        )

    def _read_journal(self, files: range, stores: Mapping[str, ClientStore]) -> None:
        self._files, self._bytes = files, sum(self._read(number, stores) for number in files)
        for store in stores.values():
            store.settle()

    def _read(self, number: int, stores: Mapping[str, ClientStore]) -> int:
        """Put the rows of one file into their store; returns its bytes."""
        path = self.disk.journal(number)
        content = path.read_bytes()
        rows = tensors_from_bytes(content)
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
