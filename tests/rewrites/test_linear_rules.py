"""Rules of linear systems on programs: the e-graph comes to hold the form with the fewest right sides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rewrites.contraction.instance import contraction_rules
from rewrites.grow.growth import grow
from rewrites.library import load
from superopt.ir.graph import Node, literal, mk
from superopt.ir.interp import evaluate
from superopt.machine.deadline import Deadline
from tests.rewrites.test_rules_graphs import check_all_enodes
from tests.support.rules_numeric import arrays_of, dot, egraph, spread, var

A, B, V = var("a", 6, 6), var("b", 6, 5), var("v", 5, 1)
LOW_RANK = dot(var("u", 6, 2), var("w", 2, 6))
Shape = tuple[int, ...]


def inverse(a: Node) -> Node:
    return mk("inverse", a)


def turned(x: Node) -> Node:
    return mk("transpose", x, permutation=(1, 0))


def identity(n: int) -> Node:
    down, right = (mk("iota", dtype="int32", shape=(n, n), dimension=d) for d in (0, 1))
    zero, one = (spread(literal(x, "float64"), (n, n)) for x in (0.0, 1.0))
    return mk("select_n", mk("eq", down, right), zero, one)


def scaled_identity(n: int) -> Node:
    return mk("mul", spread(literal(3.0, "float64"), (n, n)), identity(n))


def diagonal(d: Node, n: int) -> Node:
    down, right = (mk("iota", dtype="int32", shape=(n, n), dimension=d) for d in (0, 1))
    return mk("select_n", mk("eq", down, right), spread(literal(0.0, "float64"), (n, n)), spread(d, (n, n), 0))


def batched(a: Node, b: Node) -> Node:
    return mk("dot_general", a, b, dimension_numbers=(((2,), (1,)), ((0,), (0,))))


def kronecker(a: Node, b: Node) -> Node:
    (m, _), (n, _) = a.shape, b.shape
    product = mk("mul", spread(a, (m, n, m, n), 0, 2), spread(b, (m, n, m, n), 1, 3))
    return mk("reshape", product, new_sizes=(m * n, m * n))


def newton_step() -> Node:
    y = var("y", 6)
    return mk("mul", dot(inverse(A), y), spread(dot(dot(y, inverse(A), 0), y, 0), (6,)))


Y = var("y", 1, 6)
FORMS: dict[str, tuple[Callable[[], Node], tuple[str, ...], str, Shape]] = {
    "an inverse times a matrix": (lambda: dot(inverse(A), B), ("product-with-inverse",), "solve", (6, 5)),
    "an inverse times a vector": (lambda: dot(inverse(A), var("x", 6)), ("product-with-inverse",), "solve", (6, 1)),
    "a matrix times an inverse": (lambda: dot(Y, inverse(A)), ("product-with-inverse",), "solve", (6, 1)),
    "a transposed inverse": (lambda: dot(turned(inverse(A)), B), ("product-with-inverse",), "solve", (6, 5)),
    "inverses of a batch": (
        lambda: batched(inverse(var("a", 3, 6, 6)), var("b", 3, 6, 5)), ("product-with-inverse",), "solve", (3, 6, 5),
    ),
    "a chain": (lambda: dot(dot(inverse(A), B), V), ("product-with-inverse",), "solve", (6, 1)),
    "a chain behind a solution": (
        lambda: dot(mk("solve", A, B), V), ("solution-times-matrix",), "solve", (6, 1),
    ),
    "a chain before a solution": (lambda: dot(Y, mk("solve", A, B)), ("matrix-times-solution",), "solve", (6, 1)),
    "a product of many columns": (
        lambda: mk("solve", A, dot(var("c", 6, 2), var("d", 2, 5))), ("solution-of-product",), "solve", (6, 2),
    ),
    "a quadratic form": (
        lambda: dot(dot(Y, inverse(A)), var("x", 6, 1)), ("product-with-inverse",), "solve", (6, 1),
    ),
    "a quadratic form beside its gradient": (
        newton_step, ("matrix-times-solution",), "solve", (6, 1),
    ),
    "a solution of the identity": (
        lambda: dot(dot(mk("solve", A, identity(6)), B), V), ("inverse-of-identity",), "solve", (6, 1),
    ),
    "a sum": (
        lambda: mk("add", mk("solve", A, B), mk("solve", A, var("c", 6, 5))), ("sum-of-solutions",), "solve", (6, 5),
    ),
    "a difference": (
        lambda: mk("sub", mk("solve", A, B), mk("solve", A, var("c", 6, 5))), ("difference-of-solutions",),
        "solve", (6, 5),
    ),
    "several right sides": (
        lambda: mk("mul", dot(inverse(A), var("x", 6)), dot(inverse(A), var("y", 6))), ("solutions-merge",),
        "solve", (6, 2),
    ),
    "a Kronecker product": (
        lambda: mk("solve", kronecker(var("a", 3, 3), var("b", 2, 2)), var("y", 6, 5)),
        ("solution-with-kronecker-product",), "solve", (3, 10),
    ),
    "an inverse of a Kronecker product": (
        lambda: dot(inverse(kronecker(var("a", 3, 3), var("b", 2, 2))), var("y", 6)),
        ("inverse-of-kronecker-product",), "solve", (2, 3),
    ),
    "an identity and a product of low rank": (
        lambda: mk("solve", mk("add", identity(6), LOW_RANK), B),
        ("solution-with-low-rank",), "solve", (2, 5),
    ),
    "a scaled identity and a product of low rank": (
        lambda: dot(inverse(mk("add", scaled_identity(6), LOW_RANK)), var("y", 6)),
        ("solution-with-low-rank",), "solve", (2, 1),
    ),
    "an identity with a scale of the program": (
        lambda: mk("solve", mk("add", mk("mul", spread(var("s"), (6, 6)), identity(6)), LOW_RANK), B),
        ("scaled-identity", "solution-with-low-rank"), "solve", (2, 5),
    ),
    "an inverse with a product of low rank": (
        lambda: inverse(mk("add", identity(6), LOW_RANK)),
        ("inverse-with-low-rank",), "solve", (2, 6),
    ),
    "a diagonal and a product of low rank": (
        lambda: mk("solve", mk("add", diagonal(var("d", 6), 6), LOW_RANK), B),
        ("solution-with-diagonal-and-low-rank",), "solve", (2, 5),
    ),
    "a sum of inverses": (
        lambda: dot(inverse(mk("add", inverse(A), inverse(var("c", 6, 6)))), B),
        ("solution-with-sum-of-inverses",), "solve", (6, 5),
    ),
    "a solution and its matrix": (
        lambda: dot(A, dot(inverse(A), B)), ("matrix-times-its-solution",), "input", (6, 5),
    ),
    "a solution of its matrix's product": (
        lambda: mk("solve", A, dot(A, var("c", 6, 5))), ("solution-of-matrix-product",), "input", (6, 5),
    ),
    "a solution with an inverse": (
        lambda: mk("solve", inverse(A), B), ("solution-with-inverse",), "dot_general", (6, 5),
    ),
    "an inverse of an inverse": (
        lambda: dot(inverse(inverse(A)), B), ("inverse-of-inverse",), "dot_general", (5, 6),
    ),
    "a diagonal": (lambda: dot(inverse(diagonal(var("d", 6), 6)), B), ("inverse-of-diagonal",), "div", (6,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_best_form_is_found(name: str) -> None:
    make, rules, op, shape = FORMS[name]
    root = make()
    eg = egraph(root)
    deadline = Deadline.within(20.0)
    reports = [grow(eg, [*load(), *contraction_rules(eg)], deadline=deadline) for _ in range(2)]
    assert all(any(report.rules[rule].unions for report in reports) for rule in rules)
    assert not {rule for report in reports for rule, counts in report.rules.items() if counts.errors}
    found = {eg.shape(eg.ref_of(node)) for cls in eg.classes() for node in eg.enodes(cls) if eg.op_of(node) == op}
    assert shape in found, found
    values = arrays_of(root)
    values |= {n: x + 6 * np.eye(*x.shape[-2:]) for n, x in values.items() if x.ndim > 1 and x.shape[-1] == x.shape[-2]}
    assert all(np.isfinite(x).all() for x in evaluate((root,), values))
    check_all_enodes(eg, values)
