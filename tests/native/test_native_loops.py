"""Plans of random programs of loops and choices: no fault, and the bits of the same kernels with the loops in XLA."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.kernels.llvm.cpu import supported
from tests.support.native_programs import built, native

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
DEEPEST = 2  # loops in a loop
Values = list[Any]


def value(rng: random.Random, values: Values) -> Any:
    """A value as it is, computed anew, fixed, or made of parts."""
    one, other = rng.choice(values), rng.choice(values)
    made = (one, one, jnp.sin(one) + other, one * 0.5, jnp.zeros(4), jnp.concatenate([one[:2], other[2:]]))
    return rng.choice(made)


def choice(rng: random.Random, values: Values, depth: int) -> Values:
    """Results of a branch by a random index or truth value: of steps, of loops, or what is given, some twice."""
    count, results, seeds = rng.randint(1, 3), rng.randint(1, 3), [rng.randrange(1 << 30) for _ in range(3)]

    def branch(seed: int) -> Any:
        def run(*given: Any) -> Values:
            inner = random.Random(seed)
            known = [*given, *[value(inner, list(given)) for _ in range(inner.randint(0, 3))]]
            if depth and inner.random() < 0.4:
                known += loop(inner, known, depth - 1)
            return [inner.choice(known) for _ in range(results)]

        return run

    which = jnp.sum(value(rng, values))
    if rng.random() < 0.4:
        return lax.cond(which > 0, branch(seeds[0]), branch(seeds[1]), *values[:3])
    return lax.switch((which * 2).astype(jnp.int32), [branch(seed) for seed in seeds[:count]], *values[:3])


def loop(rng: random.Random, values: Values, depth: int) -> Values:
    """Results of a random loop over these values: carries may be handed on, exchanged, kept, and rows as well."""
    trips, rows, seed = rng.choice((1, 2, 3, 5)), rng.randint(0, 3), rng.randrange(1 << 30)
    first = tuple([value(rng, values) for _ in range(rng.randint(1, 3))])
    stack = None if rng.random() < 0.4 else jnp.stack([value(rng, values) for _ in range(trips)])

    def body(carries: tuple[Any, ...], row: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inner = random.Random(seed)  # a body may be traced twice
        known = [*carries, *values[:2], *([] if row is None else [row])]
        known += [value(inner, known) for _ in range(inner.randint(0, 3))]
        if depth and inner.random() < 0.5:
            known += loop(inner, known, depth - 1)
        if inner.random() < 0.3:
            known += choice(inner, known, depth)
        results = [inner.choice(known) if inner.random() < 0.7 else value(inner, known) for _ in range(9)]
        return tuple(results[: len(carries)]), tuple(results[9 - rows :])

    if rng.random() < 0.3:

        def trip(state: tuple[Any, ...]) -> tuple[Any, ...]:
            results, _ = body(state[:-1], None if stack is None else state[0])
            return (*results, state[-1] + jnp.abs(jnp.cos(state[0])) + 0.2)

        most = rng.choice((-1.0, 3.0))  # no trip, or some
        return list(lax.while_loop(lambda s: jnp.sum(s[-1]) < most, trip, (*first, jnp.abs(values[0]))))[:-1]
    last, stacks = lax.scan(body, first, stack, length=trips, reverse=rng.random() < 0.3)
    return [*last, *[rows[i] for rows in stacks for i in (0, trips - 1)]]


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)], ids=str)
def test_random_loops_give_the_bits_of_loops_in_xla(seeds: range) -> None:
    for seed in seeds:

        def fn(w: Any, x: Any, y: Any, seed: int = seed) -> Values:
            rng, values = random.Random(seed), [x, y, w]
            for _ in range(rng.randint(1, 2)):
                values = [*(choice if rng.random() < 0.2 else loop)(rng, values, DEEPEST), *values]
            return [jnp.sin(x), *[rng.choice(values) for _ in range(rng.randint(1, 4))]]

        w, x, y = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)
        executable = built(fn, w, x, y)
        program = native(executable)
        want = executable.jit(program.hosted)(x, y, *executable.prepared)
        for got in (program(x, y), program(x, y)):  # the second time in an arena that has been used
            assert [np.asarray(a).tobytes() for a in got] == [np.asarray(b).tobytes() for b in want], seed
