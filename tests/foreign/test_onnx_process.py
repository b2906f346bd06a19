"""Operators that run on the host: in a process of their own, under limits of time and memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.errors import FileLimitError, InputError
from superopt.foreign import onnx_process
from superopt.foreign.onnx_process import EVALUATOR, HostProcess
from superopt.foreign.onnx_values import packed, unpacked
from superopt.frontends.onnx import eval as onnx_eval
from superopt.frontends.onnx.frontend import load_model
from tests.support.onnx_models import info, model, node

SLOW = np.array(["a" * 60 + "b"], object)


def matching(known: bool = False) -> onnx.ModelProto:
    """A pattern that takes exponential time by trying."""
    nodes = [node("RegexFullMatch", "s", "m", pattern="(a+)+$"), node("Cast", "m", "f", to=1), node("Add", "f x", "y")]
    taken = [info("s", (1,), object)] if not known else []
    made = model(nodes, [*taken, info("x", (1,))], [info("y", (1,))])
    if known:
        made.graph.initializer.add(name="s", data_type=TensorProto.STRING, dims=[1], string_data=[SLOW[0].encode()])
    return made


def circular() -> onnx.ModelProto:
    """A tree whose root is its own branch."""
    tree = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, aggregate_function=1, post_transform=0,
        tree_roots=[0], nodes_modes=helper.make_tensor("m", TensorProto.UINT8, (1,), [0]), nodes_featureids=[0],
        nodes_splits=helper.make_tensor("s", TensorProto.FLOAT, (1,), [1.0]), nodes_truenodeids=[0],
        nodes_trueleafs=[0], nodes_falsenodeids=[0], nodes_falseleafs=[0], leaf_targetids=[0],
        leaf_weights=helper.make_tensor("w", TensorProto.FLOAT, (1,), [1.0]),
    )  # fmt: skip
    graph = helper.make_graph([tree], "g", [info("x", (2, 1))], [info("y", (2, 1))])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)], ir_version=10
    )


def doubling() -> onnx.ModelProto:
    """A text that is joined to itself 40 times."""
    nodes = [node("StringConcat", f"a{i} a{i}", f"a{i + 1}") for i in range(40)]
    return model(nodes, [info("a0", (1,), object)], [info("a40", (1,), object)])


def growing(inside: str, times: int = 27) -> onnx.ModelProto:
    """A list of sizes joined to itself, whose values inference of types would hold: gigabytes that no node makes."""
    start = helper.make_node("Constant", [], ["s0"], value=helper.make_tensor("t", TensorProto.INT64, [2], [1, 1]))
    doubled = [start, *[node("Concat", f"s{k} s{k}", f"s{k + 1}", axis=0) for k in range(times)]]
    sized, added = node("Shape", f"s{times}", "q"), node("Add", "i q", "y")
    functions = []
    if inside == "function":
        imports = [helper.make_opsetid("", 20)]
        functions = [helper.make_function("f", "grow", [], ["q"], [*doubled, sized], imports)]
        doubled, sized = [], node("grow", "", "q", domain="f")
    y = onnx.ValueInfoProto(name="y")
    if inside == "loop":
        inputs = [info("k", (), np.int64), info("d", (), bool)]
        body = helper.make_graph([*doubled, sized, added, node("Identity", "d", "e")], "b", inputs,
                                 [info("e", (), bool), y])  # fmt: skip
        made = helper.make_node("Loop", ["three", "c"], ["y"], body=body)
    else:
        body = helper.make_graph([*doubled, sized, added], "b", [], [y])
        made = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    nodes = [node("NonZero", "x", "i"), node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=9), made]
    return model(nodes, [info("x", (4, 5))], [y], {"three": np.array(3)}, functions=functions)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_process, "SECONDS", 0.5)
    monkeypatch.setattr(onnx_process, "MEMORY_BYTES", 1 << 29)


@pytest.mark.usefixtures("hurried")
def test_time_and_memory_are_bounded_at_import_and_at_calls() -> None:
    x = np.zeros(1, np.float32)
    loaded = load_model(matching())
    np.testing.assert_array_equal(loaded(np.array(["aa"], object), x)[0], [1.0])
    with pytest.raises(FileLimitError, match="processor time"):
        loaded(SLOW, x)
    with pytest.raises(FileLimitError, match="processor time"):
        load_model(matching(known=True))
    with pytest.raises(InputError, match=r"memory|processor time|elements and steps"):
        load_model(doubling())(np.array(["a"], object))
    with pytest.raises(InputError, match=r"TreeEnsemble cannot be computed .*nested too deep"):
        load_model(circular())(np.zeros((2, 1), np.float32))
    np.testing.assert_array_equal(loaded(np.array(["ab"], object), x)[0], [0.0])


@pytest.mark.parametrize("inside", ["branch", "loop", "function"])
@pytest.mark.usefixtures("hurried")
def test_types_are_inferred_under_the_same_limits(inside: str) -> None:
    x = np.ones((4, 5), np.float32)
    assert (load_model(growing(inside, 3))(x)[0] == 16 + np.stack(np.nonzero(x))).all()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileLimitError, match=r"memory|processor time"):
        load_model(growing(inside))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_time_on_the_host_counts_for_the_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_eval, "SECONDS", 0.3)
    monkeypatch.setattr(onnx_eval, "SECONDS_PER_NODE", 0.0)
    many = growing("branch", 15)
    names = [f"y{k}" for k in range(40)]
    for k, name in enumerate(names):
        again = many.graph.node.add()
        again.CopyFrom(many.graph.node[3])
        again.output[0] = name
        again.name = f"n{k}"
    begin_s = time.thread_time()
    with pytest.raises(FileLimitError, match="to convert"):
        load_model(many)
    assert time.thread_time() - begin_s < 0.3  # the rest was the host's


@pytest.mark.usefixtures("hurried")
def test_saved_programs_are_held_to_the_limits(tmp_path: Path) -> None:
    fast = superopt.optimize(load_model(matching()), budget="5steps", deterministic=True, store=False)
    fast.save(tmp_path / "p.superopt")
    loaded = superopt.load(tmp_path / "p.superopt")
    with pytest.raises(FileLimitError, match="processor time"):
        loaded(SLOW, np.zeros(1, np.float32))


def test_a_process_that_dies_is_an_error_and_replaced() -> None:
    asked = HostProcess()
    one = model([node("StringConcat", "s s", "t")], [info("s", (1,), object)], [info("t", (1,), object)])
    text = np.array(["é"], object)
    try:
        data = one.SerializeToString()
        (found,) = asked.ask(data, [text])
        assert found.tolist() == ["éé"]
        pid = asked.pid
        assert pid is not None
        os.kill(pid, signal.SIGSEGV)
        time.sleep(0.3)
        assert asked.ask(data, [text])[0].tolist() == ["éé"]
        assert asked.pid != pid
        with pytest.raises(InputError, match=r"does not run it|cannot be computed"):
            asked.ask(b"no model", [])
    finally:
        asked.close()
    assert asked.pid is None


def test_threads_share_it() -> None:
    loaded, found = load_model(doubling_once()), dict[int, Any]()

    def call(i: int) -> None:
        found[i] = [loaded(np.array([str(i) * k], object))[0].tolist() for k in range(1, 20)]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {i: [[str(i) * 2 * k] for k in range(1, 20)] for i in range(6)}


def doubling_once() -> onnx.ModelProto:
    """A text joined to itself."""
    return model([node("StringConcat", "a a", "b")], [info("a", (1,), object)], [info("b", (1,), object)])


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_what_started_it(end: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(matching().SerializeToString())
    script = textwrap.dedent("""
        import sys, threading, time
        import numpy as np
        from superopt.foreign.onnx_process import EVALUATOR
        from superopt.frontends.onnx.frontend import load_model
        loaded = load_model(sys.argv[1])
        loaded(np.array(["a"], object), np.zeros(1, np.float32))
        threading.Timer(1.0, lambda: print(EVALUATOR.pid, flush=True)).start()
        loaded(np.array(["a" * 60 + "b"], object), np.zeros(1, np.float32))
    """)
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "m.onnx")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.send_signal(end)
    run.wait(10)
    run.stdout.close()
    until = time.monotonic() + 3
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_fork_starts_its_own() -> None:
    loaded = load_model(doubling_once())
    loaded(np.array(["a"], object))
    mine = EVALUATOR.pid
    EVALUATOR.forget()
    try:
        loaded(np.array(["b"], object))
        assert EVALUATOR.pid not in (None, mine)
    finally:
        assert EVALUATOR._left is not None
        EVALUATOR._left.kill()
        EVALUATOR._left.wait()


def test_values_are_the_same_on_the_other_side() -> None:
    values = [
        None, np.float32(3), np.zeros((0, 4), np.int64), np.array([[True]]), np.array(["a", "\udc80é"], object),
        np.array([b"\xff"], object), np.array(["ab", "c"]), [np.arange(3), [None]],
        np.arange(4).astype(ml_dtypes.bfloat16),
    ]  # fmt: skip
    data = bytearray(b"".join(bytes(p) for p in packed({"a": 1}, values)))

    def read(count: int) -> bytes:
        if count > len(data):
            raise EOFError
        taken = bytes(data[:count])
        del data[:count]
        return taken

    message, found = unpacked(read)
    assert message == {"a": 1}
    for x, y in zip(values[1:7], found[1:7], strict=True):
        np.testing.assert_array_equal(np.asarray(x), y)
        assert np.asarray(x).dtype == y.dtype
    assert found[0] is None
    assert found[7][1] == [None]
    with pytest.raises(TypeError, match="dict among texts"):
        packed({}, [np.array([{}], object)])
