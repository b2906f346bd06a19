"""Equality of values before and after a schedule: every output, at every element that is written.

The expression that the stage of an output writes, with the buffers that the schedule introduced inlined back, is
compared with that of the program before, at the iteration that writes the same element.  Buffers that both programs
fill are compared one after another; those proved equal stay loads in later comparisons.  Where no proof is found the
two expressions are evaluated at some points with the interpreter's algebra: a difference there is a refutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.fold import fold
from superopt.ir.index import Symbol
from superopt.ir.interp import Numbers
from superopt.ir.scalar import DTYPE
from superopt.ir.types import FLOATS
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.stage import Stage
from verifier.schedules.comparable import guarded, has_halves, unrounded
from verifier.schedules.domain import Domain, DomainPoint, shown
from verifier.schedules.equal import Equality
from verifier.schedules.intervals import box_of
from verifier.schedules.questions import Findings
from verifier.schedules.stages import OpaqueError, View, resolved
from verifier.schedules.verdict import VALUE, Witness, point
from verifier.verdict import PROVED, REFUTED, UNKNOWN

_FEWEST, _POINTS = 6, 24
_TOLERANCE = 1e-6
_MOST = 1 << 16  # most iterations of reductions that are evaluated at a point


@dataclass
class BufferValues:
    """Comparison of the buffers that both programs fill.

    Attributes:
        before, after: the programs.
        out: findings.
        equal: names of buffers proved equal.
        real: whether the order of some sum has changed.
        left_over: pairs of expressions that are neither proved equal nor seen to differ, by place of the finding.
    """

    before: View
    after: View
    out: Findings
    equal: set[str] = field(default_factory=set[str])
    real: bool = False
    left_over: list[tuple[int, Expr, Expr, Domain]] = field(default_factory=list[tuple[int, Expr, Expr, Domain]])

    def run(self) -> None:
        """Compare every buffer that both programs fill."""
        self._signature()
        for stage in self.after.program.stages:
            buffer = self.after.program.buffer(stage.buffer)
            old = self.before.stages.get(stage.buffer)
            if old is None or buffer.scope == "local":
                continue
            known = self.before.program.buffer(stage.buffer)
            if (known.shape, known.dtype) == (buffer.shape, buffer.dtype) and known.scope != "local":
                self._compare(stage, old, buffer.scope == "output")

    def _signature(self) -> None:
        """Check that outputs are the same buffers, and that inputs are inputs of the program before."""
        old = {b.name: (b.shape, b.dtype, b.scope) for b in self.before.program.buffers}
        new = {b.name: (b.shape, b.dtype, b.scope) for b in self.after.program.buffers}
        outputs = [b.name for b in self.before.program.buffers if b.scope == "output"]
        wrong = [n for n in outputs if old[n] != new.get(n)]
        wrong += [
            n for n, x in new.items() if x[2] in ("input", "frozen", "output") and n not in outputs and old.get(n) != x
        ]
        what = "outputs and inputs are those of the program before"
        name = self.after.program.name
        if wrong:
            witness = Witness((), (), f"{wrong[0]} is {new.get(wrong[0])} and was {old.get(wrong[0])}")
            self.out.add(VALUE, name, what, REFUTED, "structure", witness)
        else:
            self.out.add(VALUE, name, what, PROVED, "structure")

    def _compare(self, new: Stage, old: Stage, needed: bool) -> None:
        """Ask whether a stage of the program after computes the elements of the one before, and note the answer."""
        if not needed and new == old and self._same_sources(new):
            self.equal.add(new.buffer)
            return
        plain = self.after.plain(new)
        domain = Domain({a.symbol: box_of(a.symbol) for a in plain.axes}, (), self.after.budget).under(plain.guard)
        source = self.before.source(old, plain.index, 0)
        what = f"{new.buffer}[{','.join(map(str, new.index))}] is what it was"
        goals = [*source.conditions, *[g for p in source.equal for g in (p, -p)]]
        if domain.empty:
            self.equal.add(new.buffer)
            if needed:
                self.out.add(VALUE, new.buffer, what, PROVED, "intervals")
            return
        if source.missing or not all(domain.holds(g) for g in goals):
            if needed:
                self.out.add(VALUE, new.buffer, what, UNKNOWN, "the program before does not say what is written there")
            return
        keeps = (self._kept, _nothing) if self.equal else (_nothing,)
        sides: tuple[Expr, Expr] | None = None
        cause = ""
        for keep in keeps:
            try:
                sides = (
                    guarded(resolved(self.before, old, keep, {}).substitute(source.at)),
                    guarded(resolved(self.after, new, keep, {})),
                )
            except OpaqueError as why:
                cause = str(why)
                continue
            equality = Equality()
            proved = equality.same(*sides, domain)
            if not proved and any(map(has_halves, sides)):
                sides = guarded(unrounded(sides[0])), guarded(unrounded(sides[1]))
                proved = equality.real = equality.same(*sides, domain)
            if proved:
                self.real |= equality.real
                self.equal.add(new.buffer)
                if needed:
                    self.out.add(VALUE, new.buffer, what, PROVED, "structure")
                return
        if needed and sides is None:
            self.out.add(VALUE, new.buffer, what, UNKNOWN, cause)
        elif needed and sides is not None:
            self._undecided(new, what, *sides, domain)

    def _kept(self, name: str) -> bool:
        return name in self.equal

    def _same_sources(self, stage: Stage) -> bool:
        return all(name in self.equal or name not in self.after.stages for name in reads(stage))

    def _undecided(self, stage: Stage, what: str, left: Expr, right: Expr, domain: Domain) -> None:
        gap = difference(left, right, domain)
        if gap is None:
            self.out.add(VALUE, stage.buffer, what, UNKNOWN, "")
            self.left_over.append((len(self.out.found) - 1, left, right, domain))
            return
        at, a, b = gap
        element = shown(stage.index, at)
        says = f"{stage.buffer}{element} is {b:g} and was {a:g}, for inputs made of their own indices"
        self.out.add(VALUE, stage.buffer, what, REFUTED, "point", Witness(point(at), (), says))


def _nothing(_: str) -> bool:
    return False


# ---- evaluation at points


def difference(left: Expr, right: Expr, domain: Domain) -> tuple[DomainPoint, float, float] | None:
    """A point of the domain where two expressions have different values, for some inputs."""
    cost = max(_iterations(left), _iterations(right))
    if cost > _MOST:
        return None
    for at in domain.points(max(_FEWEST, min(_POINTS, _MOST // (16 * cost)))):
        for inputs in (_mixed, _positive, _extreme):
            with np.errstate(all="ignore"):
                a, b = (_value(x, at, inputs) for x in (left, right))
            if np.isnan(a) or np.isnan(b) or np.isinf(a) or np.isinf(b):
                continue
            if abs(a - b) > _TOLERANCE * max(1.0, abs(a), abs(b)):
                return at, a, b
    return None


def _iterations(e: Expr) -> int:
    """Number of iterations of the innermost reductions, with those around them."""
    known: dict[Expr, int] = {}

    for x in subexpressions(e):
        inner = max((known[y] for y in x.operands), default=1)
        if x.kind == "reduce":
            for it in x.args[1]:
                inner *= it.high + 1
        known[x] = inner
    return known[e]


def _value(e: Expr, at: DomainPoint, inputs: Callable[[str, str, Any], Any]) -> float:
    dtypes = _dtypes(e)

    def read(name: str, index: tuple[Any, ...]) -> Any:
        code: Any = sum(map(ord, name)) * 7919
        for k in index:
            code = code * 31 + np.asarray(k, np.int64) * 17 + 5
        code = (code ^ (code >> 7)) % 1009
        return inputs(name, dtypes[name], code)

    env = {s: int(v) for s, v in at.items() if isinstance(s, Symbol)}
    return float(np.asarray(fold(e, Numbers(wide=True), read, env)).item())


def _dtypes(e: Expr) -> Mapping[str, str]:
    return {x.args[0]: x.dtype for x in subexpressions(e) if x.kind == "load"}


def _kind(dtype: str) -> Any:
    return np.float64 if dtype in FLOATS else DTYPE[dtype]


def _mixed(_: str, dtype: str, code: Any) -> Any:
    if dtype == "bool":
        return np.asarray(code % 2 == 1)
    low = 0 if dtype.startswith("u") else -6
    return np.asarray(low + code % 13).astype(_kind(dtype))


def _positive(_: str, dtype: str, code: Any) -> Any:
    if dtype == "bool":
        return np.asarray(code % 3 == 1)
    scale = 0.125 if dtype in FLOATS else 1
    return np.asarray((1 + code % 9) * scale).astype(_kind(dtype))


def _extreme(_: str, dtype: str, code: Any) -> Any:
    """Return least and greatest integers, by the parity of codes; small values of other types."""
    if dtype in FLOATS or dtype == "bool":
        return _mixed("", dtype, code // 2)
    info = np.iinfo(DTYPE[dtype])
    return np.where(code % 2 == 0, info.min, info.max).astype(DTYPE[dtype])
