"""A small atlas: two made cells of digits and one natural, few rounds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedskew.atlas.atlas_runs import Atlas, open_atlas, run_atlas
from fedskew.study.sitting import Sitting

PROTOCOL = """
[about]
title = "A small atlas"
version = "1"
lr = [0.1, 0.5]
blocks = "0-2"
choose_seeds = "1000"

[settings]
rounds = 2
clients = 3
data = "digits"
eval_rows = 100
device = "cpu"
threads = 1
model = "mlp:hidden=8"

[goal.shared]
metric = "balanced_accuracy"

[goal.own]
metric = "accuracy"
client_test = 0.25

[[method]]
algorithm = "fedavg"
title = "FedAvg"
goals = ["shared", "own"]

[[method]]
algorithm = "central"
title = "central"
goals = ["shared"]

[[method]]
algorithm = "fedlc"
title = "FedLC"
goals = ["shared"]

[[method]]
algorithm = "scaffold"
title = "SCAFFOLD"
goals = ["shared"]

[[method]]
algorithm = "fedrep"
title = "FedRep"
goals = ["own"]
needs = ["two epochs"]

[[cell]]
name = "iid"
title = "digits, IID"
kind = "none"
family = "digits"
skew = "iid"
has = ["layers"]

[[cell]]
name = "skewed"
title = "digits, skewed"
kind = "label"
family = "digits again"
skew = "dirichlet:alpha=0.2"
epochs = 2
has = ["layers", "two epochs"]
"""


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(PROTOCOL)
    return path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    """Return a small atlas that has been run."""
    folder = tmp_path_factory.mktemp("atlas")
    path = folder / "own.toml"
    path.write_text(PROTOCOL)
    atlas = open_atlas(folder / "small", path)
    run_atlas(atlas, sitting=Sitting.of(None), say=quiet)
    return atlas


def quiet(line: str) -> None:
    assert line


@pytest.fixture
def said() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append
