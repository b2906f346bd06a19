"""A watch over the prover: proved statements are evaluated in their own dtypes, by the interpreter and by XLA.

In these dtypes integers wrap and floats are rounded.  XLA also uses JAX's own semantics, whereas prover and interpreter
share those of the op table.  Sizes are tiny ones, those near integers of the statement, and those at which the solver
says that a condition on indices changes.  Values are those of the refuter, with the ends of integer types.  Further
inputs contain NaN and infinities, where a proof claims bit equality or assumes that values tested for NaN are numbers.
Where it claims bit equality, they also contain zeros of both signs, the largest and the least numbers.

A difference is a defect of the prover (`ProverDefectError`) where rounding cannot explain it: results of integers
alone, bits of class exact, and numbers of class real in float64 with every explicit conversion kept.  Two differences
are no defect.  Sums that are one term may be added up in another order by another operation; if only that differs, the
class becomes real.  Where results of class real differ by rounding or overflow in their dtypes, the verdict is UNKNOWN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.errors import ArgumentError
from superopt.frontends.symbolic.graphs import Traced
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import CONTRACTIONS
from superopt.ir.types import FLOATS
from verifier.equal.algebra import FINITE_TEST
from verifier.equal.normal import EXACT, REAL
from verifier.rules.refute import extremes, first_difference, first_other_bits, special, strewn
from verifier.rules.watch import excludes_undefined
from verifier.statements.conversions import converts, with_conversions
from verifier.statements.draws import further_values, literals, magnitudes
from verifier.statements.prove import unsupported_ops
from verifier.statements.refute import (
    ATTEMPTS,
    Pairing,
    Sizes,
    Unevaluated,
    all_by_jax,
    by_jax,
    make_values,
    show_sizes,
)
from verifier.verdict import ValidityDomain

ROUNDING = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-1, "bfloat16": 1e-1}
"""Tolerance for results from small integers by dtype, relative to the greatest one: ten times the errors observed."""
KEPT_TOLERANCE = 1e-6
XLA_SIZES = 3
"""Number of sizes at which XLA compiles both functions: the first ones, and the last, where a condition changes."""
_FURTHER, _MAGNITUDES = 99, 3
"""Number that stands for attempts whose values may cancel, and count of attempts with floats of many magnitudes."""
_NUMBERS, _NO_NUMBERS = ("zeros", "largest", "least", "mixed"), ("nan", "inf", "-inf")
_ORDER = ("max", "min", "clamp", "cummax", "cummin", "argmax", "argmin")
_REORDERED = ("reduce", "cum", "conv", "dot", "scan", "scatter", "add_any")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A difference of two functions that are proved equal.

    Attributes:
        text: the values, the sizes and the evaluator.
        defect: whether rounding cannot explain it.
    """

    text: str
    defect: bool


def watched(
    pair: Pairing, domain: ValidityDomain, tried: Sequence[Sizes]
) -> tuple[ValidityDomain, Contradiction | None]:
    """Evaluate two functions that are proved equal.

    Returns:
        The domain that a certificate may claim, and the contradiction found, or None.
    """
    for number, at in enumerate(tried):
        try:
            sides = pair.sides_at(at)
        except ArgumentError:
            continue
        look = _Look(pair, domain, at, sides)
        alone = any(unsupported_ops(t.graph) for t in sides)  # XLA alone evaluates sorts
        example = None if alone else look.by_interpreter(domain.exactness)
        if example is not None and domain.exactness == EXACT and look.reordered and look.by_interpreter(REAL) is None:
            domain, example = replace(domain, exactness=REAL), None
        if example is None and (number < XLA_SIZES - 1 or number == len(tried) - 1):
            example = look.by_xla()
        if example is not None:
            return domain, example
    return domain, None


@dataclass
class _Look:
    """Evaluation of two functions at concrete sizes."""

    pair: Pairing
    domain: ValidityDomain
    sizes: Sizes
    sides: list[Traced]

    def __post_init__(self) -> None:
        ops = {node.op for side in self.sides for node in side.graph.nodes()}
        nodes = [node for side in self.sides for node in (*side.graph.inputs, *side.graph.nodes())]
        dtypes = {kind.dtype for node in nodes for kind in node.types}
        self.reordered = any(op.startswith(_REORDERED) for op in ops) or bool(ops & set(CONTRACTIONS))
        self.ordered = any(word in op for op in ops for word in _ORDER)
        self.floats = not dtypes.isdisjoint(FLOATS)
        self.wide = any("64" in dtype for dtype in dtypes)

    def _values(self, *, denormal: bool) -> Iterator[tuple[int, str, dict[str, np.ndarray]]]:
        """Yield number of the attempt, kind of special numbers (or empty), and inputs."""
        inputs, names = self.sides[0].graph.inputs, self.pair.specs.names
        for attempt in range(ATTEMPTS):
            yield attempt, "", make_values(inputs, names, attempt)
        inputs = inputs[: len(names)]
        for values in further_values(inputs, literals(side.graph for side in self.sides)):
            yield _FURTHER, "", values
        if self.floats:
            yield from ((_FURTHER, "", magnitudes(inputs, attempt)) for attempt in range(_MAGNITUDES))
        exact = self.domain.exactness == EXACT
        if not self.floats or not (exact or FINITE_TEST in self.domain.assumptions):
            return
        kinds = (*_NO_NUMBERS, *(k for k in _NUMBERS if denormal or k == "zeros")) if exact else _NO_NUMBERS
        for attempt, kind in enumerate(kinds, ATTEMPTS):
            yield attempt, kind, _strewn(make_values(inputs, names, attempt), kind)

    def by_interpreter(self, exactness: str) -> Contradiction | None:
        """The first contradiction seen by the interpreter in the dtypes of the statement, or None."""
        for attempt, kind, values in self._values(denormal=True):
            results = [[np.asarray(x) for x in evaluate(t.graph, values)] for t in self.sides]
            example = self._first(results, exactness, attempt, kind, "")
            if example is not None:
                return example
            if exactness != EXACT and not kind:
                example = self._conversions_kept(values)
                if example is not None:
                    return example
        return None

    def by_xla(self) -> Contradiction | None:
        """The first contradiction between the functions compiled by XLA, which flushes denormals to zero, or None."""
        if self.wide:
            return None
        draws = list(self._values(denormal=False))
        for (attempt, kind, _), results in zip(draws, self._by_xla([x for *_, x in draws]), strict=False):
            example = self._first(results, REAL, attempt, kind, " by XLA")
            if example is not None:
                return example
        return None

    def _by_xla(self, draws: Sequence[Mapping[str, np.ndarray]]) -> Iterator[list[list[np.ndarray]]]:
        """Yield the results of both functions on each draw; ends where XLA lacks an operation or type, or crashes."""
        try:
            yield from all_by_jax(self.pair, draws)
        except Unevaluated:  # of one of them
            with contextlib.suppress(Unevaluated):
                yield from (by_jax(self.pair, values) for values in draws)

    def _first(
        self,
        results: Sequence[Sequence[np.ndarray]],
        exactness: str,
        attempt: int,
        kind: str,
        by: str,
    ) -> Contradiction | None:
        for a, b in zip(*results, strict=True):
            if exactness == EXACT:
                at = first_other_bits(a, b, zeros=not self.ordered)
            else:
                at = _beyond_rounding(a, b, attempt, kind)
            if at is not None:
                where = f" where an input is {kind}" if kind else ""
                text = f"{a[at]} and {b[at]} at {show_sizes(self.sizes)}{where}{by}"
                sure = self.domain.exactness == EXACT or not self.floats
                return Contradiction(text, sure and not (by and excludes_undefined(self.domain)))
        return None

    def _conversions_kept(self, values: Mapping[str, np.ndarray]) -> Contradiction | None:
        """A difference in float64 with every explicit conversion to fewer bits kept, or None."""
        if excludes_undefined(self.domain) or not converts(t.graph for t in self.sides):
            return None
        lefts, rights = (with_conversions(t.graph, values) for t in self.sides)
        for a, b in zip(lefts, rights, strict=True):
            at = first_difference(a, b, True, KEPT_TOLERANCE)
            if at is not None and np.isfinite(b[at] if a.dtype.kind == "f" else 0):
                text = f"{a[at]} and {b[at]} at {show_sizes(self.sizes)} in float64 with every explicit conversion"
                return Contradiction(text, True)
        return None


def _strewn(values: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The inputs with every other float replaced by special numbers of a kind."""
    out: dict[str, np.ndarray] = {}
    for number, (name, x) in enumerate(values.items()):
        out[name] = x
        if str(x.dtype) in FLOATS:
            out[name] = strewn(x, _special(kind, str(x.dtype)), number)
    return out


def _special(kind: str, dtype: str) -> Sequence[float]:
    most, tiny, least = extremes(dtype)
    known = {"zeros": [-0.0, 0.0], "largest": [most, most, -most], "least": [least, tiny, -least]}
    return [float(kind)] if kind in _NO_NUMBERS else known.get(kind) or special(dtype)


def _beyond_rounding(a: np.ndarray, b: np.ndarray, attempt: int, kind: str) -> tuple[int, ...] | None:
    """The first index at which two results differ by more than rounding, or None.

    Differences that rounding may decide are ignored.
    """
    if str(a.dtype) not in FLOATS:
        bad = a != b
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        none = kind in _NO_NUMBERS
        with np.errstate(invalid="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            if kind != "nan":
                same |= np.isnan(x) | np.isnan(y)
            finite = np.abs(x[np.isfinite(x)])
            scale = 1.0 + (float(finite.max()) if finite.size else 0.0)
            numbers = np.isfinite(x) & np.isfinite(y)
            close = np.abs(x - y) <= ROUNDING[str(a.dtype)] * scale
            same |= numbers & (close if attempt <= 1 else True)  # values other than small integers may cancel
            same |= ~numbers & (not none)
        bad = ~same
    return None if not bad.any() else tuple(int(i) for i in np.argwhere(bad)[0])
