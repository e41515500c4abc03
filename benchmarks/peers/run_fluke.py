"""fluke: its FedAVG with its fast data loader and without any evaluation; one thread."""

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader

from benchmarks.peers.rounds import Clock, arguments, loss_of, model, tensors

given, clock = arguments(), Clock()
work = given.work
torch.set_num_threads(1)
FlukeENV().set_seed(1)
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
x, y = tensors(work)


class Splitter:
    def assign(self, n_clients: int, batch_size: int) -> Any:
        loaders = [
            FastDataLoader(x[c], y[c], num_labels=work.classes, batch_size=batch_size, shuffle=True)
            for c in range(n_clients)
        ]
        return (loaders, [None] * n_clients), None


class Timed(FedAVG):
    def _compute_evaluation(self, round: int, eligible: Any) -> None:
        if len(clock.marks) < given.rounds + 2:  # it is called once more after the last round
            clock.mark()


options = DDict(
    client=DDict(
        batch_size=work.batch,
        local_epochs=work.epochs,
        loss="CrossEntropyLoss",
        persistency=False,
        optimizer=DDict(name="SGD", lr=work.lr, momentum=work.momentum),
        scheduler=DDict(name="StepLR", step_size=10**6, gamma=1.0),
    ),
    server=DDict(weighted=True),
    model=model(work),
)
method = Timed(work.clients, Splitter(), options)
clock.mark()
method.run(given.rounds + 1, work.per_round / work.clients + 1e-9)
clock.report(loss_of(method.server.model, work), "fluke-fl", "torch")
