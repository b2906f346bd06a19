"""JAX functions imported as graphs: values, types, what is kept verbatim, the calling convention, bad arguments."""

from __future__ import annotations

import functools
import time
from collections import namedtuple
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from superopt.backends.xla import build, to_jax
from superopt.errors import ArgumentError, InputError, SuperoptError
from superopt.frontends.jax.call import calls_of_import
from superopt.frontends.jax.jaxpr import Imported, Importer, import_function
from superopt.ir.graph import Graph
from superopt.ir.interp import evaluate
from superopt.ir.program import original_program
from tests.support.jax_programs import CASES, OPAQUE, ints, rand
from tests.support.sampling import sampled


def check_close(got: Any, want: Any, scale: float = 1.0) -> None:
    """Same structure, shapes and dtypes; values equal up to rounding (bit-equal for integers)."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(b.dtype, jnp.floating):
            rtol = scale * {2: 2e-2, 4: 2e-5, 8: 1e-12}[b.dtype.itemsize]
            np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(a, b)


def run_graph(imported: Imported) -> Any:
    """The imported graph on the example arguments, lowered to XLA."""
    values = [*map(jnp.asarray, imported.examples), *imported.graph.constants.values()]
    return imported.unflatten(jax.jit(to_jax(imported.graph))(*values))


@functools.cache
def imported_case(name: str) -> Imported:
    fn, args = CASES[name]()
    return import_function(fn, args)


@functools.cache
def wanted(name: str) -> Any:
    """Results of `jax.jit` for a case."""
    fn, args = CASES[name]()
    return jax.tree.map(jnp.asarray, jax.jit(fn)(*args))


@pytest.mark.parametrize("name", sampled(CASES, lambda n, name: name in OPAQUE or n % 4 == 0))
def test_graph_computes_the_function(name: str) -> None:
    check_close(run_graph(imported_case(name)), wanted(name))


@pytest.mark.parametrize("name", CASES)
def test_operations_that_the_graph_lacks_are_opaque(name: str) -> None:
    imported = imported_case(name)
    assert not imported.refused
    found = set(imported.opaque_ops)
    assert found <= OPAQUE.get(name, set()), f"kept verbatim: {found}"
    assert bool(found) == bool(OPAQUE.get(name)), "the table of opaque operations is out of date"


@pytest.mark.parametrize("name", [name for name in CASES if not OPAQUE.get(name)])
def test_the_interpreter_agrees(name: str) -> None:
    """An oracle without JAX."""
    imported = imported_case(name)
    env = {n: np.asarray(jnp.asarray(x)) for n, x in zip(imported.names, imported.examples, strict=True)}
    check_close(imported.unflatten(evaluate(imported.graph, env)), wanted(name), scale=10)


def test_the_interpreter_refuses_opaque_operations() -> None:
    with pytest.raises(InputError):
        evaluate(imported_case("sort").graph, {"x": np.asarray(CASES["sort"]()[1][0])})


@pytest.mark.parametrize("name", CASES)
def test_no_implicit_broadcast_and_no_unit_broadcast(name: str) -> None:
    elementwise = {"add", "sub", "mul", "div", "max", "min", "pow", "select_n", "eq", "lt", "gt", "and", "or", "rem"}
    for node in all_nodes(imported_case(name).graph):
        if node.op in elementwise:
            assert len({x.shape for x in node.inputs}) == 1
        if node.op == "broadcast_in_dim" and node.inputs[0].op != "literal":
            (x,), dims = node.inputs, node["broadcast_dimensions"]
            assert np.prod(node.shape) != np.prod(x.shape) or 0 in node.shape, "adds unit axes only: a reshape"
            assert all(n == node.shape[d] for n, d in zip(x.shape, dims, strict=True)), "stretches a unit axis"


def all_nodes(graph: Graph) -> list[Any]:
    """Nodes of a graph and of the bodies in it."""
    found: list[Any] = []
    todo = [graph]
    while todo:
        for node in todo.pop().nodes():
            found.append(node)
            for _, value in node.attrs:
                todo.extend(x for x in (value if isinstance(value, tuple) else (value,)) if isinstance(x, Graph))
    return found


def ops_of(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes()}


def test_softmax_is_free_of_reshapes() -> None:
    imported = import_function(jax.nn.softmax, (rand(3, 5),))
    assert "reshape" not in ops_of(imported.graph)


def test_calls_are_inlined_and_control_flow_kept() -> None:
    assert ops_of(imported_case("inner_calls").graph) <= {
        "input", "literal", "broadcast_in_dim", "sin", "cos", "add", "tanh", "dot_general", "min", "mul",
    }  # fmt: skip
    assert "while" in ops_of(imported_case("while_loop").graph)
    assert "cond" in ops_of(imported_case("cond_and_switch").graph)
    assert "scan" in ops_of(imported_case("scan_rnn").graph)


def test_bodies_hold_no_constants_and_know_what_is_frozen() -> None:
    fn, args = CASES["scan_rnn"]()
    imported = import_function(fn, args, frozen=0)
    assert len(imported.graph.constants) == 1
    scans = [node for node in imported.graph.nodes() if node.op == "scan"]
    assert len(scans) == 2
    for node in scans:
        body = node["body"]
        assert not body.constants
        assert sum(x["frozen"] for x in body.inputs) == 3 == node["num_consts"]
        assert [x.shape for x in body.inputs[:3]] == [x.shape for x in node.inputs[:3]]


def test_equal_bodies_are_one_object() -> None:
    def f(x: Any, y: Any) -> Any:
        return [lax.scan(lambda c, a: (c + jnp.sin(a), c), 0.0, v)[0] for v in (x, y)]

    graph = import_function(f, (rand(4), rand(4, seed=1))).graph
    bodies = [node["body"] for node in graph.nodes() if node.op == "scan"]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


def test_constants_are_shared_and_uniform_ones_are_literals() -> None:
    graph = imported_case("constants").graph
    assert sorted(v.shape for v in graph.constants.values()) == [(3,), (4, 4), (4, 4)]  # small, weight, its transpose
    assert all(node["frozen"] for node in graph.inputs[1:])


def test_equal_opaque_operations_are_one_node() -> None:
    graph = import_function(lambda x: (jnp.sort(x), jnp.sort(x) + 1, jnp.sort(x, descending=True)), (rand(4),)).graph
    assert sum(node.op == "opaque" for node in graph.nodes()) == 1


def test_arguments_without_a_value_are_refused() -> None:
    def inside(x: jax.Array) -> jax.Array:
        import_function(lambda y: y + 1, (x,))
        return x

    with pytest.raises(ArgumentError, match="argument y is being traced"):
        jax.jit(inside)(rand(2, 2))
    gone = jnp.ones((2, 2))
    gone.delete()
    with pytest.raises(ArgumentError, match="argument y is an array that was deleted"):
        import_function(lambda y: y + 1, (gone,))


def test_names_and_frozen_arguments() -> None:
    Point = namedtuple("Point", "x y")
    args = ({"layers": [rand(2), rand(3)], "a/b": rand(1)}, Point(rand(2), rand(3)))
    imported = import_function(
        lambda params, p, *, scale=1.0: (params, p, scale), args, {"scale": 2.0}, frozen=("params", "scale")
    )
    assert imported.names == ("params.a_b", "params.layers.0", "params.layers.1", "p.x", "p.y", "scale")
    assert imported.live == (3, 4)
    assert imported.frozen == (0, 1, 2, 5)
    assert list(imported.frozen_values) == [imported.names[i] for i in imported.frozen]
    assert [node["frozen"] for node in imported.graph.inputs] == [True, True, True, False, False, True]
    assert import_function(lambda a, b: a @ b, (rand(2, 2), rand(2, 2)), frozen=-1).frozen == (1,)
    assert import_function(lambda a, b: a @ b, (rand(2, 2), rand(2, 2)), frozen=None).frozen == ()
    assert import_function(lambda *xs: sum(xs), (rand(2), rand(2)), frozen=(0, 1)).names == ("xs0", "xs1")


def test_types_alone_are_enough() -> None:
    types = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16), {"w": jax.ShapeDtypeStruct((4, 2), jnp.bfloat16)}
    imported = import_function(lambda x, p: x @ p["w"], types)
    assert [str(node.type) for node in (*imported.graph.inputs, *imported.graph.outputs)] == [
        "bf16[3,4]", "bf16[4,2]", "bf16[3,2]",
    ]  # fmt: skip


def test_positional_and_keyword_calls_are_the_same() -> None:
    def f(x: Any, y: Any) -> Any:
        return x - y

    imported = import_function(f, (rand(2),), {"y": rand(2, seed=1)})
    g = calls_of_import(imported, build(original_program(imported.graph)))[1]
    check_close(g(rand(2), rand(2, seed=1)), g(y=rand(2, seed=1), x=rand(2)))


def test_effects_keep_the_function_whole() -> None:
    seen: list[float] = []

    def record(v: Any) -> None:
        seen.append(float(v))

    def f(x: Any) -> Any:
        jax.experimental.io_callback(record, None, x.sum(), ordered=True)
        return x * 2

    import jax.experimental

    imported = import_function(f, (jnp.ones(3),))
    assert list(imported.opaque_ops) == ["f"]
    assert not seen
    run = build(original_program(imported.graph))
    check_close(run(jnp.ones(3)), (2 * jnp.ones(3),))
    jax.effects_barrier()
    assert seen == [3.0]


def test_pure_callback_is_opaque() -> None:
    def f(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), x) + 1

    imported = import_function(f, (rand(3),))
    assert imported.opaque_ops == {"pure_callback": 1}
    check_close(run_graph(imported), f(rand(3)))


def test_64_bit_types() -> None:
    with jax.enable_x64(True):
        args = (rand(3, 4, dtype="float64"), ints(3, below=3, dtype="int64"))
        want = jax.jit(lambda x, i: (x[i] / 3, i * 2**40))(*args)
        imported = import_function(lambda x, i: (x[i] / 3, i * 2**40), args)
    assert {node.dtype for node in imported.graph.outputs} == {"float64", "int64"}
    run = build(original_program(imported.graph))
    check_close(run(*args), want)  # with 64-bit types off again


def test_large_jaxprs_import_quickly() -> None:
    def block(p: dict[str, Any], x: Any) -> Any:
        n, d = x.shape
        q, k, v = (jnp.dot(x, p[w]).reshape(n, 4, d // 4).transpose(1, 0, 2) for w in "qkv")
        s = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 8 + p["mask"])
        x = x + jnp.einsum("hqk,hkd->hqd", s, v).transpose(1, 0, 2).reshape(n, d) @ p["o"]
        x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * p["g"] + p["b"]
        h = jax.nn.gelu(x @ p["up"] + p["u"], approximate=False) @ p["down"] + p["b"]
        x = x + h
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def bert(layers: list[Any], x: Any) -> Any:
        for p in layers:
            x = block(p, x)
        return x

    s = jax.ShapeDtypeStruct
    sizes = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "o": (16, 16), "mask": (8, 8), "g": (16,), "b": (16,)}
    sizes |= {"up": (16, 64), "u": (64,), "down": (64, 16)}
    layers = [{k: s(v, jnp.float32) for k, v in sizes.items()} for _ in range(12)]
    args = (layers, s((8, 16), jnp.float32))
    jax.make_jaxpr(bert)(*args)  # jax's own tracing is not measured
    start = time.process_time()
    imported = import_function(bert, args)
    seconds = time.process_time() - start
    assert len(imported.graph.nodes()) > 600
    assert seconds < 2.0, f"{seconds:.2f} s"  # 0.3 s on an idle core


def test_long_chains_need_no_recursion() -> None:
    def f(x: Any) -> Any:
        for i in range(3000):
            x = jnp.sin(x) + i
        return x

    imported = import_function(f, (rand(2),))
    assert len(imported.graph.nodes()) > 6000
    assert len(jax.make_jaxpr(to_jax(imported.graph))(rand(2)).eqns) > 6000


# ---- the function given back


def wrapped(name: str, frozen: Any = ()) -> tuple[Any, Any, tuple[Any, ...]]:
    fn, args = CASES[name]()
    imported = import_function(fn, args, frozen=frozen)
    return calls_of_import(imported, build(original_program(imported.graph), imported.frozen_values))[1], fn, args


@pytest.mark.parametrize("name", ["mlp", "scan_rnn", "while_loop", "kv_cache", "random", "passthrough", "scalars"])
@pytest.mark.parametrize("frozen", [(), 0])
def test_wrapped_is_called_like_the_original(name: str, frozen: Any) -> None:
    g, fn, args = wrapped(name, frozen)
    want = jax.jit(fn)(*args)
    check_close(g(*args), want)
    check_close(jax.jit(g)(*args), want)


def test_wrapped_under_vmap() -> None:
    g, fn, (layers, x) = wrapped("mlp", 0)
    xs = jnp.stack([x, 2 * x])
    check_close(jax.vmap(g, (None, 0))(layers, xs), jax.jit(jax.vmap(fn, (None, 0)))(layers, xs))
    stacked = jax.tree.map(lambda w: jnp.stack([w, -w]), layers)
    check_close(jax.vmap(g)(stacked, xs), jax.jit(jax.vmap(fn))(stacked, xs))


def test_wrapped_sort_under_vmap() -> None:
    g, fn, (x,) = wrapped("sort")
    check_close(jax.vmap(g)(jnp.stack([x, -x])), jax.vmap(fn)(jnp.stack([x, -x])))


@pytest.mark.parametrize("frozen", [(), 0, 1])
def test_wrapped_derivatives(frozen: Any) -> None:
    g, fn, (layers, x) = wrapped("mlp", frozen)

    def loss(f: Any, layers: Any, x: Any) -> Any:
        return jnp.sum(f(layers, x) ** 2)

    for argnums in (0, 1, (0, 1)):
        got = jax.grad(functools.partial(loss, g), argnums)(layers, x)
        check_close(got, jax.jit(jax.grad(functools.partial(loss, fn), argnums))(layers, x))
        check_close(jax.jit(jax.grad(functools.partial(loss, g), argnums))(layers, x), got)
    tangent = jax.tree.map(jnp.ones_like, (layers, x))
    check_close(jax.jvp(g, (layers, x), tangent), jax.jit(functools.partial(jax.jvp, fn))((layers, x), tangent))
    hess = jax.jit(jax.hessian(lambda x: loss(g, layers, x)))(x)
    check_close(hess, jax.jit(jax.hessian(lambda x: loss(fn, layers, x)))(x), scale=10)


def test_wrapped_derivative_keeps_custom_rules_and_integer_arguments() -> None:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.floor(x)

    f.defjvps(lambda t, ans, x: 7 * t)

    def fn(table: Any, i: Any) -> Any:
        return f(table[i]).sum(), i + 1

    args = (rand(5, 2), ints(3, below=5))
    imported = import_function(fn, args)
    g = calls_of_import(imported, build(original_program(imported.graph)))[1]
    got = jax.grad(lambda t: g(t, args[1])[0])(args[0])
    check_close(got, jax.grad(lambda t: fn(t, args[1])[0])(args[0]))
    assert float(got.max()) >= 7


def test_other_frozen_values_are_prepared_anew() -> None:
    g, fn, (layers, x) = wrapped("mlp", 0)
    other = jax.tree.map(lambda w: w + 1, layers)
    check_close(g(other, x), fn(other, x))
    check_close(g(layers, x), fn(layers, x))
    check_close(jax.jit(g)(other, x), fn(other, x))


def test_frozen_arrays_that_change_between_usual_calls() -> None:
    g, fn, (layers, x) = wrapped("mlp", 0)
    layers, x = jax.device_put((layers, x))
    other = jax.tree.map(lambda w: w + 1, layers)
    for given in (layers, layers, other, other, layers, other, jax.tree.map(np.asarray, other), layers):
        check_close(g(given, x), fn(given, x))
    layers[0] = other[0]  # the same list with another array in it
    check_close(g(layers, x), fn(layers, x))
    with pytest.raises(ArgumentError, match="layers is a list of 2, the program was made for a list of 3"):
        g(layers[1:], x)
    check_close(g(layers, x), fn(layers, x))


def test_effects_happen_once_per_call() -> None:
    seen: list[float] = []

    def record(x: Any) -> Any:
        seen.append(float(x[0]))
        return x

    def fn(w: Any, x: Any) -> Any:
        return jax.pure_callback(record, jax.ShapeDtypeStruct((2,), jnp.float32), x) * w

    a, b, x = jnp.ones(2), jnp.full(2, 3.0), jnp.arange(2.0)
    imported = import_function(fn, (a, x), frozen=0)
    g = calls_of_import(imported, build(original_program(imported.graph), imported.frozen_values))[1]
    for count, w in enumerate((a, a, a, b, b, a), 1):
        check_close(g(w, x), w * x)
        assert len(seen) == count


def test_wrapped_keeps_name_and_doc() -> None:
    def named(x: Any) -> Any:
        """Say hello."""
        return x

    imported = import_function(named, (rand(2),))
    g = calls_of_import(imported, build(original_program(imported.graph)))[1]
    assert (g.__name__, g.__doc__) == ("named", "Say hello.")


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((rand(2, 3), rand(3)), {}, "argument y is f32[3], the program was made for f32[2]"),
        ((rand(2, 3), ints(2)), {}, "argument y is i32[2]"),
        ((rand(2, 3),), {}, "argument y is missing"),
        ((rand(2, 3), [rand(2)]), {}, "argument y is a list of 1, the program was made for an array"),
        ((rand(2, 3), "no"), {}, "argument y is a str"),
        ((rand(2, 3), rand(2)), {"z": 1}, "do not fit"),
    ],
)
def test_calls_that_do_not_fit(args: Any, kwargs: Any, says: str) -> None:
    imported = import_function(lambda x, y: x.sum(1) + y, (rand(2, 3), rand(2)))
    g = calls_of_import(imported, build(original_program(imported.graph)))[1]
    with pytest.raises(ArgumentError) as caught:
        g(*args, **kwargs)
    assert says in str(caught.value)
    assert caught.value.hint


# ---- arguments that cannot be accepted


def bad(fn: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        import_function(fn, args, **options)
    assert "\n" not in caught.value.args[0]
    assert caught.value.hint
    return str(caught.value)


def test_arguments_that_are_not_arrays() -> None:
    assert "argument x is a str" in bad(lambda x: x, "text")
    assert "argument p.cfg is a object" in bad(lambda p: p, {"cfg": object()})
    assert "dtype object" in bad(lambda x: x, np.array([None, {}], dtype=object))
    assert "dtype <U1" in bad(lambda x: x, np.array(["a"]))


def test_frozen_that_names_nothing() -> None:
    x = rand(2)
    assert "names no argument" in bad(lambda x: x, x, frozen="y")
    assert "not an argument position" in bad(lambda x: x, x, frozen=1)
    assert "not an argument position" in bad(lambda x: x, x, frozen=True)
    assert "no value" in bad(lambda x: x, jax.ShapeDtypeStruct((2,), jnp.float32), frozen=0)


def test_functions_that_refuse_the_arguments() -> None:
    said = bad(lambda x, y: x @ y, rand(2, 3), rand(2, 3))
    assert "fails on these arguments: TypeError in test_frontend_jax.py:" in said
    assert "lambda x, y: x @ y" in said
    assert "do not fit" in bad(lambda x: x, rand(2), rand(2))
    assert "cannot be traced" in bad(lambda x, flag: x if flag else -x, rand(2), True)
    assert "functools.partial" in bad(lambda x: float(x[0]), rand(2))


def test_result_type_mismatch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Importer, "run", lambda importer, jaxpr, consts, inputs: list(inputs))
    with pytest.raises(SuperoptError, match="the graph gives"):
        import_function(lambda x: x.sum(), (rand(3),))
