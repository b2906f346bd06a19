"""Scoring kernels: features as they were when the shipped weights were fitted, the forward pass, entries of nodes."""

from __future__ import annotations

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel.features.node_rows import OPCODES
from costmodel.labels.forms import softmax
from costmodel.labels.microsuite import suite
from costmodel.model import learned_file, network
from costmodel.model.catalogue import Catalogue, tabulate
from costmodel.model.encode import (
    KernelEncoder,
    KernelStructure,
    _sum_rows,
    join,
    kernel_features,
    pack,
    pooled_features,
)
from costmodel.model.forward import Forward
from costmodel.model.learned import Learned, predict
from superopt.ir.build import dot, kernel, tensor
from superopt.ir.graph import Graph, mk
from tests.support.golden_features import MAKERS, RECORD, labelled

MODEL = learned_file.read()[0]


@functools.cache
def kernels() -> list[Graph]:
    return [*labelled(), *[case.graph for case in suite()][::4]]


@pytest.mark.parametrize(("name", "error"), [("steps", 1e-12), ("kernels", 1e-6), ("stages", 1e-6)])
def test_features_are_those_that_the_weights_were_fitted_to(name: str, error: float) -> None:
    np.testing.assert_allclose(MAKERS[name](), np.load(RECORD)[name], rtol=error)


def test_features_do_not_depend_on_what_else_the_catalogue_holds() -> None:
    together, catalogue = tabulate(kernels()[:196]), Catalogue()
    parts = [catalogue.table(catalogue.reached(kernels()[i : i + 7])) for i in range(0, 196, 7)]
    np.testing.assert_allclose(np.concatenate([t.counts for t in parts]), together.counts, rtol=1e-12)
    np.testing.assert_array_equal(np.concatenate([t.spread for t in parts]), together.spread)
    again = catalogue.table(catalogue.reached(kernels()[:196]))
    np.testing.assert_allclose(again.counts, together.counts, rtol=1e-12)


def test_the_forward_pass_says_what_the_network_says() -> None:
    encoder = KernelEncoder()
    table, structures = encoder.encode(kernels()[:64])
    pooled = pooled_features(join(structures, encoder.rows), encoder.rows)
    kernel = MODEL.standard(np.hstack([kernel_features(table, MODEL.prior, structures), pooled]))
    forward = Forward(MODEL.params, MODEL.shape, encoder.rows)
    found = predict(MODEL, table, structures, encoder.rows, gated=False, forward=forward)
    batch = pack(structures, encoder.rows, 128)
    padded = np.zeros((128, kernel.shape[1]), np.float32)
    padded[:64] = kernel
    values = np.concatenate([encoder.rows.values, np.zeros_like(encoder.rows.values[:1])])
    nodes = jax.tree.map(jnp.asarray, network.as_arrays(batch) | {"rows": values[batch.rows]})
    gate = jnp.full(128, MODEL.scale, jnp.float32)
    wanted = network.correction(MODEL.params, nodes, jnp.asarray(padded), gate, MODEL.shape.bound)[:64]
    np.testing.assert_allclose(np.log(found.members_s / found.prior_s[:, None]), wanted, atol=1e-5)


def test_pooled_features_are_sums_and_maxima_of_the_nodes_of_a_kernel_and_their_ops() -> None:
    encoder = KernelEncoder()
    _, structures = encoder.encode(kernels()[:40])
    structures.insert(7, KernelStructure([], [], 0))  # a kernel without a step
    found = pooled_features(join(structures, encoder.rows), encoder.rows)
    for structure, got in zip(structures, found, strict=True):
        values, ops = encoder.rows.values[structure.rows], encoder.rows.ops[structure.rows]
        wanted = values.sum(0), values.max(0, initial=0.0), np.bincount(ops, minlength=len(OPCODES))
        numbers = np.concatenate(wanted)
        np.testing.assert_allclose(got, np.sign(numbers) * np.log1p(np.abs(numbers)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("owner", [[0, 1, 2], [0, 0, 2], [0, 2], [1, 1, 1], []])
def test_rows_of_a_kernel_are_summed_however_many_it_has(owner: list[int]) -> None:
    values = np.random.default_rng(0).random((len(owner), 2))
    wanted = np.zeros((3, 2))
    np.add.at(wanted, owner, values)
    np.testing.assert_allclose(_sum_rows(values, np.array(owner, int), 3), wanted)


def test_entries_last_as_long_as_their_nodes() -> None:
    learned = Learned(MODEL, "test")
    entries = learned.encoder.catalogue.entries
    kept = [kernel(mk("exp", mk("neg", tensor("kept", 24, 48))))]
    first = learned.price(kept)
    assert len(entries) == 3
    for i in range(3):  # of the same kinds
        np.testing.assert_array_equal(
            learned.price([kernel(mk("exp", mk("neg", tensor(f"passing{i}", 24, 48))))]), first
        )
    gc.collect()
    assert len(entries) == 3
    np.testing.assert_array_equal(learned.price(kept), first)


def test_long_kernels_and_several_results_share_entries() -> None:
    x = tensor("x", 16, 16)
    long = x
    for _ in range(300):
        long = mk("add", long, mk("neg", x))
    both = Graph((x,), (long, mk("exp", long)))
    encoder = KernelEncoder()
    one, (structure,) = encoder.encode([kernel(long)])
    two, _ = encoder.encode([both])
    assert one.counts.shape[0] == 1
    assert two.counts.shape[0] == 2
    np.testing.assert_array_equal(one.counts[0], two.counts[0])
    assert len(structure.rows) == 302
    assert structure.links == 601
    assert structure.operands[-2:] == [300, 1]


def test_a_heavy_op_that_reads_one_value_twice_reads_it_once() -> None:
    a, b = tensor("a", 64, 64), tensor("b", 64, 64)
    square, product = (tabulate([kernel(dot(a, y, ((1,), (0,))))]).counts[0] for y in (a, b))
    assert square.sum() == pytest.approx(product.sum() - 4 * 64 * 64)
    assert len(tabulate([kernel(softmax(a))]).counts) == 4


def test_products_over_the_first_and_the_last_axis_of_an_operand_differ() -> None:
    a, t, w = tensor("a", 64, 32), tensor("t", 32, 64), tensor("w", 32, 48)
    encoder = KernelEncoder()
    _, (last, first) = encoder.encode([kernel(dot(a, w, ((1,), (0,)))), kernel(dot(t, w, ((0,), (0,))))])
    rows = encoder.rows.values
    differing = np.flatnonzero(rows[last.rows[-1]] != rows[first.rows[-1]])
    assert len(differing) == 1, "all sizes are the same"


def test_products_with_a_batch_axis_in_front_or_behind_differ() -> None:
    a, t = tensor("a", 8, 64, 32), tensor("t", 64, 8, 32)
    w, v = tensor("w", 8, 32, 48), tensor("v", 32, 8, 48)
    encoder = KernelEncoder()
    graphs = [kernel(dot(a, w, ((2,), (1,)), (0,))), kernel(dot(t, v, ((2,), (0,)), (1,)))]
    _, (front, inside) = encoder.encode(graphs)
    rows = encoder.rows.values
    assert np.count_nonzero(rows[inside.rows[-1]] != rows[front.rows[-1]]) == 2, "once for each operand"
