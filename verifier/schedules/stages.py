"""Facts about stages: their domains, their loads, and the iteration that writes an element.

A stage that is placed inside another begins with axes of its host.  Each iteration of these axes has its own copy of
the stage's local buffer, so for a reader below the same iteration they are parameters, not unknowns.  A stage that
combines is the reduction over those of its axes that its index does not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from superopt.ir.expr import Expr, const, reduce, values_of, where, with_loads
from superopt.ir.index import Form, Guard, Poly, Size, Symbol, Truth, all_of, of_atom, substitute, substitute_guard
from superopt.ir.ops.record import identity
from superopt.kernels.loops.program import under
from superopt.kernels.loops.stage import Loop, LoopProgram, Stage
from verifier.schedules.domain import Domain, QuestionBudget
from verifier.schedules.intervals import box_of
from verifier.schedules.maps import renamed, solve


class OpaqueError(Exception):
    """Raised where an index map does not determine which iteration writes an element; the message names the buffer."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load and the domain of iterations in which it happens."""

    load: Expr
    domain: Domain


@dataclass(frozen=True, slots=True)
class ElementSource:
    """The iteration of a stage that writes an element, and the conditions under which it does.

    Attributes:
        at: own iterators -> index of the iteration.
        conditions: >= 0 exactly where the element is written.
        equal: zero where the element is written: index there, less the element.
        missing: iterators that the element does not determine.
    """

    at: dict[Symbol, Size]
    conditions: tuple[Size, ...]
    equal: tuple[Size, ...]
    missing: tuple[str, ...]


@dataclass
class View:
    """Cached facts about the stages of a program.

    Attributes:
        program: the program.
        budget: steps that are left.
        stages: stages by the buffer that they fill.
        reads: loads of stages, by buffer and by whether domains are split by guards that do not hold.
    """

    program: LoopProgram
    budget: QuestionBudget
    stages: dict[str, Stage] = field(default_factory=dict[str, Stage])
    reads: dict[tuple[str, bool], list[Access]] = field(default_factory=dict[tuple[str, bool], list[Access]])
    _domains: dict[str, Domain] = field(default_factory=dict[str, Domain])
    _plain: dict[str, Stage] = field(default_factory=dict[str, Stage])
    _sources: dict[tuple[str, tuple[Size, ...], int], ElementSource] = field(default_factory=dict[Any, ElementSource])

    def __post_init__(self) -> None:
        self.stages = {s.buffer: s for s in self.program.stages}

    def domain(self, stage: Stage) -> Domain:
        """The iterations of a stage that exist."""
        domain = self._domains.get(stage.buffer)
        if domain is None:
            ranges = {a.symbol: box_of(a.symbol) for a in stage.axes}
            domain = Domain(ranges, (), self.budget).under(stage.guard)
            self._domains[stage.buffer] = domain
        return domain

    def plain(self, stage: Stage) -> Stage:
        """The stage without `combine`: a reduction over the axes that its index does not contain."""
        if stage.combine is None:
            return stage
        value = self._plain.get(stage.buffer)
        if value is None:
            value = self._plain[stage.buffer] = _reduced(stage)
        return value

    def shared(self, writer: Stage, reader: Stage) -> int | None:
        """Number of leading axes that a reader shares with the writer of a local buffer; None if it cannot read it."""
        if writer.at is None:
            return 0
        host, count = self.stages[writer.at[0]], writer.at[1]
        return count if under(self.program, reader, host, count) else None

    def source(self, writer: Stage, element: Sequence[Size], shared: int) -> ElementSource:
        """The iteration of a stage that writes an element.

        Args:
            writer: the stage.
            element: index into its buffer, over the reader's symbols.
            shared: leading axes that stand for themselves.
        """
        key = (writer.buffer, tuple(element), shared)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = self._source(self.plain(writer), element, shared)
        return source

    def _source(self, stage: Stage, element: Sequence[Size], shared: int) -> ElementSource:
        kept = [a.symbol for a in stage.axes[:shared]]
        own = [a.symbol for a in stage.axes[shared:]]
        fresh = renamed(own, stage.buffer)
        unknown = {s: next(iter(p.symbols)) for s, p in fresh.items() if isinstance(p, Poly)}
        index = [substitute(x, fresh) for x in stage.index]
        guard = substitute_guard(stage.guard, fresh)
        ranges = {s: box_of(s) for s in (*kept, *unknown.values())}
        domain = Domain(ranges, (), self.budget).under(guard)
        solved = solve(index, element, unknown.values(), domain)
        at = {s: solved[new] for s, new in unknown.items() if new in solved}
        missing = tuple(s.name for s in own if s not in at)
        conditions: list[Size] = []
        for s, value in at.items():
            low, high = box_of(s)
            conditions += [value - low, high - value]
        there = substitute_guard(stage.guard, at)
        if isinstance(there, Guard):
            conditions += there.ordered
        elif not there:
            conditions.append(-1)
        equal = tuple(substitute(x, at) - e for x, e in zip(stage.index, element, strict=True))
        return ElementSource(at, tuple(conditions), equal, missing)


def _reduced(stage: Stage) -> Stage:
    """A stage that combines, as a reduction over the axes that its index does not contain."""
    assert stage.combine is not None
    stage = _parted(stage)
    placed = stage.at[1] if stage.at is not None else 0
    inside = _symbols(stage.index) | {a.symbol for a in stage.axes[:placed]}
    conditions = stage.guard.ordered if isinstance(stage.guard, Guard) else []
    outer = all_of(stage.guard is not False, *[Guard((p,)) for p in conditions if p.symbols <= inside])
    inner = all_of(*[Guard((p,)) for p in conditions if not p.symbols <= inside])
    neutral = const(identity(stage.combine or "", stage.value.dtype), stage.value.dtype)
    body = where(inner, lambda: stage.value, lambda: neutral)
    value = reduce(stage.combine or "", [a.symbol for a in stage.axes if a.symbol not in inside], body)
    axes = tuple([a for a in stage.axes if a.symbol in inside])
    return Stage(stage.buffer, axes, stage.index, value, outer, stage.at)


def _symbols(index: Sequence[Size]) -> frozenset[Symbol]:
    return frozenset[Symbol]().union(*(x.symbols for x in index if isinstance(x, Poly)))


def _parted(stage: Stage) -> Stage:
    """The stage with axes split where the index uses only their quotients: axes fused from kept and summed ones."""
    for axis in stage.axes[stage.at[1] if stage.at is not None else 0 :]:
        own = of_atom(axis.symbol)
        seen = [a for x in stage.index if isinstance(x, Poly) for a in x.atoms if axis.symbol in a.symbols]
        parts = [a.args[1] for a in seen if isinstance(a, Form) and a.op == "//" and a.args[0] == own]
        if not seen or len(parts) != len(seen) or not all(isinstance(d, int) for d in parts):
            continue
        d = min(parts)
        if axis.extent % d or any(p % d for p in parts):
            continue
        high = Symbol(f"{axis.symbol.name}.h", 0, axis.extent // d - 1)
        low = Symbol(f"{axis.symbol.name}.l", 0, d - 1)
        mapping: dict[Symbol, Size] = {axis.symbol: of_atom(high) * d + of_atom(low)}
        at = stage.axes.index(axis)
        stage = replace(
            stage,
            axes=(*stage.axes[:at], Loop(high), Loop(low), *stage.axes[at + 1 :]),
            index=tuple([substitute(x, mapping) for x in stage.index]),
            value=stage.value.substitute(mapping),
            guard=substitute_guard(stage.guard, mapping),
        )
    return stage


def accesses(root: Expr, domain: Domain, refine: bool = True) -> Iterator[Access]:
    """The loads of an expression, each with the iterations in which it happens.

    Args:
        root: the expression.
        domain: the iterations in which it is computed.
        refine: whether to use that a guard does not hold in the other branch of a choice; this makes one part for
            each condition of the guard.
    """
    loads: dict[Expr, bool] = {}
    seen: set[tuple[Expr, int]] = set()
    kept: list[Domain] = []  # domains by identity
    todo = [(root, domain)]
    while todo:
        e, d = todo.pop()
        if (e, id(d)) in seen or not _has_load(e, loads):
            continue
        seen.add((e, id(d)))
        kept.append(d)
        if e.kind == "load":
            yield Access(e, d)
        todo += [(v, d) for index in e.indices for v in values_of(index)]
        if e.kind == "where":
            todo.append((e.args[1], d.under(e.args[0])))
            guard = e.args[0]
            todo += [(e.args[2], part) for part in (outside(d, guard) if refine or len(guard.terms) == 1 else [d])]
        elif e.kind == "reduce":
            todo.append((e.args[2], d.over(e.args[1])))
        else:
            todo += [(x, d) for x in e.operands]


def outside(d: Domain, guard: Truth) -> list[Domain]:
    """Disjoint parts that together are the points where a guard does not hold."""
    if not isinstance(guard, Guard):
        return [] if guard else [d]
    parts: list[Domain] = []
    for p in guard.ordered:
        parts.append(d.below(p))
        d = d.under(Guard((p,)))
    return [x for x in parts if not x.empty]


def _has_load(root: Expr, known: dict[Expr, bool]) -> bool:
    stack = [root]
    while stack:
        e = stack[-1]
        if e in known:
            stack.pop()
            continue
        inner = [*e.operands, *(v for index in e.indices for v in values_of(index))]
        waiting = [x for x in inner if x not in known]
        if waiting and e.kind != "load":
            stack += waiting
            continue
        known[e] = e.kind == "load" or any(known[x] for x in inner)
        stack.pop()
    return known[root]


def resolved(view: View, stage: Stage, keep: Callable[[str], bool], done: dict[str, Expr]) -> Expr:
    """The value of a stage with loads inlined, down to inputs and to buffers that are kept.

    Whether the elements that it reads are written is checked separately (`order`).

    Args:
        view: the program.
        stage: the stage.
        keep: whether the loads of a buffer stay.
        done: values of stages so far.

    Raises:
        OpaqueError: an element that is read does not determine the iteration that writes it.
    """
    value = done.get(stage.buffer)
    if value is not None:
        return value

    def read(e: Expr) -> Expr | None:
        name = e.args[0]
        writer = view.stages.get(name)
        if writer is None or keep(name):
            return None
        source = view.source(writer, e.args[1], view.shared(writer, stage) or 0)
        if source.missing:
            raise OpaqueError(f"{', '.join(source.missing)} does not follow from an element of {name}")
        view.budget.spend()
        return resolved(view, writer, keep, done).substitute(source.at)

    value = done[stage.buffer] = with_loads(view.plain(stage).value, read)
    return value
