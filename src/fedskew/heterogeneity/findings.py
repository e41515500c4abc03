"""Clients one by one: their rows, labels and columns against those of all others, and a verdict in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedskew.core.streams import Ints, Stream
from fedskew.heterogeneity.contrasts import (
    STRENGTHS,
    Compared,
    Contrast,
    Strength,
    label_variables,
    variables_of,
)
from fedskew.heterogeneity.effects import LEVEL, Effect, auc_interval, cramers_v_interval
from fedskew.heterogeneity.study import Study
from fedskew.heterogeneity.two_sample import clients_to_test, two_sample_auc

MOST_CLIENTS = 200  # that are looked at one by one; above that, clients at even steps
# Of all columns that are compared, which are a random sample where there are more
MOST_VALUES = 1 << 26
MOST_CONTRASTS = 500  # of all clients together that are listed, but at least ten a client
AUCS = (0.556, 0.638, 0.714)  # of normal distributions that are 0.2, 0.5 and 0.8 deviations apart
# Mean Hellinger distance of labels given features, above that by chance
CONCEPT = (0.05, 0.15, 0.3)
EXPECTED = 10  # rows of a class that make its absence no chance
DEFINITION = (
    "g: Hedges' g, the difference of a client's mean and that of all others in standard deviations; V: Cramér's V, "
    "corrected for bias; [95 % interval] of each alone. weak, medium, strong: at least 0.2, 0.5, 0.8 of g, 0.1, 0.3, "
    "0.5 of V (Cohen), 0.56, 0.64, 0.71 of the AUC, by the lower end of an interval for all clients and columns at "
    "once. two-sample AUC: of trees that tell a client's rows from the others', cross-validated, 0.5 by chance. times: "
    "median and spread both differ by this factor."
)
_NAMED = 3  # clients or columns in one sentence
_SHOWN = 12  # columns in a table
_CLASSES = 6  # whose shares are printed


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
        return {
            "client": self.client,
            "name": self.name,
            "rows": self.rows,
            "label_shares": dict(self.label_shares),
            "absent_classes": list(self.absent),
            "label": None if self.label is None else self.label.as_dict(names),
            "columns": [one.as_dict(names) for one in self.columns],
            "missing": dict(self.missing),
            "two_sample_auc": None if self.auc is None else self.auc._asdict(),
        }


@dataclass(frozen=True)
class Findings:
    """All clients, every column at the client in which it differs most, and the verdict in sentences.

    ``label_v`` is Cramér's V of all clients and classes, with its interval; None where targets are no classes.
    """

    names: tuple[str, ...]
    clients: tuple[ClientFindings, ...]
    columns: tuple[Contrast, ...]
    label_v: Effect | None
    verdict: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "verdict": list(self.verdict),
            "verdict_definition": DEFINITION,
            "label_v": None if self.label_v is None else self.label_v._asdict(),
            "by_client": [one.as_dict(self.names) for one in self.clients],
            "by_column": [one.as_dict(self.names) for one in self.columns],
        }

    def __str__(self) -> str:
        return "\n\n".join(
            ("\n".join(self.verdict), _client_table(self), _column_table(self), DEFINITION)
        )


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
    partition = study.partition
    options = study.options
    rows = study.rows
    chosen = np.arange(partition.clients)[:: -(-partition.clients // MOST_CLIENTS)]
    most = MOST_VALUES // len(partition.rows) + 1
    if options.features is None:
        wanted = most
    else:
        wanted = min(most, options.features)
    targets, columns = (
        [Compared(variable, partition.offsets, chosen) for variable in variables]
        for variables in (
            label_variables(rows, partition, study.label_names),
            variables_of(rows, partition, study.data, wanted, options.seed),
        )
    )
    if len(study.columns.chosen):
        tested = clients_to_test(chosen, partition.sizes)
    else:
        tested = chosen[:0]
    sure = 1 - (1 - LEVEL) / max(len(chosen) * (len(columns) + len(targets)) + len(tested), 1)
    stream = Stream(options.seed, "measure two-sample")
    aucs = {}
    for client in tested.tolist():
        aucs[client] = two_sample_auc(study.columns, partition.offsets, client, stream)
    sizes = np.nan_to_num(
        np.array([one.sizes for one in columns]).reshape(len(columns), len(chosen)), posinf=np.inf
    )
    if study.classes:
        counts = partition.counts(rows.labels, study.classes, chosen)
    else:
        counts = np.zeros((len(chosen), 0), int)
    if study.classes:
        total = np.bincount(rows.labels[partition.rows], minlength=study.classes)
    else:
        total = counts[0]
    found = []
    for place, client in enumerate(chosen.tolist()):
        largest = np.argsort(-sizes[:, place], kind="stable")[
            : max(10, MOST_CONTRASTS // len(chosen))
        ]
        label = max((one.contrast(client, sure) for one in targets), key=_size, default=None)
        auc = aucs.get(client)
        found.append(
            ClientFindings(
                client,
                names[client],
                int(partition.sizes[client]),
                dict(zip(study.label_names, _shares(counts[place]), strict=False)),
                _absent(study.label_names, counts[place], total - counts[place]),
                label,
                tuple(columns[i].contrast(client, sure) for i in largest),
                missing.get(names[client], {}),
                auc_interval(*auc) if auc else None,
                auc_interval(*auc, sure).low if auc else 0.5,
            )
        )
    by_column = [
        one.contrast(int(chosen[np.argmax(sizes[i])]), sure) for i, one in enumerate(columns)
    ]
    by_column.sort(key=lambda one: (one.factor is None or one.strength == "no", -_size(one)))
    if study.classes:
        over_all = cramers_v_interval(counts)
    else:
        over_all = None
    verdict = _verdict(study, tuple(names), found, by_column, over_all, given_features)
    return Findings(tuple(names), tuple(found), tuple(by_column), over_all, tuple(verdict))


def _shares(counts: Ints) -> list[float]:
    shares: list[float] = (counts / max(int(counts.sum()), 1)).tolist()
    return shares


def _absent(names: Sequence[str], counts: Ints, others: Ints) -> tuple[str, ...]:
    """Return the classes without a row here, of which the others' shares make us expect several."""
    due = int(counts.sum()) * np.array(_shares(others))
    return tuple(
        names[label] for label in np.flatnonzero((counts == 0) & (due >= EXPECTED)).tolist()
    )


def _size(one: Contrast) -> float:
    """Return how large an effect is, so that those of numbers and of categories can be ordered together."""
    if np.isnan(one.effect):
        return 0.0
    return abs(one.effect) / (0.8 if one.kind == "number" else 0.5)


# -- the verdict -------------------------------------------------------------------------------------------------------


def _verdict(
    study: Study,
    names: Sequence[str],
    clients: Sequence[ClientFindings],
    columns: Sequence[Contrast],
    label_v: Effect | None,
    given_features: tuple[float, float],
) -> list[str]:
    """Return a sentence about the kind of skew, and one each about labels, features, a classifier and sizes."""
    labels = _label_verdict(clients, label_v)
    features = _feature_verdict(names, columns)
    told = _classifier_verdict(clients)
    if told[0] != "no" and labels[0] != "no":
        told = told[0], f"{told[1]} (a skew of labels shows there too)"
    concept = STRENGTHS[sum(given_features[0] - given_features[1] >= limit for limit in CONCEPT)]
    ratio = float(study.partition.sizes.max() / study.partition.sizes.min())
    few = int(study.partition.sizes.argmin())
    many = int(study.partition.sizes.argmax())
    sizes = (
        f"sizes: from {study.partition.sizes[few]:,} rows ({names[few]}) to {study.partition.sizes[many]:,} "
        f"({names[many]}), x {ratio:.3g}"
    )
    # Fmt: skip
    kinds = []
    for kind, (strength, _) in (("label skew", labels), ("feature shift", features)):
        if strength != "no":
            kinds.append(f"{strength} {kind}")
    if not kinds and told[0] != "no":
        kinds.append(f"{told[0]} feature shift in several columns together")
    if not kinds and concept != "no":
        kinds.append(f"{concept} concept shift")
    if ratio >= 2:
        kinds.append(f"sizes that differ {ratio:.3g} times")
    if kinds:
        whole = f"verdict: {', '.join(kinds)}"
    else:
        whole = "verdict: no difference between the clients beyond chance"
    if len(clients) < len(names):
        looked = f" ({len(clients)} of {len(names):,} clients looked at)"
    else:
        looked = ""
    explained = {labels[0], features[0], told[0]} != {"no"}
    if explained:
        why = "the skews above may explain it"
    else:
        why = "the same features have other labels at other clients"
    given = f"labels given features: distance {given_features[0]:.2f}, by chance {given_features[1]:.2f}: {why}"
    more = [*([told[1]] if told[1] else []), *([given] if concept != "no" else [])]
    return [whole + looked, labels[1], features[1], *more, sizes]


def _strongest(contrasts: Sequence[Contrast]) -> Strength:
    return max((one.strength for one in contrasts), key=STRENGTHS.index, default="no")


def _label_verdict(
    clients: Sequence[ClientFindings], label_v: Effect | None
) -> tuple[Strength, str]:
    clear = [one for one in clients if one.absent or (one.label and one.label.strength != "no")]
    clear.sort(key=lambda one: (-_size(one.label) if one.label else 0.0, one.client))
    if label_v is None:
        over_all = ""
    else:
        over_all = f"; over all clients V = {_interval(label_v)}"
    if not clear:
        return "no", f"labels: no clear difference{over_all}"
    strength = _strongest([one.label for one in clear if one.label])
    # Where classes are absent
    if strength == "no":
        strength = "weak"
    else:
        strength = strength
    said = [f"{one.name} {_label_words(one)}" for one in clear[:_NAMED]]
    if len(clear) > _NAMED:
        more = f" and {len(clear) - _NAMED} more clients"
    else:
        more = ""
    return strength, f"labels: {strength} skew: {'; '.join(said)}{more}{over_all}"


def _label_words(one: ClientFindings) -> str:
    if one.label and one.label.strength != "no":
        words = [f"is {one.label.words()}"]
    else:
        words = []
    if one.absent:
        listed = ", ".join(map(repr, one.absent[:_NAMED]))
        words.append(
            f"has no {listed}{f' and {len(one.absent) - _NAMED} more' if len(one.absent) > _NAMED else ''}"
        )
    return ", ".join(words)


def _feature_verdict(names: Sequence[str], columns: Sequence[Contrast]) -> tuple[Strength, str]:
    clear = [one for one in columns if one.strength != "no"]
    strength = _strongest(clear)
    if not clear:
        return "no", f"features: no clear difference in any of {len(columns)} columns"
    said = []
    for one in clear[:_NAMED]:
        said.append(f"{one.column} of {names[one.client]} is {one.words()}")
    if len(clear) > _NAMED:
        more = f"; {len(clear) - _NAMED} more columns differ"
    else:
        more = ""
    return strength, f"features: {strength} shift: {'; '.join(said)}{more}"


def _classifier_verdict(clients: Sequence[ClientFindings]) -> tuple[Strength, str]:
    tested = [one for one in clients if one.auc is not None]
    told = sorted((one for one in tested if one.surely >= AUCS[0]), key=lambda one: -one.surely)
    if not tested:
        return "no", ""
    if not told:
        return (
            "no",
            f"a classifier cannot tell the rows of any of {len(tested)} clients from the others'",
        )
    strengths = [STRENGTHS[sum(one.surely >= limit for limit in AUCS)] for one in told]
    first = [one for one, strength in zip(told, strengths, strict=True) if strength == strengths[0]]
    said = ", ".join(f"{one.name} (AUC {_interval(one.auc)})" for one in first[:_NAMED] if one.auc)
    if len(first) > _NAMED:
        more = f" and {len(first) - _NAMED} more"
    else:
        more = ""
    if len(told) > len(first):
        weaker = f"; of {len(told) - len(first)} more less well"
    else:
        weaker = ""
    if len(tested) > len(told):
        rest = f"; of {len(tested) - len(told)} not at all"
    else:
        rest = ""
    return strengths[0], f"a classifier tells rows from the others' of {said}{more}{weaker}{rest}"


def _interval(effect: Effect) -> str:
    return f"{effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}]"


# -- tables ------------------------------------------------------------------------------------------------------------


def _client_table(found: Findings) -> str:
    classes = list(found.clients[0].label_shares)
    if len(classes) <= _CLASSES:
        shown = classes
    else:
        shown = []
    lacking = any(one.missing for one in found.clients)
    heads = [
        "client",
        "rows",
        *(["missing"] if lacking else []),
        *(_short(name, 12) for name in shown),
    ]
    lines = [[*heads, "labels against others", "two-sample AUC", "most different column"]]
    for one in found.clients:
        if one.columns:
            first = one.columns[0]
        else:
            first = None
        cells = [
            one.name,
            f"{one.rows:,}",
            *([f"{sum(one.missing.values()):,}"] if lacking else []),
        ]
        cells += [f"{one.label_shares[name]:.1%}" for name in shown]
        cells.append("" if one.label is None else _effect(one.label))
        cells.append("" if one.auc is None else _interval(one.auc))
        cells.append("" if first is None else f"{first.column}, {_effect(first)}")
        lines.append(cells)
    return _aligned(lines)


def _column_table(found: Findings) -> str:
    lines = [["column", "most different at", "effect [95 %]", "how"]]
    for one in found.columns[:_SHOWN]:
        lines.append([_short(one.column, 30), found.names[one.client], _effect(one), one.words()])
    more = len(found.columns) - _SHOWN
    return _aligned(lines) + (f"\n… and {more} more columns (--json)" if more > 0 else "")


def _effect(one: Contrast) -> str:
    """Return an effect and its interval."""
    return f"{'g' if one.kind == 'number' else 'V'} = {_interval(Effect(one.effect, one.low, one.high))}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"
