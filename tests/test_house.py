"""The structure of the package: folders import each other one way only, file names are unique, 15 hooks."""

import ast
import inspect
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import fedskew
from fedskew.algorithms.contract import Algorithm, algorithms

SOURCE = Path(fedskew.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
HOOKS = {
    "local_names", "init_server_state", "broadcast", "init_client_state", "on_receive", "trainable", "objective",
    "linear_correction", "correct_gradients", "client_state", "payload", "weight", "server_update", "metrics",
    "client_model", "answer",
}  # fmt: skip
PARTS = {
    "requires",
    "client_selection",
    "topology",
    "aggregator",
    "channel",
    "calibrator",
    "batchnorm",
    "weighting",
    "personal_method",
    "adaptation",
    "adapters",
    "poison",
    "no_shared_model",
}


OTHERS = {
    "addition", "parts", "places", "read_by_part", "mixes_rounds", "cost_per_row", "options", "own", "label",
    "check_clients",
}  # fmt: skip

# From the front door down: a room imports rooms of later lines only.
ORDER = [
    {"__main__"},
    {"cli"},
    {"estimators"},
    {"api"},
    {"advice", "papers", "deploy"},
    {"atlas"},
    {"report", "nodes"},
    {"study"},
    {"runs", "testing"},
    {"inference", "plots"},
    {"server"},
    {"topology"},
    {"engine"},
    {"algorithms"},
    {"aggregation", "batchnorm", "sample_schedules"},
    {"label_privacy", "fleet", "skew"},
    {"heterogeneity"},
    {"tasks", "models"},
    {"data"},
    {"kernels", "transport"},
    {"core"},
]


def imports() -> dict[str, set[str]]:
    """Return which folders or top-level files each of them imports, also for type checking only."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedskew."):
                found[room].add(node.module.split(".")[1])
    found.pop("__init__")  # the list of public names
    return {room: others - {room} for room, others in found.items()}


def test_rooms_import_only_what_is_below_them():
    level = {room: number for number, rooms in enumerate(ORDER) for room in rooms}
    found = imports()
    assert found.keys() | set.union(*found.values()) == level.keys(), "every room has its place"
    upward = []
    for room, others in found.items():
        for other in others:
            if level[other] <= level[room]:
                upward.append(f"{room} imports {other}")
    assert sorted(upward) == []


def test_a_method_never_imports_an_engine():
    assert not imports()["algorithms"] & {"engine", "topology", "server", "runs", "cli"}


def test_a_file_name_occurs_once():
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_the_contract_has_sixteen_hooks():
    public = {name for name in vars(Algorithm) if not name.startswith("_")}
    assert public == HOOKS | PARTS | OTHERS
    assert len(HOOKS) == 16
    for name in HOOKS:
        assert inspect.isfunction(vars(Algorithm)[name])


def test_nothing_is_unpickled():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, (ast.Import, ast.ImportFrom))
                else []
            )
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert not roots & {
                "pickle",
                "_pickle",
                "cPickle",
                "cloudpickle",
                "dill",
                "joblib",
                "shelve",
            }, path


def test_one_place_knows_the_loss():
    assert [
        path.relative_to(SOURCE).as_posix() for path in FILES if "cross_entropy" in path.read_text()
    ] == ["tasks/losses.py"]


def test_the_front_door_is_small():
    assert len((SOURCE / "api.py").read_text().splitlines()) < 200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_docstrings_are_sentences(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
            first = text.splitlines()[0]
            assert len(first.split()) >= 3, f"{node.name}: {first!r} says too little"
            assert first.rstrip().endswith((".", ":", "``")) or "\n\n" not in text, (
                f"{node.name}: {first!r} is no sentence"
            )


def test_registering_a_class_is_enough_to_export_it():
    for name in algorithms:
        kind = algorithms.get(name)
        assert getattr(fedskew, kind.__name__) is kind
        assert getattr(fedskew.algorithms, kind.__name__) is kind


def test_training_loads_no_deployment():
    code = (
        "import sys, fedskew as fs; fed = fs.split(fs.load('digits'), 'iid', clients=2); "
        "fs.train(fed, 'logreg', rounds=1, folder=False); fs.compare; "
        "print([name for name in sys.modules if name.startswith(('fedskew.deploy', 'flwr'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
