"""PyTorch's map-style data sets: collected by their length, one for all rows or one of each client."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import fedskew as fs
from fedskew.core.errors import FedskewError


class Endless(Dataset):
    """Answers any number, so that only its length says where it ends."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((2, 3), float(self.offset + row)), row % 2


class NoLength(Dataset):
    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.zeros(3), row % 2


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3), 0


class Items(Dataset):
    def __init__(self, *items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int):
        return self.items[row]


def test_a_data_set_is_collected_by_its_length():
    fed = fs.split(Endless(), "iid", 2)
    assert fed.data.shape == (2, 3)
    everything = np.concatenate([fed.train.x, fed.test.x])
    assert sorted(everything[:, 0, 0].tolist()) == list(range(10))
    assert all(int(row[0, 0]) % 2 == y for row, y in zip(fed.train.x, fed.train.y, strict=True))


def test_a_list_is_one_data_set_of_each_client():
    fed = fs.split([Endless(100 * number) for number in range(12)])
    assert fed.client_names == tuple(map(str, range(12)))
    for client in range(12):
        own = fed.train.x[fed.partition.of(client)][:, 0, 0]
        assert set(own // 100) == {client}
    run = fs.train(fed, "logreg", rounds=1, folder=False, device="cpu", lr=1e-5)
    assert run.summary["clients"] == 12


def test_a_mapping_names_the_clients():
    rows = TensorDataset(torch.randn(30, 4), torch.arange(30) % 3)
    fed = fs.split({"north": Subset(rows, range(20)), "south": Subset(rows, range(20, 30))})
    assert fed.client_names == ("north", "south")
    assert len(fed.partition.rows) + len(fed.test) == 30
    mixed = fs.split({"north": Subset(rows, range(20)), "south": rows}, "iid", clients=5)
    assert mixed.clients == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (NoLength(), "NoLength has no length"),
        ([NoLength(), NoLength()], "0: NoLength has no length"),
        (Stream(), "Stream has no length"),
        (Items(), "Items has no rows"),
        (Items(torch.zeros(3)), "item 0 is a Tensor, expected a pair"),
        (Items({"x": 1}), "item 0 is a dict, expected a pair"),
        (Items((torch.zeros(3), 0), (torch.zeros(4), 1)), r"item 1 has features of shape \(4,\)"),
        (Items(("text", 0)), "the features of item 0 are str, not numbers"),
        (Items((torch.zeros(3), -1), (torch.zeros(3), 0)), "have the label -1"),
        ([Endless(), Items((torch.zeros(3), 0))], r"1 has rows of shape \(3,\), and 0 of shape"),
        ((Endless(), [0] * 10), "expected arrays, tensors or a data frame, got Endless"),
    ],
)
def test_refusals(data, message: str):
    with pytest.raises(FedskewError, match=message):
        fs.split(data, "iid", 2)
