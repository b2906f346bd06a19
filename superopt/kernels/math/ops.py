"""Arithmetic, predicates and conversions of the scalar table on vectors, for every dtype, with the table's semantics.

Integers wrap.  Division by 0 gives -1 and the remainder then the dividend.  Shifts by the width or more give 0 or the
sign.  Max and min propagate NaN, floats convert to integers towards zero and saturate.  16-bit floats are float32 in
registers: `from_memory` and `to_memory` are the only places that see 16 bits, `rounded` is their rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from superopt.errors import InputError
from superopt.ir.scalar import HALVES
from superopt.ir.types import FLOATS
from superopt.kernels.llvm.module import Function
from superopt.kernels.math.lanes import Lanes

_FLOAT_ORDER = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_BITWISE = ("and", "or", "xor")
_BOOLEAN = {"add": "or", "mul": "and", "max": "or", "min": "and"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round_even": "roundeven", "round_away": "round"}


def arithmetic(m: Lanes, fn: str, args: tuple[str, ...], which: str = "bool", stored: str = "") -> str:
    """Write a function of the table that is not transcendental.

    Args:
        m: emitter of instructions in the dtype of the computation.
        fn: name of the function.
        args: operands.
        which: dtype of the first operand of `select_n`.
        stored: the 16-bit dtype whose neighbours `nextafter` means; that of `m` when empty.

    Raises:
        InputError: the function is not defined on this dtype.
    """
    if fn in _FLOAT_ORDER:
        return compare(m, fn, *args)
    if fn == "select_n":
        return _select(m, args, which)
    if m.dtype == "bool":
        return _boolean(m, fn, args)
    if fn in _BITWISE and not m.is_float:
        return m.op(fn, *args)
    if fn in ("add", "sub", "mul"):
        return getattr(m, fn)(*args)
    if fn == "neg":
        return m.neg(*args)
    if fn in ("max", "min"):
        return _extremum(m, fn, *args)
    if fn == "sign":
        return _sign(m, *args)
    made = _of_floats(m, fn, args, stored) if m.is_float else _of_integers(m, fn, args)
    if made is None:
        raise InputError(f"{fn} of {m.dtype} is not defined")
    return made


def compare(m: Lanes, fn: str, a: str, b: str) -> str:
    """Write eq, ne, lt, le, gt or ge, as i1."""
    if m.is_float:
        return m.compare(_FLOAT_ORDER[fn], a, b)
    return m.compare(fn if fn in ("eq", "ne") else f"{'s' if m.signed else 'u'}{fn}", a, b)


def _select(m: Lanes, args: tuple[str, ...], which: str) -> str:
    chosen, value = args[0], args[1]
    if which == "bool":
        return m.select(chosen, args[2], value)
    w = m.of(which)
    for j, case in enumerate(args[2:], 1):
        value = m.select(compare(w, "ge", chosen, w.const(j)), case, value)
    return value


def _boolean(m: Lanes, fn: str, args: tuple[str, ...]) -> str:
    name = fn if fn in _BITWISE else _BOOLEAN.get(fn)
    if name:
        return m.op(name, *args)
    if fn == "not":
        return m.op("xor", args[0], m.const(True))
    raise InputError(f"{fn} of bool is not defined")


def _extremum(m: Lanes, fn: str, a: str, b: str) -> str:
    if m.is_float:
        return m.f.fmaximum(a, b, m.type) if fn == "max" else m.f.fminimum(a, b, m.type)
    return m.call(f"{'s' if m.signed else 'u'}{fn}", a, b)


def _sign(m: Lanes, x: str) -> str:
    zero = m.const(0)
    if not m.signed:
        return m.select(m.compare("eq", x, zero), zero, m.const(1))
    y = m.select(compare(m, "lt", x, zero), m.const(-1), m.select(compare(m, "eq", x, zero), zero, x))
    return m.select(compare(m, "gt", x, zero), m.const(1), y)


def _of_floats(m: Lanes, fn: str, args: tuple[str, ...], stored: str) -> str | None:
    if fn == "div":
        return m.quotient(*args)
    if fn == "rem":
        return m.op("frem", *args)
    if fn == "abs":
        return m.absolute(*args)
    if fn in _ROUNDING:
        return m.call(_ROUNDING[fn], *args)
    if fn == "is_finite":
        return m.compare("olt", m.absolute(*args), m.const(math.inf))
    if fn == "nextafter":
        return _neighbour(m, args[0], args[1], stored)
    return None


def _neighbour(m: Lanes, a: str, b: str, stored: str) -> str:
    """Return the float next to a towards b: one more or less in the bits."""
    if stored == "float16":
        h = m.of("float16")
        short = _neighbour(h, m.cast("fptrunc", a, "float16"), m.cast("fptrunc", b, "float16"), "")
        return h.cast("fpext", short, m.dtype)
    i, step = m.ints, 1 << 16 if stored == "bfloat16" else 1
    zero = m.const(0.0)
    away = m.f.value(  # from zero: towards b and a on the same side
        f"xor {m.flags} {m.compare('olt', a, zero)}, {m.compare('olt', a, b)}"
    )
    moved = i.add(m.as_ints(a), i.select(away, i.const(step), i.const(-step)))
    sign = i.op("and", m.as_ints(b), i.const(-1 << (m.bits - 1)))
    first = i.op("or", sign, i.const(step))
    y = m.from_ints(i.select(m.compare("oeq", a, zero), first, moved))
    y = m.select(m.compare("oeq", a, b), b, y)
    return m.select(m.compare("uno", a, b), m.const(math.nan), y)


def _of_integers(m: Lanes, fn: str, args: tuple[str, ...]) -> str | None:
    if fn in ("div", "rem"):
        return _division(m, fn, *args)
    if fn.startswith("shift_"):
        return _shift(m, fn, *args)
    if fn == "abs":
        return m.select(m.compare("slt", args[0], m.const(0)), m.neg(args[0]), args[0]) if m.signed else args[0]
    if fn == "not":
        return m.op("xor", args[0], m.const(-1))
    if fn == "population_count":
        return m.call("ctpop", *args)
    if fn == "clz":
        return m.f.intrinsic("ctlz", m.type, (m.type, args[0]), ("i1", "false"))
    if fn == "is_finite":
        return m.of("bool").const(True)
    return args[0] if fn in _ROUNDING else None


def _division(m: Lanes, fn: str, a: str, b: str) -> str:
    undefined = by_zero = m.compare("eq", b, m.const(0))
    if m.signed:  # the least integer by -1: divided by 1 instead, which is what wrapping gives
        least = m.compare("eq", a, m.const(-1 << (m.bits - 1)))
        undefined = m.either(by_zero, m.both(least, m.compare("eq", b, m.const(-1))))
    safe = m.select(undefined, m.const(1), b)
    value = m.op(f"{'s' if m.signed else 'u'}{fn}", a, safe)
    return m.select(by_zero, m.const(-1) if fn == "div" else a, value)


def _shift(m: Lanes, fn: str, a: str, by: str) -> str:
    inside = m.compare("ult", by, m.const(m.bits))
    if fn == "shift_right_arithmetic":
        return m.op("ashr", a, m.select(inside, by, m.const(m.bits - 1)))
    moved = m.op("shl" if fn == "shift_left" else "lshr", a, m.select(inside, by, m.const(0)))
    return m.select(inside, moved, m.const(0))


# ---- conversions


def convert(f: Function, x: str, source: str, target: str, lanes: int) -> str:
    """Convert a value to another dtype, both in their register types."""
    if source == target:
        return x
    held = Lanes(f, "float32" if source in HALVES else source, lanes)
    if target in HALVES:
        return rounded(f, _to_single(held, x, target), target, lanes)
    if target == "bool":
        return compare(held, "ne", x, held.const(0))
    if held.dtype == target:
        return x
    if held.is_float:
        if target in FLOATS:
            return held.cast("fpext" if target == "float64" else "fptrunc", x, target)
        there = held.of(target)
        if there.bits < 32:  # the rest fits 32 bits: one instruction converts it
            low, high = (
                (-1 << (there.bits - 1), (1 << (there.bits - 1)) - 1) if there.signed else (0, (1 << there.bits) - 1)
            )
            number = held.select(held.compare("ord", x, x), x, held.const(0.0))
            inside = held.at_most(held.at_least(number, low), high)
            return held.of("int32").cast("trunc", held.cast("fptosi", inside, "int32"), target)
        return _saturated(held, x, there)
    if target in FLOATS:
        return held.cast("sitofp" if held.signed else "uitofp", x, target)
    there = held.of(target)
    width = 1 if held.dtype == "bool" else held.bits
    if width == there.bits:
        return x
    if width > there.bits:
        return held.cast("trunc", x, target)
    return held.cast("sext" if held.signed else "zext", x, target)


def _saturated(held: Lanes, x: str, there: Lanes) -> str:
    """Convert a float to a wide integer, clamped at both ends, NaN to 0 (`fptosi.sat` would convert lane by lane)."""
    bits = there.bits - there.signed
    low, high = -(2.0**bits) if there.signed else 0.0, 2.0**bits
    over, under = held.compare("oge", x, held.const(high)), held.compare("olt", x, held.const(low))
    inside = held.both(held.compare("oge", x, held.const(low)), held.compare("olt", x, held.const(high)))
    number = held.select(inside, x, held.const(0.0))
    whole = held.cast("fptosi" if there.signed else "fptoui", number, there.dtype)
    most, least = (1 << bits) - 1, -(1 << bits) if there.signed else 0
    return there.select(over, there.const(most), there.select(under, there.const(least), whole))


def _to_single(held: Lanes, x: str, target: str) -> str:
    if held.dtype == "float64" and target == "float16":
        return _to_odd(held, x)
    return convert(held.f, x, held.dtype, "float32", held.lanes)


def _to_odd(d: Lanes, x: str) -> str:
    """Round float64 to float32 by round-to-odd, so that a second rounding to 16 bits equals a single rounding."""
    m = d.of("float32")
    i = m.ints
    near = d.cast("fptrunc", x, "float32")
    back = m.cast("fpext", near, "float64")
    over = d.compare("ogt", d.absolute(back), d.absolute(x))
    bits = m.as_ints(near)
    cut = i.select(over, i.sub(bits, i.const(1)), bits)
    return m.from_ints(i.select(d.compare("one", back, x), i.op("or", cut, i.const(1)), bits))


def rounded(f: Function, x: str, dtype: str, lanes: int) -> str:
    """Round float32 to a 16-bit dtype, kept as float32."""
    m = Lanes(f, "float32", lanes)
    if dtype == "float16":
        return m.of("float16").cast("fpext", m.cast("fptrunc", x, "float16"), "float32")
    i = m.ints
    return marked(f, "rounded", (x,), lambda: m.from_ints(i.op("and", _bfloat16_bits(m, x), i.const(-1 << 16))))


def marked(f: Function, name: str, args: Sequence[str], write: Callable[[], str]) -> str:
    """Write code between comments that name the function and its operands, by which kernel validation recognizes it."""
    f.comment(f"begin {name} {' '.join(args)}")
    made = write()
    f.comment(f"end {made}")
    return made


def _bfloat16_bits(m: Lanes, x: str) -> str:
    """Return bits whose upper half is the float rounded to nearest even."""
    i = m.ints
    bits = m.as_ints(x)
    odd = i.op("and", i.op("lshr", bits, i.const(16)), i.const(1))
    up = i.add(bits, i.add(odd, i.const(0x7FFF)))
    return i.select(m.compare("uno", x, x), i.op("or", bits, i.const(0x400000)), up)


def from_memory(f: Function, x: str, dtype: str, lanes: int) -> str:
    """Convert a value as loaded (`type_of(dtype, lanes, stored=True)`) to its register type."""
    if dtype == "bool":
        byte = Lanes(f, "uint8", lanes)
        return byte.compare("ne", x, byte.const(0))
    if dtype == "float16":
        return Lanes(f, dtype, lanes).cast("fpext", x, "float32")
    if dtype == "bfloat16":
        short = Lanes(f, "uint16", lanes)
        i = short.of("int32")

        def wide() -> str:
            word = short.cast("zext", Lanes(f, dtype, lanes).cast("bitcast", x, "uint16"), "int32")
            return i.cast("bitcast", i.op("shl", word, i.const(16)), "float32")

        return marked(f, "widened", (x,), wide)
    return x


def to_memory(f: Function, x: str, dtype: str, lanes: int) -> str:
    """Convert a value in a register to its stored type; 16-bit floats are rounded."""
    if dtype == "bool":
        return Lanes(f, "bool", lanes).cast("zext", x, "uint8")
    m = Lanes(f, "float32", lanes)
    if dtype == "float16":
        return m.cast("fptrunc", x, dtype)
    if dtype == "bfloat16":

        def short() -> str:
            upper = m.ints.op("lshr", _bfloat16_bits(m, x), m.ints.const(16))
            return m.of("uint16").cast("bitcast", m.ints.cast("trunc", upper, "uint16"), dtype)

        return marked(f, "narrowed", (x,), short)
    return x
