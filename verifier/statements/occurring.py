"""Do the values occur of which a proof about two functions speaks (`verifier.rules.occurring`), at every size tried?

Which entries there are is a matter of sizes, so every entry of a result is looked at wherever no size is 0: it has to
be a number in both, or the same of what is none, on some input.  A number among them is wanted at one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from superopt.errors import ArgumentError
from superopt.frontends.symbolic.graphs import trace_concrete
from superopt.ir.graph import Graph
from superopt.ir.interp import evaluate
from verifier.rules.occurring import Occurring, leaves_finite, leaves_numbers
from verifier.rules.refute import samples
from verifier.statements.constants import by_contents
from verifier.statements.refute import ATTEMPTS, Pairing, Sizes, by_jax_alone, make_values


def never(pair: Pairing, tried: Sequence[Sizes], strict: bool) -> dict[int, str]:
    """Which results of two functions never have the values that a proof speaks of, in words.

    Results that are one graph, stored arrays included, need none.

    Args:
        pair: the functions.
        tried: the sizes; results without elements say nothing.
        strict: they differ where intermediate values are not finite, and what they give there does not count.
    """
    unlike, absent = dict[int, str](), dict[int, str]()
    for at in tried:
        try:
            sides = by_contents([trace_concrete(fn, pair.specs, at).graph for fn in (pair.left, pair.right)])
        except ArgumentError:
            continue
        if any(map(by_jax_alone, sides)):
            continue
        for i, (one, two) in enumerate(zip(*(graph.outputs for graph in sides), strict=True)):
            if one is two or 0 in one.shape or i in unlike:
                continue
            seen = _seen([Graph(g.inputs, (g.outputs[i],), g.constants) for g in sides], pair.specs.names, strict)
            why = seen.missing(0)
            if seen.unlike(0) and 0 not in at.values():
                unlike[i] = why
            absent[i] = why and absent.get(i, why)
    return {i: why for i, why in (absent | unlike).items() if why}


def _seen(sides: Sequence[Graph], names: Sequence[str], strict: bool) -> Occurring:
    """What is seen of one result."""
    seen, inputs = Occurring(), sides[0].inputs
    drawn = [make_values(inputs, names, attempt) for attempt in range(ATTEMPTS)]
    for values in itertools.chain(drawn, samples(drawn[2])):
        seen.tried += 1
        if not (strict and any(leaves_finite(graph, 0, values) for graph in sides)):
            seen.see(*([np.asarray(x) for x in evaluate(graph, values, wide=True)] for graph in sides))
        if not seen.missing(0):
            break
    return seen


__all__ = ["Occurring", "leaves_finite", "leaves_numbers", "never"]
