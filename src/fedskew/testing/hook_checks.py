"""Checks of the hooks: they return what the contract says, do not change their inputs, and run in every engine."""

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.engine.loop import Loop
from fedskew.models.low_rank import is_offset
from fedskew.testing.check_report import HOOKS, ContractError, Passed, explain, hook_of
from fedskew.testing.lab import LATE, LOCAL, MERGED, PLAIN, SCENES, Lab, names_of, watched

Leaves: TypeAlias = dict[str, Any]
_TREES = (
    "init_server_state",
    "broadcast",
    "init_client_state",
    "linear_correction",
    "client_state",
    "payload",
)


def runs_everywhere(lab: Lab) -> Passed:
    """Check that every engine can run the hooks; engines that cannot are excluded from the checks that follow."""
    refused = []
    without = ""
    for scene in SCENES:
        if reason := lab.refusal(scene):
            refused.append(reason)
            without += f"; refused with {scene.name}: {reason}"
    if len(refused) == len(SCENES):
        raise ContractError(f"the method refuses every setting tried: {refused[0]}")
    scenes = lab.scenes()
    problems = []
    able = []
    for engine in lab.engines:
        try:
            for scene in scenes:
                lab.run(2, scene, engine)
            able.append(engine)
        except Exception as problem:  # any exception of a hook is a finding about that hook
            problems.append(f"in {type(engine).__name__} {explain(problem, type(lab.algorithm))}")
    engines = lab.engines
    lab.engines = tuple(able)
    if problems:
        raise ContractError("; ".join(problems))
    kinds = ", ".join(scene.name for scene in scenes)
    return Passed(f"2 rounds in {names_of(engines)} with {kinds}{without}")


def hooks_keep_shapes(lab: Lab) -> Passed:
    """Check that states and payloads keep their names, shapes and dtypes, so that they can be stacked and stored."""
    calls = 0
    judge = _Judge()

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        judge(hook, result, _given(hook, args, kwargs))
        return result

    for scene in lab.scenes(PLAIN, MERGED, LOCAL):
        judge = _Judge()
        lab.run(2, scene, Loop(), None, watched(lab.fresh(), around))
    return Passed(f"names, shapes and dtypes in {calls} hook calls")


def _given(hook: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a hook by the names that the contract has for them."""
    if hook == "schedule_samples":  # a function, not a method
        return dict(zip(("holdings", "pool", "stream"), args, strict=True))
    bound = inspect.signature(getattr(HOOKS[hook], hook)).bind(None, *args, **kwargs).arguments
    return {name: value for name, value in bound.items() if name != "self"}


class _Judge:
    """Checks the results of hooks against their arguments, and against the results of other hooks before them."""

    def __init__(self) -> None:
        self._first: dict[
            str, Leaves
        ] = {}  # what hooks returned that later results must agree with

    def __call__(self, hook: str, result: Any, given: Mapping[str, Any]) -> None:
        """Raise an error if a result is not as the contract says."""
        if hook in _TREES:
            _require_tree(hook, result)
        if hook in ("init_server_state", "init_client_state"):
            self._first[hook] = _leaves(result)
        elif hook == "client_state":
            due = self._first["init_client_state"]
            _same(hook, "what init_client_state returns, or it is lost", result, due)
        elif hook == "server_update":
            _judge_server_update(result, given, self._first["init_server_state"])
        elif hook == "metrics":
            names = self._first.setdefault(hook, dict.fromkeys(result))
            if set(result) != names.keys():
                raise ContractError(
                    "metrics must have the same names in every round, they are columns of a table"
                )
        else:
            _judge_client_hook(hook, result, given)
            _judge_server_hook(hook, result, given)


def _judge_client_hook(hook: str, result: Any, given: Mapping[str, Any]) -> None:
    """Check the result of a hook that concerns the training of one client."""
    if hook == "objective":
        _judge_objective(result)
    elif hook == "correct_gradients":
        _same(hook, "gradients", result, _leaves(given["grads"]))
    elif hook == "on_receive":
        _judge_on_receive(result, given["view"])
    elif hook in ("trainable", "local_names"):
        _judge_names(hook, result, given["layout"])
    elif hook == "linear_correction":
        _judge_correction(result, _leaves(given["view"].params))
    elif hook == "payload":
        _judge_payload(result)
    elif hook == "client_model":
        _same(hook, "the shared model", result, _leaves(given["shared"]))


def _judge_server_hook(hook: str, result: Any, given: Mapping[str, Any]) -> None:
    """Check the result of a hook that concerns all clients: their choice, their work and their updates."""
    if hook == "weight":
        _judge_weight(result, len(given["report"].clients))
    elif hook == "select":
        _require_positions("select", result, len(given["pool"].sizes))
    elif hook == "probe_rows":
        _require_counts("probe_rows", result, len(given["chosen"]), "of the chosen")
    elif hook == "configure_training":
        _judge_config(result, given)
    elif hook == "answer":
        _judge_answer(result, len(given["clients"]))
    elif hook == "schedule_samples":
        _judge_schedule(result)
    elif hook == "combine":
        _judge_combine(result, given)


def _judge_objective(result: Any) -> None:
    if not isinstance(result, Tensor) or result.dim():
        raise ContractError("objective must return one number as a tensor without axes")


def _judge_on_receive(result: Any, view: Any) -> None:
    hook = "on_receive"
    if not isinstance(result, tuple) or len(result) != 2:
        raise ContractError("on_receive must return a pair: weights to start from and client state")
    weights, client_state = result
    _require_tree(hook, client_state)
    _same(hook, "the weights that the client received", weights, _leaves(view.start))
    _same(hook, "the client state", client_state, _leaves(view.client_state))


def _judge_payload(result: Any) -> None:
    for name, value in _leaves(result).items():
        if not value.is_floating_point():
            raise ContractError(
                f"payload {name} is {value.dtype}: send floating point, the server takes a weighted mean"
            )


def _judge_server_update(result: Any, given: Mapping[str, Any], server_state: Leaves) -> None:
    hook = "server_update"
    if not isinstance(result, tuple) or len(result) != 2:
        raise ContractError("server_update must return a pair: new weights and new server state")
    weights, state = result
    # What the server adds to weights that are not trained is no weight that it was given
    weights = {name: value for name, value in weights.items() if not is_offset(name)}
    _require_tree(hook, state)
    _same(hook, "the weights it was given", weights, _leaves(given["weights"]))
    _same(hook, "what init_server_state returns, or it is lost on resume", state, server_state)


def _judge_weight(result: Any, clients: int) -> None:
    one_each = isinstance(result, np.ndarray) and result.shape == (clients,)
    if not one_each or not np.all(np.isfinite(result) & (result >= 0)):
        raise ContractError(
            f"weight must return an array of {clients} finite weights, none below 0, one per client"
        )


def _judge_answer(result: Any, clients: int) -> None:
    _require_tree("answer", result)
    for name, value in _leaves(result).items():
        if value.dim() == 0 or len(value) != clients:
            raise ContractError(
                f"answer {name} must have one entry per client, {clients} of them, not the shape {tuple(value.shape)}"
            )
        if name.startswith("numbers.") and value.dim() != 1:
            raise ContractError(f"answer {name} must be one number per client")


def _judge_schedule(result: Any) -> None:
    last = 0
    if len(result.ends):
        last = result.ends[-1]
    if not len(result.rows) == len(result.clients) == last:
        raise ContractError(
            "schedule_samples must name the client of each row, and its steps must end with the last row"
        )


def _judge_combine(result: Any, given: Mapping[str, Any]) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ContractError(
            "combine must return a pair: one payload and the share of every client in it"
        )
    payload, shares = result
    first = {name: value[0] for name, value in _leaves(given["payloads"]).items()}
    _same("combine", "one client's payload", payload, first)
    weights = given["weights"]
    if not isinstance(shares, Tensor) or shares.shape != weights.shape or bool((shares < 0).any()):
        raise ContractError(
            f"combine must say what share each of the {len(weights)} clients has, none below 0"
        )
    if not bool((shares.sum() - 1).abs() < 1e-6):
        raise ContractError(
            f"combine must give shares that sum to 1, not to {float(shares.sum()):g}"
        )


def _judge_config(result: Any, given: Mapping[str, Any]) -> None:
    hook = "configure_training"
    count = len(result.clients)
    _require_positions(hook, result.clients, len(given["pool"].sizes))
    if not np.isin(result.clients, given["chosen"]).all():
        raise ContractError(f"{hook} must take its clients from the chosen")
    columns = {"batch_size": result.batch_size, "epochs": result.epochs, **result.numbers}
    for name, values in columns.items():
        if not isinstance(values, np.ndarray) or values.shape != result.clients.shape:
            raise ContractError(
                f"{hook}: {name} must be an array with one entry a client, {count} of them"
            )
        if values is result.batch_size or values is result.epochs:
            _require_counts(f"{hook}: {name}", values, count, "a client")


def _judge_names(hook: str, result: Any, layout: Any) -> None:
    known = layout.parameters | layout.buffers
    for name in result:
        if name not in known:
            raise ContractError(
                f"{hook} has {name!r}, which is not a parameter or buffer of the model"
            )


def _require_counts(where: str, found: Any, length: int, of: str) -> None:
    if (
        not isinstance(found, np.ndarray)
        or found.shape != (length,)
        or found.dtype.kind != "i"
        or (found < 1).any()
    ):
        raise ContractError(
            f"{where} must be an array of {length} whole numbers, at least 1, one {of}"
        )


def _judge_correction(result: Any, params: Leaves) -> None:
    hook = "linear_correction"
    _require_tree(hook, result)
    for part, tensors in result.items():
        if part not in ("scale", "offset"):
            raise ContractError(f"{hook} has the parts scale and offset, not {part!r}")
        for name, value in tensors.items():
            if name not in params:
                raise ContractError(f"{hook}: {part} has {name!r}, which is not a weight")
            due: tuple[int, ...] = ()
            if part == "offset":
                due = params[name].shape
            if value.shape != due:
                raise ContractError(
                    f"{hook}: {part} of {name!r} is {tuple(value.shape)}: a scale is a number, an offset a weight"
                )


def _require_positions(hook: str, found: Any, population: int) -> None:
    """Raise an error unless these are different positions in the pool, at least one."""
    if not isinstance(found, np.ndarray) or found.dtype.kind != "i" or not len(found):
        raise ContractError(f"{hook} must return an array of positions in the pool, at least one")
    if len(np.unique(found)) != len(found) or found.min() < 0 or found.max() >= population:
        raise ContractError(
            f"{hook} must return different positions below {population}, the size of the pool"
        )


def _require_tree(hook: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(map(_is_group, value.values())):
        raise ContractError(
            f"{hook} must return named groups of named tensors, such as {{'momentum': {{'w': tensor}}}}"
        )


def _is_group(group: Any) -> bool:
    """Return whether this is a dictionary of tensors."""
    return isinstance(group, dict) and all(isinstance(leaf, Tensor) for leaf in group.values())


def _same(hook: str, like: str, found: Any, due: Leaves) -> None:
    seen = _leaves(found)
    for name in sorted(seen.keys() ^ due.keys()):
        change = "missing"
        if name in seen:
            change = "new"
        raise ContractError(f"{hook} must have the names of {like}: {name!r} is {change}")
    for name, value in seen.items():
        have = _shape_and_dtype(value)
        want = _shape_and_dtype(due[name])
        if have != want:
            raise ContractError(
                f"{hook} must have the shapes and dtypes of {like}: {name!r} is {have}, not {want}"
            )


def _shape_and_dtype(tensor: Any) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def hooks_are_pure(lab: Lab) -> Passed:
    """Check that no hook changes its arguments or the state of a global random generator."""
    calls = 0

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal calls
        calls += 1
        given = _given(hook, args, kwargs)
        generators = random_states()
        before = {name: _copy(value) for name, value in _leaves(given).items()}
        result = method(*args, **kwargs)
        for name, state in random_states().items():
            if state != generators[name]:
                raise ContractError(
                    f"{hook} draws from the global generator of {name}: only the stream that a hook is given is allowed"
                )
        after = _leaves(given)
        for name in [*before, *after]:
            if name not in after or name not in before or not _equal(before[name], after[name]):
                raise ContractError(
                    f"{hook} changes its input {name}: hooks must return new tensors and dictionaries"
                )
        return result

    for scene in lab.scenes(PLAIN, MERGED, LOCAL):
        lab.run(2, scene, Loop(), None, watched(lab.fresh(), around))
    return Passed(f"inputs and global random state in {calls} hook calls")


def hooks_are_functions(lab: Lab) -> Passed:
    """Check that a hook's result depends on its arguments only: a new, equal object returns the same."""
    calls = 0

    def around(
        hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        if not _alike(_fresh_hook(lab, hook, args)(*args, **kwargs), result):
            raise ContractError(
                f"{hook} returns another result for the same arguments in a new object: what it needs must be in its "
                "arguments (server state, client state, numbers), never in the object"
            )
        return result

    scenes = lab.scenes(PLAIN, MERGED, LOCAL)
    for scene in scenes:
        rounds = 2
        if scene is scenes[0]:
            rounds = LATE
        lab.run(rounds, scene, Loop(), None, watched(lab.fresh(), around))
    return Passed(f"the same bits from a fresh object in {calls} hook calls, over {LATE} rounds")


def _fresh_hook(lab: Lab, hook: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the hook of a new, equal method."""
    round = 0
    if hook == "schedule_samples":
        round = args[1].round
    return hook_of(lab.fresh(), hook, round)


def _alike(left: Any, right: Any) -> bool:
    """Return whether two results are the same to the last bit, whatever they are made of."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and _equal(left.detach(), right)
    if isinstance(left, np.ndarray):
        return _equal(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_alike, left, right))
    if is_dataclass(left):
        return _alike(_fields(left), _fields(right))
    if not isinstance(left, Mapping):
        return bool(left == right)
    if left.keys() != right.keys():
        return False
    return all(_alike(value, right[name]) for name, value in left.items())


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def random_states() -> dict[str, Any]:
    """Return the states of the global generators."""
    numpy_state = []
    for part in np.random.get_state():
        if isinstance(part, np.ndarray):
            part = part.tobytes()
        numpy_state.append(part)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": numpy_state,
        "random": random.getstate(),
    }


def _leaves(value: Any) -> Leaves:
    """Return the tensors and arrays inside dictionaries and dataclasses, each by its path."""
    if isinstance(value, (Tensor, np.ndarray)):
        return {"": value}
    inside: Mapping[str, Any] = {}
    if is_dataclass(value):
        inside = _fields(value)
    elif isinstance(value, Mapping):
        inside = value
    leaves: Leaves = {}
    for key, inner in inside.items():
        for path, leaf in _leaves(inner).items():
            leaves[f"{key}.{path}".rstrip(".")] = leaf
    return leaves


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy()


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        if left.shape != right.shape:
            return False
        if left.is_meta:  # without numbers, where only sizes are asked for
            return True
        return torch.equal(left, right.detach())
    return np.array_equal(left, right)
