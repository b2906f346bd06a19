"""Types and literals of LLVM as text.

A type is LLVM's text (`float`, `<16 x i32>`); `type_of(dtype, lanes)` gives that of a dtype: no lanes (0) is a scalar.
`bool` is `i1` in registers and a byte in memory; the sign of integers is in the operation, not in the type.
"""

from __future__ import annotations

import math
import re
import struct

from superopt.ir.scalar import DTYPE
from superopt.ir.types import ITEMSIZE_BYTES

TYPES: dict[str, str] = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32",
    "int64": "i64", "uint64": "i64", "float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double",
}  # fmt: skip
_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
BYTES = {"i1": 1, "ptr": 8, **{TYPES[d]: n for d, n in ITEMSIZE_BYTES.items()}}
_VECTOR = re.compile(r"<(\d+) x (\w+)>")


def type_of(dtype: str, lanes: int = 0, *, stored: bool = False) -> str:
    """Return LLVM's type of a dtype in registers, or as stored in memory; a vector unless `lanes` is 0."""
    return vector("i8" if stored and dtype == "bool" else TYPES[dtype], lanes)


def vector(element: str, lanes: int) -> str:
    """Return the type of so many lanes of an element type; the element type itself when 0."""
    return f"<{lanes} x {element}>" if lanes else element


def element_of(type: str) -> str:
    """Return the element type of a vector type; a scalar type itself."""
    match = _VECTOR.fullmatch(type)
    return match[2] if match else type


def lanes_of(type: str) -> int:
    """Return the lanes of a vector type; 0 for a scalar type."""
    match = _VECTOR.fullmatch(type)
    return int(match[1]) if match else 0


def mangled(type: str) -> str:
    """Return the type as it appears in the names of intrinsics: `v16f32`."""
    element = element_of(type)
    name = _SHORT.get(element, element)
    return f"v{lanes_of(type)}{name}" if lanes_of(type) else name


def literal(value: bool | int | float, dtype: str) -> str:
    """Return the exact text of a scalar constant; floats are rounded to the dtype first, integers wrap."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "float64":
        return f"0x{_bits('<d', '<Q', float(value)):016X}"
    if dtype == "float32":
        return f"0x{_bits('<d', '<Q', _float32(float(value))):016X}"
    if dtype in ("bfloat16", "float16"):
        import numpy as np  # late: only the rounding needs it

        bits = int(np.asarray(value, DTYPE[dtype]).view(np.uint16))
        return f"0x{'R' if dtype == 'bfloat16' else 'H'}{bits:04X}"
    width = 8 * ITEMSIZE_BYTES[dtype]
    wrapped = int(value) & ((1 << width) - 1)
    return str(wrapped - (1 << width) if wrapped >> (width - 1) else wrapped)


def splat(value: bool | int | float, dtype: str, lanes: int) -> str:
    """Return the text of a constant with the same value in all lanes; a scalar constant when `lanes` is 0."""
    scalar = literal(value, dtype)
    return f"splat ({TYPES[dtype]} {scalar})" if lanes else scalar


def _float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _bits(source: str, target: str, value: float) -> int:
    return struct.unpack(target, struct.pack(source, value))[0]


def constant_mask(n: int, lanes: int) -> str:
    """Return the mask of the first n lanes, as text of `<lanes x i1>`."""
    return f"<{', '.join([f'i1 {int(i < n)}' for i in range(lanes)])}>"
