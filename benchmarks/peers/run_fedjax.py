"""FedJAX: its federated averaging with the jit backend on a CPU, which may use all cores."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.peers.rounds import Clock, arguments, arrays

given, clock = arguments(), Clock()
work = given.work
draw = np.random.default_rng(0)


def layer(*shape: int) -> tuple[Any, Any]:
    """Return weights and biases, drawn as PyTorch does."""
    bound = 1 / np.sqrt(np.prod(shape[:-1]))
    return tuple(
        jnp.asarray(draw.uniform(-bound, bound, size), jnp.float32) for size in (shape, shape[-1:])
    )


convolutions = len(work.convolutions)
pairs = zip((work.shape[0], *work.convolutions), work.convolutions, strict=False)
weights = [*(layer(3, 3, *pair) for pair in pairs), *(layer(*pair) for pair in work.widths)]


def logits(weights: Any, x: Any) -> Any:
    if convolutions:
        x = x.transpose(0, 2, 3, 1)
        for kernel, bias in weights[:convolutions]:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            pool = (1, 2, 2, 1)
            x = jax.lax.reduce_window(
                jax.nn.relu(x + bias), -jnp.inf, jax.lax.max, pool, pool, "VALID"
            )
        x = x.reshape(x.shape[0], -1)
    *hidden, (kernel, bias) = weights[convolutions:]
    for inner, shift in hidden:
        x = jax.nn.relu(x @ inner + shift)
    return x @ kernel + bias


def loss(weights: Any, batch: Any, key: Any = None) -> Any:
    chances = jax.nn.log_softmax(logits(weights, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(chances, batch["y"][:, None], 1))


x, y = arrays(work)
clients = [fedjax.ClientDataset({"x": x[c], "y": y[c]}) for c in range(work.clients)]
batches = fedjax.ShuffleRepeatBatchHParams(
    batch_size=work.batch, num_epochs=work.epochs, drop_remainder=False
)
fedjax.set_for_each_client_backend("jit")
local = fedjax.optimizers.sgd(work.lr, momentum=work.momentum or None)
method = fed_avg.federated_averaging(jax.grad(loss), local, fedjax.optimizers.sgd(1.0), batches)
state = method.init(weights)
keys = list(jax.random.split(jax.random.PRNGKey(0), work.clients))
pick = np.random.default_rng(1)
clock.mark()
for _ in range(given.rounds + 1):
    cohort = pick.choice(work.clients, work.per_round, replace=False).tolist()
    state, _ = method.apply(state, [(c, clients[c], keys[c]) for c in cohort])
    jax.block_until_ready(state.params)
    clock.mark()
some = {"x": x[:10].reshape(-1, *work.shape), "y": y[:10].reshape(-1)}
clock.report(float(loss(state.params, some)), "fedjax", "jax")
