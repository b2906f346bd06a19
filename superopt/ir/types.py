"""Tensor types: a shape and a dtype.

A shape is a tuple of sizes; a size is a Python `int`, or a `superopt.ir.index.Poly` where a type rule is
evaluated over symbolic sizes.  A dtype is its NumPy name (`float32`, `bfloat16`, `int8`, `bool` ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from superopt.ir.index import Size as Size

if TYPE_CHECKING:
    pass

Shape: TypeAlias = "tuple[Size, ...]"

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
POSITIONS = ("int32", "int64", "uint32", "uint64")
"""Integers that hold every position along an axis."""
DTYPES = (*FLOATS, *INTEGERS, "bool")
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Half of a last place of numbers from 1 to 2: how far rounding to the nearest moves a number, relative to it."""
ITEMSIZE_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
# dtypes without arithmetic of their own here: inputs and results of opaque operations, and the bytes that hold one
FOREIGN_BYTES = {
    "complex64": 8, "complex128": 16, "int2": 1, "uint2": 1, "int4": 1, "uint4": 1, "float4_e2m1fn": 1,
    "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
STORED_BYTES = ITEMSIZE_BYTES | FOREIGN_BYTES
SHORT = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool",
}  # fmt: skip
LONG = {short: long for long, short in SHORT.items()}


def range_of(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = 8 * ITEMSIZE_BYTES[dtype]
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype in SIGNED else (0, 2**bits - 1)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of one tensor."""

    shape: Shape
    dtype: str = "float32"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"
