"""Corners of the calls that users make: options that do not go together, weak types, files refused before the work."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.certify.rule_files import verify_files, verify_library
from superopt.commands import main as cli
from superopt.errors import ArgumentError, InputError, UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench import run_suite

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit status and standard error of a command."""
    with pytest.raises(SystemExit) as done:
        cli.main_with(args)
    return int(done.value.code or 0), capsys.readouterr().err


@pytest.fixture
def model(tmp_path):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    return path


def test_options_that_do_not_go_together(model) -> None:
    from superopt.frontends.onnx.frontend import load_model

    for options in ({"frozen": 0}, {"frozen": "x"}, {"kwargs": {"x": X}}):
        with pytest.raises(UsageError):
            superopt.optimize(model, dims={"n": 3}, store=False, **options)
    with pytest.raises(UsageError, match="loaded already"):
        superopt.optimize(load_model(model, dims={"n": 3}), dims={"n": 4}, store=False)
    assert superopt.optimize(model, dims={"n": 3}, budget="5steps", deterministic=True, store=False)(X[0])[0].shape == (
        3,
    )


def test_jit_tells_weak_types_apart() -> None:
    @superopt.jit(budget="5steps", deterministic=True, store=False)
    def scaled(x, s):
        return x * s

    x = jnp.asarray(X, jnp.bfloat16)
    assert scaled(x, 2.0).dtype == (x * 2.0).dtype == jnp.bfloat16
    assert scaled(x, np.float32(2.0)).dtype == (x * np.float32(2.0)).dtype == jnp.float32
    with pytest.raises(TypeError, match="abstract array"):  # what jax.jit raises
        scaled(x, "two")


def test_files_are_refused_before_the_work(capsys, tmp_path, model) -> None:
    for option, path in (("--report", "r.pdf"), ("--report", "no/such/r.html"), ("--out", "no/such/p.superopt")):
        status, text = run(capsys, "optimize", str(model), "--dims", "n=3", option, str(tmp_path / path))
        assert (status, text.count("SO100")) == (1, 1)
        assert "import:" not in text, "nothing was done"
    status, text = run(capsys, "bench", "--suite", "search", "--out", str(tmp_path / "no/such.json"))
    assert (status, "SO100" in text) == (1, True)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_fault_of_ours_exits_6(capsys, model, monkeypatch) -> None:
    def broken(*args, **options):
        raise RuntimeError("a fault")

    monkeypatch.setattr("superopt.pipeline.target.optimize_target", broken)
    status, text = run(capsys, "optimize", str(model))
    assert status == 6
    assert "RuntimeError: a fault" in text


def test_verifying_nothing_is_an_error(capsys, tmp_path) -> None:
    with pytest.raises(InputError):
        verify_library(["no rule is called so"])
    rules = tmp_path / "rules.py"
    rules.write_text('raise SystemExit("never run")\nRULES = """\ntwice: A[*a]\n  A + A  ==  A * 2\n"""\n')
    data = verify_files([str(rules)]).to_json()
    assert (data["rules"], data["proved"]) == (1, 1), "the file is read, not run"
    for source in ("RULES = 3\n", "RULES = (\n", "\0"):
        rules.write_text(source)
        with pytest.raises(InputError):
            verify_files([str(rules)])
    status, text = run(capsys, "verify", str(rules), "--library")
    assert (status, "two requests" in text) == (1, True)


def test_the_search_suite(monkeypatch) -> None:
    from superopt.lab.bench.programs import nets
    from superopt.lab.bench.searches import suite as search

    monkeypatch.setattr(search, "CASES", {"fire": lambda: nets.fire(6, 3, 4, 5)})
    monkeypatch.setattr(search, "DEEP", {"deep_1": 1, "deep_2": 2})
    monkeypatch.setattr(search, "DEEP_PROPOSALS", 20)
    data = run_suite("search", budget="1s", cases=(), seed=0, say=lambda line: None)
    assert set(data) == {"suite", "machine", "versions", "rows", "summary", "text"}
    row, one, two = data["rows"]
    assert row["stop"] == one["stop"] == two["stop"] == "saturated"
    assert one["kernels"] < two["kernels"]
    assert one["distinct"] <= one["kernels"]
    assert two["distinct"] < two["kernels"]
    assert two["distinct"] - one["distinct"] < two["kernels"] - one["kernels"]  # layers are equal
    assert "exponent_search" in data["summary"]
    assert row["predicted_after_ms"] <= row["predicted_before_ms"]
    assert data["summary"]["min_proposals_per_second"] > 0
    json.dumps(data)


ROW = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("fn", "args", "frozen"),
    [
        (lambda x: (), (ROW,), ()),
        (lambda x: 3.0, (ROW,), ()),
        (lambda: jnp.ones(3), (), ()),
        (lambda x: x, (ROW,), ()),
        (lambda x: (x, x, None), (ROW,), ()),
        (lambda a, b: jnp.outer(a, b), (ROW, ROW), (0, 1)),
        (lambda x: x.sum(), (np.ones((0, 3), np.float32),), ()),
        (lambda x: jnp.log(x) @ x, (-np.ones((3, 3), np.float32),), ()),
    ],
    ids=["no result", "constant", "no argument", "identity", "twice", "all frozen", "empty", "NaN"],
)
@pytest.mark.parametrize("budget", ["20steps", pytest.param("0.5s", marks=pytest.mark.slow)])
def test_degenerate_programs(fn, args, frozen, budget: str) -> None:
    result = superopt.optimize(fn, *args, frozen=frozen, budget=budget, deterministic=budget != "0.5s", store=False)
    got, want = result(*args), fn(*args)
    assert jax.tree.structure(got) == jax.tree.structure(jax.tree.map(np.asarray, want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b)


def test_a_number_stays_a_number() -> None:
    """A Python scalar takes the dtype of what it meets; an array in its place would not."""

    def scaled(x, factor):
        return x * factor

    x = np.ones(3, np.float16)
    fast = superopt.optimize(scaled, x, 2.0, budget="20steps", deterministic=True, store=False)
    if not fast.report.original_returned:
        with pytest.raises(ArgumentError):
            fast(x, np.float32(2))
    assert fast(x, 3.0).dtype == np.float16
    imported = import_function(scaled, (x, 2.0))
    with pytest.raises(ArgumentError):
        imported.flatten((x, np.float32(2)))
    assert imported.flatten((x, 5.0))[1] == 5.0


def test_a_suite_says_when_no_case_has_the_name() -> None:
    with pytest.raises(UsageError, match="kernels has no case named 'nosuch'"):
        run_suite("kernels", budget="1s", cases=["nosuch"], seed=0, say=lambda line: None)
    with pytest.raises(UsageError, match="there is no suite 'nosuch'"):
        run_suite("nosuch", budget="1s", cases=[], seed=0, say=lambda line: None)
