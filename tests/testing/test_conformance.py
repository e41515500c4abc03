"""Every registered algorithm through the conformance suite, on every engine."""

import pytest

import fedskew
from fedskew.algorithms.contract import algorithms, resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.testing import CHECKS, Conformance
from fedskew.testing.equalities import engines_agree
from fedskew.testing.lab import SIZES, Lab, federation
from fedskew.testing.record_checks import checkpoint_resumes

OTHER_ENGINES: dict[str, Engine] = {
    "stacks of few": Stacked(mode="stack", memory=12_000),
    "as it likes": Stacked(),
}


VARIANTS = [
    "fedbs:rows=all,importance=size",
    "fedpbs:variant=section4",
    "fedtan:steps=all",
    "mfedbn:norm=global",
    "stratify-single:retain=2,reuse=true",
]  # what an option makes another method


SKIP = {
    "krum": {"identical": "one client alone has no neighbours"},
    "dp": {"identical": "the noise is that of one client, whatever their number"},
    "attack": dict.fromkeys(("order", "identical"), "some clients are hostile, by their numbers"),
    "hierarchical": {
        "order": "clients have edges by their numbers",
        "identical": "one client alone cannot have two edges",
    },
    "norm-test": {
        "order": "fewer than all take part, drawn by their numbers",
        "identical": "the server knows how many clients there are",
    },
    "quantize": dict.fromkeys(("order", "identical"), "clients round by keys of their numbers"),
}


@pytest.fixture(scope="module")
def fedavg() -> Conformance:
    return fedskew.check("fedavg")


@pytest.mark.parametrize("name", [name for name in algorithms if name != "fedavg"] + VARIANTS)
def test_conforms(name: str) -> None:
    if name == "dp":
        pytest.importorskip("dp_accounting")
    report = fedskew.check(name, skip=SKIP.get(name))
    assert report.passed
    assert [finding.check for finding in report.findings] == list(CHECKS)


@pytest.mark.parametrize("engine", OTHER_ENGINES)
@pytest.mark.parametrize("name", list(algorithms))
def test_other_engines_agree(name: str, engine: str) -> None:
    if name == "dp":
        pytest.importorskip("dp_accounting")
    if name == "fedtan" and engine == "stacks of few":
        # Tests/algorithms/test_fedtan.py has the refusal
        pytest.skip("all clients of a round must be in one stack")
    assert (
        engines_agree(Lab(resolve(name), (Loop(), OTHER_ENGINES[engine]), "cpu")).worst or 0.0
    ) < 1e-8
    if engine == "stacks of few":  # the others resume as they do in the suite itself
        checkpoint_resumes(Lab(resolve(name), (OTHER_ENGINES[engine],), "cpu"))


def test_every_check_of_fedavg_applies_and_passes(fedavg: Conformance) -> None:
    assert {finding.outcome for finding in fedavg.findings} == {"passed"}


def test_takes_an_instance_a_class_or_a_spelling() -> None:
    only_options = {name: "not now" for name in CHECKS if name != "options"}
    spelled = [
        fedskew.check(thing, skip=only_options).algorithm
        for thing in (
            fedskew.FedProx(mu=0.5),
            fedskew.FedProx,
            "fedprox:mu=2",
            {"name": "fedprox", "mu": 3},
        )
    ]
    assert [text.split("mu=")[1] for text in spelled] == ["0.5", "0.01", "2.0", "3.0"]


def test_the_report_is_a_line_a_check(fedavg: Conformance) -> None:
    lines = str(fedavg).splitlines()
    assert lines[0].startswith("fedavg:weights=none on Loop, Stacked: conforms")
    assert [line.split()[0] for line in lines[1:]] == list(CHECKS)
    assert "after 5 rounds" in str(fedavg["engines"])
    assert "largest difference" in str(fedavg["engines"])
    assert fedavg["engines"].worst is not None
    assert fedavg["engines"].worst > 0


def test_what_does_not_apply_is_told() -> None:
    report = fedskew.check("central", skip={"order": "tried elsewhere"}, engines=[Loop()])
    found = {
        finding.check: finding.detail
        for finding in report.findings
        if finding.outcome == "not applicable"
    }
    assert set(found) == {"order", "engines", "identical", "nan"}
    assert found["order"] == "tried elsewhere"
    assert "not applicable: the method pools all rows" in str(report)


def test_refused_settings_are_told() -> None:
    report = fedskew.check("fednova", skip={name: "not now" for name in CHECKS if name != "runs"})
    assert (
        "refused with Adam: fednova with these options is defined for local SGD"
        in report["runs"].detail
    )


def test_own_models_are_compared_where_the_global_one_stays() -> None:
    lab = Lab(resolve("local"), (Loop(),), "cpu")
    trained = lab.run(2, lab.scenes()[0], Loop())
    assert {name.split("/")[0] for name in trained.client_states()} >= {
        "client 0 local",
        "client 5 local",
    }


def test_a_skip_must_name_a_check_and_there_must_be_an_engine() -> None:
    with pytest.raises(FedskewError, match="unknown check 'ordr': did you mean 'order'"):
        fedskew.check("fedavg", skip={"ordr": "why"})
    with pytest.raises(FedskewError, match="engines is empty"):
        fedskew.check("fedavg", engines=[])


def test_the_made_up_clients_are_awkward() -> None:
    fed = federation()
    counts = fed.partition.counts(fed.train.y, 3)
    assert fed.partition.sizes.tolist() == list(SIZES)
    assert 1 in fed.partition.sizes % 4
    assert (counts > 0).sum(axis=1).min() == 1
    assert (counts.sum(axis=0) > 0).all()
