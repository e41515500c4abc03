"""Follow a page as a reader would, in the current folder: write the files it shows, run its Python and its commands.

``python follow.py PAGE`` ends with an error at the first block that fails. Trainings have one round: what is tested is
that every command is one. Not run are blocks of other languages (``text``, ``toml`` and the like), ``fedskew paper``,
and commands of ELSEWHERE.
"""

import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from fedskew.cli import app

FENCE = re.compile(r"^```(\{?\w*\}?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# By other tests
ELSEWHERE = (
    "make ",
    "pip ",
    "torchrun ",
    "flwr ",
    "export ",
    "fedskew server ",
    "fedskew node ",
    "fedskew atlas ",
)
LESS = {"run": ("--rounds", "1"), "compare": ("--rounds", "1"), "advise": ("--rounds", "2")}
TRACKERS = ("--mlflow", "--wandb")  # left out where they are not installed


def blocks(text: str) -> list[tuple[str, str]]:
    """Return language and content of all blocks of a page."""
    return [(match[1], match[2]) for match in FENCE.finditer(text)]


def commands(block: str) -> list[str]:
    """Return the commands of a block, without comments; a backslash at the end of a line continues it."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def follow(page: Path) -> None:
    """Run all blocks of a page, in their order."""
    names: dict[str, object] = {"__name__": "page"}
    for language, block in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            file = re.match(r"# (\w+\.py)\n", block)
            if file:
                Path(file[1]).write_text(block, encoding="utf-8")
            exec(compile(block, file[1] if file else str(page), "exec"), names)
        for command in commands(block) if language == "sh" else []:
            if not command.startswith(ELSEWHERE):
                run(shlex.split(command, comments=True))


def run(words: list[str]) -> None:
    """Run a command of fedskew, or a Python file; what is written to a file is printed."""
    if ">" in words:
        words = words[: words.index(">")]
    if words[0] == "python":
        sys.argv = words[1:]
        runpy.run_path(words[1], run_name="__main__")
        return
    assert words[0] == "fedskew", words
    if "paper" in words:
        return  # minutes; tests/papers run the smallest tables
    command = next((word for word in words if word in LESS), None)
    given = [word for before, word in pairwise(words) if before != "--out"]
    finished = command == "compare" and any(Path(word).is_dir() for word in given)
    if command and not finished:
        give(words, *LESS[command])
    words = [word for word in words if word not in TRACKERS or find_spec(word[2:])]
    if "--seeds" in words:
        give(words, "--seeds", "0-1")
    print("$", shlex.join(words), flush=True)
    if "--import" in words:  # what the page has registered here is registered anew by the file
        subprocess.run([sys.executable, "-m", *words], check=True)
        return
    sys.argv = words
    try:
        app.main()
    except SystemExit as ended:
        assert ended.code in (0, None), f"{shlex.join(words)} ended with {ended.code}"  # noqa: PT017


def give(words: list[str], option: str, value: str) -> None:
    """Put an option into a command, in place of its value there."""
    if option in words:
        words[words.index(option) + 1] = value
    else:
        words += [option, value]


def write_as_pfllib(folder: Path) -> None:
    """Write clients who share no class as PFLlib does: a pickled table of x and y per client and part."""
    rng = np.random.default_rng(0)
    for part, rows in (("train", 30), ("test", 10)):
        (folder / part).mkdir(parents=True)
        for client in range(3):
            y = 2 * client + np.arange(rows) % 2
            content = {"x": rng.normal(y[:, None, None, None], 1, (rows, 1, 4, 4)), "y": y}
            np.savez_compressed(folder / part / f"{client}.npz", data=content)


def prepare(text: str) -> None:
    """Make the files that a page names without showing them."""
    rng = np.random.default_rng(0)
    for number, place in enumerate("ABCD"):
        frame = pd.DataFrame(rng.normal(number, 1, (60, 2)), columns=["age", "creatinine"])
        frame["outcome"] = np.where(frame.age + rng.normal(0, 1, 60) > number, "died", "discharged")
        frame.to_csv(f"hospital_{place}.csv", index=False)
    frame.drop(columns="outcome").to_csv("new.csv", index=False)
    pd.DataFrame(
        {"a": rng.normal(size=200), "y": np.arange(200) % 3, "outcome": np.arange(200) % 2}
    ).to_csv("my.csv")
    Path("machines.csv").write_text("client,rows_per_second,down_mbit,up_mbit,latency,dropout,from,to\n" + "".join(
        f"{client},{100 + client},40,8,0.06,0.02,0,86400\n" for client in range(10)
    ))  # fmt: skip
    Path("my_methods.py").write_text(
        "import fedskew\nfrom fedskew.algorithms import algorithms\n"
        '@algorithms.register("mine")\nclass Mine(fedskew.FedProx):\n    """Mine."""\n'
    )
    if "pfllib_to_npz.py" in text:
        write_as_pfllib(Path("MNIST"))
    Path("experiment.toml").write_text('rounds = 2\n[algorithm]\nname = "fedprox"\nmu = 0.1\n')
    for name in [name for name in ("NAME", "A", "B") if f"runs/{name}" in text]:
        run(
            ["fedskew", "run", "--data", "hospital_*.csv:label=outcome", "--folder", f"runs/{name}"]
        )


if __name__ == "__main__":
    page = Path(sys.argv[1])
    prepare(page.read_text(encoding="utf-8"))
    follow(page)
