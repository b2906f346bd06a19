"""Examples in the manner of tutorials, each a function of the decorator: the same text under `jax.jit` and ours.

An example returns what it would print or plot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Jit = Callable[..., Any]
EXAMPLES: dict[str, Callable[[Jit], Any]] = {}


def example(run: Callable[[Jit], Any]) -> Callable[[Jit], Any]:
    """Enter an example into the list under its own name."""
    EXAMPLES[run.__name__] = run
    return run


@example
def first_steps(jit: Jit) -> Any:
    """A decorated function with defaults, called with arrays and numbers; its gradient."""
    import jax
    from jax import numpy as jnp

    @jit
    def selu(x: Any, alpha: Any = 1.67, scale: Any = 1.05) -> Any:
        return scale * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)

    x = jnp.arange(-3.0, 5.0)
    slope = jax.grad(lambda x: selu(x).sum())(x)
    return selu(x), selu(x, 1.5), selu(x, scale=2.0), slope


@example
def static_names(jit: Jit) -> Any:
    """Arguments that steer Python: by name, with defaults, as keywords."""
    from jax import numpy as jnp

    @partial(jit, static_argnames=("width", "reduction"))
    def windows(x: Any, width: int, reduction: str = "mean") -> Any:
        parts = jnp.stack([x[i : len(x) - width + i + 1] for i in range(width)])
        return parts.mean(axis=0) if reduction == "mean" else parts.max(axis=0)

    x = jnp.sin(jnp.arange(40.0))
    return windows(x, 3), windows(x, width=5), windows(x, 3, reduction="max")


@example
def mnist_from_scratch(jit: Jit) -> Any:
    """A multilayer perceptron of NumPy functions, batched by vmap, trained in a Python loop."""
    import jax
    from jax import numpy as jnp
    from jax.scipy.special import logsumexp

    sizes = (64, 48, 32, 10)
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = [
        (0.1 * jax.random.normal(key, (n, m)), jnp.zeros(n))
        for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]

    def predict(params: Any, image: Any) -> Any:
        for w, b in params[:-1]:
            image = jax.nn.relu(w @ image + b)
        w, b = params[-1]
        logits = w @ image + b
        return logits - logsumexp(logits)

    batched = jax.vmap(predict, in_axes=(None, 0))

    def loss(params: Any, images: Any, targets: Any) -> Any:
        return -jnp.mean(batched(params, images) * targets)

    @jit
    def update(params: Any, images: Any, targets: Any) -> Any:
        grads = jax.grad(loss)(params, images, targets)
        return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]

    @jit
    def accuracy(params: Any, images: Any, targets: Any) -> Any:
        return jnp.mean(jnp.argmax(batched(params, images), axis=1) == jnp.argmax(targets, axis=1))

    images = jax.random.uniform(keys[-1], (128, 64))
    targets = jax.nn.one_hot(jnp.arange(128) % 10, 10)
    for _ in range(5):
        params = update(params, images, targets)
    return params, accuracy(params, images, targets)


@example
def flax_train_state(jit: Jit) -> Any:
    """A linen module in a TrainState, whose step begins as a number, with metrics and an evaluation."""
    import jax
    import optax
    from flax import linen as nn
    from flax.training import train_state

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), strides=(2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    @jit
    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["image"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == batch["label"]).mean()}
        return state.apply_gradients(grads=grads), metrics

    net = Net()
    batch = {
        "image": jax.random.uniform(jax.random.key(1), (16, 12, 12, 1)),
        "label": jax.random.randint(jax.random.key(2), (16,), 0, 10),
    }
    params = net.init(jax.random.key(0), batch["image"])["params"]
    state = train_state.TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-3))
    history = []
    for _ in range(4):
        state, metrics = train_step(state, batch)
        history.append(metrics)
    return state.params, state.step, history


@example
def nnx_functional(jit: Jit) -> Any:
    """An nnx model split into its definition, a static argument, and its state."""
    import jax
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.inner = nnx.Linear(6, 32, rngs=rngs)
            self.outer = nnx.Linear(32, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.outer(nnx.tanh(self.inner(x)))

    tx = optax.sgd(0.05)

    @partial(jit, static_argnums=0)
    def train_step(definition: Any, params: Any, momenta: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return ((nnx.merge(definition, params)(x) - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, momenta = tx.update(grads, momenta, params)
        return optax.apply_updates(params, updates), momenta, loss

    definition, params = nnx.split(Model(nnx.Rngs(0)), nnx.Param)
    momenta = tx.init(params)
    x = jax.random.normal(jax.random.key(1), (32, 6))
    y = jax.numpy.sin(x.sum(axis=1, keepdims=True))
    losses = []
    for _ in range(4):
        params, momenta, loss = train_step(definition, params, momenta, x, y)
        losses.append(loss)
    return losses, nnx.merge(definition, params)(x)


@example
def equinox_partitioned(jit: Jit) -> Any:
    """An equinox module: arrays are an argument, everything else is static."""
    import equinox as eqx
    import jax
    import optax

    model = eqx.nn.MLP(2, "scalar", 32, 2, activation=jax.nn.gelu, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    tx = optax.adamw(1e-2)

    @partial(jit, static_argnums=2)
    def step(params: Any, state: Any, static: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return jax.numpy.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(params, updates), state, loss

    x = jax.random.normal(jax.random.key(1), (64, 2))
    y = x[:, 0] * x[:, 1]
    state, losses = tx.init(params), []
    for _ in range(4):
        params, state, loss = step(params, state, static, x, y)
        losses.append(loss)
    return losses, params


@example
def haiku_methods(jit: Jit) -> Any:
    """A trainer whose methods are jitted with the object as a static argument."""
    import haiku as hk
    import jax
    import optax

    class Trainer:
        def __init__(self) -> None:
            self.net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([64, 64, 3])(x)))
            self.tx = optax.rmsprop(1e-3)

        def loss(self, params: Any, x: Any, labels: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(self.net.apply(params, x), labels).mean()

        def start(self, key: Any, x: Any) -> Any:
            params = self.net.init(key, x)
            return params, self.tx.init(params)

        @partial(jit, static_argnums=0)
        def update(self, params: Any, state: Any, x: Any, labels: Any) -> Any:
            grads = jax.grad(self.loss)(params, x, labels)
            updates, state = self.tx.update(grads, state)
            return optax.apply_updates(params, updates), state

        @partial(jit, static_argnums=0)
        def predict(self, params: Any, x: Any) -> Any:
            return self.net.apply(params, x).argmax(axis=-1)

    x = jax.random.normal(jax.random.key(0), (60, 8))
    labels = jax.numpy.arange(60) % 3
    trainer = Trainer()
    params, state = trainer.start(jax.random.key(1), x)
    for _ in range(3):
        params, state = trainer.update(params, state, x, labels)
    return params, trainer.predict(params, x)


@example
def optax_donated(jit: Jit) -> Any:
    """A loop that gives its old state away."""
    import jax
    import optax
    from jax import numpy as jnp

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(3e-3))

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

    @partial(jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    key, other = jax.random.split(jax.random.key(0))
    params = {"w": 0.3 * jax.random.normal(key, (16, 64)), "v": 0.3 * jax.random.normal(other, (64, 2))}
    state, losses = tx.init(params), []
    for batch in range(4):
        x = jax.random.normal(jax.random.fold_in(key, batch), (32, 16))
        params, state, loss = step(params, state, x, x[:, :2])
        losses.append(loss)
    return params, losses


@example
def blackjax_inference_loop(jit: Jit) -> Any:
    """A jitted step inside of a scan inside of a jitted loop."""
    import blackjax
    import jax
    from jax import numpy as jnp
    from jax.scipy import stats

    observed = 3.0 + 2.0 * jax.random.normal(jax.random.key(5), (300,))

    def logdensity(x: Any) -> Any:
        logpdf = stats.norm.logpdf(observed, x["loc"], jnp.exp(x["log_scale"]))
        return x["log_scale"] + jnp.sum(logpdf)

    kernel = blackjax.hmc(logdensity, step_size=1e-2, inverse_mass_matrix=jnp.ones(2), num_integration_steps=5)

    @jit
    def one_step(state: Any, key: Any) -> Any:
        state, info = kernel.step(key, state)
        return state, (state.position, info.acceptance_rate)

    @partial(jit, static_argnames="samples")
    def inference_loop(key: Any, state: Any, samples: int) -> Any:
        return jax.lax.scan(one_step, state, jax.random.split(key, samples))

    state = kernel.init({"loc": jnp.float32(1.0), "log_scale": jnp.float32(1.0)})
    state, _ = one_step(state, jax.random.key(1))
    return inference_loop(jax.random.key(2), state, samples=6)


@example
def numpyro_svi_loop(jit: Jit) -> Any:
    """`jit` called on a method of a library's object; its state goes round in a Python loop."""
    import jax
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    def model(flips: Any) -> None:
        fairness = numpyro.sample("fairness", dist.Beta(2.0, 2.0))
        with numpyro.plate("flips", len(flips)):
            numpyro.sample("flip", dist.Bernoulli(fairness), obs=flips)

    flips = (jax.numpy.arange(40) % 3 == 0).astype(jax.numpy.float32)
    svi = SVI(model, AutoDiagonalNormal(model), numpyro.optim.Adam(0.02), Trace_ELBO())
    update = jit(svi.update)
    state, losses = svi.init(jax.random.PRNGKey(0), flips), []
    for _ in range(5):
        state, loss = update(state, flips)
        losses.append(loss)
    return losses, svi.get_params(state)


@example
def newton_logistic(jit: Jit) -> Any:
    """Transformed functions under `jit`: value with gradient, Hessian, a vmapped prediction."""
    import jax
    from jax import numpy as jnp

    x = jax.random.normal(jax.random.key(0), (100, 4))
    y = (x @ jnp.array([1.0, -2.0, 0.5, 0.0]) > 0).astype(jnp.float32)

    def loss(w: Any) -> Any:
        margins = (2.0 * y - 1.0) * (x @ w)
        return -jnp.sum(jax.nn.log_sigmoid(margins)) + 0.5 * w @ w

    value_and_grad, hessian = jit(jax.value_and_grad(loss)), jit(jax.hessian(loss))
    probabilities = jit(jax.vmap(lambda w, row: jax.nn.sigmoid(row @ w), in_axes=(None, 0)))
    w, values = jnp.zeros(4), []
    for _ in range(4):
        value, grad = value_and_grad(w)
        w = w - jnp.linalg.solve(hessian(w), grad)
        values.append(value)
    return values, w, probabilities(w, x)


@example
def greedy_decoding(jit: Jit) -> Any:
    """A language model that writes token by token, with its cache of keys and values as an argument."""
    from jax import numpy as jnp
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=300, n_positions=32)
    model = FlaxGPT2LMHeadModel(config, seed=0)
    length = 10

    @jit
    def next_token(params: Any, token: Any, cache: Any, position: Any) -> Any:
        outputs = model(
            token,
            params=params,
            past_key_values=cache,
            position_ids=jnp.broadcast_to(position, (1, 1)),
            attention_mask=jnp.ones((1, length), jnp.int32),
        )
        return outputs.logits[:, -1:].argmax(-1), outputs.past_key_values, outputs.logits

    token, cache, written, logits = jnp.array([[7]]), model.init_cache(1, length), [], None
    for position in range(4):
        token, cache, logits = next_token(model.params, token, cache, position)
        written.append(token)
    return written, logits
