"""What was seen of results: do the values occur of which a proof speaks?

A proof of class real or range takes inputs and intermediate values to be finite.  Of a program that never has such
values it says nothing, though every step of it is right: `x + 1 / 0` is `x + 1 / -0` then.  So after such a proof both
sides are evaluated on inputs of many magnitudes, until every entry of a result was seen to be a number in both, or
the same of what is none, and some entry to be a number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.graph import Graph, Node, topological
from superopt.ir.interp import evaluate
from superopt.ir.types import FLOATS, INTEGERS

ASSUMED = "the proof assumes finite values"
Kinds = tuple[bool, bool]
"""Has an array a NaN, has it an infinity?"""


@dataclass(slots=True)
class _Result:
    """One result: on how many inputs it was looked at, which entries were alike, and whether one was a number."""

    tried: int = 0
    alike: np.ndarray = field(default_factory=lambda: np.zeros((), bool))
    number: bool = False


class Occurring:
    """What was seen of some results of two programs, entry by entry."""

    def __init__(self, outputs: Iterable[int]) -> None:
        self._results = {i: _Result() for i in outputs}

    @property
    def left(self) -> list[int]:
        """The results of which something never occurred so far."""
        return [i for i in self._results if self.missing(i)]

    @property
    def tried(self) -> int:
        """On how many inputs results were looked at."""
        return max((result.tried for result in self._results.values()), default=0)

    def see(self, one: Mapping[int, np.ndarray], two: Mapping[int, np.ndarray], beyond: Collection[int] = ()) -> None:
        """Results of both on the same inputs; what those `beyond` give there does not count."""
        for i, a in one.items():
            result = self._results[i]
            result.tried += 1
            if i not in beyond:
                alike, number = _alike(a, two[i])
                result.alike = alike | result.alike
                result.number = result.number or not a.size or bool(number.any())

    def unlike(self, output: int) -> bool:
        """Was some entry of a result never a number in both, or the same of what is none?"""
        return not bool(self._results[output].alike.all())

    def missing(self, output: int) -> str:
        """What never occurred of a result, in words; empty where all did."""
        result, place = self._results[output], ""
        if result.number and not self.unlike(output):
            return ""
        if result.number:
            place = f" at {[int(k) for k in np.argwhere(~result.alike)[0]]}"
        return f"{ASSUMED}, and none of {result.tried} inputs tried gave any{place}"


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
