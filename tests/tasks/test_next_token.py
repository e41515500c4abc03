"""Next-token tasks: losses and metrics against torch and scikit-learn, padding, a causal model, both engines."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked, can_be_stacked
from fedskew.models.build import build
from fedskew.server.server import Server
from fedskew.tasks.next_token import NextToken

TASK = NextToken()
VOCABULARY, LENGTH = 5, 7
SMALL = "char-transformer:width=8,heads=2,layers=2,per_token=true"


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and tokens, of which each row has one to seven."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, VOCABULARY, (rows, LENGTH))
    y[np.arange(LENGTH) >= draw.integers(1, LENGTH + 1, (rows, 1))] = -1
    return draw.normal(size=(rows, LENGTH, VOCABULARY)), y


def federation(sizes: tuple[int, ...] = (9, 5, 4, 7, 2)) -> Federation:
    def rows(count: int, seed: int) -> Rows:
        draw = np.random.default_rng(seed)
        x = draw.integers(0, VOCABULARY, (count, LENGTH)).astype(np.float32)
        return Rows(x, drawn(count, seed)[1])

    owner = np.repeat(np.arange(len(sizes)), sizes)
    data = Dataset("made up", rows(sum(sizes), 0), rows(20, 1), tuple("abcde"))
    return Federation(data, Partition.from_owner(owner, len(sizes)))


def trained(method: str, engine, model: str = SMALL) -> Server:
    fed = federation()
    settings = Settings(rounds=10, batch_size=4, lr=0.1, dtype="float64", device="cpu", threads=1)
    network = build(model, fed.data.shape, VOCABULARY, seed=0)
    server = Server(fed, network, resolve(method), settings, engine, TASK)
    server.results = [server.advance() for _ in range(3)]
    return server


def test_the_loss_of_a_row_is_the_mean_over_its_tokens() -> None:
    outputs, y = drawn(6, 0)
    found = TASK.losses(torch.from_numpy(outputs), torch.from_numpy(y), "none")
    for row in range(6):
        real = y[row] >= 0
        expected = F.cross_entropy(
            torch.from_numpy(outputs[row][real]), torch.from_numpy(y[row][real])
        )
        assert found[row].item() == pytest.approx(expected.item())
    assert TASK.losses(torch.from_numpy(outputs), torch.from_numpy(y)).item() == pytest.approx(
        found.mean().item()
    )


def test_axes_in_front_are_kept_and_places_without_a_token_have_no_slope() -> None:
    outputs, y = map(torch.from_numpy, drawn(6, 1))
    stack, tokens = outputs.view(2, 3, LENGTH, VOCABULARY), y.view(2, 3, LENGTH)
    assert torch.equal(
        TASK.losses(stack, tokens, "none").flatten(), TASK.losses(outputs, y, "none")
    )
    assert TASK.row_scores(stack, tokens).shape == (2, 3)
    share = torch.tensor([[0.5, 0.5, 0], [1, 0, 0]], dtype=torch.float64)
    slopes = TASK.slopes(stack, tokens, share)
    assert not slopes[tokens == -1].any()
    assert not slopes[share == 0].any()
    assert slopes[0, 0, 0].abs().sum() > 0


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_scikit_learn_s_over_all_tokens(seed: int) -> None:
    outputs, y = drawn(300, seed)
    found = TASK.evaluate(outputs, y)
    real = y >= 0
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y[real], outputs.argmax(-1)[real]))
    shares = np.exp(outputs[real])
    shares /= shares.sum(1, keepdims=True)
    surprise = sk.log_loss(y[real], shares, labels=range(VOCABULARY))
    assert found["perplexity"] == pytest.approx(math.exp(surprise))
    rows = TASK.row_scores(torch.from_numpy(outputs), torch.from_numpy(y))
    assert rows[3].item() == pytest.approx((outputs.argmax(-1) == y)[3][real[3]].mean())


def test_a_uniform_model_has_the_vocabulary_as_its_perplexity() -> None:
    _, y = drawn(10, 0)
    found = TASK.evaluate(np.zeros((10, LENGTH, VOCABULARY)), y)
    assert found["perplexity"] == pytest.approx(VOCABULARY)


@pytest.mark.parametrize("rows_at_once", [3, 50])
def test_evaluation_keeps_three_numbers_a_row(monkeypatch, rows_at_once: int) -> None:
    """The scores are those of all outputs side by side, of which there are never more than a batch."""
    server = trained("fedper", Loop())
    evaluator = server.evaluator
    widest = []

    def outputs(tensors, x, index):
        for some in torch.split(index, rows_at_once):
            model.load_state_dict(tensors)
            with torch.inference_mode():
                widest.append(model(x[some]))
            yield widest[-1], some

    model = build(SMALL, (LENGTH,), VOCABULARY, seed=0).double()
    monkeypatch.setattr(evaluator._runner.inference, "outputs", outputs)
    state = server.client_model(0)
    scores = evaluator.all_scores(state)["test"]
    assert max(map(len, widest)) <= rows_at_once
    found = evaluator.found(state, {})["test"]
    assert found.kept.shape == (20, 3)
    assert found.targets.shape == (20, 0)
    test = server.fed.test
    model.load_state_dict(state)
    with torch.inference_mode():
        every = model(torch.from_numpy(test.x).long())
    y = torch.from_numpy(test.y)
    surprise = F.cross_entropy(every.flatten(0, 1), y.flatten(), ignore_index=-1)
    right = (every.argmax(-1) == y)[y >= 0].double().mean()
    assert scores["loss"] == pytest.approx(float(TASK.losses(every, y)), rel=1e-12)
    assert scores["accuracy"] == pytest.approx(float(right), rel=1e-12)
    assert scores["perplexity"] == pytest.approx(math.exp(float(surprise)), rel=1e-12)
    rows = TASK.kept_scores(TASK.kept(every, y), y)
    torch.testing.assert_close(rows, TASK.row_scores(every, y))


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox:mu=0.1", "scaffold", "fedsam:rho=0.1", "q-fedavg"]
)
def test_both_engines_agree(lab, method: str) -> None:
    plain, stack = (trained(method, engine) for engine in (Loop(), Stacked(mode="stack")))
    assert can_be_stacked(plain.model, plain.job.x)
    assert lab.gap(plain, stack) < 1e-8
    assert plain.results[0].round["train_loss"] > plain.results[-1].round["train_loss"]


def test_the_model_sees_no_later_token() -> None:
    model = build(SMALL, (LENGTH,), VOCABULARY, seed=0).double()
    x = torch.randint(VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 4] = (x[:, 4] + 1) % VOCABULARY
    before, after = model(x), model(changed)
    assert before.shape == (3, LENGTH, VOCABULARY)
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before - after)[:, 4:].abs().sum(-1) > 1e-6).all()


def test_attention_is_torch_s() -> None:
    attention = build(SMALL, (LENGTH,), VOCABULARY, seed=0).double().features.blocks[0].attention
    x = torch.randn(3, LENGTH, 8, dtype=torch.float64)
    parts = []
    for layer in (attention.query, attention.key, attention.value):
        parts.append(layer(x).view(3, LENGTH, 2, 4).transpose(1, 2))
    together = F.scaled_dot_product_attention(*parts, is_causal=True)
    expected = attention.out(together.transpose(1, 2).reshape(3, LENGTH, 8))
    torch.testing.assert_close(attention(x), expected)


def test_the_last_place_answers_for_a_class() -> None:
    model = build("char-transformer:width=8,heads=2", (LENGTH,), VOCABULARY, seed=0)
    each = build("char-transformer:width=8,heads=2,per_token=true", (LENGTH,), VOCABULARY, seed=0)
    x = torch.zeros(2, LENGTH, dtype=torch.int64)
    torch.testing.assert_close(model(x), each(x)[:, -1])


def test_what_cannot_be_is_refused() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, VOCABULARY, (20, LENGTH))
    _, y = drawn(20, 0)
    fed = fs.split((x, y), "quantity", clients=2, task="next-token", classes=VOCABULARY)
    assert len(fed.data.classes) == VOCABULARY
    run = fs.train(fed, SMALL, rounds=1, folder=False)
    assert run.summary["test_perplexity_last"] > 1
    assert run.predict(x[:3]).shape == (3, LENGTH)
    with pytest.raises(
        FedskewError, match=r"expected a tensor of shape \(1, 7, 5\): one logit a token"
    ):
        fs.train(fed, "char-transformer:width=8", rounds=1, folder=False)
    for method in ("moon", "fedlc", "fedproto"):
        with pytest.raises(FedskewError, match="use another method"):
            fs.train(fed, SMALL, method, rounds=1, folder=False)
    with pytest.raises(FedskewError, match="task classification learns classes"):
        fs.train(fed, SMALL, task="classification", rounds=1, folder=False)
    with pytest.raises(
        FedskewError, match="skew dirichlet deals out classes, and the targets are a token"
    ):
        fs.split((x, y), "dirichlet", clients=2, task="next-token", classes=VOCABULARY)
    with pytest.raises(FedskewError, match=r"row .* has the token 5, expected 0 … 4"):
        fs.split(
            (x, np.where(y == 2, 5, y)), "iid", clients=2, task="next-token", classes=VOCABULARY
        )
    with pytest.raises(FedskewError, match="target=tokens takes whole numbers"):
        fs.split((x, y + 0.5), "iid", clients=2, task="next-token", classes=VOCABULARY)
    with pytest.raises(FedskewError, match="width=8 is not a multiple of heads=3"):
        fs.train(fed, "char-transformer:width=8,heads=3", rounds=1, folder=False)
