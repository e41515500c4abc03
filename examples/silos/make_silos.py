"""Make the files of three silos, silo_A.npz to silo_C.npz: python make_silos.py [FOLDER]

Silos are groups of persons of UCI-HAR (fedskew data fetch uci-har), activities from 561 numbers of their smartphones:
each has seven persons of its own, of whom two are its test rows. Without that data set they are handwritten digits,
unlike in which digits they have.
"""

import sys
from pathlib import Path

import numpy as np

import fedskew as fs

NAMES = ("silo_A", "silo_B", "silo_C")
Arrays = dict[str, np.ndarray]


def persons() -> list[Arrays]:
    """Return silos of whole persons, one after the other."""
    data = fs.load("uci-har:part=train")
    assert data.train.group is not None
    assert data.test.group is not None
    x, y = (
        np.concatenate([getattr(part, name) for part in (data.train, data.test)])
        for name in ("x", "y")
    )
    person, found = np.concatenate([data.train.group, data.test.group]), []
    for some in np.array_split(np.arange(len(data.groups)), len(NAMES)):
        train, test = np.isin(person, some[:-2]), np.isin(person, some[-2:])
        names = np.array(data.classes)[y]
        found.append({"x": x[train], "y": names[train], "x_test": x[test], "y_test": names[test]})
    return found


def digits() -> list[Arrays]:
    """Return silos with few rows of some digits and many of others."""
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=len(NAMES), seed=0)
    rows = [fed.train.take(fed.partition.of(client)) for client in range(fed.clients)]
    return [{"x": own.x, "y": np.array(fed.data.classes)[own.y]} for own in rows]


def main(folder: Path) -> None:
    """Write the files, and say what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        silos = persons()
    except fs.FedskewError as problem:
        print(f"{problem}\nso the silos have digits:")
        silos = digits()
    for name, arrays in zip(NAMES, silos, strict=True):
        np.savez(folder / f"{name}.npz", **arrays)
        counted = zip(*np.unique(arrays["y"], return_counts=True), strict=True)
        print(
            f"{name}.npz: {len(arrays['y'])} rows, {', '.join(f'{label} {count}' for label, count in counted)}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
