"""A federation in the layout of another tool: PFLlib, FL-bench, LEAF or FedScale."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Ints
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.readers.fedscale import COLUMNS
from fedskew.nodes.plain_pickle import pickled
from fedskew.runs.folder import new_folder


@dataclass(frozen=True)
class ClientRows:
    """The training rows of every client, and the test rows of every client, which may be rows of another part."""

    train: Rows
    held: Partition
    test: Rows
    tested: Partition

    @classmethod
    def of(cls, fed: Federation, layout: str) -> "ClientRows":
        """Return the rows of a federation whose clients have test rows of their own, as these tools expect."""
        if fed.tested_on is None:
            raise FedskewError(
                f"--layout {layout} needs test rows of each client, and these clients have none: add --client-test 0.25"
            )
        return cls(fed.train, fed.partition, *fed.tested_on)

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        for client in range(self.held.clients):
            train = self.train.take(np.sort(self.held.of(client)))
            yield train, self.test.take(np.sort(self.tested.of(client)))


def save_layout(
    folder: "str | os.PathLike[str]", layout: str, fed: Federation, made_by: Mapping[str, Any]
) -> None:
    """Write a federation as another tool reads it; the folder appears only when it is complete.

    Args:
        folder: a new folder
        layout: pfllib, fl-bench, leaf or fedscale
        fed: the federation, whose targets are classes
        made_by: skew and seed, which the file of settings names where the tool has one
    """
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if fed.data.target != "class":
        raise FedskewError(
            f"--layout {layout} is for classes, and the targets of {fed.data.name} are of kind {fed.data.target}"
        )
    place = Path(folder)
    with new_folder(place) as part:
        LAYOUTS[layout](part, fed, made_by)


def _pfllib(folder: Path, fed: Federation, made_by: Mapping[str, Any]) -> None:
    """Write train/0.npz … and test/0.npz …, each with a pickled table of x and y, and config.json."""
    clients = ClientRows.of(fed, "pfllib")
    statistics = []
    for part in ("train", "test"):
        (folder / part).mkdir()
    for client, (train, test) in enumerate(clients):
        for part, rows in (("train", train), ("test", test)):
            content: Any = np.array({"x": np.asarray(rows.x), "y": rows.y}, dtype=object)
            with (folder / part / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data=content)
        statistics.append(_class_counts(np.concatenate([train.y, test.y])))
    config = {
        "num_clients": fed.clients,
        "num_classes": len(fed.data.classes),
        "non_iid": True,
        "balance": False,
        "partition": str(made_by["skew"]),
        "Size of samples for labels in clients": statistics,
        "alpha": None,
        "batch_size": None,
    }
    _write_json(folder / "config.json", config)


def _fl_bench(folder: Path, fed: Federation, made_by: Mapping[str, Any]) -> None:
    """Write data.npy, targets.npy and partition.pkl, as for the data set synthetic, with the files of settings."""
    clients = ClientRows.of(fed, "fl-bench")
    x, y = np.asarray(clients.train.x), clients.train.y
    first_test = 0
    if clients.test is not clients.train:
        first_test = len(y)
        x = np.concatenate([x, np.asarray(clients.test.x)])
        y = np.concatenate([y, clients.test.y])
    np.save(folder / "data.npy", x)
    np.save(folder / "targets.npy", y)
    indices = []
    statistics: dict[str, Any] = {}
    for client in range(fed.clients):
        train = np.sort(clients.held.of(client))
        test = np.sort(clients.tested.of(client)) + first_test
        indices.append({"train": train.tolist(), "val": [], "test": test.tolist()})
        own = np.concatenate([train, test])
        statistics[str(client)] = {"x": len(own), "y": dict(_class_counts(y[own]))}
    numbers = list(range(fed.clients))
    separation = {"train": numbers, "val": numbers, "test": numbers, "total": fed.clients}
    partition = {"separation": separation, "data_indices": indices}
    (folder / "partition.pkl").write_bytes(pickled(partition))
    settings = {
        "client_num": fed.clients,
        "split": "sample",
        "seed": made_by["seed"],
        "dimension": int(np.prod(x.shape[1:])),
        "class_num": len(fed.data.classes),
        "monitor_window_name_suffix": f"fedskew-{made_by['skew']}",
    }
    _write_json(folder / "args.json", settings)
    _write_json(folder / "all_stats.json", statistics)


def _leaf(folder: Path, fed: Federation, made_by: Mapping[str, Any]) -> None:
    """Write train/data.json and test/data.json with the users, their numbers of rows, and flat rows."""
    clients = ClientRows.of(fed, "leaf")
    users: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for name, (train, test) in zip(fed.client_names, clients, strict=True):
        for part, rows in (("train", train), ("test", test)):
            x = np.asarray(rows.x).reshape(len(rows), -1)
            users[part][name] = {"x": x.tolist(), "y": rows.y.tolist()}
    for part, data in users.items():
        (folder / part).mkdir()
        content = {
            "users": list(data),
            "num_samples": [len(user["y"]) for user in data.values()],
            "user_data": data,
        }
        _write_json(folder / part / "data.json", content)


def _fedscale(folder: Path, fed: Federation, made_by: Mapping[str, Any]) -> None:
    """Write client_data_mapping/train.csv, in which line n names the client of training row n."""
    if fed.held_out is not None:
        raise FedskewError(
            "--layout fedscale maps training rows by number, so that none can be held out: leave --client-test out"
        )
    if fed.treated is not None:
        raise FedskewError(
            f"--layout fedscale maps the rows as they are, and skew {made_by['skew']} changes values: leave the "
            "treatment out"
        )
    held = np.bincount(fed.partition.rows, minlength=len(fed.train))
    if not (held == 1).all():
        raise FedskewError(
            f"--layout fedscale maps every training row to one client, and row {int(np.argmax(held != 1))} has "
            f"{held[np.argmax(held != 1)]}: choose a skew that gives each row to one client"
        )
    mapping = folder / "client_data_mapping"
    mapping.mkdir()
    owner = fed.partition.owner
    with (mapping / "train.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        for row, (client, label) in enumerate(
            zip(owner.tolist(), fed.train.y.tolist(), strict=True)
        ):
            lines.writerow([fed.client_names[client], row, fed.data.classes[label], label])


LAYOUTS: Mapping[str, Callable[[Path, Federation, Mapping[str, Any]], None]] = {
    "pfllib": _pfllib,
    "fl-bench": _fl_bench,
    "leaf": _leaf,
    "fedscale": _fedscale,
}


def _class_counts(y: Ints) -> list[tuple[int, int]]:
    """Return every class among the labels with how many rows it has."""
    classes, counts = np.unique(y, return_counts=True)
    return list(zip(classes.tolist(), counts.tolist(), strict=True))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
