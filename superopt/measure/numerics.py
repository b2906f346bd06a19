"""Relative errors of a candidate's outputs against the reference's, and the tolerance for them.

For a float output with reference r and candidate c, both in float64 and restricted to finite entries:

    normwise     |c - r|_2 / |r|_2.
    elementwise  max |c - r| / max(|r|, rms(r)).

The second sees a single wrong element that the first averages away; scaling small entries by the root mean square
keeps cancellation near zero from looking like an error.  Non-finite entries must agree exactly, integers and booleans
too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.ops.table import lookup
from superopt.measure.rounding import unrounded
from superopt.workshop.job import OutputError

_REAL = {"complex64": "float32", "complex128": "float64"}  # the type of both parts
FLOAT_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
QUANTISED = "8 bits"
"""The kind of floats that were rounded to 8 bits of a range on the way."""
_BOUNDS = {**FLOAT_TOLERANCE, QUANTISED: FLOAT_TOLERANCE["bfloat16"]}  # bfloat16 has 8 bits as well


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Accepted errors, as multiples of the dtype's usual bound (1e-4 for float32, elementwise tenfold)."""

    normwise: float = 1.0
    elementwise: float = 10.0

    def accepts(self, error: OutputError, dtype: str) -> bool:
        """Whether an output with this error counts as the same value."""
        bound = bound_of(dtype)
        return error.normwise <= self.normwise * bound and error.elementwise <= self.elementwise * bound


def bound_of(kind: str) -> float:
    """Return the usual bound of a type, or of `QUANTISED`: 0 where results are exact."""
    return _BOUNDS.get(_REAL.get(kind, kind), 0.0)


def computed_in(graph: Graph) -> tuple[str, ...]:
    """Return, for each output, the float type with the coarsest rounding that it depends on, or `QUANTISED`.

    A half-precision model whose results are converted to float32 is no more exact than half precision, and one that
    quantises to 8 bits no more than those.  Integers that are rounded floats have the type of these, and other outputs
    that are no floats their own.
    """
    graph = unrounded(graph)
    coarsest: dict[Node, str] = {}
    for node in graph.nodes():
        before = [coarsest[x] for x in node.inputs]
        coarsest[node] = _coarsest([*before, *_roundings(node, before)])
    return tuple(_coarsest((x.dtype, coarsest[x])) if x.dtype in FLOAT_TOLERANCE else x.dtype for x in graph.outputs)


def _roundings(node: Node, before: Sequence[str]) -> Iterator[str]:
    """Yield the float types to which a node rounds its results, given those of its operands."""
    if lookup(node.op).family in ("leaf", "movement"):
        return
    of_floats = any(kind in _BOUNDS for kind in (*before, *(t.dtype for x in node.inputs for t in x.types)))
    for dtype in (t.dtype for t in node.types):
        yield QUANTISED if of_floats and dtype in ("int8", "uint8") else dtype
    for body in bodies_of(node):
        for inner in body.nodes():
            yield from _roundings(inner, before)


def _coarsest(dtypes: Iterable[str]) -> str:
    return max(dtypes, key=lambda dtype: (_BOUNDS.get(dtype, 0.0), dtype == QUANTISED), default="")


def output_errors(reference: Sequence[np.ndarray], candidate: Sequence[np.ndarray]) -> tuple[OutputError, ...]:
    """Errors per output; a missing or additional output is an infinite error."""
    if len(reference) != len(candidate):
        text = f"{len(candidate)} outputs instead of {len(reference)}"
        return (OutputError(math.inf, math.inf, text),)
    return tuple(_error(np.asarray(r), np.asarray(c)) for r, c in zip(reference, candidate, strict=True))


def _error(r: np.ndarray, c: np.ndarray) -> OutputError:
    """Return the error of a result against the reference: infinite where type or shape is another one."""
    if r.shape != c.shape or r.dtype != c.dtype:
        text = f"{c.dtype}{list(c.shape)} instead of {r.dtype}{list(r.shape)}"
        return OutputError(math.inf, math.inf, text)
    if r.dtype.kind == "c":
        parts = [_error(part(r), part(c)) for part in (np.real, np.imag)]
        return max(parts, key=_worse)
    if str(r.dtype) not in FLOAT_TOLERANCE:
        wrong = int(np.count_nonzero(r != c))
        return OutputError(0.0, 0.0) if wrong == 0 else _different(f"{wrong} of {r.size} values differ")
    r64, c64 = r.astype(np.float64), c.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.abs(c64 - r64)
    if not np.isfinite(gap).all():
        finite = np.isfinite(r64)
        odd = ~finite
        if not np.array_equal(finite, np.isfinite(c64)) or not np.array_equal(r64[odd], c64[odd], equal_nan=True):
            wrong = int(np.count_nonzero(finite != np.isfinite(c64)))
            return _different(f"non-finite values differ ({wrong} of {r.size})")
        r64, gap = r64[finite], gap[finite]
    if gap.size == 0 or not gap.any():
        return OutputError(0.0, 0.0)
    norm = float(np.linalg.norm(r64))
    if norm == 0.0:
        return _different("reference is zero, candidate is not")
    rms = norm / math.sqrt(r64.size)
    return OutputError(float(np.linalg.norm(gap)) / norm, float(np.max(gap / np.maximum(np.abs(r64), rms))))


def _different(text: str) -> OutputError:
    return OutputError(math.inf, math.inf, text)


def _worse(error: OutputError) -> tuple[float, float]:
    return error.normwise, error.elementwise
