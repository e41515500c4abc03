"""What the page of a run needs from its folder: small tables, whatever the number of clients and rounds."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.engine.sharing import WHOLE
from fedskew.heterogeneity.effects import cramers_v
from fedskew.heterogeneity.fairness import gini
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import Row, RunFolder
from fedskew.runs.run import Run
from fedskew.runs.summary_reading import SHARED_MODEL
from fedskew.study.client_columns import ClientColumns
from fedskew.study.client_scores import ClientScores
from fedskew.study.run_curves import Columns, RunCurves

_SHARED = re.compile(  # numbers of a shared model
    r"(\w+_to_90_percent_of_(last|best)_)?(calibrated_)?(train|validation|test)_(?!majority_rate)\w+"
    r"|client_\w+_of_global_model_mean|backdoor_success(_last)?"
)


@dataclass(frozen=True)
class RunData:
    """A finished run as the page shows it."""

    record: Run
    disk: RunFolder = field(init=False)
    # The metric that decides beside other runs, if it is not the run's own
    decides: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        assert self.record.folder is not None  # only runs in folders have pages
        object.__setattr__(self, "disk", RunFolder(self.record.folder))

    @cached_property
    def summary(self) -> Row:
        """Return the summary of the run; older versions scored a shared model also where clients share no whole one."""
        found = self.record.summary
        if self.record.shared_model == WHOLE:
            return found
        kept = {}
        for name, value in found.items():
            if not _SHARED.fullmatch(name):
                kept[name] = value
        return {**kept, SHARED_MODEL: self.record.shared_model}

    @cached_property
    def environment(self) -> Row:
        """Return versions, device and imports of the run."""
        return self.disk.read_json(on_disk.ENVIRONMENT)

    @property
    def own_metric(self) -> str:
        """Return the metric that decided when it was trained."""
        return str(self.summary.get("metric", "accuracy"))

    @property
    def metric(self) -> str:
        """Return the metric that decides."""
        return self.decides or self.own_metric

    def judged_by(self, metric: str) -> "RunData":
        """Return the same run, with this metric as the one that decides."""
        if metric == self.own_metric:
            return self
        return replace(self, decides=metric)

    @cached_property
    def rounds(self) -> Columns:
        """Return the table of rounds by columns, with the numbers of each round about its clients."""
        rows = self.disk.table(on_disk.ROUNDS)
        names = []
        if rows:
            names = list(rows[0])
        if self.record.shared_model != WHOLE:
            names = [name for name in names if not _SHARED.fullmatch(name)]
        columns = {}
        for name in names:
            columns[name] = [row[name] for row in rows]
        return {**columns, **self._by_client.over_rounds(columns.get("round", []))}

    def has_curve(self, column: str) -> bool:
        """Return whether there is a number of this column in any round."""
        return any(value is not None for value in self.rounds.get(column, []))

    @cached_property
    def drawn(self) -> RunCurves:
        """Return the curves that are drawn."""
        best = self.summary.get(f"test_{self.metric}_best_round")
        return RunCurves(self.rounds, self.metric, best, frozenset(self._by_client.titles))

    @property
    def curves(self) -> Columns:
        """Return the columns of these curves."""
        return self.drawn.columns

    @cached_property
    def final_rows(self) -> list[Row]:
        """Return one row per client about its model at the end."""
        return self.disk.table(on_disk.FINAL_CLIENTS)

    @property
    def scored(self) -> ClientScores:
        """Return the scores of clients at the end."""
        return ClientScores(self.final_rows, self.metric, self.sign)

    @cached_property
    def _by_client(self) -> ClientColumns:
        return ClientColumns(self.disk)

    @cached_property
    def sizes(self) -> Ints:
        """Return the rows of each client."""
        return self.record.partition.sizes

    @cached_property
    def participation(self) -> tuple[Ints, Floats]:
        """Return in how many rounds each client trained, and its weights in total; a run on pooled data has one client.

        A summary does not say that data was pooled: it is taken to be so if only client 0 ever trained.
        """
        columns = self._by_client.columns
        client = columns["client"].astype(np.int64)
        population = len(self.sizes)
        is_first_client_alone = self.summary["clients_per_round"] == 1 and not client.any()
        has_equal_weights = not self.summary["gini_of_client_weights"]
        if is_first_client_alone and has_equal_weights and not self.summary["late_updates"]:
            population = 1
        trained = np.bincount(client[columns["steps"] > 0], minlength=population)
        weights = np.bincount(client, np.nan_to_num(columns["weight"]), minlength=population)
        return trained.astype(np.int64), weights.astype(np.float64)

    @cached_property
    def holdings(self) -> "Holdings | None":
        """Return who holds what; None for folders of older versions."""
        path = self.disk.path / on_disk.CLIENT_CLASSES
        if not path.exists():
            return None
        corner, clients, names, counts = on_disk.counts_from_csv(path)
        return Holdings(
            corner.partition("/")[2],
            clients,
            names,
            np.array(counts, np.int64).reshape(len(clients), -1),
        )

    @cached_property
    def sign(self) -> int:
        """Return -1 where low values of the metric that decides are good."""
        return self.sign_of(self.metric)

    def sign_of(self, metric: str) -> int:
        """Return -1 where low values are good, else 1: the task knows; where it cannot be made, the curve tells."""
        with suppress(FedskewError):
            if metric == "loss":
                return -1
            return self.record.task.headline(metric).sign
        best = self.summary.get(f"test_{metric}_best")
        scores = self.rounds.get(f"test_{metric}", [])
        known = [score for score in scores if score is not None]
        if known and best == min(known) and best != max(known):
            return -1
        return 1

    @cached_property
    def confusion(self) -> tuple[list[str], list[list[int]]] | None:
        """Return the names of the classes and the confusion matrix of the global model on the test rows."""
        path = self.disk.path / on_disk.CONFUSION
        if self.record.shared_model != WHOLE or not path.exists():
            return None
        return on_disk.matrix_from_csv(path)

    @property
    def has_batchnorm(self) -> bool:
        """Return whether the model has running statistics."""
        path = self.disk.path / on_disk.MODEL
        try:
            with safe_open(path, "np") as file:
                return any(name.endswith("running_mean") for name in file.keys())  # noqa: SIM118 - it is no mapping
        except (OSError, SafetensorError) as problem:
            raise FedskewError(f"{path} cannot be read: {problem}") from None

    def facts(self) -> dict[str, str]:
        """Return the heterogeneity that follows from the partition and from who holds what."""
        sizes = self.sizes
        found = {
            "rows of a client": f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}",
            "Gini coefficient of the sizes": f"{gini(sizes):.3f}",
        }
        if self.holdings is not None:
            found |= self.holdings.facts()
        return found

    @property
    def data_warnings(self) -> list[str]:
        """Return in what the data of the clients differ."""
        return [str(text) for text in self.summary.get("data_warnings", [])]

    def _missing_rows(self) -> list[str]:
        """Return a sentence if some scores lack the test rows of clients that did not answer."""
        scored = [rows for rows in self.rounds.get("scored_test_rows", []) if rows is not None]
        if not scored or min(scored) == max(scored):
            return []
        fewer = sum(rows < max(scored) for rows in scored)
        return [
            f"The scores of {fewer} of {len(scored)} evaluations are over fewer test rows ({min(scored):,} of "
            f"{max(scored):,} at worst), because clients did not answer. Do not compare them with the others."
        ]

    def warnings(self) -> list[str]:
        """Return what a reader should know before trusting the numbers."""
        summary, config = self.summary, self.record.config
        found = [str(text) for text in summary.get("warnings", [])]
        found += self.data_warnings
        reasons = {
            "excluded": "were NaN or infinite and were left out",
            "dropped": "were lost because the client dropped out",
            "late": "missed the deadline",
        }
        for fate, reason in reasons.items():
            if count := summary[f"{fate}_updates"]:
                found.append(f"{count:,} of {summary['updates']:,} updates {reason}.")
        found += self._missing_rows()
        for part in ("train", "test"):
            losses = [loss for loss in self.rounds.get(f"{part}_loss", []) if loss is not None]
            if _diverges(losses):
                found.append(
                    f"The loss on {part} rows diverges: {losses[-1]:.4g} after the last round, {losses[0]:.4g} after "
                    f"the first, {min(losses):.4g} at best."
                )
        if self.has_batchnorm:
            found.append(
                f"The model has BatchNorm. The setting is norm={config.get('norm')}; methods with a rule of their own "
                "(fedbn, mfedbn, fedtan, stratify-batch) go by that."
            )
        if "threshold" in summary:
            found.append(
                f"The second class is predicted above a probability of {summary['threshold']:.4g}, chosen on the "
                "validation rows; metrics without “thresholded” use 0.5."
            )
        return found


def _diverges(losses: Sequence[float]) -> bool:
    """Return whether the last loss is above the first one, or above twice the best, or NaN.

    Twice a loss below 0 is a better one: such losses are compared with the first alone.

    >>> _diverges([1.0, 0.2, 0.5]), _diverges([-1.0, -1.5, -1.4]), _diverges([-1.0, -1.5, -0.9])
    (True, False, True)
    """
    if not losses:
        return False
    limit = losses[0]
    best = min(losses)
    if best >= 0:
        limit = min(limit, 2 * best)
    # ``not <=`` instead of ``>``, so that a last loss of NaN counts as diverged
    return not losses[-1] <= limit


@dataclass(frozen=True)
class Holdings:
    """How many training rows of each class some clients hold; ``title`` says what the columns are."""

    title: str
    clients: list[str]
    names: list[str]
    counts: Ints

    def facts(self) -> dict[str, str]:
        """Return how unlike the labels of clients are."""
        held = (self.counts > 0).sum(1)
        found = {
            f"{self.title}: how many a client holds": f"{held.mean():.3g} of {len(self.names)} on average"
        }
        if self.title != "label":
            found[f"Cramér's V of client and {self.title}"] = (
                f"{cramers_v(self.counts):.3f} (0: same shares, 1: apart)"
            )
        return found


def spelled(choice: Any) -> str:
    """Return a choice with all its options."""
    if not isinstance(choice, Mapping):
        return str(choice)
    options = ", ".join(f"{name}={value}" for name, value in choice.items() if name != "name")
    if options:
        return f"{choice.get('name')}: {options}"
    return str(choice.get("name"))


def name_of(data: Any) -> str:
    """Return the name of a data set in a title: of files their path alone.

    >>> name_of("silos:paths=hospital_*.csv,label=outcome"), name_of("digits"), name_of("csv:path=my.csv,label=y")
    ('hospital_*.csv', 'digits', 'my.csv')
    """
    found = re.search(r":(?:.*,)?paths?=([^,]+)", str(data))
    if found:
        return found[1]
    return str(data)
