"""Nonvacuity: a check that the finite values that a proof assumes do occur.

A proof of class real or range assumes that inputs and intermediate values are finite.  For a program that never has
such values it is vacuous, though every step of it is right: it then proves `x + 1 / 0` equal to `x + 1 / -0`.  After
such a proof both sides are therefore evaluated on inputs of many magnitudes.  A result passes once every entry of it
was seen finite on both sides, or the same NaN or infinity on both, and some entry was seen finite.
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
"""Whether an array has a NaN, and whether it has an infinity."""


@dataclass(slots=True)
class _Result:
    """Observations of one result: inputs tried, entries seen finite or alike on both sides, whether any was finite."""

    tried: int = 0
    alike: np.ndarray = field(default_factory=lambda: np.zeros((), bool))
    number: bool = False


class Observations:
    """Observations of the results of two programs, entry by entry, over the inputs tried so far."""

    def __init__(self, outputs: Iterable[int]) -> None:
        self._results = {i: _Result() for i in outputs}

    @property
    def left(self) -> list[int]:
        """The results whose proof may be vacuous: no finite entry so far, or some entry never alike on both sides."""
        return [i for i in self._results if self.missing(i)]

    @property
    def tried(self) -> int:
        """Number of inputs on which results were observed."""
        return max((result.tried for result in self._results.values()), default=0)

    def see(self, one: Mapping[int, np.ndarray], two: Mapping[int, np.ndarray], beyond: Collection[int] = ()) -> None:
        """Record the results of both programs on the same inputs; results in `beyond` count as tried only."""
        for i, a in one.items():
            result = self._results[i]
            result.tried += 1
            if i not in beyond:
                alike, number = _alike(a, two[i])
                result.alike = alike | result.alike
                result.number = result.number or not a.size or bool(number.any())

    def unlike(self, output: int) -> bool:
        """Whether some entry of a result was never finite on both sides, nor the same NaN or infinity on both."""
        return not bool(self._results[output].alike.all())

    def missing(self, output: int) -> str:
        """The message about values of a result that never occurred; empty where all did."""
        result, place = self._results[output], ""
        if result.number and not self.unlike(output):
            return ""
        if result.number:
            place = f" at {[int(k) for k in np.argwhere(~result.alike)[0]]}"
        return f"{ASSUMED}, and none of {result.tried} inputs tried gave any{place}"


def _alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks: entries that are finite or the same NaN or infinity in both results, and entries that are finite in both.

    Entries of integers count as finite, and as alike where they are equal.
    """
    if str(a.dtype) in (*INTEGERS, "bool"):
        return np.asarray(a == b), np.ones(a.shape, bool)
    x, y = (z.astype(np.complex128 if z.dtype.kind == "c" else np.float64) for z in (a, b))
    number = np.isfinite(x) & np.isfinite(y)
    return number | (x == y) | (np.isnan(x) & np.isnan(y)), number


def leaves_numbers(nodes: Iterable[Node], kinds: Mapping[Node, Kinds]) -> bool:
    """Whether some node makes NaN from operands without NaN, or an infinity from finite operands.

    Args:
        nodes: nodes of the program.
        kinds: kinds of the known values, by node.
    """
    for node in nodes:
        nan, infinite = kinds.get(node, (False, False))
        if any(len(x.types) > 1 for x in node.inputs):  # kinds are not known for several results
            continue
        of = [kinds.get(x, (False, False)) for x in node.inputs]
        if node.inputs and ((nan and not any(n for n, _ in of)) or (infinite and not any(n or i for n, i in of))):
            return True
    return False


def leaves_finite(graph: Graph, output: int, values: Mapping[str, np.ndarray]) -> bool:
    """Whether some op below a result leaves the finite numbers (`leaves_numbers`), evaluated in float64."""
    nodes = [n for n in topological([graph.outputs[output]]) if len(n.types) == 1 and n.dtype in FLOATS]
    results = evaluate(Graph(graph.inputs, tuple(nodes), graph.constants), values, wide=True)
    kinds = {n: (bool(np.isnan(x).any()), bool(np.isinf(x).any())) for n, x in zip(nodes, results, strict=True)}
    return leaves_numbers(nodes, kinds)


__all__ = ["ASSUMED", "Observations", "leaves_finite", "leaves_numbers"]
