"""What clients keep is with the nodes: a server that goes back to a checkpoint finds it there, and no older files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.conftest import Pair

from fedskew.core.errors import FedskewError


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "ditto", "moon", "fedbuff:buffer=2"])
def test_a_server_that_goes_back_ends_with_the_same_bits(pair: Callable[..., Pair], method: str):
    both = pair(method, rounds=6, per_round=3, fleet="mixed:slow=5")
    for _ in range(2):
        both.remote.advance()
    saved = both.remote.checkpoint()
    for _ in range(4):
        both.remote.advance()  # the nodes are ahead of the checkpoint when the server is killed
    expected, table = both.remote.state.model(), both.remote.final_clients().table
    again = both.make_remote()
    again.restore(saved)
    assert again.round == 2
    while again.round < 6:
        again.advance()
    for name, value in expected.items():
        np.testing.assert_array_equal(
            again.state.model()[name].numpy(), value.numpy(), err_msg=name
        )
    assert again.final_clients().table == table


def test_files_that_no_checkpoint_asks_for_are_removed(pair: Callable[..., Pair], tmp_path: Path):
    both = pair("scaffold", rounds=9)
    for _ in range(9):
        both.remote.advance()
        both.remote.checkpoint()
    kept = sorted(int(path.stem.split("-")[1]) for path in (tmp_path / "0").glob("*.safetensors"))
    assert kept == [6, 7, 8, 9]  # what the last two checkpoints may ask for, and a round in between


def test_state_that_is_gone_is_named(pair: Callable[..., Pair], tmp_path: Path):
    both = pair("scaffold")
    both.remote.advance()
    for path in tmp_path.glob("*/*.safetensors"):
        path.unlink()
    with pytest.raises(
        FedskewError, match=r"none of 5 clients answered: client 0: .*0-1.safetensors is gone"
    ):
        both.remote.advance()
