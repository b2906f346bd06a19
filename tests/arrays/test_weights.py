"""Weights are held once: placed in a file, prepared piece by piece, shared by programs and processes, or read later."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt import load, optimize
from superopt.arrays import bundles as arrays
from superopt.arrays import placing
from superopt.backends import preparing
from superopt.backends.xla import build
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.frontends.onnx.frontend import import_model, load_model
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import Program
from superopt.kernels.runtime.pages import PAGE, map_file
from superopt.measure.compare import _job
from superopt.measure.session import ComparisonSettings
from superopt.pipeline.weights import LEAST_BYTES, Shelf

pytestmark = pytest.mark.usefixtures("keeps_plain")

SIDE = 1024  # a matrix of 4 MB: large enough for a piece of its own


def matrices(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"w{i}": rng.standard_normal((SIDE, SIDE), np.float32) for i in range(count)}


def chain(params: dict[str, Any], x: Any) -> Any:
    for w in params.values():
        x = x @ (w * 2.0).T
    return x


@pytest.fixture
def folder() -> Iterator[Path]:
    """In shared memory where there is such, as the product's own."""
    with arrays.scratch_folder(1) as made:
        yield Path(made)


def pointer(x: Any) -> int:
    return x.addressable_shards[0].data.unsafe_buffer_pointer() if isinstance(x, jax.Array) else x.ctypes.data


def prepared_program(count: int) -> Program:
    """Every weight doubled ahead of time, and handed on."""
    frozen = tuple(make_input(f"w{i}", (SIDE, SIDE), frozen=True) for i in range(count))
    given = tuple(mk("add", w, w) for w in frozen)
    hot = tuple(make_input(f"p{i}", (SIDE, SIDE), frozen=True) for i in range(count))
    return Program(Graph(frozen, given), Graph(hot, tuple(mk("neg", p) for p in hot)))


def test_placed_arrays_are_views_that_nobody_writes_to(tmp_path: Path) -> None:
    given = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(True), "c": np.zeros((0, 2), np.int64)}
    found = placing.place(tmp_path, given)
    for name, array in found.items():
        np.testing.assert_array_equal(array, given[name])
        assert not array.flags.writeable
        at = placing.place_of(array)
        assert at is not None
        assert at[3] % placing.ALIGN == 0
        again = placing.placed(at)
        assert placing.placed(at) is again
        np.testing.assert_array_equal(again, array)
    assert placing.place_of(given["a"]) is None
    assert placing.place_of(found["a"][:1]) is None
    for file in tmp_path.iterdir():
        file.unlink()
    np.testing.assert_array_equal(found["a"], given["a"])


def test_pieces_of_large_weights_run_alone_and_equal_ones_are_compiled_once() -> None:
    program = prepared_program(3)
    assert program.prepare is not None
    pieces = preparing.pieces_of(program.prepare.outputs)
    assert [len(p.gives) for p in pieces] == [1, 1, 1]
    assert len({p.form.outputs for p in pieces}) == 1
    small = make_input("s", (4,), frozen=True), make_input("t", (4,), frozen=True)
    assert len(preparing.pieces_of([mk("neg", x) for x in small])) == 1
    w = make_input("w0", (SIDE, SIDE), frozen=True)
    both = mk("exp", w)
    assert len(preparing.pieces_of([mk("neg", both), mk("add", both, both)])) == 1  # they share a computation


def test_weights_are_read_one_after_the_other() -> None:
    values, held, most = matrices(6), [0], [0]

    def reader(array: np.ndarray) -> placing.Later:
        def read() -> np.ndarray:
            copy = np.array(array)
            held[0] += 1
            most[0] = max(most[0], held[0])
            weakref.finalize(copy, lambda: held.__setitem__(0, held[0] - 1))
            return copy

        return placing.Later(read, array.shape, array.dtype)

    run = build(prepared_program(6), {name: reader(x) for name, x in values.items()})
    gc.collect()
    assert most[0] < len(values)  # JAX lets go of what it has read at one of its next calls
    assert held[0] == 0
    for x, w in zip(run.prepared, values.values(), strict=True):
        np.testing.assert_array_equal(x, 2 * w)


def test_programs_share_what_they_prepare_of_placed_weights(tmp_path: Path) -> None:
    values = placing.place(tmp_path, matrices(2))
    program = prepared_program(2)
    first, second = build(program, values), build(program, values)
    assert [pointer(x) for x in first.prepared] == [pointer(x) for x in second.prepared]


def test_what_its_owner_may_change_is_copied() -> None:
    values = {"w0": placing.aligned((SIDE, SIDE), np.dtype(np.float32))}
    values["w0"][:] = matrices(1)["w0"]
    frozen = make_input("w0", (SIDE, SIDE), frozen=True)
    hot = make_input("p0", (SIDE, SIDE), frozen=True)
    run = build(Program(Graph((frozen,), (frozen,)), Graph((hot,), (mk("neg", hot),))), values)
    before = values["w0"].copy()
    values["w0"][:] = 0.0
    np.testing.assert_array_equal(run()[0], -before)


def test_what_was_prepared_is_found_in_its_files(folder: Path) -> None:
    if not folder.is_relative_to(placing.SHARED):
        pytest.skip("no shared memory here: each process prepares for itself")
    values = placing.place(folder, matrices(2))
    program = prepared_program(2)
    first = build(program, values)
    files = {f: f.stat().st_ino for f in folder.iterdir() if f.name.startswith("made-")}
    assert len(files) == 2
    wanted, held = [np.array(x) for x in first.prepared], [weakref.ref(x) for x in first.prepared]
    del first
    gc.collect()
    assert [x() for x in held] == [None, None], "it is to be found as another process finds it"
    second = build(program, values)
    assert {f: f.stat().st_ino for f in files} == files, "nothing is made again"
    for a, b in zip(wanted, second.prepared, strict=True):
        assert pointer(b) % PAGE == 0
        np.testing.assert_array_equal(a, b)


def test_mapped_files(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 33)
    (tmp_path / "empty").write_bytes(b"")
    found = map_file(tmp_path / "data")
    if found is not None:  # where pages are those of Linux
        assert pointer(found) % PAGE == 0
        assert not found.flags.writeable
        assert bytes(found.data) == bytes(range(256)) * 33
        (tmp_path / "data").unlink()
        assert found[255] == 255
    assert map_file(tmp_path / "empty") is None
    assert map_file(tmp_path / "none") is None


def test_requests_name_placed_weights_and_hold_the_others(tmp_path: Path) -> None:
    values = placing.place(tmp_path, matrices(1))
    x = np.ones((2, 3), np.float32)
    job = _job(prepared_program(1), [], [x], values, ComparisonSettings(), "", tmp_path)
    assert [(job.files[file], *at) for file, *at in job.data["placed"].values()] == [placing.place_of(values["w0"])]
    assert os.path.getsize(tmp_path / "arrays") == x.nbytes


def model_of(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes, at = [], "x"
    for name in weights:
        nodes.append(helper.make_node("MatMul", [at, name], [f"y{name}"]))
        at = f"y{name}"
    row = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIDE])
    result = helper.make_tensor_value_info(at, TensorProto.FLOAT, [1, SIDE])
    stored = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "chain", [row], [result], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_model_keeps_its_weights_once(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(model_of(matrices(3)), path)
    model = load_model(path)
    assert not any(t.raw_data for t in model.graph.initializer)  # the message of the file is gone
    read = [weakref.ref(x) for x in model.params.values()]
    with Shelf() as shelf:
        model = shelf.model(model)
        imported = shelf.imported(import_model(model))
        gc.collect()
        assert [ref() for ref in read] == [None] * 3
        constants = imported.graph.constants
        places = [placing.place_of(x) for x in constants.values()]
        assert len(places) == 3
        assert all(at is not None and Path(at[0]).exists() for at in places)
    assert not any(at is not None and Path(at[0]).exists() for at in places)
    for x, w in zip(constants.values(), matrices(3).values(), strict=True):
        np.testing.assert_array_equal(x, w)


def test_weights_stay_in_memory_where_there_is_no_room_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(model_of(matrices(3)), path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "weights_folder", full)
    with Shelf() as shelf:
        model = shelf.model(load_model(path, own=False))
    path.write_bytes(bytes(path.stat().st_size))  # the file of the user is not read again
    for name, w in matrices(3).items():
        assert placing.place_of(model.params[name]) is None
        np.testing.assert_array_equal(model.params[name], w)


def test_many_weights_are_on_disk_and_what_is_made_of_them_in_memory() -> None:
    with arrays.weights_folder(arrays.ON_DISK_BYTES) as folder:
        if folder.is_relative_to(placing.SHARED):
            pytest.skip("no room on disk, or it is memory")
        beside = placing.made_folder(folder)
        values = placing.place(folder, matrices(2))
        first = build(prepared_program(2), values)
        if beside.is_dir():
            assert len(list(beside.iterdir())) == 2
        for x, w in zip(first.prepared, matrices(2).values(), strict=True):
            np.testing.assert_array_equal(x, 2 * w)
    assert not folder.exists()
    assert not beside.exists()


def test_frozen_arguments_are_read_from_the_file_and_stay_the_users_own() -> None:
    params, x = jax.device_put(matrices(3)), np.ones((1, SIDE), np.float32)
    imported = import_function(chain, (params, x), {}, frozen=0)
    with Shelf() as shelf:
        placed = shelf.imported(imported)
        assert all(placing.place_of(v) is not None for v in placed.frozen_values.values())
        assert all(a is b for a, b in zip(placed.examples, imported.examples, strict=True))
        assert shelf.imported(placed) is placed
    few = import_function(lambda w, x: x @ w, (np.ones((3, 3), np.float32), np.ones((1, 3), np.float32)), {}, frozen=0)
    assert few.frozen_values["w"].nbytes < LEAST_BYTES
    with Shelf() as shelf:
        assert shelf.imported(few) is few


def test_a_program_of_large_weights_is_optimised_saved_and_loaded(tmp_path: Path) -> None:
    params, x = matrices(3), np.ones((1, SIDE), np.float32) / SIDE
    result = optimize(chain, params, x, frozen=0, search=False, store=False)
    wanted = np.asarray(chain({k: v.astype(np.float64) for k, v in params.items()}, x.astype(np.float64)))
    np.testing.assert_allclose(result(params, x), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    path = result.save(tmp_path / "chain.superopt")
    loaded = load(path)
    np.testing.assert_allclose(loaded(params, x), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    slope = jax.grad(lambda x: loaded(params, x).sum())(x)  # reads the file again
    np.testing.assert_allclose(slope, jax.grad(lambda x: chain(params, x).sum())(x), rtol=1e-3, atol=1e-2)
    data = bytearray(path.read_bytes())
    data[data.index(b"prepared/0") + 4096] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="digest"):  # at the latest where they are read: calls read packed ones
        jax.grad(lambda x: load(path)(params, x).sum())(x)
