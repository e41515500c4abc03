"""Trees of tensors: which clients of a stack have only finite numbers."""

import pytest
import torch

from fedskew.core.trees import finite_clients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_client_with_any_number_that_is_not_finite_is_found(dtype: torch.dtype):
    for bad in (torch.nan, torch.inf, -torch.inf):
        for client in range(3):
            weights, scalar = torch.ones(3, 2, 5, dtype=dtype), torch.ones(3, dtype=dtype)
            weights[client, 1, 3] = bad
            expected = [i != client for i in range(3)]
            assert (
                finite_clients([{"delta": {"w": weights}}, {"state": {"s": scalar}}], 3).tolist()
                == expected
            )
            scalar[client] = bad
            assert (
                finite_clients([{"state": {"w": torch.ones(3, 2), "s": scalar}}], 3).tolist()
                == expected
            )


def test_infinities_that_cancel_are_found():
    weights = torch.tensor([[torch.inf, -torch.inf], [1.0, 2.0]])
    assert finite_clients([{"delta": {"w": weights}}], 2).tolist() == [False, True]


def test_large_numbers_whose_sum_overflows_are_finite():
    weights = torch.full((3, 9), 3e38)
    weights[1, 4] = torch.nan
    assert finite_clients([{"delta": {"w": weights}}], 3).tolist() == [True, False, True]


def test_counters_and_empty_tensors_are_finite():
    tree = {
        "buffers": {"tracked": torch.arange(2), "none": torch.zeros(2, 0), "w": torch.ones(2, 3)}
    }
    assert finite_clients([tree, {}], 2).tolist() == [True, True]
    assert finite_clients([], 4).tolist() == [True] * 4
