"""JSON files as LEAF writes them: users, with the rows x and the labels y of each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_text, reading
from fedskew.core.streams import Ints
from fedskew.data.cells import numbers_of
from fedskew.data.convert import Loose, part_from, split_parts
from fedskew.data.dataset import Rows, Split, datasets
from fedskew.data.readers.arrays import Arrays, Numbers, everything
from fedskew.data.readers.client_groups import with_clients
from fedskew.data.source import TestShare
from fedskew.data.targets import Target

# From the entry of a user to its rows and labels; what is wrong is a ValueError
ReadUser: TypeAlias = Callable[[dict[str, Any]], tuple[Any, Any]]

_CONTENT = "LEAF's JSON: users with rows of numbers x and labels y"


class UserRows(NamedTuple):
    """The rows of all users of some files, one user after the other."""

    x: Numbers
    y: Sequence[Any]
    users: list[str]
    counts: list[int]

    def numbered(self, names: Sequence[str]) -> Ints:
        """Return the number of every row's user."""
        return np.repeat(numbers_of(self.users, names), self.counts)


def read_users(files: Sequence[Path], content: str, read: ReadUser) -> UserRows:
    """Read the rows of all users of LEAF files; ``content`` says in an error what the files should hold."""
    rows: list[Numbers] = []
    labels: list[Any] = []
    users: list[str] = []
    counts: list[int] = []
    for file in files:
        for user, x, y in _users(file, content, read):
            if rows and x.shape[1:] != rows[0].shape[1:]:
                raise FedskewError(
                    f"{file}: {user} has rows of shape {x.shape[1:]}, and {users[0]} has rows of shape "
                    f"{rows[0].shape[1:]}: make them equal"
                )
            rows.append(x)
            labels.extend(y)
            users.append(user)
            counts.append(len(y))
    if not rows:
        raise FedskewError(f"{files[0].parent}: no user has any rows")
    return UserRows(np.concatenate(rows), labels, users, counts)


def _users(file: Path, content: str, read: ReadUser) -> list[tuple[str, Any, Any]]:
    """Return the users of a file who have rows, with these rows."""
    text = read_text(file)
    what = content.partition(":")[0]
    with reading(file):
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            raise FedskewError(
                f"{file} is not whole JSON (line {error.lineno}, column {error.colno}): get it again"
            ) from None
        found = []
        try:
            names = parsed["users"]
            for user in names:
                x, y = read(parsed["user_data"][user])
                if len(y):
                    found.append((str(user), x, y))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FedskewError(f"{file} is not {content} expected ({error})") from None
    if not names:
        raise FedskewError(f"{file} is not {what}: it names no users")
    return found


def json_files(folder: Path) -> list[Path]:
    """Return the JSON files of a folder, in order."""
    return sorted(folder.glob("*.json"))


@datasets.register("leaf")
def leaf(
    *,
    path: str,
    shape: tuple[int, ...] = (),
    test: TestShare = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
    target: Target = "class",
) -> Arrays:
    """Clients in the JSON files of LEAF: users with rows of numbers x and labels y, in folders train and test.

    Args:
        path: the folder with train and test, or a folder of JSON files that are not divided
        shape: shape of a row, such as 1+28+28 for images, which LEAF writes as flat lists
        test: without a folder test, share of each client's rows held out for test
        split_seed: seed of that split
        standardize: bring every column or channel to mean 0 and deviation 1
        target: what y holds: a class, a number to predict, (labels) a row of 0 and 1, one column per label, (numbers)
            several numbers, or (tokens) a token at each place, -1 where there is none
    """
    folder = Path(path).expanduser()
    train_files, test_files = _files(folder)
    train = read_users(train_files, _CONTENT, _numeric)
    names = list(dict.fromkeys(train.users))
    train_part = _loose(train_files[0], train, shape, target)
    tested = test_part = None
    if test_files:
        tested = read_users(test_files, _CONTENT, _numeric)
        names = list(dict.fromkeys([*names, *tested.users]))
        test_part = _loose(test_files[0], tested, shape, target)
    rows, classes, _ = split_parts(str(folder), train_part, test_part, target)
    test_rows: Rows | Split = Split("test", test, split_seed)
    if tested is not None:
        test_rows = replace(rows[1], group=tested.numbered(names))
    scaled = None
    if standardize:
        scaled = everything(rows[0].x)
    arrays = Arrays(
        replace(rows[0], group=train.numbered(names)),
        test_rows,
        classes,
        tuple(names),
        scaled=scaled,
        counted=True,
    )
    return with_clients(arrays)


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files with training rows, and those with test rows, of which there may be none."""
    if not folder.is_dir():
        raise FedskewError(f"{folder} is not a folder of LEAF, with the folders train and test")
    if not (folder / "train").is_dir():
        train = json_files(folder)
        test = []
    else:
        train = json_files(folder / "train")
        test = json_files(folder / "test")
    if not train:
        raise FedskewError(f"{folder} has no .json files of LEAF, in it or in its folder train")
    return train, test


def _numeric(data: dict[str, Any]) -> tuple[Any, Any]:
    """Return the rows of a user, which must be numbers, and their labels."""
    x = np.asarray(data["x"])
    y = data["y"]
    if x.dtype.kind not in "biuf":
        raise ValueError("x holds text, which has to be encoded as numbers first")
    if not isinstance(y, list) or len(x) != len(y):
        raise ValueError(f"{len(x)} rows but not as many labels")
    if x.ndim == 1:
        x = x[:, None]
    return x.astype(np.float32), y


def _loose(file: Path, read: UserRows, shape: tuple[int, ...], target: Target) -> Loose:
    """Return the rows of all users in the shape that is asked for."""
    x = read.x
    if shape:
        if min(shape) < 1 or int(np.prod(shape)) != int(np.prod(x.shape[1:])):
            raise FedskewError(
                f"{file}: shape={'+'.join(map(str, shape))} does not fit rows of {int(np.prod(x.shape[1:]))} numbers"
            )
        x = x.reshape(len(x), *shape)
    return part_from(str(file), (x, read.y), target)
