"""Secure sums: the total is correct, a single message is noise, and every missing party is noticed."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from fedskew.batchnorm.exact import Hub, Parties, Party, presence, step_bytes
from fedskew.batchnorm.turns import in_turn
from fedskew.core.errors import FedskewError
from fedskew.label_privacy.secure_sum import Dealer, Masks, opened
from fedskew.models.build import build
from fedskew.transport.frames import Frame, Kind, unpack

CLIENTS = 12


def ends(parties: list[int], clients: int = CLIENTS) -> list[Masks]:
    dealer = Dealer()
    return [Masks(me, dealer.seeds(me, clients)) for me in parties]


def batches_of(sizes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw))
        for n in sizes
    ]


def dense(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(5)] if norm else []
    return nn.Sequential(nn.Linear(6, 5), *middle, nn.Tanh(), nn.Linear(5, 3))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.detach().clone()
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }


class Listener(Hub):
    """A hub that keeps every message."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.heard: list[list[bytes]] = []

    def _received(self, messages, due):
        self.heard.append(list(messages))
        return super()._received(messages, due)


def listened(
    model: nn.Module, masks: list[Masks | None], sizes: tuple[int, ...], step: int = 0
) -> Listener:
    present = presence([own.me for own in masks], CLIENTS) if masks[0] else None
    hub = Listener(model, state_of(model), len(masks), step, present)
    opening = hub.opening()
    batches = batches_of(sizes)
    work = [
        lambda ask, x=x, y=y, own=own: Party(model, ask, own).step(opening, x, y)
        for (x, y), own in zip(batches, masks, strict=True)
    ]
    hub.finish(in_turn(work, lambda given: hub.add([given[party] for party in sorted(given)])))
    return hub


def test_the_sum_is_that_of_the_numbers_to_fixed_point_rounding():
    masks = ends([0, 3, 11])
    values = [
        torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) * 1000
        for k in range(3)
    ]
    for own in masks:
        own.enter(4, [0, 3, 11])
    total = sum(own.hide(mine, 40) for own, mine in zip(masks, values, strict=True))
    assert (
        float((opened(total, 40, torch.float64) - sum(values)).abs().max())
        <= 3 * 2.0**-41 + 3000 * 2.0**-52
    )


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_numbers_of_any_shape(shape: tuple[int, ...]):
    masks = ends([1, 2])
    for own in masks:
        own.enter(0, [1, 2])
    total = sum(own.hide(torch.full(shape, -0.25), 40) for own in masks)
    assert torch.equal(opened(total, 40, torch.float32), torch.full(shape, -0.5))


@pytest.mark.parametrize("name", ["mlp:hidden=6", "tabular:hidden=6"])
def test_a_step_with_secure_sums_is_the_step(name: str):
    model = build(name, (6,), 3, seed=0).double()
    batches = [(x.double(), y) for x, y in batches_of((4, 1, 3))]
    plain = Parties(model).step(state_of(model), batches)
    secret = Parties(model).step(state_of(model), batches, ends([2, 5, 7]))
    for one, other in ((plain.grads, secret.grads), (plain.buffers, secret.buffers)):
        for key, value in one.items():
            torch.testing.assert_close(other[key], value, rtol=0, atol=1e-7)
    assert float(secret.loss_sum) == pytest.approx(float(plain.loss_sum), abs=1e-8)
    assert secret.score_sum == plain.score_sum
    assert secret.scores == []


def test_no_message_of_a_client_tells_a_label():
    """Check that plain messages reveal the label, where the bias gradient is negative, and masked ones do not."""
    model, sizes = dense(norm=False), (1,) * 6
    labels = [int(y) for _, y in batches_of(sizes)]

    def guesses(masks: list[Masks | None]) -> list[int]:
        hub = listened(model, masks, sizes)
        return [int(unpack(message)[-2].values.argmin()) for message in hub.heard[-1]]

    assert guesses([None] * 6) == labels
    right = [np.mean(np.array(guesses(ends(list(range(6))))) == labels) for _ in range(60)]
    assert np.mean(right) == pytest.approx(1 / 3, abs=0.12)


def test_every_number_that_reaches_the_hub_is_uniform_noise():
    numbers = []
    for step in range(40):
        hub = listened(dense(), ends([1, 4, 9]), (2, 3, 1), step)
        frames = [
            frame for messages in hub.heard for message in messages for frame in unpack(message)
        ]
        assert {frame.kind for frame in frames} == {
            Kind.SUM,
            Kind.SPREAD,
            Kind.SLOPE,
            Kind.GRADIENT,
            Kind.SCORE,
        }
        assert all(frame.values.dtype == torch.int64 for frame in frames)
        numbers += [int(value) for frame in frames for value in frame.values.flatten()]
    assert kstest(np.array(numbers) * 2.0**-64 + 0.5, "uniform").pvalue > 1e-6


def test_masks_do_not_come_twice():
    model, (own, other) = dense(), ends([0, 1])
    first, second = ([own, other] for _ in range(2))
    heard = [
        listened(model, masks, (2, 2), step).heard for step, masks in enumerate((first, second))
    ]
    same = [a == b for one, two in zip(*heard, strict=True) for a, b in zip(one, two, strict=True)]
    assert not any(same)  # the same weights and rows, and yet no message alike
    with pytest.raises(FedskewError, match="client 0: step 1 of secure sums was begun before"):
        listened(model, [own, other], (2, 2), 1)


def test_without_one_of_its_clients_a_step_is_not_opened_and_the_next_one_is():
    model, masks = dense(norm=False), ends([0, 1, 2])
    batches = batches_of((2, 2, 2))
    hub = Hub(model, state_of(model), 3, 0, presence([0, 1, 2], CLIENTS))
    last = [
        Party(model, lambda _: b"", own).step(hub.opening(), x, y)
        for own, (x, y) in zip(masks, batches, strict=True)
    ]
    with pytest.raises(FedskewError, match="2 of 3 parties sent a message"):
        hub.finish(last[:2])
    # Opened all the same, as if there had been two, it is noise.
    hub = Hub(model, state_of(model), 2, 0, presence([0, 1], CLIENTS))
    assert max(float(value.abs().max()) for value in hub.finish(last[:2]).grads.values()) > 1000
    after = Parties(model).step(state_of(model), batches[:2], masks[:2], step=1)
    wanted = Parties(model).step(state_of(model), batches[:2])
    for name, value in wanted.grads.items():
        torch.testing.assert_close(after.grads[name], value)


def test_the_server_together_with_all_but_two_clients_learns_their_sum_alone():
    masks = ends([0, 1, 2, 3])
    values = [torch.full((400,), float(me)) for me in range(4)]
    for own in masks:
        own.enter(0, [0, 1, 2, 3])
    sent = [own.hide(mine, 40) for own, mine in zip(masks, values, strict=True)]
    left = sent[0].numpy().view(np.uint64)
    for traitor in (masks[2], masks[3]):  # they take off what they share with client 0
        traitor._sent -= 1
        left = left - traitor._mask(0, 400)
    assert kstest(left.view(np.int64) * 2.0**-64 + 0.5, "uniform").pvalue > 1e-6
    masks[1]._sent -= 1
    open_now = (left - masks[1]._mask(0, 400)).view(np.int64)  # its last partner betrays it too
    assert not open_now.any()


@pytest.mark.parametrize(
    ("present", "value", "words"),
    [
        ([0], 1.0, "client 0 is alone in step 0"),
        ([1, 2], 1.0, r"client 0: a secure sum over clients \[1, 2\] needs this client"),
        ([0, 77], 1.0, "enrol all of them with the same key holder"),
        ([0, 1], float("nan"), r"a number is not finite, or not below 4.19e\+06"),
        ([0, 1], 2.0**22, "standardise the data or lower lr"),
    ],
)
def test_refused(present: list[int], value: float, words: str):
    [own] = ends([0])

    def send() -> None:
        own.enter(0, present)
        own.hide(torch.tensor([value], dtype=torch.float64), 40)

    with pytest.raises(FedskewError, match=words):
        send()


def test_bytes_by_hand():
    model = dense()
    done = Parties(model).step(state_of(model), batches_of((2, 1, 4)), ends([0, 1, 2]))
    norm_down = 2 * (24 + 4 + 4 * 5) + (24 + 8 + 4 * 10)
    norm_up = 2 * (24 + 4 + 8 * 5) + (24 + 8 + 8 * 10)
    heads, numbers = 2 * (24 + 8) + 4 * (24 + 4), 30 + 5 + 5 + 5 + 15 + 3
    up = norm_up + heads + 8 * numbers + (24 + 4 + 8 * 2)
    down = norm_down + heads + 4 * numbers + (24 + 4 + 2)  # 12 clients are 12 bits
    assert step_bytes(model, torch.float32, CLIENTS) == (up, down)
    assert (done.bytes_up, done.bytes_down) == (3 * up, 3 * down)


def test_a_party_refuses_to_send_bare_numbers_into_a_secure_sum():
    model = dense(norm=False)
    [(x, y)] = batches_of((2,))
    [own] = ends([0])
    with pytest.raises(FedskewError, match="the hub sent step 0 weight 3"):
        Party(model, lambda message: message, own).step(
            Hub(model, state_of(model), 1).opening(), x, y
        )
    hub = Hub(model, state_of(model), 1, 0, presence([0, 1], CLIENTS))
    bare = Frame(0, Kind.GRADIENT, 0, 2, torch.zeros(5, 6))
    with pytest.raises(
        FedskewError,
        match=r"party 0 sent step 0 gradient 0 \(5x6 float32\) where .* int64\) is due",
    ):
        hub.finish([b"".join([bare.pack()] * 5)])


@pytest.mark.skipif(find_spec("tenseal") is None, reason="tenseal is not installed")
def test_the_key_holder_deals_the_seeds_and_the_server_gets_none(holder):
    from fedskew.label_privacy.enrolment import enrol

    ann, bob = (enrol(holder.for_client(name), name).masks for name in ("ann", "bob"))
    assert (ann.me, bob.me) == (0, 1)
    assert ann.seeds[1] == bob.seeds[0]
    server = holder.for_server()
    assert enrol(server, "the server").masks is None
    assert ann.seeds[1] not in server
