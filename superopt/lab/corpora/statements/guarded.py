"""False equalities behind guards: the sides differ only under a condition that hardly any input meets.

A statement is a false claim, a guard, and a way in which the guard selects a side.  Guards compare positions, sizes,
values, sums and remainders with thresholds far beyond those that are drawn.  They select by `where`, `select`, `cond`,
`switch`, masks that are multiplied, clips, and entries of stacked arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import pick
from verifier.statements.statement import Statement, make_statement

MakeGuarded = Callable[[np.random.Generator], Callable[..., Any]]
_ARGUMENTS = ("n k", "n k", "int32[n k]", "int32[]")
"""Arguments of every statement: x and y, integers i of their shape, and an integer j."""


def guarded(seed: int, count: int) -> Iterator[Statement]:
    """Statements with guards, ways to select and claims each in turn, so that no two are alike for long."""
    guards, ways, claims = list(GUARDS.items()), list(WAYS.items()), list(CLAIMS.items())
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        guard, make = guards[number % len(guards)]
        claim, (left, right) = claims[(number * 5 + number // len(claims)) % len(claims)]
        fit = [way for way in ways if (guard in SCALAR) or way[0] not in ONE_ANSWER]
        way, choose = fit[(number * 3 + number // len(fit)) % len(fit)]
        open_ = make(rng)
        one, other = _side(choose, open_, left), _side(choose, open_, right)
        name = f"{guard}, {way}, {claim} ({number})"
        yield make_statement(name, one, other, _ARGUMENTS, {}, (), f"{__name__}:{guard}")


def _side(choose: Callable[..., Any], guard: Callable[..., Any], claim: Callable[..., Any]) -> Callable[..., Any]:
    def side(x: Any, y: Any, i: Any, j: Any) -> Any:
        value = claim(x, y, i, j)
        return choose(guard(x, y, i, j), value, jnp.zeros_like(value))

    return side


# ---- claims: the sides differ at nearly all values


def _bf16(x: Any) -> Any:
    return x.astype(jnp.bfloat16).astype(x.dtype)


CLAIMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "bits are maxima": (
        lambda x, y, i, j: jnp.broadcast_to(lax.reduce_or(i, (0,)), i.shape),
        lambda x, y, i, j: jnp.broadcast_to(lax.reduce_max(i, (0,)), i.shape),
    ),
    "an addition is none": (lambda x, y, i, j: x + y, lambda x, y, i, j: x - y),
    "one added": (lambda x, y, i, j: x, lambda x, y, i, j: x + 1),
    "an exponential is 0": (lambda x, y, i, j: jnp.exp(-jnp.abs(y)) * x, lambda x, y, i, j: 0 * x),
    "a maximum is a minimum": (lambda x, y, i, j: jnp.maximum(x, y), lambda x, y, i, j: jnp.minimum(x, y)),
    "a sum is a mean": (
        lambda x, y, i, j: x - x.sum(1, keepdims=True),
        lambda x, y, i, j: x - x.mean(1, keepdims=True),
    ),
    "another axis": (lambda x, y, i, j: jax.nn.softmax(x, 0), lambda x, y, i, j: jax.nn.softmax(x, 1)),
    "the other direction": (lambda x, y, i, j: jnp.cumsum(x, 1), lambda x, y, i, j: jnp.cumsum(x[:, ::-1], 1)),
    "halves of integers": (lambda x, y, i, j: i // 2 + i // 2, lambda x, y, i, j: i),
    "bits are sums": (lambda x, y, i, j: i | j, lambda x, y, i, j: i + j),
    "a root keeps signs": (lambda x, y, i, j: jnp.sqrt(x * x), lambda x, y, i, j: x),
    "rounding up": (lambda x, y, i, j: jnp.round(x / 2), lambda x, y, i, j: jnp.floor(x / 2 + 0.5)),
    "a factor": (lambda x, y, i, j: x * y, lambda x, y, i, j: 2 * x * y),
    "products are one another's": (lambda x, y, i, j: x @ y.T @ y, lambda x, y, i, j: y @ x.T @ y),
}

# ---- guards: true for hardly any small input


def _far(rng: np.random.Generator) -> int:
    return int(pick(rng, 1000, 70_000, 999_983, 1_000_000, 5_000_000, 16_000_000, 400_000_000))


def _rows(x: Any) -> Any:
    return lax.broadcasted_iota(jnp.int32, x.shape, 0)


def _columns(x: Any) -> Any:
    return lax.broadcasted_iota(jnp.int32, x.shape, 1)


def _positions(rng: np.random.Generator) -> Callable[..., Any]:
    far, place = _far(rng), pick(rng, _rows, _columns)
    return lambda x, y, i, j: place(x) > far


def _one_position(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: (jnp.arange(x.shape[0]) == far)[:, None] | (_columns(x) == far - 1)


def _scaled_positions(rng: np.random.Generator) -> Callable[..., Any]:
    few = int(pick(rng, 2, 3, 7))
    return lambda x, y, i, j: _rows(x) * few >= 3_000_001


def _steps_of_positions(rng: np.random.Generator) -> Callable[..., Any]:
    few = int(pick(rng, 10, 64, 1000))
    return lambda x, y, i, j: _columns(x) // few > 1234


def _shifted_positions(rng: np.random.Generator) -> Callable[..., Any]:
    few = int(pick(rng, 9, 14, 20))
    return lambda x, y, i, j: (_rows(x) >> few) != 0


def _positions_as_floats(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng)) + 0.5
    return lambda x, y, i, j: (jnp.arange(x.shape[1], dtype=jnp.float32) > far)[None, :]


def _far_diagonal(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: _rows(x) - _columns(x) >= far


def _remainders(rng: np.random.Generator) -> Callable[..., Any]:
    prime = int(pick(rng, 10_007, 65_537, 999_983))
    return lambda x, y, i, j: _rows(x) % prime == prime - 2


def _sizes(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: jnp.int32(x.shape[0]) > far


def _size_of_all(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: jnp.float32(x.size) >= float(far)


def _values(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng))
    return lambda x, y, i, j: x > far


def _values_below(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng))
    return lambda x, y, i, j: jnp.logical_not(y >= -far)


def _squares(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng))
    return lambda x, y, i, j: x * x + y * y > far


def _sums(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng))
    return lambda x, y, i, j: jnp.sum(jnp.abs(x)) > far


def _any(rng: np.random.Generator) -> Callable[..., Any]:
    far = float(_far(rng))
    return lambda x, y, i, j: jnp.any(x > far)


def _integers(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: i == far + 13


def _one_integer(rng: np.random.Generator) -> Callable[..., Any]:
    far = _far(rng)
    return lambda x, y, i, j: j >= far


def _hashed(rng: np.random.Generator) -> Callable[..., Any]:
    prime = int(pick(rng, 7919, 104_729))
    return lambda x, y, i, j: (j * 7 + 3) % prime == 5


def _high_bits(rng: np.random.Generator) -> Callable[..., Any]:
    bit = int(pick(rng, 20, 27))
    return lambda x, y, i, j: (i >> bit) & 1 == 1


def _two(rng: np.random.Generator) -> Callable[..., Any]:
    one, two = _positions(rng), pick(rng, _values, _sizes)(rng)
    return lambda x, y, i, j: one(x, y, i, j) & two(x, y, i, j)


def _either(rng: np.random.Generator) -> Callable[..., Any]:
    one, two = _positions(rng), _integers(rng)
    return lambda x, y, i, j: one(x, y, i, j) | two(x, y, i, j)


GUARDS: dict[str, MakeGuarded] = {
    "far positions": _positions, "one position": _one_position, "scaled positions": _scaled_positions,
    "steps of positions": _steps_of_positions, "shifted positions": _shifted_positions,
    "positions as floats": _positions_as_floats, "far from the diagonal": _far_diagonal, "remainders": _remainders,
    "long arrays": _sizes, "large arrays": _size_of_all, "large values": _values, "values far below": _values_below,
    "large squares": _squares, "large sums": _sums, "any large value": _any, "one integer of many": _integers,
    "a large integer": _one_integer, "a hash": _hashed, "high bits": _high_bits, "two conditions": _two,
    "one of two conditions": _either,
}  # fmt: skip
SCALAR = frozenset({"long arrays", "large arrays", "large sums", "any large value", "a large integer", "a hash"})

# ---- ways to choose


def _where(p: Any, a: Any, b: Any) -> Any:
    return jnp.where(p, a, b)


def _negated(p: Any, a: Any, b: Any) -> Any:
    return jnp.where(jnp.logical_not(p), b, a)


def _select(p: Any, a: Any, b: Any) -> Any:
    return lax.select(jnp.broadcast_to(p, a.shape), a, b)


def _numbered(p: Any, a: Any, b: Any) -> Any:
    return lax.select_n(jnp.broadcast_to(p, a.shape).astype(jnp.int32), b, a)


def _times(p: Any, a: Any, b: Any) -> Any:
    return jnp.asarray(p).astype(a.dtype) * a


def _stacked(p: Any, a: Any, b: Any) -> Any:
    which = jnp.broadcast_to(p, a.shape).astype(a.dtype)
    return a * which + b * (1 - which)


def _piecewise(p: Any, a: Any, b: Any) -> Any:
    return jnp.select([jnp.broadcast_to(p, a.shape), jnp.broadcast_to(~jnp.asarray(p), a.shape)], [a, b], b + 1)


def _clipped(p: Any, a: Any, b: Any) -> Any:
    return jnp.clip(jnp.asarray(p).astype(jnp.int32) * 5 - 4, 0, 1).astype(a.dtype) * a


def _cond(p: Any, a: Any, b: Any) -> Any:
    return lax.cond(p, lambda: a, lambda: b)


def _switch(p: Any, a: Any, b: Any) -> Any:
    return lax.switch(p.astype(jnp.int32), [lambda: b, lambda: a])


WAYS: dict[str, Callable[..., Any]] = {
    "where": _where, "where not": _negated, "select": _select, "select by number": _numbered, "a mask times": _times,
    "a mask between": _stacked, "piecewise": _piecewise, "a clip": _clipped, "cond": _cond, "switch": _switch,
}  # fmt: skip
ONE_ANSWER = frozenset({"cond", "switch"})

__all__ = ["guarded"]
