"""Random numbers of ONNX models: of a seed, or others for each node, step and call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.equivalence.models import compare_models
from superopt.errors import InputError
from superopt.frontends.onnx.frontend import load_model
from tests.support.onnx_models import info, model, node

LIKE = [info("x", (64,))]


def outputs(*names: str, shape: Any = (64,), dtype: Any = np.float32) -> list[Any]:
    return [info(name, shape, dtype) for name in names]


def drawn(op: str, **attrs: Any) -> onnx.ModelProto:
    """Two nodes that draw alike."""
    read = "x" if op.endswith("Like") or op == "Bernoulli" else ""
    nodes = [node(op, read, "y", **attrs), node(op, read, "z", **attrs)]
    return model(nodes, LIKE, outputs("y", "z"))


KINDS = {
    "RandomNormalLike": {}, "RandomUniformLike": {}, "RandomNormal": {"shape": [64]}, "RandomUniform": {"shape": [64]},
    "Bernoulli": {},
}  # fmt: skip


@pytest.mark.parametrize("op", KINDS)
def test_nodes_without_a_seed_draw_others_each_and_at_each_call(op: str) -> None:
    loaded, x = load_model(drawn(op, **KINDS[op])), np.full(64, 0.5, np.float32)
    (a, b), (c, d) = loaded(x), loaded(x)
    found = {np.asarray(v).tobytes() for v in (a, b, c, d)}
    assert len(found) == 4
    seeded = load_model(drawn(op, **KINDS[op], seed=3.0))
    (a, b), (c, _) = seeded(x), seeded(x)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
    other = load_model(drawn(op, **KINDS[op], seed=3.5))
    assert (np.asarray(other(x)[0]) != np.asarray(a)).any()


def test_optimised_and_saved_programs_draw_others_at_each_call(tmp_path: Path) -> None:
    fast = superopt.optimize(load_model(drawn("RandomNormalLike")), budget="5steps", deterministic=True, store=False)
    fast.save(tmp_path / "p.superopt")
    x = np.zeros(64, np.float32)
    for run in (fast, superopt.load(tmp_path / "p.superopt")):
        found = {np.asarray(v).tobytes() for _ in range(3) for v in run(x)}
        assert len(found) == 6


@pytest.mark.parametrize("count", [3, 100])
def test_each_step_of_a_loop_draws_its_own(count: int) -> None:
    body = onnx.helper.make_graph(
        [node("RandomUniform", "", "r", shape=[4]), node("Add", "v r", "w"), node("Identity", "c", "d")], "body",
        [info("i", (), np.int64), info("c", (), bool), info("v", (4,))],
        [info("d", (), bool), info("w", (4,)), info("r", (4,))],
    )  # fmt: skip
    stored = {"n": np.array(count), "t": np.array(True)}
    loop = node("Loop", "n t x", "y s", body=body)
    (_, rows) = load_model(model([loop], [info("x", (4,))], outputs("y", "s", shape=None), stored))(np.zeros(4, "f4"))
    assert len({row.tobytes() for row in np.asarray(rows)}) == count
    step = onnx.helper.make_graph(
        [node("RandomUniformLike", "e", "r"), node("Identity", "v", "w")], "body",
        [info("v", (4,)), info("e", (4,))], [info("w", (4,)), info("r", (4,))],
    )  # fmt: skip
    scan = node("Scan", "x m", "y s", body=step, num_scan_inputs=1)
    inputs = [info("x", (4,)), info("m", (count, 4))]
    (_, rows) = load_model(model([scan], inputs, outputs("y", "s", shape=None)))(
        np.zeros(4, "f4"), np.zeros((count, 4), "f4")
    )
    assert len({row.tobytes() for row in np.asarray(rows)}) == count


def test_dropout_while_training_draws_others_at_each_call() -> None:
    stored = {"r": np.float32(0.5), "t": np.array(True)}
    nodes = [node("Dropout", "x r t", "y"), node("Dropout", "x r t", "z")]
    loaded = load_model(model(nodes, LIKE, outputs("y", "z"), stored))
    x = np.ones(64, np.float32)
    assert len({np.asarray(v).tobytes() for v in (*loaded(x), *loaded(x))}) == 4


def test_multinomial_draws_by_probability() -> None:
    made = model([node("Multinomial", "p", "y", sample_size=4000)], [info("p", (2, 3))],
                 outputs("y", shape=(2, 4000), dtype=np.int32))  # fmt: skip
    loaded = load_model(made)
    shares = np.array([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0]])
    with np.errstate(divide="ignore"):
        logs = np.log(shares).astype(np.float32)
    (y,) = loaded(logs)
    assert y.dtype == np.int32
    got = np.stack([np.bincount(row, minlength=3) / 4000 for row in np.asarray(y)])
    np.testing.assert_allclose(got, shares, atol=0.05)
    assert (np.asarray(loaded(logs)[0]) != np.asarray(y)).any()


def test_models_that_draw_are_not_compared() -> None:
    one = drawn("RandomNormalLike")
    with pytest.raises(InputError, match="draws random numbers"):
        compare_models(one, one)
    seeded = drawn("RandomNormalLike", seed=1.0)
    assert compare_models(seeded, seeded).status == "PROVED"
