"""Random damage to run folders: rejected by name or repaired, never silent and never a traceback."""

import os
import random
import shutil
from pathlib import Path

import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.runs.folder import CLIENTS, FINAL_CLIENTS, MODEL, ROUNDS

BITS = (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL)
# Of each kind of folder; more where there is time
DAMAGES = int(os.environ.get("FEDSKEW_DAMAGES", "60"))


class Crash(BaseException):
    """An exception that no code catches."""


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=4, seed=1)


def train(fed: fs.Federation, folder: Path, stop: int | None = None) -> fs.Run:
    def watch(result: object, rounds: int) -> None:
        if result.round["round"] == stop:  # type: ignore[attr-defined]
            raise Crash

    return fs.train(
        fed,
        "logreg",
        "scaffold",
        rounds=5,
        per_round=2,
        folder=folder,
        checkpoint_every=1,
        callbacks=watch,
    )


@pytest.fixture(scope="module")
def folders(fed: fs.Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one run that was stopped and one that finished."""
    place = tmp_path_factory.mktemp("damage")
    train(fed, place / "finished")
    with pytest.raises(Crash):
        train(fed, place / "stopped", stop=3)
    return place


def damage(folder: Path, draw: random.Random) -> str:
    """Change one file: flip a bit, cut, extend, overwrite, empty or remove it; returns what was done."""
    drawn = (".lock", "report.html")  # nothing reads them
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in drawn)
    path = draw.choice(files)
    content, how = (
        bytearray(path.read_bytes()),
        draw.choice(["bit", "bit", "cut", "more", "over", "empty", "gone"]),
    )
    at = draw.randrange(len(content))
    if how == "gone":
        path.unlink()
    elif how == "bit":
        content[at] ^= 1 << draw.randrange(8)
    elif how == "cut":
        content = content[:at]
    elif how == "more":
        content += draw.randbytes(draw.randint(1, 40))
    elif how == "over":
        content[at : at + 16] = draw.randbytes(16)
    else:
        content = bytearray()
    if how != "gone":
        path.write_bytes(bytes(content))
    return f"{path.relative_to(folder)}: {how} at {at}"


@pytest.mark.parametrize("kind", ["stopped", "finished"])
def test_random_damage_is_refused_or_put_right(
    kind: str, fed: fs.Federation, folders: Path, tmp_path: Path
):
    expected = {name: (folders / "finished" / name).read_bytes() for name in BITS}
    draw, refused = random.Random(kind), 0
    for number in range(DAMAGES):
        folder = tmp_path / f"{number}"
        shutil.copytree(folders / kind, folder)
        done = damage(folder, draw)
        try:
            if kind == "finished":
                found = fs.open_run(folder)
                assert found.summary == fs.open_run(folders / kind).summary, done
                assert len(found.rounds) == 5, done
                found.weights, found.clients, found.final_clients  # noqa: B018
            else:
                fs.resume(folder, fed=fed)
        except FedskewError:
            refused += 1
        else:  # unused content, or rows after the last checkpoint: the result does not change
            assert {name: (folder / name).read_bytes() for name in BITS} == expected, done
        shutil.rmtree(folder)
    assert refused > DAMAGES / 2
