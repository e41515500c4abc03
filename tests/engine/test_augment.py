"""Crops and flips: against an explicit loop, uniform, and the same for a client alone and with others."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.engine.augment import PAD, augment, check_images, draw_moves
from fedskew.engine.plan import Plan

CPU = torch.device("cpu")


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def numbers(value: int, *shape: int) -> Tensor:
    return torch.full(shape, value, dtype=torch.uint8)


def plan(
    clients: list[int],
    sizes: list[int],
    batch: int = 4,
    epochs: int = 2,
    round: int = 1,
    seed: int = 5,
) -> Plan:
    count = len(clients)
    return Plan.draw(
        seed,
        round,
        np.array(clients),
        np.array(sizes),
        np.full(count, batch),
        np.full(count, epochs),
    )


def by_hand(image: Tensor, down: int, right: int, flip: int) -> Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * PAD, width + 2 * PAD)
    padded[:, PAD : PAD + height, PAD : PAD + width] = image
    piece = padded[:, down : down + height, right : right + width]
    return piece.flip(2) if flip else piece


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 2, 2), (4, 2, 9, 3)])
def test_every_move_is_that_of_a_loop_by_hand(shape: tuple[int, ...]):
    image = images(*shape)[0]
    moves = torch.cartesian_prod(
        torch.arange(2 * PAD + 1), torch.arange(2 * PAD + 1), torch.arange(2)
    )
    found = augment(image.expand(len(moves), *image.shape), *moves.T)
    expected = torch.stack([by_hand(image, *move) for move in moves.tolist()])
    assert torch.equal(found, expected)


def test_leading_axes_are_kept_and_each_image_has_its_own_move():
    x = images(3, 4, 2, 6, 5).double()
    down, right = (
        torch.randint(9, (3, 4), generator=torch.Generator().manual_seed(i)) for i in (1, 2)
    )
    flip = torch.arange(12).view(3, 4) % 2
    found = augment(x, down, right, flip)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    for i in range(3):
        assert torch.equal(found[i], augment(x[i], down[i], right[i], flip[i]))
        for j in range(4):
            assert torch.equal(
                found[i, j],
                by_hand(x[i, j], int(down[i, j]), int(right[i, j]), int(flip[i, j])).double(),
            )


def test_identities():
    x = images(5, 3, 8, 6)
    still, flip = numbers(PAD, 5), numbers(1, 5)
    assert torch.equal(augment(x, still, still, numbers(0, 5)), x)
    once = augment(x, still, still, flip)
    assert torch.equal(once, x.flip(3))
    assert torch.equal(augment(once, still, still, flip), x)


def test_a_number_that_is_not_finite_does_not_reach_the_padding():
    x = torch.full((1, 1, 3, 3), torch.nan)
    # Four rows up: nothing of the image is left
    found = augment(x, numbers(0, 1), numbers(PAD, 1), numbers(0, 1))
    assert torch.equal(found, torch.zeros_like(x))


def test_an_empty_batch_stays_empty():
    nothing = numbers(0, 0)
    assert augment(images(0, 3, 8, 8), nothing, nothing, nothing).shape == (0, 3, 8, 8)


def test_moves_are_uniform_and_not_tied_to_each_other():
    down, right, flip = (
        draw_moves("crop+flip", plan([0, 1, 2], [3000, 3000, 3000], batch=30), CPU)
        .flatten(1)
        .long()
    )
    count = len(down)
    assert count == 18_000
    cells = torch.bincount((down * 9 + right) * 2 + flip, minlength=162).double()
    assert len(cells) == 162
    expected = count / 162
    # Chi-square with 161 degrees, the 0.9998 quantile
    assert float(((cells - expected) ** 2 / expected).sum()) < 233


@pytest.mark.parametrize(
    ("how", "crops", "flips"),
    [("crop", True, False), ("flip", False, True), ("crop+flip", True, True)],
)
def test_only_what_is_asked_for_moves(how, crops: bool, flips: bool):
    moves = draw_moves(how, plan([0, 1], [40, 40]), CPU)
    assert bool((moves[:2] != PAD).any()) == crops
    assert bool(moves[2].any()) == flips
    both = draw_moves("crop+flip", plan([0, 1], [40, 40]), CPU)
    if crops:
        assert torch.equal(moves[:2], both[:2])
    if flips:
        assert torch.equal(moves[2], both[2])


def test_none_draws_nothing():
    assert draw_moves("none", plan([0], [8]), CPU) is None


def test_a_client_has_the_same_moves_alone_and_among_others_in_any_order():
    together = plan([3, 7, 11], [10, 3, 25], batch=4)
    _, counts = together.table()
    moves = draw_moves("crop+flip", together, CPU)
    assert moves.shape[1:] == together.table()[0].shape
    for members in ([0], [1], [2], [2, 0], [1, 2, 0]):
        some = together.only(np.array(members))
        apart = draw_moves("crop+flip", some, CPU)
        for place, member in enumerate(members):
            for step, count in enumerate(counts[: int(some.steps[place]), member]):
                assert torch.equal(apart[:, step, place, :count], moves[:, step, member, :count])


def test_seed_round_client_step_and_slot_all_matter():
    def first(**other) -> Tensor:
        return draw_moves(
            "crop+flip", plan(**{"clients": [3], "sizes": [64], "batch": 16, **other}), CPU
        )

    reference = first()
    for other in ({"seed": 6}, {"round": 2}, {"clients": [4]}):
        assert not torch.equal(reference, first(**other)), other
    assert not torch.equal(reference[:, 0], reference[:, 1])
    assert not torch.equal(reference[..., 0], reference[..., 1])


def test_rows_that_are_no_images_are_refused():
    check_images("none", (561,))
    check_images("crop", (3, 32, 32))
    with pytest.raises(
        FedskewError, match=r"augment=flip needs images of shape .*, got rows of shape \(9, 128\)"
    ):
        check_images("flip", (9, 128))
