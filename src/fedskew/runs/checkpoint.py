"""Checkpoints of a run: a file with the weights and the server's state, a journal of client states, and a manifest.

The journal is a sequence of numbered files. A checkpoint adds the states of the clients that changed since the one
before, so its cost depends on the clients of a round, not on all clients. The checkpoint file has the numbers of its
journal files: they are read in order, and later states replace earlier ones. When the journal is much larger than the
states, it is replaced by one with all clients.

The manifest is written last and lists every file that the checkpoint needs, with its checksum: the state, the
journal, the tables up to their length. A run may be killed, or the power may fail, between any two steps of ``save``:
a checkpoint without a manifest is ignored, new files have numbers that no existing manifest names, and old ones are
removed only when two later checkpoints exist. The last two are kept, so that a damaged one has a predecessor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from fedskew.core.errors import FedskewError
from fedskew.core.manifest import Digest, manifest
from fedskew.core.trees import Tensors, Tree, one_client, rows_of
from fedskew.engine.job import LOCAL
from fedskew.runs.folder import CHECKPOINTS, CONFIG, FORMAT, JOURNAL, RunFolder
from fedskew.runs.intact_checkpoints import final_checkpoint, intact_checkpoints
from fedskew.server.client_store import ClientStore
from fedskew.server.clients import AWAY, OWN, PERSONAL, VERSIONS
from fedskew.server.server import Server
from fedskew.topology.run_state import BUFFERS, PARAMS, SERVER, group_of

# Bytes of rows in one file of the journal, so that writing and reading it takes no more memory than that
PIECE = 2**25
LEAST = 2**16  # bytes that a journal may always have
# Name of a tensor of the checkpoint: the first number of the journal, and its last plus one
FILES = "journal"
# Names whose shapes follow from the model and the algorithm
FIXED = ("params/", "buffers/", "server/", "round", FILES)
KEPT = 2  # checkpoints that stay on the disk


def to_bytes(tensors: Tensors) -> bytes:
    """Return the tensors as a safetensors file."""
    return tensors_to_bytes(
        {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    )


class Checkpoints:
    """The checkpoints of a run: the state is written to its folder after some rounds, and read back."""

    def __init__(self, disk: RunFolder) -> None:
        self.disk = disk
        self._files = range(1, 1)  # the numbers of the last checkpoint's journal files
        self._bytes = 0  # their size in total
        self._digests: dict[str, Digest] = {}  # of the journal's files
        self._journals: dict[int, set[str]] = {}  # the journal files of each existing checkpoint

    def save(self, server: Server) -> None:
        """Add a checkpoint of the present state, and remove the oldest."""
        disk = self.disk
        stores = server.stores()
        files, size = self._write_journal(stores)
        state = to_bytes(
            {**server.checkpoint_without_stores(), FILES: torch.tensor([files.start, files.stop])}
        )
        path = disk.checkpoints.state(server.round)
        disk.checkpoints.write(path, state)
        journal = {f"{JOURNAL}/{disk.checkpoints.journal(number).name}" for number in files}
        needed = {name: self._digests[name] for name in sorted(journal)}
        needed |= {f"{CHECKPOINTS}/{path.name}": Digest.of(state), **disk.sync_tables()}
        content = manifest(needed, FORMAT, round=server.round)
        disk.checkpoints.write(disk.checkpoints.manifest(server.round), content)
        self._files, self._bytes = files, size
        self._journals[server.round] = journal
        self._remove_old()
        for store in stores.values():
            store.mark_saved()

    def _remove_old(self) -> None:
        """Keep the last checkpoints and their part of the journal; manifests are removed first."""
        for round in sorted(self._journals, reverse=True)[KEPT:]:
            del self._journals[round]
        for suffix in ("json", "safetensors"):
            kept = {f"{round:08d}.{suffix}" for round in self._journals}
            self.disk.checkpoints.remove_others(CHECKPOINTS, kept, suffix)
        journal = set()
        for names in self._journals.values():
            for name in names:
                journal.add(name.partition("/")[2])
        self.disk.checkpoints.remove_others(JOURNAL, journal, "safetensors")

    def _write_journal(self, stores: Mapping[str, ClientStore]) -> tuple[range, int]:
        """Write the changed client states, or all if the journal is too long; return its numbers and bytes."""
        first = self._files.start
        number = self._files.stop
        size = self._bytes
        clients = {name: store.changed for name, store in stores.items()}
        bytes_of_all = sum(store.all_bytes for store in stores.values())
        bytes_changed = sum(store.row_bytes * len(clients[name]) for name, store in stores.items())
        is_too_long = size + bytes_changed > max(LEAST, 2 * bytes_of_all)
        if bytes_changed == bytes_of_all or is_too_long:
            first, size = number, 0  # a new journal, with all clients
            clients = {name: store.clients for name, store in stores.items()}
        for name, store in stores.items():
            step = max(1, PIECE // store.row_bytes)
            for start in range(0, len(clients[name]), step):
                rows = store.rows(clients[name][start : start + step])
                content = to_bytes(_prefixed(name, rows))
                path = self.disk.checkpoints.journal(number)
                self.disk.checkpoints.write(path, content)
                self._digests[f"{JOURNAL}/{path.name}"] = Digest.of(content)
                number = number + 1
                size = size + len(content)
        return range(first, number), size

    def restore(self, server: Server, force: bool = False, latest: int | None = None) -> None:
        """Restore the state of the last checkpoint, if there is one, and truncate the tables to its length.

        Its files are verified before anything is changed. With ``force`` the last intact checkpoint is used, even if
        later ones are damaged. With ``latest`` it is the last one up to that round, if there is one.
        """
        tables: Mapping[str, Digest] = {}
        intact = intact_checkpoints(self.disk, force, latest)
        for round, files in intact.items():
            journal = {name: files[name] for name in files if name.startswith(f"{JOURNAL}/")}
            self._journals[round] = set(journal)
            self._digests |= journal
        if intact:
            round = next(iter(intact))
            tables = intact[round]
            path = self.disk.checkpoints.state(round)
            flat = tensors_from_bytes(path.read_bytes())
            expected = {**server.checkpoint_without_stores(), FILES: torch.zeros(2)}
            if _fixed(flat) != _fixed(expected):
                raise FedskewError(
                    f"{path} does not fit the model and the algorithm of {CONFIG}: were they changed?"
                )
            server.restore(flat)
            self._read_journal(range(*flat[FILES].tolist()), server.stores())
        if self.disk.finished:
            return
        self._remove_old()
        self.disk.cut_back(tables)

    def _read_journal(self, files: range, stores: Mapping[str, ClientStore]) -> None:
        self._files = files
        self._bytes = sum(self._read(number, stores) for number in files)
        for store in stores.values():
            store.mark_saved()

    def _read(self, number: int, stores: Mapping[str, ClientStore]) -> int:
        """Put the rows of one file into their store, and return its bytes."""
        path = self.disk.checkpoints.journal(number)
        content = path.read_bytes()
        rows = tensors_from_bytes(content)
        for name, store in stores.items():
            if _fits(rows, _prefixed(name, store.rows([])), f"{name}/clients"):
                store.add({key.removeprefix(f"{name}/"): value for key, value in rows.items()})
                return len(content)
        raise FedskewError(
            f"{path} does not fit the model and the algorithm of {CONFIG}: were they changed?"
        )


@dataclass(frozen=True)
class OwnPart:
    """What a client has for itself, and does not share.

    Args:
        names: the names of the tensors of its model among that
        kept: all of it, as the hook ``client_model`` gets it; None for a client that still has what it began with
        unshared: the names of tensors of the global model that clients keep; empty where a client has a second model
        personal: whether clients train models of their own beside the global one
        away: whether all that is on the client's own machine
    """

    names: frozenset[str]
    kept: Tree | None
    unshared: frozenset[str]
    personal: bool
    away: bool


def server_state(disk: RunFolder) -> Tree:
    """Return the server state of the method at the end of a finished run, from the last checkpoint."""
    flat = tensors_from_bytes(disk.checkpoints.state(final_checkpoint(disk)).read_bytes())
    tree: Tree = {}
    for entry, value in group_of(flat, SERVER).items():
        part, name = entry.split("/", 1)
        tree.setdefault(part, {})[name] = value
    return tree


def global_tensors(disk: RunFolder) -> Tensors:
    """Return weights and buffers of the global model as it was trained, at the end of a finished run."""
    flat = tensors_from_bytes(disk.checkpoints.state(final_checkpoint(disk)).read_bytes())
    return {**group_of(flat, PARAMS), **group_of(flat, BUFFERS)}


def own_part(disk: RunFolder, client: int) -> OwnPart:
    """Return what a client of a finished run has for itself, from the last checkpoint."""
    round = final_checkpoint(disk)
    for name, digest in disk.checkpoints.needed(round).items():
        if "/" in name:
            disk.verify({name: digest})
    flat = tensors_from_bytes(disk.checkpoints.state(round).read_bytes())
    names: dict[str, frozenset[str]] = {}
    latest: dict[str, Tree] = {}
    for number in range(*flat[FILES].tolist()):
        rows = tensors_from_bytes(disk.checkpoints.journal(number).read_bytes())
        store = next(iter(rows)).partition("/")[0]
        numbers = rows.pop(f"{store}/clients")
        kept: Tree = {}
        for entry, value in rows.items():
            _, part, name = entry.split("/", 2)
            kept.setdefault(part, {})[name] = value
        names[store] = frozenset(kept.get(LOCAL, {}))
        places = (numbers == client).nonzero().flatten()
        if len(places):
            latest[store] = one_client(rows_of(kept, places[-1:]))
    none = frozenset[str]()
    away = False
    for entry in flat:
        if entry.startswith(f"{AWAY}/"):
            _, store, name = entry.split("/", 2)
            names[store] = names.get(store, none) | {name}
        if entry.startswith(f"{VERSIONS}/"):
            away = True
    store = OWN
    if PERSONAL in names:
        store = PERSONAL
    return OwnPart(
        names.get(store, none),
        latest.get(store),
        names.get(OWN, none),
        store == PERSONAL,
        away,
    )


def _prefixed(name: str, rows: Tensors) -> Tensors:
    return {f"{name}/{key}": value for key, value in rows.items()}


def _fixed(flat: Tensors) -> dict[str, torch.Size]:
    """Return the shapes that follow from the model and the algorithm, by name."""
    return {name: value.shape for name, value in flat.items() if name.startswith(FIXED)}


def _fits(rows: Tensors, form: Tensors, clients: str) -> bool:
    """Return whether names, types and shapes are those of ``form``, with a row for each of the clients."""
    if rows.keys() != form.keys():
        return False
    count = 0
    if clients in rows:
        count = rows[clients].numel()
    for name, value in form.items():
        if rows[name].dtype != value.dtype or rows[name].shape != (count, *value.shape[1:]):
            return False
    return True
