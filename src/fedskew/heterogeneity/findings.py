"""Clients one by one: their rows, labels and columns against those of all others, and a verdict in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from fedskew.core.streams import Ints, Stream
from fedskew.heterogeneity.contrasts import (
    Compared,
    Contrast,
    Variable,
    gap_variables,
    label_variables,
    variables_of,
)
from fedskew.heterogeneity.effects import LEVEL, Effect, auc_interval, cramers_v_interval
from fedskew.heterogeneity.findings_tables import client_table, column_table
from fedskew.heterogeneity.findings_verdict import verdict_of
from fedskew.heterogeneity.study import Study
from fedskew.heterogeneity.two_sample import clients_to_test, two_sample_auc

MOST_CLIENTS = 200  # that are looked at one by one; above that, clients at even steps
# Of all columns that are compared, which are a random sample where there are more
MOST_VALUES = 1 << 26
MOST_CONTRASTS = 500  # of all clients together that are listed, but at least ten a client
EXPECTED = 10  # rows of a class that make its absence no chance
DEFINITION = (
    "g: Hedges' g, the difference of a client's mean and that of all others in standard deviations; V: Cramér's V, "
    "corrected for bias; [95 % interval] of each alone. weak, medium, strong: at least 0.2, 0.5, 0.8 of g, 0.1, 0.3, "
    "0.5 of V (Cohen), 0.56, 0.64, 0.71 of the AUC, by the lower end of an interval for all clients and columns at "
    "once. two-sample AUC: of trees that tell a client's rows from the others', cross-validated, 0.5 by chance. times: "
    "median and spread both differ by this factor."
)


@dataclass(frozen=True)
class ClientFindings:
    """One client: its rows, the shares of its labels, and what of it differs from all others, the most first.

    ``absent`` are the classes that it has no row of, though ten or more were to be expected from the others' shares;
    ``missing`` counts the missing entries of its columns, where the data keeps them; ``label`` is about its targets,
    ``auc`` the classifier two-sample test, with ``surely`` as its lower end for all clients at once.
    """

    client: int
    name: str
    rows: int
    label_shares: Mapping[str, float]
    absent: tuple[str, ...]
    label: Contrast | None
    columns: tuple[Contrast, ...]
    missing: Mapping[str, int] = field(default_factory=dict)
    auc: Effect | None = None
    surely: float = 0.5

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return it as plain values."""
        label = None
        if self.label is not None:
            label = self.label.as_dict(names)
        auc = None
        if self.auc is not None:
            auc = self.auc._asdict()
        return {
            "client": self.client,
            "name": self.name,
            "rows": self.rows,
            "label_shares": dict(self.label_shares),
            "absent_classes": list(self.absent),
            "label": label,
            "columns": [one.as_dict(names) for one in self.columns],
            "missing": dict(self.missing),
            "two_sample_auc": auc,
        }


@dataclass(frozen=True)
class Findings:
    """All clients, every column at the client in which it differs most, and the verdict in sentences.

    Columns are compared by the entries that are there; ``gaps`` are about those that are missing, of every column with
    some. ``label_v`` is Cramér's V of all clients and classes, with its interval; None where targets are not classes.
    """

    names: tuple[str, ...]
    clients: tuple[ClientFindings, ...]
    columns: tuple[Contrast, ...]
    label_v: Effect | None
    verdict: tuple[str, ...]
    gaps: tuple[Contrast, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        label_v = None
        if self.label_v is not None:
            label_v = self.label_v._asdict()
        return {
            "verdict": list(self.verdict),
            "verdict_definition": DEFINITION,
            "label_v": label_v,
            "by_client": [one.as_dict(self.names) for one in self.clients],
            "by_column": [one.as_dict(self.names) for one in self.columns],
            "by_missing": [one.as_dict(self.names) for one in self.gaps],
        }

    def __str__(self) -> str:
        said = "\n".join(self.verdict)
        return "\n\n".join((said, client_table(self), column_table(self), DEFINITION))


def examine(
    study: Study,
    names: Sequence[str],
    missing: Mapping[str, Mapping[str, int]],
    given_features: tuple[float, float],
) -> Findings:
    """Return the findings about the clients of a study.

    Args:
        study: the rows
        names: of the clients
        missing: missing entries, by the names of client and column
        given_features: mean Hellinger distance of labels given features, and the same by chance
    """
    examination = _Examination(study, names)
    clients = []
    for place in range(len(examination.chosen)):
        clients.append(examination.of_client(place, missing))
    columns = examination.by_column()
    gaps = examination.by_missing()
    label_v = None
    if study.classes:
        label_v = cramers_v_interval(examination.counts)
    verdict = verdict_of(
        study.partition.sizes, names, clients, columns, gaps, label_v, given_features
    )
    return Findings(
        tuple(names), tuple(clients), tuple(columns), label_v, tuple(verdict), tuple(gaps)
    )


class _Examination:
    """The clients that are looked at one by one, and what of them is compared with the rows of all others."""

    def __init__(self, study: Study, names: Sequence[str]) -> None:
        self.study = study
        self.names = names
        partition = study.partition
        self.chosen = np.arange(partition.clients)[:: -(-partition.clients // MOST_CLIENTS)]
        self.targets = self._compared(label_variables(study.rows, partition, study.label_names))
        most = MOST_VALUES // len(partition.rows) + 1
        if study.options.features is not None:
            most = min(most, study.options.features)
        self.columns = self._compared(
            variables_of(study.rows, partition, study.data, most, study.options.seed)
        )
        self.gaps = self._compared(gap_variables(study.rows, partition, study.data))
        self.aucs = self._two_sample_aucs()
        variables = len(self.columns) + len(self.targets) + len(self.gaps)
        effects = len(self.chosen) * variables + len(self.aucs)
        # The level of each interval, so that all of them hold at once
        self.sure = 1 - (1 - LEVEL) / max(effects, 1)
        sizes = np.array([one.sizes for one in self.columns])
        sizes = sizes.reshape(len(self.columns), len(self.chosen))
        self.sizes = np.nan_to_num(sizes, posinf=np.inf)  # column x client
        self.counts = np.zeros((len(self.chosen), 0), dtype=np.int64)  # client x class
        self.total = self.counts[0]  # of each class at all clients
        if study.classes:
            labels = study.rows.labels
            self.counts = partition.counts(labels, study.classes, self.chosen)
            self.total = np.bincount(labels[partition.rows], minlength=study.classes)

    def _compared(self, variables: Sequence[Variable]) -> list[Compared]:
        offsets = self.study.partition.offsets
        return [Compared(variable, offsets, self.chosen) for variable in variables]

    def _two_sample_aucs(self) -> dict[int, tuple[float, int, int]]:
        """Return the AUC of each client that is tested, with the rows of either kind."""
        columns = self.study.columns
        if not len(columns.chosen):
            return {}
        partition = self.study.partition
        stream = Stream(self.study.options.seed, "measure two-sample")
        aucs = {}
        for client in clients_to_test(self.chosen, partition.sizes).tolist():
            aucs[client] = two_sample_auc(
                columns, partition.offsets, client, stream, self.study.gaps
            )
        return aucs

    def of_client(self, place: int, missing: Mapping[str, Mapping[str, int]]) -> ClientFindings:
        """Return the findings about the client at this place of the chosen ones."""
        client = int(self.chosen[place])
        label_names = self.study.label_names
        counts = self.counts[place]
        labels = [one.contrast(client, self.sure) for one in self.targets]
        most = max(10, MOST_CONTRASTS // len(self.chosen))
        largest = np.argsort(-self.sizes[:, place], kind="stable")[:most]
        columns = []
        for column in largest:
            if self.columns[column].is_compared(client):
                columns.append(self.columns[column].contrast(client, self.sure))
        auc = None
        surely = 0.5
        if client in self.aucs:
            auc = auc_interval(*self.aucs[client])
            surely = auc_interval(*self.aucs[client], self.sure).low
        return ClientFindings(
            client=client,
            name=self.names[client],
            rows=int(self.study.partition.sizes[client]),
            label_shares=dict(zip(label_names, _shares(counts), strict=False)),
            absent=_absent(label_names, counts, self.total - counts),
            label=max(labels, key=attrgetter("size"), default=None),
            columns=tuple(columns),
            missing=self._missing_of(client) or missing.get(self.names[client], {}),
            auc=auc,
            surely=surely,
        )

    def by_column(self) -> list[Contrast]:
        """Return each column at the client in which it differs most: other units first, then by size."""
        contrasts = []
        for column, sizes in zip(self.columns, self.sizes, strict=True):
            client = int(self.chosen[np.argmax(sizes)])
            if column.is_compared(client):
                contrasts.append(column.contrast(client, self.sure))
        contrasts.sort(key=lambda one: (one.factor is None or one.strength == "no", -one.size))
        return contrasts

    def by_missing(self) -> list[Contrast]:
        """Return each column with missing entries at the client in which their share differs most, by size."""
        contrasts = []
        for column in self.gaps:
            client = int(self.chosen[np.argmax(column.sizes)])
            contrasts.append(column.contrast(client, self.sure))
        contrasts.sort(key=lambda one: -one.size)
        return contrasts

    def _missing_of(self, client: int) -> dict[str, int]:
        """Return how many entries of its columns a client lacks."""
        offsets = self.study.partition.offsets
        own = slice(int(offsets[client]), int(offsets[client + 1]))
        found = {}
        for column in self.gaps:
            there = column.variable.values[own]
            if not there.all():
                found[column.variable.name] = int(len(there) - there.sum())
        return found


def _shares(counts: Ints) -> list[float]:
    shares: list[float] = (counts / max(int(counts.sum()), 1)).tolist()
    return shares


def _absent(names: Sequence[str], counts: Ints, others: Ints) -> tuple[str, ...]:
    """Return the classes without a row here, of which the others' shares make us expect several."""
    due = int(counts.sum()) * np.array(_shares(others))
    labels = np.flatnonzero((counts == 0) & (due >= EXPECTED))
    return tuple(names[label] for label in labels.tolist())
