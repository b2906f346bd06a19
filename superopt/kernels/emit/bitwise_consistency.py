"""Bitwise consistency within a kernel: compared values that denote the same thing are rounded the same way.

An argmax is the least position whose element equals the maximum.  The elements are computed twice: where the maximum is
taken and where it is compared, after `materialize` or `compute_at` in two stages.  Were they rounded in two ways, no
element would equal the maximum.

So both sides of every comparison are matched, up to the names of iterators.  Extremes are left out, and a buffer that
only one side reads is replaced by the expression that fills it.  A value that both sides read from one buffer is
consistent already.  Above it, a licence may allow several roundings (quotients, sums, `a * b + c`, 16-bit floats); all
stages that compute the value then lose that licence.  The program is refused where an extreme is compared and the sides
do not match, or a register tile is concerned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from superopt.errors import InputError, UnsupportedKernel
from superopt.ir.expr import Expr, subexpressions, values_of
from superopt.ir.index import Symbol, coefficient, sides_of
from superopt.ir.scalar import COMPARISONS, HALVES, SCALARS
from superopt.ir.types import FLOATS
from superopt.kernels.emit.options import Licence
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.bijection import inverse

_EXTREMES = ("max", "min")
MOST_PAIRS = 20_000
DEEPEST = 150

Facts = frozenset[tuple[str, str]]  # ("in", stage), ("off", field of a licence), ("has", an operation of a contraction)
Pairs = tuple[tuple[Symbol, Symbol], ...]  # iterators of the sums around both sides


@dataclass(frozen=True, slots=True)
class Agreement:
    """Stages that must compute a value with the same rounding.

    Attributes:
        stages: names of the stages.
        off: fields of the licence that they may not use.
        refused: the reason why consistency is impossible; None if it is possible.
    """

    stages: frozenset[str]
    off: frozenset[str]
    refused: str | None = None


def licences(program: LoopProgram, licence: Licence) -> dict[str, Licence]:
    """Return the licence of each phase, by the name of its stage.

    Raises:
        UnsupportedKernel: compared values cannot be rounded alike.
    """
    by_buffer = {s.buffer: licence for s in program.phases()}
    for agreement in agreements(program):
        if agreement.refused is not None:
            raise UnsupportedKernel(agreement.refused)
        for name in agreement.stages:
            phase = phase_of(program, name)
            by_buffer[phase] = replace(by_buffer[phase], **dict.fromkeys(agreement.off, False))
    return by_buffer


def phase_of(program: LoopProgram, name: str) -> str:
    """Return the phase in which a stage runs."""
    stage = program.stage(name)
    while stage.at is not None:
        stage = program.stage(stage.at[0])
    return stage.buffer


def agreements(program: LoopProgram) -> list[Agreement]:
    """Return the consistency requirements of all comparisons of a program, without duplicates."""
    pairs: dict[Agreement, None] = {}
    for stage in program.stages:
        for e in _comparisons(stage):
            made = _agreement(program, stage, e)
            if made is not None:
                pairs[made] = None
    return list(pairs)


def _roots(stage: Stage) -> list[Expr]:
    return [stage.value, *[v for x in [*stage.index, *sides_of(stage.guard)] for v in values_of(x)]]


def _comparisons(stage: Stage) -> Iterator[Expr]:
    values = dict.fromkeys(e for root in _roots(stage) for e in subexpressions(root))
    return (e for e in values if e.kind == "op" and e.args[0] in COMPARISONS)


def _agreement(program: LoopProgram, stage: Stage, e: Expr) -> Agreement | None:
    """Return the agreement that a comparison of computed values needs; None where it needs none."""
    a, b = e.args[2:]
    for x, y in ((a, b), (b, a)):  # x - max(x) compared with 0
        if x.kind == "op" and x.args[0] == "sub" and y.kind == "const":
            a, b = x.args[2:]
    if a is b or "const" in (a.kind, b.kind):
        return None
    matching = _Matching(program, stage.buffer, (a, b))
    facts = matching.same(a, stage.buffer, b, stage.buffer, ())
    extreme = matching.extreme(a) or matching.extreme(b)
    matched = facts is not None
    if facts is None:
        if not extreme or e.args[0] not in ("eq", "ne"):
            return None
        facts = matching.apart(a, b)
    off = {name for kind, name in facts if kind == "off"}
    stages = frozenset([name for kind, name in facts if kind == "in"])
    if {("has", "add"), ("has", "mul")} <= facts:
        off.add("contraction")
    if not off:
        return None
    tiled = sorted(s for s in stages if program.stage(phase_of(program, s)).tile is not None)
    refused = None
    if tiled:
        if not extreme:
            return None
        refused = f"{stage.buffer} compares an extreme with what {tiled[0]} computes in a register tile"
    elif not matched and ("off", "reassociation") in facts:
        refused = f"{stage.buffer} compares an extreme with sums that are not shown to be added in the same order"
    return Agreement(stages, frozenset(off), refused)


class _Matching:
    """The matching of the two sides of a comparison."""

    def __init__(self, program: LoopProgram, root: str, sides: Sequence[Expr]) -> None:
        self.program, self.root = program, root
        self.order = {s.buffer: j for j, s in enumerate(program.stages)}
        self.known: dict[tuple[object, ...], Facts | None] = {}
        inner = [x for side in sides for x in subexpressions(side) if x.kind == "reduce"]
        self.bound = frozenset([it for x in inner for it in x.args[1]])  # may have other values on the other side
        self.depth = 0

    def same(self, a: Expr, at: str, b: Expr, bt: str, sums: Pairs) -> Facts | None:
        """Return the stages and roundings on which a match of both sides relies; None if no match is shown.

        Args:
            a: one side.
            at: the stage that computes it.
            b: the other side.
            bt: the stage that computes it.
            sums: iterators of the sums around them, in pairs.
        """
        if a is b and at == bt == self.root and not a.symbols & self.bound and not sums:
            return frozenset()  # one value
        key = (a, at, b, bt, sums)
        if key not in self.known:
            if len(self.known) > MOST_PAIRS or self.depth > DEEPEST:
                return None
            self.known[key] = None
            self.depth += 1
            back = tuple([(y, x) for x, y in sums])
            facts = self._alike(a, at, b, bt, sums)
            for peel in (self._peeled, self._filled):  # a buffer that both read is not expanded
                if facts is None:
                    facts = peel(a, at, b, bt, sums)
                if facts is None:
                    facts = peel(b, bt, a, at, back)
            self.depth -= 1
            self.known[key] = facts
        return self.known[key]

    def _alike(self, a: Expr, at: str, b: Expr, bt: str, sums: Pairs) -> Facts | None:
        """Match two expressions of the same kind whose parts match."""
        if a.kind != b.kind or a.dtype != b.dtype:
            return None
        if a.kind == "const":
            return frozenset() if repr(a.args[0]) == repr(b.args[0]) else None
        if a.kind == "load":
            return frozenset() if a.args[0] == b.args[0] and _walked(a, b, sums) else None
        if a.kind == "index":
            return frozenset() if _walked(a, b, sums) else None
        made: Facts = frozenset()
        if a.kind == "op":
            if a.args[:2] != b.args[:2]:
                return None
            made = _rounding(a, at, b, bt)
        elif a.kind == "convert" and a.args[0] != b.args[0]:
            return None
        elif a.kind == "reduce":
            if a.args[0] != b.args[0]:
                return None
            if a.args[0] in ("sum", "prod") and a.dtype in FLOATS:
                if [i.high for i in a.args[1]] != [i.high for i in b.args[1]]:
                    return None
                sums = (*sums, *zip(a.args[1], b.args[1], strict=True))
                made = _summed(a, at, bt)
        return self._all(list(zip(a.operands, b.operands, strict=True)), at, bt, sums, made)

    def _all(self, pairs: Sequence[tuple[Expr, Expr]], at: str, bt: str, sums: Pairs, made: Facts) -> Facts | None:
        for x, y in pairs:
            facts = self.same(x, at, y, bt, sums)
            if facts is None:
                return None
            made |= facts
        return made

    def _peeled(self, a: Expr, at: str, b: Expr, bt: str, sums: Pairs) -> Facts | None:
        """Match after removing from the first side a step that selects among its operands' values."""
        if a.kind == "reduce" and a.args[0] in _EXTREMES:
            return self.same(a.args[2], at, b, bt, sums)
        if a.kind == "where" or (a.kind == "op" and a.args[0] in _EXTREMES):
            kept = [x for x in a.operands if x.kind != "const"]
            return self._all([(x, b) for x in kept], at, bt, sums, frozenset()) if kept else None
        return None

    def _filled(self, a: Expr, at: str, b: Expr, bt: str, sums: Pairs) -> Facts | None:
        """Match after replacing a buffer that the first side reads by the expression that fills it."""
        if a.kind != "load" or a.args[0] not in self.order:
            return None
        name = a.args[0]
        if b.kind == "load" and self.order.get(b.args[0], -1) > self.order[name]:
            return None  # the later one first
        stage = self.program.stage(name)
        if stage.combine is not None and (stage.combine not in _EXTREMES or sums):
            return None
        value = stage.value
        if sums:
            shared = [x.symbol for x in stage.axes[: stage.at[1]]] if stage.at is not None else []
            try:
                value = value.substitute(inverse(stage, a.args[1], self.program.buffer(name).shape, shared))
            except InputError:  # no inverse of a known form: not shown
                return None
        return self.same(value, name, b, bt, sums)

    # ---- sides that do not match

    def extreme(self, e: Expr) -> bool:
        """Whether the value depends on a maximum or a minimum."""
        seen: set[str] = set()
        stack = [e]
        while stack:
            for x in subexpressions(stack.pop()):
                if x.kind == "reduce" and x.args[0] in _EXTREMES:
                    return True
                if x.kind == "load" and x.args[0] in self.order and x.args[0] not in seen:
                    seen.add(x.args[0])
                    stage = self.program.stage(x.args[0])
                    if stage.combine in _EXTREMES:
                        return True
                    stack.append(stage.value)
        return False

    def apart(self, a: Expr, b: Expr) -> Facts:
        """Return all roundings of two sides above the buffers that both read; none where they share nothing."""
        sides = [{self.root: [a]}, {self.root: [b]}]
        reads = [_loads([a]), _loads([b])]
        for stage in reversed(self.program.stages):
            name = stage.buffer
            for j in (0, 1):
                if name in reads[j] and name not in reads[1 - j]:
                    reads[j] = (reads[j] - {name}) | _loads([stage.value])
                    sides[j][name] = [stage.value]
        if not reads[0] & reads[1]:
            return frozenset()
        made: Facts = frozenset()
        shared = frozenset(subexpressions(a)) & frozenset(subexpressions(b))
        for side in sides:
            for name, roots in side.items():
                if self.program.stage(name).combine in ("sum", "prod"):
                    made |= {("off", "reassociation"), ("in", name)}
                for x in {x for root in roots for x in subexpressions(root)} - (
                    shared if name == self.root else frozenset()
                ):
                    if x.kind == "op":
                        made |= _rounding(x, name, x, name)
                    elif x.kind == "reduce" and x.args[0] in ("sum", "prod") and x.dtype in FLOATS:
                        made |= _summed(x, name, name)
        return made


def _loads(roots: Sequence[Expr]) -> frozenset[str]:
    return frozenset([x.args[0] for root in roots for x in subexpressions(root) if x.kind == "load"])


def _walked(a: Expr, b: Expr, sums: Pairs) -> bool:
    """Whether the iterators of the sums step through both indices alike, so that terms are added in the same order."""
    xs, ys = a.indices, b.indices
    return len(xs) == len(ys) and all(
        (k := coefficient(x, s)) is not None and k == coefficient(y, t)
        for s, t in sums
        for x, y in zip(xs, ys, strict=True)
    )


def _rounding(a: Expr, at: str, b: Expr, bt: str) -> Facts:
    """Return the licences that affect the rounding of a scalar function on two sides."""
    fn, dtype = a.args[:2]
    made: set[tuple[str, str]] = set()
    if dtype in FLOATS:
        if dtype in HALVES and not SCALARS[fn].predicate and not SCALARS[fn].closed:
            made.add(("off", "excess"))
        if fn == "div" and a.args[3].kind != "const":
            made.add(("off", "reciprocal"))
        elif fn in ("add", "sub"):
            made.add(("has", "add"))
        elif fn in ("mul", "div"):  # a quotient by a constant is a product everywhere
            made.add(("has", "mul"))
    return frozenset(made | {("in", at), ("in", bt)}) if made else frozenset()


def _summed(e: Expr, at: str, bt: str) -> Facts:
    """Return the licences that affect the rounding of a sum."""
    halves = frozenset({("off", "excess")}) if e.dtype in HALVES else frozenset[tuple[str, str]]()
    return halves | {("off", "reassociation"), ("off", "contraction"), ("in", at), ("in", bt)}
