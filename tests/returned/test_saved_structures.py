"""Structures of saved programs: named tuples, dataclasses, nodes of libraries, keys and functions within arguments."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax import tree_util
from jax.example_libraries import optimizers

import superopt
from superopt.errors import ArgumentError, InputError
from superopt.files import trees
from superopt.files.reading import json_of
from superopt.files.trees import Structure, count_positions, tree_data
from tests.support.jax_programs import rand

OPTIONS: dict[str, Any] = {"budget": "20steps", "deterministic": True, "rules": [], "store": False}
State = namedtuple("State", "step params")


@tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    act: Any = dataclasses.field(metadata={"static": True}, default=jnp.tanh)
    name: str = dataclasses.field(metadata={"static": True}, default="dense")


class Frozen:
    """A mapping as libraries have them: its keys are what it holds besides its children."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = items


tree_util.register_pytree_node(
    Frozen, lambda x: (tuple(x.items.values()), tuple(x.items)), lambda k, v: Frozen(dict(zip(k, v, strict=True)))
)


def update(state: State, layer: Layer, extra: Any) -> Any:
    y = layer.act(state.params.items["w"] * layer.w) + extra["b"]
    return State(state.step + 1, Frozen({"w": y})), layer, OrderedDict(z=y.sum(), a=extra["key"])


def arguments() -> tuple[Any, ...]:
    return (
        State(0, Frozen({"w": rand(3)})), Layer(rand(3, seed=1)), OrderedDict(b=rand(3, seed=2), key=jax.random.key(3)),
    )  # fmt: skip


def check(got: Any) -> None:
    want = update(*arguments())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert (got[0].step, got[1].act, got[1].name) == (1, jnp.tanh, "dense")
    np.testing.assert_allclose(got[0].params.items["w"], want[0].params.items["w"], rtol=1e-6)
    np.testing.assert_array_equal(jax.random.key_data(got[2]["a"]), jax.random.key_data(want[2]["a"]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fast = superopt.optimize(update, *arguments(), **OPTIONS)
    check(fast(*arguments()))
    return fast.save(tmp_path_factory.mktemp("saved") / "p.superopt")


def test_every_type_of_node_is_saved(path: Path) -> None:
    loaded = superopt.load(path)
    check(loaded(*arguments()))
    check(jax.jit(lambda s: loaded(s, *arguments()[1:]))(arguments()[0]))
    state, layer, extra = arguments()
    for other in (
        (state, dataclasses.replace(layer, act=jnp.sin), extra), (state, dataclasses.replace(layer, name="n"), extra),
        (tuple(state), layer, extra), (state._replace(params=state.params.items), layer, extra),
        (state, layer, {**extra, "key": jax.random.key_data(extra["key"])}),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"the program was made for|another structure"):
            loaded(*other)


def test_types_are_found_only_when_the_user_has_imported_them(path: Path) -> None:
    code = (
        "import importlib, sys, superopt; sys.path[:0] = sys.argv[3:]\n"
        "loaded, name = superopt.load(sys.argv[1]), sys.argv[2]\n"
        "assert name not in sys.modules\n"
        "try: loaded.out_tree.tree()\n"
        "except superopt.SuperoptError as error: assert f'import {name}' in error.hint, error.hint\n"
        "else: raise AssertionError\n"
        "made = importlib.import_module(name)\n"
        "made.check(loaded(*made.arguments()))\n"
    )
    tests = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code, path, __name__, tests, tests.parents[1]], check=True)


def test_results_that_no_file_can_hold_are_refused_by_name(tmp_path: Path) -> None:
    fast = superopt.optimize(lambda x: Layer(x * 2), rand(3), **OPTIONS)
    with pytest.raises(InputError, match=r"Layer.*more than plain data"):
        fast.save(tmp_path / "p.superopt")


def test_plain_forms_are_exact() -> None:
    for tree in (arguments(), {"a": (1, [2, None])}, {2: 0, 1: (0,)}, OrderedDict(z=1, a=2), {(1, "a"): 0}):
        structure = tree_util.tree_structure(tree)
        held = Structure(json_of(json.dumps(tree_data(structure))))
        assert held.num_leaves == structure.num_leaves
        assert held.matches(structure)
        assert held.tree(structure) == structure
    assert Structure(tree_data(tree_util.tree_structure(OrderedDict(z=1)))).tree().node_data()[0] is OrderedDict


@pytest.mark.parametrize(
    "data",
    [
        {"type": "os:system", "aux": None, "children": []},
        {"type": "builtins:int", "aux": None, "children": []},
        {"type": "subprocess:Popen", "aux": {"tuple": []}, "children": ["*"]},
        {"type": "not.imported:Type", "aux": None, "children": []},
        {"type": "collections:OrderedDict", "aux": {"described": "os:system"}, "children": []},
        {"type": "collections:OrderedDict", "aux": {"name": "os:system"}, "children": []},
        {"type": "collections:OrderedDict", "aux": {"tuple": ["a"], "more": 0}, "children": ["*"]},
        {"type": "collections:OrderedDict", "aux": {"list": ["a"], "more": 0}, "children": ["*"]},
        {"type": "collections:OrderedDict", "aux": {"dict": [["a", 0]], "more": 0}, "children": ["*"]},
        {"type": "collections:OrderedDict", "aux": {"dict": [["a"]]}, "children": ["*"]},
        {"type": "superopt.frontends.jax.boundary:Static", "aux": {"described": "os:system"}, "children": []},
    ],
)
def test_names_of_a_file_are_not_followed(data: Any) -> None:
    with pytest.raises(InputError):
        Structure(data).tree()


@pytest.mark.parametrize(
    "data",
    [
        "x",
        3,
        {"type": 3},
        {"type": "a:b", "children": []},
        {"type": "a:b", "aux": None, "children": [], "more": 0},
        {"tuple": [], "list": []},
        {"list": [], "more": 0},
        {"dict": [], "more": 0},
        {"dict": [["a", "*"], ["a", "*"]]},
        {"dict": [["a", "*"], [1, "*"]]},
        {"dict": [[True, "*"]]},
        {"dict": [["a"]]},
    ],
)
def test_what_is_no_structure_is_refused(data: Any) -> None:
    with pytest.raises(InputError):
        Structure(data)


def nested(depth: int) -> list[Any]:
    """So many lists, one within the other."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_structures_and_what_nodes_hold_have_limits() -> None:
    inner: Any = None
    for _ in range(60):
        inner = {"tuple": [inner]}
    with pytest.raises(InputError, match="nested more than"):
        Structure(inner)
    for fits, beyond in ((nested(30), nested(31)), ([()] * 9_999, [()] * 10_000)):
        assert trees._plain(fits)
        with pytest.raises(InputError, match="holds more than can be described"):
            trees._plain(beyond)


def test_a_structure_is_made_of_the_nodes_that_are_given() -> None:
    """Functions of equal descriptions may be different objects: results hold those of the call."""
    x = jnp.zeros(3)
    one, other = (tree_util.tree_structure(Layer(x, act=scaled(2.0))) for _ in range(2))
    held = Structure(tree_data(one))
    assert one != other
    for _ in range(2):
        assert held.tree(one) == one
        assert held.tree(other) == other


def scaled(factor: float) -> Callable[[jax.Array], jax.Array]:
    return lambda a: a * factor


@pytest.mark.parametrize(
    "data",
    ["*", None, {"tuple": [{"tuple": []}, None]}, {"tuple": [{"tuple": []}, {"tuple": []}]},
     {"tuple": [{"tuple": []}, {"dict": [[1, "*"]]}]}, {"tuple": [{"dict": []}, {"dict": []}]}],
)  # fmt: skip
def test_arguments_that_are_no_call_are_refused(data: Any) -> None:
    with pytest.raises(InputError, match="not that of a call"):
        count_positions(Structure(data).data)


def test_functions_of_one_scope_are_told_apart(tmp_path: Path) -> None:
    """Two closures have one name; the program that was saved with one was called for the other."""
    x = jnp.arange(8.0)

    def fn(model: dict[str, Any], a: jax.Array) -> jax.Array:
        return model["act"](a) + 1

    compiled = superopt.optimize(fn, {"act": scaled(2.0)}, x, **OPTIONS)
    compiled.save(tmp_path / "p.superopt")
    loaded = superopt.load(tmp_path / "p.superopt")
    np.testing.assert_allclose(loaded({"act": scaled(2.0)}, x), 2 * x + 1)
    with pytest.raises(ArgumentError, match="structure"):
        loaded({"act": scaled(3.0)}, x)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (np.arange(4000), np.arange(4000), np.arange(4000)[::-1]),
        (functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=1)),
        ({"a", "b"}, {"b", "a"}, {"a", "c"}),
        (SimpleNamespace(a=1, b=2), SimpleNamespace(a=1, b=2), SimpleNamespace(b=1, a=2)),
        (scaled(1.5).__get__(2.0), scaled(1.5).__get__(2.0), scaled(1.5).__get__(3.0)),
        (jnp.tanh, jnp.tanh, jnp.sinh),
        (1.0 + 2.0j, 1.0 + 2.0j, 1.0 - 2.0j),
        (OrderedDict(a=1), OrderedDict(a=1), OrderedDict(a=1, b=2)),
        (State(1, 2), State(1, 2), State(1, 3)),
        (jax.tree.structure((1, 2)), jax.tree.structure((3, 4)), jax.tree.structure((1, (2,)))),
    ],
)
def test_what_nodes_hold_is_told_apart(one: Any, same: Any, other: Any) -> None:
    first, second, third = (trees._plain(x) for x in (one, same, other))
    assert first == second
    assert first != third
    assert json.loads(json.dumps(first)) == first


def told(text: str) -> Any:
    """An object of which only its text is known."""
    return type("Told", (), {"__slots__": (), "__repr__": lambda self: text})()


class Empty:
    """An object that holds nothing."""


def test_what_cannot_be_told_apart_is_not_written() -> None:
    def recursive(n: int) -> int:
        return n and recursive(n - 1)

    assert trees._plain(recursive) == trees._plain(recursive)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for value in (object(), deep, iter(()), np.array([object()]), told("x" * 1001)):
        with pytest.raises(InputError, match="among the arguments"):
            trees._plain(value)
    assert trees._plain(told("x" * 1000))["of"] == ["x" * 1000]
    assert trees._plain(Empty()) == {"described": f"{__name__}:Empty", "of": []}, "it holds nothing"


def test_results_of_loaded_programs_are_weakly_typed_as_the_original_s(tmp_path: Path) -> None:
    def fn(mask: jax.Array) -> jax.Array:
        return jnp.where(mask, 1, 2)

    mask = jnp.arange(4) > 1
    superopt.optimize(fn, mask, **OPTIONS).save(tmp_path / "p.superopt")
    loaded = superopt.load(tmp_path / "p.superopt")
    assert (loaded(mask) + jnp.int8(1)).dtype == (jax.jit(fn)(mask) + jnp.int8(1)).dtype == jnp.int8


def test_named_tuples_with_nodes_of_their_own(tmp_path: Path) -> None:
    """Registered as nodes that hold more than their children: the state of JAX's own optimisers."""
    start, update, _ = optimizers.adam(1e-2)
    state = start({"w": jnp.ones((4, 4)), "b": jnp.zeros(4)})
    gradient = {"w": jnp.full((4, 4), 0.3), "b": jnp.ones(4)}
    compiled = superopt.optimize(lambda i, s, g: update(i, g, s), 0, state, gradient, **OPTIONS)
    compiled.save(tmp_path / "p.superopt")
    got, want = superopt.load(tmp_path / "p.superopt")(0, state, gradient), update(0, gradient, state)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_static_arguments_are_given_to_a_loaded_program_as_to_the_function(tmp_path: Path) -> None:
    """By position or by name; another value is another program."""
    x = rand(4, 3)

    @functools.partial(jax.jit, static_argnames=("n", "mode"))
    def fn(x: jax.Array, n: int, scale: Any = None, *, mode: str = "add") -> jax.Array:
        y = jnp.roll(x, n, 0) if mode == "add" else x * n
        return y if scale is None else y * scale

    fast = superopt.optimize(fn, x, 2, None, kwargs={"mode": "add"}, **OPTIONS)
    loaded = superopt.load(fast.save(tmp_path / "p.superopt"))
    for args, named in (
        ((x, 2, None), {}),
        ((x, 2), {"scale": None}),
        ((x,), {"n": 2, "scale": None}),
        ((), {"x": x, "n": 2, "scale": None}),
    ):
        for _ in range(2):
            np.testing.assert_array_equal(loaded(*args, mode="add", **named), np.roll(x, 2, 0))
    with pytest.raises(ArgumentError, match="argument n is 3, the program was made for 2"):
        loaded(x, 3, None, mode="add")
    with pytest.raises(ArgumentError, match="argument mode is 'mul', the program was made for 'add'"):
        loaded(x, 2, None, mode="mul")
    with pytest.raises(ArgumentError, match="which has no hash"):
        loaded(x, [2], None, mode="add")
    assert loaded.validate(fn).valid
