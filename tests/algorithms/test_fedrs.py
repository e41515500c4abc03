"""FedRS against a calculation in NumPy, and its identity."""

import numpy as np
import pytest

from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LR, CLASSES = 0.3, 3


@ENGINES
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_by_hand(desk, engine, alpha: float):
    w = desk.start()
    for round in range(3):
        ended = []
        for client in range(5):
            counts = np.bincount(desk.y[desk.held[client]], minlength=CLASSES)
            factor = np.where(counts > 0, 1.0, alpha)
            mine = w.copy()
            for rows in desk.batches(round, client):
                total = 0.0
                for row in rows:
                    x = np.append(desk.x[row].astype(np.float64), 1.0)
                    logits = factor * (mine @ x)
                    chance = np.exp(logits) / np.exp(logits).sum()
                    total = total + np.outer(factor * (chance - np.eye(CLASSES)[desk.y[row]]), x)
                mine = mine - LR * total / len(rows)
            ended.append(mine)
        w = np.tensordot(desk.sizes / desk.sizes.sum(), np.stack(ended), 1)
    found, _ = desk.train(f"fedrs:alpha={alpha}", engine)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    assert np.abs(found - desk.train("fedavg", engine)[0]).max() > 1e-3


@ENGINES
def test_alpha_1_is_fedavg(desk, engine):
    np.testing.assert_allclose(
        desk.train("fedrs:alpha=1", engine)[0], desk.train("fedavg", engine)[0], rtol=0, atol=1e-12
    )
