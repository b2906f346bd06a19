"""Orders of sums of products: index forms of regions, the dynamic program, and rules that are proved and applied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from rewrites.contraction.instance import contraction_rules
from rewrites.contraction.order import RoleSet, best_order, paid, program_cost
from rewrites.contraction.region import IndexForm, read, read_opened
from rewrites.grow.growth import grow
from rewrites.language.parse import parse
from rewrites.language.term import subterms
from rewrites.library import by_name
from rewrites.match.space import EGraphSpace
from superopt.errors import RuleError
from superopt.ir.graph import Node, literal, mk
from superopt.machine.deadline import Deadline
from tests.rewrites.test_rules_graphs import check_all_enodes
from tests.support.rules_numeric import arrays_of, dot, egraph, spread, var
from verifier.record.ledger import verify_rules


def chain() -> Node:
    return dot(dot(dot(var("a", 9, 8), var("b", 8, 7)), var("c", 7, 6)), var("d", 6, 1))


def total_of_outer_product() -> Node:
    a, b = spread(var("a", 9), (9, 8), 0), spread(var("b", 8), (9, 8), 1)
    return mk("reduce_sum", mk("mul", a, b), axes=(0, 1))


def kronecker_product() -> Node:
    a = spread(var("a", 4, 5), (4, 3, 5, 2), 0, 2)
    b = spread(var("b", 3, 2), (4, 3, 5, 2), 1, 3)
    return dot(mk("reshape", mk("mul", a, b), new_sizes=(12, 10)), var("x", 10, 2))


def masked_on_both_sides() -> Node:
    mask = mk("mul", spread(var("r", 9), (9, 8), 0), spread(var("c", 8), (9, 8), 1))
    return dot(mk("mul", var("a", 9, 8), mask), var("x", 8, 2))


def mean_of_quotient() -> Node:
    e, s = var("e", 9, 8), spread(var("s", 9), (9, 8), 0)
    mean = mk("reduce_sum", dot(mk("div", e, s), var("v", 8, 7)), axes=(0,))
    return mk("div", mean, spread(literal(9.0, "float64"), (7,)))


def diagonal(x: Node, n: int) -> Node:
    """Keep the entries of a square tensor on its diagonal, as `jnp.diag` and `jnp.trace` trace."""
    down, right = (mk("iota", dtype="int32", shape=(n, n), dimension=d) for d in (0, 1))
    return mk("select_n", mk("eq", down, right), spread(literal(0.0, "float64"), (n, n)), x)


def between_diagonals() -> Node:
    d, e = diagonal(spread(var("d", 6), (6, 6), 0), 6), diagonal(spread(var("e", 5), (5, 5), 1), 5)
    return dot(dot(d, var("w", 6, 5)), e)


def trace_of_product() -> Node:
    return mk("reduce_sum", diagonal(dot(var("a", 6, 3), var("b", 3, 6)), 6), axes=(0, 1))


def diagonals_of_a_batch() -> Node:
    """Diagonals of a batch of products, with one mask for all."""
    batch = (((2,), (1,)), ((0,), (0,)))
    products = mk("dot_general", var("a", 2, 6, 3), var("b", 2, 3, 6), dimension_numbers=batch)
    down, right = (mk("iota", dtype="int32", shape=(6, 6), dimension=d) for d in (0, 1))
    mask = spread(mk("eq", down, right), (2, 6, 6), 1, 2)
    return mk("reduce_sum", mk("select_n", mask, spread(literal(0.0, "float64"), (2, 6, 6)), products), axes=(2,))


def axes_of_one_entry() -> Node:
    column = spread(var("d", 7), (7, 1), 0)
    return mk("reduce_sum", dot(dot(var("a", 9, 8), var("b", 8, 7)), column), axes=(1,))


def whitened() -> Node:
    scale = diagonal(spread(mk("div", spread(literal(1.0, "float64"), (5,)), var("s", 5)), (5, 5), 0), 5)
    return dot(dot(dot(var("x", 9, 5), var("v", 5, 5)), scale), var("u", 5, 5))


def norm_of_low_rank() -> Node:
    return mk("reduce_sum", mk("square", dot(var("a", 30, 2), var("b", 2, 20))), axes=(0, 1))


def norm_of_three() -> Node:
    product = dot(dot(var("a", 40, 40), var("b", 40, 3)), var("c", 3, 40))
    return mk("reduce_sum", mk("square", product), axes=(0, 1))


def centred_twice() -> Node:
    """Products with one matrix that is known ahead and takes the mean from its operand."""
    mean = spread(literal(1 / 30, "float64"), (30, 30))
    centring = mk("sub", diagonal(spread(literal(1.0, "float64"), (30, 30)), 30), mean)
    return dot(dot(dot(dot(var("a", 4, 30), centring), var("b", 30, 5)), var("c", 5, 30)), centring)


def repeated_heads() -> Node:
    keys = mk("reshape", spread(var("k", 3, 7, 4), (3, 2, 7, 4), 0, 2, 3), new_sizes=(6, 7, 4))
    return mk("dot_general", var("q", 6, 5, 4), keys, dimension_numbers=(((2,), (2,)), ((0,), (0,))))


def reflection() -> Node:
    outer = mk("mul", spread(var("v", 20), (20, 20), 0), spread(var("v", 20), (20, 20), 1))
    return dot(mk("sub", diagonal(spread(literal(1.0, "float64"), (20, 20)), 20), outer), var("a", 20, 6))


def kronecker_sum() -> Node:
    a, b = (
        spread(var("a", 6, 6, frozen=True), (6, 5, 6, 5), 0, 2),
        spread(var("b", 5, 5, frozen=True), (6, 5, 6, 5), 1, 3),
    )
    ones = [diagonal(spread(literal(1.0, "float64"), (n, n)), n) for n in (5, 6)]
    left = mk("mul", a, spread(ones[0], (6, 5, 6, 5), 1, 3))
    right = mk("mul", spread(ones[1], (6, 5, 6, 5), 0, 2), b)
    joined = mk("add", *[mk("reshape", x, new_sizes=(30, 30)) for x in (left, right)])
    return dot(joined, var("x", 30, 2))


def sum_of_outer_products() -> Node:
    outer = [mk("mul", spread(var(a, 9), (9, 8), 0), spread(var(b, 8), (9, 8), 1)) for a, b in (("a", "b"), ("c", "d"))]
    return dot(mk("sub", mk("add", outer[0], var("m", 9, 8)), outer[1]), var("x", 8, 1))


REGIONS: dict[str, Callable[[], Node]] = {
    "chain": chain,
    "total of an outer product": total_of_outer_product,
    "Kronecker product": kronecker_product,
    "masked on both sides": masked_on_both_sides,
    "mean of a quotient": mean_of_quotient,
    "matrix between diagonal ones": between_diagonals,
    "trace of a product": trace_of_product,
    "diagonals of a batch of products": diagonals_of_a_batch,
    "axes of one entry": axes_of_one_entry,
    "quotients on a diagonal": whitened,
    "keys repeated for several heads": repeated_heads,
    "norm of a product of thin matrices": norm_of_low_rank,
    "norm of a product of three": norm_of_three,
    "a product centred twice": centred_twice,
    "identity less an outer product": reflection,
    "sum of two Kronecker products": kronecker_sum,
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_gets_a_proved_order_that_fires_and_keeps_values(name: str) -> None:
    root = REGIONS[name]()
    eg = egraph(root)
    before = eg.enode_count
    rules = contraction_rules(eg)
    assert rules
    verdicts = verify_rules(rules)
    assert [v.status for v in verdicts] == ["PROVED"] * len(rules)
    report = grow(eg, rules, deadline=Deadline.within(20.0))
    assert all(report.rules[rule.name].unions for rule in rules)
    assert eg.enode_count > before
    check_all_enodes(eg, arrays_of(root))
    assert not any(report.rules[rule.name].errors for rule in rules)


def test_a_step_of_both_factors_of_a_square_is_paid_once() -> None:
    form = form_of(norm_of_three())
    best = best_order(form)
    assert paid(best.cost, form.sizes) < 0.8 * paid(program_cost(form), form.sizes)


def test_a_matrix_that_is_known_ahead_is_opened_for_each_product_with_it() -> None:
    """Its other uses are no reason to keep it whole: it takes no time in a call."""
    eg = egraph(centred_twice())
    opened = [rule for rule in contraction_rules(eg) if any(t.op == "iota" for t in subterms(rule.lhs))]
    assert len(opened) == 2


def test_a_diagonal_that_is_a_result_or_of_one_tensor_is_left_as_it_is() -> None:
    product = diagonal(dot(var("a", 6, 3), var("b", 3, 6)), 6)
    rows = mk("reduce_sum", diagonal(var("a", 6, 6), 6), axes=(1,))
    for root in (product, rows):
        assert not any(t.op == "iota" for rule in contraction_rules(egraph(root)) for t in subterms(rule.lhs))


def test_a_square_of_a_difference_is_not_opened() -> None:
    a, b = spread(var("a", 9, 4), (9, 8, 4), 0, 2), spread(var("b", 8, 4), (9, 8, 4), 1, 2)
    assert not contraction_rules(egraph(mk("reduce_sum", mk("square", mk("sub", a, b)), axes=(2,))))


def test_each_term_of_an_open_region_has_its_sign() -> None:
    root = sum_of_outer_products()
    eg = egraph(root)
    forms = read_opened(EGraphSpace(eg), eg.find_class(eg.roots[0]))
    assert [form.negative for form in forms] == [False, False, True]
    assert sorted(len(form.operands) for form in forms) == [2, 3, 3]


def test_positions_on_a_left_side_are_compared_with_each_other_alone() -> None:
    with pytest.raises(RuleError, match="iota cannot be matched"):
        parse("x: A[*a i]\n  iota(i) * A  ==  A * iota(i)\n")


def form_of(root: Node) -> IndexForm:
    eg = egraph(root)
    form = read(EGraphSpace(eg), eg.find_class(eg.roots[0]))
    assert form is not None
    return form


def test_no_order_is_cheaper_than_that_of_the_dynamic_program() -> None:
    """Held against all sequences of pairwise products of four operands."""
    form = form_of(chain())
    best = paid(best_order(form).cost, form.sizes)
    assert best < paid(program_cost(form), form.sizes)

    def least(parts: list[RoleSet]) -> int:
        if len(parts) == 1:
            return 0
        costs: list[int] = []
        for i, j in itertools.combinations(range(len(parts)), 2):
            rest = [parts[k] for k in range(len(parts)) if k not in (i, j)]
            work = parts[i] | parts[j]
            kept = work & form.out.union(*rest)
            moved = [parts[i], parts[j], kept] if work - kept else []
            size = {roles: math.prod(form.sizes[r] for r in roles) for roles in (work, *moved)}
            costs.append(size[work] + 4 * sum(size[roles] for roles in moved) + least([*rest, kept]))
        return min(costs)

    assert best == least([form.roles[leaf] for leaf in form.operands])


def test_a_region_in_its_best_order_gets_no_rule() -> None:
    assert not contraction_rules(egraph(dot(var("a", 9, 8), dot(var("b", 8, 7), var("c", 7, 1)))))


def test_an_order_that_the_library_has_made_gets_no_rule() -> None:
    eg = egraph(dot(dot(var("a", 90, 80), var("b", 80, 70)), var("c", 70, 2)))
    before = eg.enode_count
    assert contraction_rules(eg)
    assert eg.enode_count == before  # a rule that is not proved in time leaves nothing
    grow(eg, [by_name("product-order")])
    assert not contraction_rules(eg)


def test_a_value_that_is_needed_elsewhere_is_not_opened() -> None:
    """The mean of a layer norm reads sums that the norm needs as well."""
    x = mk("add", var("r", 90, 80), dot(var("x", 90, 70), var("w", 70, 80)))
    mean = mk("reduce_sum", x, axes=(1,))
    assert contraction_rules(egraph(mean))
    assert not contraction_rules(egraph(mk("sub", x, spread(mean, (90, 80), 0))))


def test_a_square_of_one_tensor_has_two_operands() -> None:
    """Axes of equal tensors stay apart: nothing is read along a diagonal."""
    x = var("x", 6, 6)
    form = form_of(dot(x, x))
    assert [sorted(form.roles[leaf]) for leaf in form.operands] == [["a", "c"], ["b", "c"]]
