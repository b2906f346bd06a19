"""Normal forms: each law once, where it stops, and that folded constants are what the interpreter computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rewrites.egraph.graph import EGraph
from superopt.errors import ShapeError
from superopt.ir.graph import literal, mk
from superopt.ir.interp import evaluate
from tests.support.egraph_checks import check_invariants


class Terms:
    """Short names for constructors of one e-graph."""

    def __init__(self) -> None:
        self.eg = EGraph()
        self.add = self.eg.add

    def x(self, *shape: int, name: str = "x", dtype: str = "float32", frozen: bool = False) -> int:
        """An input."""
        return self.add("input", name=name, shape=shape, dtype=dtype, frozen=frozen)

    def c(self, value: Any, *shape: int, dtype: str = "float32") -> int:
        """A constant tensor."""
        return self.bc(self.add("literal", value=value, dtype=dtype), shape, ())

    def bc(self, x: int, shape: tuple[int, ...], dims: tuple[int, ...]) -> int:
        """A broadcast."""
        return self.add("broadcast_in_dim", x, shape=shape, broadcast_dimensions=dims)

    def sl(self, x: int, starts: tuple[int, ...], limits: tuple[int, ...], strides: Any = None) -> int:
        """A slice."""
        return self.add("slice", x, start_indices=starts, limit_indices=limits, strides=strides)

    def cat(self, axis: int, *parts: int) -> int:
        """A concatenation."""
        return self.add("concatenate", *parts, dimension=axis)

    def rs(self, x: int, *sizes: int) -> int:
        """A reshape."""
        return self.add("reshape", x, new_sizes=sizes)

    def pd(self, x: int, *config: tuple[int, int, int]) -> int:
        """Zero padding."""
        return self.add("pad", x, self.c(0.0), padding_config=config)

    def ops(self, x: int) -> list[str]:
        """Ops of a class."""
        return [self.eg.op_of(node) for node in self.eg.enodes(self.eg.find_class(x))]

    def source(self, x: int) -> int:
        """The first operand of the only e-node of a class."""
        (node,) = self.eg.enodes(self.eg.find_class(x))
        return self.eg.find(node[1])


Law = Callable[[Terms], tuple[int, int]]


def _law(build: Callable[[Terms, int], tuple[int, int]]) -> Law:
    def law(t: Terms) -> tuple[int, int]:
        return build(t, t.x(2, 3))

    return law


def _on_bools(op: str, value: bool) -> Law:
    def law(t: Terms) -> tuple[int, int]:
        p = t.x(2, 3, dtype="bool")
        return t.add(op, p, t.c(value, 2, 3, dtype="bool")), p

    return law


def _select(t: Terms, a: int, which: int) -> int:
    return t.add("select_n", t.c(bool(which), 2, 3, dtype="bool"), a, t.x(2, 3, name="y"))


def _strided(t: Terms) -> tuple[int, int]:
    x = t.x(10)
    return t.sl(t.sl(x, (1,), (10,), (2,)), (1,), (5,), (2,)), t.sl(x, (3,), (10,), (4,))


def _slice_of_broadcast(t: Terms) -> tuple[int, int]:
    x = t.x(6)
    return t.sl(t.bc(x, (4, 6), (1,)), (1, 2), (3, 6), (1, 2)), t.bc(t.sl(x, (2,), (6,), (2,)), (2, 2), (1,))


def _slice_in_piece(t: Terms) -> tuple[int, int]:
    x, y = t.x(2, 3), t.x(2, 4, name="y")
    return t.sl(t.cat(1, x, y), (0, 4), (2, 7), (1, 2)), t.sl(y, (0, 1), (2, 4), (1, 2))


def _slice_drops_pieces(t: Terms) -> tuple[int, int]:
    x, y, z = t.x(2, 3), t.x(2, 4, name="y"), t.x(2, 5, name="z")
    return t.sl(t.cat(1, x, y, z), (0, 1), (2, 6)), t.cat(1, t.sl(x, (0, 1), (2, 3)), t.sl(y, (0, 0), (2, 3)))


def _slice_back(t: Terms) -> tuple[int, int]:
    x, y = t.x(2, 3), t.x(2, 3, name="y")
    moved = t.add("transpose", t.cat(0, x, y), permutation=(1, 0))
    return t.sl(moved, (0, 2), (3, 4)), t.add("transpose", y, permutation=(1, 0))


def _nested_concat(t: Terms) -> tuple[int, int]:
    x, y, z = t.x(2, 3), t.x(2, 4, name="y"), t.x(2, 5, name="z")
    return t.cat(1, t.cat(1, x, y), z), t.cat(1, x, t.cat(1, y, z))


def _adjacent_slices(t: Terms) -> tuple[int, int]:
    x = t.x(2, 9)
    return t.cat(1, t.sl(x, (0, 1), (2, 4)), t.sl(x, (0, 4), (2, 8))), t.sl(x, (0, 1), (2, 8))


def _all_slices(t: Terms) -> tuple[int, int]:
    x = t.x(2, 9)
    return t.cat(1, t.sl(x, (0, 0), (2, 4)), t.sl(x, (0, 4), (2, 9))), x


def _nested_broadcast(t: Terms) -> tuple[int, int]:
    x = t.x(3)
    return t.bc(t.bc(x, (2, 3), (1,)), (4, 2, 3), (1, 2)), t.bc(x, (4, 2, 3), (2,))


def _broadcast_of_units(t: Terms) -> tuple[int, int]:
    x = t.x(1, 3, 1)
    return t.bc(x, (2, 3, 5), (0, 1, 2)), t.bc(t.rs(x, 3), (2, 3, 5), (1,))


def _keepdims(t: Terms) -> tuple[int, int]:
    x = t.x(2, 3)
    return t.bc(t.rs(x, 2, 3, 1), (2, 3, 5), (0, 1, 2)), t.bc(x, (2, 3, 5), (0, 1))


def _units_added_and_dropped(t: Terms) -> tuple[int, int]:
    x = t.x(2, 1, 3)
    return t.rs(t.rs(t.rs(x, 2, 3), 1, 2, 3, 1), 2, 1, 3), x


def _reshape_back(t: Terms) -> tuple[int, int]:
    x = t.x(4, 6)
    return t.rs(t.rs(x, 2, 2, 6), 4, 6), x


def _reshape_ways(t: Terms) -> tuple[int, int]:
    x = t.x(4, 6)
    return t.rs(t.rs(x, 24), 2, 12), t.rs(x, 2, 12)


def _reshape_not_nested(t: Terms) -> tuple[int, int]:
    x = t.x(6, 10)
    return t.rs(t.rs(x, 4, 15), 6, 10), x


def _heads(t: Terms) -> tuple[int, int]:
    """Split heads, moved to the front, merged again after moving back: nothing is shuffled."""
    x = t.x(5, 12)
    heads = t.add("transpose", t.rs(x, 5, 3, 4), permutation=(1, 0, 2))
    return t.rs(t.add("transpose", heads, permutation=(1, 0, 2)), 5, 12), x


def _reshape_of_broadcast(t: Terms) -> tuple[int, int]:
    x = t.x(6)
    return t.rs(t.bc(x, (4, 6), (1,)), 2, 2, 3, 2), t.bc(t.rs(x, 3, 2), (2, 2, 3, 2), (2, 3))


def _elementwise_of_broadcasts(t: Terms) -> tuple[int, int]:
    x, y = t.x(3), t.x(3, name="y")
    wide = t.add("mul", t.bc(x, (4, 3, 5), (1,)), t.bc(y, (4, 3, 5), (1,)))
    return wide, t.bc(t.add("mul", x, y), (4, 3, 5), (1,))


def _partly_common_broadcasts(t: Terms) -> tuple[int, int]:
    x, y = t.x(3), t.x(5, name="y")
    wide = t.add("add", t.bc(x, (4, 3, 5), (1,)), t.bc(y, (4, 3, 5), (2,)))
    return wide, t.bc(t.add("add", t.bc(x, (3, 5), (0,)), t.bc(y, (3, 5), (1,))), (4, 3, 5), (1, 2))


def _unary_of_broadcast(t: Terms) -> tuple[int, int]:
    x = t.x(3)
    return t.add("exp", t.bc(x, (4, 3), (1,))), t.bc(t.add("exp", x), (4, 3), (1,))


def _scalars_meet(t: Terms) -> tuple[int, int]:
    s, r = t.x(), t.x(name="r")
    wide = t.add("mul", t.bc(s, (4, 3), ()), t.bc(r, (4, 3), ()))
    return wide, t.bc(t.add("mul", s, r), (4, 3), ())


def _iota(t: Terms) -> tuple[int, int]:
    line = t.add("iota", dtype="int32", shape=(3,), dimension=0)
    return t.add("iota", dtype="int32", shape=(2, 3), dimension=1), t.bc(line, (2, 3), (1,))


def _rev_rev(t: Terms) -> tuple[int, int]:
    x = t.x(2, 3, 4)
    turned = t.add("transpose", t.add("rev", x, dimensions=(0, 1)), permutation=(2, 1, 0))
    back = t.add("rev", turned, dimensions=(0, 1))  # axes 2 and 1 of x
    return back, t.add("transpose", t.add("rev", x, dimensions=(0, 2)), permutation=(2, 1, 0))


LAWS: dict[str, Law] = {
    "x + 0": _law(lambda t, x: (t.add("add", x, t.c(0.0, 2, 3)), x)),
    "0 + x": _law(lambda t, x: (t.add("add", t.c(0.0, 2, 3), x), x)),
    "x - 0": _law(lambda t, x: (t.add("sub", x, t.c(0.0, 2, 3)), x)),
    "x * 1": _law(lambda t, x: (t.add("mul", x, t.c(1.0, 2, 3)), x)),
    "x / 1": _law(lambda t, x: (t.add("div", x, t.c(1.0, 2, 3)), x)),
    "max(x, -inf)": _law(lambda t, x: (t.add("max", t.c(-math.inf, 2, 3), x), x)),
    "min(x, inf)": _law(lambda t, x: (t.add("min", x, t.c(math.inf, 2, 3)), x)),
    "p and true": _on_bools("and", True),
    "p or false": _on_bools("or", False),
    "p xor false": _on_bools("xor", False),
    "-(-x)": _law(lambda t, x: (t.add("neg", t.add("neg", x)), x)),
    "x ** 1": _law(lambda t, x: (t.add("integer_pow", x, y=1), x)),
    "x ** 2": _law(lambda t, x: (t.add("integer_pow", x, y=2), t.add("square", x))),
    "convert to the same": _law(lambda t, x: (t.add("convert_element_type", x, new_dtype="float32"), x)),
    "where(true, a, b)": _law(lambda t, x: (_select(t, x, 0), x)),
    "where(false, a, b)": _law(lambda t, x: (_select(t, x, 1), t.x(2, 3, name="y"))),
    "where(p, a, a)": _law(lambda t, x: (t.add("select_n", t.x(2, 3, name="p", dtype="bool"), x, x), x)),
    "scalars meet": _scalars_meet,
    "elementwise of broadcasts": _elementwise_of_broadcasts,
    "elementwise of broadcasts, partly": _partly_common_broadcasts,
    "unary of a broadcast": _unary_of_broadcast,
    "broadcast of a broadcast": _nested_broadcast,
    "broadcast of axes of size 1": _broadcast_of_units,
    "keepdims": _keepdims,
    "broadcast to the same": _law(lambda t, x: (t.bc(x, (2, 3), (0, 1)), x)),
    "iota": _iota,
    "axes of size 1 added and dropped": _units_added_and_dropped,
    "reshape there and back": _reshape_back,
    "reshape by two ways": _reshape_ways,
    "reshape there and back, not nested": _reshape_not_nested,
    "reshape to the same": _law(lambda t, x: (t.rs(x, 2, 3), x)),
    "heads": _heads,
    "reshape of a broadcast": _reshape_of_broadcast,
    "slice of all": _law(lambda t, x: (t.sl(x, (0, 0), (2, 3)), x)),
    "slice of a slice": _strided,
    "slice of a broadcast": _slice_of_broadcast,
    "slice of one piece": _slice_in_piece,
    "slice of some pieces": _slice_drops_pieces,
    "slice of a transposed concatenation": _slice_back,
    "concatenation of one": _law(lambda t, x: (t.cat(1, x), x)),
    "nested concatenations": _nested_concat,
    "adjacent slices": _adjacent_slices,
    "all slices": _all_slices,
    "pad by nothing": _law(lambda t, x: (t.pd(x, (0, 0, 0), (0, 0, 0)), x)),
    "rev of rev": _rev_rev,
    "reduction over no axes": _law(lambda t, x: (t.add("reduce_sum", x, axes=()), x)),
}


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    terms = Terms()
    left, right = LAWS[name](terms)
    assert terms.eg.find(left) == terms.eg.find(right)
    check_invariants(terms.eg)


# ---- where the laws stop


def test_a_real_shuffle_stays() -> None:
    t = Terms()
    x = t.x(6, 5)
    shuffled = t.rs(t.add("transpose", t.rs(x, 2, 3, 5), permutation=(1, 0, 2)), 6, 5)
    assert shuffled != x
    assert t.ops(shuffled) == ["regroup"]
    assert t.ops(t.source(shuffled)) == ["regroup"]


def test_a_tiling_reshape_of_a_broadcast_stays() -> None:
    t = Terms()
    tiled = t.rs(t.bc(t.x(6), (4, 6), (1,)), 24)
    assert t.ops(tiled) == ["regroup"]
    assert t.ops(t.source(tiled)) == ["broadcast_in_dim"]


def test_groups_are_as_small_as_they_can_be() -> None:
    t = Terms()
    y = t.rs(t.x(7, 2, 3, 10), 7, 6, 2, 5)
    (node,) = t.eg.enodes(t.eg.find_class(y))
    assert t.eg.values_of(node)["groups"] == (((0,), (7,)), ((1, 2), (6,)), ((3,), (2, 5)))


def test_reshapes_of_empty_tensors() -> None:
    t = Terms()
    x = t.x(0, 3)
    y = t.rs(t.rs(x, 5, 0), 0, 7)
    assert t.eg.shape(y) == (0, 7)
    assert t.eg.shape(t.rs(y, 3, 0, 1)) == (3, 0, 1)
    check_invariants(t.eg)


def test_slices_that_do_not_adjoin_stay_apart() -> None:
    t = Terms()
    x = t.x(2, 9)
    low, high = t.sl(x, (0, 0), (2, 4)), t.sl(x, (0, 5), (2, 9))
    assert t.ops(t.cat(1, low, high)) == ["concatenate"]
    assert t.ops(t.cat(1, t.sl(x, (0, 4), (2, 9)), low)) == ["concatenate"]
    assert t.ops(t.cat(0, low, t.sl(x, (0, 4), (2, 8)))) == ["concatenate"]


def test_slices_through_a_cycle_of_views_end() -> None:
    """Pieces that are slices of the tensor that they make up, as after a merge of products."""
    t = Terms()
    whole, a, b = t.x(9), t.x(4, name="a"), t.x(5, name="b")
    t.eg.union(whole, t.cat(0, a, b))
    t.eg.union(a, t.sl(whole, (0,), (4,)))
    t.eg.rebuild()
    t.eg.union(b, t.eg.insert("slice", (("limit_indices", (9,)), ("start_indices", (4,)), ("strides", (1,))), (whole,)))
    t.eg.rebuild()
    for lo in range(9):
        for hi in range(lo + 1, 10):
            assert t.eg.shape(t.sl(whole, (lo,), (hi,))) == (hi - lo,)
    check_invariants(t.eg)


def test_neutral_elements_of_other_ops_stay() -> None:
    t = Terms()
    x = t.x(2, 3)
    for op, value in (("sub", 1.0), ("div", 0.0), ("mul", 0.0), ("max", math.inf), ("min", 0.0), ("atan2", 0.0)):
        assert t.eg.find(t.add(op, x, t.c(value, 2, 3))) != x
    assert t.eg.find(t.add("sub", t.c(0.0, 2, 3), x)) != x
    assert t.eg.find(t.add("div", t.c(1.0, 2, 3), x)) != x


def test_operands_of_two_dtypes_are_refused_even_beside_a_neutral_element() -> None:
    t = Terms()
    with pytest.raises(ShapeError, match="one dtype"):
        t.add("add", t.x(2, 3), t.c(0, 2, 3, dtype="int32"))


# ---- constants


FOLDED: list[tuple[str, tuple[Any, ...], str]] = [
    ("add", (0.1, 0.2), "float32"),
    ("add", (0.1, 0.2), "bfloat16"),
    ("sub", (1.0, 3.0), "float16"),
    ("mul", (1e30, 1e30), "float32"),
    ("div", (1.0, 3.0), "float32"),
    ("div", (1.0, 0.0), "float32"),
    ("max", (math.nan, 1.0), "float32"),
    ("min", (2.0, -1.0), "float64"),
    ("neg", (0.0,), "float32"),
    ("sqrt", (2.0,), "float32"),
    ("square", (0.1,), "float32"),
    ("add", (2**31 - 1, 1), "int32"),
    ("mul", (200, 3), "uint8"),
    ("lt", (1.0, 2.0), "float32"),
    ("eq", (1, 2), "int32"),
    ("and", (6, 3), "int32"),
    ("not", (True,), "bool"),
    ("floor", (-0.5,), "float32"),
]


@pytest.mark.parametrize(("op", "values", "dtype"), FOLDED)
def test_folding_computes_what_the_interpreter_computes(op: str, values: tuple[Any, ...], dtype: str) -> None:
    t = Terms()
    folded = t.add(op, *[t.c(value, 2, dtype=dtype) for value in values])
    (want,) = evaluate([mk(op, *[literal(value, dtype) for value in values])])
    got = t.eg.scalar(folded)
    assert got is not None
    assert t.eg.dtype(folded) == str(want.dtype)
    assert np.array_equal(
        np.asarray(got, want.dtype), want, equal_nan=want.dtype != bool and "float" in str(want.dtype)
    )


@pytest.mark.parametrize(
    ("value", "source", "target"), [(0.1, "float32", "bfloat16"), (300, "int32", "uint8"), (True, "bool", "float32")]
)
def test_conversion_of_constants(value: Any, source: str, target: str) -> None:
    t = Terms()
    made = t.add("convert_element_type", t.c(value, dtype=source), new_dtype=target)
    (want,) = evaluate([mk("convert_element_type", literal(value, source), new_dtype=target)])
    assert np.asarray(t.eg.scalar(made), want.dtype) == want


def test_what_implementations_round_differently_is_not_folded() -> None:
    t = Terms()
    assert t.eg.scalar(t.add("exp", t.c(1.0))) is None
    assert t.eg.scalar(t.add("div", t.c(7, dtype="int32"), t.c(2, dtype="int32"))) is None
    assert t.eg.scalar(t.add("convert_element_type", t.c(1e20), new_dtype="int32")) is None
