"""False pairs of loops: one iteration more or fewer, the other direction, another start, bound, carry or step.

Each is a function of a random generator.  Loops are `fori_loop`, `while_loop`, `scan`, `map`, associative scans and
cumulative operations, with bounds that are numbers, sizes or data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.kinds import in_turn, pick
from verifier.statements.statement import Statement, make_statement

LoopCase = tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...]]


def loops(seed: int, count: int) -> Iterator[Statement]:
    """A sequence of `count` statements, the kinds in turn."""
    for name, number, make, rng in in_turn(_KINDS, seed, count):
        left, right, specs = make(rng)
        yield make_statement(f"{name}-{number}", left, right, specs, {}, (), f"{__name__}:{name}")


def _step(rng: np.random.Generator) -> Callable[[Any, Any], Any]:
    return pick(
        rng,
        lambda c, x: 0.5 * c + x,
        lambda c, x: c * x + 1.0,
        lambda c, x: jnp.tanh(c) + x,
        lambda c, x: jnp.where(x > 0, c + x, 2 * c),
    )


def _trips(rng: np.random.Generator) -> LoopCase:
    trips = int(rng.integers(17, 60))
    loop = lambda n: lambda x: lax.fori_loop(0, n, lambda i, c: c + x / (1 + i), x)  # noqa: E731
    return loop(trips), loop(trips + int(pick(rng, 1, -1, 2))), ("n",)


def _while_trips(rng: np.random.Generator) -> LoopCase:
    trips = int(rng.integers(3, 40))

    def loop(n: int) -> Callable[..., Any]:
        def fn(x: Any) -> Any:
            return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.25 + 1), (0, x))[1]

        return fn

    return loop(trips), loop(trips + int(pick(rng, 1, -1))), ("n",)


def _while_bound(rng: np.random.Generator) -> LoopCase:
    trips = int(rng.integers(3, 40))

    def loop(last: Callable[[Any, int], Any]) -> Callable[..., Any]:
        def fn(x: Any) -> Any:
            return lax.while_loop(lambda s: last(s[0], trips), lambda s: (s[0] + 1, s[1] + s[0]), (0, x))[1]

        return fn

    return loop(lambda i, n: i < n), loop(lambda i, n: i <= n), ("int32[n]",)


def _data_bound(rng: np.random.Generator) -> LoopCase:
    far = float(pick(rng, 50.0, 300.0))

    def loop(factor: float) -> Callable[..., Any]:
        def fn(x: Any) -> Any:
            return lax.while_loop(lambda c: jnp.max(jnp.abs(c)) < far, lambda c: c * factor + 1.0, x)

        return fn

    return loop(1.5), loop(pick(rng, 2.0, 1.25)), ("4",)


def _scan_direction(rng: np.random.Generator) -> LoopCase:
    step = _step(rng)

    def loop(reverse: bool) -> Callable[..., Any]:
        return lambda c, x: lax.scan(lambda c, x: (step(c, x), step(c, x)), c, x, reverse=reverse)[1]

    return loop(False), loop(True), ("", "n")


def _scan_carry(rng: np.random.Generator) -> LoopCase:
    step = _step(rng)
    before = lambda c, x: lax.scan(lambda c, x: (step(c, x), c), c, x)[1]  # noqa: E731
    after = lambda c, x: lax.scan(lambda c, x: (step(c, x), step(c, x)), c, x)[1]  # noqa: E731
    return before, after, ("k", "n k")


def _scan_start(rng: np.random.Generator) -> LoopCase:
    step, value = _step(rng), float(pick(rng, 0.5, 1.0, -2.0))
    loop = lambda start: lambda x: lax.scan(lambda c, x: (step(c, x), c + x), start + 0 * x[0], x)[1]  # noqa: E731
    return loop(0.0), loop(value), ("20 k",)


def _scan_last(rng: np.random.Generator) -> LoopCase:
    step = _step(rng)
    whole = lambda c, x: lax.scan(lambda c, x: (step(c, x), None), c, x)[0]  # noqa: E731
    part = pick(
        rng,
        lambda c, x: lax.scan(lambda c, x: (step(c, x), None), c, x[1:])[0],
        lambda c, x: lax.scan(lambda c, x: (step(c, x), None), c, x[:-1])[0],
    )
    return whole, part, ("k", "19 k")


def _fori_direction(rng: np.random.Generator) -> LoopCase:
    size = int(rng.integers(17, 30))
    up = lambda x: lax.fori_loop(0, size, lambda i, c: 0.5 * c + x[i], jnp.float32(0))  # noqa: E731
    down = lambda x: lax.fori_loop(0, size, lambda i, c: 0.5 * c + x[size - 1 - i], jnp.float32(0))  # noqa: E731
    return up, down, (f"{size}",)


def _fori_sized(rng: np.random.Generator) -> LoopCase:
    less = int(pick(rng, 1, 0))
    first = 1 - less
    whole = lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + 2 * x[i], jnp.float32(0))  # noqa: E731
    part = lambda x: lax.fori_loop(first, x.shape[0] - less, lambda i, c: c + 2 * x[i], jnp.float32(0))  # noqa: E731
    return whole, part, ("n",)


def _fori_index(rng: np.random.Generator) -> LoopCase:
    trips, off = int(rng.integers(17, 40)), int(pick(rng, 1, -1))
    loop = lambda d: lambda x: lax.fori_loop(0, trips, lambda i, c: c + x * (i + d), x)  # noqa: E731
    return loop(0), loop(off), ("int32[n]",)


def _updates(rng: np.random.Generator) -> LoopCase:
    size = int(rng.integers(17, 24))
    put = lambda d: lambda x: lax.fori_loop(1, size, lambda i, c: c.at[i].set(c[i - d] + x[i]), x)  # noqa: E731
    return put(1), put(0), (f"{size}",)


def _mapped(rng: np.random.Generator) -> LoopCase:
    one = lambda x: lax.map(lambda r: jnp.cumsum(r), x)  # noqa: E731
    other = pick(
        rng,
        lambda x: lax.map(lambda r: jnp.cumsum(r[::-1]), x),
        lambda x: lax.map(lambda r: r, x)[::-1],
        lambda x: jnp.cumsum(x, 0),
    )
    return one, other, ("n k",)


def _associative(rng: np.random.Generator) -> LoopCase:
    combine = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    loop = lambda reverse: lambda a, b: lax.associative_scan(combine, (a, b), reverse=reverse)[1]  # noqa: E731
    return loop(False), loop(True), ("18", "18")


def _newton(rng: np.random.Generator) -> LoopCase:
    few = int(rng.integers(1, 4))
    loop = lambda n: lambda x: lax.fori_loop(0, n, lambda _, r: 0.5 * (r + (1 + x * x) / r), 8 + x * x)  # noqa: E731
    return loop(few), loop(few + 1), ("n",)


def _two_state(rng: np.random.Generator) -> LoopCase:
    trips = int(rng.integers(2, 20)) * 2
    swap = lambda n: lambda x, y: lax.fori_loop(0, n, lambda _, s: (s[1], s[0]), (x, y))[0]  # noqa: E731
    return swap(trips), swap(trips + 1), ("n", "n")


def _nested(rng: np.random.Generator) -> LoopCase:
    rows, inner = int(rng.integers(2, 5)), int(rng.integers(17, 22))

    def loop(outer: int, few: int) -> Callable[..., Any]:
        def row(i: Any, c: Any) -> Any:
            return lax.fori_loop(0, few, lambda j, d: 0.75 * d + i + j, c)

        return lambda x: lax.fori_loop(0, outer, row, x)

    return loop(rows, inner), loop(rows, inner - 1), ("n",)


def _sorted_loop(rng: np.random.Generator) -> LoopCase:
    return (
        lambda x: lax.scan(lambda c, r: (jnp.maximum(c, r), jnp.maximum(c, r)), jnp.float32(-jnp.inf), x)[1],
        pick(rng, lambda x: jax.lax.cummin(x), lambda x: jax.lax.cummax(x, reverse=True), jnp.sort),
        ("n",),
    )


_KINDS: dict[str, Callable[[np.random.Generator], LoopCase]] = {
    "trips": _trips, "while-trips": _while_trips, "while-bound": _while_bound, "data-bound": _data_bound,
    "scan-direction": _scan_direction, "scan-carry": _scan_carry, "scan-start": _scan_start, "scan-last": _scan_last,
    "fori-direction": _fori_direction, "fori-sized": _fori_sized, "fori-index": _fori_index, "updates": _updates,
    "mapped": _mapped, "associative": _associative, "newton": _newton, "two-state": _two_state, "nested": _nested,
    "running-extremes": _sorted_loop,
}  # fmt: skip

__all__ = ["loops"]
