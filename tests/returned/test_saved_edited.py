"""Saved programs whose parts do not fit each other are refused, whoever wrote them: digests in a file are its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import InputError
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.text import print_graph
from superopt.ir.types import TensorType
from superopt.kernels.choose.specs import KernelSpec
from superopt.returned import saved as saved_files
from tests.support.saved_files import edited

W, X = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones((3, 4), np.float32)


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.dot(x, w.T * 2) + jnp.arange(4.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {"budget": "60steps", "deterministic": True, "store": False}
    folder = tmp_path_factory.mktemp("saved")
    return superopt.optimize(layer, W, X, frozen=(0,), **settings).save(folder / "layer.superopt")


def meta(**changes: Any) -> dict[str, Callable[[bytes], bytes]]:
    """Entries of the file's table changed by functions."""

    def change(data: bytes) -> bytes:
        table = json.loads(data)
        return json.dumps(table | {key: edit(table[key]) for key, edit in changes.items()}).encode()

    return {"meta": change}


def speedup(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Callable[[bytes], bytes]]:
    """The speed-up of the file's report changed."""
    return meta(report=lambda report: {**report, "speedup": edit(report["speedup"])})


def text(member: str, old: str, new: str) -> dict[str, Callable[[bytes], bytes]]:
    """A text of the file with words exchanged."""
    return {member: lambda data: data.replace(old.encode(), new.encode())}


_X = make_input("x", (3, 4))
FOREIGN = print_graph(
    Graph((_X, *(make_input(f"prepared{i}", (4,), "key", frozen=True) for i in range(2))), (mk("exp", _X),))
)
OPAQUE = print_graph(
    Graph((_X,), (mk("opaque", _X, primitive="p", params_key="p-0", result_types=(TensorType((3, 4)),)),))
)
EDITS: dict[str, tuple[Mapping[str, Callable[[bytes], bytes] | None], str]] = {
    "format": (meta(format=lambda n: n + 1), "it has format"),
    "parameters": (meta(parameters=lambda p: [*p, "more"]), "3 positional arguments, its structure has other ones"),
    "neither": (meta(live=lambda _: []), "not each live or frozen"),
    "twice": (meta(live=lambda _: [0, 1]), "not each live or frozen"),
    "names": (meta(names=lambda n: [*n, "z"], live=lambda _: [1, 2]), "names 3 arguments"),
    "no text": (meta(names=lambda n: [n[0], 7]), "7 is not a text"),
    "position": (meta(live=lambda _: [2]), "2 is no position of 2"),
    "truth": (meta(live=lambda _: [True]), "True is no position"),
    "frozen": (meta(frozen=lambda rows: [rows[0][:2]]), "no frozen argument"),
    "dtype": (meta(frozen=lambda rows: [[rows[0][0], "float31", rows[0][2]]]), "no dtype of a frozen argument"),
    "constants": (meta(places=lambda _: {"const0": "apart/0"}), "constants are other ones"),
    "results": (text("trees", '"results": "*"', '"results": {"tuple": ["*", "*"]}'), "structure of results 2"),
    "no tensors": ({"prepared": None}, "0 prepared tensors for 2 inputs"),
    "cut": ({"prepared": lambda data: data[:-4]}, "bytes, f32"),
    "fewer inputs": ({"hot": lambda _: b"%0 = literal 1.0 : f32[]\nreturn %0\n"}, "takes other inputs than the file"),
    "constants within": (text("hot", "input prepared0 : f32[4,4] frozen", "input prepared0 : f32[4,4] frozen constant "
                              f"({', '.join(['1.0'] * 16)})"), "takes other inputs than the file"),
    "no ratio": (speedup(lambda row: {k: row[k] for k in row if k != "ratio"}), "it has no 'ratio'"),
    "no end": (speedup(lambda row: {**row, "high": "far"}), "its 'high' is"),
    "no basis": (speedup(lambda row: {**row, "basis": 1}), "its 'basis' is"),
    "weak": (meta(weak=lambda _: [[0]]), "no pairs of lists"),
    "foreign": ({"hot": lambda _: FOREIGN.encode()}, "a prepared tensor of dtype key"),
    "no module": ({"hot": lambda _: OPAQUE.encode()}, "without its module"),
    "one name": (text("hot", "input prepared0", "input x"), "two inputs have one name"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_parts_that_do_not_fit_are_refused(name: str, path: Path, tmp_path: Path) -> None:
    changes, cause = EDITS[name]
    with pytest.raises(InputError, match=cause):
        superopt.load(edited(path, tmp_path / "e.superopt", **changes))


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [("input w ", "input v ", "takes other arguments"), ("transpose(%0) permutation=(1, 0) : f32[4,4]", None, "")],
)
def test_originals_of_other_calls_are_refused_where_they_are_used(
    old: str, new: str | None, cause: str, path: Path, tmp_path: Path
) -> None:
    if new is None:  # one result of another type
        changes = {"original": lambda data: data.replace(data[data.rindex(b"return ") :], b"return %0\n")}
        cause = "has other results"
    else:
        changes = text("original", old, new)
    loaded = superopt.load(edited(path, tmp_path / "e.superopt", **changes))
    with pytest.raises(InputError, match=cause):
        jax.jit(loaded)(2 * W, X)


@pytest.mark.parametrize(
    ("member", "value", "cause"), [("modules.json", [], "modules are no table"), ("kernels.json", {}, "are no list")]
)
def test_tables_are_of_their_kind(member: str, value: Any, cause: str) -> None:
    class Holding:
        def json(self, name: str) -> Any:
            return value

        def __contains__(self, name: str) -> bool:
            return name == member

    read: Any = saved_files._modules if member == "modules.json" else lambda held: saved_files._kernels(held, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=cause):
        read(Holding())


def test_kernels_are_of_values_of_the_program() -> None:
    class Holding:
        names = ("kernels.json",)

        def json(self, name: str) -> Any:
            return [KernelSpec(99, (0,)).to_json()]

        def __contains__(self, name: str) -> bool:
            return name in self.names

    x = make_input("x", (3,))
    with pytest.raises(InputError, match="chosen for value 99 of a program of 2 values"):
        saved_files._kernels(Holding(), Graph((x,), (mk("tanh", x),)))  # type: ignore[arg-type]


def test_files_without_a_plan_are_not_validated(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it holds no plan"):
        saved_files.read_whole(edited(path, tmp_path / "e.superopt", plan=None))


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.maximum(a, 0.0) - b


OTHER_CALLS: dict[str, tuple[dict[str, Callable[[bytes], bytes]], str]] = {
    "names": (meta(names=lambda names: names[::-1]), "names other arguments than the original takes"),
    "live": (meta(live=lambda live: live[::-1]), "would pass other arguments"),
    "results": (
        {"original": lambda data: data.strip() + b", " + data.split()[-1] + b"\n"},
        "another structure of results than the original",
    ),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_calls_that_the_original_does_not_take_are_not_validated(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": "20steps", "deterministic": True, "store": False}
    path = superopt.optimize(difference, X, X, **settings).save(tmp_path / "d.superopt")
    assert superopt.load(path).validate().valid
    changes, cause = OTHER_CALLS[name]
    told = superopt.load(edited(path, tmp_path / "e.superopt", **changes)).validate()
    assert not told.valid
    assert cause in told.cause
