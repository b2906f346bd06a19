"""Programs whose time goes into loops: recurrent networks, solvers, samplers, stencils, filters, decoding, training.

Each builder returns `Net(fn, params, inputs)` as in `nets`: `params` are frozen, and `inputs` change from call to call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.lab.bench.programs.layers import Net

NetParams = dict[str, Any]


class _Normal:
    """Normal values with a fixed seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, over: float = 1.0) -> np.ndarray:
        return (self._rng.standard_normal(shape) / over).astype(np.float32)


def gru(steps: int = 64, batch: int = 1, width: int = 128, hidden: int = 256) -> Net:
    """A gated recurrent unit over a sequence."""
    draw = _Normal(1)

    def fn(p: NetParams, xs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            a, c = jnp.split(x @ p["w"] + p["b"], 3, -1), jnp.split(h @ p["u"], 3, -1)
            z, r = jax.nn.sigmoid(a[0] + c[0]), jax.nn.sigmoid(a[1] + c[1])
            h = (1 - z) * jnp.tanh(a[2] + r * c[2]) + z * h
            return h, h

        return lax.scan(step, jnp.zeros((batch, hidden)), xs)[1]

    params = {"w": draw(width, 3 * hidden, over=11), "u": draw(hidden, 3 * hidden, over=16), "b": draw(3 * hidden)}
    return Net(fn, params, (draw(steps, batch, width),))


def lstm(steps: int = 64, batch: int = 4, width: int = 128, hidden: int = 256) -> Net:
    """A long short-term memory over a sequence."""
    draw = _Normal(2)

    def fn(p: NetParams, xs: jax.Array) -> jax.Array:
        def step(state: Any, x: jax.Array) -> Any:
            h, c = state
            i, f, o, u = jnp.split(x @ p["w"] + h @ p["u"] + p["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((batch, hidden))
        return lax.scan(step, (zero, zero), xs)[1]

    params = {"w": draw(width, 4 * hidden, over=11), "u": draw(hidden, 4 * hidden, over=16), "b": draw(4 * hidden)}
    return Net(fn, params, (draw(steps, batch, width),))


def sinkhorn(size: int = 512, rounds: int = 100) -> Net:
    """Optimal transport by scaling rows and columns."""
    mass = np.full(size, 1 / size, np.float32)

    def fn(p: NetParams, a: jax.Array, b: jax.Array, cost: jax.Array) -> jax.Array:
        kernel = jnp.exp(-cost / 0.5)

        def body(_: Any, state: Any) -> Any:
            u = a / (kernel @ state[1])
            return u, b / (kernel.T @ u)

        u, v = lax.fori_loop(0, rounds, body, (jnp.ones(size), jnp.ones(size)))
        return jnp.sum(u[:, None] * kernel * v[None] * cost)

    return Net(fn, {}, (mass, mass, np.abs(_Normal(3)(size, size))))


def leapfrog(points: int = 2000, width: int = 20, steps: int = 32) -> Net:
    """Leapfrog steps of Hamiltonian Monte Carlo on a logistic regression."""
    draw = _Normal(4)

    def density(w: jax.Array, p: NetParams) -> jax.Array:
        score = p["x"] @ w
        return jnp.sum(p["y"] * score - jnp.logaddexp(0.0, score)) - 0.5 * jnp.sum(w * w)

    def fn(p: NetParams, w: jax.Array, m: jax.Array) -> Any:
        def body(_: Any, state: Any) -> Any:
            w, m = state
            m = m + 0.005 * jax.grad(density)(w, p)
            w = w + 0.01 * m
            return w, m + 0.005 * jax.grad(density)(w, p)

        return lax.fori_loop(0, steps, body, (w, m))

    params = {"x": draw(points, width), "y": (draw(points) > 0).astype(np.float32)}
    return Net(fn, params, (draw(width, over=10), draw(width)))


def neural_ode(batch: int = 32, width: int = 16, hidden: int = 64, steps: int = 100) -> Net:
    """Steps of Runge and Kutta through a small network."""
    draw = _Normal(5)

    def fn(p: NetParams, y: jax.Array) -> jax.Array:
        def slope(y: jax.Array) -> jax.Array:
            return jnp.tanh(y @ p["a"] + p["b"]) @ p["c"]

        def step(y: jax.Array, _: Any) -> Any:
            h = 0.02
            k1 = slope(y)
            k2 = slope(y + h / 2 * k1)
            k3 = slope(y + h / 2 * k2)
            k4 = slope(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        return lax.scan(step, y, None, length=steps)[1]

    params = {"a": draw(width, hidden, over=4), "b": draw(hidden), "c": draw(hidden, width, over=8)}
    return Net(fn, params, (draw(batch, width),))


def kalman(states: int = 16, observed: int = 8, steps: int = 100) -> Net:
    """A Kalman filter over a sequence."""
    draw = _Normal(6)

    def fn(p: NetParams, ys: jax.Array) -> jax.Array:
        def step(state: Any, y: jax.Array) -> Any:
            m, v = state
            m, v = p["a"] @ m, p["a"] @ v @ p["a"].T + p["q"]
            gain = jnp.linalg.solve(p["h"] @ v @ p["h"].T + p["r"], p["h"] @ v).T
            m, v = m + gain @ (y - p["h"] @ m), v - gain @ p["h"] @ v
            return (m, v), m

        return lax.scan(step, (jnp.zeros(states), jnp.eye(states)), ys)[1]

    params = {
        "a": 0.95 * np.eye(states, dtype=np.float32) + draw(states, states, over=50),
        "h": draw(observed, states, over=4),
        "q": 0.1 * np.eye(states, dtype=np.float32),
        "r": np.eye(observed, dtype=np.float32),
    }
    return Net(fn, params, (draw(steps, observed),))


def _laplacian(u: jax.Array) -> jax.Array:
    return sum(jnp.roll(u, s, axis) for s in (1, -1) for axis in (0, 1)) - 4 * u


def heat(size: int = 256, steps: int = 200) -> Net:
    """Diffusion on a periodic grid."""
    return Net(
        lambda p, u: lax.fori_loop(0, steps, lambda _, u: u + 0.1 * _laplacian(u), u), {}, (_Normal(7)(size, size),)
    )


def wave(size: int = 256, steps: int = 200) -> Net:
    """The wave equation on a periodic grid, with its energy at each step."""

    def fn(p: NetParams, u: jax.Array) -> Any:
        def step(state: Any, _: Any) -> Any:
            u, v = state
            v = v + 0.1 * _laplacian(u)
            return (u + 0.1 * v, v), jnp.sum(u**2)

        return lax.scan(step, (u, jnp.zeros_like(u)), None, length=steps)

    return Net(fn, {}, (_Normal(8)(size, size),))


def value_iteration(states: int = 256, actions: int = 8, rounds: int = 50) -> Net:
    """Values of a Markov decision process."""
    draw = _Normal(9)

    def fn(p: NetParams, reward: jax.Array) -> jax.Array:
        def body(_: Any, values: jax.Array) -> jax.Array:
            return jnp.max(reward + 0.9 * jnp.einsum("ast,t->as", p["moves"], values), 0)

        return lax.fori_loop(0, rounds, body, jnp.zeros(states))

    moves = np.asarray(jax.nn.softmax(draw(actions, states, states)))
    return Net(fn, {"moves": moves}, (draw(actions, states),))


def conjugate_gradients(size: int = 400, most: int = 200) -> Net:
    """Conjugate gradients until the residual is small."""
    draw = _Normal(10)
    matrix = draw(size, size)

    def fn(p: NetParams, b: jax.Array) -> jax.Array:
        def body(state: Any) -> Any:
            x, r, d, square, k = state
            image = p["a"] @ d
            alpha = square / (d @ image)
            x, r = x + alpha * d, r - alpha * image
            fresh = r @ r
            return x, r, r + fresh / square * d, fresh, k + 1

        def goes_on(state: Any) -> jax.Array:
            return (state[3] > 1e-8) & (state[4] < most)

        return lax.while_loop(goes_on, body, (jnp.zeros_like(b), b, b, b @ b, 0))[0]

    return Net(fn, {"a": matrix @ matrix.T / size + np.eye(size, dtype=np.float32)}, (draw(size),))


def k_means(points: int = 4000, width: int = 16, centres: int = 32, rounds: int = 10) -> Net:
    """Lloyd's algorithm."""
    data = _Normal(11)(points, width)

    def fn(p: NetParams, x: jax.Array) -> jax.Array:
        def body(_: Any, c: jax.Array) -> jax.Array:
            apart = jnp.sum(x**2, 1)[:, None] - 2 * x @ c.T + jnp.sum(c**2, 1)
            member = jax.nn.one_hot(jnp.argmin(apart, 1), centres)
            return (member.T @ x) / jnp.maximum(member.sum(0), 1)[:, None]

        return lax.fori_loop(0, rounds, body, x[:centres])

    return Net(fn, {}, (data,))


def decoding(tokens: int = 64, width: int = 256, heads: int = 4) -> Net:
    """Decoding through one layer of a transformer with a cache of keys and values."""
    draw, each = _Normal(12), width // heads

    def fn(p: NetParams, x: jax.Array) -> jax.Array:
        def step(state: Any, i: jax.Array) -> Any:
            x, keys, values = state
            q, k, v = [(x @ p[name]).reshape(heads, each) for name in ("q", "k", "v")]
            keys = lax.dynamic_update_index_in_dim(keys, k, i, 0)
            values = lax.dynamic_update_index_in_dim(values, v, i, 0)
            scores = jnp.where(jnp.arange(tokens) <= i, jnp.einsum("hd,thd->ht", q, keys) / each**0.5, -1e9)
            x = x + jnp.einsum("ht,thd->hd", jax.nn.softmax(scores), values).reshape(width) @ p["o"]
            x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
            x = x / jnp.sqrt(jnp.mean(x * x) + 1e-5)
            return (x, keys, values), x

        empty = jnp.zeros((tokens, heads, each))
        return lax.scan(step, (x, empty, empty), jnp.arange(tokens))[1]

    params = {name: draw(width, width, over=16) for name in "qkvo"}
    params |= {"up": draw(width, 4 * width, over=16), "down": draw(4 * width, width, over=32)}
    return Net(fn, params, (draw(width),))


def spectral(size: int = 128, steps: int = 50) -> Net:
    """Steps of a spectral method for a nonlinear wave."""

    def fn(p: NetParams, u: jax.Array) -> jax.Array:
        wave_numbers = jnp.fft.fftfreq(size) * size
        decay = jnp.exp(-1e-4 * (wave_numbers[:, None] ** 2 + wave_numbers[None] ** 2))

        def body(_: Any, u: jax.Array) -> jax.Array:
            u = u - 0.01 * (u**3 - u)
            return jnp.fft.ifft2(jnp.fft.fft2(u) * decay).real

        return lax.fori_loop(0, steps, body, u)

    return Net(fn, {}, (_Normal(13)(size, size),))


def training(points: int = 512, width: int = 64, hidden: int = 128, steps: int = 30) -> Net:
    """Steps of Adam on a small network."""
    draw = _Normal(14)

    def loss(w: Any, p: NetParams) -> jax.Array:
        return jnp.mean((jnp.tanh(p["x"] @ w["in"] + w["b"]) @ w["out"] - p["y"]) ** 2)

    def fn(p: NetParams, w: Any) -> Any:
        zero = jax.tree.map(jnp.zeros_like, w)

        def body(_: Any, state: Any) -> Any:
            w, m, v = state
            g = jax.grad(loss)(w, p)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
            return jax.tree.map(lambda w, m, v: w - 1e-2 * m / (jnp.sqrt(v) + 1e-8), w, m, v), m, v

        return lax.fori_loop(0, steps, body, (w, zero, zero))[0]

    weights = {"in": draw(width, hidden, over=8), "b": draw(hidden), "out": draw(hidden, 1, over=11)}
    return Net(fn, {"x": draw(points, width), "y": draw(points, 1)}, (weights,))


def viterbi(states: int = 128, steps: int = 100) -> Net:
    """The best path of a hidden Markov model, forwards."""
    draw = _Normal(15)

    def fn(p: NetParams, emitted: jax.Array) -> Any:
        def step(best: jax.Array, row: jax.Array) -> Any:
            paths = best[:, None] + p["moves"]
            return jnp.max(paths, 0) + row, jnp.argmax(paths, 0)

        return lax.scan(step, emitted[0], emitted[1:])

    return Net(fn, {"moves": np.asarray(jax.nn.log_softmax(draw(states, states)))}, (draw(steps, states),))


def n_body(bodies: int = 256, steps: int = 20) -> Net:
    """Gravitation between all pairs of bodies."""
    draw = _Normal(16)

    def fn(p: NetParams, x: jax.Array, v: jax.Array) -> Any:
        def pull(x: jax.Array) -> jax.Array:
            apart = x[None] - x[:, None]
            return jnp.sum(p["mass"][None, :, None] * apart * (jnp.sum(apart**2, -1) + 1e-2)[..., None] ** -1.5, 1)

        def body(_: Any, state: Any) -> Any:
            x, v = state
            v = v + 0.005 * pull(x)
            x = x + 0.01 * v
            return x, v + 0.005 * pull(x)

        return lax.fori_loop(0, steps, body, (x, v))

    return Net(fn, {"mass": np.abs(draw(bodies))}, (draw(bodies, 3), draw(bodies, 3)))


LOOPS: dict[str, Callable[[], Net]] = {
    made.__name__: made
    for made in (
        gru, lstm, sinkhorn, leapfrog, neural_ode, kalman, heat, wave, value_iteration, conjugate_gradients, k_means,
        decoding, spectral, training, viterbi, n_body,
    )
}  # fmt: skip
"""Name -> builder."""
