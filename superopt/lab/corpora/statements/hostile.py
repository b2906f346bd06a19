"""False statements of the kinds that a prover over ideal numbers believes.

    constants     Arrays that functions close over and that differ in one entry, or beyond some rows.
    narrow        Integers, positions and sizes through floats that cannot represent them.
    branches      Python code that does something else at some sizes.
    wraps         Laws of integers that machine integers lack, in the open and behind guards.
    rounding      Explicit conversions treated as the identity; comparisons and steps of rounded values.
    numbers       Guards against NaN and infinities, and minus infinity, treated as no-ops.
    zeros         Signs of zeros.
    division      Quotients, remainders and shifts that round to different sides.

A kind is a function of a random generator, so there are as many statements of it as there are seeds.  Some are true up
to rounding or for finite numbers; of these only the claim is false that they hold bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import TensorFunction, in_turn, pick
from verifier.statements.statement import Statement, make_statement

HostileCase = tuple[TensorFunction, TensorFunction, tuple[Any, ...], tuple[str, ...]]
HALVES = {"bfloat16": 8, "float16": 11}  # bits of a significand
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


@dataclass(frozen=True, slots=True)
class Hostile:
    """A false statement.

    Attributes:
        statement: the statement.
        in_bits: whether only the claim is false that both sides agree in every bit.
    """

    statement: Statement
    in_bits: bool


def hostile(seed: int, count: int) -> Iterator[Hostile]:
    """A sequence of `count` statements, the kinds in turn."""
    for name, number, (make, in_bits), rng in in_turn(_KINDS, seed, count):
        left, right, specs, constraints = make(rng)
        left, right = _around(rng, left, right)
        made = make_statement(f"{name}-{number}", left, right, specs, {}, constraints, f"{__name__}:{name}")
        yield Hostile(made, in_bits)


def _around(
    rng: np.random.Generator, left: TensorFunction, right: TensorFunction
) -> tuple[TensorFunction, TensorFunction]:
    """Both sides inside of a function that loses no information of any element."""
    which = int(rng.integers(4))

    def inside(fn: TensorFunction) -> TensorFunction:
        def plain(*args: Any) -> Any:
            return fn(*args)

        def reversed_(*args: Any) -> Any:
            value = fn(*args)
            return value[::-1] if value.ndim else value

        def both(*args: Any) -> Any:
            value = fn(*args)
            return value, jnp.expand_dims(value, 0)

        def negated(*args: Any) -> Any:
            value = fn(*args)
            return ~value if value.dtype == bool else -value

        return functools.wraps(fn)((plain, reversed_, both, negated)[which])

    return inside(left), inside(right)


def _rows_beyond(rng: np.random.Generator) -> HostileCase:
    size = int(rng.integers(40, 3000))
    same = int(rng.integers(8, size))
    one = rng.standard_normal(size).astype(np.float32)
    other = one.copy()
    other[same:] += 1
    return (
        lambda x: x + jnp.asarray(one)[: x.shape[0]],
        lambda x: x + jnp.asarray(other)[: x.shape[0]],
        ("n",),
        (f"n <= {size}",),
    )


def _one_entry(rng: np.random.Generator) -> HostileCase:
    shape = tuple(int(n) for n in rng.integers(2, 40, 2))
    one = rng.integers(-3, 4, shape).astype(pick(rng, "float32", "int32"))
    other = one.copy()
    other[tuple(int(rng.integers(n)) for n in shape)] += 1
    return lambda x: x * one, lambda x: x * other, (f"{shape[0]} {shape[1]}",), ()


def _narrow_constant(rng: np.random.Generator) -> HostileCase:
    kind = pick(rng, *HALVES)
    value = 2 ** HALVES[kind] + 1 + 2 * int(rng.integers(200))
    value += 1 - value % 2
    while float(jnp.asarray(value, kind)) == value:
        value += 2
    return (
        lambda x: x * jnp.full(x.shape, value, "int32").astype(kind).astype("float32"),
        lambda x: x * float(value),
        ("n",),
        ("n >= 1",),
    )


def _narrow_positions(rng: np.random.Generator) -> HostileCase:
    kind = pick(rng, *HALVES)
    size = 2 ** HALVES[kind] + 2 + int(rng.integers(500))
    known = bool(rng.integers(2))

    def left(x: Any) -> Any:
        return x + jnp.arange(x.shape[0], dtype="int32").astype(kind).astype("int32")

    return left, lambda x: x + jnp.arange(x.shape[0], dtype="int32"), (f"int32[{size if known else 'n'}]",), ()


def _narrow_sizes(rng: np.random.Generator) -> HostileCase:
    kind = pick(rng, *HALVES)

    def left(x: Any) -> Any:
        return x * jnp.asarray(x.shape[0], "int32").astype(kind).astype("int32")

    return left, lambda x: x * jnp.asarray(x.shape[0], "int32"), ("int32[n]",), ()


def _branch(rng: np.random.Generator) -> HostileCase:
    at = int(rng.integers(100, 4000))
    tests: tuple[Callable[[Any], bool], ...] = (
        lambda n: n == at,
        lambda n: n % 128 == at % 128,
        lambda n: str(n) == str(at),
        lambda n: n in {at, at + 1},
        lambda n: (n - at) * (n - at - 7) == 0,
        lambda n: not n - at,
    )
    asked = pick(rng, *tests)
    return lambda x: x * 2 if asked(x.shape[0]) else x, lambda x: x, ("n",), ()


def _range_of_sizes(rng: np.random.Generator) -> HostileCase:
    at = int(rng.integers(100, 4000))

    def left(x: Any) -> Any:
        try:
            return x + 1 if at - 2 <= x.shape[0] <= at + 2 else x
        except Exception:  # JAX has no answer for all sizes
            return x

    return left, lambda x: x, ("n",), ()


def _laws(rng: np.random.Generator) -> HostileCase:
    kind = pick(rng, *INTEGERS)
    unsigned = kind.startswith("u")
    one, two = (f"{kind}[n]",), (f"{kind}[n]",) * 2
    true: list[tuple[TensorFunction, TensorFunction, tuple[str, ...]]] = [
        (lambda a: a + 1 > a, lambda a: a == a, one),
        (lambda a: lax.div(a * 3, jnp.full_like(a, 3)), lambda a: a, one),
        (lambda a, b: a + b >= a, lambda a, b: b >= 0, two),
        (lambda a, b: a - b > 0, lambda a, b: a > b, two),
        (lambda a: jnp.maximum(a, a + 1), lambda a: a + 1, one),
        (lambda a: (a << 3) >> 3, lambda a: a, one),
        (lambda a, b: (a < b) & (b > a + 1), lambda a, b: b > a + 1, two),
    ]
    if not unsigned:
        true += [
            (lambda a: a * a >= 0, lambda a: a == a, one),
            (lambda a: jnp.abs(a) >= 0, lambda a: a == a, one),
            (lambda a: jnp.maximum(a * a * a * a, 0), lambda a: a * a * a * a, one),
            (lambda a: -a > 0, lambda a: a < 0, one),
        ]
    left, right, specs = true[int(rng.integers(len(true)))]
    return left, right, specs, ()


def _hidden_wraps(rng: np.random.Generator) -> HostileCase:
    first = int(rng.integers(300, 3000))
    law = pick(rng, lambda a: jnp.maximum(a * a, 0), lambda a: jnp.abs(a * 2), lambda a: a * 3)

    def left(a: Any) -> Any:
        return jnp.where(jnp.arange(a.shape[0]) > first, law(a * a), a)

    def right(a: Any) -> Any:
        return jnp.where(jnp.arange(a.shape[0]) > first, jnp.maximum(law(a * a), a * a), a)

    return left, right, ("int32[n]",), ()


def _index_wraps(rng: np.random.Generator) -> HostileCase:
    step = int(rng.integers(1, 100))
    kind = pick(rng, "int8", "uint8")
    return (
        lambda x, i: jnp.take(x, (i + jnp.asarray(step, kind)).astype("int32"), mode="clip"),
        lambda x, i: jnp.take(x, i.astype("int32") + step, mode="clip"),
        ("m", f"{kind}[n]"),
        (),
    )


def _conversions(rng: np.random.Generator) -> HostileCase:
    kind = pick(rng, *HALVES)
    forms: tuple[tuple[TensorFunction, TensorFunction, int], ...] = (
        (lambda x: x - x.astype(kind).astype("float32"), lambda x: jnp.zeros_like(x), 1),
        (lambda x: x.astype(kind).astype("float32"), lambda x: x, 1),
        (lambda x, y: x < y, lambda x, y: x.astype(kind) < y.astype(kind), 2),
        (lambda x, y: x == y, lambda x, y: x.astype(kind) == y.astype(kind), 2),
        (lambda x: jnp.floor(x), lambda x: jnp.floor(x.astype(kind).astype("float32")), 1),
        (lambda x: jnp.sign(x - 1), lambda x: jnp.sign(x.astype(kind).astype("float32") - 1), 1),
        (lambda x: 1e4 * (x - x.astype(kind).astype("float32")), lambda x: 0 * x, 1),
        (lambda x: x.astype("int32"), lambda x: x.astype(kind).astype("int32"), 1),
    )
    left, right, count = forms[int(rng.integers(len(forms)))]
    return left, right, ("n",) * count, ()


def _twice_rounded(rng: np.random.Generator) -> HostileCase:
    first, last = pick(rng, ("float16", "bfloat16"), ("bfloat16", "float16"))
    return lambda x: x.astype(last), lambda x: x.astype(first).astype(last), ("n",), ()


def _integers_by_floats(rng: np.random.Generator) -> HostileCase:
    wide, narrow = pick(rng, ("int32", "int8"), ("int32", "int16"), ("int16", "int8"))
    return lambda x: x.astype(wide).astype(narrow), lambda x: x.astype(narrow), ("n",), ()


def _guards(rng: np.random.Generator) -> HostileCase:
    value = float(rng.integers(0, 3))
    forms: tuple[tuple[TensorFunction, TensorFunction], ...] = (
        (lambda x: jnp.where(jnp.isnan(x), value, x), lambda x: x),
        (lambda x: jnp.where(x == x, x, value), lambda x: x),
        (lambda x: jnp.where(jnp.isfinite(x), x, value), lambda x: x),
        (lambda x: jnp.nan_to_num(x, nan=value), lambda x: x),
        (lambda x: x - x, lambda x: jnp.zeros_like(x)),
        (lambda x: x * 0, lambda x: jnp.zeros_like(x)),
        (lambda x: jnp.where(x < 1, x, jnp.where(x >= 1, x, value)), lambda x: x),
    )
    left, right = forms[int(rng.integers(len(forms)))]
    return left, right, ("n",), ()


def _masked(rng: np.random.Generator) -> HostileCase:
    forms: tuple[tuple[TensorFunction, TensorFunction, tuple[str, ...]], ...] = (
        (
            lambda s, m: jax.nn.softmax(jnp.where(m, s, -jnp.inf), axis=-1),
            lambda s, m: jnp.where(m, jax.nn.softmax(s, axis=-1), 0.0),
            ("m n", "bool[m,n]"),
        ),
        (
            lambda s, m: jnp.sum(0 * s, axis=-1),
            lambda s, m: jnp.sum(jnp.where(m, s, -jnp.inf) * 0, axis=-1),
            ("m n", "bool[m,n]"),
        ),
        (
            lambda s, m: jnp.max(jnp.where(m, s, -jnp.inf), axis=-1),
            lambda s, m: jnp.max(jnp.where(m, s, -1e9), axis=-1),
            ("m n", "bool[m,n]"),
        ),
    )
    left, right, specs = forms[int(rng.integers(len(forms)))]
    return left, right, specs, ()


def _zeros(rng: np.random.Generator) -> HostileCase:
    forms: tuple[tuple[TensorFunction, TensorFunction], ...] = (
        (lambda x: x + 0.0, lambda x: x),
        (lambda x: 0.0 - x, lambda x: -x),
        (lambda x: -(-x + 0.0), lambda x: x),
        (lambda x: jnp.where(x == 0, 0.0, x), lambda x: x),
        (lambda x: x * 1.0 - 0.0 + 0.0, lambda x: x),
        (lambda x: -(0.0 * x), lambda x: 0.0 * x),
    )
    left, right = forms[int(rng.integers(len(forms)))]
    return left, right, ("n",), ()


def _division(rng: np.random.Generator) -> HostileCase:
    power = int(rng.integers(1, 5))
    by = 2**power
    forms: tuple[tuple[TensorFunction, TensorFunction], ...] = (
        (lambda a: lax.div(a, jnp.full_like(a, by)), lambda a: lax.shift_right_arithmetic(a, jnp.full_like(a, power))),
        (lambda a: lax.rem(a, jnp.full_like(a, by)), lambda a: a & (by - 1)),
        (lambda a: lax.div(a, jnp.full_like(a, by)), lambda a: a // by),
        (lambda a: lax.rem(a, jnp.full_like(a, by)), lambda a: a % by),
        (lambda a: lax.shift_right_logical(a, jnp.full_like(a, power)), lambda a: a >> power),
        (lambda a: lax.div(-a, jnp.full_like(a, by)), lambda a: (-a) // by),
    )
    left, right = forms[int(rng.integers(len(forms)))]
    return left, right, (f"{pick(rng, 'int8', 'int16', 'int32')}[n]",), ()


_KINDS: dict[str, tuple[Callable[[np.random.Generator], HostileCase], bool]] = {
    "rows-beyond": (_rows_beyond, False),
    "one-entry": (_one_entry, False),
    "narrow-constant": (_narrow_constant, False),
    "narrow-positions": (_narrow_positions, False),
    "narrow-sizes": (_narrow_sizes, False),
    "branch": (_branch, False),
    "range-of-sizes": (_range_of_sizes, False),
    "wrapping-law": (_laws, False),
    "hidden-wrap": (_hidden_wraps, False),
    "index-wrap": (_index_wraps, False),
    "conversion": (_conversions, False),
    "rounded-twice": (_twice_rounded, False),
    "integer-by-float": (_integers_by_floats, False),
    "guard": (_guards, True),
    "masked": (_masked, False),
    "signed-zero": (_zeros, True),
    "division": (_division, False),
}
