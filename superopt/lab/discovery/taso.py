"""TASO's substitutions as a test of coverage: counts those that some rules imply.

`taso.txt` lists the output of TASO's generator (Jia et al., SOSP 2019) for the ops that are enumerated here.  A
substitution is implied when growth by the rules, and the normal forms of the e-graph, make each output of the source
equal to the output of the target.  Each is also evaluated: one that is numerically wrong would be no loss.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import GrowthLimits
from rewrites.language.parse import parse_many
from rewrites.language.term import Rule
from superopt.ir.build import dot
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.interp import evaluate
from superopt.lab.discovery.implied import derived, equations
from superopt.machine.shared import parse_expression
from verifier.rules.check import check

SHAPES = {
    "x": (2, 4), "w": (4, 4), "i": (2, 4, 5, 5), "k": (4, 4, 3, 3), "h": (4, 4, 1, 3), "v": (4, 4, 3, 1),
    "d": (4, 1, 3, 3), "s": (),
}  # fmt: skip
LAWS = """
concat-as-stack: A[*a n]  B[*a n]  extra j
  concat(A, B, n)  ==  merge(concat(unit(A, j), unit(B, j), j), j, n, n)
"""
"""Reshapes of joints, which no enumerated op can express and no normal form of the e-graph covers."""
SECONDS = 4.0  # of each pass
LIMITS = GrowthLimits(enodes=800, per_class=60, iterations=4, per_rule=100)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A node, and the joints of each of its axes, the last one last."""

    node: Node
    joints: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Substitution:
    """One line: its text, and both sides in one graph, the source's outputs first."""

    text: str
    graph: Graph
    outputs: int


def substitutions() -> list[Substitution]:
    """All substitutions of the list."""
    lines = (Path(__file__).parent / "taso.txt").read_text(encoding="utf-8").splitlines()
    return [read(line) for line in lines if line and not line.startswith("#")]


def read(line: str) -> Substitution:
    """One substitution from its text."""
    inputs: dict[str, Node] = {}
    sides = [[_build(parse_expression(t.strip()), inputs) for t in s.split(";")] for s in line.split("==")]
    left, right = ([t.node for t in side] for side in sides)
    return Substitution(line, Graph(tuple(inputs.values()), (*left, *right)), len(left))


def holds(s: Substitution) -> bool:
    """Whether both sides are equal at random integers."""
    rng = np.random.default_rng(3)
    values = {
        str(x["name"]): rng.integers(-3, 4, [int(str(n)) for n in x.shape]).astype(np.float64) for x in s.graph.inputs
    }
    results = [np.asarray(v) for v in evaluate(s.graph.outputs, values)]
    return all(np.array_equal(a, b) for a, b in zip(results[: s.outputs], results[s.outputs :], strict=True))


def covered(s: Substitution, by: Sequence[Rule], limits: GrowthLimits = LIMITS) -> bool:
    """Whether these equations (of `implied.equations`) imply the substitution."""
    return derived(import_graph(s.graph), (*by, *laws()), s.outputs, limits, SECONDS)


@cache
def laws() -> tuple[Rule, ...]:
    """The laws of this module, which are proved before they are used."""
    rules = parse_many(LAWS, "superopt/lab/discovery/taso.py:1")
    assert all(check(rule).proved for rule in rules)
    return equations(rules)


def _build(e: ast.expr, inputs: dict[str, Node]) -> Tensor:
    if isinstance(e, ast.Name):
        if e.id not in inputs:
            inputs[e.id] = make_input(e.id, SHAPES[e.id[0]], "float64")
        return Tensor(inputs[e.id], ((),) * len(inputs[e.id].shape))
    assert isinstance(e, ast.Call)
    assert isinstance(e.func, ast.Name)
    operands = [_build(a, inputs) for a in e.args if not isinstance(a, ast.Constant)]
    numbers = [a.value for a in e.args if isinstance(a, ast.Constant)]
    return _OPS[e.func.id](*operands, *numbers)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(dot(a.node, b.node, ((1,), (0,))), (a.joints[0], b.joints[1]))


def _elementwise(op: str) -> Callable[[Tensor, Tensor], Tensor]:
    def make(a: Tensor, b: Tensor) -> Tensor:
        if b.node.shape == a.node.shape:
            same = tuple(p if p == q else () for p, q in zip(a.joints, b.joints, strict=True))
            return Tensor(mk(op, a.node, b.node), same)
        wide = mk("broadcast_in_dim", b.node, shape=a.node.shape, broadcast_dimensions=())
        return Tensor(mk(op, a.node, wide), a.joints)

    return make


def _relu(a: Tensor) -> Tensor:
    zero = mk("broadcast_in_dim", literal(0.0, "float64"), shape=a.node.shape, broadcast_dimensions=())
    return Tensor(mk("max", a.node, zero), a.joints)


def _transpose(a: Tensor) -> Tensor:
    return Tensor(mk("transpose", a.node, permutation=(1, 0)), a.joints[::-1])


def _concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    n = int(str(a.node.shape[axis]))
    along = (*a.joints[axis], *(n + j for j in b.joints[axis]), n)
    joints = tuple(
        along if i == axis else p if p == q else () for i, (p, q) in enumerate(zip(a.joints, b.joints, strict=True))
    )
    return Tensor(mk("concatenate", a.node, b.node, dimension=axis), joints)


def _split(a: Tensor, axis: int, part: int) -> Tensor:
    *joints, middle = a.joints[axis]
    left, right = tuple(j for j in joints if j < middle), tuple(j - middle for j in joints if j > middle)
    shape: list[Any] = list(a.node.shape)
    start, limit = [0] * len(shape), list(shape)
    start[axis], limit[axis] = (0, middle) if part == 0 else (middle, shape[axis])
    node = mk(
        "slice", a.node, start_indices=tuple(start), limit_indices=tuple(limit), strides=(1,) * len(shape)
    )  # fmt: skip
    return Tensor(node, tuple((left, right)[part] if i == axis else p for i, p in enumerate(a.joints)))


def _conv(a: Tensor, b: Tensor) -> Tensor:
    taps = [int(str(n)) for n in b.node.shape[2:]]
    padding = tuple((n // 2, n - 1 - n // 2) for n in taps)
    order = tuple(range(4))
    node = mk(
        "conv_general_dilated", a.node, b.node, window_strides=(1, 1), padding=padding, lhs_dilation=(1, 1),
        rhs_dilation=(1, 1), dimension_numbers=(order, order, order),
        feature_group_count=a.node.shape[1] // b.node.shape[1], batch_group_count=1,
    )  # fmt: skip
    return Tensor(node, (a.joints[0], b.joints[0], (), ()))


_OPS: dict[str, Callable[..., Tensor]] = {
    "matmul": _matmul, "add": _elementwise("add"), "mul": _elementwise("mul"), "relu": _relu, "transpose": _transpose,
    "concat": _concat, "split": _split, "conv": _conv,
}  # fmt: skip
