"""Arguments at symbolic sizes: specifications that are refused, sizes that are known, and the paths of traced code."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.errors import InconclusiveDimensionOperation
from jax.experimental import io_callback

from superopt.errors import InputError, SuperoptError
from superopt.frontends.jax import walk
from superopt.frontends.symbolic.graphs import UntracedError, trace_concrete, trace_symbolic
from superopt.frontends.symbolic.known import SizeArray, equal, integers, live, quotient, remainder
from superopt.frontends.symbolic.paths import Path, followed, has_branches, question
from superopt.frontends.symbolic.specs import Specs, read_specs, read_type


def specs_of(*shapes: Any, constraints: Any = ()) -> Specs:
    return read_specs(["x", "y"][: len(shapes)], shapes, {}, constraints)


# ---- specifications


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("float33[n]", "is no dtype"),
        ("int32[n", "cannot be read"),
        (3, "is a int"),
        (None, "is a NoneType"),
        (jax.random.key(0), "which no input of a statement can be"),
    ],
)
def test_what_is_no_specification_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_type(spec)


def test_two_texts_are_two_arguments_unless_the_second_is_a_dtype() -> None:
    assert [str(t) for t in specs_of(("m", "n")).types] == ["f32[m]", "f32[n]"]
    assert [str(t) for t in specs_of(("m", "int32")).types] == ["i32[m]"]
    assert [str(t) for t in specs_of(("m", np.int8)).types] == ["i8[m]"]


def test_parameters_without_a_specification_keep_their_defaults() -> None:
    assert read_specs(["x", "y", "z"], ("n",), {}, ()).names == ("x",)
    assert read_specs(["x", "y", "z"], ("n",), {"y": "m"}, ()).names == ("x", "y")


@pytest.mark.parametrize(
    ("text", "message"), [("n >=", "cannot be read"), ("n", "is no comparison"), ("n != 2", "is no comparison")]
)
def test_what_is_no_constraint_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        specs_of("n", constraints=text)


def test_equations_are_solved_only_where_they_determine_a_name() -> None:
    solved = specs_of("n n_", constraints="n % 4 == 0")
    assert solved.solved == (("n", "4*n__"),), "the new name is none of those that are taken"
    assert specs_of("m n", constraints="2 * m == n").solved == (("n", "2*m"),)
    for text in ("n == n * n", "n % 4 == 1", "n * 2 == 6", "m * n % 4 == 0"):
        open_one = specs_of("m n", constraints=text)
        assert open_one.solved == ()
        assert len(open_one.premises) == 2


def test_numbers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="contradict"):
        specs_of("n", constraints=("n == 2", "n >= 3"))


def test_sizes_beside_the_constraints_are_not_admitted() -> None:
    specs = specs_of("n", "n-3", constraints="n % (m - 2) >= 1")
    assert specs.admits({"n": 5, "m": 5})
    assert not specs.admits({"n": 6, "m": 5}), "a constraint"
    assert not specs.admits({"n": 1, "m": 5}), "an axis has no length"
    assert not specs.admits({"n": 5, "m": 2}), "a quotient by zero"


# ---- sizes that are known


def test_integers_are_sizes_only_where_one_is_symbolic() -> None:
    (n,) = export.symbolic_shape("n")
    ready = np.arange(3, dtype=np.int32)
    assert integers(ready) is ready
    assert integers([2, 3]).dtype == np.int64
    assert not isinstance(integers(np.array([2, 3], object)), SizeArray)
    assert isinstance(integers([2, n]), SizeArray)
    assert isinstance(live(ready), jax.Array)


def test_quotients_of_sizes_that_may_be_negative_or_by_zero_are_open() -> None:
    n, m = export.symbolic_shape("n, m")
    assert equal(quotient(n * 4, 4)[()], n)
    assert equal(remainder(n * 4, 4)[()], 0)
    for of in (quotient, remainder):
        for a, b in ((n - 3, 2), (n, m - 1)):
            with pytest.raises(InconclusiveDimensionOperation):
                of(a, b)


# ---- paths


def straight(x: Any) -> Any:
    return jnp.sum(x)


def branching(x: Any) -> Any:
    return x if x.ndim else -x


class Calling:
    def __call__(self, x: Any) -> Any:
        return branching(x)


def calling(x: Any) -> Any:
    return branching(x)


def itself(x: Any) -> Any:
    return itself(x)


@pytest.mark.parametrize(
    ("fn", "has"),
    [
        (straight, False),
        (itself, False),
        (branching, True),
        (calling, True),
        (functools.partial(calling, 1), True),
        (Calling(), True),
        (jax.jit(branching), True),
        (jax.jit(straight), False),
        (lambda x: {int: 1}.get(type(x)), True),
    ],
)
def test_code_with_branches_is_found(fn: Callable[..., Any], has: bool) -> None:
    assert has_branches(fn) is has


def test_code_that_is_too_much_to_examine_may_have_branches() -> None:
    for count, has in ((10, False), (1000, True)):
        assert has_branches(functools.partial(straight, *([i] for i in range(count)))) is has


def test_paths_are_followed_in_code_of_the_user_that_has_branches() -> None:
    with followed(straight) as path:
        assert path is None
    with followed(branching) as path:
        branching(jnp.zeros(2))
    assert path is not None
    assert branching.__code__ in path.steps
    assert not [code.co_filename for code in path.steps if "/jax/" in code.co_filename]


def test_paths_differ_where_only_one_has_an_instruction() -> None:
    code, other = straight.__code__, branching.__code__

    def path(steps: dict[int, int], calls: int = 1, of: CodeType = code) -> Path:
        return Path({of: Counter(steps)}, Counter({of: calls}))

    assert path({0: 1, 2: 1}).differs(path({0: 1, 2: 1})) == ""
    for one, two in ((path({0: 1, 2: 1}), path({0: 1})), (path({0: 1}), path({0: 1, 2: 1}))):
        assert one.differs(two).startswith(f"{__file__}:")
    assert path({0: 2, 2: 2}).differs(path({0: 3, 2: 1})) != "", "called as often, with other counts"
    assert path({0: 2, 2: 2}, 2).differs(path({0: 1, 2: 1})) == "", "called more often, with the same instructions"
    assert Path().differs(path({0: 1})) != "", "code that only numbers enter"
    assert path({0: 1}).differs(Path()) == "", "code whose result JAX has from a trace before"
    assert question(path({0: 1}), None) is None
    assert question(path({0: 1}), path({0: 1}, of=other)) is not None


# ---- traces


def kind(x: jax.Array) -> jax.Array:
    return x * 2 if type(x.shape[0]) is int and x.shape[0] > 500 else x


@pytest.mark.parametrize("constraints", ["n >= 1", "n >= 100000", "n % 1000 == 5", "n == 3 * m + 1"])
def test_a_branch_on_the_kind_of_a_size_is_a_question_at_every_constraint(constraints: str) -> None:
    (asked,) = trace_symbolic(kind, specs_of("n", constraints=constraints), 1).comparisons
    assert asked.zero is None


def test_no_sizes_beside_the_constraints_are_tried() -> None:
    tried: list[Any] = []

    def fn(x: jax.Array) -> jax.Array:
        tried.append(x.shape[0])
        return x if x.ndim else -x

    assert trace_symbolic(fn, specs_of("n", constraints="n % 1000 == 5"), 1).comparisons == ()
    assert {n % 1000 for n in tried if isinstance(n, int)} == {5}


def test_effects_have_no_graph_at_symbolic_sizes() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return io_callback(np.asarray, jax.ShapeDtypeStruct((3,), "float32"), x)

    with pytest.raises(UntracedError, match="io_callback"):
        trace_concrete(fn, specs_of("n"), {"n": 3})


def test_a_graph_of_other_types_than_the_function_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    real = walk.Importer.run
    monkeypatch.setattr(walk.Importer, "run", lambda self, jaxpr, consts, args: real(self, jaxpr, consts, args) * 2)
    with pytest.raises(SuperoptError, match="the graph gives"):
        trace_concrete(straight, specs_of("n"), {"n": 3})
