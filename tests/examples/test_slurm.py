"""The script of an array of jobs, run as SLURM would run its tasks, with a stand-in for SLURM's own command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "study.sh"
EXPERIMENT = """
algorithm = ["fedavg", "fedprox:mu=1"]
seeds = [0, 1, 2]
rounds = 3
model = "logreg"
clients = 4
"""


@pytest.fixture
def task(tmp_path: Path):
    """Return a function that runs a task of the array, of two, and returns its exit code and what it said."""
    (tmp_path / "study.toml").write_text(EXPERIMENT)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "fedskew").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedskew "$@"\n')
    (bin_folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> requeued\n')
    for path in bin_folder.iterdir():
        path.chmod(0o755)

    def run(number: int, budget: str) -> tuple[int, str]:
        environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "SLURM_ARRAY_TASK_ID": str(number),
            "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_ARRAY_JOB_ID": "77",
            "BUDGET": budget,
        }
        ended = subprocess.run(
            ["bash", str(SCRIPT), "study.toml", "study"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stderr

    return run


def test_the_last_task_judges_the_study(tmp_path: Path, task):
    code, said = task(2, "10m")
    assert code == 0, said
    assert "3 runs of other shards are left" in said
    assert not (tmp_path / "study" / "comparison.csv").exists()
    code, said = task(1, "10m")
    assert code == 0, said
    assert (tmp_path / "study" / "comparison.csv").exists()
    assert not (tmp_path / "requeued").exists()


def test_a_task_whose_budget_is_spent_is_queued_again(tmp_path: Path, task):
    code, said = task(1, "1ms")
    assert code == 2
    assert "budget=1ms" in said
    experiment = tmp_path / "study.toml"
    experiment.write_text(EXPERIMENT.replace("rounds = 3", "rounds = 1_000_000"))
    code, said = task(1, "3s")
    assert code == 0
    assert "the budget is spent, 0 of 6 runs are done" in said
    assert (tmp_path / "requeued").read_text() == "requeue 77_1\n"
