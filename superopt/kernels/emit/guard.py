"""Guards as conditions: one for all lanes, or one per lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.expr import values_of
from superopt.ir.index import Guard, Poly
from superopt.kernels.emit import index as emit_index
from superopt.kernels.emit.types import HeldValue
from superopt.kernels.llvm.module import Value, vector

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter


def lane_numbers(lanes: int, bits: int = 32) -> str:
    """0, 1, 2 ... as text."""
    return emit_index.multiples(1, bits, lanes)


def first_lanes(em: Emitter, count: int | str) -> str:
    """The mask of the first so many lanes."""
    lanes = em.lanes
    if isinstance(count, int):
        return "<" + ", ".join(f"i1 {int(j < count)}" for j in range(lanes)) + ">"
    wide = em.f.broadcast(em.f.value(f"trunc i64 {count} to i32"), "i32", lanes)
    return em.f.value(f"icmp slt {vector('i32', lanes)} {lane_numbers(lanes)}, {wide}")


def condition(em: Emitter, guard: Guard) -> HeldValue:
    """The truth of a guard."""
    total: HeldValue | None = None
    for p in guard.ordered:
        for v in values_of(p):
            em.value(v)
        here = _wide_condition(em, p) if emit_index.varies(em, p) else _condition(em, p)
        total = here if total is None else _both(em, total, here)
    assert total is not None
    return total


def _condition(em: Emitter, p: Poly) -> HeldValue:
    value = emit_index.index(em, p)
    key = ("holds", p, em.context(p.symbols, values_of(p)))
    return em.at_level(emit_index.level_of(em, p), key, lambda: HeldValue(_scalar_holds(em, value), False, 0))


def _scalar_holds(em: Emitter, value: Value) -> str:
    if isinstance(value, int):
        return "true" if value >= 0 else "false"
    return em.f.value(f"icmp sgt i64 {value}, -1")


def _wide_condition(em: Emitter, p: Poly) -> HeldValue:
    key = ("holds", p, em.context(p.symbols, values_of(p)))
    bits = emit_index.bits_for(em, [p])
    type_ = vector(f"i{bits}", em.lanes)

    def write() -> HeldValue:
        return HeldValue(em.f.value(f"icmp sgt {type_} {emit_index.along(em, p, bits)}, splat (i{bits} -1)"), True, 0)

    return em.at_level(emit_index.level_of(em, p), key, write)


def _both(em: Emitter, a: HeldValue, b: HeldValue) -> HeldValue:
    wide = a.wide or b.wide
    level = max(a.level, b.level)
    x, y = [em.broadcast_flag(v) if wide else v.text for v in (a, b)]
    type_ = vector("i1", em.lanes if wide else 0)
    key = ("both", x, y)
    return em.at_level(level, key, lambda: HeldValue(em.f.value(f"and {type_} {x}, {y}"), wide, 0))
