"""Guards around a part of a value: which ones hold there, and which of them keep its reads inside their arrays."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.expr import Expr, subexpressions, values_of
from superopt.ir.index import Form, Size, Symbol, decide, of_atom, substitute
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, last, written
from superopt.kernels.schedule.edit import terms


def conditions(program: LoopProgram, stage: Stage, target: Expr, kept: Expr) -> tuple[list[Size], bool]:
    """Return terms whose being >= 0 keeps the reads of `kept` inside their arrays, and whether they suffice.

    `kept` is made of the part `target`.  No guards around the part are taken where it needs none; else those over the
    iterators of `kept`; else all that hold wherever the part occurs.
    """
    around = enclosing(stage, target)
    own = [p for p in around if isinstance(p, int) or p.symbols <= kept.symbols]
    for chosen in ([], own, around):
        if inside(program, kept, chosen):
            return chosen, True
    return around, False


def enclosing(stage: Stage, target: Expr) -> list[Size]:
    """Return conditions x >= 0 that hold at every occurrence of a part of the stage's value."""
    common: frozenset[Size] | None = None
    seen: set[tuple[Expr, frozenset[Size]]] = set()
    stack: list[tuple[Expr, frozenset[Size]]] = [(stage.value, frozenset(terms(stage.guard)))]
    while stack:
        e, known = stack.pop()
        if e is target:
            common = known if common is None else common & known
            continue
        if (e, known) in seen:
            continue
        seen.add((e, known))
        if e.kind == "where":
            stack += _branches(e, known)
        else:
            stack += [(x, known) for x in e.operands]
        stack += [(v, frozenset(terms(stage.guard))) for v in _read(e)]
    return sorted(common or (), key=str)


def _branches(e: Expr, facts: frozenset[Size]) -> list[tuple[Expr, frozenset[Size]]]:
    """Return the branches of a choice, and the conditions that hold in each."""
    held = terms(e.args[0])
    failed = frozenset([held[0] * -1 - 1]) if len(held) == 1 else frozenset[Size]()
    return [(e.args[1], facts | frozenset(held)), (e.args[2], facts | failed)]


def _read(e: Expr) -> list[Expr]:
    return [v for x in e.indices for v in values_of(x)]


def inside(program: LoopProgram, root: Expr, known: Sequence[Size] = ()) -> bool:
    """Whether all loads read written elements where these are >= 0, by ranges and single conditions alone."""
    buffers = {name: _filled(program, name) for name in {e.args[0] for e in subexpressions(root) if e.kind == "load"}}
    seen: set[tuple[Expr, frozenset[Size]]] = set()
    stack: list[tuple[Expr, frozenset[Size]]] = [(root, frozenset(known))]
    while stack:
        e, facts = stack.pop()
        if (e, facts) in seen:
            continue
        seen.add((e, facts))
        if e.kind == "load":
            its, exists = buffers[e.args[0]]
            at = dict(zip(its, e.args[1], strict=True))
            needs = [y for s, x in at.items() for y in (x, last(s) - x)] + [substitute(y, at) for y in exists]
            if not all(follows(y, facts) for y in needs):
                return False
        if e.kind == "where":
            stack += _branches(e, facts)
        else:
            stack += [(x, facts) for x in e.operands]
        stack += [(v, facts) for v in _read(e)]
    return True


def _filled(program: LoopProgram, name: str) -> tuple[list[Symbol], list[Size]]:
    """Return iterators over a buffer, and the terms that are >= 0 where an element of it has a value."""
    buffer = program.buffer(name)
    if buffer.scope in ("input", "frozen"):
        return element_of(buffer.shape, [])[0], []
    its, _, exists = written(program.stage(name), buffer)
    return its, exists


def follows(x: Size, facts: frozenset[Size]) -> bool:
    """Whether x >= 0 follows from its range or from one of the conditions.

    A condition y >= 0 implies it if x - k*y >= 0 for some k > 0.
    """
    times = {1} | {abs(c) for m, c in (() if isinstance(x, int) else x.terms) if m}
    known = decide(x) is True or any(decide(x - y * k) is True for y in facts for k in times)
    return known or _divided(x, facts)


def _divided(x: Size, facts: frozenset[Size]) -> bool:
    """Whether x = rest + c * (w // n) >= 0 follows from a condition on w.

    For c < 0 a condition y >= 0 gives n * x >= n * rest + c * w >= -c * y - (n - 1).  For c > 0 and a number as rest, w
    // n >= m where w >= n * m.
    """
    for mono, c in () if isinstance(x, int) else x.terms:
        form = mono[0] if len(mono) == 1 else None
        if not isinstance(form, Form) or form.op != "//" or not isinstance(n := form.args[1], int):
            continue
        w, rest = form.args[0], x - of_atom(form) * c
        if c < 0 and any(decide(rest * n + w * c + y * c + (n - 1)) is True for y in facts):
            return True
        if c > 0 and isinstance(rest, int) and any(decide(w + n * (rest // c) - y) is True for y in facts):
            return True
    return False
