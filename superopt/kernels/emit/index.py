"""Index arithmetic: i64 scalars, vectors of indices along the lane, and the conditions of guards.

A linear index is accumulated from outer to inner loop levels, each part at the level of its iterators.  Along the lane
an index is affine (base plus a constant multiple of the lane number) wherever that can be seen.  Any other index (an
awkward reshape, an index read from memory) is computed in vectors of 32 bits, or 64 where the ranges do not fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Atom, Form, Guard, Mono, Poly, Size, Symbol, bounds, coefficient, symbols_of
from superopt.ir.scalar import HALVES
from superopt.kernels.emit.registers import HeldValue, held_as, is_float, is_signed, register, width_of
from superopt.kernels.llvm.module import Value
from superopt.kernels.llvm.types import literal, vector
from superopt.kernels.loops.simplify import forms_in
from superopt.kernels.math import ops as vecmath_ops

if TYPE_CHECKING:
    from superopt.kernels.emit.values import Emitter

_INT32 = 2**31 - 1


# ---- scalars


def parts(em: Emitter, x: Size) -> tuple[list[tuple[int, Mono, int]], int]:
    """Return the terms of an index that need code, by level, and the constant rest (offsets of points included)."""
    if isinstance(x, int):
        return [], x
    constant = 0
    terms: list[tuple[int, Mono, int]] = []
    for mono, c in x.terms:
        if not mono:
            constant += c
            continue
        if len(mono) == 1 and isinstance(it := mono[0], Symbol):
            bound = em.bindings[it]
            constant += c * em.scope.offset(it)
            if isinstance(bound.base, int):
                constant += c * bound.base
                continue
            terms.append((bound.level, mono, c))
            continue
        terms.append((max(atom_level(em, a) for a in mono), mono, c))
    terms.sort(key=lambda part: part[0])
    return terms, constant


def atom_level(em: Emitter, a: Atom) -> int:
    """Return the loop level at which an atom is known (the scalars that it reads have been computed)."""
    if isinstance(a, Symbol):
        return em.bindings[a].level
    level = em.depth(a.symbols)
    return max([level, *[em.known(v).level for v in scalars(a)]])


def scalars(a: Atom) -> list[Expr]:
    """Return the scalars that an atom reads."""
    if isinstance(a, Symbol):
        return []
    return [a.args[0]] if a.op == "value" else [v for x in a.args for v in values_of(x)]


def mono_key(em: Emitter, mono: Mono) -> object:
    """Return a memo key of a product of atoms; forms differ from point to point, a lone iterator does not.

    An iterator's offset at a point is part of the constant.
    """
    if len(mono) == 1 and isinstance(mono[0], Symbol):
        return mono
    return mono, em.scope.context(frozenset().union(*[a.symbols for a in mono]), [v for a in mono for v in scalars(a)])


def _term(em: Emitter, mono: Mono, c: int) -> Value:
    value: Value = c
    for a in mono:
        base = em.bindings[a].base if isinstance(a, Symbol) and len(mono) == 1 else atom(em, a)
        value = em.f.mul(base, value)
    return value


def index(em: Emitter, x: Size) -> Value:
    """Write an index and return its i64 value."""
    terms, constant = parts(em, x)
    total: Value = 0
    for level, here, done in _by_level(em, terms):
        total = _sum(em, level, ("index", done), total, here)
    return em.f.add(total, constant) if constant == 0 or isinstance(total, int) else _plus(em, total, constant, terms)


def _by_level(
    em: Emitter, found: list[tuple[int, Mono, int]]
) -> Iterator[tuple[int, list[tuple[Mono, int]], tuple[object, ...]]]:
    """Yield each level from the outermost, its terms with their atoms written, and the keys of all terms so far."""
    done: tuple[object, ...] = ()
    for level, group in itertools.groupby(found, key=lambda part: part[0]):
        here = [(mono, c) for _, mono, c in group]
        for mono, _ in here:
            prepare(em, mono)
        done = (*done, *[(mono_key(em, mono), c) for mono, c in here])
        yield level, here, done


def _plus(em: Emitter, total: Value, constant: int, found: list[tuple[int, Mono, int]]) -> Value:
    level = found[-1][0]
    return em.at_level(
        level, ("plus", total, constant), lambda: HeldValue(str(em.f.add(total, constant)), False, 0)
    ).text


def _sum(em: Emitter, level: int, key: object, before: Value, here: list[tuple[Mono, int]]) -> Value:
    def write() -> HeldValue:
        total = before
        for mono, c in here:
            total = em.f.add(total, _term(em, mono, c))
        return HeldValue(str(total), False, 0)

    return _number(em.at_level(level, key, write).text)


def _number(text: str) -> Value:
    return text if text.startswith("%") else int(text)


def prepare(em: Emitter, mono: Mono) -> None:
    """Write the atoms of a product, each at its level."""
    for a in mono:
        if isinstance(a, Form):
            atom(em, a)


def pointer(em: Emitter, buffer: str, x: Size, type_: str) -> str:
    """Write the address of an element at a linear index."""
    terms, constant = parts(em, x)
    base = em.pointers[buffer]
    for level, here, done in _by_level(em, terms):
        before = base

        def write(before: str = before, here: list[tuple[Mono, int]] = here) -> HeldValue:
            total: Value = 0
            for mono, c in here:
                total = em.f.add(total, _term(em, mono, c))
            return HeldValue(em.f.element(before, total, type_), False, 0)

        base = em.at_level(level, ("pointer", buffer, type_, done), write).text
    return em.f.element(base, constant, type_)


def atom(em: Emitter, a: Atom) -> Value:
    """Write an atom and return its i64 value."""
    if isinstance(a, Symbol):
        return em.f.add(em.bindings[a].base, em.scope.offset(a))
    level = atom_level(em, a)
    key = ("atom", a, em.scope.context(a.symbols, scalars(a)))
    known = em.levels[level].memo.get(key)
    if known is not None:
        return _number(known.text)
    if a.op == "value":
        return _number(em.at_level(level, key, lambda: HeldValue(_read(em, a.args[0]), False, 0)).text)
    inner = [index(em, y) for y in a.args]
    return _number(em.at_level(level, key, lambda: HeldValue(str(_form(em, a, inner)), False, 0)).text)


def _read(em: Emitter, e: Expr) -> str:
    held = em.known(e)
    assert not held.wide, "an index read along the lane is a vector"
    type_ = register(e.dtype)
    if type_ == "i64":
        return held.text
    if not held.text.startswith("%"):
        return held.text
    kind = "sext" if is_signed(e.dtype) else "zext"
    return em.f.value(f"{kind} {type_} {held.text} to i64")


def _form(em: Emitter, a: Form, inner: list[Value]) -> Value:
    f = em.f
    if a.op in ("//", "%"):  # floor semantics: shift into the positives by a multiple of the divisor
        if not isinstance(a.args[1], int):
            raise em.refuse(f"division by {a.args[1]}, which is not constant")
        low, by = bounds(a.args[0], em.scope.ranges)[0], a.args[1]
        if low >= 0:
            return f.rem(inner[0], by) if a.op == "%" else f.div(inner[0], by)
        if math.isinf(low):
            return _floor_division(em, a.op, inner[0], by)
        up = -(int(low) // by)
        x = f.add(inner[0], up * by)
        return f.rem(x, by) if a.op == "%" else f.sub(f.div(x, by), up)
    if a.op == "min":
        return f.minimum(inner[0], inner[1])
    if a.op == "max":
        return f.maximum(inner[0], inner[1])
    return f.minimum(f.maximum(inner[0], inner[1]), inner[2])


def _floor_division(em: Emitter, op: str, x: Value, by: int) -> Value:
    f = em.f
    rest = f.value(f"srem i64 {x}, {by}")
    below = f.value(f"icmp slt i64 {rest}, 0")
    rest = f.value(f"select i1 {below}, i64 {f.add(rest, by)}, i64 {rest}")
    return rest if op == "%" else f.value(f"sdiv i64 {f.sub(x, rest)}, {by}")


# ---- vectors along the lane


def varies(em: Emitter, x: Size) -> bool:
    """Whether the index differs between lanes."""
    return em.scope.lane is not None and isinstance(x, Poly) and em.scope.lane in x.symbols


def affine(em: Emitter, x: Size) -> int | None:
    """Return the step of an index from lane to lane; None when it is not constant."""
    return coefficient(x, em.scope.lane) if em.scope.lane is not None else 0


def lane_step(em: Emitter, x: Size) -> int:
    """Return the coefficient of the lane itself in an index.

    Where the lane begins at a constant, `parts` has that term in the constant; the coefficient then tells how lanes
    differ.
    """
    return next((c for m, c in x.terms if m == (em.scope.lane,)), 0) if isinstance(x, Poly) else 0


def bits_for(em: Emitter, xs: list[Size]) -> int:
    """Return 32 where every part of these indices fits in 32 bits, else 64."""
    for x in xs:
        for part in [x, *[y for form in forms_in(x) for y in form.args if isinstance(y, Poly | int)]]:
            low, high = bounds(part, em.scope.ranges)
            unread = not _reads(part)
            if unread and (low < -_INT32 or high > _INT32):
                return 64
        for form in forms_in(x):
            if form.op == "value":
                dtype = form.args[0].dtype
                if width_of(dtype) == 8 or dtype == "uint32":
                    return 64
    return 32


def _reads(x: Size) -> bool:
    return any(form.op == "value" for form in forms_in(x))


def along(em: Emitter, x: Size, bits: int) -> str:
    """Write the index in all lanes, as a vector of integers of so many bits."""
    type_ = vector(f"i{bits}", em.scope.lanes)
    symbols = symbols_of(x)
    key = ("along", x, em.scope.context(symbols, values_of(x)), bits, em.scope.lanes)

    def write() -> HeldValue:
        k = affine(em, x)
        if k is None:
            return HeldValue(_irregular(em, x, bits), True, 0)
        base = _scalar(em, x, bits)
        return HeldValue(
            base if k == 0 else em.f.value(f"add {type_} {base}, {multiples(k, bits, em.scope.lanes)}"), True, 0
        )

    return em.at_level(level_of(em, x), key, write).text


def level_of(em: Emitter, x: Size) -> int:
    """Return the loop level at which an index is known."""
    return max([atom_level(em, a) for a in x.atoms], default=0) if isinstance(x, Poly) else 0


def _scalar(em: Emitter, x: Size, bits: int) -> str:
    """Broadcast the index of the first lane to all lanes."""
    value = index(em, x)
    if isinstance(value, int):
        return f"splat (i{bits} {value})"
    if bits < 64:
        value = em.f.value(f"trunc i64 {value} to i{bits}")
    return em.f.broadcast(value, f"i{bits}", em.scope.lanes)


def multiples(k: int, bits: int, lanes: int) -> str:
    """Return the vector constant 0, k, 2k ... as text."""
    return "<" + ", ".join(f"i{bits} {k * j}" for j in range(lanes)) + ">"


def _irregular(em: Emitter, x: Size, bits: int) -> str:
    assert isinstance(x, Poly)
    type_ = vector(f"i{bits}", em.scope.lanes)
    regular: Size = 0
    total: str | None = None
    f = em.f
    for mono, c in x.terms:
        term = Poly(((mono, c),)) if mono else c
        if coefficient(term, em.scope.lane) is not None if em.scope.lane is not None else True:
            regular = regular + term
            continue
        product: str | None = None
        for a in mono:
            factor = _atom_along(em, a, bits)
            product = factor if product is None else f.value(f"mul {type_} {product}, {factor}")
        assert product is not None
        if c != 1:
            product = f.value(f"mul {type_} {product}, splat (i{bits} {c})")
        total = product if total is None else f.value(f"add {type_} {total}, {product}")
    assert total is not None
    if isinstance(regular, int) and regular == 0:
        return total
    return f.value(f"add {type_} {along(em, regular, bits)}, {total}")


def _atom_along(em: Emitter, a: Atom, bits: int) -> str:
    f, type_ = em.f, vector(f"i{bits}", em.scope.lanes)
    if isinstance(a, Symbol):
        return along(em, Poly((((a,), 1),)), bits)
    if a.op == "value":
        return _read_along(em, a.args[0], bits)
    x = along(em, a.args[0], bits)
    if a.op in ("//", "%"):
        if not isinstance(a.args[1], int):
            raise em.refuse(f"division by {a.args[1]}, which is not constant")
        by, low = a.args[1], bounds(a.args[0], em.scope.ranges)[0]
        if math.isinf(low):
            raise em.refuse(f"division of {a.args[0]}, whose range is not known")
        up = -(int(low) // by) if low < 0 else 0
        if up:
            x = f.value(f"add {type_} {x}, splat (i{bits} {up * by})")
        made = f.value(f"{'urem' if a.op == '%' else 'udiv'} {type_} {x}, splat (i{bits} {by})")
        return f.value(f"sub {type_} {made}, splat (i{bits} {up})") if up and a.op == "//" else made
    steps = {"min": [("smin", 1)], "max": [("smax", 1)], "clip": [("smax", 1), ("smin", 2)]}[a.op]
    for name, j in steps:
        x = f.intrinsic(name, type_, (type_, x), (type_, along(em, a.args[j], bits)))
    return x


def _read_along(em: Emitter, e: Expr, bits: int) -> str:
    text, width = em.vector(e), 8 * width_of(e.dtype)
    if width == bits:
        return text
    source = register(e.dtype, em.scope.lanes)
    step = "trunc" if width > bits else "sext" if is_signed(e.dtype) else "zext"
    return em.f.value(f"{step} {source} {text} to {vector(f'i{bits}', em.scope.lanes)}")


# ---- indices as scalars


def as_scalar(em: Emitter, x: Size, dtype: str) -> HeldValue:
    """Convert an index to a value of a dtype."""
    to = held_as(dtype)
    if not varies(em, x):
        value = str(index(em, x))
        return HeldValue(_number_as(em, value, 64, dtype, 0), False, 0)
    bits = bits_for(em, [x])
    if to in ("int64", "uint64"):
        bits = 64
    return HeldValue(_number_as(em, along(em, x, bits), bits, dtype, em.scope.lanes), True, 0)


def _number_as(em: Emitter, text: str, bits: int, dtype: str, lanes: int) -> str:
    f, source, to = em.f, vector(f"i{bits}", lanes), register(dtype, lanes)
    if not lanes and not text.startswith("%"):
        if dtype in HALVES:
            return literal(float(int(text)), "float32")
        return literal(int(text), dtype)
    if is_float(dtype):
        made = f.value(f"sitofp {source} {text} to {to}")
        return vecmath_ops.rounded(f, made, dtype, lanes) if dtype in HALVES else made
    width = 8 * width_of(dtype)
    if width == bits:
        return text
    return f.value(f"{'trunc' if width < bits else 'sext'} {source} {text} to {to}")


# ---- guards as conditions: one for all lanes, or one per lane


def first_lanes(em: Emitter, count: int | str) -> str:
    """Write the mask of the first so many lanes."""
    lanes = em.scope.lanes
    if isinstance(count, int):
        return "<" + ", ".join(f"i1 {int(j < count)}" for j in range(lanes)) + ">"
    wide = em.f.broadcast(em.f.value(f"trunc i64 {count} to i32"), "i32", lanes)
    return em.f.value(f"icmp slt {vector('i32', lanes)} {multiples(1, 32, lanes)}, {wide}")


def condition(em: Emitter, guard: Guard) -> HeldValue:
    """Write the truth value of a guard."""
    total: HeldValue | None = None
    for p in guard.ordered:
        for v in values_of(p):
            em.value(v)
        here = _wide_condition(em, p) if varies(em, p) else _condition(em, p)
        total = here if total is None else _both(em, total, here)
    assert total is not None
    return total


def _condition(em: Emitter, p: Poly) -> HeldValue:
    value = index(em, p)
    key = ("holds", p, em.scope.context(p.symbols, values_of(p)))
    return em.at_level(level_of(em, p), key, lambda: HeldValue(_scalar_holds(em, value), False, 0))


def _scalar_holds(em: Emitter, value: Value) -> str:
    if isinstance(value, int):
        return "true" if value >= 0 else "false"
    return em.f.value(f"icmp sgt i64 {value}, -1")


def _wide_condition(em: Emitter, p: Poly) -> HeldValue:
    key = ("holds", p, em.scope.context(p.symbols, values_of(p)))
    bits = bits_for(em, [p])
    type_ = vector(f"i{bits}", em.scope.lanes)

    def write() -> HeldValue:
        return HeldValue(em.f.value(f"icmp sgt {type_} {along(em, p, bits)}, splat (i{bits} -1)"), True, 0)

    return em.at_level(level_of(em, p), key, write)


def _both(em: Emitter, a: HeldValue, b: HeldValue) -> HeldValue:
    wide = a.wide or b.wide
    level = max(a.level, b.level)
    x, y = [em.broadcast_flag(v) if wide else v.text for v in (a, b)]
    type_ = vector("i1", em.scope.lanes if wide else 0)
    key = ("both", x, y)
    return em.at_level(level, key, lambda: HeldValue(em.f.value(f"and {type_} {x}, {y}"), wide, 0))
