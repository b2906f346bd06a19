"""Programs that convert to fewer bits, and where float64 can judge that: nothing else rounds 16-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from superopt.ir.build import kernel, tensor
from superopt.ir.graph import Graph, Node, mk
from verifier.statements.conversions import converts, with_conversions

X, H, N = tensor("x", 4), tensor("h", 4, dtype="float16"), tensor("i", 4, dtype="int32")


def to(x: Node, kind: str) -> Node:
    return mk("convert_element_type", x, new_dtype=kind)


NARROW, WIDE, SUM, ROUNDED = (
    kernel(to(X, "float16")), kernel(to(H, "float32")), kernel(mk("add", X, X)), kernel(to(mk("exp", H), "bfloat16")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("graphs", "wanted"),
    [
        ([NARROW], True),
        ([NARROW, SUM], True),
        ([SUM, NARROW], True),
        ([WIDE], False),
        ([SUM], False),
        ([ROUNDED], False),
        ([NARROW, ROUNDED], False),
        ([], False),
        ([kernel(to(to(X, "bfloat16"), "float32"))], True),
        ([kernel(to(N, "float16"))], True),
        ([kernel(to(tensor("b", 4, dtype="int8"), "float32"))], False),
        ([kernel(to(X, "int32"))], False),
        ([kernel(mk("neg", to(X, "float16")))], True),
    ],
)
def test_conversions_to_fewer_bits_are_judged_where_nothing_else_rounds(graphs: list[Graph], wanted: bool) -> None:
    assert converts(graphs) == wanted


def test_values_are_rounded_where_they_are_converted() -> None:
    x = np.array([1.0, 1.0 + 2.0**-12, 3.0, 1e5])
    (found,) = with_conversions(kernel(mk("mul", to(to(X, "bfloat16"), "float32"), X)), {"x": x})
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.bfloat16).astype(np.float64) * x)
