"""Which clients share an edge server: neighbours in an order, clusters of label shares, or what a file says."""

from pathlib import Path

import numpy as np
import torch

from fedskew.algorithms.cluster_models import clusters_by_cosine
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.streams import Floats, Ints

NAMED = ("order", "network", "labels")


def edges_in_order(keys: "Floats | Ints", edges: int) -> Ints:
    """Return the edge of each client: neighbours by their keys share one, and edges have equally many clients.

    >>> edges_in_order(np.array([5.0, 1.0, 4.0, 2.0, 3.0]), 2).tolist()
    [1, 0, 1, 0, 0]
    """
    order = np.argsort(keys, kind="stable")
    result = np.empty(len(keys), dtype=np.int64)
    for edge, members in enumerate(np.array_split(order, edges)):
        result[members] = edge
    return result


def edges_by_labels(counts: Ints, edges: int) -> Ints:
    """Return the edge of each client: clients with similar shares of labels share one; ``counts`` is client x class.

    >>> edges_by_labels(np.array([[9, 0], [1, 8], [3, 0]]), 2).tolist()
    [0, 1, 0]
    """
    return clusters_by_cosine(torch.from_numpy(counts).double(), edges).numpy()


def edges_in_file(file: str, clients: int, edges: int) -> Ints:
    """Return the edge of each client from a file with the numbers of a client and its edge per line."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise FedskewError(
            f"by={file}: there is no such file; use {', '.join(NAMED)} or a file with the numbers of a client and its "
            "edge per line"
        )
    with reading(path):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    result = np.full(clients, -1)
    for number, line in enumerate(lines, 1):
        pair = line.replace(",", " ").split()
        if not pair or (number == 1 and pair == ["client", "edge"]):
            continue
        where = f"by={path}, line {number}: {line.strip()[:40]!r}"
        client, edge = _numbers(pair, clients, edges, where)
        if result[client] >= 0:
            raise FedskewError(f"{where}: client {client} has an edge already: keep one line")
        result[client] = edge
    _check_complete(path, result, edges)
    return result


def _numbers(pair: list[str], clients: int, edges: int, where: str) -> tuple[int, int]:
    """Return the numbers of a client and its edge in a line; ``where`` says which line that is."""
    if len(pair) != 2 or not all(word.isdecimal() for word in pair):
        raise FedskewError(f"{where} is not the numbers of a client and its edge: write them")
    client = int(pair[0])
    edge = int(pair[1])
    if client >= clients or edge >= edges:
        raise FedskewError(
            f"{where}: clients are 0 to {clients - 1} and edges 0 to {edges - 1}: write such numbers, or change edges"
        )
    return client, edge


def _check_complete(path: Path, result: Ints, edges: int) -> None:
    """Raise an error if a client has no edge, or an edge no client."""
    for client in np.flatnonzero(result < 0)[:1]:
        raise FedskewError(f"by={path}: client {client} has no edge: write a line for every client")
    for edge in np.setdiff1d(np.arange(edges), result)[:1]:
        raise FedskewError(f"by={path}: edge {edge} has no client: use fewer edges")
