"""Flower: ServerApp and ClientApp with strategy FedAvg under ``run_simulation``, one Ray actor a worker.

Data and model are loaded once an actor, so that no client is ever cold.
"""

import functools
import logging
import os
from typing import Any

from benchmarks.peers.rounds import WORKLOADS, Clock, arguments, local_sgd, loss_of, model, tensors

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}


@functools.cache
def actor_state(name: str) -> tuple[Any, Any, Any]:
    """Return model and data of an actor, made at its first client."""
    import torch

    torch.set_num_threads(1)
    return model(WORKLOADS[name]), *tensors(WORKLOADS[name])


def client_app(name: str) -> Any:
    """Return the app of the clients."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        # The module of the actor, not a pickled copy of this one
        from benchmarks.peers import run_flower

        net, x, y = run_flower.actor_state(name)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        local_sgd(net, x[client], y[client], WORKLOADS[name])
        sent = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y[client])}),
        }
        return Message(content=RecordDict(sent), reply_to=message)

    return app


def main() -> None:
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    given, clock = arguments(), Clock()
    work = given.work
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, last = ServerApp(), model(work)

    class Timed(FedAvg):
        def configure_train(self, server_round: int, *rest: Any) -> Any:
            if server_round == 1:
                clock.mark()
            return super().configure_train(server_round, *rest)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = super().aggregate_train(server_round, list(replies))
            clock.mark()
            return found

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        strategy = Timed(
            fraction_train=work.per_round / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.per_round,
            min_available_nodes=work.clients,
        )
        arrays = ArrayRecord(model(work).state_dict())
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=given.rounds + 1)
        last.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        client_app(work.name),
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": given.workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    clock.report(loss_of(last, work), "flwr", "torch")


if __name__ == "__main__":
    main()
