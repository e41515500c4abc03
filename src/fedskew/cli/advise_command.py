"""The command ``fedskew advise``: measure the clients, try methods within a time budget, and recommend one."""

import shlex
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.partition_options import Data
from fedskew.cli.run_command import with_settings
from fedskew.core.config import Experiment, Settings

if TYPE_CHECKING:
    from fedskew.advice.advise import Advice

_PANELS = {
    "Data and clients": ("skew", "clients", "bins", "split_seed"),
    "Training": (
        "model", "task", "metric", "per_round", "epochs", "batch_size", "optimizer", "momentum",
        "weight_decay", "clip_norm", "augment", "weights", "seed",
    ),
    "Execution": ("device", "threads", "memory"),
}  # fmt: skip
_OWN: dict[str, tuple[Any, Any]] = {
    "data": (Data, None),
    "budget": (
        Annotated[
            float,
            typer.Option(
                "--budget", "--minutes", metavar="MINUTES", help="time of the trials in minutes"
            ),
        ],
        2.0,
    ),
    "seeds": (
        Annotated[
            int, typer.Option("--seeds", metavar="N", help="trials of every method, at least 3")
        ],
        8,
    ),
    "equal": (
        Annotated[
            float | None,
            typer.Option(
                "--equal",
                metavar="X",
                help="differences up to this are of no interest \\[0.005, or two rows]",
            ),
        ],
        None,
    ),
    "rounds": (
        Annotated[
            str | None,
            typer.Option("--rounds", metavar="N", help="most rounds of a trial \\[100]"),
        ],
        None,
    ),
    "lr": (
        Annotated[
            str | None,
            typer.Option(
                "--lr",
                metavar="X",
                help="local learning rate \\[one of 0.03, 0.1 and 0.3, chosen for every method]",
            ),
        ],
        None,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="print the result as JSON")], False),
}


def add_to(app: typer.Typer) -> None:
    """Add ``advise`` to the command line."""
    with_settings(advise, _OWN, _PANELS)
    app.command(cls=Once)(advise)


def advise(
    data: list[str] | None,
    budget: float,
    seeds: int,
    equal: float | None,
    as_json: bool,
    **given: str | None,
) -> None:
    """Recommend a method: measure how clients differ, try methods within a time budget, judge them against FedAvg.

    Trials are paired over seeds and use training rows only. There are two answers: for one model that serves the rows
    of all clients, and for a model of each client that serves rows like its own. A method is recommended only if it is
    better than FedAvg by more than the zone (--equal). A trial has at most --rounds (100). Without --lr, one
    of three is chosen for every method.

    \b
    fedskew advise --data "hospital_*.csv:label=outcome" --metric balanced_accuracy
    fedskew advise --data digits --skew classes:k=1 --clients 10 --budget 1
    """
    from fedskew.advice.advise import advise as recommend
    from fedskew.data.catalogue import together
    from fedskew.runs.folder import to_json
    from fedskew.skew.federate import federate

    chosen = {name: value for name, value in given.items() if value is not None}
    values: dict[str, Any] = {"rounds": 100, **chosen}
    if data:
        values["data"] = together(data)
    experiment = Experiment(**values)
    say = None
    if not as_json:
        say = _say
    settings = _settings(experiment, chosen)
    fed = federate(experiment)
    advice = recommend(
        fed, experiment.model, budget=budget, seeds=seeds, equal=equal, say=say, **settings
    )
    if as_json:
        print(to_json(advice.as_dict()))
        return
    print(advice)
    for command in _commands(advice, data or [], chosen):
        print(command)


def _settings(experiment: Experiment, chosen: Container[str]) -> dict[str, Any]:
    """Return the settings of the training that were given; the others are chosen by the advice itself."""
    settings = {}
    for field in fields(Settings):
        if field.name in chosen:
            settings[field.name] = getattr(experiment, field.name)
    return settings


def _say(line: str) -> None:
    """Print what is tried next."""
    print(line, file=sys.stderr, flush=True)


def _commands(advice: "Advice", data: Sequence[str], chosen: Mapping[str, str]) -> list[str]:
    """Return the commands that train the recommended methods on the same clients."""
    words = []
    for text in data:
        words += ["--data", text]
    for name, value in chosen.items():
        if name not in ("lr", "rounds", "seed", "metrics"):
            words += ["--" + name.replace("_", "-"), value]
    methods = dict.fromkeys(recommended.method for recommended in advice.recommendations)
    commands = []
    for method in methods:
        rate = f"{advice.lr[method]:g}"
        rounds = str(advice.rounds)
        train = ["fedskew", "run", *words, "--algorithm", method, "--rounds", rounds, "--lr", rate]
        commands.append(shlex.join(train))
    return commands
