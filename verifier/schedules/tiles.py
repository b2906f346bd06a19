"""Tensorized stages: the declared intrinsic computes the sum that a register tile replaces, and its windows are valid.

The semantics of an intrinsic is a loop nest on windows `a[g]` and `b[l, g]`.  With the operands of the stage put in
their place, and summed over the other steps of the depth, it must be the sum of the stage.  A tile broadcasts one A to
all lanes, so A may not depend on the lane.  It reads lanes and groups as one piece of memory, so they must be
contiguous.  It reads whole vectors, so where loads are not masked, lanes beyond the guard must be inside the buffer: in
the padding of a panel, never beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.expr import Expr, const, reduce, where, with_loads
from superopt.ir.index import Guard, Poly, Size, Symbol, Truth, bounds, of_atom, row_major, substitute
from superopt.kernels.loops.contract import outermost
from superopt.kernels.loops.stage import Stage
from superopt.kernels.schedule.intrinsics import INTRINSICS, Intrinsic
from verifier.schedules.domain import Domain, DomainPoint, shown
from verifier.schedules.equal import Equality
from verifier.schedules.folds import is_zero
from verifier.schedules.intervals import box_of
from verifier.schedules.questions import Findings
from verifier.schedules.stages import View
from verifier.schedules.value import difference
from verifier.schedules.verdict import BOUNDS, VALUE, Witness, point
from verifier.verdict import PROVED, REFUTED, UNKNOWN


@dataclass(frozen=True, slots=True)
class _TiledSum:
    """The sum of a stage, its operands as they are stored, and the axes of the tile."""

    stage: Stage
    kind: Intrinsic
    total: Expr
    a: Expr
    b: Expr
    rows: tuple[Symbol, ...]
    lane: Symbol
    depth: tuple[Symbol, ...]
    ends: Truth = True


def tile(view: View, stage: Stage, out: Findings) -> None:
    """Check the obligations of a tensorized stage; other stages have none."""
    if stage.tile is None:
        return
    tiled = _parts(stage)
    if isinstance(tiled, str):
        what = f"{stage.tile.intrinsic} fits the stage"
        out.add(VALUE, stage.buffer, what, REFUTED, "structure", Witness((), (), tiled))
        return
    domain = view.domain(stage)
    inner = domain.over(tiled.depth)
    _semantics(tiled, domain, out)
    _windows(view, tiled, inner, out)
    _lanes(view, tiled, out)


def _parts(stage: Stage) -> _TiledSum | str:
    """The parts of a tensorized stage, or a message that says what is wrong with it."""
    assert stage.tile is not None
    kind = INTRINSICS.get(stage.tile.intrinsic)
    if kind is None:
        return f"there is no intrinsic {stage.tile.intrinsic}"
    names = {a.symbol.name: a for a in stage.axes}
    wrong = [n for n, size in stage.tile.rows if n not in names or names[n].extent != size]
    if wrong or stage.tile.lanes not in names:
        return f"the tile names axes that the stage does not have: {wrong or stage.tile.lanes}"
    if names[stage.tile.lanes].extent % stage.tile.vectors or stage.axes[-1].symbol.name != stage.tile.lanes:
        return f"{stage.tile.vectors} vectors are not the {names[stage.tile.lanes].extent} lanes of the innermost axis"
    sums = list(outermost(stage.value))
    if len(sums) != 1 or sums[0].args[0] != "sum":
        return f"the value has {len(sums)} reductions outside of others, and a tile is one sum"
    total = sums[0]
    depth, body = total.args[1], total.args[2]
    if stage.tile.depth != tuple(s.name for s in depth):
        return f"the tile runs over {','.join(stage.tile.depth)}, the sum over {','.join(s.name for s in depth)}"
    ends: Truth = True
    if body.kind == "where" and is_zero(body.args[2]):  # the sum ends before its last step
        ends, body = body.args[0], body.args[1]
    if body.kind != "op" or body.args[0] != "mul":
        return "what is summed is no product"
    lane = names[stage.tile.lanes].symbol
    a, b = body.operands
    if lane in a.symbols:
        a, b = b, a
    stored = [kind.operand(a, "uint8" if kind.offset else kind.a), kind.operand(b, kind.b)]
    if stored[0] is None or stored[1] is None:
        return f"the factors {a} and {b} are not those of {kind.name}"
    if stored[1].kind != "load" or (stored[0].kind != "load" and not kind.offset):
        return f"{kind.name} reads its operands from memory"
    rows = tuple(names[n].symbol for n, _ in stage.tile.rows)
    inner = {lane, *rows, *depth[1:]}
    if isinstance(ends, Guard) and (kind.group > 1 or not inner.isdisjoint(ends.symbols)):
        return f"the sum ends where {ends} does, which differs within the tile"
    return _TiledSum(stage, kind, total, stored[0], b=stored[1], rows=rows, lane=lane, depth=depth, ends=ends)


def _semantics(t: _TiledSum, domain: Domain, out: Findings) -> None:
    """Check that the declared loop nest, with the operands in place of its windows, is the sum of the stage."""
    what = f"the sum is that of {t.kind.name}"
    group = t.kind.group
    if group > 1 and box_of(t.depth[-1])[1] + 1 != group:
        says = f"an instruction takes {group} steps, the innermost iterator has {box_of(t.depth[-1])[1] + 1}"
        out.add(VALUE, t.stage.buffer, what, REFUTED, "structure", Witness((), (), says))
        return
    declared = t.kind.semantics(box_of(t.lane)[1] + 1)
    added = declared.value.operands[1]
    lane = declared.axes[0].symbol
    last = t.depth[-1]

    def read(e: Expr) -> Expr:
        step: Mapping[Symbol, Size] = {last: e.args[1][-1]} if group > 1 else {}
        if e.args[0] == "a":
            return t.a.substitute(step)
        return t.b.substitute({**step, t.lane: e.args[1][0]})

    step = with_loads(added, read).substitute({lane: of_atom(t.lane)})
    if isinstance(t.ends, Guard):
        product = step
        step = where(t.ends, lambda: product, lambda: const(0, product.dtype))
    expected = reduce("sum", t.depth[:-1] if group > 1 else t.depth, step)
    if Equality().same(t.total, expected, domain):
        out.add(VALUE, t.stage.buffer, what, PROVED, "structure")
        return
    gap = difference(expected, t.total, domain)
    if gap is None:
        out.add(VALUE, t.stage.buffer, what, UNKNOWN, "")
        return
    at, a, b = gap
    out.add(
        VALUE,
        t.stage.buffer,
        what,
        REFUTED,
        "point",
        Witness(point(at), (), f"the intrinsic gives {a:g}, the sum {b:g}"),
    )


def _flat(view: View, e: Expr) -> Size:
    return row_major(e.args[1], view.program.buffer(e.args[0]).shape)


def _windows(view: View, t: _TiledSum, domain: Domain, out: Findings) -> None:
    """Check that lanes and groups of B are contiguous in memory, and that A is the same for all lanes."""
    whole = Domain(domain.ranges, (), view.budget)  # also where the guard does not hold: a tile is read as a whole
    b, last, group = _flat(view, t.b), t.depth[-1], t.kind.group
    _apart(t, out, whole, b, t.lane, group, f"lanes of {t.b.args[0]} are next to each other")
    a = next((e for e in _loads(t.a)), None)
    if a is not None and t.lane in t.a.symbols:
        _apart(t, out, whole, _flat(view, a), t.lane, 0, f"{a.args[0]} is one number for all lanes")
    if group > 1:
        _apart(t, out, whole, b, last, 1, f"{group} steps of {t.b.args[0]} are next to each other")
        if a is not None:
            _apart(t, out, whole, _flat(view, a), last, 1, f"{group} steps of {a.args[0]} are next to each other")


def _loads(e: Expr) -> Iterator[Expr]:
    if e.kind == "load":
        yield e
    for x in e.operands:
        yield from _loads(x)


def _apart(t: _TiledSum, out: Findings, domain: Domain, place: Size, s: Symbol, by: int, what: str) -> None:
    """Check that the address grows by `by` for each step of an iterator."""
    low, high = box_of(s)
    if low == high:
        return
    step = substitute(place, {s: of_atom(s) + 1}) - place
    inner = Domain({**domain.ranges, s: (low, high - 1)}, (), domain.budget)

    def says(at: DomainPoint) -> str:
        here, there, wanted = shown([place, substitute(place, {s: of_atom(s) + 1}), place + by], at)
        return f"at {s} the address is {here}, at {s}+1 it is {there}, and should be {wanted}"

    out.ask(VALUE, t.stage.buffer, what, inner, [step - by, by - step], says)


def _lanes(view: View, t: _TiledSum, out: Findings) -> None:
    """Check that whole vectors of B are inside its buffer, unless the loads are masked."""
    buffer = view.program.buffer(t.b.args[0])
    index = t.b.args[1]
    along = [(i, n) for i, n in zip(index, buffer.shape, strict=True) if isinstance(i, Poly) and t.lane in i.symbols]
    if t.kind.group == 1 and any(bounds(i)[1] >= n for i, n in along):
        return  # masked loads read only the lanes that the guard admits
    ranges = view.domain(t.stage).ranges
    first = [substitute(p, {t.lane: 0}) for p in _conditions(t.stage)]  # a tile is visited when its first lane exists
    kept = [p for p in first if isinstance(p, Poly)]
    domain = Domain(ranges, kept, view.budget).over(t.depth)
    goals = [g for i, n in zip(index, buffer.shape, strict=True) for g in (i, n - 1 - i)]

    def says(at: DomainPoint) -> str:
        element = shown(index, at)
        return f"a vector load reads {buffer.name}{element}, outside of {list(buffer.shape)}"

    what = f"vectors of {buffer.name}{list(buffer.shape)} lie in it as a whole"
    out.ask(BOUNDS, t.stage.buffer, what, domain, goals, says)


def _conditions(stage: Stage) -> Sequence[Poly]:
    return stage.guard.ordered if isinstance(stage.guard, Guard) else []
