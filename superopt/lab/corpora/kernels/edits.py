"""Edits of the generator that make wrong kernels: one function of it is replaced, and its kernels are validated.

The mutants of `superopt.lab.corpora.kernels.mutants` change the text of a kernel.  These edits change the generator, as
a slip in its code would.  Most of them are equal as rational functions and wrong as floats (a constant that is added
and subtracted, rounding in between, overflow, cancellation), others drop or exchange something.

An edit is *wrong* if its kernel is off by more than a thousandth of a value (`WRONG`) on some floats where the
generator's own result is a number.  It is *missed* if it is wrong and proved all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.backends import native
from superopt.errors import SuperoptError
from superopt.kernels.emit import generate, index, memory, registers
from superopt.kernels.emit.registers import HeldValue
from superopt.kernels.llvm.module import Function
from superopt.kernels.llvm.types import element_of, lanes_of
from superopt.kernels.math import ops, table
from superopt.kernels.math.lanes import Lanes
from superopt.lab.corpora.kernels import mutants
from verifier.floats.check import DRAWS, drawn
from verifier.floats.machine import MachineCode, Unread
from verifier.kernels.check import validate
from verifier.kernels.scalars import known

Original = Callable[..., Any]
Edited = Callable[[Original], Original]
WRONG = {"float16": 4e-3, "bfloat16": 3e-2}  # relative to a value; a thousandth for other types
_FLOATS = {"float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit.

    Attributes:
        name: the change.
        programs: names in `mutants.PROGRAMS` of those whose kernels it affects.
        owner, attribute: the function that is replaced.
        made: maps the function to its replacement.
    """

    name: str
    programs: tuple[str, ...]
    owner: Any
    attribute: str
    made: Edited


def _lanes(f: Function, type: str) -> Lanes:
    return Lanes(f, _FLOATS[element_of(type)], lanes_of(type))


def _moved(m: Lanes, x: str, by: float) -> str:
    """x + by - by."""
    return m.op("fsub", m.op("fadd", x, m.const(by)), m.const(by))


def _without_small(m: Lanes, x: str) -> str:
    """x rounded to a multiple of 8, without smaller digits."""
    return _moved(m, x, 1e8)


def _coarse(m: Lanes, x: str) -> str:
    """x without its digits below a thousandth."""
    return _moved(m, x, 16384.0)


def _scaled(m: Lanes, x: str, by: float) -> str:
    """x * by / by."""
    return m.op("fdiv", m.op("fmul", x, m.const(by)), m.const(by))


def _shrunk(m: Lanes, x: str, by: float) -> str:
    """x / by * by."""
    return m.op("fmul", m.op("fdiv", x, m.const(by)), m.const(by))


def _halved(m: Lanes, x: str) -> str:
    """x rounded to float16."""
    return m.of("float16").cast("fpext", m.cast("fptrunc", x, "float16"), m.dtype)


def _short(m: Lanes, x: str) -> str:
    """x rounded to bfloat16, as the generator writes it."""
    return ops.rounded(m.f, x, "bfloat16", m.lanes)


def _arithmetic(fn: str, change: Callable[[Lanes, Callable[..., str], list[str]], str]) -> tuple[Any, str, Edited]:
    """An edit of a scalar function on floats, outside of vector functions; `change` gets its code and operands."""

    def made(old: Original) -> Original:
        def new(m: Lanes, name: str, args: tuple[str, ...], *rest: str) -> str:
            if name != fn or not m.is_float:
                return old(m, name, args, *rest)
            return change(m, lambda *xs: old(m, name, xs, *rest), list(args))

        return new

    return ops, "arithmetic", made


def _result(fn: str, change: Callable[[Lanes, str], str]) -> tuple[Any, str, Edited]:
    """An edit of the result of such a function."""
    return _arithmetic(fn, lambda m, old, xs: change(m, old(*xs)))


def _fma(change: Callable[[Lanes, str], str]) -> Edited:
    def made(old: Original) -> Original:
        def new(self: Function, a: Any, b: Any, c: Any, type: str) -> str:
            return change(_lanes(self, type), old(self, a, b, c, type))

        return new

    return made


def _stored(change: Callable[[Lanes, str], str]) -> Edited:
    def made(old: Original) -> Original:
        def new(em: Any, buffer: str, dtype: str, at: Any, held: HeldValue, mask: str | None) -> None:
            lanes = em.scope.lanes if held.wide else 0
            if dtype in _FLOATS.values():
                held = HeldValue(change(Lanes(em.f, dtype, lanes), held.text), held.wide, held.level)
            old(em, buffer, dtype, at, held, mask)

        return new

    return made


def _loaded(change: Callable[[Lanes, str], str]) -> Edited:
    def made(old: Original) -> Original:
        def new(f: Function, raw: str, dtype: str, lanes: int) -> str:
            x = old(f, raw, dtype, lanes)
            return change(Lanes(f, dtype, lanes), x) if dtype == "float32" else x

        return new

    return made


def _combined(change: Callable[[Lanes, str], str]) -> Edited:
    def made(old: Original) -> Original:
        def new(f: Function, monoid: str, dtype: str, a: str, b: str, lanes: int) -> str:
            x = old(f, monoid, dtype, a, b, lanes)
            return change(Lanes(f, dtype, lanes), x) if dtype == "float32" else x

        return new

    return made


def _across(change: Callable[[Lanes, str], str]) -> Edited:
    def made(old: Original) -> Original:
        def new(f: Function, monoid: str, dtype: str, x: str, lanes: int) -> str:
            y = old(f, monoid, dtype, x, lanes)
            return change(Lanes(f, dtype, 0), y) if dtype == "float32" else y

        return new

    return made


def _by_squares(m: Lanes, _: Original, xs: list[str]) -> str:
    """a - b as (a a - b b) / (a + b)."""
    squares = [m.op("fmul", x, x) for x in xs]
    return m.op("fdiv", m.op("fsub", *squares), m.op("fadd", *xs))


def _by_quotient(m: Lanes, _: Original, xs: list[str]) -> str:
    """a - b as (a / b - 1) b."""
    return m.op("fmul", m.op("fsub", m.op("fdiv", *xs), m.const(1.0)), xs[1])


def _by_reciprocal(m: Lanes, _: Original, xs: list[str]) -> str:
    """a b as a / (1 / b), rounded to float16 in between."""
    return m.op("fdiv", xs[0], _halved(m, m.op("fdiv", m.const(1.0), xs[1])))


def _flags(flags: str) -> Edited:
    """An edit that puts fast-math flags in front of the operands of each operation."""

    def made(old: Original) -> Original:
        return lambda self, name, a, b: old(self, f"{name} {flags}" if self.is_float else name, a, b)

    return made


LEAST = "0xBF847AE140000000"  # -0.01
_PRODUCTS = ("circular", "layer norm", "half")
_DIFFERENCES = ("reversal", "softmax", "layer norm")
_FUSED = ("product", "convolution", "product of rows", "chain")
EDITS: tuple[Edit, ...] = (
    Edit("a large constant comes and goes in products", _PRODUCTS, *_result("mul", _without_small)),
    Edit("a constant comes and goes in products", _PRODUCTS, *_result("mul", _coarse)),
    Edit("a large constant comes and goes in differences", _DIFFERENCES, *_result("sub", _without_small)),
    Edit("one comes and goes in differences", _DIFFERENCES, *_result("sub", lambda m, x: _moved(m, x, 1.0))),
    Edit("a constant comes and goes in quotients", ("chain", "softmax"), *_result("div", _coarse)),
    Edit("multiply-adds are rounded to float16", _FUSED, Function, "fma", _fma(_halved)),
    Edit("multiply-adds are rounded to bfloat16", _FUSED, Function, "fma", _fma(_short)),
    Edit("multiply-adds lose small terms", _FUSED, Function, "fma", _fma(_without_small)),
    Edit("multiply-adds overflow", _FUSED, Function, "fma", _fma(lambda m, x: _scaled(m, x, 1e30))),
    Edit("products overflow", _PRODUCTS, *_result("mul", lambda m, x: _scaled(m, x, 1e30))),
    Edit("products are flushed", ("transpose", "layer norm"), *_result("mul", lambda m, x: _shrunk(m, x, 1e30))),
    Edit("differences overflow", _DIFFERENCES, *_result("sub", lambda m, x: _scaled(m, x, 1e28))),
    Edit("sums are accumulated in float16", ("sum", "softmax"), registers, "combine", _combined(_halved)),
    Edit("sums are accumulated in bfloat16", ("sum", "softmax"), registers, "combine", _combined(_short)),
    Edit("sums lose small terms", ("sum", "layer norm"), registers, "combine", _combined(_without_small)),
    Edit("sums of lanes are rounded to bfloat16", ("softmax", "layer norm"), registers, "across", _across(_short)),
    Edit("results are rounded to bfloat16", ("sum", "chain", "transpose"), memory, "store", _stored(_short)),
    Edit("results are rounded to float16", ("reversal", "softmax", "layer norm"), memory, "store", _stored(_halved)),
    Edit("operands are rounded to bfloat16", ("reversal", "chain", "pool"), memory, "loaded", _loaded(_short)),
    Edit("differences of squares", _DIFFERENCES, *_arithmetic("sub", _by_squares)),
    Edit("differences by way of a quotient", _DIFFERENCES, *_arithmetic("sub", _by_quotient)),
    Edit("products by way of a rounded reciprocal", _PRODUCTS, *_arithmetic("mul", _by_reciprocal)),
    Edit("roots of rounded operands", ("layer norm",), Lanes, "call",
         lambda old: lambda m, f, *xs: old(m, f, *[_halved(m, x) for x in xs])),
    Edit("comparisons of rounded operands", ("conditions",),
         *_arithmetic("lt", lambda m, old, xs: old(*[_halved(m, x) for x in xs]))),
    Edit("extrema of rounded operands", ("pool", "chain"), Function, "_extremum",
         lambda old: lambda f, order, a, b, t: old(f, order, _halved(_lanes(f, t), a), b, t)),
    Edit("differences without what is taken away", _DIFFERENCES, *_arithmetic("sub", lambda m, old, xs: xs[0])),
    Edit("differences the other way", _DIFFERENCES, *_arithmetic("sub", lambda m, old, xs: old(*xs[::-1]))),
    Edit("quotients the other way", ("chain", "softmax"), *_arithmetic("div", lambda m, old, xs: old(*xs[::-1]))),
    Edit("nobody promises no NaN", ("chain",), Lanes, "op", _flags("nnan ninf")),
    Edit("approximate reciprocals", ("softmax", "chain"), Lanes, "op", _flags("arcp afn")),
    Edit("differences in any order", ("layer norm",), Lanes, "op", _flags("reassoc")),
    Edit("exp a little too great", ("softmax",), table._VECTOR, "exp",
         lambda old: lambda m, x: m.mul(old(m, x), m.const(1.0 + 2.0**-8))),
    Edit("exp to a narrower range", ("softmax",), table._VECTOR, "exp",
         lambda old: lambda m, x: old(m, m.at_least(x, -1.0))),
    Edit("exp of few terms", ("softmax",), Lanes, "polynomial", lambda old: lambda m, x, c: old(m, x, c[:2])),
    Edit("tails are a lane short", ("softmax", "convolution"), index, "first_lanes",
         lambda old: lambda em, count: old(em, count - 1 if isinstance(count, int) else count)),
    Edit("tails are a lane long", ("softmax", "convolution"), index, "first_lanes",
         lambda old: lambda em, count: old(em, count + 1 if isinstance(count, int) else count)),
    Edit("relu from a little below zero", ("product", "chain"), Function, "fmaximum",
         lambda old: lambda f, a, b, t: old(f, a, b if b[0] == "%" else f"splat (float {LEAST})", t)),
)  # fmt: skip


@contextmanager
def edited(edit: Edit) -> Iterator[None]:
    """Apply an edit to the generator in the block."""
    table = edit.owner if isinstance(edit.owner, dict) else vars(edit.owner)
    old = table[edit.attribute]

    def put(value: Any) -> None:
        if isinstance(edit.owner, dict):
            edit.owner[edit.attribute] = value
        else:
            setattr(edit.owner, edit.attribute, value)

    try:
        put(edit.made(old))
        _forget()
        yield
    finally:
        put(old)
        _forget()


def _forget() -> None:
    """Clear the caches of generated code, which belongs to another generator."""
    generate._generated.cache_clear()  # pyright: ignore[reportPrivateUsage]
    native._written.cache_clear()  # pyright: ignore[reportPrivateUsage]


def tried(edit: Edit, program: str) -> dict[str, Any]:
    """The verdict on the kernel that an edited generator makes of a program, whether it is wrong, and missed."""
    of = mutants.kernel(program)
    row = {"edit": edit.name, "kernel": program}
    with edited(edit):
        try:
            parts = mutants.kernel(program).parts
        except SuperoptError as error:
            return row | {"status": "no code", "cause": str(error), "changed": False, "wrong": False, "missed": False}
    if [part.text for part in parts] == [part.text for part in of.parts]:
        return row | {"status": "unchanged", "cause": "", "changed": False, "wrong": False, "missed": False}
    verdict = validate(of.before, parts, known())
    wrong = off(of, parts)
    told = {"status": verdict.status, "cause": verdict.cause, "changed": True, "wrong": wrong}
    return row | told | {"missed": verdict.proved and wrong}


def off(of: mutants.MadeKernel, parts: list[mutants.KernelPart]) -> bool:
    """Whether changed parts are off by more than a thousandth of a value where the original result is a number."""
    outputs = [b for b in of.before.buffers if b.scope == "output"]
    try:
        with MachineCode(of.parts) as right, MachineCode(parts) as changed, np.errstate(all="ignore"):
            for draw in DRAWS:
                given = drawn(of.before, draw, 1)
                results = [[run(given)[b.name].astype(np.float64) for b in outputs] for run in (right, changed)]
                for buffer, a, b in zip(outputs, *results, strict=True):
                    a_part = WRONG.get(buffer.dtype, 1e-3)
                    if (np.isfinite(a) & ~(np.abs(a - b) <= a_part * np.abs(a))).any():
                        return True
    except Unread:  # LLVM refuses the text: it never becomes a kernel
        return False
    return False


def rows() -> Iterator[dict[str, Any]]:
    """The results of all edits on the kernels that they affect."""
    for edit in EDITS:
        for program in edit.programs:
            yield tried(edit, program)
