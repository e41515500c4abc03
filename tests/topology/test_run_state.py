"""The state of a run: what it is made of, and what a checkpoint restores of it."""

import torch

from fedskew.topology.run_state import RunState, group_of, grouped


def test_a_group_has_its_own_names_back():
    one, other = torch.zeros(1), torch.ones(2)
    flat = grouped({"store": {"own/a": one}, "stores": {"b": other}})
    assert list(flat) == ["store/own/a", "stores/b"]
    assert group_of(flat, "store") == {"own/a": one}
    assert group_of(flat, "store/own") == {"a": one}
    assert group_of(flat, "topology") == {}


def test_what_clients_send_is_what_is_neither_local_nor_frozen(lab):
    training = lab.training(None, "fedbn", "tabular:hidden=4")
    state, job = training.state, training.job
    assert job.unsent
    assert state.shared(job.unsent).keys() == state.params.keys() - job.unsent
    leaving = state.leaving(job.local_names)
    assert leaving.keys() == (state.params.keys() | state.buffers.keys()) - job.local_names


def test_a_state_is_restored_in_the_order_of_an_uninterrupted_run(lab):
    """A method may sum over all tensors, and a file may have them in another order."""
    training = lab.run(2, None, "scaffold", "tabular:hidden=4")
    saved = {**training.state.flat(), "round": torch.tensor(training.round)}
    backwards = dict(reversed(saved.items()))
    fresh = RunState.initial(lab.training(None, "scaffold", "tabular:hidden=4").job)
    before = {name: value.clone() for name, value in fresh.params.items()}
    fresh.restore(backwards, training.device)
    assert fresh.round == 2
    assert list(fresh.flat()) == list(training.state.flat())
    for name, value in training.state.flat().items():
        assert torch.equal(fresh.flat()[name], value), name
    assert any(not torch.equal(value, before[name]) for name, value in fresh.params.items())
