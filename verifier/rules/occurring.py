"""What was seen of results: do the values occur of which a proof speaks?

A proof of class real or range takes inputs and intermediate values to be finite.  Of a program that never has such
values it says nothing, though every step of it is right: `x + 1 / 0` is `x + 1 / -0` then.  So after such a proof both
sides are evaluated on inputs of many magnitudes, until every entry of a result was seen to be a number in both, or
the same of what is none, and some entry to be a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from superopt.ir.graph import Graph, Node, topological
from superopt.ir.interp import evaluate
from superopt.ir.types import FLOATS, INTEGERS

ASSUMED = "the proof assumes finite values"
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
        number, place = self._number.get(output, False), ""
        if number and not self.unlike(output):
            return ""
        if number:
            place = f" at {[int(k) for k in np.argwhere(~self._alike[output])[0]]}"
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


def leaves_finite(graph: Graph, output: int, values: Mapping[str, np.ndarray]) -> bool:
    """Is a value that a result is made of no finite number where the interpreter evaluates a program in float64?"""
    nodes = [n for n in topological([graph.outputs[output]]) if len(n.types) == 1 and n.dtype in FLOATS]
    found = evaluate(Graph(graph.inputs, tuple(nodes), graph.constants), values, wide=True)
    kinds = {n: (bool(np.isnan(x).any()), bool(np.isinf(x).any())) for n, x in zip(nodes, found, strict=True)}
    return leaves_numbers(nodes, kinds)


__all__ = ["ASSUMED", "Occurring", "leaves_finite", "leaves_numbers"]
