"""Questions of the leading process and the answers to them, without a connection."""

import pytest

from fedskew.core.errors import DivergedError, FedskewError
from fedskew.transport.group import Failure, Group
from fedskew.transport.messages import unpacked


class Rehearsed(Group):
    """A group whose workers answer with what ``answer`` returns for their question."""

    def __init__(self, answer):
        self.rank, self.size, self.answer, self.waiting = 0, 3, answer, {1: [], 2: []}

    def send(self, message, to):
        self.waiting[to].append(self.answer(unpacked(message)))

    def receive(self, source):
        return self.waiting[source].pop(0)


def test_every_worker_answers_its_own_question():
    group = Rehearsed(lambda question: question + 1)
    assert group.ask([10, 20], lambda: "mine") == ("mine", [11, 21])


def test_after_an_error_the_next_question_finds_no_old_answer():
    group = Rehearsed(lambda question: question)
    with pytest.raises(ZeroDivisionError):
        group.ask([1, 2], lambda: 1 / 0)
    assert group.ask([3, 4], lambda: None) == (None, [3, 4])


@pytest.mark.parametrize("kind", [FedskewError, DivergedError])
def test_a_failure_is_raised_once_all_have_answered(kind):
    group = Rehearsed(
        lambda question: Failure.of(question, kind("too much")) if question == 1 else question
    )
    with pytest.raises(kind, match="too much"):
        group.ask([1, 2], lambda: None)
    assert group.ask([3, 4], lambda: None) == (None, [3, 4])
