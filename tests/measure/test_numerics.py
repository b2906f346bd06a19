"""numerics="exact": only rules and laws that keep every bit, and results that are checked bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import superopt
from rewrites.egraph.convert import import_into
from rewrites.egraph.graph import EGraph
from rewrites.library import by_name
from rewrites.lift.generate import instance
from superopt.certify.library import ProvedLibrary, proved_library
from superopt.commands.main import cli
from superopt.contest.checks import OriginalRuns, check, same_bits
from superopt.errors import UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, literal, make_input, mk
from superopt.ir.interp import evaluate
from superopt.ir.program import Program, original_program

RNG = np.random.default_rng(7)
DETERMINISTIC = {"budget": "200steps", "deterministic": True, "store": False}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def strewn(x: np.ndarray, *values: float) -> np.ndarray:
    """The array with a third of its entries replaced by special values."""
    out = x.copy()
    chosen = RNG.random(x.shape) < 0.3
    out[chosen] = RNG.choice(np.array(values, np.float32), int(chosen.sum()))
    return out


@functools.cache
def library(numerics: str) -> ProvedLibrary:
    return proved_library(None, numerics=numerics)


# ---- programs


def joined(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.exp(x.T), jnp.exp(y.T)], 0).T


def reversed_twice(x: jax.Array) -> jax.Array:
    return (jnp.maximum(jnp.maximum(x, 0.0)[:, ::-1], 0.0)[:, ::-1] + 0.0) * 1.0


def windowed(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 3), (1, 1), "SAME") - 0.0


def layered(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return (jnp.maximum((x @ w) * 2.0 + 0.0, 0.0) @ v + 1.0) + (-0.0)


def chained(u: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.negative(jnp.negative((u @ v) @ x)) * 0.5


def selected(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.negative(jnp.negative(jnp.concatenate([x[:3], x[3:]], 0))) + jnp.where(x > y, y, y)


PROGRAMS: dict[str, tuple[Callable[..., jax.Array], tuple[np.ndarray, ...]]] = {
    "joined": (joined, (floats(32, 48), floats(32, 48))),
    "reversed": (reversed_twice, (floats(40, 24),)),
    "windowed": (windowed, (floats(32, 32),)),
    "layered": (layered, (floats(16, 32), floats(32, 32), floats(32, 8))),
    "chained": (chained, (floats(64, 4), floats(4, 64), floats(64, 3))),
    "selected": (selected, (floats(7, 9), floats(7, 9))),
}


def assert_same_bits(fn: Callable[..., jax.Array], result: Any, *args: np.ndarray) -> None:
    want, got = np.asarray(jax.jit(fn)(*args)), np.asarray(result(*args))
    assert want.dtype == got.dtype
    assert same_bits(want, got).all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_exact_results_agree_in_every_bit(name: str) -> None:
    fn, args = PROGRAMS[name]
    result = superopt.optimize(fn, *args, numerics="exact", **DETERMINISTIC)
    assert {u.exactness for u in result.report.rewrites} <= {"exact"}
    assert result.report.compiler_options == {}
    assert "numerics exact" in " ".join(str(result.report).split())
    for values in ((), (0.0, -0.0), (np.inf, -np.inf), (np.nan, -0.0), (1e38, -1e38, 1e-38)):
        inputs = [strewn(x, *values) if values else x for x in args]
        assert_same_bits(fn, result, *inputs)
    told = result.validate()
    assert told.valid, told.cause
    assert told.exactness == "exact"


def test_some_program_is_rewritten_exactly_and_some_only_over_the_reals() -> None:
    fn, args = PROGRAMS["windowed"]
    exact = superopt.optimize(fn, *args, numerics="exact", **DETERMINISTIC)
    assert [u.rule for u in exact.report.rewrites]
    fn, args = PROGRAMS["chained"]
    exact, real = (superopt.optimize(fn, *args, numerics=n, **DETERMINISTIC) for n in ("exact", "real"))
    assert "real" in {u.exactness for u in real.report.rewrites}
    assert not exact.report.rewrites
    assert real.report.to_json()["exactness"] == "real"


def test_measured_runs_are_exact_too() -> None:
    fn, args = PROGRAMS["windowed"]
    result = superopt.optimize(fn, *args, numerics="exact", budget="4s", store=False)
    assert result.report.tuning == {}
    assert_same_bits(fn, result, *(strewn(x, 0.0, -0.0, np.nan, np.inf) for x in args))


# ---- the parts


def test_classes_of_rules_that_numerics_allows() -> None:
    names = {n: {r.name for r in library(n).rules} for n in ("exact", "real", "range")}
    assert names["exact"] < names["real"] < names["range"]
    assert "softmax-shift" in names["range"] - names["real"]
    assert "dot-assoc" in names["real"] - names["exact"]
    only = proved_library(None, [by_name("dot-assoc"), by_name("slice-slice")], "exact")
    assert [r.name for r in only.rules] == ["slice-slice"]
    with pytest.raises(UsageError, match="bitwise"):
        superopt.optimize(joined, floats(2, 2), floats(2, 2), numerics="bitwise", **DETERMINISTIC)


def test_exact_rules_keep_bits_of_special_values() -> None:
    tried = 0
    for rule in library("exact").rules:
        for seed in range(12):
            made = instance(rule, seed, dtype="float32")
            if made is None or not made.rhs:
                continue
            rng = np.random.default_rng(seed)
            values = np.array(
                [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0] if seed % 2 else [0.0, -0.0, 1.0, 2.0], np.float32
            )
            arrays = {
                k: np.where(rng.random(v.shape) < 0.6, rng.choice(values, v.shape), np.round(v)).astype(v.dtype)
                if v.dtype == np.float32
                else v
                for k, v in made.arrays(seed).items()
            }
            inputs = tuple(made.inputs.values())
            with np.errstate(all="ignore"):
                sides = [evaluate(Graph(inputs, side), arrays) for side in (made.lhs, made.rhs)]
            assert all(same_bits(np.asarray(a), np.asarray(b)).all() for a, b in zip(*sides, strict=True)), rule.name
            tried += 1
    assert tried > 100


@pytest.mark.parametrize(
    ("op", "constant", "real", "exact"),
    [("add", 0.0, True, False), ("add", -0.0, True, True), ("sub", 0.0, True, True), ("sub", -0.0, True, False),
     ("mul", 1.0, True, True), ("div", 1.0, True, True)],
)  # fmt: skip
def test_neutral_elements_of_an_exact_e_graph(op: str, constant: float, real: bool, exact: bool) -> None:
    x = make_input("x", (3,))
    y = mk(op, x, mk("broadcast_in_dim", literal(constant), shape=(3,), broadcast_dimensions=()))
    for made, gone in ((EGraph(), real), (EGraph(exact=True), exact)):
        eg = import_into(made, Graph((x,), (y,)))
        assert (eg.find(eg.roots[0]) == eg.find(eg.inputs["x"])) is gone


def test_zero_is_neutral_for_integers_in_an_exact_e_graph() -> None:
    x = make_input("x", (3,), "int32")
    zero = mk("broadcast_in_dim", literal(0, "int32"), shape=(3,), broadcast_dimensions=())
    eg = import_into(EGraph(exact=True), Graph((x,), (mk("add", x, zero),)))
    assert eg.find(eg.roots[0]) == eg.find(eg.inputs["x"])


def test_a_program_that_differs_in_one_bit_is_refused() -> None:
    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return (a + b) + c

    imported = import_function(fn, [floats(64) for _ in range(3)])
    a, b, c = imported.graph.inputs
    other = Program(None, Graph(imported.graph.inputs, (mk("add", a, mk("add", b, c)),)))
    assert check(OriginalRuns.of(imported), other)[1] == ""
    assert "differs in the bits" in check(OriginalRuns.of(imported, exact=True), other)[1]
    same = Program(None, Graph(imported.graph.inputs, (mk("add", c, mk("add", b, a)),)))
    assert check(OriginalRuns.of(imported, exact=True), same)[1] == ""


def test_bits_of_zeros_and_nan() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    b = np.array([-0.0, -0.0, -np.nan, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    assert same_bits(a, b).tolist() == [False, True, True, False]
    assert same_bits(np.array([1, 2]), np.array([1, 3])).tolist() == [True, False]


def test_the_command_line_takes_numerics(tmp_path: Any) -> None:
    path = tmp_path / "prog.py"
    path.write_text("import jax.numpy as jnp\nimport numpy as np\n\ndef make():\n"
                    "    return (lambda x: -(-x) + 0.0), (np.ones((4, 4), np.float32),)\n")  # fmt: skip
    options = ["--budget", "20steps", "--deterministic", "--no-store", "--json"]
    said = CliRunner().invoke(cli, ["optimize", f"{path}:make", "--numerics", "exact", *options])
    assert said.exit_code == 0, said.output
    assert '"exactness": "exact"' in said.stdout


def test_open_loops_and_callbacks_are_not_called_on_other_inputs() -> None:
    """Newton's method for square roots does not end on negative numbers, and a callback may refuse what it is given."""

    def newton(a: jax.Array) -> jax.Array:
        more = lambda s: jnp.any(jnp.abs(s * s - a) > 1e-3 * a)  # noqa: E731
        return jax.lax.while_loop(more, lambda s: 0.5 * (s + a / s), a)

    def asking(x: jax.Array) -> jax.Array:
        def host(v: np.ndarray) -> np.ndarray:
            assert (v >= 0).all()
            return np.sqrt(v)

        return jnp.tanh(jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)) * 2.0

    for fn in (newton, asking):
        imported = import_function(fn, (jnp.asarray([1.0, 2.0, 9.0]),))
        numerics, cause = check(OriginalRuns.of(imported), original_program(imported.graph))
        assert not cause
        assert not numerics.drawn
        assert numerics.original_vs_f64 is None


def test_numbers_that_are_none_warn_nobody() -> None:
    """Tests turn warnings into errors."""
    x = jnp.asarray([np.inf, -np.inf, np.nan, 1.0, -0.0] * 4, jnp.float32)
    imported = import_function(lambda x: jnp.sum(x.reshape(4, 5), 1) + x.mean() * 2, (x,))
    numerics, cause = check(OriginalRuns.of(imported), original_program(imported.graph))
    assert not cause
    assert numerics.drawn
