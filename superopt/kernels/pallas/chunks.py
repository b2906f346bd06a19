"""Loops inside a program of the grid: an iterator in steps of a block, several iterators as one counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from superopt.ir.index import Symbol
from superopt.kernels.pallas.frame import Block, PallasPlace, extent, iota


def loop(steps: Block, body: Callable[[Block, Any], Any], start: Any) -> Any:
    """Run `body` for 0, 1 ... steps - 1, without a loop where there is one step."""
    if isinstance(steps, int) and steps == 1:
        return body(0, start)
    return jax.lax.fori_loop(np.int32(0), np.int32(steps) if isinstance(steps, int) else steps, body, start)


def chunks(symbol: Symbol, size: int, dim: int) -> tuple[Callable[[Block], PallasPlace], int]:
    """Cut an iterator into steps of a block along a dimension: its place in a step, and the number of steps."""
    n = extent(symbol)
    steps = -(-n // size)

    def place(j: Block) -> PallasPlace:
        if size == 1:
            return PallasPlace(j, 0, n - 1)
        value = iota(size, dim)
        if steps > 1:
            value = value + j * np.int32(size)
        return PallasPlace(value, 0, steps * size - 1, dim, size, False, None if n % size == 0 else value < np.int32(n))

    return place, steps


def split_counter(j: Block, outer: list[Symbol], steps: int) -> tuple[dict[Symbol, PallasPlace], Block]:
    """Return the values of outer iterators and of the innermost counter in a flattened loop."""
    places: dict[Symbol, PallasPlace] = {}
    if not outer:
        return places, j
    inner, j = (0, j) if steps == 1 else (j % steps, j // steps) if isinstance(j, int) else _divmod(j, steps)
    for s in reversed(outer):
        n = extent(s)
        at, j = (j % n, j // n) if isinstance(j, int) else _divmod(j, n)
        places[s] = PallasPlace(at, 0, n - 1)
    return places, inner


def _divmod(j: Block, n: int) -> tuple[Block, Block]:
    return lax.rem(j, np.int32(n)), lax.div(j, np.int32(n))
