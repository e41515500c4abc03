"""Steps of several parties against one central PyTorch step on all their rows, and the sizes of their messages."""

import copy
import struct
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.batchnorm.exact import (
    ExactBatchNorm,
    Hub,
    Parties,
    Party,
    bn_bytes,
    step_bytes,
)
from fedskew.batchnorm.turns import in_turn
from fedskew.core.errors import FedskewError
from fedskew.models.build import build
from fedskew.transport.frames import Frame, Kind, unpack

LR = 0.1


class Deep(nn.Module):
    """Has BatchNorm at several depths, with layers named in another order than used, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.twice = nn.BatchNorm1d(5)
        self.inner = nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.BatchNorm1d(5), nn.Tanh()))
        self.tail = nn.ModuleDict({"a": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))})
        self.register_buffer("shift", torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(
            self.tail["a"](self.twice(torch.tanh(self.twice(self.inner(x + self.shift)))))
        )


def convolutional(**options: object) -> nn.Module:
    norm = nn.BatchNorm2d(4, **options)
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def dense(**options: object) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 3))


def frozen_first() -> nn.Module:
    model = dense()
    model[0].requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (6,)),
    "over time": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(12, 3)
        ),
        (2, 4),
    ),
    "convolutions": (convolutional, (2, 4, 4)),
    "nested": (Deep, (6,)),
    "cumulative": (lambda: convolutional(momentum=None), (2, 4, 4)),
    "no affine": (lambda: dense(affine=False), (6,)),
    "no statistics": (lambda: convolutional(track_running_stats=False), (2, 4, 4)),
    "own eps and momentum": (lambda: dense(eps=0.1, momentum=0.7), (6,)),
    "input layer": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), (6,)),
    "nothing before it learns": (frozen_first, (6,)),
    "only a layer": (lambda: nn.BatchNorm1d(3), (3,)),
    "without": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "resnet9": (lambda: build("resnet9:width=2", (3, 8, 8), 3, seed=0), (3, 8, 8)),
}


def model_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().double().train()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return model, shape


def batches_of(
    shape: tuple[int, ...], sizes: Sequence[int], seed: int
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            2
            + party
            + (1 + party) * torch.randn(size, *shape, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for party, size in enumerate(sizes)
    ]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    weights = {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    return weights | {name: value.clone() for name, value in model.named_buffers()}


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sizes", [(4, 1, 3, 1), (5,), (1, 1), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("name", list(MODELS))
def test_parties_take_the_central_step(name: str, sizes: Sequence[int]):
    central, shape = model_of(name)
    federated = copy.deepcopy(central)  # stays as it is: only the tensors that are handed over move
    tensors = state_of(central)
    weights = {key: value for key, value in central.named_parameters() if value.requires_grad}
    for step in range(3):
        batches = batches_of(shape, sizes, step)
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        logits = central(x)
        loss = F.cross_entropy(logits, y)
        wanted = torch.autograd.grad(loss, list(weights.values()))
        done = Parties(federated).step(tensors, batches)
        assert list(done.grads) == list(weights)
        for grad, expected in zip(done.grads.values(), wanted, strict=True):
            close(grad, expected)
        close(done.loss_sum, loss.detach() * len(y))
        assert done.score_sum == (logits.argmax(1) == y).sum()
        assert done.buffers.keys() == dict(central.named_buffers()).keys()
        for key, value in central.named_buffers():
            assert done.buffers[key].dtype == value.dtype
            close(done.buffers[key], value)
        with torch.no_grad():
            for value, grad in zip(weights.values(), wanted, strict=True):
                value.sub_(LR * grad)
        tensors = {key: tensors[key] - LR * grad for key, grad in done.grads.items()} | done.buffers
    assert all(
        torch.equal(value, old)
        for value, old in zip(federated.parameters(), model_of(name)[0].parameters(), strict=True)
    )


def test_in_float32_a_large_mean_does_not_drown_a_small_spread():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3))
    rows = torch.tensor([[0.0, 3.0], [1.0, 1.0], [2.0, 2.0], [5.0, 0.0]])
    batches = [(1e4 + rows[:1], torch.tensor([0])), (1e4 + rows[1:], torch.tensor([1, 2, 0]))]
    found = Parties(model).step(state_of(model), batches).buffers["0.running_var"]
    # Squares around 1e8 would be off by 8
    torch.testing.assert_close(found, 0.9 + 0.1 * rows.var(0))


def test_the_order_of_parties_does_not_matter():
    model, shape = model_of("resnet9")
    batches = batches_of(shape, (3, 1, 2), 0)
    first = Parties(model).step(state_of(model), batches)
    second = Parties(model).step(state_of(model), [batches[i] for i in (2, 0, 1)])
    for left, right in ((first.grads, second.grads), (first.buffers, second.buffers)):
        for key, value in left.items():
            close(value, right[key])
    assert [float(value) for value in first[2:6]] == pytest.approx(
        [float(value) for value in second[2:6]], rel=1e-12
    )
    assert [loss for loss, _ in first.scores] == pytest.approx(
        [second.scores[i][0] for i in (1, 2, 0)], rel=1e-12
    )
    assert sum(loss for loss, _ in first.scores) == pytest.approx(float(first.loss_sum))
    assert sum(right for _, right in first.scores) == float(first.score_sum)


def two_names() -> nn.Module:
    shared = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    return nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3)).double()


@pytest.mark.parametrize("name", ["nested", "convolutions", "resnet9", "a layer with two names"])
def test_parties_that_are_kept_take_the_same_steps_as_new_ones(name: str):
    model, shape = (two_names(), (6,)) if name == "a layer with two names" else model_of(name)
    kept, tensors = Parties(model), state_of(model)
    for number, sizes in enumerate(([3, 2], [2, 4, 1], [5])):
        batches = batches_of(shape, sizes, seed=number)
        found, wanted = (take(tensors, batches) for take in (kept.step, Parties(model).step))
        for left, right in ((found.grads, wanted.grads), (found.buffers, wanted.buffers)):
            assert all(torch.equal(left[key], right[key]) for key in right)
        assert (found.bytes_up, found.bytes_down, found.scores) == (
            wanted.bytes_up,
            wanted.bytes_down,
            wanted.scores,
        )
        tensors = {
            key: value - LR * found.grads.get(key, 0)
            for key, value in {**tensors, **found.buffers}.items()
        }


def test_two_runs_give_the_same_bits_with_dropout_and_leave_the_weights_alone():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
    ).double()
    tensors, batches = state_of(model), batches_of((6,), (3, 2, 4), 0)
    before = {key: value.clone() for key, value in tensors.items()}
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append(Parties(model).step(tensors, batches))
    assert all(torch.equal(runs[0].grads[key], runs[1].grads[key]) for key in runs[0].grads)
    assert all(torch.equal(tensors[key], before[key]) for key in before)


# -- the layer alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (3, 3, 2), (2, 3, 2, 2)], ids=str)
def test_the_layer_has_the_gradient_that_finite_differences_find(shape: tuple[int, ...]):
    layer = nn.BatchNorm2d(3).double()
    # Alone: totals are its own
    own = ExactBatchNorm(layer, 0, lambda kind, place, values, count: (values, count))
    x = torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    weight = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64, requires_grad=True)

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(own, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(apply, (x, weight))


def test_finite_differences_through_three_parties():
    model, shape = model_of("nested")
    tensors, batches = state_of(model), batches_of(shape, (2, 1, 3), 0)
    grads = Parties(model).step(tensors, batches).grads
    for name, at in (
        ("inner.0.weight", (1, 2)),
        ("inner.1.0.weight", (3,)),
        ("twice.bias", (0,)),
        ("tail.a.0.bias", (2,)),
    ):
        ends = []
        for step in (1e-6, -1e-6):
            moved = tensors[name].clone()
            moved[at] += step
            ends.append(Parties(model).step({**tensors, name: moved}, batches).loss_sum / 6)
        assert float(grads[name][at]) == pytest.approx(float((ends[0] - ends[1]) / 2e-6), abs=1e-7)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_bytes_by_hand():
    model = dense().float()  # Linear(6, 5), BatchNorm1d(5), Linear(5, 3)
    batches = [(x.float(), y) for x, y in batches_of((6,), (2, 1, 4), 0)]
    done = Parties(model).step(state_of(model), batches)
    # Frames: 24 bytes, 4 an axis, 4 a number. BatchNorm: 5 and 5 numbers in one axis, 2 x 5 in two.
    norm = 2 * (24 + 4 + 4 * 5) + (24 + 8 + 4 * 10)
    weights = (
        (24 + 8 + 4 * 30)
        + (24 + 4 + 4 * 5)
        + 2 * (24 + 4 + 4 * 5)
        + (24 + 8 + 4 * 15)
        + (24 + 4 + 4 * 3)
    )
    score = 24 + 4 + 8 * 2
    assert bn_bytes(model, torch.float32) == norm
    assert step_bytes(model, torch.float32) == (norm + weights + score, norm + weights)
    assert (done.bytes_up, done.bytes_down) == (3 * (norm + weights + score), 3 * (norm + weights))


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name != "nested"]
)  # which uses a layer twice and names it once
def test_bytes_are_known_beforehand(name: str):
    model, shape = model_of(name)
    hub = Hub(model, state_of(model), 2)
    opening, between = hub.opening(), [0, 0]

    def work(party: int, x: Tensor, y: Tensor) -> Callable:
        def ask(meet: Callable[[bytes], bytes], message: bytes) -> bytes:
            answer = meet(message)
            between[party] += len(answer)
            assert len(answer) == len(message)
            return answer

        return lambda meet: Party(model, lambda message: ask(meet, message)).step(opening, x, y)

    batches = batches_of(shape, (2, 3), 0)
    hub.finish(
        in_turn(
            [work(i, *batch) for i, batch in enumerate(batches)],
            lambda given: hub.add(list(given.values())),
        )
    )
    assert between == [bn_bytes(model, torch.float64)] * 2
    up, down = step_bytes(model, torch.float64)
    assert (hub.bytes_up, hub.bytes_down) == ([up] * 2, [down] * 2)


def test_a_layer_that_is_named_twice_is_counted_twice():
    layer = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.ReLU(), layer)
    assert bn_bytes(model, torch.float64) == 2 * bn_bytes(layer, torch.float64)
    batches = [(x.float(), y) for x, y in batches_of((3,), (2, 3), 0)]
    assert (
        Parties(model).step(state_of(model), batches).bytes_up
        == 2 * step_bytes(model, torch.float32)[0]
    )


def test_a_frame_on_the_wire():
    frame = Frame(7, Kind.SPREAD, 3, 12, torch.tensor([[1.0, -2.0]]))
    wire = frame.pack()
    head = b"FSN1" + bytes([3, 0, 2, 0]) + struct.pack("<IIQ", 7, 3, 12)
    assert wire == head + struct.pack("<II", 1, 2) + struct.pack("<ff", 1.0, -2.0)
    for values in (
        torch.tensor(3),
        torch.zeros(0, 2, dtype=torch.float64),
        torch.tensor([True, False]),
    ):
        [back] = unpack(Frame(0, Kind.WEIGHT, 0, 0, values).pack())
        assert back.values.dtype == values.dtype
        assert torch.equal(back.values, values)
    with pytest.raises(FedskewError, match=r"torch\.complex64 cannot be sent"):
        Frame(0, Kind.WEIGHT, 0, 0, torch.zeros(2, dtype=torch.complex64)).pack()


@pytest.mark.parametrize("cut", [1, 23, 24, 27, 28, 35])
def test_a_truncated_message_is_refused(cut: int):
    wire = Frame(0, Kind.SUM, 0, 1, torch.zeros(2)).pack()
    assert len(wire) == 36
    with pytest.raises(FedskewError, match=f"message of {cut} bytes is truncated"):
        unpack(wire[:cut])
    with pytest.raises(FedskewError, match=f"message of {36 + cut} bytes is truncated"):
        unpack(wire + wire[:cut])


@pytest.mark.parametrize(("at", "value"), [(0, 0), (4, 0), (4, 99), (5, 77), (6, 200)])
def test_what_is_no_frame_is_refused(at: int, value: int):
    wire = bytearray(Frame(0, Kind.SUM, 0, 1, torch.zeros(2)).pack())
    wire[at] = value
    with pytest.raises(FedskewError, match="byte 0 of a message of 36 begins no frame"):
        unpack(bytes(wire))


def tampered(change: Callable[[Frame], Frame | list[Frame]], party: int = 1, at: int = 0) -> None:
    """Take a step of three parties in which one sends a wrong frame in its exchange number ``at``."""
    model, shape = model_of("dense")
    hub = Hub(model, state_of(model), 3)
    opening = hub.opening()

    def work(number: int, x: Tensor, y: Tensor) -> Callable:
        def run(meet: Callable[[bytes], bytes]) -> bytes:
            exchanges = iter(range(99))

            def ask(message: bytes) -> bytes:
                if number == party and next(exchanges) == at:
                    changed = change(unpack(message)[0])
                    message = b"".join(
                        one.pack() for one in (changed if isinstance(changed, list) else [changed])
                    )
                return meet(message)

            return Party(model, ask).step(opening, x, y)

        return run

    batches = batches_of(shape, (2, 3, 2), 0)
    before = threading.active_count()
    try:
        hub.finish(
            in_turn(
                [work(i, *batch) for i, batch in enumerate(batches)],
                lambda given: hub.add(list(given.values())),
            )
        )
    finally:
        assert threading.active_count() == before  # no party is left waiting


def other(**changes: object) -> Callable[[Frame], Frame]:
    return lambda frame: Frame(**{**vars(frame), **changes})


def test_messages_that_are_not_due_are_refused():
    due = r"where step 0 sum 0 \(5 float64\) is due"
    for change, said in (
        (other(step=4), rf"party 1 sent step 4 sum 0 \(5 float64\) {due}"),
        (other(kind=Kind.SLOPE), rf"party 1 sent step 0 slope 0 \(5 float64\) {due}"),
        (other(place=1), rf"party 1 sent step 0 sum 1 \(5 float64\) {due}"),
        (other(values=torch.zeros(4).double()), rf"party 1 sent step 0 sum 0 \(4 float64\) {due}"),
        (other(values=torch.zeros(5)), rf"party 1 sent step 0 sum 0 \(5 float32\) {due}"),
        (lambda frame: [frame, frame], "party 1 sent 2 frames where 1 are expected"),
        (lambda frame: [], "party 1 sent 0 frames where 1 are expected"),
    ):
        with pytest.raises(FedskewError, match=said):
            tampered(change)
    for change, said in (
        (other(kind=Kind.GRADIENT), "party 0 sent gradient 0, which is not expected"),
        (other(kind=Kind.SPREAD), "party 0 sent spread 0, which is not expected"),
        (other(place=1), "party 0 sent sum 1, which is not expected"),
    ):
        with pytest.raises(FedskewError, match=said):
            tampered(change, party=0)
    with pytest.raises(FedskewError, match="party 2 sent step 0 sum 0"):
        tampered(other(kind=Kind.SUM), party=2, at=1)
    tampered(lambda frame: frame)  # the frame itself is taken


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other(step=1), r"the hub sent step 1 sum 0 \(5 float64\) where step 0 sum 0"),
        (other(values=torch.zeros(6).double()), r"the hub sent step 0 sum 0 \(6 float64\)"),
        (lambda frame: None, "the hub answered one frame with 2"),
    ],
)
def test_a_party_refuses_a_wrong_answer(change: Callable, said: str):
    model, shape = model_of("dense")
    hub = Hub(model, state_of(model), 1)

    def answer(message: bytes) -> bytes:
        right = hub.add([message])
        changed = change(unpack(right)[0])
        return right + right if changed is None else changed.pack()

    [(x, y)] = batches_of(shape, (4,), 0)
    with pytest.raises(FedskewError, match=said):
        Party(model, answer).step(hub.opening(), x, y)


def test_a_party_refuses_the_weights_of_another_model():
    model, shape = model_of("dense")
    [(x, y)] = batches_of(shape, (4,), 0)
    for theirs, said in (
        (nn.Linear(6, 3).double(), "the hub sent 2 tensors for a model of 6"),
        (
            dense().float(),
            r"the hub sent step 0 weight 0 \(5x6 float32\) where step 0 weight 0 \(5x6 float64\) is due",
        ),
    ):
        with pytest.raises(FedskewError, match=said):
            Party(model, lambda message: message).step(
                Hub(theirs, state_of(theirs), 1).opening(), x, y
            )


def test_a_party_that_ends_early_is_missed():
    model, _ = model_of("dense")
    hub = Hub(model, state_of(model), 2)
    with pytest.raises(FedskewError, match="1 of 2 parties sent a message"):
        hub.add([Frame(0, Kind.SUM, 0, 4, torch.zeros(5).double()).pack()])
    score = Frame(0, Kind.SCORE, 0, 4, torch.zeros(2).double()).pack()
    with pytest.raises(FedskewError, match="party 1 sent 1 frames where 7 are expected"):
        hub.finish([7 * score, score])


def test_one_row_in_all_is_refused_and_so_is_none():
    model, shape = model_of("dense")
    with pytest.raises(FedskewError, match="BatchNorm cannot normalise 1 values a channel"):
        Parties(model).step(state_of(model), batches_of(shape, (1,), 0))
    for batches in ([], batches_of(shape, (0, 0), 0)):
        with pytest.raises(FedskewError, match="without a row"):
            Parties(model).step(state_of(model), batches)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_a_party_ends_all_at_once(where: str):
    class Trap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if where == "forward" and len(x) == 3:
                raise ZeroDivisionError("in the second party")
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if len(grad) == 3:
                raise ZeroDivisionError("in the second party")
            return grad

    class Trapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Trap.apply(x)

    model = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), Trapped(), nn.BatchNorm1d(5), nn.Linear(5, 3)
    ).double()
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="in the second party"):
        Parties(model).step(state_of(model), batches_of((6,), (2, 3, 4), 0))
    assert threading.active_count() == before


def test_an_exception_in_the_reply_ends_all_too():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        in_turn([lambda meet: meet(0)] * 3, lambda given: 1 / given[0])
    assert threading.active_count() == before


def test_one_function_runs_at_a_time_and_in_order():
    seen = []

    def work(number: int) -> Callable:
        def run(meet: Callable) -> str:
            for turn in range(2 + number):
                seen.append((turn, number))
                meet(None)
            return f"done {number}"

        return run

    heard = []
    assert in_turn([work(0), work(1)], lambda given: heard.append(list(given))) == [
        "done 0",
        "done 1",
    ]
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]
    assert heard == [[0, 1], [0, 1], [1]]  # a finished party is not waited for
