"""Recognizes contractions in the value of a stage: `sum over k of [guard] A * B`, whatever surrounds the sum.

Each iterator has a characteristic vector: which of the two factors depend on it, and whether it is reduced.  The vector
gives its role: batch (in both), rows (A alone), columns (B alone), depth (reduced).  B is the factor that depends on
the innermost axis of the output, the lane, so that a convolution with channels first swaps its operands by itself.

`analyse` brings a stage into normal form first.  Axes of extent 1 are dropped.  An axis that an operand reads through
`//` and `%` is split there.  Neighbouring axes of one role that every access sees as one are fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from superopt.ir.expr import Expr, reduce, rewrite, subexpressions
from superopt.ir.index import (
    Guard,
    Poly,
    Size,
    Symbol,
    Truth,
    coefficient,
    of_atom,
    row_major,
    sides_of,
    substitute,
    substitute_guard,
    symbols_of,
)
from superopt.kernels.loops.simplify import forms_in, is_zero
from superopt.kernels.loops.stage import Loop, LoopProgram, Stage, extent


@dataclass(frozen=True, slots=True)
class Contraction:
    """A stage in normal form and the contraction in it.

    Attributes:
        total: the sum, as it occurs in the stage's value.
        a: the factor that is one number for all lanes.
        b: the factor along the lane.
        guard_a: the part of the product's guard over the iterators of `a`.
        guard_b: the part over those of `b`.
        batch: axes that both factors depend on.
        rows: axes of `a` alone.
        columns: axes of `b` alone, the lane last.
        depth: iterators of the sum.
    """

    stage: Stage
    total: Expr
    a: Expr
    b: Expr
    guard_a: Truth
    guard_b: Truth
    batch: tuple[Symbol, ...]
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    depth: tuple[Symbol, ...]

    @property
    def lane(self) -> Symbol:
        """The axis along vectors."""
        return self.columns[-1]


def analyse(program: LoopProgram, stage: Stage, merge_columns: bool = False, lane: str = "") -> Contraction | None:
    """Return the contraction of a stage, in normal form; None where the stage holds none that a register tile fits.

    Args:
        program: gives the shapes of the buffers.
        stage: a stage that is not scheduled yet.
        merge_columns: fuse the axes of B even where B's accesses are not contiguous across them (B must be packed).
        lane: the axis along vectors, by its name before or after axes are split; the innermost when empty.
    """
    if stage.guard is not True or stage.tile is not None or stage.at is not None or stage.combine is not None:
        return None
    return _normal(program, stage, merge_columns, lane)


def analyse_placed(program: LoopProgram, stage: Stage, lane: str = "") -> Contraction | None:
    """Return the contraction of a placed stage over its own axes, the shared ones fixed; None without one.

    Args:
        program: gives the shapes of the buffers.
        stage: a stage placed in another; its guard stays that of the stage in normal form.
        lane: as for `analyse`.
    """
    if stage.tile is not None or stage.at is None or stage.combine is not None:
        return None
    return _normal(program, replace(stage, axes=stage.axes[stage.at[1] :], at=None), False, lane)


def _normal(program: LoopProgram, stage: Stage, merge_columns: bool, lane: str) -> Contraction | None:
    shapes = {b.name: b.shape for b in program.buffers}
    contraction = find(_with_lane(_divided(_without_single(stage), shapes), lane))
    while contraction is not None:
        smaller = _fused(contraction, shapes, merge_columns)
        if smaller is None:
            return contraction
        contraction = find(smaller)
    return None


def find(stage: Stage) -> Contraction | None:
    """Return the contraction of a stage as it stands, if its only outermost reduction is a sum of products."""
    axes = [a.symbol for a in stage.axes]
    if not axes:
        return None
    outer = list(outermost(stage.value))
    if len(outer) != 1 or outer[0].args[0] != "sum":
        return None
    total = outer[0]
    iterators, body = total.args[1], total.args[2]
    guard: Truth = True
    if body.kind == "where" and is_zero(body.args[2]):
        guard, body = body.args[0], body.args[1]
    if body.kind != "op" or body.args[0] != "mul":
        return None
    a, b = body.args[2:]
    inner = frozenset(iterators)
    if a.symbols.isdisjoint(inner) or b.symbols.isdisjoint(inner):
        return None
    lane = axes[-1]
    if lane in a.symbols:
        a, b = b, a
    split = _split_guard(guard, a, b, frozenset([x.symbol for x in stage.axes if x.kind == "parallel"]))
    if split is None:
        return None
    guard_a, guard_b = split
    in_a, in_b = a.symbols | symbols_of(guard_a), b.symbols | symbols_of(guard_b)
    if lane in in_a or lane not in in_b:
        return None
    if any(a.symbol not in in_a and a.symbol not in in_b for a in stage.axes if a.kind != "parallel"):
        return None
    return Contraction(
        stage, total, a, b, guard_a, guard_b,
        batch=tuple([s for s in axes if s in in_a and s in in_b]),
        rows=tuple([s for s in axes if s in in_a and s not in in_b]),
        columns=tuple([s for s in axes if s not in in_a]),
        depth=iterators,
    )  # fmt: skip


def with_total(contraction: Contraction, total: Expr, stage: Stage | None = None) -> Stage:
    """Return the stage with its sum replaced."""
    stage = stage or contraction.stage
    return replace(stage, value=exchange(stage.value, contraction.total, total))


def exchange(root: Expr, old: Expr, new: Expr) -> Expr:
    """Replace one subexpression (outside of reductions) by another."""
    return rewrite(root, before=lambda e: new if e is old else e if e.kind == "reduce" else None)


def outermost(root: Expr) -> Iterator[Expr]:
    """Yield the reductions that are inside no other."""
    seen: set[Expr] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if e in seen or not e.height:
            continue
        seen.add(e)
        if e.kind == "reduce":
            yield e
        else:
            stack += e.operands


def _split_guard(guard: Truth, a: Expr, b: Expr, tasks: frozenset[Symbol]) -> tuple[Truth, Truth] | None:
    """Assign each condition to the factors that have its iterators, tasks' ignored; None where one fits neither.

    A condition on task iterators alone goes to both factors: both may read beyond.
    """
    if not isinstance(guard, Guard):
        return True, True
    mine: list[Poly] = []
    other: list[Poly] = []
    for p in guard.ordered:
        if p.symbols - tasks <= a.symbols:
            mine.append(p)
        if p.symbols - tasks <= b.symbols:
            other.append(p)
        if not (p.symbols - tasks <= a.symbols or p.symbols - tasks <= b.symbols):
            return None
    return (Guard(mine) if mine else True), (Guard(other) if other else True)


def loads(root: Expr) -> list[Expr]:
    """Return the loads of an expression, each once."""
    return [e for e in subexpressions(root) if e.kind == "load"]


# ---- normal form


def _without_single(stage: Stage) -> Stage:
    single: dict[Symbol, Size] = {a.symbol: 0 for a in stage.axes if a.extent == 1}
    return _mapped(stage, [a for a in stage.axes if a.extent > 1], single) if single else stage


def _mapped(stage: Stage, axes: Iterable[Loop], mapping: dict[Symbol, Size]) -> Stage:
    guard = substitute_guard(stage.guard, mapping)
    index = tuple([substitute(x, mapping) for x in stage.index])
    return replace(stage, axes=tuple(axes), index=index, value=stage.value.substitute(mapping), guard=guard)


def _with_lane(stage: Stage, name: str) -> Stage:
    """Return the stage with the lane as its innermost axis."""
    chosen = [a for a in stage.axes if a.symbol.name in (name, name + "l")]
    return replace(stage, axes=(*[a for a in stage.axes if a not in chosen], *chosen)) if name else stage


def _divided(stage: Stage, shapes: dict[str, tuple[int, ...]]) -> Stage:
    """Split every axis and iterator that a sum, or the place of the result, reads through `//` or `%`."""
    sums = list(outermost(stage.value))
    accesses = [row_major(e.args[1], shapes[e.args[0]]) for x in sums for e in loads(x)]
    accesses += [p for x in sums for e in subexpressions(x) if e.kind == "where" for p in e.args[0].ordered]
    accesses.append(row_major(stage.index, shapes[stage.buffer]))
    forms = [form for x in accesses for form in forms_in(x) if form.op in ("//", "%") and isinstance(form.args[1], int)]
    for at, axis in enumerate(stage.axes):
        inner = min([form.args[1] for form in forms if form.args[0] == of_atom(axis.symbol)], default=0)
        if inner and axis.extent % inner == 0 and inner < axis.extent:
            high = Symbol(axis.symbol.name + "h", 0, axis.extent // inner - 1)
            low = Symbol(axis.symbol.name + "l", 0, inner - 1)
            axes = (*stage.axes[:at], Loop(high, axis.kind), Loop(low, axis.kind), *stage.axes[at + 1 :])
            return _divided(_mapped(stage, axes, {axis.symbol: of_atom(high) * inner + of_atom(low)}), shapes)
    for total in sums:
        for it in total.args[1]:
            inner = min([form.args[1] for form in forms if form.args[0] == of_atom(it)], default=0)
            if inner and extent(it) % inner == 0 and inner < extent(it):
                split = exchange(stage.value, total, _divided_depth(total, it, inner))
                return _divided(replace(stage, value=split), shapes)
    return stage


def _divided_depth(total: Expr, it: Symbol, inner: int) -> Expr:
    monoid, iterators, body = total.args
    high, low = Symbol("?h", 0, extent(it) // inner - 1), Symbol("?l", 0, inner - 1)
    body = body.substitute({it: of_atom(high) * inner + of_atom(low)})
    return reduce(monoid, [x for s in iterators for x in ((high, low) if s == it else (s,))], body)


def _fused(found: Contraction, shapes: dict[str, tuple[int, ...]], merge_columns: bool) -> Stage | None:
    """Fuse one pair of neighbouring axes of equal role; None when there is no such pair."""
    stage = found.stage
    place = [row_major(stage.index, shapes[stage.buffer]), *sides_of(stage.guard)]
    of_a = [row_major(e.args[1], shapes[e.args[0]]) for e in loads(found.a)]
    of_b = [row_major(e.args[1], shapes[e.args[0]]) for e in loads(found.b)]
    of_a += sides_of(found.guard_a)
    of_b += sides_of(found.guard_b)
    free_b = [] if merge_columns else of_b
    order = [a.symbol for a in stage.axes]
    for role, forms in (
        (found.batch, place + of_a + of_b),
        (found.rows, place + of_a),
        (found.columns, place + free_b),
    ):
        for i, j in _pairs(role):
            if _contiguous(i, j, forms):
                both = Symbol(i.name + j.name, 0, extent(i) * extent(j) - 1)
                mapping: dict[Symbol, Size] = {i: of_atom(both) // extent(j), j: of_atom(both) % extent(j)}
                axes = [Loop(both) if s == j else Loop(s) for s in order if s != i]
                return _mapped(stage, axes, mapping)
    for i, j in _pairs(found.depth):
        if _contiguous(i, j, of_a) and (merge_columns or _contiguous(i, j, of_b)):
            return with_total(found, _fused_depth(found.total, i, j))
    return None


def _pairs(role: Sequence[Symbol]) -> Iterator[tuple[Symbol, Symbol]]:
    for i in role:
        for j in role:
            if i is not j:
                yield i, j


def _contiguous(i: Symbol, j: Symbol, forms: Iterable[Size]) -> bool:
    """Whether every index form that contains i or j is a function of `i * extent(j) + j`."""
    for x in forms:
        a, b = coefficient(x, i), coefficient(x, j)
        if a is None or b is None or a != b * extent(j):
            return False
    return True


def _fused_depth(total: Expr, i: Symbol, j: Symbol) -> Expr:
    monoid, iterators, body = total.args
    both = Symbol("?" + i.name + j.name, 0, extent(i) * extent(j) - 1)
    body = body.substitute({i: of_atom(both) // extent(j), j: of_atom(both) % extent(j)})
    return reduce(monoid, [both if s == j else s for s in iterators if s != i], body)
