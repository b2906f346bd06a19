"""Pairs of functions over symbolic sizes that differ in ways that a node-by-node proof may miss.

    one size      Another value at one size, or from one row on.
    small         Equal where there is one row, or none; or where there are rows.
    square        Equal where two sizes are equal, or where a size is even.
    near          Steps (rounding to integers, places of maxima, a loop) of values equal as real numbers alone.
    ordered       Comparisons of such values, which class real states of real numbers.
    holes         Steps of values that may be NaN or infinite, behind a value that both have.
    entries       Stored arrays, small and large, that differ in one entry, also where one is folded from others.
    narrow        Integers and positions in types that cannot represent them.
    words         Arguments with names that the prover gives to its own values.

Both functions first compute a value that they have in common and that loses no information (a cut), and in the end
something continuous of the result.  A kind is a function of a random generator, so there are as many pairs of it as
seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import TensorFunction, in_turn, pick

SizedCase = tuple[TensorFunction, TensorFunction, tuple[str, ...]]
ANYWHERE, EMPTY, BITS = "anywhere", "where a size is 0", "in bits"
"""The inputs on which a pair differs."""


@dataclass(frozen=True, slots=True)
class FalsePair:
    """Two functions that differ.

    Attributes:
        name: kind and number.
        first, second: the functions.
        specs: shapes of their arguments.
        differs: `ANYWHERE`, `EMPTY`: at sizes of 0 alone, or `BITS`: by rounding or for NaN and infinities.
    """

    name: str
    first: TensorFunction
    second: TensorFunction
    specs: tuple[str, ...]
    differs: str


def false_pairs(seed: int, count: int) -> Iterator[FalsePair]:
    """A sequence of `count` pairs, the kinds in turn."""
    for name, number, (make, differs), rng in in_turn(_KINDS, seed, count):
        first, second, specs = make(rng)
        around = _around(rng, specs)
        yield FalsePair(f"{name} {number}", around(first), around(second), specs, differs)


def _around(rng: np.random.Generator, specs: tuple[str, ...]) -> Callable[[TensorFunction], TensorFunction]:
    """A wrapper that computes something before and after a function and loses no information of it."""
    before, behind = int(rng.integers(4)), int(rng.integers(4))
    floats = ["[" not in spec for spec in specs]

    def of(fn: TensorFunction) -> TensorFunction:
        def run(*args: Any) -> Any:
            given = [_BEFORE[before](x) if is_float else x for x, is_float in zip(args, floats, strict=True)]
            value = fn(*given)
            return value if value.dtype == bool else _BEHIND[behind](value)

        return run

    return of


_BEFORE: tuple[TensorFunction, ...] = (
    lambda x: x,
    lambda x: x + jnp.sin(x) / 2,
    lambda x: 3 * (x + jnp.tanh(x)),
    lambda x: jnp.flip(jnp.sinh(x), 0),
)
_BEHIND: tuple[TensorFunction, ...] = (
    lambda y: y,
    lambda y: -y,
    lambda y: jnp.concatenate([jnp.atleast_1d(y)] * 2),
    lambda y: jnp.expand_dims(y, 0) * 2,
)


def _count(x: Any, axis: int = 0) -> Any:
    return jnp.asarray(x.shape[axis])


def _one_size(rng: np.random.Generator) -> SizedCase:
    at = int(rng.integers(3, 300))
    forms: tuple[TensorFunction, ...] = (
        lambda x: jnp.where(_count(x) == at, x + 1, x),
        lambda x: x + (jnp.arange(x.shape[0]) == at),
        lambda x: x + jnp.maximum(1 - jnp.abs(_count(x) - at), 0),
        lambda x: x + (jnp.sum(jnp.ones_like(x)) == at),
        lambda x: lax.cond(_count(x) == at, lambda y: -y, lambda y: y, x),
        lambda x: jnp.where(_count(x) % at == at - 1, x + 1, x),
        lambda x: lax.select_n(_count(x) > at, x, x * 2),
        lambda x: x + jnp.where(lax.rem(_count(x), at) == 0, 1 - jnp.sign(_count(x)) * 2, 0),
    )
    return pick(rng, *forms), lambda x: x, ("n",)


def _one_row(rng: np.random.Generator) -> SizedCase:
    return pick(
        rng,
        (lambda x: jnp.flip(x, 0), lambda x: x, ("n",)),
        (lambda x: x.sum(0), lambda x: x.max(0), ("n",)),
        (lambda x: jnp.cumsum(x), lambda x: x, ("n",)),
        (lambda x: jax.nn.softmax(x), lambda x: jnp.ones_like(x), ("n",)),
        (lambda x: x.mean(0), lambda x: x.sum(0), ("n 3",)),
        (lambda x: x[:, :1] + 0 * x, lambda x: x, ("b n",)),
        (lambda x: jnp.prod(x), lambda x: jnp.sum(x), ("n",)),
        (lambda x: jnp.roll(x, 1), lambda x: x, ("n",)),
        (lambda x: x @ x.T, lambda x: x * x, ("n n",)),
    )


def _no_row(rng: np.random.Generator) -> SizedCase:
    return pick(
        rng,
        (lambda x: x.sum(0) / jnp.maximum(_count(x), 1), lambda x: x.sum(0) / _count(x), ("n 2",)),
        (lambda x: x.sum(0) * 0 + (_count(x) > 0), lambda x: x.sum(0) * 0 + 1, ("n 2",)),
        (lambda x: jnp.prod(0 * x, 0), lambda x: jnp.sum(0 * x, 0), ("n 2",)),
        (
            lambda x: jnp.max(x, 0, initial=-1e9) * 0,
            lambda x: jnp.max(x, 0, initial=1e9) * 0 + (_count(x) == 0),
            ("n",),
        ),
        (lambda x: jnp.all(jnp.zeros(x.shape, bool)), lambda x: jnp.any(jnp.zeros(x.shape, bool)), ("n",)),
        (lambda x: jnp.pad(x, (0, 1)).sum() * 0 + jnp.sign(_count(x)), lambda x: 1 + 0 * jnp.sum(x), ("n",)),
    )


def _square(rng: np.random.Generator) -> SizedCase:
    return pick(
        rng,
        (lambda x: x.reshape(x.shape[1], x.shape[0]), lambda x: x.T, ("n m",)),
        (lambda x: x.T.reshape(x.shape), lambda x: x, ("n m",)),
        (lambda x: x.sum(0).sum() / _count(x, 0), lambda x: x.sum(0).sum() / _count(x, 1), ("n m",)),
        (lambda x: x.reshape(-1, 2).sum(1), lambda x: 2 * x[::2], ("2*n",)),
        (lambda x: x * (_count(x) // 2 * 2), lambda x: x * _count(x), ("n",)),
        (lambda x: x * ((_count(x) + 1) // 2), lambda x: x * (_count(x) // 2), ("n",)),
        (lambda x: x * (_count(x) * _count(x, 1)), lambda x: x * (_count(x) ** 2), ("n m",)),
        (lambda x: x.reshape(x.shape[0] * 2, -1).sum(1), lambda x: x.reshape(-1, x.shape[0] * 2).sum(0), ("n 4",)),
    )


def _near(rng: np.random.Generator) -> SizedCase:
    """`one` and `two` are equal as real numbers, and the step is discontinuous where they are near."""
    return _of_near(
        rng,
        lambda v, x: jnp.floor(v * 8),
        lambda v, x: jnp.round(v),
        lambda v, x: lax.rem(v, jnp.ones_like(v)),
        lambda v, x: jnp.atan2(v - x, -jnp.ones_like(v)),
        lambda v, x: x[jnp.argmax(v)] + x,
        lambda v, x: v.astype("int32").astype("float32"),
        lambda v, x: jnp.trunc(v) + x,
        lambda v, x: (lax.bitcast_convert_type(v, "int32") & 1).astype("float32"),
        lambda v, x: lax.nextafter(v, jnp.full_like(v, jnp.inf)) * 1e30,
        lambda v, x: lax.while_loop(lambda c: c < v[:1].sum(), lambda c: c + 1, x[:1].sum() * 0) + x,
        lambda v, x: jnp.mod(v, 1.0),
        lambda v, x: jnp.ceil(jnp.cumsum(v)),
    )


def _ordered(rng: np.random.Generator) -> SizedCase:
    """Comparisons of such values: class real states them of real numbers."""
    return _of_near(
        rng,
        lambda v, x: jnp.sign(v - x),
        lambda v, x: jnp.where(v > x, 1.0, 2.0),
        lambda v, x: jnp.cumsum((v > x).astype("int32")).astype("float32"),
        lambda v, x: jnp.where(v == x, x, -x),
        lambda v, x: lax.cond((v > x).any(), lambda z: z, lambda z: -z, x),
    )


def _of_near(rng: np.random.Generator, *steps: TensorFunction) -> SizedCase:
    one, two = pick(
        rng,
        (lambda x, y: (x + y) - y, lambda x, y: x),
        (lambda x, y: x * y / y, lambda x, y: x),
        (lambda x, y: x * 3 + y * 3, lambda x, y: 3 * (x + y)),
        (lambda x, y: x / 3, lambda x, y: x * (1 / 3)),
        (lambda x, y: (x + y) * (x - y), lambda x, y: x * x - y * y),
        (lambda x, y: jnp.tanh(x) * y + jnp.tanh(x), lambda x, y: jnp.tanh(x) * (y + 1)),
        (lambda x, y: jnp.sum(x) * y, lambda x, y: jnp.sum(x) * y * 3 / 3),
    )
    step: TensorFunction = pick(rng, *steps)
    return lambda x, y: step(one(x, y), x), lambda x, y: step(two(x, y), x), ("n", "n")


def _holes(rng: np.random.Generator) -> SizedCase:
    """A value that is not finite where an argument is 0 or negative, and steps that turn it into a number."""
    value: TensorFunction = pick(
        rng,
        lambda i: 1 / i,
        lambda i: jnp.log(i),
        lambda i: jnp.sqrt(i),
        lambda i: i / i,
        lambda i: lax.rsqrt(i),
        lambda i: jnp.arccos(i),
        lambda i: lax.integer_pow(i, -2),
        lambda i: jnp.log(i) * i,
        lambda i: lax.rem(i, i),
        lambda i: jnp.arctanh(i * i),
        lambda i: lax.pow(i, jnp.full_like(i, 0.5)),
    )
    one, two = pick(
        rng,
        (lambda c, x: jnp.where(c * 0 == 0, x, x + 5), lambda c, x: x),
        (lambda c, x: jnp.where(c == c, x, x + 5), lambda c, x: x),
        (lambda c, x: jnp.where(c - c < 0.5, x, x + 5), lambda c, x: jnp.where(c * 0 < 0.5, x, x + 5) + 0 * (c > 0)),
        (lambda c, x: jnp.where(jnp.isnan(c), x + 5, x), lambda c, x: x),
        (lambda c, x: jnp.where(c > 0, c, 0.0) + x, lambda c, x: jnp.maximum(c, 0.0) + x),
        (lambda c, x: jnp.where(c < 1, x, jnp.where(c >= 1, x, x + 5)), lambda c, x: x),
        (lambda c, x: jnp.where((c < 1) | (c > 0), x, x + 5), lambda c, x: x),
        (lambda c, x: x * jnp.isfinite(c), lambda c, x: x),
        (lambda c, x: jnp.where(c + 1 > c, x, x + 5), lambda c, x: x),
        (lambda c, x: jnp.where(c / c == 1, x, x + 5), lambda c, x: x),
        (lambda c, x: x + (c * c >= 0), lambda c, x: x + 1),
        (lambda c, x: x + jnp.sign(c * c + 1), lambda c, x: x + 1),
        (lambda c, x: x + jnp.argmin(jnp.stack([c * 0, c * 0 + 1]), 0), lambda c, x: x),
        (lambda c, x: x + jnp.floor(c - c), lambda c, x: x),
    )
    kind = pick(rng, "int32", "int8")

    def with_value(fn: TensorFunction) -> TensorFunction:
        return lambda i, x: fn(value(i.astype("float32")), x)

    return with_value(one), with_value(two), (f"{kind}[n]", "n")


def _entries(rng: np.random.Generator) -> SizedCase:
    width = int(pick(rng, 3, 8, 40))
    one = rng.standard_normal((width, 4)).astype(np.float32)
    other = one.copy()
    other[int(rng.integers(width)), int(rng.integers(4))] += 0.01
    scale = rng.uniform(0.5, 2, 4).astype(np.float32)
    return pick(
        rng,
        (lambda x: x @ one, lambda x: x @ other, (f"n {width}",)),
        (lambda x: (x @ one) * scale, lambda x: x @ (other * scale), (f"n {width}",)),
        (lambda x: x @ (one.T).T + 1, lambda x: x @ other + 1, (f"n {width}",)),
        (lambda x: x @ one + x @ one, lambda x: x @ (one + other), (f"n {width}",)),
        (lambda x: jnp.tanh(x @ np.flip(one, 0)), lambda x: jnp.tanh(jnp.flip(x, 1) @ other), (f"n {width}",)),
        (lambda x: jnp.take(one, jnp.arange(x.shape[0]) % width, axis=0) + x,
         lambda x: jnp.take(other, jnp.arange(x.shape[0]) % width, axis=0) + x, ("n 4",)),
        (lambda x: jnp.concatenate([x @ one] * 2, 1), lambda x: x @ np.concatenate([one, other], 1), (f"n {width}",)),
    )  # fmt: skip


def _narrow(rng: np.random.Generator) -> SizedCase:
    kind = pick(rng, "int8", "uint8", "int16")
    half = pick(rng, "bfloat16", "float16")
    return pick(
        rng,
        (lambda x: x.sum(0, dtype=kind).astype("int32"), lambda x: x.astype("int32").sum(0), (f"{kind}[n]",)),
        (lambda x: x + jnp.arange(x.shape[0]).astype(kind), lambda x: x + jnp.arange(x.shape[0]), ("n",)),
        (lambda x: x * _count(x).astype(kind), lambda x: x * _count(x), ("n",)),
        (lambda x: x + jnp.arange(x.shape[0]).astype(half), lambda x: x + jnp.arange(x.shape[0]), ("n",)),
        (lambda x: x * _count(x).astype(half).astype("float32"), lambda x: x * _count(x), ("n",)),
        (lambda x: jnp.cumsum(x, dtype=kind).astype("int32"), lambda x: jnp.cumsum(x.astype("int32")), (f"{kind}[n]",)),
        (lambda x: jnp.floor(x.astype(half).astype("float32")), lambda x: jnp.floor(x), ("n",)),
        (lambda x: (x * x).astype("int32"), lambda x: x.astype("int32") * x, (f"{kind}[n]",)),
        (lambda x: -(-x // 2), lambda x: x // 2 + x % 2, (f"{pick(rng, 'int8', 'uint8')}[n]",)),
        (lambda x: x.astype("float32").astype("int32"), lambda x: x, ("int32[n]",)),
        (lambda x: jnp.abs(x) >= 0, lambda x: x == x, (f"{pick(rng, 'int8', 'int16')}[n]",)),
        (lambda x: (x.astype(half) * 3).astype("float32") > 1, lambda x: x * 3 > 1, ("n",)),
    )


def _words(rng: np.random.Generator) -> SizedCase:
    """Arguments named like the prover's symbols for shared values, and like sizes."""

    def first(cut0: Any, cut1: Any, x0: Any) -> Any:
        return jnp.exp(jnp.sin(jnp.cos(x0)) + 1e-9 * cut0) + cut1 * 0

    def second(cut0: Any, cut1: Any, x0: Any) -> Any:
        c = jnp.sin(jnp.cos(x0))
        return jnp.exp(c + 1e-9 * c) + 0 * cut1

    def third(cut0: Any, cut1: Any) -> Any:
        return jnp.sin(cut0) * jnp.sin(cut1) - jnp.cos(cut0)

    def fourth(cut0: Any, cut1: Any) -> Any:
        return jnp.sin(cut1) * jnp.sin(cut0) - jnp.cos(cut1)

    return pick(
        rng,
        (first, second, ("n", "n", "n")),
        (third, fourth, ("cut0", "cut0")),
        (lambda x: x * _count(x), lambda x: x * (2 * _count(x, 1)), ("b b_",)),
    )


_KINDS: dict[str, tuple[Callable[[np.random.Generator], SizedCase], str]] = {
    "one-size": (_one_size, ANYWHERE),
    "one-row": (_one_row, ANYWHERE),
    "no-row": (_no_row, EMPTY),
    "square": (_square, ANYWHERE),
    "near": (_near, ANYWHERE),
    "ordered": (_ordered, BITS),
    "hole": (_holes, ANYWHERE),
    "entry": (_entries, ANYWHERE),
    "narrow": (_narrow, ANYWHERE),
    "word": (_words, ANYWHERE),
}
