"""Further inputs for two functions: values that ordinary inputs rarely contain, and values near a program's literals.

Negative numbers (for maxima over windows), halves, ties and rows of False show differences that small integers do not.
A guard (`x > 1e6`) becomes true near the literal with which it compares, or beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from superopt.ir.graph import Graph, Node
from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import DTYPES, FLOATS, INTEGERS
from verifier.rules.refute import extremes, sizes_of

_TOLD = 6
"""Most literals of a program near which inputs are drawn; the greatest are taken."""
_ALONE = 4
"""Most inputs of which each is at the literals alone, beside ordinary ones: one more draw each."""


def literals(graphs: Iterable[Graph]) -> tuple[float, ...]:
    """Magnitudes of the greatest literals of programs, except those that ordinary inputs reach."""
    numbers = {
        abs(node["value"])
        for graph in graphs
        for node in graph.nodes()
        if node.op == "literal" and isinstance(node["value"], int | float) and 2 < abs(node["value"]) < math.inf
    }
    return tuple(sorted(numbers)[-_TOLD:])


def magnitudes(inputs: Sequence[Node], attempt: int) -> dict[str, np.ndarray]:
    """Inputs by name, with floats of many magnitudes, so that rounding decides comparisons."""
    rng, values = np.random.default_rng((attempt, 3)), dict[str, np.ndarray]()
    for x in inputs:
        shape = sizes_of(x)
        scale = rng.choice(np.array([1.0, 1.0, 1e4, 1e8, 1e-4, 1e-8]), shape)
        values[x["name"]] = _drawn(x, "ties", (), (attempt, len(values)))
        if x.dtype in FLOATS:
            values[x["name"]] = _typed(np.asarray(rng.standard_normal(shape) * scale), x.dtype)
    return values


def further_values(inputs: Sequence[Node], told: Sequence[float]) -> list[dict[str, np.ndarray]]:
    """Inputs by name: negative ones; ties of halves with rows of False; values near and beyond the literals.

    Near the literals are all inputs at once, then each alone: what a guard lets through may need ordinary numbers.

    Args:
        inputs: input nodes of the functions.
        told: magnitudes of literals, see `literals`.
    """
    kinds = ["negative", "ties"] + (["beside", "beyond", "below", "far"] if told else [])
    rows = [[kind] * len(inputs) for kind in kinds]
    if told and len(inputs) > 1:
        rows += [["at" if x is one else "ordinary" for x in inputs] for one in inputs[:_ALONE]]
    return [
        {
            x["name"]: _drawn(x, kind, told, (number, place))
            for place, (x, kind) in enumerate(zip(inputs, row, strict=True))
        }
        for number, row in enumerate(rows)
    ]


def _drawn(node: Node, kind: str, told: Sequence[float], seed: tuple[int, int]) -> np.ndarray:
    """Return random values of an input, of this kind."""
    shape = sizes_of(node)
    rng = np.random.default_rng((*seed, 7))
    if node.dtype == "bool":
        made = np.asarray(rng.random(shape) > 0.5)
        if kind in ("beyond", "far"):
            made[...] = True
        elif kind == "negative":
            made[...] = False
        elif shape:
            made[:1] = False
        return made
    if kind == "ordinary":
        made = 2.0 * rng.standard_normal(shape)
    elif kind == "at":
        most = np.full(shape, max(told)) + rng.integers(1, 5, shape)
        made = np.where(rng.random(shape) < 0.5, rng.choice(np.array(told), shape), most)
    elif kind == "negative":
        made = -rng.integers(1, 5, shape).astype(np.float64)
    elif kind == "ties":
        made = np.full(shape, 2.5) * rng.choice(np.array([1.0, 1.0, -1.0]), shape[:1] + (1,) * (len(shape) - 1))
    elif kind == "beside":
        near = [sign * n + d for n in told for sign in (1, -1) for d in (0.0, 0.5, 1.0, -1.0)]
        made = np.where(rng.random(shape) < 0.7, rng.choice(np.array(near), shape), rng.integers(-3, 4, shape))
    else:
        most = max(told) * (1000.0 if kind == "far" else 2.0)
        made = (most * rng.choice(np.array([1.0, 1.25, 1.5, 2.5]), shape) + rng.integers(1, 5, shape)) * (
            -1 if kind == "below" else 1
        )
    return _typed(np.asarray(made), node.dtype)


def _typed(made: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        whole = np.clip(np.floor(made), float(info.min), math.nextafter(float(info.max), 0.0))
        return whole.astype(dtype)
    if dtype in FLOATS:
        most = extremes(dtype)[0]
        return np.clip(made, -most, most).astype(numpy_dtype(dtype))
    return np.zeros(made.shape, numpy_dtype(dtype) if dtype in DTYPES else dtype)


__all__ = ["further_values", "literals", "magnitudes"]
