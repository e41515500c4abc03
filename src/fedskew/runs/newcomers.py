"""Clients that took no part in training: the models that they could use at its end, scored on their held-out rows."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.finetune import FineTune
from fedskew.data.federation import Federation
from fedskew.server.final_evaluation import TEST_ROWS
from fedskew.server.refusals import least_batch
from fedskew.server.rows_of_clients import mean_over_clients
from fedskew.server.server import Server
from fedskew.tasks.task import Headline

Row = dict[str, Any]

SHARED, TUNED, METHOD = "shared", "tuned", "method"  # whose score a column has


def newcomer_rows(server: Server) -> list[Row]:
    """Return one row per client that took no part, with the scores of the models that it could use.

    These are the shared model, where there is one; the global weights after the fine-tuning of ``+ finetune``, the
    parts that clients keep being as at first; and what the method gives a client that it has never seen: a model that
    is adapted, or chosen by its loss, on the client's rows.
    """
    fed = server.fed.unseen
    if fed is None:
        return []
    ways: dict[str, Algorithm] = {TUNED: FedAvg() + FineTune()}
    if server.has_common_model:
        ways = {SHARED: FedAvg(), **ways}
    if _serves_newcomers(server.algorithm):
        ways[METHOD] = server.algorithm
    rows: dict[int, Row] = {}
    for way, algorithm in ways.items():
        for entry in _guest(server, fed, algorithm).final_clients().table:
            client = entry["client"]
            row = rows.setdefault(client, {"client": client, "name": fed.client_names[client]})
            row["rows"] = entry["rows"]
            row[TEST_ROWS] = entry[TEST_ROWS]
            for name in ("loss", *server.job.task.metric_names):
                if name in entry:
                    row[f"{way}_{name}"] = entry[name]
    return list(rows.values())


def check_newcomers(server: Server) -> None:
    """Raise an error, before training, if a client that takes no part has too few rows to tune a model on."""
    fed = server.fed.unseen
    if fed is not None:
        least_batch(server.job.model, fed.partition, server.settings.batch_size, fed)


def _serves_newcomers(algorithm: Algorithm) -> bool:
    """Return whether a method makes a model from the rows of a client that it has never seen."""
    if overridden(algorithm, "answer"):
        return False
    return algorithm.adaptation is not None or "candidate_losses" in algorithm.requires


def _guest(server: Server, fed: Federation, algorithm: Algorithm) -> Server:
    """Return a server of other clients that has the global weights of one that has trained."""
    settings = replace(
        server.settings,
        per_round=None,
        workers=None,
        thresholds=None,
        stop_after=None,
        test_trained=False,
    )
    guest = Server(fed, server.job.model, algorithm, settings, task=server.job.task, trains=False)
    guest.state.params = dict(server.state.params)
    guest.state.buffers = dict(server.state.buffers)
    guest.state.round = server.state.round
    if algorithm is server.algorithm:
        guest.state.server_state = server.state.server_state
    return guest


def newcomer_summary(rows: Sequence[Row], headline: Headline) -> Row:
    """Return how many newcomers there are, and their mean score by each way to a model.

    >>> rows = [{"shared_accuracy": 0.5, "tuned_accuracy": 0.75}, {"shared_accuracy": 1.0, "tuned_accuracy": 0.75}]
    >>> newcomer_summary(rows, Headline("accuracy", 1))
    {'unseen_clients': 2, 'unseen_shared_accuracy_mean': 0.75, 'unseen_tuned_accuracy_mean': 0.75}
    """
    if not rows:
        return {}
    summary: Row = {"unseen_clients": len(rows)}
    for way in (SHARED, TUNED, METHOD):
        name = f"{way}_{headline.name}"
        if name in rows[0]:
            values = map(itemgetter(name), rows)
            summary[f"unseen_{name}_mean"] = mean_over_clients(np.array(list(values)))
    return summary
