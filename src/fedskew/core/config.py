"""All settings in one place: types, bounds, defaults and help for Python, TOML files and the command line."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, PartialShare, Positive, validate

# What may stand before the value of a line of TOML: a key of several parts, or the head of a table
_KEY = re.compile(r"""[\s\[]*[\w\-."' ]+""")
_DEEPEST = 100  # parts of a key
_TOML_BITS = 63
# Settings that are a name with options
CHOICES = ("data", "skew", "model", "algorithm", "task", "schedule", "fleet")
SHARDS = 8  # into which the clients of a round are divided for workers
# Settings of the version before that are options of methods now, with what they were by default
FORMER: Mapping[str, Any] = {"secure": False, "round_totals": 1}
AUTO = "auto"  # the task that the targets of the data ask for, the skew that its clients do


@dataclass(frozen=True)
class Settings:
    """The settings of a training.

    Args:
        rounds: rounds of training
        per_round: clients chosen each round; by default all
        sampling: how clients are drawn, without replacement: uniform, or with probabilities by their size
        epochs: local epochs of a chosen client
        batch_size: rows per local step
        lr: local learning rate
        optimizer: local optimiser, new in every round, with PyTorch's defaults; adadelta is meant for lr=1
        momentum: momentum of local SGD
        weight_decay: weight decay of the local optimiser (decoupled in AdamW)
        nesterov: Nesterov momentum in local SGD
        clip_norm: largest L2 norm of a client's gradient at a local step, over all parameters; larger ones are scaled
        augment: augmentation of images in training batches: none, a random crop after padding with 4 zeros on every
            side, a horizontal flip with probability 0.5, or both
        task: what is learnt (fedskew list tasks); auto for classification of classes, regression of numbers,
            multilabel of several labels per row, sequence-regression of several numbers and next-token of tokens
        metrics: metrics of the task that every evaluation reports beside the usual ones (macro_f1+auc); after the last
            round all of them are reported anyway
        metric: metric of the task that decides which round is best and when stop_after stops, and that tables and
            figures show first; by default the task's first one
        thresholds: for two classes, predict the second above a probability that is chosen on the validation rows after
            the last round, so that this metric is best there; both predictions are then scored
        schedule: local learning rate over rounds (fedskew list schedules)
        weights: aggregation weight of a client in every method: its rows (size), 1 (uniform), or as in the paper of
            each method (paper)
        norm: BatchNorm: aggregated by the server (aggregate), local to each client (local), aggregated except for the
            running statistics, which are local (silo), or not trained at all (frozen: statistics, scale and shift stay
            as they are); a layer whose parameters are all frozen is always that
        fleet: simulated machines and connections of the clients (fedskew list fleets)
        engine: all clients of a round at once (stacked), one by one, the plain reference (loop), or as nodes of
            Flower's simulation, to try out a deployment (flower)
        device: cpu, cuda, cuda:1, ... or auto
        dtype: precision of everything
        workers: processes on this machine that train the clients of a round, with one thread each; any number of them
            gives the same result, which differs in the last bits from a run without workers, where clients are added
            up in another order
        threads: CPU threads; by default chosen by the engine
        precision: precision of products in the layers of a model during training on a GPU; tf32 and bf16 are faster and
            less exact, while weights, sums and evaluation keep dtype
        memory: gigabytes that a stack of clients may take; by default 2, and on a GPU half of what is free (fix it for
            the same bits on GPUs of different sizes)
        seed: seed of the initial weights, the selection of clients and the batches
        eval_every: rounds between two evaluations; the last round always has one
        eval_rows: training rows for the global model's training loss; a fixed random sample, or none for all
        test_trained: also evaluate clients' models right after local training, before the aggregation
        stop_after: rounds without improvement on the validation rows, those of clients (client_validation) if there are
            any, after which the run stops; by default never
        checkpoint_every: rounds between two checkpoints; by default such that they take about 1 % of the time
        tensorboard: also write TensorBoard events into the run folder
        mlflow: also write an MLflow database into the run folder
        wandb: also write an offline run of Weights & Biases into the run folder
        secure: until the next version, for the option of a Stratify method: algorithm=stratify-batch:secure=true
        round_totals: likewise, algorithm=stratify-batch:secure=true,round_totals=500
    """

    rounds: Annotated[int, AtLeastOne] = 50
    per_round: Annotated[int | None, AtLeastOne] = None
    sampling: Literal["uniform", "size"] = "uniform"
    epochs: Annotated[int, Bounds(1, 10_000)] = 1
    batch_size: Annotated[int, AtLeastOne] = 32
    lr: Annotated[float, Positive] = 0.1
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"] = "sgd"
    momentum: Annotated[float, PartialShare] = 0.0
    weight_decay: Annotated[float, NonNegative] = 0.0
    nesterov: bool = False
    clip_norm: Annotated[float | None, Positive] = None
    augment: Literal["none", "crop", "flip", "crop+flip"] = "none"
    task: str | Mapping[str, Any] = AUTO
    metrics: tuple[str, ...] = ()
    metric: str | None = None
    thresholds: Literal["accuracy", "balanced_accuracy", "macro_f1"] | None = None
    schedule: str | Mapping[str, Any] = "constant"
    weights: Literal["size", "uniform", "paper"] = "size"
    norm: Literal["aggregate", "local", "silo", "frozen"] = "aggregate"
    fleet: str | Mapping[str, Any] = "uniform"
    engine: Literal["stacked", "loop", "flower"] = "stacked"
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    workers: Annotated[int | None, Bounds(1, SHARDS)] = None
    threads: Annotated[int | None, Bounds(1, 1024)] = None
    memory: Annotated[float | None, Bounds(0, 1e6, above=True)] = None
    seed: Annotated[int, NonNegative] = 0
    eval_every: Annotated[int, AtLeastOne] = 1
    eval_rows: Annotated[int | None, AtLeastOne] = 2_000
    test_trained: bool = False
    stop_after: Annotated[int | None, AtLeastOne] = None
    checkpoint_every: Annotated[int | None, AtLeastOne] = None
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    secure: bool | None = None
    round_totals: Annotated[int | None, AtLeastOne] = None

    def __post_init__(self) -> None:
        checked(self, "settings")
        if self.precision != "float32" and self.dtype != "float32":
            raise FedskewError(
                f"precision={self.precision} clashes with dtype={self.dtype}: leave one of them out"
            )
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise FedskewError("nesterov=true needs optimizer=sgd and a momentum above 0")
        if self.optimizer != "sgd" and self.momentum:
            raise FedskewError(
                f"momentum={self.momentum:g} clashes with optimizer={self.optimizer}: it is for sgd, leave momentum "
                "at 0"
            )


@dataclass(frozen=True)
class Experiment(Settings):
    """The settings of a run: data, partition, model, algorithm and training.

    Args:
        data: data set (fedskew list data), or a CSV, Parquet or NPZ file or a folder of images; a pattern or a folder
            of such files makes one client per file
        validation: share of the training rows set aside for choosing hyper-parameters
        skew: how the training rows are partitioned (fedskew list skews); auto for dirichlet:alpha=0.2, or for natural
            where the data comes with its clients (several files)
        clients: number of clients; by default 10, or one per group with skew=natural
        split_seed: seed of the partition and of the held-out rows; by default the same as seed
        client_test: share of each client's rows that is held out to test its model
        client_validation: share of each client's rows that is set aside to choose numbers by, with the model that the
            client uses; drawn after client_test, from what remains
        unseen: share of the clients that take no part in training; after it, their held-out rows are scored with the
            shared model, with that model fine-tuned, and with what the method gives newcomers
        bins: bins that stand in for classes in skews and measures, where targets are not classes: quantiles of
            numbers, or the most frequent combinations of labels
        model: network (fedskew list models)
        algorithm: method (fedskew list algorithms)
    """

    data: str | Mapping[str, Any] = "digits"
    validation: Annotated[float, PartialShare] = 0.0
    skew: str | Mapping[str, Any] = AUTO
    clients: Annotated[int | None, AtLeastOne] = None
    split_seed: Annotated[int | None, NonNegative] = None
    client_test: Annotated[float, PartialShare] = 0.0
    client_validation: Annotated[float, PartialShare] = 0.0
    unseen: Annotated[float, PartialShare] = 0.0
    bins: Annotated[int | None, Bounds(2, 1000)] = None
    model: str | Mapping[str, Any] = "mlp"
    algorithm: str | Mapping[str, Any] = "fedavg"

    def settings(self) -> Settings:
        """Return the settings of the training alone."""
        values = {field.name: getattr(self, field.name) for field in fields(Settings)}
        return Settings(**values)


def checked(instance: Any, where: str) -> None:
    """Validate a frozen dataclass in its ``__post_init__``: every field converted to its type and inside its bounds."""
    given = {}
    for field in fields(instance):
        given[field.name] = getattr(instance, field.name)
    for name, value in validate(type(instance), given, where).items():
        object.__setattr__(instance, name, value)


def workers_of_torchrun() -> int | None:
    """Return how many processes ``torchrun`` has started, this one included; None where it has started none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return None


def read_file(path: Path, more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings in a TOML file; dashes are underscores, choices may be text or a table with ``name``.

    ``more`` are names that it may have beside those of an experiment, with any value.
    """
    if path.is_dir():
        raise FedskewError(
            f"{path} is a folder, not an experiment file; to resume a run: fedskew resume {path}"
        )
    if not path.exists():
        raise FedskewError(f"there is no experiment file {path}")
    known = {field.name for field in fields(Experiment)}
    known.update(more)
    settings: dict[str, Any] = {}
    for written, value in _read_toml(path).items():
        key = written.replace("-", "_")
        if key in settings:
            raise FedskewError(f"{path}: {key} is given twice")
        if key not in known:
            raise unknown(f"setting in {path}", key, known)
        if isinstance(value, dict) and key not in (*CHOICES, *more):
            raise FedskewError(f"{path}: {key} takes a single value, not a table")
        _refuse_long_numbers(f"{path}: {key}", value)
        settings[key] = value
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    with reading(path):
        try:
            text = path.read_text(encoding="utf-8")
            _refuse_deep_keys(path, text)
            return tomllib.loads(text)
        except FedskewError:
            raise
        # Of the syntax, of the encoding, or of a number with thousands of digits
        except ValueError as problem:
            raise FedskewError(f"{path} is not a TOML file: {problem}") from None


def _refuse_deep_keys(path: Path, text: str) -> None:
    """Raise an error for a key of very many parts, with which the reader would be busy for minutes."""
    for number, line in enumerate(text.splitlines(), 1):
        key = _KEY.match(line)
        if key and key[0].count(".") > _DEEPEST:
            raise FedskewError(
                f"{path}: line {number} has a key of {key[0].count('.') + 1:,} parts, and no setting has more than "
                f"{_DEEPEST}: correct it"
            )


def _refuse_long_numbers(where: str, value: Any) -> None:
    """Raise an error for whole numbers beyond the 64 bits of TOML, some of which Python cannot even write."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_long_numbers(f"{where}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_long_numbers(where, inner)
    elif isinstance(value, int) and not -(2**_TOML_BITS) <= value < 2**_TOML_BITS:
        raise FedskewError(
            f"{where} is a whole number of {value.bit_length()} bits, and TOML has {_TOML_BITS} and a sign"
        )


def to_toml(values: Mapping[str, Any]) -> str:
    """Return settings as TOML: plain values first, then a table for each choice; None is written as "none"."""
    plain = []
    tables = []
    for key, value in values.items():
        if not isinstance(value, Mapping):
            plain.append(f"{key} = {_toml(value)}")
            continue
        tables += ["", f"[{key}]"]
        for name, entry in value.items():
            tables.append(f"{name} = {_toml(entry)}")
    return "\n".join([*plain, *tables]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: '"none"'}[value]
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value))  # NumPy's numbers print with their type
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    # The escapes of JSON are those of TOML, except this one.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
