"""Checks of the hooks themselves: they return what the contract says, leave their inputs alone and run in every engine."""

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm
from fedskew.engine.loop import Sequential
from fedskew.testing.check_report import ContractError, Passed, explain
from fedskew.testing.lab import LATE, LOCAL, MERGED, PLAIN, SCENES, Lab, names_of, watched

Leaves: TypeAlias = dict[str, Any]
_TREES = ("init", "broadcast", "remember", "pull", "memo", "payload")


def runs_everywhere(lab: Lab) -> Passed:
    """Every engine can run the hooks; those that cannot are left out of the checks that follow."""
    refused = {scene.name: reason for scene in SCENES if (reason := lab.refusal(scene))}
    if len(refused) == len(SCENES):
        raise ContractError(f"the method refuses every setting tried: {next(iter(refused.values()))}")
    scenes, problems, able = lab.scenes(), [], []
    for engine in lab.engines:
        try:
            for scene in scenes:
                lab.run(2, scene, engine)
            able.append(engine)
        except Exception as problem:  # whatever a hook may raise is a finding about that hook
            problems.append(f"in {type(engine).__name__} {explain(problem, type(lab.algorithm))}")
    engines, lab.engines = lab.engines, tuple(able)
    if problems:
        raise ContractError("; ".join(problems))
    without = "".join(f"; refused with {name}: {reason}" for name, reason in refused.items())
    return Passed(f"2 rounds in {names_of(engines)} with {', '.join(scene.name for scene in scenes)}{without}")


def hooks_keep_shapes(lab: Lab) -> Passed:
    """What goes round comes back with the same names, shapes and dtypes, so that it can be stacked, stored and restored."""
    calls = 0
    expected: dict[str, Leaves] = {}

    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        if hook in _TREES:
            _require_tree(hook, result)
        _judge(hook, result, _given(hook, args, kwargs), expected)
        return result

    for scene in lab.scenes(PLAIN, MERGED, LOCAL):
        expected.clear()
        lab.run(2, scene, Sequential(), None, watched(lab.fresh(), around))
    return Passed(f"names, shapes and dtypes in {calls} hook calls")


def _given(hook: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a hook by the names that the contract has for them."""
    bound = inspect.signature(getattr(Algorithm, hook)).bind(None, *args, **kwargs).arguments
    return {name: value for name, value in bound.items() if name != "self"}


def _judge(hook: str, result: Any, given: Mapping[str, Any], expected: dict[str, Leaves]) -> None:
    """One hook's result against what it was given and what other hooks promised."""
    if hook in ("init", "remember"):
        expected[hook] = _leaves(result)
    elif hook == "objective":
        if not isinstance(result, Tensor) or result.dim():
            raise ContractError("objective must return one number as a tensor without axes")
    elif hook == "correct":
        _same("correct", "gradients", result, _leaves(given["grads"]))
    elif hook == "pull":
        _judge_pull(result, _leaves(given["view"].params))
    elif hook == "memo":
        _same("memo", "what remember returns, or it is lost", result, expected["remember"])
    elif hook == "payload":
        for name, value in _leaves(result).items():
            if not value.is_floating_point():
                raise ContractError(f"payload {name} is {value.dtype}: send floating point, the server takes a weighted mean")
    elif hook == "step":
        if not isinstance(result, tuple) or len(result) != 2:
            raise ContractError("step must return a pair: new weights and new server state")
        _require_tree("step", result[1])
        _same("step", "the weights it was given", result[0], _leaves(given["weights"]))
        _same("step", "what init returns, or it is lost on resume", result[1], expected["init"])
    elif hook == "select":
        _require_positions("select", result, len(given["roster"].sizes))
    elif hook == "probe_rows":
        _require_counts("probe_rows", result, len(given["chosen"]), "of the chosen")
    elif hook == "orders":
        _judge_orders(result, given)
    elif hook == "walk":
        if not len(result.rows) == len(result.clients) == (result.ends[-1] if len(result.ends) else 0):
            raise ContractError("walk must say of each row whose it is, and its steps must end with the last row")
    elif hook == "combine":
        _judge_combine(result, given)
    elif hook == "notes":
        if set(result) != expected.setdefault("notes", dict.fromkeys(result)).keys():
            raise ContractError("notes must have the same names in every round, they are columns of a table")
    elif hook == "weigh":
        clients = len(given["report"].clients)
        if not isinstance(result, np.ndarray) or result.shape != (clients,) or not np.all(np.isfinite(result) & (result >= 0)):
            raise ContractError(f"weigh must return an array of {clients} finite weights, none below 0, one a client")


def _judge_combine(result: Any, given: Mapping[str, Any]) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ContractError("combine must return a pair: one payload and the share of every client in it")
    payload, shares = result
    _same("combine", "one client's payload", payload, {n: value[0] for n, value in _leaves(given["payloads"]).items()})
    weights = given["weights"]
    if not isinstance(shares, Tensor) or shares.shape != weights.shape or bool((shares < 0).any()):
        raise ContractError(f"combine must say what share each of the {len(weights)} clients has, none below 0")
    if not bool((shares.sum() - 1).abs() < 1e-6):
        raise ContractError(f"combine must give shares that sum to 1, not to {float(shares.sum()):g}")


def _judge_orders(result: Any, given: Mapping[str, Any]) -> None:
    _require_positions("orders", result.members, len(given["roster"].sizes))
    if not np.isin(result.members, given["chosen"]).all():
        raise ContractError("orders must take its members from the chosen")
    for name, values in {"batch": result.batch, "epochs": result.epochs, **result.numbers}.items():
        if not isinstance(values, np.ndarray) or values.shape != result.members.shape:
            raise ContractError(f"orders: {name} must be an array with one entry a member, {len(result.members)} of them")
        if name in ("batch", "epochs"):
            _require_counts(f"orders: {name}", values, len(result.members), "a member")


def _require_counts(where: str, found: Any, length: int, of: str) -> None:
    if not isinstance(found, np.ndarray) or found.shape != (length,) or found.dtype.kind != "i" or (found < 1).any():
        raise ContractError(f"{where} must be an array of {length} whole numbers, at least 1, one {of}")


def _judge_pull(result: Any, params: Leaves) -> None:
    _require_tree("pull", result)
    for part, tensors in result.items():
        if part not in ("scale", "offset"):
            raise ContractError(f"pull has the parts scale and offset, not {part!r}")
        for name, value in tensors.items():
            if name not in params:
                raise ContractError(f"pull: {part} has {name!r}, which is no weight")
            if value.shape != (() if part == "scale" else params[name].shape):
                raise ContractError(
                    f"pull: {part} of {name!r} is {tuple(value.shape)}: a scale is a number, an offset a weight"
                )


def _require_positions(hook: str, found: Any, population: int) -> None:
    """Different positions in the roster, at least one."""
    if not isinstance(found, np.ndarray) or found.dtype.kind != "i" or not len(found):
        raise ContractError(f"{hook} must return an array of positions in the roster, at least one")
    if len(np.unique(found)) != len(found) or found.min() < 0 or found.max() >= population:
        raise ContractError(f"{hook} must return different positions below {population}, the length of the roster")


def _require_tree(hook: str, value: Any) -> None:
    groups = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(group, dict) and all(isinstance(leaf, Tensor) for leaf in group.values()) for group in groups):
        raise ContractError(f"{hook} must return named groups of named tensors, such as {{'momentum': {{'w': tensor}}}}")


def _same(hook: str, like: str, found: Any, due: Leaves) -> None:
    seen = _leaves(found)
    for name in sorted(seen.keys() ^ due.keys()):
        raise ContractError(f"{hook} must have the names of {like}: {name!r} is {'new' if name in seen else 'missing'}")
    for name, value in seen.items():
        if (value.shape, value.dtype) != (due[name].shape, due[name].dtype):
            have, want = (f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in (value, due[name]))
            raise ContractError(f"{hook} must have the shapes and dtypes of {like}: {name!r} is {have}, not {want}")


def hooks_are_pure(lab: Lab) -> Passed:
    """No hook moves a global random generator, and none changes what it was given."""
    calls = 0

    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        given, generators = _given(hook, args, kwargs), random_states()
        before = {name: _copy(value) for name, value in _leaves(given).items()}
        result = method(*args, **kwargs)
        for name, state in random_states().items():
            if state != generators[name]:
                raise ContractError(
                    f"{hook} draws from the global generator of {name}: only the stream given to select is allowed"
                )
        after = _leaves(given)
        for name in [*before, *after]:
            if name not in after or name not in before or not _equal(before[name], after[name]):
                raise ContractError(f"{hook} changes its input {name}: hooks must return new tensors and dictionaries")
        return result

    for scene in lab.scenes(PLAIN, MERGED, LOCAL):
        lab.run(2, scene, Sequential(), None, watched(lab.fresh(), around))
    return Passed(f"inputs and global random state in {calls} hook calls")


def hooks_are_functions(lab: Lab) -> Passed:
    """What a hook returns follows from what it is given: an equal object that has been through nothing says the same."""
    calls = 0

    def around(hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        if not _alike(getattr(lab.fresh(), hook)(*args, **kwargs), result):
            raise ContractError(
                f"{hook} gives something else when a fresh object is asked the same: what it needs to know must be in its "
                "arguments (server state, memo, numbers), never in the object"
            )
        return result

    scenes = lab.scenes(PLAIN, MERGED, LOCAL)
    for scene in scenes:
        rounds = LATE if scene is scenes[0] else 2
        lab.run(rounds, scene, Sequential(), None, watched(lab.fresh(), around))
    return Passed(f"the same bits from a fresh object in {calls} hook calls, over {LATE} rounds")


def _alike(left: Any, right: Any) -> bool:
    """Whether two results are the same to the last bit, whatever they are made of."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and _equal(left.detach(), right)
    if isinstance(left, np.ndarray):
        return _equal(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_alike, left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_alike(value, right[name]) for name, value in left.items())
    if is_dataclass(left):
        return all(_alike(getattr(left, field.name), getattr(right, field.name)) for field in fields(left))
    return bool(left == right)


def random_states() -> dict[str, Any]:
    """Where the global generators stand."""
    numpy_state = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return {"torch": torch.get_rng_state().numpy().tobytes(), "numpy": numpy_state, "random": random.getstate()}


def _leaves(value: Any) -> Leaves:
    """The tensors and arrays inside dictionaries and dataclasses, each by its path."""
    if isinstance(value, (Tensor, np.ndarray)):
        return {"": value}
    inside: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    if is_dataclass(value):
        inside = {field.name: getattr(value, field.name) for field in fields(value)}
    return {f"{key}.{path}".rstrip("."): leaf for key, inner in inside.items() for path, leaf in _leaves(inner).items()}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.shape == right.shape and torch.equal(left, right.detach())
    return np.array_equal(left, right)
