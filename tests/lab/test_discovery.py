"""Discovery: small runs find the laws of algebra, lift them as generally as they hold, go on where they stopped."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.commands.main import cli
from superopt.errors import UsageError
from superopt.lab.discovery import calls
from superopt.lab.discovery.algebra import OpForm, apply, binary_forms, digests, result
from superopt.lab.discovery.discover import Discovery, DiscoverySettings, discover, key_of, key_of_fates
from superopt.lab.discovery.enumeration import ROW, jobs, run_job
from superopt.lab.discovery.implied import equations, examples, implied
from superopt.lab.discovery.lift import UnliftableError, lift, typeable
from superopt.lab.discovery.merges import proved_merges
from superopt.lab.discovery.taso import covered, holds, read, substitutions
from superopt.lab.discovery.terms import IMAGE, KERNEL, MATRIX, Universe, leaves_for
from superopt.lab.discovery.widen import widen
from superopt.workshop.job import WorkerDiedError
from superopt.workshop.scheduler import ONE_WORKER, Workers
from verifier.rules.check import check

CONTRACT = OpForm("dot", ((1, 0),))


def implies(texts: tuple[str, ...], text: str) -> bool:
    return implied(parse(text), equations(map(parse, texts)))


# ---- terms and types


def test_values_of_forms_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 5, (2, 4, 3, 3)).astype(float) for _ in range(2))
    types = (MATRIX, MATRIX)
    assert np.array_equal(apply(CONTRACT, a, b, types), np.einsum("nsij,nsjk->nsik", a, b))
    assert np.array_equal(apply(OpForm("dot", ((0, 1),)), a, b, types), np.einsum("nsij,nski->nsjk", a, b))
    assert np.array_equal(apply(OpForm("add", (1, 0)), a, b, types), a + b.swapaxes(2, 3))
    assert np.array_equal(apply(OpForm("concat", (1, 0, 1)), a, b, types), np.concatenate([a, b], axis=3))
    x, w = rng.integers(-5, 5, (1, 2, 2, 3, 4)).astype(float), rng.integers(-5, 5, (1, 2, 3, 5, 3)).astype(float)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, 0), (1, 1)))
    expected = sum(np.einsum("nsbcx,nsco->nsbox", padded[..., r : r + 4], w[..., r]) for r in range(3))
    assert np.array_equal(apply(OpForm("conv", (1, 0)), x, w, (IMAGE, KERNEL)), expected)


@pytest.mark.parametrize("t", [MATRIX, (*MATRIX, (-4,)), ((3, 3), (3,)), ()])
def test_a_fingerprint_does_not_see_the_order_of_axes(t: tuple[tuple[int, ...], ...]) -> None:
    u = Universe()
    value = u.values[u.leaf(t).number]
    order = tuple(range(len(t)))[::-1]
    moved = value.transpose(0, *(i + 1 for i in order))
    assert digests(value[None], t)[0] == digests(moved[None], tuple(t[i] for i in order))[0]
    assert digests(value[None], t)[0] != digests(value[None] + 1, t)[0]


def test_results_have_the_type_that_is_said() -> None:
    u = leaves_for(("dot", "add", "mul", "concat", "conv"), 2)
    ops = frozenset(("dot", "add", "mul", "concat", "conv"))
    seen = set[str]()
    for x in u.terms:
        for y in u.terms:
            for form in binary_forms(x.type, y.type, ops):
                made = Universe.compute(form, [u.values[x.number], u.values[y.number]], (x.type, y.type))
                assert made.shape[1:] == tuple(abs(sum(a)) for a in result(form, x.type, y.type))
                seen.add(form.op)
    assert seen == ops


def test_a_term_that_needs_one_axis_twice_has_no_type() -> None:
    u = leaves_for(("dot",), 2)
    gram = u.add(OpForm("dot", ((0, 0),)), (0, 0))
    assert not typeable(u, gram)
    assert typeable(u, u.add(CONTRACT, (0, 1)))


def test_an_equality_of_square_tensors_alone_is_no_rule() -> None:
    u = leaves_for(("add",), 1)
    a, b = u.terms[0], u.terms[1]
    with pytest.raises(UnliftableError):
        lift(u, a, b)


def test_products_lift_to_the_rule_of_the_library_and_more() -> None:
    u = leaves_for(("dot",), 2)
    ab = u.add(CONTRACT, (0, 1))
    left = u.add(CONTRACT, (ab.number, 2))
    bc = u.add(CONTRACT, (1, 2))
    right = u.add(CONTRACT, (0, bc.number))
    draft = lift(u, left, right)
    assert draft.text("assoc") == (
        "assoc: A[m k]  B[k n]  C[n l]\n  dot(dot(A, B, k), C, n)\n    == dot(A, dot(B, C, n), k)"
    )
    wide, verdict = widen(draft, "assoc")
    assert verdict.proved
    assert set(wide.many) >= {"m", "k", "n", "l"}
    by_hand = next(r for r in load() if r.name == "dot-assoc")
    assert implied(by_hand, equations([parse(wide.text("assoc"))]))
    across = "across: A[*i *m *k]  B[*k *l]  C[*i *l *n]\n  dot(dot(A, B, k), C, l) == dot(A, dot(B, C, l), k)"
    assert implies((wide.text("assoc"),), across)


def test_a_wrong_pair_is_not_proved() -> None:
    u = leaves_for(("dot", "add"), 2)
    left, right = u.add(OpForm("add", (0, 1)), (0, 1)), u.add(OpForm("mul", (0, 1)), (0, 1))
    u.values[right.number] = u.values[left.number]  # as if the fingerprints had collided
    _, verdict = widen(lift(u, left, right), "wrong")
    assert verdict.status == "REFUTED"


def test_implication_needs_the_rule_that_it_needs() -> None:
    text = "distributes: A[*m *k]  B[*k *n]  C[*k *n]\n  dot(A, B, k) + dot(A, C, k) == dot(A, B + C, k)"
    other = "other: A[*m *k]  B[*k *n]  C[*m *k]\n  dot(A, B, k) + dot(C, B, k) == dot(A + C, B, k)"
    assert implies((text,), other)  # the operands of a product commute
    assert not implies(("idempotent: A[*a]\n  maximum(maximum(A, 0), 0) == maximum(A, 0)",), other)


# ---- runs

ALGEBRA = {
    "associative": "r: A[*b *m *k]  B[*b *k *l]  C[*b *l *n]\n  dot(dot(A, B, k), C, l) == dot(A, dot(B, C, l), k)",
    "sums": "r: A[*a]  B[*a]  C[*a]\n  (A + B) + C == A + (B + C)",
}


TWO_OPS = DiscoverySettings(("dot", "add"), 2, library=False)
ONE_OP = DiscoverySettings(("dot",), 2, library=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Discovery]:
    """The folder and the results of a run of two ops without the library."""
    folder = tmp_path_factory.mktemp("bare")
    return folder, discover(TWO_OPS, folder)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Discovery]:
    """The folder and the results of a run of one op without the library."""
    folder = tmp_path_factory.mktemp("products")
    return folder, discover(ONE_OP, folder)


def test_two_ops_find_associativity_without_the_library(bare: tuple[Path, Discovery]) -> None:
    _, found = bare
    assert found.done
    assert found.summary["rules"] <= 8
    for text in ALGEBRA.values():
        assert implies(found.rules, text)
    assert all(check(parse(text)).proved for text in found.rules)


def test_three_ops_find_distributivity(tmp_path: Path) -> None:
    found = discover(DiscoverySettings(("add", "relu", "mul"), 2, library=False), tmp_path)
    assert implies(found.rules, "r: A[*a]\n  maximum(maximum(A, 0), 0) == maximum(A, 0)")
    assert implies(found.rules, "r: A[*a]  B[*a]  C[*a]\n  (A * B) * C == A * (B * C)")
    assert implies(found.rules, "r: A[*a]  B[*a]\n  A * B + A * B == A * (B + B)")


def test_what_the_library_implies_is_not_found_again(bare: tuple[Path, Discovery]) -> None:
    folder, without = bare
    found = discover(replace(TWO_OPS, library=True), folder)
    assert found.summary["pairs"] == without.summary["pairs"]
    assert found.summary["implied"] > without.summary["implied"]
    library = equations(load())
    assert any(implied(parse(text), library) for text in without.rules)


def test_a_run_goes_on_where_it_stopped(bare: tuple[Path, Discovery], tmp_path: Path) -> None:
    folder, whole = bare
    stopped = discover(replace(TWO_OPS, seconds=1e-9), tmp_path)
    assert not stopped.done
    assert not stopped.rules
    (known,) = folder.glob(f"*/fates-{key_of_fates(TWO_OPS)}.jsonl")
    log = tmp_path / known.relative_to(folder)
    lines = known.read_text().splitlines()
    log.write_text("\n".join(lines[: len(lines) // 2]) + "\n")  # as if it had been killed half way
    resumed = discover(TWO_OPS, tmp_path)
    assert resumed.summary["resumed"] == len(lines) // 2
    assert whole.rules == resumed.rules
    third = discover(TWO_OPS, tmp_path)
    assert third.summary["resumed"] == third.summary["judged"]
    assert third.rules == whole.rules


def test_jobs_and_partitions_respect_the_bound_on_rows(products: tuple[Path, Discovery], tmp_path: Path) -> None:
    bound = 2_000
    ops = frozenset(("dot", "add", "mul", "concat"))
    u = leaves_for(ops, 2)
    todo = jobs(u, 1, bound)
    assert len(todo) > 1
    written = [run_job(u, job, ops, tmp_path, 4) for job in todo]
    assert max(written) <= bound
    rows = sum(len(np.load(f)) for f in tmp_path.glob("*/*.npy"))
    assert rows == sum(written)
    assert all(np.load(f).dtype == ROW for f in tmp_path.glob("*/*.npy"))
    folder, large = products
    few = replace(ONE_OP, rows=150)
    (tmp_path / key_of(few)).mkdir()
    fates = f"fates-{key_of_fates(ONE_OP)}.jsonl"
    shutil.copyfile(folder / key_of(ONE_OP) / fates, tmp_path / key_of(few) / fates)  # the pairs are judged already
    small = discover(few, tmp_path)
    assert small.summary["terms"] == large.summary["terms"]
    assert small.summary["pairs"] == large.summary["pairs"]


def test_workers_find_what_one_process_finds(products: tuple[Path, Discovery], tmp_path: Path) -> None:
    _, one = products
    two = discover(ONE_OP, tmp_path, workers=Workers(2))
    assert one.summary["pairs"] == two.summary["pairs"]
    assert all(implies(one.rules, text) for text in two.rules)
    assert all(implies(two.rules, text) for text in one.rules)


def test_tasks_of_a_pool_are_made_when_there_is_room() -> None:
    made: list[int] = []

    def tasks():  # type: ignore[no-untyped-def]
        for n in range(5):
            made.append(n)
            yield (n,)

    with ONE_WORKER.workshop(calls.LIMITS) as workshop:
        results = calls.in_turn(workshop, "make", abs, tasks())
        assert next(results) == 0
        assert len(made) <= 2
        assert list(results) == [1, 2, 3, 4]


def test_a_task_that_ends_its_process_ends_the_run() -> None:
    with ONE_WORKER.workshop(calls.LIMITS) as workshop, pytest.raises(WorkerDiedError, match="bad operand"):
        list(calls.in_turn(workshop, "make", abs, iter([("x",)])))


# ---- coverage, command line


def test_substitutions_are_equations() -> None:
    listed = substitutions()
    assert len(listed) == 383
    assert all(holds(s) for s in listed[::8])
    assert not holds(read("matmul(w1, w2)  ==  matmul(w2, w1)"))


def test_coverage_tells_what_is_implied() -> None:
    rules = equations(load())
    assert covered(read("matmul(matmul(x1, w1), w2)  ==  matmul(x1, matmul(w1, w2))"), rules)
    assert not covered(read("matmul(w1, w2)  ==  matmul(w2, w1)"), rules)


def test_command_line(products: tuple[Path, Discovery], tmp_path: Path) -> None:
    shutil.copytree(products[0], tmp_path, dirs_exist_ok=True)  # judged already
    out = tmp_path / "rules.txt"
    arguments = ["discover", "--ops", "dot", "--size", "2", "--bare", "--folder", str(tmp_path), "--json"]
    done = CliRunner().invoke(cli, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.output)
    assert summary["done"]
    assert summary["rules"] == len(summary["texts"]) >= 1
    assert out.read_text().count("==") == summary["rules"]


def test_unknown_ops_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown op sort"):
        discover(DiscoverySettings(("dot", "sort")), tmp_path)
    with pytest.raises(UsageError, match="at least 1"):
        discover(DiscoverySettings(("dot",), 0), tmp_path)


def test_two_known_parts_of_one_product_are_a_merging_rule() -> None:
    u = leaves_for(("dot", "concat", "slice"), 3)
    joint = u.add(CONTRACT, (0, u.add(OpForm("concat", (1, 0, 1)), (1, 2)).number))
    drafts = [
        lift(u, u.add(OpForm(part, (1,)), (joint.number,)), u.add(CONTRACT, (0, operand)))
        for part, operand in (("first", 1), ("rest", 2))
    ]
    (text,) = proved_merges(drafts)
    rule = parse(text)
    assert rule.mode == "merge"
    assert len(rule.lhs) == 2
    assert {"m", "k", "b"} <= rule.many
    assert not proved_merges(drafts[:1])


def test_convolutions_side_by_side_are_one_in_groups() -> None:
    u = leaves_for(("conv", "concat"), 3)
    (x, y), (w, v) = (u.terms[i : i + 2] for i in _first_of(u, (IMAGE, KERNEL)))
    images = u.add(OpForm("concat", (1, 0, 1, 2)), (x.number, y.number))
    kernels = u.add(OpForm("concat", (0, 0, 1, 2)), (w.number, v.number))
    grouped = u.add(OpForm("gconv", (1, 1)), (images.number, kernels.number))
    apart = [u.add(OpForm("conv", (1, 1)), (a.number, b.number)).number for a, b in ((x, w), (y, v))]
    wide, verdict = widen(lift(u, u.add(OpForm("concat", (1, 0, 1, 2)), apart), grouped), "grouped")
    assert verdict.proved
    line = "concat(conv(i1, k1), conv(i2, k2), 1)  ==  conv(concat(i1, i2, 1), concat(k1, k2, 0))"
    assert covered(read(line), equations([parse(wide.text("grouped"))]))
    assert not covered(read(line), equations(load()))


def _first_of(u: Universe, types: tuple[object, ...]) -> list[int]:
    return [next(x.number for x in u.terms if x.type == t) for t in types]


def test_examples_have_few_axes_and_together_all_roles() -> None:
    text = (
        "wide: A[*b *g *i *ba *bb *m *k]  B[*b *g *i *ba *bb *m *k]\n  dot(A, B, k) + dot(A, B, k) == dot(A, B + B, k)"
    )
    made = examples(parse(text))
    assert made
    used = [{role for role, axes in m.env.labels.items() if axes} for m in made]
    assert max(map(len, used)) <= 6
    assert set().union(*used) == {"b", "g", "i", "ba", "bb", "m", "k"}


def test_found_rules_are_named_apart(tmp_path: Path) -> None:
    found = discover(DiscoverySettings(("dot", "slice"), 2, library=False), tmp_path)
    rules: list[Rule] = [parse(text) for text in found.rules]
    assert len({r.name for r in rules}) == len(rules)
    assert set(found.exactness) == {r.name for r in rules}
