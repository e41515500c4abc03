"""Checks of checkpoints, of counted bytes, and of rounds with a client that sends NaN."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from fedskew.algorithms.channel import Channel
from fedskew.algorithms.contract import overridden
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, one_client
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server
from fedskew.testing.check_report import ContractError, NotApplicableError, Passed
from fedskew.testing.lab import (
    ADAM,
    LATE,
    LOCAL,
    MERGED,
    PLAIN,
    Around,
    Difference,
    Lab,
    Scene,
    Trained,
    names_of,
    watched,
)
from fedskew.topology.payload import NUMBERS

POISONED = 2  # the client whose rows are NaN
STOPS = (2, 4)  # rounds after which a run is stopped


def checkpoint_resumes(lab: Lab) -> Passed:
    """Check that a run restored from bytes after two and four rounds has the same bits as one of six rounds."""
    size = 0
    for engine in lab.engines:
        for scene in lab.scenes(LOCAL, ADAM):
            stored: dict[int, bytes] = {}
            whole = Trained(lab.server(scene, engine), [])
            for done in range(1, LATE + 1):
                whole.results.append(whole.server.advance())
                if done in STOPS:
                    stored[done] = _stored(whole.server)
            for done, content in stored.items():
                size = max(size, len(content))
                resumed = lab.server(scene, engine)
                resumed.restore(tensors_from_bytes(content))
                later = [resumed.advance() for _ in range(done, LATE)]
                what = f"{type(engine).__name__} with {scene.name}, resumed after {done} rounds and never stopped"
                continued = Trained(resumed, [*whole.results[:done], *later])
                Difference().compare(continued.everything(), whole.everything(), 0.0, what)
    stops = " and ".join(map(str, STOPS))
    return Passed(
        f"all bits after {LATE} rounds, stopped after {stops} of them, in {names_of(lab.engines)}, through {size} "
        "bytes of safetensors",
        0.0,
    )


def _stored(server: Server) -> bytes:
    """Return the checkpoint of a server as bytes."""
    flat = {}
    for name, value in server.checkpoint().items():
        flat[name] = value.detach().contiguous().cpu()
    return tensors_to_bytes(flat)


def bytes_are_counted(lab: Lab) -> Passed:
    """Check that the traffic in the table of rounds equals the size of what the hooks return, tensor by tensor."""
    calibrator = lab.fresh().calibrator
    reasons = {
        "the model itself is passed on, no hook returns what is sent": lab.scheduled(),
        "a model is sent to each neighbour, and how many there are differs": lab.on_graph(),
        "edge servers and the cloud exchange models as well": lab.has_edges(),
        "a first round sends gradients, which no hook of the method returns": (
            lab.begins_with_gradients()
        ),
        "clients send something shorter than what the hook payload returns": (
            type(lab.fresh().channel) is not Channel
        ),
        "clients of smaller ranks send and receive less than what hooks return": lab.has_ranks(),
        "in some rounds all clients send class statistics in addition to what hooks return": (
            calibrator is not None and bool(calibrator.every)
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotApplicableError(reason)
    details = []
    for scene in lab.scenes(MERGED, LOCAL):
        up, down = _bytes_per_client(lab, scene)
        for engine in lab.engines:
            _check_bytes(lab, scene, engine, up, down)
        details.append(f"{up} up and {down} down with {scene.name}")
    return Passed(f"bytes per client and round: {', '.join(details)}")


def _check_bytes(lab: Lab, scene: Scene, engine: Engine, up: int, down: int) -> None:
    """Check the traffic of two rounds, from the bytes that one client sends up and receives with its model."""
    recorded: list[tuple[int, int]] = []
    watching = watched(lab.fresh(), _recorder(recorded, down))
    trained = lab.run(2, scene, engine, None, watching)
    losses = 0
    if overridden(lab.fresh(), "weight"):  # else the server has no use for them
        losses = 8 * len({"loss_before", "loss_after"} & lab.fresh().requires)
    for result, (all_down, extra_up) in zip(trained.results, recorded, strict=True):
        clients = sum(client["steps"] > 0 for client in result.clients)
        between = _statistics_bytes(trained, result)
        # What pending clients received is counted when their updates arrive
        if lab.buffer_size():
            all_down = down * clients
        counted = {
            "bytes_up": (up + losses) * clients + extra_up + between,
            "bytes_down": all_down + between,
        }
        for name, value in counted.items():
            if result.round[name] != value:
                raise ContractError(
                    f"{type(engine).__name__} with {scene.name}: {name} of round {result.round['round']} is "
                    f"{result.round[name]}, but {clients} clients make {value}"
                )


def _statistics_bytes(trained: Trained, result: RoundResult) -> int:
    """Return the bytes for common BatchNorm statistics: mean, variance and both gradients, 8 bytes per channel."""
    channels = 0
    for name, value in trained.server.state.buffers.items():
        if name.endswith("running_mean"):
            channels += value.numel()
    policy = trained.server.algorithm.batchnorm
    shared = 0
    for client in result.clients:
        for step in range(client["steps"]):
            shared += policy.shares_statistics(step)
    return 4 * 8 * channels * shared


def _recorder(recorded: list[tuple[int, int]], model: int) -> Around:
    """Record for each round all that is sent down, models and numbers, and what is sent up beside the updates."""
    down, up = 0, 0

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal down, up
        result = method(*args, **kwargs)
        if hook == "client_profile":
            up += 8 * sum(len(values) for values in result.values())
        elif hook == "configure_training":
            chosen = args[1]
            probed = args[2]
            trains = result.clients
            receive = trains
            if probed:
                receive = chosen
            down += model * len(receive) + 8 * len(result.numbers) * len(trains)
            up += 8 * len(probed) * len(chosen)
        elif hook == "server_update":
            recorded.append((down, up))
            down, up = 0, 0
        return result

    return around


def _bytes_per_client(lab: Lab, scene: Scene) -> tuple[int, int]:
    """Return the bytes that one client sends and receives, from the trees of ``payload`` and ``broadcast``."""
    trees: dict[str, Tree] = {}

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = method(*args, **kwargs)
        trees[hook] = result
        return result

    server = lab.run(1, scene, Loop(), None, watched(lab.fresh(), around)).server
    unsent = server.job.unsent
    up = _bytes_of(trees["payload"], unsent) + _bytes_of({"buffers": server.state.buffers}, unsent)
    answer = one_client(
        server.algorithm.answer(server.state.server_state, np.zeros(1, dtype=np.int64))
    )
    answer.pop(NUMBERS, None)
    replaced = server.job.local_names | answer.get("model", {}).keys()
    model = _bytes_of({"model": server.state.model()}, replaced)
    none = frozenset[str]()
    return up, model + _bytes_of(answer, none) + _bytes_of(trees["broadcast"], none)


def _bytes_of(tree: Tree, without: frozenset[str]) -> int:
    total = 0
    for part in tree.values():
        for name, value in part.items():
            if name not in without:
                total += len(value.detach().cpu().numpy().tobytes())
    return total


def nan_client_is_left_out(lab: Lab) -> Passed:
    """Check that a client whose rows are NaN changes nothing, and that the round counts it as excluded."""
    if lab.pools():
        raise NotApplicableError("the method pools all rows, there is no client to exclude")
    if lab.scheduled():
        raise NotApplicableError(
            "all clients share one model, which NaN of one client makes NaN for all"
        )
    if lab.buffer_size():
        raise NotApplicableError(
            "the server does not wait: without that client, updates would arrive in another order"
        )
    if lab.on_graph():
        raise NotApplicableError(
            "neighbours send their models to that client, whether it answers or not"
        )
    seen = Difference()
    for engine in lab.engines:
        for scene in lab.scenes(PLAIN, MERGED):
            with_nan = _poisoned(lab, scene, engine)
            absent = _absent(lab, scene, engine)
            what = f"{type(engine).__name__} with {scene.name}, a NaN client and none"
            excluded = [result.round["excluded"] for result in with_nan.results]
            if excluded != [1, 1]:
                raise ContractError(
                    f"{what}: one client sends NaN, but the rounds exclude {excluded}; does payload hide NaN?"
                )
            seen.compare(_without_poisoned(with_nan), _without_poisoned(absent), 1e-12, what)
    return Passed(
        "weights, client states and tables after 2 rounds with a client of NaN rows and without that client",
        seen.worst,
    )


def _without_poisoned(trained: Trained) -> Tensors:
    """Return weights, client states, and the tables of all clients but the poisoned one."""
    others = {client: client for client in range(trained.server.fed.clients)}
    del others[POISONED]
    return {**trained.model(), **trained.client_states(), **trained.tables(others)}


def _poisoned(lab: Lab, scene: Scene, engine: Engine) -> Trained:
    server = lab.server(scene, engine, per_round=None)
    x = server.job.x  # the server's copy in float64; data with NaN would be refused
    assert isinstance(x, Tensor)
    x[torch.from_numpy(server.trained_on.of(POISONED)).to(x.device)] = torch.nan
    return Trained(server, [server.advance() for _ in range(2)])


def _absent(lab: Lab, scene: Scene, engine: Engine) -> Trained:
    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = method(*args, **kwargs)
        if hook != "select":
            return result
        chosen: Ints = result
        return chosen[chosen != POISONED]

    return lab.run(2, scene, engine, None, watched(lab.fresh(), around), per_round=None)
