"""ONNX files that ask for too much: work, memory and depth are bounded, and what they say is printed harmlessly."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt.errors import ArgumentError, ExternalDataError, FileLimitError, InputError, ModelFileError
from superopt.frontends.onnx import data as onnx_data
from superopt.frontends.onnx import eval as onnx_eval
from superopt.frontends.onnx import read as onnx_read
from superopt.frontends.onnx.frontend import UnsupportedOpError, import_model, load_model
from superopt.frontends.onnx.schema import check_trips
from superopt.pipeline.weights import Shelf
from tests.support.onnx_models import info, mlp, model, node


def loop(depth: int, trips: int, *, ends: bool = False) -> onnx.NodeProto:
    """`depth` loops within each other, each doubling a value."""
    keep = node("Identity", f"c{depth}", f"k{depth}")
    if ends:
        keep = node("Less", f"s{depth} top", f"k{depth}")
    inner = node("Add", "s1 s1", "r1") if depth == 1 else loop(depth - 1, trips)
    if depth > 1:
        inner.input[2] = f"s{depth}"
        inner.output[0] = f"r{depth}"
    inputs = [info(f"i{depth}", (), np.int64), info(f"c{depth}", (), bool), info(f"s{depth}", (2,))]
    outputs = [info(f"k{depth}", (), bool), info(f"r{depth}", (2,))]
    count = helper.make_tensor(f"n{depth}", TensorProto.INT64, [], [trips])
    nodes = [keep, inner]
    if ends:
        nodes = [node("ReduceMax", f"s{depth}", "big", keepdims=0), node("Less", "big top", f"k{depth}"), inner]
    body = helper.make_graph(nodes, f"body{depth}", inputs, outputs, [count] if depth > 1 else [])
    return helper.make_node("Loop", [f"n{depth - 0}", "", "x"], [f"y{depth}"], body=body)


def looped(depth: int, trips: int, *, ends: bool = False) -> onnx.ModelProto:
    """A model of nested loops."""
    outer = loop(depth, trips, ends=ends)
    stored = {f"n{d}": np.array(trips) for d in range(1, depth + 1)} | {"top": np.array(100, np.float32)}
    return model([outer], [info("x", (2,))], [info(f"y{depth}", (2,))], stored)


@pytest.mark.parametrize(("depth", "trips"), [(1, 10**18), (2, 10**6), (3, 2000)])
def test_loops_without_end_are_refused(depth: int, trips: int) -> None:
    with pytest.raises(InputError, match="a loop of"):
        load_model(looped(depth, trips))


def test_loops_that_a_condition_ends_are_not() -> None:
    (y,) = load_model(looped(1, 2**62, ends=True))(np.ones(2, np.float32))
    np.testing.assert_array_equal(y, [256.0, 256.0])


ENDS = {
    "the condition as it came": ([], "c", False),
    "its copy": ([node("Identity", "c", "k")], "k", False),
    "a copy of its copy": ([node("Identity", "c", "a"), node("Cast", "a", "k", to=TensorProto.BOOL)], "k", False),
    "a constant": ([node("Constant", "", "k", value_int=1)], "k", False),
    "a copy of a constant": ([node("Constant", "", "a", value_int=1), node("Identity", "a", "k")], "k", False),
    "an array of the body": ([], "kept", False),
    "a comparison": ([node("Less", "s s", "k")], "k", True),
    "a copy of a comparison": ([node("Less", "s s", "a"), node("Identity", "a", "k")], "k", True),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_loop_that_no_condition_ends_has_few_steps(name: str) -> None:
    nodes, end, ends = ENDS[name]
    kept = helper.make_tensor("kept", TensorProto.BOOL, [], [True])
    given = [info("i", (), np.int64), info("c", (), bool), info("s", (2,))]
    body = helper.make_graph(nodes, "body", given, [info(end, (), bool), info("s", (2,))], [kept])
    loop, begun = (helper.make_node("Loop", ["n", condition, "x"], ["y"], body=body) for condition in ("", "c0"))
    for count, outside in ((10, 1), (5, 2)):
        check_trips(loop, count, outside, 10)
    for count, outside in ((11, 1), (6, 2)):
        check_trips(begun, count, outside, 10)
        if ends:
            check_trips(loop, count, outside, 10)
        else:
            with pytest.raises(InputError, match="a loop of"):
                check_trips(loop, count, outside, 10)


def test_nested_loops_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = 0
    spend = onnx_eval.Work.spend

    def counted(work: onnx_eval.Work, *args: Any) -> None:
        nonlocal nodes
        nodes += 1
        spend(work, *args)

    monkeypatch.setattr(onnx_eval.Work, "spend", counted)
    counts: list[int] = []
    for depth in (1, 3, 5):
        nodes = 0
        load_model(looped(depth, 40))
        counts.append(nodes)
    assert counts[2] - counts[1] == counts[1] - counts[0]


def test_many_dimensions_are_refused() -> None:
    wide = model([node("Relu", "x", "y")], [info("x", [1] * 5001)], [info("y", [1] * 5001)])
    with pytest.raises(InputError, match="5001 dimensions"):
        load_model(wide)
    stored = mlp()
    stored.graph.initializer[0].dims[:] = [1] * 5001
    with pytest.raises(ModelFileError, match="5001 dimensions"):
        load_model(stored)
    grown = [node("Unsqueeze", "x a", "y")]
    with pytest.raises(InputError, match="dimensions"):
        load_model(model(grown, [info("x", (2,))], [info("y", None or ())], {"a": np.arange(60)}))


def test_immense_inputs_are_not_made_up() -> None:
    loaded = load_model(model([node("Relu", "x", "y")], [info("x", (3, 2**31))], [info("y", (3, 2**31))]))
    with pytest.raises(ArgumentError, match="24 GiB"):
        import_model(loaded)


def test_a_long_location_is_refused(tmp_path: Path) -> None:
    changed = mlp()
    tensor = changed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w" * 5000)
    (tmp_path / "m.onnx").write_bytes(changed.SerializeToString())
    with pytest.raises(ExternalDataError, match="missing") as caught:
        load_model(tmp_path / "m.onnx")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["\x1b[2Jowned", "a\nb", "\u202eabc", "x" * 100_000])
def test_names_are_printed_harmlessly(text: str) -> None:
    for part in ("op_type", "domain", "name"):
        bad = mlp()
        setattr(bad.graph.node[1], part, text)
        if part == "name":
            bad.graph.node[1].op_type = "Nothing"
        with pytest.raises(UnsupportedOpError if len(text) < 1000 else ModelFileError) as caught:
            load_model(bad)
        first = str(caught.value).split("\n  hint")[0]
        assert first.isprintable()
        assert len(first) < 500


def test_large_ranges_are_not_made_at_conversion() -> None:
    ranged = model(
        [node("Range", "a n d", "r"), node("ReduceMax", "r", "m", keepdims=0), node("Add", "x m", "y")],
        [info("x", ())],
        [info("y", ())],
        {"a": np.float32(0), "n": np.float32(1e9), "d": np.float32(1)},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    load_model(ranged)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB; the range has 4 GB
    assert time.perf_counter() - start < 20


def cache(folder: Path) -> Path:
    """A model whose file and data are links into a folder of blobs, as download caches have them."""
    changed = mlp()
    tensor = changed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx_data")
    blobs, snapshot = folder / "models--a--b" / "blobs", folder / "models--a--b" / "snapshots" / "1f"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "aa").write_bytes(changed.SerializeToString())
    (blobs / "bb").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    (snapshot / "model.onnx").symlink_to("../../blobs/aa")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/bb")
    return snapshot / "model.onnx"


def test_links_inside_of_a_named_root_are_followed(tmp_path: Path) -> None:
    path = cache(tmp_path)
    with pytest.raises(ExternalDataError, match="symbolic link"):
        load_model(path)
    loaded = load_model(path, data_root=tmp_path / "models--a--b")
    np.testing.assert_array_equal(loaded.params["w"], np.arange(12, dtype=np.float32).reshape(4, 3))


def test_links_out_of_the_root_are_refused(tmp_path: Path) -> None:
    path = cache(tmp_path)
    with pytest.raises(ExternalDataError, match="leads out of"):
        load_model(path, data_root=path.parent)
    (tmp_path / "secret").write_bytes(bytes(48))
    path.with_name("model.onnx_data").unlink()
    path.with_name("model.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(ExternalDataError, match="leads out of"):
        load_model(path, data_root=tmp_path / "models--a--b")
    with pytest.raises(InputError, match="not a folder"):
        load_model(path, data_root=tmp_path / "none")


def test_conversion_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_eval, "SECONDS", 0.0)
    monkeypatch.setattr(onnx_eval, "SECONDS_PER_NODE", 0.0)
    with pytest.raises(FileLimitError, match="to convert"):
        load_model(mlp())
    monkeypatch.undo()
    monkeypatch.setattr(onnx_eval, "MAX_STEPS", 2)
    with pytest.raises(FileLimitError, match="2 evaluations"):
        load_model(mlp())


def calling(depth: int, times: int) -> onnx.ModelProto:
    """Functions each of which calls the next so many times."""
    functions = []
    for d in range(depth):
        inner = [
            node(f"f{d + 1}" if d + 1 < depth else "Relu", f"v{i}", f"v{i + 1}", domain="f" if d + 1 < depth else "")
            for i in range(times)
        ]
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
        functions.append(helper.make_function("f", f"f{d}", ["v0"], [f"v{times}"], inner, imports))
    return model([node("f0", "x", "y", domain="f")], [info("x", (2,))], [info("y", (2,))], functions=functions)


def test_functions_that_call_each_other_are_refused_at_once() -> None:
    start = time.process_time()
    with pytest.raises(ModelFileError, match="its functions call each other"):
        load_model(calling(10, 3))
    assert time.process_time() - start < 1
    (y,) = load_model(calling(4, 3))(np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(y, [0, 2])


def stored_outside(folder: Path, location: str, side: int = 512) -> Path:
    """A sum of the input and a weight that another file has."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[side, side], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    one = model([node("Add", "x w", "y")], [info("x", (side, side))], [info("y", (side, side))])
    one.graph.initializer.append(weight)
    (folder / "m.onnx").write_bytes(one.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("own", [False, True])
def test_files_that_are_shortened_do_not_end_the_process(own: bool, tmp_path: Path) -> None:
    path = stored_outside(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(np.full(512 * 512, 2, np.float32).tobytes())
    loaded = load_model(path, own=own)
    os.truncate(tmp_path / "w.bin", 5000)
    if own:
        assert (np.asarray(loaded.params["w"]) == 2).all()
        np.testing.assert_array_equal(loaded(np.zeros((512, 512), np.float32))[0][-1], np.full(512, 2.0))
        return
    with Shelf() as shelf, pytest.raises(InputError, match="shortened"):
        shelf.model(loaded)


def test_a_model_that_is_shortened_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = model([node("Add", "x w", "y")], [info("x", (512, 512))], [info("y", (512, 512))],
                  {"w": np.ones((512, 512), np.float32)})  # fmt: skip
    (tmp_path / "m.onnx").write_bytes(large.SerializeToString())
    loaded = load_model(tmp_path / "m.onnx", own=False)
    lean = onnx_read.lean

    def cut(data: Any) -> Any:
        os.truncate(tmp_path / "m.onnx", 100)
        return lean(data)

    monkeypatch.setattr(onnx_read, "lean", cut)
    with pytest.raises(ModelFileError, match=r"shortened|truncated"):
        load_model(tmp_path / "m.onnx")
    with Shelf() as shelf, pytest.raises(InputError, match="shortened"):
        shelf.model(loaded)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_nothing_outside_is_read_while_the_way_is_exchanged(what: str, tmp_path: Path) -> None:
    outside, inside, aside = tmp_path / "outside", tmp_path / "m" / "data", tmp_path / "aside"
    for folder, value in ((outside, 7), (inside, 1)):
        folder.mkdir(parents=True)
        (folder / "w.bin").write_bytes(np.full(64, value, np.float32).tobytes())
    path = stored_outside(tmp_path / "m", "data/w.bin", 8)
    at, other, kept = (inside, outside, aside) if what == "folder" else (
        inside / "w.bin", outside / "w.bin", inside / "kept")  # fmt: skip
    ends = threading.Event()

    def exchange() -> None:
        while not ends.is_set():
            at.rename(kept)
            at.symlink_to(other)
            at.unlink()
            kept.rename(at)

    thread = threading.Thread(target=exchange)
    thread.start()
    found = {"read": 0, "refused": 0}
    data = onnx_data.DataFolder(path.parent, path.parent)
    tensor = onnx.load(path, load_external_data=False).graph.initializer[0]
    try:
        for _ in range(3000):
            data.opened.clear()
            try:
                w = onnx_data.tensor_array(tensor, data, "w")
                found["read"] += 1
                assert w[0, 0] == 1
            except ExternalDataError:
                found["refused"] += 1
    finally:
        ends.set()
        thread.join()
    assert found["refused"]


def test_one_descriptor_serves_all_tensors_of_a_file(tmp_path: Path) -> None:
    count = 1200
    nodes = [node("Add", f"{'x' if not i else f'y{i - 1}'} w{i}", f"y{i}") for i in range(count)]
    one = model(nodes, [info("x", (2,))], [info(f"y{count - 1}", (2,))])
    for i in range(count):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "w.bin", "offset": str(8 * i)}.items():
            weight.external_data.add(key=key, value=value)
        one.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(one.SerializeToString())
    (tmp_path / "w.bin").write_bytes(np.arange(2 * count, dtype=np.float32).tobytes())
    before = len(os.listdir("/proc/self/fd"))
    loaded = load_model(tmp_path / "m.onnx", own=False)
    assert len(os.listdir("/proc/self/fd")) - before <= 3
    np.testing.assert_array_equal(loaded.params["w7"], [14, 15])
