"""Forms of a search as programs of kernels: what they are predicted to take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from superopt.ir.graph import Graph, make_input, mk
from superopt.make.forms import apart_s


def test_a_kernel_that_lays_out_what_xla_computes_is_outside_of_all_regions() -> None:
    a, y = make_input("a", (4, 4)), make_input("y", (4, 2))
    solution = mk("transpose", mk("solve", a, y), permutation=(1, 0))
    kernels = [(Graph((a, y), (solution,)), 2.0), (Graph((y,), (mk("neg", y),)), 1.0)]
    found: Any = SimpleNamespace(model=SimpleNamespace(own=None))
    finalist: Any = SimpleNamespace(kernels=kernels)
    assert apart_s(found, finalist) == 2.0
