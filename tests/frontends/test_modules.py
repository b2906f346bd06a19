"""Opaque operations as modules: saved, stored, sent to other processes, and refused where they do more than compute."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

import superopt
from superopt.errors import InputError
from superopt.foreign import modules
from superopt.frontends.jax import opaque_eqns
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir import opaque
from superopt.ir.program import original_program
from superopt.ir.text import parse_graph, print_graph
from superopt.ir.types import TensorType
from superopt.measure import compare
from superopt.measure.session import ComparisonSettings
from tests.support.jax_programs import rand

OPTIONS: dict[str, Any] = {"budget": "20steps", "deterministic": True, "rules": []}


def mixed(w: jax.Array, x: jax.Array, where: jax.Array) -> tuple[jax.Array, ...]:
    """Products around a sort, a scatter, a triangular solve and a Fourier transform."""
    h = jnp.sort(x @ (w + w), axis=-1) * 2.0
    h = h.at[where].add(1.0)
    solved = jax.scipy.linalg.solve_triangular(jnp.tril(w) + 3.0 * jnp.eye(6), h.T, lower=True).T
    return jnp.tanh(solved), jnp.abs(jnp.fft.fft(h)), lax.top_k(h, 2)[1]


ARGS = (rand(6, 6), rand(4, 6, seed=1), np.array([1, 3]))


def close(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[superopt.Optimized, Path]:
    store = tmp_path_factory.mktemp("store") / "store.sqlite"
    return superopt.optimize(mixed, *ARGS, frozen=0, store=store, **OPTIONS), store


def test_programs_with_opaque_operations_are_saved(result: Any, tmp_path: Path) -> None:
    fast, _ = result
    assert {"sort", "scatter-add", "fft", "top_k"} <= set(fast.report.opaque_ops)
    path = fast.save(tmp_path / "p.superopt")
    close(superopt.load(path)(*ARGS), mixed(*ARGS))
    code = (
        "import sys, numpy as np, superopt\n"
        "data = np.load(sys.argv[2])\n"
        "loaded = superopt.load(sys.argv[1])\n"
        "np.savez(sys.argv[3], *loaded(data['w'], data['x'], data['where']))\n"
    )
    w, x, where = ARGS
    np.savez(tmp_path / "in.npz", w=w, x=x, where=where)
    subprocess.run([sys.executable, "-c", code, path, tmp_path / "in.npz", tmp_path / "out.npz"], check=True)
    close(np.load(tmp_path / "out.npz").values(), mixed(*ARGS))
    assert superopt.load(path).validate().valid
    assert superopt.load(path).validate(mixed).valid


def test_loaded_programs_are_batched_one_by_one(result: Any, tmp_path: Path) -> None:
    code = (
        "import sys, jax, numpy as np, superopt\n"
        "data = np.load(sys.argv[2])\n"
        "loaded = superopt.load(sys.argv[1])\n"
        "run = jax.jit(jax.vmap(lambda x: loaded(data['w'], x, data['where'])))\n"
        "np.savez(sys.argv[3], *run(np.stack([data['x'], 2 * data['x']])))\n"
    )
    w, x, where = ARGS
    np.savez(tmp_path / "in.npz", w=w, x=x, where=where)
    path = result[0].save(tmp_path / "p.superopt")
    subprocess.run([sys.executable, "-c", code, path, tmp_path / "in.npz", tmp_path / "out.npz"], check=True)
    want = jax.vmap(lambda x: mixed(w, x, where))(np.stack([x, 2 * x]))
    close(np.load(tmp_path / "out.npz").values(), want)


def test_programs_with_opaque_operations_are_stored(result: Any) -> None:
    again = superopt.optimize(mixed, *ARGS, frozen=0, store=result[1], **OPTIONS)
    assert any("answered from the store" in note for note in again.report.notes)
    close(again(*ARGS), mixed(*ARGS))


def test_equal_operations_have_equal_names_in_every_process() -> None:
    code = (
        "import jax, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.frontends.test_modules import ARGS, mixed\n"
        "from superopt.frontends.jax.jaxpr import import_function\n"
        "from superopt.ir.text import print_graph\n"
        "jax.jit(lambda x: jax.numpy.sort(x)[::-1])(ARGS[0])  # something else first\n"
        "print(print_graph(import_function(mixed, ARGS).graph), end='')\n"
    )
    root = str(Path(__file__).parents[2])
    other = subprocess.run([sys.executable, "-c", code, root], check=True, capture_output=True, text=True).stdout
    assert other == print_graph(import_function(mixed, ARGS).graph)


def test_programs_with_opaque_operations_are_timed_in_the_worker() -> None:
    imported = import_function(mixed, ARGS)
    program = original_program(imported.graph)
    found = compare(program, [program], imported.live_values, settings=ComparisonSettings(1, 0.0))
    assert found.isolated
    assert found.candidates[0].ratio.ratio > 0.0


def test_different_parameters_are_different_operations() -> None:
    def f(x: jax.Array) -> Any:
        up, down = lax.sort(x, dimension=0), lax.sort(x, dimension=1)
        return up, down, lax.cond(x[0, 0] > 0, jnp.sort, lambda v: v, x)

    graph = import_function(f, (rand(3, 3),)).graph
    assert len({node["params_key"] for node in graph.nodes() if node.op == "opaque"}) == 2
    assert set(opaque.carry([graph]) or ()) >= {n["params_key"] for n in graph.nodes() if n.op == "opaque"}


def test_the_store_answers_programs_with_callbacks_and_calls_those_of_the_call(monkeypatch, tmp_path: Path) -> None:
    def made(scale: float) -> Any:
        def f(x: jax.Array) -> jax.Array:
            def positive(x: jax.Array) -> jax.Array:
                return jax.pure_callback(lambda x: scale * np.sort(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

            return lax.cond(x[0] > -100.0, positive, lambda x: x, x) + 1.0

        return f

    options = {**OPTIONS, "store": tmp_path / "store.sqlite"}
    superopt.optimize(made(1.0), rand(3), **options)
    for table in ("_BY_KEY", "_KEY_OF"):  # as in another process
        monkeypatch.setattr(opaque, table, {})
    monkeypatch.setattr(opaque_eqns, "_KNOWN", {})
    again = superopt.optimize(made(2.0), rand(3), **options)
    assert any("answered from the store" in note for note in again.report.notes)
    np.testing.assert_allclose(again(rand(3)), 2.0 * np.sort(rand(3)) + 1.0, rtol=1e-6)


def test_callbacks_into_python_stay_in_their_process(tmp_path: Path) -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sort, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1.0

    imported = import_function(f, (rand(3),))
    assert modules.carried([imported.graph]) is None
    fast = superopt.optimize(f, rand(3), store=False, **OPTIONS)
    np.testing.assert_array_equal(fast(rand(3)), np.sort(rand(3)) + 1.0)
    with pytest.raises(InputError, match="operations of this process alone"):
        fast.save(tmp_path / "p.superopt")


# ---- modules of strangers


def forged(text: str, operands: list[Any], results: list[Any]) -> dict[str, str]:
    """A module with a good digest whose code is this text."""
    with mlir.make_ir_context():
        version = stablehlo.get_minimum_version()
        code = stablehlo.serialize_portable_artifact(ir.Module.parse(text), version)
    module = json.dumps({"operands": operands, "results": results}).encode() + b"\n" + code
    return {opaque.key_of_module("sort", module): base64.b64encode(module).decode()}


VECTOR = [[[4], "float32"]]
PLAIN = "func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {{ {0} return %0 : tensor<4xf32> }}"


CALL = "%0 = stablehlo.custom_call @{}(%arg0) : (tensor<4xf32>) -> tensor<4xf32>"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "%0 = stablehlo.custom_call @xla_python_cpu_callback(%arg0) : (tensor<4xf32>) -> tensor<4xf32>",
            "none of the rout",
        ),
        (
            "%0 = stablehlo.custom_call @superopt_kernel(%arg0) : (tensor<4xf32>) -> tensor<4xf32>",
            "none of the rout",
        ),
        (
            '%0 = "stablehlo.all_reduce"(%arg0) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
            "stablehlo.return %a : tensor<f32> }) {replica_groups = dense<0> : tensor<1x1xi64>} "
            ": (tensor<4xf32>) -> tensor<4xf32>",
            "stablehlo.all_reduce",
        ),
    ],
)
def test_modules_that_do_more_than_compute_are_refused(body: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        modules.restore(forged(PLAIN.format(body), VECTOR, VECTOR))


def test_modules_are_what_their_keys_and_heads_say() -> None:
    add = PLAIN.format("%0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>")
    good = forged(add, VECTOR, VECTOR)
    modules.restore(good)
    ((key, text),) = good.items()
    call = opaque.resolve(key).call
    np.testing.assert_array_equal(call(jnp.ones(4))[0], 2 * np.ones(4))
    with pytest.raises(InputError, match="takes"):
        call(jnp.ones(5))
    with pytest.raises(InputError, match="not the one that its key names"):
        modules.restore({key: base64.b64encode(base64.b64decode(text) + b" ").decode()})
    with pytest.raises(InputError, match="other types"):
        modules.restore(forged(add, VECTOR, [[[5], "float32"]]))
    for dtype in ("object", "<U4", "void"):
        with pytest.raises(InputError, match="no head"):
            modules.restore(forged(add, VECTOR, [[[4], dtype]]))
    for junk in (b"", b"\n", b"{}\n", b'{"operands": [], "results": []}\n' + b"junk" * 9):
        with pytest.raises(InputError):
            modules.restore({opaque.key_of_module("sort", junk): base64.b64encode(junk).decode()})
    with pytest.raises(InputError, match="larger"):
        modules.restore({"sort@0": "A" * (2 * modules.MOST_BYTES + 4)})


def test_texts_name_only_modules_with_their_types() -> None:
    def call(x: jax.Array) -> tuple[jax.Array]:
        return (jnp.sort(x),)

    vector = [TensorType((4,))]
    key = opaque.register_module("sort", modules.export(call, vector, vector), call)
    text = (
        "%0 = input x : f32[{n}]\n"
        '%1 = opaque(%0) params_key="{key}" primitive="sort" result_types=(f32[{n}],) : f32[{n}]\n'
        "return %1\n"
    )
    modules.require_modules(parse_graph(text.format(n=4, key=key)))
    with pytest.raises(InputError, match="other types"):
        modules.require_modules(parse_graph(text.format(n=5, key=key)))
    local = opaque.register("pure_callback", "some", lambda x: (x,))
    with pytest.raises(InputError, match="without its module"):
        modules.require_modules(parse_graph(text.format(n=4, key=local)))


# ---- routines of LAPACK: a call of other types than JAX writes would write beyond its buffers

LU = (
    (
        "func.func public @main(%arg0: tensor<512x512xf32>) -> (tensor<{0}xf32>, tensor<{1}xi32>, tensor<i32>) {{ "
        "%0:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%arg0) {{mhlo.backend_config = {{{{}}}}, "
        'mhlo.frontend_attributes = {{{{num_batch_dims = "0"}}}}, operand_layouts = [dense<[{2}]> : tensor<2xindex>], '
        "{3}result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<0> : tensor<1xindex>, "
        "dense<> : tensor<0xindex>]}} "
        ": (tensor<512x512xf32>) -> (tensor<{0}xf32>, tensor<{1}xi32>, tensor<i32>) "
        "return %0#0, %0#1, %0#2 : tensor<{0}xf32>, tensor<{1}xi32>, tensor<i32> }}"
    )
    .replace("{{{{", "{{")
    .replace("}}}}", "}}")
)
ALIAS = (
    "output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, "
    "operand_tuple_indices = []>], "
)


@pytest.mark.parametrize(
    ("rows", "pivots", "layout", "alias", "taken"),
    [
        (512, 512, "0, 1", ALIAS, True),
        (1, 1, "0, 1", "", False),
        (512, 511, "0, 1", ALIAS, False),
        (512, 512, "1, 0", ALIAS, False),
        (512, 512, "0, 1", "", False),
    ],
)
def test_routines_are_called_as_jax_calls_them(rows: int, pivots: int, layout: str, alias: str, *, taken: bool) -> None:
    text = LU.format(f"{rows}x{rows}", pivots, layout, alias)
    results = [[[rows, rows], "float32"], [[pivots], "int32"], [[], "int32"]]
    found = forged(text, [[[512, 512], "float32"]], results)
    if taken:
        modules.restore(found)
        return
    with pytest.raises(InputError, match="in a way that JAX does not"):
        modules.restore(found)


def test_attributes_that_speak_to_the_compiler_are_refused() -> None:
    add = PLAIN.format('%0 = stablehlo.add %arg0, %arg0 {{mhlo.sharding = "{{replicated}}"}} : tensor<4xf32>')
    with pytest.raises(InputError, match=r"asks the compiler for 'mhlo\.sharding'"):
        modules.restore(forged(add.replace("{{", "{").replace("}}", "}"), VECTOR, VECTOR))


def everything(a: jax.Array, b: jax.Array) -> list[Any]:
    from jax.lax import linalg

    def solve(**how: Any) -> jax.Array:
        return jax.vmap(lambda y: linalg.triangular_solve(a, y, **how))(b)

    return [
        *linalg.lu(a), *linalg.qr(a), linalg.cholesky(a), *linalg.eigh(a), *linalg.svd(b), *linalg.schur(a),
        *linalg.hessenberg(a), *linalg.tridiagonal(a), *linalg.eig(a), linalg.svd(a, compute_uv=False),
        solve(left_side=True, lower=True), solve(transpose_a=True, conjugate_a=True, unit_diagonal=True),
        linalg.tridiagonal_solve(a[0], a[1], a[2], a), jax.vmap(jnp.linalg.inv)(b),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_all_that_jax_writes_is_taken(dtype: str) -> None:
    a, b = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in ((5, 5), (3, 5, 5)))
    operands, results = (
        [TensorType(x.shape, str(x.dtype)) for x in xs] for xs in ((a, b), jax.eval_shape(everything, a, b))
    )
    assert modules.export(everything, operands, results)


def test_maps_over_devices_are_kept_as_they_are() -> None:
    """Equations that hold functions are bound with them (`shard_map`, `pmap`)."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec
    x = jnp.linspace(0.0, 1.0, 16).reshape(1, 16)
    shared = jax.shard_map(lambda a: jax.lax.psum(jnp.sin(a), "d"), mesh=mesh, in_specs=spec("d"), out_specs=spec())
    for fn in (shared, jax.pmap(lambda a: jax.lax.psum(a * 2, "i"), axis_name="i")):
        found = superopt.optimize(fn, x, budget="10steps", deterministic=True, store=False, rules=())
        np.testing.assert_allclose(found(x), fn(x), rtol=1e-6)
