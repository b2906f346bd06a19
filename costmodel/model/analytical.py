"""The calibrated roofline: seconds of a kernel from its features and positive coefficients.

For a step with counts x in the blocks compute (c), memory (m) and fixed (f), and shared out s ways,

    T = f . x_f + ((c . x_c)^p + (m . x_m)^p)^(1/p) / s^g,      c, m, f > 0,  p >= 1,  0 < g < 1,

and a kernel takes the sum over its steps.  With p = 1 compute and memory add up, with p large the slower one decides.
All of it is differentiable in (log c, log m, log f, p, g), which is what calibration fits; see Williams et al.,
Roofline, 2009.  It does not model the history: a cold cache or a busy neighbour is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.arrays import PerFeature, PerKernel, PerStep, StepFeatures, StepOwner
from costmodel.features.counts import COMPUTE, FIXED, INDEX, MEMORY

if TYPE_CHECKING:
    import jax

COUNT = len(INDEX)
REFERENCE_S = 5e-6  # kernels under this are mostly dispatch
NOISE_US = 0.5  # uncertainty of a label, however short the kernel
# features that no kernel of a suite shows: a guess of the right order
DEFAULT_S = np.array([*[1e-10] * len(COMPUTE), *[5e-11] * len(MEMORY), *[2e-6] * len(FIXED)])
_C = slice(0, len(COMPUTE))
_M = slice(len(COMPUTE), len(COMPUTE) + len(MEMORY))
_F = slice(len(COMPUTE) + len(MEMORY), COUNT)
_BLOCK = np.repeat(np.arange(3), [len(COMPUTE), len(MEMORY), len(FIXED)])
_PULL = 0.3  # error after 60 kernels of a made-up machine 0.10; 0.11 with a weight of 1, 0.14 with 3; unfitted 0.57
_TURN = 0.3  # gap of log time from which an error counts linearly, so that a kernel pulls a coefficient no harder
_FAR = 100.0  # times its default: where a coefficient costs the start as much as missing one kernel altogether


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """The fitted parameters of the roofline.

    Attributes:
        theta: seconds per unit of each feature, in the order of `INDEX`.
        sharpness: p of the module's formula.
        sharing: g of the module's formula.
    """

    theta: PerFeature
    sharpness: float
    sharing: float


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """Features of many kernels as arrays: one row per step.

    Attributes:
        counts: counts of each feature.
        spread: number of parts into which a step is shared out.
        repeat: how often it runs.
        owner: number of the kernel it belongs to, not decreasing.
        kernels: number of kernels.
    """

    counts: StepFeatures
    spread: PerStep
    repeat: PerStep
    owner: StepOwner
    kernels: int


def join(tables: Sequence[FeatureTable]) -> FeatureTable:
    """Join several tables, kernels in order."""
    offsets = np.cumsum([0, *(t.kernels for t in tables)])
    return FeatureTable(
        np.concatenate([t.counts for t in tables]),
        np.concatenate([t.spread for t in tables]),
        np.concatenate([t.repeat for t in tables]),
        np.concatenate([t.owner + k for t, k in zip(tables, offsets[:-1], strict=True)]),
        int(offsets[-1]),
    )


def take(table: FeatureTable, kernels: np.ndarray) -> FeatureTable:
    """Return the table of some kernels, in their order (ascending)."""
    place = np.full(table.kernels, -1)
    place[kernels] = np.arange(len(kernels))
    rows = place[table.owner] >= 0
    return FeatureTable(
        table.counts[rows], table.spread[rows], table.repeat[rows], place[table.owner[rows]], len(kernels)
    )


def seconds(table: FeatureTable, coefficients: Coefficients) -> PerKernel:
    """Return the seconds of each kernel."""
    theta, p = coefficients.theta, coefficients.sharpness
    compute = table.counts[:, _C] @ theta[_C]
    memory = table.counts[:, _M] @ theta[_M]
    top = np.maximum(np.maximum(compute, memory), 1e-30)
    both = top * ((compute / top) ** p + (memory / top) ** p) ** (1.0 / p)
    step = table.repeat * (table.counts[:, _F] @ theta[_F] + both / table.spread**coefficients.sharing)
    return np.bincount(table.owner, weights=step, minlength=table.kernels)


def long_ones(measured_s: PerKernel) -> PerKernel:
    """Return weights of kernels by their times: short ones are mostly dispatch and count less."""
    return measured_s / (measured_s + REFERENCE_S)


def fit(
    table: FeatureTable,
    measured_s: PerKernel,
    weights: PerKernel | None = None,
    *,
    steps: int = 3000,
    start: Coefficients | None = None,
) -> Coefficients:
    """Fit coefficients to measured kernels: robust error in log time, from a non-negative least-squares start.

    Args:
        table: features of the kernels.
        measured_s: their times.
        weights: weights of the kernels in the loss.
        steps: steps of Adam.
        start: coefficients of another machine to start from: compute, memory and fixed costs then move freely as
            blocks, single coefficients only as far as the kernels demand.
    """
    import jax  # late: the search prices with NumPy alone
    import jax.numpy as jnp

    weights = np.ones(table.kernels) if weights is None else weights
    origin = _least_squares(table, measured_s, weights) if start is None else start.theta
    units = table.counts * origin  # unit coefficients at the start: well conditioned in float32
    counts, spread, repeat = (jnp.asarray(a, jnp.float32) for a in (units * 1e6, table.spread, table.repeat))
    owner, target = jnp.asarray(table.owner), jnp.asarray(measured_s * 1e6, jnp.float32)
    weight = jnp.asarray(weights / weights.mean(), jnp.float32)
    block = jnp.asarray(_BLOCK)
    seen = jnp.asarray((table.counts > 0).sum(0), jnp.float32)

    def predicted_us(params: dict[str, jax.Array]) -> jax.Array:
        theta = jnp.exp(params["log"] + params["block"][block])
        p, g = 1.0 + jnp.exp(params["p"]), jax.nn.sigmoid(params["g"])
        compute, memory = counts[:, _C] @ theta[_C], counts[:, _M] @ theta[_M]
        top = jnp.maximum(jnp.maximum(compute, memory), 1e-12)
        both = top * ((compute / top + 1e-9) ** p + (memory / top + 1e-9) ** p) ** (1.0 / p)
        step = repeat * (counts[:, _F] @ theta[_F] + both / spread**g)
        return jax.ops.segment_sum(step, owner, table.kernels)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        gap = jnp.log(predicted_us(params) + NOISE_US) - jnp.log(target + NOISE_US)
        # a pull towards the start, strongest where few kernels speak: one alone moves a coefficient by e at most
        pull = _TURN * jnp.sum(params["log"] ** 2 / (1.0 + seen)) / table.kernels
        if start is not None:
            pull = pull + _PULL * jnp.mean(params["log"] ** 2)
        return jnp.mean(weight * _huber(gap, _TURN)) + pull

    params = {"log": jnp.zeros(COUNT, jnp.float32), "block": jnp.zeros(3), "p": jnp.zeros(()), "g": jnp.asarray(1.0)}
    if start is not None:
        params["p"] = jnp.asarray(np.log(max(start.sharpness - 1.0, 1e-3)), jnp.float32)
        params["g"] = jnp.asarray(np.log(start.sharing / (1.0 - start.sharing)), jnp.float32)
    held = {"block": start is None, "log": False, "p": False, "g": False}

    def slope(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {k: jnp.zeros_like(v) if held[k] else v for k, v in jax.grad(loss)(params).items()}

    fitted = jax.tree.map(np.asarray, _descended(params, slope, 0.03, steps))
    theta = origin * np.exp((fitted["log"] + fitted["block"][_BLOCK]).astype(float))
    return Coefficients(theta, 1.0 + float(np.exp(fitted["p"])), float(1.0 / (1.0 + np.exp(-fitted["g"]))))


def _huber(gap: jax.Array, delta: float) -> jax.Array:
    """Return half the square of a gap, linear where it is larger than `delta`."""
    import jax.numpy as jnp  # late: as above

    size = jnp.abs(gap)
    return jnp.where(size <= delta, 0.5 * gap * gap, delta * (size - 0.5 * delta))


def _descended(
    params: dict[str, jax.Array], slope: Callable[[dict[str, jax.Array]], dict[str, jax.Array]], rate: float, steps: int
) -> dict[str, jax.Array]:
    """Return parameters after steps of Adam (Kingma and Ba, 2015) at a rate that falls to zero as half a cosine.

    Written here since calibration on the user's machine needs no more of a library of optimisers.
    """
    import jax  # late: as above
    import jax.numpy as jnp

    first, second = 0.9, 0.999  # decay of the moments; with the 1e-8 below, the paper's defaults

    def step(carry: Any, at: jax.Array) -> tuple[Any, None]:
        params, mean, square = carry
        gradient = slope(params)
        mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, mean, gradient)
        square = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, square, gradient)
        now = rate * 0.5 * (1 + jnp.cos(jnp.pi * at / steps))
        to_mean, to_square = 1 - first ** (at + 1), 1 - second ** (at + 1)  # both began at zero
        params = jax.tree.map(
            lambda p, m, v: p - now * (m / to_mean) / (jnp.sqrt(v / to_square) + 1e-8), params, mean, square
        )
        return (params, mean, square), None

    def run(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        still = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(step, (params, still, still), jnp.arange(steps, dtype=jnp.float32))[0][0]

    return run(params)


def _least_squares(table: FeatureTable, measured_s: PerKernel, weights: PerKernel) -> PerFeature:
    """Solve non-negative least squares on relative errors of the additive model; dropped features get a small share.

    One more row for every coefficient holds it near its default.  Otherwise a feature that occurs in a single short
    kernel would be charged with all of that kernel's time, and a large kernel with that feature with hundreds of times
    its true time.
    """
    from scipy.optimize import nnls  # late: only fitting needs it

    rows = np.zeros((table.kernels, COUNT))
    shared = table.counts.copy()
    shared[:, : _F.start] /= table.spread[:, None] ** 0.7
    np.add.at(rows, table.owner, shared * table.repeat[:, None])
    scale = np.sqrt(weights) / (measured_s + NOISE_US * 1e-6)
    a = np.concatenate([rows * scale[:, None], np.diag(1.0 / (_FAR * DEFAULT_S))])
    wanted = np.concatenate([measured_s * scale, np.full(COUNT, 1.0 / _FAR)])
    norm = np.linalg.norm(a, axis=0)
    theta = nnls(a / norm, wanted, maxiter=50 * COUNT)[0] / norm
    # the most a feature may cost without exceeding any kernel that has it; a small share of that is the floor
    bound = np.full(rows.shape, np.inf)
    np.divide((measured_s + 1e-6)[:, None], rows, out=bound, where=rows > 0)
    least = bound.min(axis=0, initial=np.inf)
    return np.maximum(theta, np.minimum(0.02 * least, DEFAULT_S))
