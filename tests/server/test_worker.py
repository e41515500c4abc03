"""A worker answers every question, whatever goes wrong: the leader waits for it."""

from types import SimpleNamespace

import pytest
import torch

from fedskew.core.errors import DivergedError
from fedskew.engine.job import Start
from fedskew.server.worker import Begin, Gpus, Numbers, serve
from fedskew.topology.shards import Work
from fedskew.transport.group import Failure, WorkerLostError
from fedskew.transport.messages import packed, unpacked

BEGIN = Begin("cpu", Numbers(*[torch.zeros(1).numpy()] * 4, []))
WORK = Work("train", 0, Start({}, {}, {}, {}, 0.1), [])


class Wire:
    """The connection of a worker with a leader that asks some questions and then ends."""

    rank = 1

    def __init__(self, *questions):
        self.questions, self.answers, self.own = list(questions), [], None

    def receive(self, source):
        if not self.questions:
            raise WorkerLostError("the leading process is gone")
        return unpacked(packed(self.questions.pop(0)))

    def send(self, message, to):
        self.answers.append(unpacked(message))

    def use_gpus(self, own):
        self.own = own


def trainer(perform):
    return SimpleNamespace(jobs=[SimpleNamespace(x=torch.zeros(1))], perform=perform)


def raising(problem):
    def perform(content):
        raise problem

    return perform


def test_a_worker_ends_when_it_is_told_to():
    wire = Wire(BEGIN, Gpus(False), WORK, None, WORK)
    serve(wire, 1, lambda content: trainer(lambda work: [work.what]))
    assert wire.answers == [None, None, ["train"]]
    assert wire.own is False
    assert len(wire.questions) == 1


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (RuntimeError("no memory"), Failure("worker 1: RuntimeError: no memory")),
        (DivergedError("it diverged"), Failure("it diverged", diverged=True)),
    ],
)
def test_an_error_is_an_answer(problem, answer):
    wire = Wire(BEGIN, BEGIN, WORK)
    makers = [raising(problem), lambda content: trainer(raising(problem))]
    serve(wire, 1, lambda content: makers.pop(0)(content))
    assert wire.answers == [answer, None, answer]


def test_a_result_that_cannot_be_sent_is_an_error_too():
    wire = Wire(BEGIN, WORK)
    serve(wire, 1, lambda content: trainer(lambda work: [object()]))
    assert wire.answers == [
        None,
        Failure("an object of type object cannot be sent to another process"),
    ]
