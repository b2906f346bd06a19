"""The learned cost model: encoding, network, training domain, fit, file, objective."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load, save

from costmodel.labels.microsuite import MicroCase, suite
from costmodel.model import adapt, analytical, learned_file, network, weights_file
from costmodel.model.encode import KernelEncoder, KernelStructure, kernel_features, pack
from costmodel.model.learned import Learned, predict
from costmodel.model.load import load_objective, load_roofline
from costmodel.model.model import Model, NetworkShape
from costmodel.model.objective import Objective
from superopt.ir.build import dot, kernel, spread, tensor
from superopt.ir.graph import Graph, mk
from superopt.ir.text import print_graph
from superopt.lab.training import corpus, evaluate, fit
from superopt.lab.training.corpus import KernelLabel
from superopt.lab.training.settings import FitSettings
from superopt.machine import facts as machine
from superopt.store import Store
from tests.support.machines import FOUR_CORES

SMALL = FitSettings(shape=NetworkShape(width=12, layers=2, trunk=16, heads=3), epochs=20, batch=32, prior_steps=60)


@functools.cache
def kernels_of_suite() -> list[MicroCase]:
    return suite()


@functools.cache
def examples() -> list[MicroCase]:
    return [c for c in kernels_of_suite() if c.kind in ("dot", "vector", "loop", "scan")][::2]


@functools.cache
def labels() -> list[KernelLabel]:
    """Synthetic times: the shipped roofline, products with a transposed operand 1.6 times slower."""
    prices = load_roofline().price([c.graph for c in examples()])
    slow = [1.6 if "nk" in c.name else 1.0 for c in examples()]
    return [
        KernelLabel(c.kind, f"{c.kind}/{i % 7}", c.task, c.name, f"k{i}", c.graph, float(p * s), 0.02, None)
        for i, (c, p, s) in enumerate(zip(examples(), prices, slow, strict=True))
    ]


@functools.cache
def data() -> fit.Data:
    return fit.prepare(labels())


@functools.cache
def model() -> Model:
    return fit.fit(data(), SMALL, 0)


@pytest.fixture(autouse=True)
def one_machine() -> Generator[None]:
    """Features depend on cores and caches: the same wherever this runs."""
    with machine.taken(FOUR_CORES):
        yield


def test_fit_learns_what_the_roofline_misses() -> None:
    found = predict(model(), data().table, data().structures, data().rows)
    error = np.abs(np.log(found.seconds / data().seconds)).mean()
    assert error < 0.8 * np.abs(np.log(found.prior_s / data().seconds)).mean()
    assert np.abs(np.log(found.members_s / found.prior_s[:, None])).max() <= model().shape.bound + 1e-4
    assert (found.uncertainty >= 0).all()
    assert found.uncertainty.max() > 0


def test_vectors_of_ops_begin_around_zero() -> None:
    op = np.asarray(network.initial(SMALL.shape, jax.random.key(0))["op"])
    assert abs(op.mean()) < 0.05
    assert op.std() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_fit_is_deterministic_in_the_seed(share: int) -> None:
    short, part = replace(SMALL, epochs=1), data().part(np.arange(0, len(labels()), share))
    one, two, other = (fit.fit(part, short, seed, prior=model().prior) for seed in (3, 3, 4))
    for name in one.params:
        np.testing.assert_array_equal(one.params[name], two.params[name])
    assert not np.array_equal(one.params["row"], other.params["row"])


def test_a_price_does_not_depend_on_the_batch() -> None:
    graphs = [c.graph for c in examples()[:70]]
    together = Learned(model(), "test").price(graphs)
    alone = Learned(model(), "test")
    np.testing.assert_allclose([alone.price([g])[0] for g in graphs], together, rtol=3e-4)
    again = Learned(model(), "test")
    np.testing.assert_allclose(again.price(graphs[::-1])[::-1], together, rtol=3e-4)
    np.testing.assert_array_equal(again.price(graphs), again.price(graphs))


def test_node_order_does_not_matter() -> None:
    x, y, z = tensor("x", 64, 96), tensor("y", 64, 96), tensor("z", 96)
    node = mk("add", mk("mul", x, y), mk("exp", spread(z, (64, 96), 1)))
    encoder = KernelEncoder()
    table, (structure,) = encoder.encode([kernel(node)])
    order = np.random.default_rng(0).permutation(len(structure.rows))
    place = np.argsort(order)
    ends = np.cumsum(encoder.rows.fans[structure.rows])
    operands = np.split(place[structure.operands], ends[:-1])  # of each node
    shuffled = KernelStructure(
        [structure.rows[i] for i in order], np.concatenate([operands[i] for i in order]).tolist(), structure.bytes
    )
    prices = [predict(model(), table, [s], encoder.rows, gated=False).seconds for s in (structure, shuffled)]
    np.testing.assert_allclose(*prices, rtol=1e-4)
    packed = [pack([s], encoder.rows, 16) for s in (structure, shuffled)]
    assert sorted(packed[0].rows.tolist()) == sorted(packed[1].rows.tolist())


def test_outside_the_training_domain_the_roofline_decides() -> None:
    windows = [c.graph for c in kernels_of_suite() if c.kind in ("pool", "depthwise") and "shifts" not in c.name][:12]
    objective = Learned(model(), "test")
    assert objective.outside(windows).all()
    assert not objective.outside([c.graph for c in examples()]).mean() > 0.05
    table, structures = objective.encode(windows)
    far = replace(model(), domain=replace(model().domain, radius=1e-3))
    np.testing.assert_array_equal(far.domain.gate(kernel_features(table, model().prior, structures)), 0.0)
    np.testing.assert_allclose(Learned(far, "t").price(windows), analytical.seconds(table, model().prior), rtol=3e-4)


def test_huge_kernels_and_several_outputs() -> None:
    x = tensor("x", 32, 32)
    long = x
    for _ in range(600):
        long = mk("add", long, x)
    both = Graph((x,), (mk("neg", x), mk("exp", x)))
    prices = Learned(model(), "test").price([kernel(long), both, kernel(mk("neg", x))])
    assert np.isfinite(prices).all()
    assert (prices > 0).all()
    assert Learned(model(), "test").price([]).shape == (0,)


def test_it_is_an_objective_with_a_version_of_its_own() -> None:
    one = Learned(model(), "test")
    assert isinstance(one, Objective)
    assert one.version == Learned(model(), "elsewhere").version
    assert one.version != Learned(replace(model(), scale=0.5), "test").version
    assert one.version != Learned(replace(model(), mean=model().mean + 0.5), "test").version


# ---- on disk


def written(folder: Path) -> Path:
    path = folder / "learned.safetensors"
    learned_file.write(path, model(), {"machine": machine.as_dict()})
    return path


def test_weights_are_read_back(tmp_path: Path) -> None:
    read, card = learned_file.read(written(tmp_path))
    assert card["machine"]["fingerprint"] == machine.fingerprint()
    graphs = [c.graph for c in examples()[:20]]
    np.testing.assert_allclose(Learned(read, "a").price(graphs), Learned(model(), "b").price(graphs), rtol=1e-3)


def _card(path: Path, **change: object) -> None:
    side = path.with_suffix(".json")
    side.write_text(json.dumps({**json.loads(side.read_text()), **change}))


def _tensors(path: Path, name: str, value: np.ndarray | None) -> None:
    found = load(path.read_bytes())
    if value is None:
        del found[name]
    else:
        found[name] = value
    path.write_bytes(save(found))
    _card(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("features", "made for features"), ("encoding", "made for encoding"), ("nan", "not finite"),
        ("truncated", "damaged"), ("missing", "missing"), ("shape", "has shape"), ("other", "not the file"),
        ("absent", "cannot be read"), ("card", "no card"), ("network", "no network"), ("scale", "not positive"),
        ("huge", "beyond"), ("width", "no network"),
    ],
)  # fmt: skip
def test_unusable_weights_are_refused_and_the_roofline_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, reason: str
) -> None:
    path = written(tmp_path)
    if damage in ("features", "encoding"):
        _card(path, **{damage: -1})
    elif damage == "nan":
        _tensors(path, "network.heads", np.full((16, 3), np.nan, np.float32))
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "missing":
        _tensors(path, "network.row", None)
    elif damage == "shape":
        _tensors(path, "network.row", np.zeros((3, 3), np.float32))
    elif damage == "other":
        path.write_bytes(save(load(path.read_bytes()) | {"hull.radius": np.ones(1, np.float32)}))
    elif damage == "absent":
        path.unlink()
    elif damage == "card":
        _card(path, format=0)
    elif damage == "network":
        _card(path, shape={"wide": 3})
    elif damage == "width":
        _card(path, shape={"width": [3]})
    elif damage == "huge":
        _tensors(path, "hull.centres", np.full_like(load(path.read_bytes())["hull.centres"], 1e30))
    else:
        _tensors(path, "input.std", np.zeros_like(model().std))
    with pytest.raises(weights_file.WeightsError, match=reason):
        learned_file.read(path)
    monkeypatch.setattr(learned_file, "SHIPPED", path)
    found = load_objective()
    assert found.name == "roofline"
    assert reason in found.source


# ---- on another machine


def test_shipped_for_another_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(learned_file, "SHIPPED", path)
    assert "this kind of machine" in load_objective().source
    _card(path, machine={"fingerprint": "0", "cpu": "Other 9000"})
    found = load_objective(None)
    assert "Other 9000" in found.source
    assert "not calibrated on this one" in found.source


def test_calibration_moves_the_model_to_another_machine_and_is_kept(tmp_path: Path) -> None:
    cases = examples()[::3]
    twice = 2.0 * Learned(model(), "test").price([c.graph for c in cases])
    adapted = adapt.adapt(model(), cases, twice)
    before = np.abs(np.log(Learned(model(), "a").price([c.graph for c in cases]) / twice)).mean()
    after = np.abs(np.log(Learned(adapted, "b").price([c.graph for c in cases]) / twice)).mean()
    assert after < 0.5 * before
    assert adapted.scale > 0
    with Store(tmp_path / "s.sqlite") as store:
        assert adapt.recall(store, "here", model()) is None
        adapt.keep(store, "here", adapted, {})
        kept = adapt.recall(store, "here", model())
        assert isinstance(kept, Model)
        assert kept.scale == adapted.scale
        np.testing.assert_allclose(kept.prior.theta, adapted.prior.theta, rtol=1e-5)
        store.put("calibration", "here", {"scale": 7})
        with pytest.raises(weights_file.WeightsError):
            adapt.recall(store, "here", model())


# ---- corpus and figures


def test_splits_share_no_kernel_and_no_task() -> None:
    twin = [replace(labels()[0], family="other", program="other/0", task="t")]
    found = [*labels(), *twin]
    split = corpus.by_family(found, "other")
    assert split.test.tolist() == [len(labels())]
    assert 0 not in split.train
    assert split.shared == 1
    program = corpus.by_program(found, 0)
    assert not {found[i].key for i in program.train} & {found[i].key for i in program.test}
    assert {found[i].program for i in program.test}.isdisjoint({found[i].program for i in program.train})


def test_features_are_those_of_the_machine_of_the_labels() -> None:
    own = machine.describe()
    other = machine.from_dict({**machine.as_dict(), "cores": own.cores + 3, "caches_bytes": {"L2": 1, "L3": 1 << 40}})
    with machine.taken(other):
        assert machine.describe().cores == own.cores + 3
        assert machine.as_dict()["fingerprint"] != machine.fingerprint(own)
    with machine.taken(machine.from_dict({"cores": 3})):  # facts are missing: nothing is known of the other
        assert machine.describe() == own
    assert machine.describe() == own
    with gzip.open(corpus.SHIPPED, "rt") as lines:
        header = json.loads(next(lines))["header"]["machine"]
    assert machine.fingerprint(machine.from_dict(header)) == header["fingerprint"]


def test_a_label_file_is_read_or_refused(tmp_path: Path) -> None:
    graph = examples()[0].graph
    line = {
        "family": "f", "program": "f/0", "task": "t", "form": "a", "key": "k", "text": print_graph(graph),
        "seconds": 2e-5, "stderr": 0.01, "again_s": 2.2e-5,
    }  # fmt: skip
    path = tmp_path / "l.jsonl.gz"
    rows = [{"header": {"date": "x"}}, line, {**line, "seconds": 1e-5}]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = corpus.load(path)
    assert [x.seconds for x in found.labels] == [1e-5]
    assert corpus.noise_floors(found.labels) == pytest.approx({"noise_floor_mean": 1.2, "noise_floor_median": 1.2})
    path.write_bytes(gzip.compress(b'{"family": 1}'))
    with pytest.raises(corpus.CorpusError, match="line 1"):
        corpus.load(path)
    with pytest.raises(corpus.CorpusError, match="cannot be read"):
        corpus.load(tmp_path / "none")


def test_figures_of_perfect_predictions() -> None:
    found = evaluate.figures(data().seconds, labels())
    assert found["mape"] == found["log_error"] == found["regret"] == 0.0
    assert found["tau"] == found["pairs"] == 1.0


@pytest.mark.usefixtures("workers_quickly")
def test_evaluation_begins_no_seed_that_would_end_after_its_budget() -> None:
    some = [x for i, x in enumerate(labels()) if i % 8 == 0 or x.family == "scan"]
    split = corpus.by_family(some, "scan")
    quick = replace(SMALL, shape=NetworkShape(width=4, layers=1, trunk=4, heads=2), epochs=1, prior_steps=5)
    (result,) = evaluate.run_splits(some, [split], 3, quick, budget_s=0.0, workers=1)
    assert len(result.learned) == 1
    assert result.test == sum(x.family == "scan" for x in some)


def test_the_summary_names_the_bars_with_trees_beside_them() -> None:
    def split(name: str, tau: float, other: float) -> evaluate.SplitResult:
        prior, learned, trees = (
            {"mape": e, "mape_long": e, "tau": t, "tau_b": t, "regret": 0.0}
            for e, t in ((0.4, 0.5), (0.2, tau), (0.3, other))
        )
        return evaluate.SplitResult(name, 1, 1, 0, prior, (learned, {**learned, "tau": 0.5 * tau}), 0.0, 1.0, trees)

    found = evaluate.summary_of([split("without f", 0.6, 0.6)], [split("programs 0", 0.8, 0.75)])
    assert (found["tau_fusion"], found["tau_fusion_worst"], found["vs_trees"]) == (0.6, 0.4, 0.8)
    assert (found["mape_xla_random"], found["mape_xla_lofo"], found["prior_mape_xla_lofo"]) == (0.2, 0.2, 0.4)
    assert (found["trees_tau_fusion_lofo"], found["vs_trees_lofo"]) == (0.6, 0.75)


def test_a_second_visit_bounds_what_order_can_be_known() -> None:
    graph = examples()[0].graph
    visits = [(1.0, 1.0), (1.01, 0.99), (2.0, 2.1)]  # the first two are within their noise, and come out the other way
    found = [KernelLabel("f", "p", "t", str(i), f"k{i}", graph, a, 0.02, b) for i, (a, b) in enumerate(visits)]
    assert evaluate.ceiling(found) == {"tau_ceiling": 1.0, "tau_plain_ceiling": pytest.approx(1 / 3, abs=1e-4)}
    assert evaluate.ceiling(labels()) == {}


def test_products_of_one_shape_in_two_layouts_differ_for_the_network() -> None:
    a, w, t = tensor("a", 64, 32), tensor("w", 32, 48, frozen=True), tensor("t", 48, 32, frozen=True)
    encoder = KernelEncoder()
    _, (first, second) = encoder.encode([kernel(dot(a, w, ((1,), (0,)))), kernel(dot(a, t, ((1,), (1,))))])
    rows = encoder.rows.values
    assert not np.array_equal(rows[first.rows[-1]], rows[second.rows[-1]])
    assert first.operands == second.operands
