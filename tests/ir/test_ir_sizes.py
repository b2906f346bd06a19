"""Type rules over symbols are type rules over numbers: also of no elements, and where windows do not fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from superopt.errors import ShapeError
from superopt.ir.index import Guard, Symbol, concrete, greatest, substitute_guard, symbol
from superopt.ir.ops.record import collecting
from superopt.ir.ops.table import canonical, infer, lookup
from superopt.ir.types import TensorType

N, K = symbol("n"), symbol("k")
NUMBERS = range(6)


def windows(strides: Any, padding: Any, base: Any, holes: Any) -> dict[str, Any]:
    return {
        "window_strides": (strides,), "padding": (padding,), "lhs_dilation": (base,), "rhs_dilation": (holes,),
    }  # fmt: skip


def cases() -> Iterator[Any]:
    """An op, sizes of its operands, attributes."""
    for low, high, interior in itertools.product((-2, 0, 1), (-1, 0), (0, 1, 2)):
        yield "pad", ((N,), ()), {"padding_config": ((low, high, interior),)}
    for stride, pads, base, holes in itertools.product((1, 2), ((0, 0), (1, 1)), (1, 3), (1, 2)):
        yield "conv_general_dilated", ((1, 1, N), (1, 1, K)), windows(stride, pads, base, holes)
        window = {
            "window_dimensions": (2,), "window_strides": (stride,), "padding": (pads,), "base_dilation": (base,),
            "window_dilation": (holes,),
        }  # fmt: skip
        yield "reduce_window_max", ((N,),), window
    for start, stop, step in itertools.product((0, 1), (K, N), (1, 2)):
        yield "slice", ((N,),), {"start_indices": (start,), "limit_indices": (stop,), "strides": (step,)}
    yield "concatenate", ((N, 2), (K, 2)), {"dimension": 0}
    yield "concatenate", ((2, N), (3, K)), {"dimension": 0}
    yield "dynamic_slice", ((N,), ()), {"slice_sizes": (K,)}
    yield "add", ((N, K), (K, N)), {}
    yield "dot_general", ((2, N), (K, 3)), {"dimension_numbers": (((1,), (0,)), ((), ()))}


def types_of(op: str, shapes: Any) -> tuple[TensorType, ...]:
    starts = op == "dynamic_slice"
    return tuple([TensorType(s, "int32" if starts and j else "float32") for j, s in enumerate(shapes)])


def put(x: Any, at: dict[str, int]) -> Any:
    """Sizes and attributes with numbers for symbols."""
    if isinstance(x, dict):
        return {key: put(value, at) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple([put(value, at) for value in x])
    return concrete(x, at) if type(x) is type(N) else x


def told(op: str, shapes: Any, attrs: dict[str, Any]) -> Any:
    try:
        return infer(op, types_of(op, shapes), canonical(op, attrs))[0].shape
    except ShapeError:
        return None


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_sizes_over_symbols_are_those_over_numbers(case: Any) -> None:
    op, shapes, attrs = case
    symbolic = told(op, shapes, attrs)
    for n, k in itertools.product(NUMBERS, NUMBERS):
        at = {"n": n, "k": k}
        over_numbers = told(op, put(shapes, at), put(attrs, at))
        if over_numbers is not None and symbolic is not None:
            assert put(symbolic, at) == over_numbers, f"at {at}"


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_collected_conditions_are_those_over_numbers_and_say_where_sizes_are_right(case: Any) -> None:
    op, shapes, attrs = case
    rule, symbolic = lookup(op).type, []
    with collecting(symbolic, greatest):
        made = rule(types_of(op, shapes), dict(canonical(op, attrs)))
    for n, k in itertools.product(NUMBERS, NUMBERS):
        at = {"n": n, "k": k}
        numbers: list[Any] = []
        with collecting(numbers, max):
            found = rule(types_of(op, put(shapes, at)), dict(canonical(op, put(attrs, at))))
        met = all(substitute_guard(g, {Symbol(x): v for x, v in at.items()}) for g in symbolic if isinstance(g, Guard))
        equal = not any(g is False for g in symbolic)  # over symbols of the IR equality is of forms
        if equal:
            assert met == all(numbers), f"at {at}"
        if all(numbers):
            assert isinstance(made, TensorType)
            assert isinstance(found, TensorType)
            assert put(made.shape, at) == found.shape == told(op, put(shapes, at), put(attrs, at)), f"at {at}"
