"""What commands print with --json fits docs/schemas.json, and every command that prints results has it."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fedskew.cli import app as cli

SCHEMAS = json.loads((Path(__file__).parents[2] / "docs" / "schemas.json").read_text())
SMALL = "--model logreg --clients 4 --rounds 2"
COMMANDS = {  # by schema, in an order in which each finds what it reads
    "run": f"run {SMALL} --folder run",
    "status": "status run",
    "resume": "resume run",
    "report": "report run",
    "export": "export run --out model.pt2",
    "compare": f"compare {SMALL} --algorithm fedavg --algorithm fedprox --seeds 0-2 --out both",
    "merge": "merge shard-1 shard-2 --out merged",
    "split": "split --data digits --skew dirichlet --clients 3 --npz --out split",
    "measure": "measure --data digits --skew dirichlet --clients 3",
    "papers": "paper",
    "paper": "paper stratify --table section3b --quick --device cpu --out measured",
    "list": "list skews",
    "columns": "list columns",
    "data list": "data list",
    "data check": "data check digits",
    "doctor": "doctor",
}
NO_RESULTS = {
    # They start something, or print what to type
    "deploy", "keys", "server", "node",
    # Their results are files
    "predict", "data fetch", "data converter", "atlas run", "atlas page", "atlas add",
}  # fmt: skip


def answer(out: str):
    return json.loads(out.splitlines()[-1])


def fits(name: str, value: object) -> None:
    schema = {"$defs": SCHEMAS["$defs"], "$ref": f"#/$defs/{name}"}
    Draft202012Validator(schema).validate(value)


def test_what_commands_print_fits_its_schema(fedskew, capsys):
    for part in (1, 2):
        shard = f"--shard {part}/2 --out shard-{part}"
        fedskew(f"compare {SMALL} --algorithm fedavg --algorithm fedprox --seeds 0-2 {shard}")
    capsys.readouterr()
    for name, command in COMMANDS.items():
        assert fedskew(f"{command} --json") == 0, name
        fits(name, answer(capsys.readouterr().out))


def test_advice_fits_its_schema(fedskew, capsys):
    words = "--data digits --skew dirichlet --clients 3 --model logreg --rounds 2 --seeds 3"
    assert fedskew(f"advise {words} --budget 1 --json") == 0
    fits("advise", answer(capsys.readouterr().out))


def test_a_schema_can_fail():
    validator = Draft202012Validator({"$defs": SCHEMAS["$defs"], "$ref": "#/$defs/status"})
    Draft202012Validator.check_schema(SCHEMAS)
    assert not validator.is_valid({"folder": "runs/a"})


def test_every_command_with_results_has_json():
    import typer

    names = set()
    for name, command in typer.main.get_command(cli.app).commands.items():
        for part, inner in getattr(command, "commands", {"": command}).items():
            full = f"{name} {part}".strip()
            if any("--json" in option.opts for option in inner.params):
                names.add(full)
            else:
                assert full in NO_RESULTS
    assert names == {name for name in SCHEMAS["$defs"] if name in names}, "a schema for each"


@pytest.mark.parametrize("part", ["extra", "version"])
def test_a_package_of_a_wrong_version_is_broken(monkeypatch, fedskew, capsys, part):
    from fedskew.testing import installation

    name = {"extra": "tenseal", "version": "safetensors"}[part]
    right = installation.version
    monkeypatch.setattr(
        installation, "version", lambda asked: "0.0.1" if asked == name else right(asked)
    )
    assert fedskew("doctor --json") == 1
    found = answer(capsys.readouterr().out)
    broken = [one for one in found["findings"] if one["outcome"] == "broken"]
    assert not found["ok"]
    assert [one["part"] for one in broken] == [part]
    assert "fedskew needs" in broken[0]["said"]


def test_the_doctor_sees_engines_that_disagree(monkeypatch, fedskew, capsys):
    from fedskew.testing import CHECKS, check_report

    def disagree(lab):
        raise check_report.ContractError("they differ by 1")

    monkeypatch.setitem(CHECKS, "engines", disagree)
    assert fedskew("doctor") == 1
    out = capsys.readouterr().out
    assert "BROKEN  cpu               engines: they differ by 1" in out
    assert out.endswith("broken: cpu\n")
