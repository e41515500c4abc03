"""Checks of what a run writes down and lives through: its checkpoint, its bytes, a client that sends NaN."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from fedskew.core.streams import Ints
from fedskew.core.trees import Tree
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.server.server import RoundResult
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

POISONED = 2  # the client whose rows are NaN
STOPS = (2, 4)  # rounds after which a run is stopped


def checkpoint_goes_on(lab: Lab) -> Passed:
    """To bytes and back into a training that knows nothing, after two rounds and after four: the same bits as six in a row."""
    size = 0
    for engine in lab.engines:
        for scene in lab.scenes(LOCAL, ADAM):
            stored: dict[int, bytes] = {}
            whole = Trained(lab.server(scene, engine), [])
            for done in range(1, LATE + 1):
                whole.results.append(whole.server.advance())
                if done in STOPS:
                    flat = {
                        name: value.detach().contiguous().cpu() for name, value in whole.server.checkpoint().items()
                    }
                    stored[done] = tensors_to_bytes(flat)
            for done, content in stored.items():
                size = max(size, len(content))
                resumed = lab.server(scene, engine)
                resumed.restore(tensors_from_bytes(content))
                later = [resumed.advance() for _ in range(done, LATE)]
                what = f"{type(engine).__name__} with {scene.name}, resumed after {done} rounds and never stopped"
                went_on = Trained(resumed, [*whole.results[:done], *later])
                Difference().compare(went_on.everything(), whole.everything(), 0.0, what)
    stops = " and ".join(map(str, STOPS))
    return Passed(
        f"all bits after {LATE} rounds, stopped after {stops} of them, in {names_of(lab.engines)}, through {size} "
        "bytes of "
        "safetensors",
        0.0,
    )


def bytes_are_counted(lab: Lab) -> Passed:
    """Traffic in the table of rounds is what the hooks hand over, counted tensor by tensor at the hooks."""
    if lab.scheduled():
        raise NotApplicableError("the model itself is passed on, no hook hands over what is sent")
    calibrator = lab.fresh().calibrator
    if calibrator and calibrator.every:
        raise NotApplicableError("in some rounds all clients send class statistics, beside what hooks hand over")
    told = []
    for scene in lab.scenes(MERGED, LOCAL):
        up, down = _bytes_a_client(lab, scene)
        for engine in lab.engines:
            heard: list[tuple[int, int]] = []
            trained = lab.run(2, scene, engine, None, watched(lab.fresh(), _listening(heard, down)))
            for result, (all_down, extra_up) in zip(trained.results, heard, strict=True):
                clients, between = sum(client["steps"] > 0 for client in result.clients), _settling(trained, result)
                fall = 8 * clients * len({"loss_before", "loss_after"} & lab.fresh().requires)
                if lab.buffer_size():  # what went to those that are still at work is counted when they come back
                    all_down = down * clients
                counted = {"bytes_up": up * clients + fall + extra_up + between, "bytes_down": all_down + between}
                for name, value in counted.items():
                    if result.round[name] != value:
                        raise ContractError(
                            f"{type(engine).__name__} with {scene.name}: {name} of round {result.round['round']} is "
                            f"{result.round[name]}, but {clients} clients make {value}"
                        )
        told.append(f"{up} up and {down} down with {scene.name}")
    return Passed(f"bytes a client and round: {', '.join(told)}")


def _settling(trained: Trained, result: RoundResult) -> int:
    """What clients send, and get, for common BatchNorm statistics: mean, variance and both gradients, 8 bytes a channel."""
    channels = sum(value.numel() for name, value in trained.server.buffers.items() if name.endswith("running_mean"))
    steps = [step for client in result.clients for step in range(client["steps"])]
    return 4 * 8 * channels * sum(map(trained.server.algorithm.batchnorm.shares_statistics, steps))


def _listening(heard: list[tuple[int, int]], model: int) -> Around:
    """Notes for each round all that goes down, models and the numbers in orders, and what goes up beside the updates."""
    down, up = 0, 0

    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal down, up
        result = method(*args, **kwargs)
        if hook == "client_profile":
            up += 8 * sum(len(values) for values in result.values())
        elif hook == "configure_training":
            chosen, probed, trains = args[1], args[2], result.clients
            down += model * len(chosen if probed else trains) + 8 * len(result.numbers) * len(trains)
            up += 8 * len(probed) * len(chosen)
        elif hook == "server_update":
            heard.append((down, up))
            down, up = 0, 0
        return result

    return around


def _bytes_a_client(lab: Lab, scene: Scene) -> tuple[int, int]:
    """What one client sends and gets, from the trees that ``payload`` and ``broadcast`` return."""
    trees: dict[str, Tree] = {}

    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = method(*args, **kwargs)
        trees[hook] = result
        return result

    server = lab.run(1, scene, Loop(), None, watched(lab.fresh(), around)).server
    unsent = server.job.unsent
    up = _weight(trees["payload"], unsent) + _weight({"buffers": server.buffers}, unsent)
    return up, _weight({"model": server.state()}, server.job.local_names) + _weight(trees["broadcast"], frozenset())


def _weight(tree: Tree, without: frozenset[str]) -> int:
    values = [value for part in tree.values() for name, value in part.items() if name not in without]
    return sum(len(value.detach().cpu().numpy().tobytes()) for value in values)


def nan_client_is_left_out(lab: Lab) -> Passed:
    """A client whose rows are NaN changes nothing, and the round says that it was left out."""
    if lab.pools():
        raise NotApplicableError("the method pools all rows, there is no client to leave out")
    if lab.scheduled():
        raise NotApplicableError("all clients have one model: what breaks it at one breaks it for all")
    if lab.buffer_size():
        raise NotApplicableError("the server does not wait: without that client, others would come in another order")
    seen = Difference()
    for engine in lab.engines:
        for scene in lab.scenes(PLAIN, MERGED):
            with_nan, absent = _poisoned(lab, scene, engine), _absent(lab, scene, engine)
            what = f"{type(engine).__name__} with {scene.name}, a NaN client and none"
            excluded = [result.round["excluded"] for result in with_nan.results]
            if excluded != [1, 1]:
                raise ContractError(
                    f"{what}: one client sends NaN, but the rounds exclude {excluded}; does payload hide NaN?"
                )
            others = {client: client for client in range(with_nan.server.fed.clients) if client != POISONED}
            left, right = ({**trained.model(), **trained.memories()} for trained in (with_nan, absent))
            seen.compare({**left, **with_nan.tables(others)}, {**right, **absent.tables(others)}, 1e-12, what)
    return Passed(
        "weights, memories and tables after 2 rounds with a client of NaN rows and without that client", seen.worst
    )


def _poisoned(lab: Lab, scene: Scene, engine: Engine) -> Trained:
    server = lab.server(scene, engine, per_round=None)
    x = server.job.x.clone()
    x[torch.from_numpy(server.trained_on.of(POISONED)).to(x.device)] = torch.nan
    server.job = replace(server.job, x=x)
    return Trained(server, [server.advance() for _ in range(2)])


def _absent(lab: Lab, scene: Scene, engine: Engine) -> Trained:
    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = method(*args, **kwargs)
        if hook != "select":
            return result
        chosen: Ints = result
        return chosen[chosen != POISONED]

    return lab.run(2, scene, engine, None, watched(lab.fresh(), around), per_round=None)
