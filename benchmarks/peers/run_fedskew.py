"""This library, with the settings of a plain run: selection, plan, training, aggregation, records; no evaluation."""

import numpy as np
import torch

from benchmarks.peers.rounds import Clock, arguments, arrays, loss_of, model
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.models.parameters import load_weights
from fedskew.server.server import Server

NEVER = 10**9  # rounds to plan for, and rounds between evaluations

given = arguments()
work = given.work
x, y = arrays(work)
count = work.clients * work.rows
rows = Rows(x.reshape(count, *work.shape), y.reshape(count))
data = Dataset("random", rows, rows.take(np.arange(1)), tuple(map(str, range(work.classes))))
fed = Federation(data, Partition(np.arange(count), np.arange(0, count + 1, work.rows)))
settings = Settings(
    rounds=NEVER,
    eval_every=NEVER,
    device=given.device,
    engine=given.engine,
    per_round=work.per_round,
    epochs=work.epochs,
    batch_size=work.batch,
    lr=work.lr,
    momentum=work.momentum,
)
server = Server(fed, model(work), FedAvg(), settings)
clock = Clock(torch.cuda.synchronize if given.device == "cuda" else lambda: None)
clock.mark()
for _ in range(given.rounds + 1):
    server.advance()
    clock.mark()
net = model(work)
load_weights(net, {name: value.cpu() for name, value in server.state.model().items()})
clock.report(loss_of(net, work), "torch")
