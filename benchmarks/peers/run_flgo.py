"""FLGo: its fedavg on a benchmark generated from a file, without evaluation; one thread."""

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flgo
import torch
from flgo.algorithm import fedavg
from flgo.benchmark.partition import IIDPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.experiment.logger import BasicLogger

from benchmarks.peers.rounds import Clock, arguments, loss_of

BENCHMARK = """
import torch
from benchmarks.peers.rounds import WORKLOADS, model, tensors
work = WORKLOADS[{name!r}]
x, y = tensors(work)
train_data = torch.utils.data.TensorDataset(x.flatten(0, 1), y.flatten())
test_data = None
def get_model(): return model(work)
"""

given, clock = arguments(), Clock()
work = given.work
torch.set_num_threads(1)
# Its data sets override __getitem__ alone, which newer versions of PyTorch refuse.
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[row] for row in rows]


class Quiet(BasicLogger):
    def log_once(self, *rest: Any, **named: Any) -> None:
        pass

    def check_if_log(self, *rest: Any, **named: Any) -> bool:
        return False

    def early_stop(self) -> bool:
        return False

    def save_output_as_json(self, *rest: Any, **named: Any) -> None:
        pass

    def info(self, *rest: Any, **named: Any) -> None:
        pass


class Server(fedavg.Server):
    def iterate(self) -> Any:
        found = super().iterate()
        clock.mark()
        return found


options = {
    "num_rounds": given.rounds + 1,
    "num_epochs": work.epochs,
    "batch_size": work.batch,
    "learning_rate": work.lr,
    "momentum": work.momentum,
    "proportion": work.per_round / work.clients,
    "train_holdout": 0.0,
    "eval_interval": 0,
    "num_parallels": 1,
    "gpu": [],
    "sample": "uniform",
    "aggregate": "uniform",
    "no_log_console": True,
    "no_tqdm": True,
}
with (
    tempfile.TemporaryDirectory() as folder,
    Path(os.devnull).open("w") as nowhere,
    contextlib.chdir(folder),
):
    sys.path.insert(0, folder)
    Path("benchmark_file.py").write_text(BENCHMARK.format(name=work.name))
    with contextlib.redirect_stdout(nowhere):
        made = flgo.gen_benchmark_from_file(
            benchmark="made",
            config_file="benchmark_file.py",
            data_type="cv",
            task_type="classification",
        )
        made = importlib.import_module(made)
        made.visualize = lambda *_: None  # it draws every client
        flgo.gen_task_by_(made, IIDPartitioner(num_clients=work.clients), task_path="task")
        method = SimpleNamespace(Server=Server, Client=fedavg.Client, __name__="fedavg")
        runner = flgo.init("task", method, options, Logger=Quiet)
        clock.mark()
        runner.run()
clock.report(loss_of(runner.model, work), "flgo", "torch")
