"""Steps of training: losses with gradients, updates of optimizers, augmentations of data."""

from __future__ import annotations

from typing import Any

from tests.upstream.registry import Built, Draw, program


@program("flax")
def linen_train_step(draw: Draw) -> Built:
    import jax
    import optax
    from flax import linen as nn
    from flax.training import train_state

    class TrainState(train_state.TrainState):
        batch_stats: Any

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x: Any, *, train: bool) -> Any:
            for features in (16, 32):
                x = nn.Conv(features, (3, 3), use_bias=False)(x)
                x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            return nn.Dense(10)(nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1))))

    model, images, labels = CNN(), draw.uniform(16, 28, 28, 1), draw.integers(10, 16)
    variables = jax.jit(model.init, static_argnames="train")(jax.random.key(0), images, train=False)
    state = TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9),
    )

    def train_step(state: Any, images: Any, labels: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            weights = {"params": params, "batch_stats": state.batch_stats}
            logits, updates = state.apply_fn(weights, images, train=True, mutable=["batch_stats"])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            return loss, updates["batch_stats"]

        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss

    return Built(train_step, (state, images, labels))


@program("flax")
def nnx_train_step(draw: Draw) -> Built:
    import jax
    import optax
    from flax import nnx

    class MLP(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(32, 128, rngs=rngs)
            self.norm = nnx.LayerNorm(128, rngs=rngs)
            self.second = nnx.Linear(128, 4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.second(nnx.gelu(self.norm(self.first(x))))

    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    definition, state = nnx.split((model, optimizer))

    def train_step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = nnx.merge(definition, state)
        loss, grads = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return Built(train_step, (jax.tree.map(jax.numpy.asarray, state), draw.normal(64, 32), draw.normal(64, 4)))


@program("haiku")
def haiku_vae(draw: Draw) -> Built:
    import haiku as hk
    import jax
    import optax
    from jax import numpy as jnp

    def elbo(images: Any) -> Any:
        flat = hk.Flatten()(images)
        hidden = jax.nn.relu(hk.Linear(128)(flat))
        mean, deviation = hk.Linear(8)(hidden), jnp.exp(hk.Linear(8)(hidden))
        z = mean + deviation * jax.random.normal(hk.next_rng_key(), mean.shape)
        logits = hk.nets.MLP([128, flat.shape[-1]])(z)
        likelihood = -optax.sigmoid_binary_cross_entropy(logits, flat).sum(-1)
        divergence = 0.5 * jnp.sum(-2.0 * jnp.log(deviation) - 1.0 + deviation**2 + mean**2, axis=-1)
        return (likelihood - divergence).mean()

    net, tx, images = hk.transform(elbo), optax.adam(1e-3), draw.uniform(32, 14, 14)
    params = net.init(jax.random.key(0), images)

    def step(params: Any, state: Any, key: Any, images: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda params: -net.apply(params, key, images))(params)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    return Built(step, (params, tx.init(params), jax.random.key(1), images))


@program("equinox")
def equinox_gradient(draw: Draw) -> Built:
    import equinox as eqx
    import jax

    model = eqx.nn.MLP(
        in_size=16, out_size=3, width_size=96, depth=3, activation=jax.nn.softplus, key=jax.random.key(0)
    )
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    @eqx.filter_value_and_grad
    def loss_fn(model: Any, x: Any, y: Any) -> Any:
        return jax.numpy.mean((jax.vmap(model)(x) - y) ** 2)

    def step(arrays: Any, x: Any, y: Any) -> Any:
        loss, grads = loss_fn(eqx.combine(arrays, rest), x, y)
        grads, _ = eqx.partition(grads, eqx.is_inexact_array)
        return loss, eqx.apply_updates(arrays, jax.tree.map(lambda g: -0.01 * g, grads))

    return Built(step, (arrays, draw.normal(64, 16), draw.normal(64, 3)))


@program("optax")
def optax_adamw(draw: Draw) -> Built:
    import jax
    import optax

    params = {
        "embed": draw.normal(500, 64),
        "layers": [{"w": draw.normal(64, 256), "b": draw.normal(256), "v": draw.normal(256, 64)} for _ in range(2)],
    }
    params = jax.tree.map(jax.numpy.asarray, params)
    grads = jax.tree.map(lambda x: 0.1 * x, params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, warmup_steps=100, decay_steps=1000)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))

    def update(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Built(update, (params, tx.init(params), grads))


@program("optax")
def optax_ctc(draw: Draw) -> Built:
    import jax
    import optax
    from jax import numpy as jnp

    def loss(logits: Any, frames: Any, labels: Any, lengths: Any) -> Any:
        paddings = (jnp.arange(logits.shape[1]) >= frames[:, None]).astype(jnp.float32)
        label_paddings = (jnp.arange(labels.shape[1]) >= lengths[:, None]).astype(jnp.float32)
        return optax.ctc_loss(logits, paddings, labels, label_paddings).mean()

    arguments = (
        draw.normal(4, 50, 30),
        30 + draw.integers(20, 4),
        1 + draw.integers(29, 4, 12),
        4 + draw.integers(8, 4),
    )
    return Built(jax.value_and_grad(loss), arguments)


@program("rlax")
def rlax_ppo(draw: Draw) -> Built:
    import jax
    import rlax
    from jax import numpy as jnp

    def policy(params: Any, observations: Any) -> Any:
        hidden = jnp.tanh(observations @ params["w"] + params["b"])
        return hidden @ params["policy"], (hidden @ params["value"])[..., 0]

    def loss(params: Any, observations: Any, actions: Any, rewards: Any, old_logits: Any) -> Any:
        logits, values = policy(params, observations)
        discounts = 0.99 * jnp.ones_like(rewards)
        advantages = rlax.truncated_generalized_advantage_estimation(rewards, discounts, 0.95, values, True)
        log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(actions)), actions]
        old_log_prob = jax.nn.log_softmax(old_logits)[jnp.arange(len(actions)), actions]
        ratios = jnp.exp(log_prob - old_log_prob)[:-1]
        surrogate = rlax.clipped_surrogate_pg_loss(ratios, advantages, 0.2)
        entropy = rlax.entropy_loss(logits[:-1], jnp.ones_like(ratios))
        value = rlax.l2_loss(values[:-1], jax.lax.stop_gradient(values[:-1] + advantages)).mean()
        return surrogate + 0.5 * value + 0.01 * entropy

    params = {
        "w": 0.3 * draw.normal(12, 64),
        "b": draw.normal(64),
        "policy": 0.1 * draw.normal(64, 6),
        "value": 0.1 * draw.normal(64, 1),
    }
    trajectory = (draw.normal(129, 12), draw.integers(6, 129), draw.normal(128), draw.normal(129, 6))
    return Built(jax.value_and_grad(loss), (params, *trajectory))


@program("rlax")
def rlax_double_q(draw: Draw) -> Built:
    import jax
    import rlax
    from jax import numpy as jnp

    def q_values(params: Any, observations: Any) -> Any:
        return jax.nn.relu(observations @ params["w"]) @ params["v"]

    def loss(params: Any, target: Any, now: Any, actions: Any, rewards: Any, discounts: Any, later: Any) -> Any:
        errors = jax.vmap(rlax.double_q_learning)(
            q_values(params, now),
            actions,
            rewards,
            discounts,
            q_values(target, later),
            q_values(params, later),
        )
        return jnp.mean(rlax.l2_loss(rlax.clip_gradient(errors, -1.0, 1.0)))

    params = {"w": 0.2 * draw.normal(16, 128), "v": 0.1 * draw.normal(128, 5)}
    target = {"w": 0.2 * draw.normal(16, 128), "v": 0.1 * draw.normal(128, 5)}
    batch = (draw.normal(64, 16), draw.integers(5, 64), draw.normal(64), draw.uniform(64), draw.normal(64, 16))
    return Built(jax.grad(loss), (params, target, *batch))


@program("evosax")
def evosax_generation(draw: Draw) -> Built:
    import jax
    import optax
    from evosax.algorithms import Open_ES
    from jax import numpy as jnp

    strategy = Open_ES(64, jnp.zeros(20), optimizer=optax.adam(0.05))
    params, start = strategy.default_params, jnp.asarray(draw.normal(20))
    state = strategy.init(jax.random.key(0), start, params)

    def generation(key: Any, state: Any, params: Any) -> Any:
        ask, tell = jax.random.split(key)
        population, state = strategy.ask(ask, state, params)
        fitness = jnp.sum(population**2 - 10.0 * jnp.cos(2.0 * jnp.pi * population) + 10.0, axis=-1)
        state, metrics = strategy.tell(tell, population, fitness, state, params)
        return state, metrics["best_fitness"]

    return Built(generation, (jax.random.key(1), state, params))


@program("dm_pix")
def pix_augmentations(draw: Draw) -> Built:
    import dm_pix as pix
    import jax

    def augment(key: Any, image: Any) -> Any:
        crop, flip, hue, contrast = jax.random.split(key, 4)
        image = pix.random_crop(crop, image, (28, 28, 3))
        image = pix.random_flip_left_right(flip, image)
        image = pix.random_hue(hue, image, 0.1)
        image = pix.random_contrast(contrast, image, 0.8, 1.2)
        return pix.gaussian_blur(image, 1.0, 5)

    def batch(key: Any, images: Any) -> Any:
        return jax.vmap(augment)(jax.random.split(key, len(images)), images)

    return Built(batch, (jax.random.key(0), draw.uniform(16, 32, 32, 3)))
