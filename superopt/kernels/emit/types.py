"""How values of a dtype are held: in registers, and in memory.

16-bit floats are held as float32 in registers and as 16 bits in memory; bool as `i1` and as a byte.  A value is uniform
(one scalar for all lanes) until something needs it in every lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from superopt.ir.scalar import DTYPE, HALVES
from superopt.ir.types import FLOATS, ITEMSIZE_BYTES, UNSIGNED
from superopt.kernels.llvm.module import TYPES, Function, Lines, Value, literal, vector
from superopt.kernels.math import ops as vecmath_ops


class HeldValue(NamedTuple):
    """A value: its text, whether it has lanes, and the level of loops at which it is computed."""

    text: str
    wide: bool
    level: int


@dataclass(slots=True)
class Level:
    """One level of loops: what is known there, and where to write more."""

    lines: Lines
    memo: dict[object, HeldValue] = field(default_factory=dict[object, HeldValue])


@dataclass(frozen=True, slots=True)
class IteratorBinding:
    """An iterator: its value is `base` plus the offset of the point."""

    base: Value
    level: int


def register(dtype: str, lanes: int = 0) -> str:
    """The type of a value of this dtype in registers."""
    return vector(TYPES[held_as(dtype)], lanes)


def held_as(dtype: str) -> str:
    """The dtype in which values of this dtype are computed."""
    return "float32" if dtype in HALVES else dtype


def stored(dtype: str, lanes: int = 0) -> str:
    """The type of a value of this dtype in memory."""
    if dtype == "bool":
        return vector("i8", lanes)
    return vector("i16" if dtype == "bfloat16" else TYPES[dtype], lanes)


def size_of(dtype: str) -> int:
    """Bytes of one value in memory."""
    return ITEMSIZE_BYTES[dtype]


def width_of(dtype: str) -> int:
    """Bytes of one value in registers."""
    return ITEMSIZE_BYTES[held_as(dtype)]


def is_float(dtype: str) -> bool:
    """Floating point?"""
    return dtype in FLOATS


def is_signed(dtype: str) -> bool:
    """Does comparison take the highest bit for a sign?"""
    return dtype not in UNSIGNED and dtype != "bool"


def constant(value: bool | int | float, dtype: str) -> str:
    """The text of a scalar constant as it is held."""
    if dtype in HALVES:
        return literal(float(np.asarray(value, DTYPE[dtype]).astype(np.float32)), "float32")
    return literal(value, dtype)


def splatted(value: bool | int | float, dtype: str, lanes: int) -> str:
    """A constant as it is held, in all lanes (0: a scalar)."""
    text = constant(value, dtype)
    return f"splat ({register(dtype)} {text})" if lanes else text


def loaded(f: Function, raw: str, dtype: str, lanes: int) -> str:
    """What was read from memory, as it is held."""
    if dtype == "bfloat16":
        raw = f.value(f"bitcast {stored(dtype, lanes)} {raw} to {vector('bfloat', lanes)}")
    return vecmath_ops.from_memory(f, raw, dtype, lanes)


def storable(f: Function, held: str, dtype: str, lanes: int) -> str:
    """What is held, as it is written to memory."""
    made = vecmath_ops.to_memory(f, held, dtype, lanes)
    if dtype == "bfloat16":
        made = f.value(f"bitcast {vector('bfloat', lanes)} {made} to {stored(dtype, lanes)}")
    return made
