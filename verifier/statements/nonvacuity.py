"""Nonvacuity of statements: the finite values that a proof assumes occur in both functions, at every size tried.

See `verifier.rules.nonvacuity`.  The entries of a result depend on sizes, so every entry is checked wherever no size is
0.  On some input it must be finite in both functions, or the same NaN or infinity.  Some finite entry is required at
one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from superopt.errors import ArgumentError
from superopt.ir.graph import Graph
from superopt.ir.interp import evaluate
from verifier.rules.nonvacuity import Observations, leaves_finite
from verifier.rules.refute import samples
from verifier.statements.constants import by_contents
from verifier.statements.refute import ATTEMPTS, Pairing, Sizes, Unevaluated, by_jax, by_jax_alone, make_values


def never(pair: Pairing, tried: Sequence[Sizes], strict: bool) -> dict[int, str]:
    """Messages about results that never have the values that a proof assumes, by number of the result.

    Results that are one graph, stored arrays included, are not checked.

    Args:
        pair: the functions.
        tried: the sizes; results without elements are ignored.
        strict: whether to ignore results on inputs with intermediate values that are not finite, where the functions
            were seen to differ.
    """
    unlike, absent = dict[int, str](), dict[int, str]()
    for at in tried:
        try:
            sides = by_contents([side.graph for side in pair.sides_at(at)])
        except ArgumentError:
            continue
        pairs = enumerate(zip(*(graph.outputs for graph in sides), strict=True))
        asked = [i for i, (one, two) in pairs if one is not two and 0 not in one.shape and i not in unlike]
        seen = _seen(pair, sides, asked, strict)
        for i in asked:
            why = seen.missing(i)
            if seen.unlike(i) and 0 not in at.values():
                unlike[i] = why
            absent[i] = why and absent.get(i, why)
    return {i: why for i, why in (absent | unlike).items() if why}


def _seen(pair: Pairing, sides: Sequence[Graph], asked: Sequence[int], strict: bool) -> Observations:
    """Observations of some results of both functions, by number of the result."""
    seen, inputs = Observations(asked), sides[0].inputs
    drawn = [make_values(inputs, pair.specs.names, attempt) for attempt in range(ATTEMPTS)]
    alone = any(map(by_jax_alone, sides))
    for values in itertools.chain(drawn, samples(drawn[2])):
        if not (left := seen.left):
            break
        try:
            one, two = _results(pair, sides, left, values)
        except Unevaluated:
            break
        beyond = {i for i in left if strict and (alone or any(leaves_finite(g, i, values) for g in sides))}
        seen.see(one, two, beyond)
    return seen


def _results(
    pair: Pairing, sides: Sequence[Graph], outputs: Sequence[int], values: Mapping[str, np.ndarray]
) -> list[dict[int, np.ndarray]]:
    """Some results of both functions by their numbers, in float64 where the interpreter has all operations."""
    if any(map(by_jax_alone, sides)):
        return [{i: results[i] for i in outputs} for results in by_jax(pair, values)]
    parts = [Graph(g.inputs, tuple(g.outputs[i] for i in outputs), g.constants) for g in sides]
    return [dict(zip(outputs, map(np.asarray, evaluate(g, values, wide=True)), strict=True)) for g in parts]
