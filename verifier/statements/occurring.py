"""Do the values occur of which a proof speaks?

A proof of class real or range takes inputs and intermediate values to be finite.  Of a program that never has such
values it says nothing, though every step of it is right: `x + 1 / 0` is `x + 1 / -0` then.  So after such a proof both
programs are evaluated on inputs of many magnitudes, until every entry of a result was seen to be a number in both, or
the same of what is none, and some entry to be a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from superopt.errors import ArgumentError
from superopt.frontends.symbolic.graphs import trace_concrete
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.interp import evaluate
from superopt.ir.types import FLOATS, INTEGERS
from verifier.rules.refute import ASSUMED, samples
from verifier.statements.refute import ATTEMPTS, Pairing, Sizes, make_values

Kinds = tuple[bool, bool]
"""Has an array a NaN, has it an infinity?"""


class Occurring:
    """What was seen of the results of two programs, entry by entry."""

    def __init__(self) -> None:
        self.tried = 0
        self._alike: dict[int, np.ndarray] = {}
        self._number: dict[int, bool] = {}

    def see(self, one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> None:
        """Results of both on the same inputs."""
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            alike, number = _alike(a, b)
            self._alike[i] = alike | self._alike.get(i, np.zeros((), bool))
            self._number[i] = self._number.get(i, False) or not a.size or bool(number.any())

    def unlike(self, output: int) -> bool:
        """Was some entry of a result never a number in both, or the same of what is none?"""
        return not bool(self._alike.get(output, np.zeros((), bool)).all())

    def missing(self, output: int) -> str:
        """What never occurred of a result, in words; empty where all did."""
        alike, place = self._alike.get(output, np.zeros((), bool)), ""
        if alike.all() and self._number[output]:
            return ""
        if self._number.get(output, False):
            place = f" at {[int(k) for k in np.argwhere(~alike)[0]]}"
        return f"{ASSUMED}, and none of {self.tried} inputs tried gave any{place}"


def _alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where two results are numbers or the same of what is none, and where they are numbers; integers are the same."""
    if str(a.dtype) in (*INTEGERS, "bool"):
        return np.asarray(a == b), np.ones(a.shape, bool)
    x, y = (z.astype(np.complex128 if z.dtype.kind == "c" else np.float64) for z in (a, b))
    number = np.isfinite(x) & np.isfinite(y)
    return number | (x == y) | (np.isnan(x) & np.isnan(y)), number


def leaves_numbers(nodes: Iterable[Node], kinds: Mapping[Node, Kinds]) -> bool:
    """Is a value no finite number, though what it is made of is, or NaN beside infinities alone?

    Args:
        nodes: of the program.
        kinds: of the values of those that are known.
    """
    for node in nodes:
        nan, infinite = kinds.get(node, (False, False))
        if any(len(x.types) > 1 for x in node.inputs):  # nothing is known of several results
            continue
        of = [kinds.get(x, (False, False)) for x in node.inputs]
        if node.inputs and ((nan and not any(n for n, _ in of)) or (infinite and not any(n or i for n, i in of))):
            return True
    return False


def overflows(graph: Graph, values: Mapping[str, np.ndarray]) -> bool:
    """Is an intermediate value no finite number where the interpreter evaluates a program in float64?"""
    nodes = [n for n in topological(graph.outputs) if len(n.types) == 1 and n.dtype in FLOATS]
    found = evaluate(Graph(graph.inputs, tuple(nodes), graph.constants), values, wide=True)
    kinds = {n: (bool(np.isnan(x).any()), bool(np.isinf(x).any())) for n, x in zip(nodes, found, strict=True)}
    return leaves_numbers(nodes, kinds)


def never(pair: Pairing, tried: Sequence[Sizes], strict: bool) -> str:
    """What never occurs of the results of two functions at any of some sizes, in words; empty where all does at one.

    Args:
        pair: the functions.
        tried: the sizes; those without elements say nothing.
        strict: they differ where intermediate values are not finite, and what they give there does not count.
    """
    missing: list[str] = []
    for at in tried:
        try:
            sides = [trace_concrete(fn, pair.specs, at).graph for fn in (pair.left, pair.right)]
        except ArgumentError:
            continue
        if any(0 in n.shape for n in sides[0].outputs):
            continue
        why = _never_at(sides, pair.specs.names, strict)
        if not why:
            return ""
        missing.append(why)
    return missing[0] if missing else ""


def _never_at(sides: Sequence[Graph], names: Sequence[str], strict: bool) -> str:
    seen, inputs, missing = Occurring(), sides[0].inputs, list[str]()
    drawn = [make_values(inputs, names, attempt) for attempt in range(ATTEMPTS)]
    for values in itertools.chain(drawn, samples(drawn[2])):
        seen.tried += 1
        if not (strict and any(overflows(graph, values) for graph in sides)):
            seen.see(*([np.asarray(x) for x in evaluate(graph, values, wide=True)] for graph in sides))
        missing = [why for i in range(len(sides[0].outputs)) if (why := seen.missing(i))]
        if not missing:
            return ""
    return missing[0]


__all__ = ["Occurring", "leaves_numbers", "never", "overflows"]
