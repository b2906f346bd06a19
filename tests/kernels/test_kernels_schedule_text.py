"""The loops that the documentation of each schedule primitive shows before and after are those that it makes."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import numpy as np
import pytest

from superopt.ir.graph import make_input, mk
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.show import show_stages
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule import PRIMITIVES
from superopt.kernels.schedule.trace import apply
from tests.support.schedule_cases import arrays, pointwise, product, rows, same, total, two_stages

X = make_input("x", (6, 5))
WINDOW = mk(
    "reduce_window_sum", make_input("x", (12, 5)), window_dimensions=(3, 1), window_strides=(2, 1),
    padding=((1, 0), (0, 0)),
)  # fmt: skip
LAYOUT = (("split", 1, 4), ("permute", (1, 0, 2)))
BELOW = mk(
    "select_n", mk("ge", mk("iota", shape=(6, 5), dtype="int32", dimension=0),
                   mk("iota", shape=(6, 5), dtype="int32", dimension=1)),
    mk("broadcast_in_dim", mk("literal", value=0.0, dtype="float32"), shape=(6, 5), broadcast_dimensions=()), X,
)  # fmt: skip
CENTRED = mk("sub", X, rows(mk("reduce_max", X, axes=(1,)), X))
Y = mk("broadcast_in_dim", make_input("y", (5,)), shape=(6, 5), broadcast_dimensions=(1,))
MASKED = mk(
    "select_n", mk("ge", mk("iota", shape=(8, 8), dtype="int32", dimension=0),
                   mk("iota", shape=(8, 8), dtype="int32", dimension=1)),
    mk("broadcast_in_dim", mk("literal", value=-np.inf, dtype="float32"), shape=(8, 8), broadcast_dimensions=()),
    make_input("x", (8, 8)),
)  # fmt: skip
SKIPPED = apply(
    from_graph([mk("reduce_max", MASKED, axes=(1,))], scratch={MASKED}),
    [("choose", "s0"), ("transform_layout", "s0", [["permute", [1, 0]]], "new"), ("split", "out0", "o0", [4]),
     ("parallel", "out0", "o0_0"), ("compute_at", "s0", "out0", 1)],
)  # fmt: skip
QUOTIENT = mk(
    "dot_general", mk("div", X, rows(make_input("s", (6,)), X)), make_input("y", (5, 4)),
    dimension_numbers=(((1,), (0,)), ((), ())),
)  # fmt: skip
HALF = mk(
    "dot_general", mk("exp", make_input("x", (6, 5), "bfloat16")), make_input("y", (5,), "bfloat16"),
    dimension_numbers=(((1,), (0,)), ((), ())),
)  # fmt: skip
EXAMPLES: dict[str, tuple[LoopProgram, tuple[Any, ...]]] = {
    "split": (pointwise(10), ("out0", "o0", [4])),
    "fuse": (pointwise(6, 5), ("out0", ["o0", "o1"])),
    "reorder": (pointwise(6, 5), ("out0", ["o1", "o0"])),
    "parallel": (pointwise(6, 5), ("out0", "o0")),
    "vectorize": (pointwise(6, 5), ("out0", "o1")),
    "unroll": (pointwise(6, 2), ("out0", "o1")),
    "pad": (pointwise(10), ("out0", "o0", 4)),
    "set_knob": (pointwise(6), ("out0", "accumulators", 4)),
    "inline": (from_graph([total(mk("exp", X), 1)], scratch={mk("exp", X)}), ("s0",)),
    "materialize": (
        from_graph([mk("sub", X, rows(mk("reduce_max", X, axes=(1,)), X))]),
        ("out0", "reduce:0", "peak"),
    ),
    "cache_read": (from_graph([WINDOW]), ("out0", 1, "packed")),
    "cache_write": (pointwise(6, 5), ("out0", "held")),
    "reverse_compute_at": (
        apply(from_graph([mk("exp", total(X, 1))], scratch={total(X, 1)}), [("split", "s0", "o0", [2])]),
        ("out0",),
    ),
    "compute_at": (two_stages(6, 5, 1), ("s0", "out0", 1)),
    "blockize": (apply(pointwise(6, 5), [("split", "out0", "o0", [2])]), ("out0", 1, "block")),
    "split_reduction": (from_graph([total(make_input("x", (6, 8)), 1)]), ("out0", 0, 0, [4])),
    "pad_reduction": (from_graph([total(make_input("x", (6, 7)), 1)]), ("out0", 0, 0, 4)),
    "reorder_reduction": (from_graph([total(make_input("x", (6, 3, 4)), 1, 2)]), ("out0", 0, [1, 0])),
    "rfactor": (
        apply(from_graph([total(make_input("x", (32,)), 0)]), [("split_reduction", "out0", 0, 0, [8])]),
        ("out0", 0, [0], "part"),
    ),
    "decompose_reduction": (
        apply(from_graph([total(make_input("x", (6, 32)), 1)]), [("split_reduction", "out0", 0, 0, [8])]),
        ("out0", [0], 0),
    ),
    "transform_layout": (
        apply(from_graph([mk("exp", make_input("w", (6, 5)))]), [("cache_read", "out0", "w", "packed")]),
        ("packed", LAYOUT, "fill"),
    ),
    "choose": (from_graph([BELOW]), ("out0",)),
    "share": (from_graph([total(mk("mul", CENTRED, Y), 1)]), ("out0", 3, "kept")),
    "skip": (SKIPPED, ("s0", 0)),
    "factor_out": (from_graph([QUOTIENT]), ("out0", 0)),
    "split_prefix": (from_graph([mk("cumsum", make_input("x", (12,)), axis=0)]), ("out0", 0, 4, "t")),
    "widen": (from_graph([HALF]), ("out0",)),
    "tensorize": (product(8, 8, 32), ("out0", [["rows", [["o0", 4]]], ["pack_b", "none"]])),
}


def _shown(name: str, keyword: str) -> str:
    """The loops that stand under a line of the docstring that begins with a word."""
    lines = inspect.cleandoc(PRIMITIVES[name].run.__doc__ or "").splitlines()
    at = next(j for j, line in enumerate(lines) if line == keyword or line.startswith(f"{keyword} "))
    block: list[str] = []
    for line in lines[at + 1 :]:
        if not line.startswith("    "):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block))


@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_documented_loops_are_the_real_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Cpu("skylake-avx512", (), 512, 32, False, False, 32 << 10, 1 << 20, 0)
    monkeypatch.setattr("superopt.kernels.schedule.tensorizing.host", lambda: wide)
    program, arguments = EXAMPLES[name]
    scheduled = apply(program, [(name, *arguments)])
    assert _shown(name, "before") == show_stages(program)
    assert _shown(name, name) == show_stages(scheduled)
    env = arrays(program)
    same(evaluate(scheduled, env, wide=True), evaluate(program, env, wide=True), exact=False)
