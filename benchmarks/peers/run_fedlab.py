"""FedLab: StandalonePipeline with the serial SGD trainer and its data loaders; one thread.

Its trainer makes one SGD for all clients: every client gets one of its own, with momentum.
"""

import logging
import random
from typing import Any

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.rounds import Clock, arguments, loss_of, model, tensors

given, clock = arguments(), Clock()
work = given.work
torch.set_num_threads(1)
logging.disable(logging.CRITICAL)
random.seed(1)
x, y = tensors(work)


class Data:
    def get_dataloader(self, id: int, batch_size: int) -> Any:
        return DataLoader(TensorDataset(x[id], y[id]), batch_size=batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):
    def train(self, model_parameters: Any, train_loader: Any) -> Any:
        self.optimizer = torch.optim.SGD(
            self._model.parameters(), lr=self.lr, momentum=work.momentum
        )
        return super().train(model_parameters, train_loader)


class Timed(StandalonePipeline):
    def evaluate(self) -> None:
        clock.mark()


net = model(work)
trainer = Trainer(net, work.clients)
trainer.setup_dataset(Data())
trainer.setup_optim(work.epochs, work.batch, work.lr)
handler = SyncServerHandler(net, given.rounds + 1, min(1.0, work.per_round / work.clients + 1e-9))
clock.mark()
Timed(handler, trainer).main()
clock.report(loss_of(handler.model, work), "fedlab", "torch")
