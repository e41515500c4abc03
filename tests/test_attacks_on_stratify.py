"""The attacks of two benchmarks by hand: rows and labels from a gradient, and steps that are those of Stratify."""

import numpy as np
import pytest
import torch
from benchmarks.gradient_inversion import (
    Target,
    exact_rows,
    label_of,
    matched_rows,
    paired,
    quality,
)
from benchmarks.stratify_attacked import (
    CLIP,
    MODEL,
    PLANS,
    clip,
    gradients,
    mean,
    median,
    named,
    noisy,
    poisoned,
    trained,
)

import fedskew as fs
from fedskew.models.build import build


@pytest.fixture(scope="module")
def target() -> Target:
    data = fs.load("digits")
    model = build("mlp:hidden=32", (1, 8, 8), 10, seed=0)
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
    return Target(model.double(), weights.double(), x.double(), y)


@pytest.mark.parametrize("row", [0, 7, 100])
def test_a_batch_of_one_row_is_recovered_exactly(target: Target, row: int):
    gradient = target.gradient(target.x[[row]], target.y[[row]])
    found = exact_rows(target, gradient, 1)
    assert (found[0] - target.x[row]).abs().max() < 1e-6
    assert label_of(target, gradient) == int(target.y[row])
    # A factor, and so clipping, changes nothing
    small = clip(1000 * gradient[None], torch.tensor([1]))[0]
    assert small.norm() == pytest.approx(CLIP)
    assert (exact_rows(target, small, 1)[0] - target.x[row]).abs().max() < 1e-6


def test_two_rows_are_recovered_where_neurons_see_one_of_them_alone(target: Target):
    # Neuron 0 and 1 see the first row, 2 and 3 the second, 4 both
    rows = target.x[[0, 1]].flatten(1)
    share = torch.tensor([[1.0, 2, 0, 0, 1], [0, 0, 3, -1, 1]], dtype=torch.float64)
    gradient = torch.zeros_like(target.weights)
    parts = named(target.model, gradient)
    weight, bias = list(parts.values())[:2]
    weight[:5], bias[:5] = share.T @ rows, share.sum(0)
    found = exact_rows(target, gradient, 2)
    assert (paired(target, found, np.array([0, 1])) - target.x[[0, 1]]).abs().max() < 1e-12
    assert quality(target, found, np.array([0, 1])) == (60, 1)


def test_a_single_label_is_that_of_the_negative_entry(target: Target):
    for row in range(50):
        bias = named(target.model, target.gradient(target.x[[row]], target.y[[row]]))["head.bias"]
        assert (bias < 0).sum() == 1
        assert int(bias.argmin()) == int(target.y[row])


def test_matching_finds_a_picture(target: Target):
    row = np.array([3])
    gradient = target.gradient(target.x[row], target.y[row])
    single = target._replace(weights=target.weights.float(), x=target.x.float())
    decibels, right = quality(single, matched_rows(single, gradient.float(), target.y[row]), row)
    assert right == 1
    assert decibels > 20


@pytest.mark.parametrize("kind", ["label-flip", "backdoor"])
def test_steps_without_a_defence_are_those_of_stratify(kind: str):
    here = poisoned(fs.load("digits"), 2, 0, kind, 0.2)
    plan = PLANS["digits"]._replace(rounds=1)
    run = fs.train(
        here.fed,
        MODEL,
        f"stratify-batch + attack:kind={kind},share=0.2",
        rounds=1,
        lr=plan.lr,
        batch_size=32,
        threads=1,
        device="cpu",
        folder=False,
    )
    due = torch.cat([value.detach().flatten() for value in run.model.parameters()])
    found = trained(here, plan, 0, mean)
    assert (found - due).abs().max() < 1e-4


def test_defences_by_hand(target: Target):
    x, y = target.x[:3], target.y[:3]
    clients = torch.tensor([4, 1, 4])
    each, counts = gradients(target.model, target.weights, x, y, clients)
    assert counts.tolist() == [1, 2]
    whole = target.gradient(x, y)
    assert (mean(each, counts, torch.Generator()) * 3 - whole).abs().max() < 1e-12
    assert (each[0] - target.gradient(x[[1]], y[[1]])).abs().max() < 1e-12
    within = clip(each, counts)
    assert (within.norm(dim=1) <= CLIP * counts + 1e-9).all()
    quiet = noisy(0.0)(each, counts, torch.Generator())
    assert (quiet - within.sum(0) / 3).abs().max() < 1e-12
    sums = torch.tensor([[2.0], [9.0], [4.0]])
    rows = torch.tensor([1, 3, 4])
    assert median(sums, rows, torch.Generator()).tolist() == [2.0]
