"""Where a part of a value is computed: the guards around it, and which of them keep its reads inside their arrays."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Size, decide
from superopt.kernels.schedule.edit import terms
from superopt.kernels.stage import LoopProgram, Stage


def conditions(program: LoopProgram, stage: Stage, target: Expr, kept: Expr) -> tuple[list[Size], bool]:
    """What must be >= 0 for `kept` to read inside its arrays, and whether that is enough.

    None of the guards around the part `target`, of which `kept` is made, are taken where it needs none; else those
    over the iterators of `kept`; else all that hold wherever the part occurs.
    """
    around = enclosing(stage, target)
    own = [p for p in around if isinstance(p, int) or p.symbols <= kept.symbols]
    for chosen in ([], own, around):
        if inside(program, kept, chosen):
            return chosen, True
    return around, False


def enclosing(stage: Stage, target: Expr) -> list[Size]:
    """Conditions x >= 0 that hold at every occurrence of a part of the stage's value."""
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
            stack += [(e.args[1], known | frozenset(terms(e.args[0]))), (e.args[2], known)]
        else:
            stack += [(x, known) for x in e.operands]
        stack += [(v, frozenset(terms(stage.guard))) for v in _read(e)]
    return sorted(common or (), key=str)


def _read(e: Expr) -> list[Expr]:
    return [v for x in e.indices for v in values_of(x)]


def inside(program: LoopProgram, root: Expr, known: Sequence[Size] = ()) -> bool:
    """Do all loads stay inside their buffers where these are >= 0, as far as ranges and single conditions tell?"""
    shapes = {b.name: b.shape for b in program.buffers}
    seen: set[tuple[Expr, frozenset[Size]]] = set()
    stack: list[tuple[Expr, frozenset[Size]]] = [(root, frozenset(known))]
    while stack:
        e, facts = stack.pop()
        if (e, facts) in seen:
            continue
        seen.add((e, facts))
        if e.kind == "load":
            for x, n in zip(e.args[1], shapes[e.args[0]], strict=True):
                if not (follows(x, facts) and follows(n - 1 - x, facts)):
                    return False
        if e.kind == "where":
            stack += [(e.args[1], facts | frozenset(terms(e.args[0]))), (e.args[2], facts)]
        else:
            stack += [(x, facts) for x in e.operands]
        stack += [(v, facts) for v in _read(e)]
    return True


def follows(x: Size, facts: frozenset[Size]) -> bool:
    """Is x >= 0, by its range or by one of the conditions y >= 0 (x - y >= 0)?"""
    return decide(x) is True or any(decide(x - y) is True for y in facts)
