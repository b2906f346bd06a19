"""Steps of index arithmetic, scalars, gathers, slices, updates, casts: the bits of XLA at odd sizes and at the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.kernels.choose.partition import is_covered, partition_program
from superopt.kernels.llvm.cpu import supported
from tests.support.native_programs import built, native
from tests.support.sampling import one_in, sampled

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((11, 7)).astype(np.float32)
WILD = [-(2**31), -12, -11, -1, 0, 3, 10, 11, 2**31 - 1]
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = np.array([0.0, -0.0, 0.5, -1.5, 2.5, 127.6, -129.0, 3e9, -3e9, 1e19, -1e19, 1e38, np.inf, -np.inf, np.nan])


def ends(dtype: str) -> np.ndarray:
    """The least, the largest and some small numbers of an integer type, a vector and a bit."""
    info = np.iinfo(dtype)
    small = [n for n in (-3, -1, 0, 1, 2, 5) if n >= info.min]
    return np.resize(np.array([info.min, info.max, info.max - 1, *small], dtype), 67)


def arithmetic(a: Any, b: Any) -> Any:
    some = lax.select(a < b, a + b, a * b)
    return some, lax.div(a, b), lax.rem(a, b), lax.max(a, b) - lax.min(a, b), lax.bitwise_xor(a, b) & ~a, a == b


def shifts(a: Any, b: Any) -> Any:
    return lax.shift_left(a, b), lax.shift_right_logical(a, b), lax.shift_right_arithmetic(a, b), lax.clz(a)


def casts(x: Any) -> Any:
    return [x.astype(kind) for kind in (*WHOLE, "float32", "float64", "bfloat16", "bool")]


def taken(mode: str) -> Callable[..., Any]:
    return lambda table, rows: table.at[rows].get(mode=mode)


def taken_along(table: Any, rows: Any) -> Any:
    return jnp.take_along_axis(table, rows, 1), jnp.take_along_axis(table, rows % 7, 1, mode="promise_in_bounds")


def scalars(a: Any, n: Any) -> Any:
    return a * 2 + n.astype(a.dtype), jnp.where(n > 3, n - 4, n), (n >= 3) & (a < 0), jnp.full((3, 5), a), jnp.arange(6)


def updated(x: Any, part: Any, n: Any) -> Any:
    return lax.dynamic_update_slice(x, part, (n, -n)), lax.dynamic_update_slice(x, x, (n, n))


def sliced(x: Any, n: Any) -> Any:
    return lax.dynamic_slice(x, (n, n), (4, 3)), lax.dynamic_index_in_dim(x, n, 1), x[2:9:3, ::-1]


def padded(x: Any, whole: Any) -> Any:
    return lax.pad(x, np.float32(2), ((1, 2, 1), (-2, 3, 0))), jnp.concatenate([whole, whole[:2] + 1, whole], 0)


def found(x: Any, whole: Any) -> Any:
    return jnp.argmax(x, 1), jnp.argmin(x), jnp.argmax(whole), jnp.cumsum(whole), lax.cummax(whole), jnp.sum(whole)


def hot(rows: Any) -> Any:
    return jax.nn.one_hot(rows, 11), jax.nn.one_hot(rows, 3, dtype=jnp.int32), jnp.tri(5, 4, dtype=bool)


def bounded(x: Any, n: Any) -> Any:
    """A clamp by scalars and a choice by one: regions of their own that read whole arrays."""
    return lax.clamp(np.float32(-1), x, np.float32(1)), lax.select_n(n > 0, x, -x)


def without_elements(x: Any, n: Any) -> Any:
    return x[:0], jnp.zeros((0, 3), jnp.int32), n + 1, x[:, :0] * 2


def numbers(x: np.ndarray) -> np.ndarray:
    """The same numbers, in a type in which NumPy knows NaN."""
    return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x


ODD = np.resize(FLOATS.astype(np.float32), (5, 13))
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"arithmetic {kind}": (arithmetic, (ends(kind), ends(kind)[::-1].copy())) for kind in WHOLE},
    **{f"shifts {kind}": (shifts, (ends(kind), np.resize(np.arange(70, dtype=kind), 67))) for kind in WHOLE},
    **{f"casts of {kind}": (casts, (ends(kind),)) for kind in WHOLE},
    **{f"casts of {kind}": (casts, (FLOATS.astype(kind),)) for kind in ("float32", "float64", "bfloat16")},
    "casts of bool": (casts, (np.resize([True, False, True], 19),)),
    **{
        f"rows taken {mode} {kind}": (taken(mode), (TABLE, np.resize(WILD, (2, 9)).astype(kind)))
        for mode in ("clip", "fill")
        for kind in ("int32", "int64")
    },
    "rows promised": (taken("promise_in_bounds"), (TABLE, np.array([[0, 10, 3]]))),
    "rows taken along": (taken_along, (TABLE, np.resize(WILD, (11, 4)))),
    "one row": (taken("clip"), (TABLE, np.int32(-20))),
    "rows of whole numbers": (taken("fill"), (np.arange(22).reshape(11, 2), np.array(WILD, np.int64))),
    **{f"scalars {n}": (scalars, (np.float32(-0.75), np.int32(n))) for n in (3, 2**31 - 1)},
    **{f"updated {n}": (updated, (TABLE, TABLE[:4, :3] + 1, np.int32(n))) for n in (-20, -1, 0, 2, 9, 2**31 - 1)},
    **{f"sliced {n}": (sliced, (TABLE, np.int32(n))) for n in (-20, -1, 0, 2, 9, 2**31 - 1)},
    "updated scalar": (lambda x, y: lax.dynamic_update_slice(x, y, ()), (np.int32(3), np.int32(4))),
    "padded": (padded, (TABLE, np.arange(10).reshape(5, 2))),
    "found": (found, (np.float32(RNG.integers(0, 3, (5, 17))), ends("int32"))),
    "found in NaN": (found, (np.where(TABLE > 1, np.nan, TABLE), ends("int64"))),
    "one hot": (hot, (np.array(WILD, np.int32),)),
    "bounded": (bounded, (ODD, np.int32(1))),
    "without elements": (without_elements, (TABLE, np.int32(1))),
}


@pytest.mark.parametrize("name", sampled(CASES, one_in(4, lambda name: [CASES[name][0]])))
def test_a_program_of_such_ops_is_a_plan_with_the_bits_of_xla(name: str) -> None:
    fn, arguments = CASES[name]
    with jax.enable_x64(True):
        executable = built(lambda _, *xs: fn(*xs), (), *arguments)
        want = jax.tree.leaves(jax.jit(fn)(*arguments))
    assert is_covered(executable.program.hot, partition_program(executable.program.hot))
    got = native(executable)(*map(np.asarray, arguments))
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(numbers(a), numbers(np.asarray(b)))
