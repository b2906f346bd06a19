"""Loads and stores: contiguous, broadcast, reversed, strided, transposed in registers, gathered, scattered.

The step of the linear index along the lane decides which of these is used.  A load that its guards protect is masked; a
uniform load has its index clamped into the buffer, since its value is then not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Poly, Size, coefficient
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit import registers
from superopt.kernels.emit.registers import HeldValue, loaded, register, size_of, storable, stored
from superopt.kernels.llvm.types import constant_mask, mangled, vector

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter

_INT32 = 2**31 - 1
_NEAR = 4  # elements apart: loaded whole and picked by shuffles


def load(em: Emitter, e: Expr) -> HeldValue:
    """Load an element of a buffer, in every lane."""
    buffer, (at,) = e.args
    if not emit_index.varies(em, at):
        return HeldValue(_uniform(em, buffer, at, e), False, 0)
    k = emit_index.affine(em, at)
    mask = em.mask(not em.scope.inside(e))
    if k in (1, -1):
        raw = _contiguous(em, buffer, at, e.dtype, k, mask)
    elif k is not None and 2 <= abs(k) <= _NEAR and mask is None and em.scope.lanes >= 4:
        raw = _strided(em, buffer, at, e.dtype, k)
    else:
        raw = gathered(em, buffer, at, e.dtype, mask)
    return HeldValue(loaded(em.f, raw, e.dtype, em.scope.lanes), True, 0)


def place(em: Emitter, e: Expr) -> tuple[object, ...] | None:
    """Return a key that two loads of the same elements share; None for loads under a mask."""
    if em.scope.tail is not None or (em.scope.guards and not em.scope.inside(e)):
        return None
    buffer, (at,) = e.args
    terms, constant = emit_index.parts(em, at)
    keys = tuple([(emit_index.mono_key(em, mono), c) for _, mono, c in terms])
    return "place", buffer, em.scope.lanes, emit_index.lane_step(em, at), constant, keys


def _uniform(em: Emitter, buffer: str, at: Size, e: Expr) -> str:
    type_ = stored(e.dtype)
    if em.scope.guards and not em.scope.inside(e):
        f = em.f
        clamped = f.minimum(f.maximum(emit_index.index(em, at), 0), em.scope.size(buffer) - 1)
        address = f.element(em.pointers[buffer], clamped, type_)
    else:
        address = emit_index.pointer(em, buffer, at, type_)
    return loaded(em.f, em.f.load(type_, address, size_of(e.dtype)), e.dtype, 0)


def _contiguous(em: Emitter, buffer: str, at: Size, dtype: str, k: int, mask: str | None) -> str:
    f, n, type_ = em.f, em.scope.lanes, stored(dtype, em.scope.lanes)
    first = at if k == 1 else at - (n - 1)
    address = emit_index.pointer(em, buffer, first, stored(dtype))
    if mask is None:
        raw = f.load(type_, address, size_of(dtype))
    else:
        raw = f.masked_load(
            type_, address, mask if k == 1 else registers.reverse(f, mask, "i1", n), align=size_of(dtype)
        )
    return raw if k == 1 else registers.reverse(f, raw, stored(dtype), n)


def _strided(em: Emitter, buffer: str, at: Size, dtype: str, k: int) -> str:
    """Load strided elements by whole vectors, the last one ending at the last element, and shuffles that pick."""
    f, n, element, step = em.f, em.scope.lanes, stored(dtype), abs(k)
    first = at if k > 0 else at - step * (n - 1)
    starts = [min(j * n, step * (n - 1) - (n - 1)) for j in range(step)]
    chunks = [
        f.load(stored(dtype, n), emit_index.pointer(em, buffer, first + s, element), size_of(dtype)) for s in starts
    ]
    picks: list[int] = []
    for lane in range(n):
        where = step * lane
        j = next(j for j, s in enumerate(starts) if s <= where < s + n)
        picks.append(j * n + where - starts[j])
    raw = registers.pick(f, chunks, picks, element, n)
    return raw if k > 0 else registers.reverse(f, raw, element, n)


def gathered(em: Emitter, buffer: str, at: Size, dtype: str, mask: str | None) -> str:
    """Gather one element per lane, in its stored type."""
    return em.f.gather(stored(dtype, em.scope.lanes), _addresses(em, buffer, at, dtype), mask, align=size_of(dtype))


def _addresses(em: Emitter, buffer: str, at: Size, dtype: str) -> str:
    f, n, element = em.f, em.scope.lanes, stored(dtype)
    k = emit_index.affine(em, at)
    if k is not None:
        base = emit_index.pointer(em, buffer, at, element)
        return f.value(f"getelementptr {element}, ptr {base}, {vector('i64', n)} {emit_index.multiples(k, 64, n)}")
    bits = 64 if em.scope.size(buffer) > _INT32 else emit_index.bits_for(em, [at])
    places = emit_index.along(em, at, bits)
    return f.value(f"getelementptr {element}, ptr {em.pointers[buffer]}, {vector(f'i{bits}', n)} {places}")


def store(em: Emitter, buffer: str, dtype: str, at: Size, held: HeldValue, mask: str | None) -> None:
    """Write a value at a linear index, in the lanes of the mask."""
    f, n, element = em.f, em.scope.lanes, stored(dtype)
    if em.scope.lane is None or not emit_index.varies(em, at):
        address = emit_index.pointer(em, buffer, at, element)
        text = held.text
        if held.wide:  # one element of a vector whose lanes agree
            text = f.extract(register(dtype, n), text, 0)
        f.store(element, storable(f, text, dtype, 0), address, size_of(dtype))
        em.fresh()
        return
    text = storable(f, em.widened(held, dtype), dtype, n)
    k = emit_index.affine(em, at)
    if k in (1, -1):
        address = emit_index.pointer(em, buffer, at if k == 1 else at - (n - 1), element)
        if k == -1:
            text = registers.reverse(f, text, element, n)
            mask = None if mask is None else registers.reverse(f, mask, "i1", n)
        if mask is None:
            f.store(stored(dtype, n), text, address, size_of(dtype))
        else:
            f.masked_store(stored(dtype, n), text, address, mask, size_of(dtype))
    else:
        _scatter(em, buffer, at, dtype, text, mask)
    em.fresh()


def _scatter(em: Emitter, buffer: str, at: Size, dtype: str, text: str, mask: str | None) -> None:
    f, n = em.f, em.scope.lanes
    type_, addresses, flags = stored(dtype, n), vector("ptr", n), vector("i1", n)
    places = _addresses(em, buffer, at, dtype)
    em.f.each_apart(type_)
    name = f"llvm.masked.scatter.{mangled(type_)}.{mangled(addresses)}"
    f.module.declare(f"declare void @{name}({type_}, {addresses}, {flags})")
    mask = mask or constant_mask(n, n)
    f.effect(f"call void @{name}({type_} {text}, {addresses} align {size_of(dtype)} {places}, {flags} {mask})")


# ---- transposed loads


def together(em: Emitter, e: Expr) -> bool:
    """Load a value for all points at once through a register transpose, where that is possible.

    The points must be as many consecutive values of one iterator as there are lanes, along which the load is
    contiguous while it is not along the lane.
    """
    buffer, (at,) = e.args
    if (
        em.scope.lane is None
        or not em.scope.spread
        or not isinstance(at, Poly)
        or at.symbols.isdisjoint(em.scope.spread)
    ):
        return False
    k = emit_index.affine(em, at)
    if k is None or k in (0, 1, -1) or (em.scope.guards and not em.scope.inside(e)) or isinstance(em.scope.tail, str):
        return False
    along = _contiguous_points(em, at)
    if along is None or any(values_of(at)):
        return False
    points = along
    n, f = em.scope.lanes, em.f
    level = max(em.depth(e.symbols), emit_index.level_of(em, at))
    rows: list[str] = []
    count = em.scope.tail if isinstance(em.scope.tail, int) else n
    em = em.at(points[0])

    def write_rows() -> HeldValue:
        for j in range(count):
            address = emit_index.pointer(em, buffer, at + k * j, stored(e.dtype))
            rows.append(f.load(stored(e.dtype, n), address, size_of(e.dtype)))
        columns = registers.square(f, [*rows, *[rows[0]] * (n - count)], stored(e.dtype), n)
        held = [HeldValue(loaded(f, c, e.dtype, n), True, level) for c in columns]
        for p, h in zip(points, held, strict=True):
            em.levels[level].memo[em.scope.key(e, p)] = h
        return held[0]

    em.at_level(level, ("rows", em.scope.key(e)), write_rows)
    return True


def _contiguous_points(em: Emitter, at: Poly) -> list[int] | None:
    """Return as many points as there are lanes, at consecutive values of a unit-stride iterator; else None."""
    for it, offsets in em.scope.spread.items():
        if it == em.scope.lane or coefficient(at, it) != 1:
            continue
        others = {s: o[em.scope.point] for s, o in em.scope.spread.items() if s != it and s in at.symbols}
        group: dict[int, int] = {}
        for p in range(em.scope.points):
            if all(em.scope.spread[s][p] == o for s, o in others.items()):
                group.setdefault(offsets[p], p)
        start = (offsets[em.scope.point] // em.scope.lanes) * em.scope.lanes
        wanted = [group.get(start + j) for j in range(em.scope.lanes)]
        points = [p for p in wanted if p is not None]
        if len(points) == em.scope.lanes:
            return points
    return None
