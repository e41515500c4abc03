"""Methods with additions: read, spelled, rejected, created once, and run, resumed and listed like any other."""

import copy
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedskew as fs
from fedskew.aggregation.mean import Aggregator
from fedskew.aggregation.rules import Rule
from fedskew.algorithms.contract import Algorithm, algorithms, choice_of, overridden, resolve
from fedskew.cli import app as cli
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, Composition, NonNegative
from fedskew.core.trees import Tree
from fedskew.runs.folder import CLIENTS, CONFIG, FINAL_CLIENTS, MODEL, ROUNDS
from fedskew.runs.recorded_config import FROM_PYTHON
from fedskew.study.member import read_members
from fedskew.study.study_plan import members_of


@dataclass(frozen=True)
class Changed(Rule):
    """Changes what the next aggregator returns."""

    change: Callable[[Tensor], Tensor]

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        mean, shares = self.then.combine(payloads, weights)
        return {
            **mean,
            "delta": {name: self.change(value) for name, value in mean["delta"].items()},
        }, shares


@dataclass(frozen=True)
class Doubled(Algorithm):
    """Twice the change."""

    addition: ClassVar[bool] = True

    @property
    def aggregator(self) -> Aggregator:
        return Changed(super().aggregator, lambda value: 2 * value)


@dataclass(frozen=True)
class Shifted(Algorithm):
    """Something more.

    Args:
        shift: how much
    """

    addition: ClassVar[bool] = True

    shift: Annotated[float, NonNegative] = 1.0

    @property
    def aggregator(self) -> Aggregator:
        return Changed(super().aggregator, lambda value: value + self.shift)


@dataclass(frozen=True)
class OtherMu(Algorithm):
    """Has an option that FedProx has too.

    Args:
        mu: something
    """

    addition: ClassVar[bool] = True

    mu: Annotated[float, NonNegative] = 1.0


@dataclass(frozen=True)
class MedianOfMine(fs.Median):
    """Has an aggregator already."""

    addition: ClassVar[bool] = False


def combined(algorithm: Algorithm) -> float:
    payloads = {"delta": {"w": torch.tensor([1.0, 5.0])}}
    return algorithm.aggregator.combine(payloads, torch.tensor([0.75, 0.25]))[0]["delta"][
        "w"
    ].item()


def test_all_spellings_agree():
    text = "fedprox:weights=uniform,mu=0.1 + krum:attackers=2,keep=1 + clip:norm=3.0"
    wanted = fs.FedProx("uniform", 0.1) + fs.Krum(attackers=2) + fs.Clip(norm=3)
    again = resolve("fedprox:mu=0.1,weights=uniform   +  krum:attackers=2 + clip:norm=3")
    assert str(wanted) == text
    assert wanted.label() == "fedprox + krum + clip"
    assert wanted.options() == {
        "weights": "uniform",
        "mu": 0.1,
        "attackers": 2,
        "keep": 1,
        "norm": 3.0,
    }
    for same in (
        again,
        resolve(text),
        resolve(algorithms.choose(text)),
        fs.FedProx("uniform", 0.1) + (fs.Krum(2) + fs.Clip(3)),
    ):
        assert same == wanted
        assert hash(same) == hash(wanted)
        assert type(same) is type(wanted)
    assert isinstance(wanted, fs.FedProx)
    assert isinstance(wanted, fs.Krum)
    assert wanted != resolve(text.replace("0.1", "0.2"))
    assert type(resolve("fedprox + clip + krum")) is not type(wanted)


def test_a_made_class_is_a_frozen_dataclass_that_validates():
    method = resolve("fedprox + krum")
    assert (
        str(replace(method, mu=2, attackers=3))
        == "fedprox:weights=none,mu=2.0 + krum:attackers=3,keep=1"
    )
    assert type(replace(method, mu=2)) is type(method)
    with pytest.raises(FrozenInstanceError):
        method.mu = 1.0  # type: ignore[attr-defined]
    with pytest.raises(FedskewError, match="algorithm krum: attackers=-1 is out of range"):
        replace(method, attackers=-1)
    with pytest.raises(FedskewError, match="algorithm fedprox: mu=-1 is out of range"):
        replace(method, mu=-1)
    assert overridden(method, "linear_correction")
    assert not overridden(method, "objective")
    assert method.aggregator.needs_all
    assert not resolve("fedprox").aggregator.needs_all


def test_the_first_addition_is_the_outermost():
    assert combined(Algorithm()) == 2
    assert combined(Algorithm() + Doubled() + Shifted(shift=1)) == 2 * (2 + 1)
    assert combined(Algorithm() + Shifted(shift=1) + Doubled()) == 2 * 2 + 1
    assert combined(Doubled() + Shifted(shift=1)) == combined(
        fs.FedAvg() + Doubled() + Shifted(shift=1)
    )


def test_an_addition_alone_is_fedavg_with_it():
    assert type(resolve("median")) is fs.Median
    assert resolve("median").addition
    assert not resolve("fedprox + median").addition
    assert resolve("clip + median").addition
    assert str(resolve("clip:norm=2 + median")) == "clip:norm=2.0 + median"


def test_records_have_every_option_and_readers_only_those_that_matter():
    choice = algorithms.choose("fedprox + krum:attackers=2 + median")
    assert choice == Composition(
        "fedprox", {}, (Choice("krum", {"attackers": 2}), Choice("median", {}))
    )
    full = algorithms.full(choice)
    assert str(full) == "fedprox:weights=none,mu=0.01 + krum:attackers=2,keep=1 + median"
    assert algorithms.choose(str(full)) == full == choice_of(resolve(choice))
    assert str(algorithms.brief(full)) == "fedprox + krum:attackers=2 + median"
    assert algorithms.choose("fedprox:mu=1") == Choice("fedprox", {"mu": 1.0})
    assert algorithms.name_of(type(resolve(choice))) == "fedprox + krum + median"
    assert algorithms.name_of(type(fs.FedProx() + Doubled())) is None
    assert str(fs.FedProx() + Shifted(2)) == "fedprox:weights=none,mu=0.01 + Shifted:shift=2.0"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "fedprox + fedavg",
            "algorithm fedprox . fedavg: fedavg is a method of its own: what may follow a . are additions",
        ),
        ("median + fedprox", "fedprox is a method of its own"),
        ("fedprox + median + median", "median is in it twice: keep one"),
        ("median + median", "median is in it twice"),
        ("fedprox + medan", "unknown algorithm 'medan': did you mean 'median'"),
        ("fedprox:mu=-1 + median", "algorithm fedprox: mu=-1 is out of range"),
        ("fedprox + krum:attackers=many", "algorithm krum: attackers=many is not a whole number"),
        ("fedprox + krum:mu=1", "unknown option of algorithm krum 'mu'"),
        ("fedprox + median:mu=1", "algorithm median takes no options, got 'mu'"),
        (" + median", "empty algorithm"),
    ],
)
def test_bad_compositions_are_refused(spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        algorithms.choose(spec)
    with pytest.raises(FedskewError, match=says):
        resolve(spec)


def test_what_cannot_be_added_in_python():
    with pytest.raises(
        FedskewError,
        match=r"fedprox . OtherMu: fedprox and OtherMu both have an option mu: leave one of them out",
    ):
        fs.FedProx() + OtherMu()
    with pytest.raises(FedskewError, match="fedavg is a method of its own"):
        fs.Median() + fs.FedAvg()
    with pytest.raises(FedskewError, match="median is in it twice"):
        MedianOfMine() + fs.Median()
    with pytest.raises(TypeError, match="unsupported operand"):
        fs.FedProx() + "median"  # type: ignore[operator]


def test_a_composition_conforms():
    report = fs.check("fedprox:mu=0.5 + clip:norm=0.1 + trimmed-mean:trim=0.3")
    assert {finding.outcome for finding in report.findings} == {"passed"}
    assert "+ trimmed-mean:trim=0.3 reads back" in report["options"].detail
    assert fs.check(fs.FedAvgM() + Shifted(shift=0.01)).passed


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command line in an empty folder, with words as a shell would pass them, and return its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(command: str, *algorithms: str) -> Any:
        words = [word for algorithm in algorithms for word in ("--algorithm", algorithm)]
        monkeypatch.setattr(sys, "argv", ["fedskew", *command.split(), *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return run


SMALL = "run --rounds 3 --model logreg --clients 6 --device cpu"


class StopError(Exception):
    """Stops a run at once, like kill -9."""


def test_a_run_is_recorded_and_resumed(call: Callable[..., Any]):
    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise StopError

    fed = fs.split(fs.load("digits"), "iid", clients=6)
    settings = {"rounds": 4, "device": "cpu", "per_round": 5}
    whole = fs.train(fed, "tabular:hidden=8", "fedprox:mu=0.1 + median", **settings)
    assert whole.folder == Path("runs/fedprox+median-digits-iid-s0")
    assert whole.summary["algorithm"] == "fedprox:mu=0.1 + median"
    assert (
        'algorithm = "fedprox:weights=none,mu=0.1 + median"\n'
        in (whole.folder / CONFIG).read_text()
    )
    with pytest.raises(StopError):
        fs.train(
            fed,
            "tabular:hidden=8",
            fs.FedProx(mu=0.1) + fs.Median(),
            folder="stopped",
            callbacks=stop,
            **settings,
        )
    assert fs.resume("stopped").summary["algorithm"] == whole.summary["algorithm"]
    for file in (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL):
        assert (whole.folder / file).read_bytes() == Path("stopped", file).read_bytes()
    assert call(f"run {whole.folder / CONFIG} --folder again") == 0
    assert (whole.folder / ROUNDS).read_bytes() == Path("again", ROUNDS).read_bytes()


def test_an_unregistered_part_is_a_python_object(call: Callable[..., Any]):
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    run = fs.train(fed, "logreg", fs.FedProx() + Doubled(), rounds=1, device="cpu", folder="mine")
    both = f"fedskew.algorithms.fedprox.FedProx + {__name__}.Doubled"
    assert run.summary["algorithm"].startswith(f"{both}:weights=none,mu=0.01")
    assert (
        f'[algorithm]\nname = "{FROM_PYTHON}"\nclass = "{both}"\n'
        in Path("mine", CONFIG).read_text()
    )


def test_the_command_line(call: Callable[..., Any], capsys: pytest.CaptureFixture[str]):
    assert call(SMALL, "fedavg + krum:attackers=1") == 0
    assert Path("runs/fedavg+krum-digits-dirichlet-s0").is_dir()
    assert "fedavg + krum:attackers=1" in capsys.readouterr().out
    assert (
        call(SMALL.replace("run", "compare") + " --out several", "fedavg + median", "fedavg") == 0
    )
    assert {entry.name for entry in Path("several").iterdir() if entry.is_dir()} == {
        "fedavg-+-median-s0",
        "fedavg-s0",
    }
    assert call(SMALL, "fedavg + krum:attackers=x") == 2
    assert "fedskew: algorithm krum: attackers=x is not a whole number" in capsys.readouterr().err
    assert call(SMALL, "krum:attackers=2") == 2
    assert "krum with attackers=2 needs 7 updates per round, got 6" in capsys.readouterr().err


def test_a_file_may_name_a_composition(call: Callable[..., Any]):
    Path("experiment.toml").write_text(
        'algorithm = ["fedprox:mu=0.5 + clip:norm=1", "median"]\nrounds = 1\nmodel = "logreg"\n'
    )
    assert call("compare experiment.toml --clients 3 --out done --device cpu") == 0
    assert [member.algorithm for member in read_members(Path("done"))] == [
        "fedprox:mu=0.5 + clip:norm=1.0",
        "median",
    ]


def test_the_list_says_what_is_an_addition(
    call: Callable[..., Any], capsys: pytest.CaptureFixture[str]
):
    assert call("list algorithms") == 0
    lines = capsys.readouterr().out.splitlines()
    marked = {line.split()[0] for line in lines if "(an addition: METHOD + " in line}
    assert marked == {name for name in algorithms if algorithms.get(name).addition}
    assert "fedprox" not in marked


def test_a_plus_without_spaces_is_explained():
    with pytest.raises(
        FedskewError,
        match=r"'fedavg\+krum': a plus between parts has a space on each side: fedavg \+ krum",
    ):
        resolve("fedavg+krum")


def test_two_parts_with_an_option_of_the_same_name():
    both = resolve("fedavg + attack:share=0.3 + topk:share=0.25")
    assert str(both).count("share=") == 2
    assert (both.own(fs.Attack).share, both.own(fs.TopK).share) == (0.3, 0.25)
    assert (resolve(str(both)), copy.deepcopy(both)) == (both, both)
    assert fs.FedAvg() + fs.Attack(share=0.3) + fs.TopK(share=0.25) == both
    clipped = resolve("mfedbn:norm=global + clip:norm=2.5")
    assert (clipped.own(fs.MFedBN).norm, clipped.own(fs.Clip).norm) == ("global", 2.5)
    assert clipped.batchnorm.frozen
    assert clipped.aggregator.norm == 2.5


def test_an_option_of_one_part_changes_that_part_alone():
    fed = fs.split(fs.load("digits"), "iid", clients=4)

    def sent(spec: str) -> float:
        return float(
            fs.train(fed, "logreg", spec, rounds=1, folder=False).rounds["bytes_up"].iloc[-1]
        )

    one = sent("fedavg + attack:share=0.5 + topk:share=0.1")
    assert sent("fedavg + attack:share=0.25 + topk:share=0.1") == one
    assert sent("fedavg + attack:share=0.5 + topk:share=0.2") > 1.5 * one


def test_a_composition_with_an_option_of_both_conforms():
    report = fs.check("mfedbn + clip:norm=0.1")
    assert {finding.outcome for finding in report.findings} == {"passed"}


def test_a_number_of_one_part_in_a_grid():
    method = "fedavg + attack:share=0.2 + topk"
    members = members_of({}, [method], [0], {"topk.share": [0.1, 0.2]})
    assert [resolve(one.values["algorithm"]).own(fs.TopK).share for one in members] == [0.1, 0.2]
    with pytest.raises(FedskewError, match=r"'share'.*attack\.share.*topk\.share"):
        members_of({}, ["fedavg + attack + topk"], [0], {"share": [0.1]})
    with pytest.raises(FedskewError, match=r"attack\.share is given twice"):
        members_of({}, [method], [0], {"attack.share": [0.1]})
