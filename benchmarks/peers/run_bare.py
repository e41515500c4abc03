"""FedAvg in plain PyTorch with as little around it as possible, in one process or several; one thread each."""

from multiprocessing.connection import Connection

import torch
from torch import Tensor

from benchmarks.peers.rounds import Clock, arguments, local_sgd, loss_of, model, tensors

given = arguments()
work = given.work
torch.set_num_threads(1)
net = model(work).to(given.device)
x, y = tensors(work, given.device)
chosen = torch.Generator().manual_seed(1)


def flat_weights() -> Tensor:
    """Return one vector of which every parameter becomes a view."""
    parameters = list(net.parameters())
    flat = torch.cat([value.detach().flatten() for value in parameters])
    for value, part in zip(
        parameters, flat.split([value.numel() for value in parameters]), strict=True
    ):
        value.data = part.view_as(value)
    return flat


weights = flat_weights()
common = weights.clone()
clock = Clock(torch.cuda.synchronize if given.device == "cuda" else lambda: None)


def train(clients: list[int], total: Tensor) -> None:
    """Add the weights of these clients after local training to ``total``."""
    for client in clients:
        weights.copy_(common)
        local_sgd(net, x[client], y[client], work)
        total.add_(weights, alpha=1 / work.per_round)


def serve(orders: Connection, total: Tensor) -> None:
    """Train in a process of its own."""
    torch.set_num_threads(1)
    while True:
        clients = orders.recv()
        total.zero_()
        train(clients, total)
        orders.send(None)


totals = [torch.zeros_like(common) for _ in range(given.workers)]
ends: list[Connection] = []
if given.workers > 1:
    fork = torch.multiprocessing.get_context("fork")
    common.share_memory_()
    for total in totals:
        here, there = fork.Pipe()
        ends.append(here)
        fork.Process(target=serve, args=(there, total.share_memory_()), daemon=True).start()
clock.mark()
for _ in range(given.rounds + 1):
    clients = torch.randperm(work.clients, generator=chosen)[: work.per_round].tolist()
    for number, end in enumerate(ends):
        end.send(clients[number :: given.workers])
    for end in ends:
        end.recv()
    if not ends:
        train(clients, totals[0].zero_())
    common.copy_(torch.stack(totals).sum(0))
    clock.mark()
weights.copy_(common)
clock.report(loss_of(net, work), "torch")
