"""Graphs of clients: who exchanges models with whom, and with which weights models are mixed."""

from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy.sparse.csgraph import connected_components

from fedskew.algorithms.topologies import Links
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.streams import Floats, Stream

NAMED = ("ring", "torus", "complete", "random")


@lru_cache(maxsize=8)
def graph_of(graph: str, clients: int, degree: int, seed: int) -> Links:
    """Return who is linked to whom in a graph, as a symmetric matrix.

    Args:
        graph: ring, torus, complete, random, or a file with two client numbers per line
        clients: how many clients there are
        degree: number of neighbours of most clients of a random graph
        seed: draws the random graph

    >>> graph_of("ring", 4, 2, 0).astype(int).tolist()
    [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    """
    links = np.zeros((clients, clients), dtype=np.bool_)
    for one, other in _pairs(graph, clients, degree, seed):
        links[one, other] = True
        links[other, one] = True
    np.fill_diagonal(links, False)
    parts, part = connected_components(links, directed=False)
    if parts > 1:
        apart = int(np.flatnonzero(part != part[0])[0])
        raise FedskewError(
            f"graph={graph}: no path leads from client 0 to client {apart}, so they would never learn from each other: "
            "add links"
        )
    return links


def _pairs(graph: str, clients: int, degree: int, seed: int) -> list[tuple[int, int]]:
    """Return pairs of clients that are linked."""
    everybody = list(range(clients))
    if graph == "complete":
        return list(product(everybody, everybody))
    if graph == "ring":
        return _circle(everybody)
    if graph == "torus":
        return _torus(clients)
    if graph == "random":
        pairs: list[tuple[int, int]] = []
        for circle in range(degree // 2):
            pairs += _circle(Stream(seed, "graph", circle).permutation(clients).tolist())
        return pairs
    return _read(graph, clients)


def _circle(clients: list[int]) -> list[tuple[int, int]]:
    return list(zip(clients, clients[1:] + clients[:1], strict=True))


def _torus(clients: int) -> list[tuple[int, int]]:
    """Return the links of a grid whose ends meet, as near to a square as the number of clients allows."""
    width = int(np.sqrt(clients))
    while clients % width:
        width -= 1
    if width == 1 and clients > 1:
        raise FedskewError(
            f"graph=torus arranges clients in rows and columns, and {clients} clients make one row: use graph=ring, or "
            "another number of clients"
        )
    grid = np.arange(clients).reshape(-1, width)
    pairs: list[tuple[int, int]] = []
    for row in (*grid.tolist(), *grid.T.tolist()):
        pairs += _circle(row)
    return pairs


def _read(graph: str, clients: int) -> list[tuple[int, int]]:
    """Return the links that a file lists."""
    path = Path(graph)
    if not path.is_file():
        raise FedskewError(
            f"graph={graph}: there is no such file; use {', '.join(NAMED)} or a file with two client numbers per line"
        )
    pairs: list[tuple[int, int]] = []
    with reading(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        ends = line.replace(",", " ").split()
        known = [end.isdecimal() and int(end) < clients for end in ends]
        if len(ends) != 2 or not all(known):
            raise FedskewError(
                f"graph={path}, line {number}: {line.strip()[:40]!r} is not a pair of client numbers from 0 to "
                f"{clients - 1}"
            )
        if int(ends[0]) == int(ends[1]):
            raise FedskewError(
                f"graph={path}, line {number}: {line.strip()[:40]!r} links a client to itself: leave the line out"
            )
        pairs.append((int(ends[0]), int(ends[1])))
    return pairs


def matching(links: Links, stream: Stream) -> Links:
    """Return links in which every client has at most one neighbour, drawn at random; no other link could be added.

    >>> one = matching(graph_of("complete", 4, 2, 0), Stream(0, "server", 0))
    >>> one.sum(1).tolist()
    [1, 1, 1, 1]
    """
    pairs = np.argwhere(np.triu(links))
    chosen = np.zeros_like(links)
    free = np.ones(len(links), dtype=np.bool_)
    for one, other in pairs[stream.permutation(len(pairs))]:
        if free[one] and free[other]:
            chosen[one, other] = True
            chosen[other, one] = True
            free[[one, other]] = False
    return chosen


def mixing_weights(links: Links) -> Floats:
    """Return the Metropolis weights of a graph: symmetric, and each row sums to 1.

    A link between clients with d and e neighbours has the weight ``1 / (1 + max(d, e))``; the rest is the client's own.

    >>> mixing_weights(graph_of("complete", 4, 2, 0)).tolist()[0]
    [0.25, 0.25, 0.25, 0.25]
    """
    degrees = links.sum(1)
    weights = links / (1.0 + np.maximum(degrees[:, None], degrees))
    np.fill_diagonal(weights, 1.0 - weights.sum(1))
    return np.asarray(weights)
