"""The command ``fedskew advise``: measure the clients, try methods within a time budget, and recommend one."""

import inspect
import shlex
import sys
from dataclasses import fields
from typing import Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.run_command import options_as_parameters
from fedskew.cli.split import Data
from fedskew.core.config import Experiment, Settings

_PANELS = {
    "Data and clients": ("skew", "clients", "bins", "split_seed"),
    "Training": (
        "model", "task", "metric", "rounds", "per_round", "epochs", "batch_size", "lr", "optimizer", "momentum",
        "weight_decay", "clip_norm", "augment", "weights", "seed",
    ),
    "Execution": ("device", "threads", "memory"),
}  # fmt: skip
_OWN: dict[str, tuple[Any, Any]] = {
    "data": (Data, None),
    "minutes": (
        Annotated[float, typer.Option("--minutes", metavar="X", help="time budget of the trials")],
        2.0,
    ),
    "seeds": (
        Annotated[
            int, typer.Option("--seeds", metavar="N", help="trials of every method, at least 3")
        ],
        8,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="print the result as JSON")], False),
}


def add_to(app: typer.Typer) -> None:
    """Add ``advise`` to the command line."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = []
    for name, (note, usual) in _OWN.items():
        own.append(inspect.Parameter(name, kind, default=usual, annotation=note))
    parameters = [*own, *options_as_parameters(_PANELS)]
    advise.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    advise.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(cls=Once)(advise)


def advise(
    data: list[str] | None, minutes: float, seeds: int, as_json: bool, **given: str | None
) -> None:
    """Recommend a method: measure how clients differ, try methods within a time budget, compare them with FedAvg.

    Trials are paired over seeds and use training rows only. There are two answers: for one model that serves the rows
    of all clients, and for a model of each client that serves rows like its own. Where nothing is better beyond noise,
    it says so. --rounds is the most that a trial has (100); without --lr, one of three is chosen for FedAvg.

    \b
    fedskew advise --data "hospital_*.csv:label=outcome" --metric balanced_accuracy
    fedskew advise --data digits --skew classes:k=1 --clients 10 --minutes 1
    """
    from fedskew.advice.advise import advise as advised
    from fedskew.data.catalogue import together
    from fedskew.runs.federate import federate
    from fedskew.runs.folder import to_json

    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if data:
        values["data"] = together(data)
    experiment = Experiment(**{"rounds": 100, **values})
    settings = {
        name: getattr(experiment, name)
        for name in values
        if name in {field.name for field in fields(Settings)}
    }
    fed = federate(experiment)
    say = (
        (lambda line: None) if as_json else (lambda line: print(line, file=sys.stderr, flush=True))
    )
    found = advised(fed, experiment.model, minutes=minutes, seeds=seeds, say=say, **settings)
    if as_json:
        print(to_json(found.as_dict()))
        return
    print(found)
    kept = {
        name: value
        for name, value in given.items()
        if value is not None and name not in ("lr", "rounds", "seed")
    }
    words = [*(word for text in data or () for word in ("--data", text))]
    words += [
        word for name, value in kept.items() for word in ("--" + name.replace("_", "-"), value)
    ]
    for method in dict.fromkeys(recommended.method for recommended in found.recommendations):
        print(
            shlex.join(["fedskew", "run", *words, "--algorithm", method, "--lr", f"{found.lr:g}"])
        )
