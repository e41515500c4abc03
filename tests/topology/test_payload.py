"""What is known of a payload before any client has trained is what clients then send."""

import pytest

from fedskew.core.trees import flat_names
from fedskew.engine.loop import Loop
from fedskew.topology.payload import bytes_up, reported, reported_bytes, sample_payload


@pytest.mark.parametrize(
    "method",
    ["fedavg", "scaffold", "fedbn", "feddyn", "moon", "fedga", "q-fedavg", "mfedbn", "fednova"],
)
def test_a_sample_has_the_names_and_shapes_of_what_clients_send(lab, method: str):
    training = lab.training(None, method, "tabular:hidden=4")
    context = training.rounds.context
    sample = sample_payload(context, training.state)
    plan = lab.plan(training, [1])
    (update,) = Loop().train(training.job, lab.start(training, plan), plan)
    sent = flat_names({**update.payload, "buffers": update.buffers})
    expected = flat_names(sample)
    assert sent.keys() == expected.keys()
    for name, value in sent.items():
        assert value[0].shape == expected[name].shape, name
        assert value.dtype == expected[name].dtype, name
    assert set(reported(context.algorithm)) <= update.report.numbers.keys()
    size = sum(value[0].nbytes for value in sent.values())
    sent_beside = {"fedga": 2 * 8}  # the server weighs clients by their losses
    assert reported_bytes(context.algorithm) == sent_beside.get(method, 0)
    assert bytes_up(context, training.state) == size + sent_beside.get(method, 0)
