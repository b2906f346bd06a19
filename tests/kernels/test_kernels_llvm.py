"""The text builder, compilation, and the cache of objects."""

from __future__ import annotations

import ctypes
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import Cpu, cpu_of, host, restricted, supported, without_avx512
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import constant_mask, lanes_of, literal, mangled, splat, type_of
from superopt.kernels.runtime.kernel import build
from superopt.machine.facts import own, taken
from tests.support.kernels_code import reversed_twice

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")
WIDTHS = [512, 256] if host().avx512 else [256]


def compiled(module: Module, folder: Path) -> jit.Library:
    return jit.load(jit.compile(module.text(), "none", folder))


def function(library: jit.Library, name: str, *args: object, returns: object = None) -> object:
    return ctypes.CFUNCTYPE(returns, *args)(library.address(name))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "float32", "0x3FB99999A0000000"),
        (1e40, "float32", "0x7FF0000000000000"),
        (-math.inf, "float64", "0xFFF0000000000000"),
        (-0.0, "float32", "0x8000000000000000"),
        (255, "uint8", "-1"),
        (-1, "int8", "-1"),
        (1 << 40, "int32", "0"),
        (True, "bool", "true"),
        (1.0, "bfloat16", "0xR3F80"),
        (1.0, "float16", "0xH3C00"),
    ],
)
def test_literals_are_exact(value: float, dtype: str, text: str) -> None:
    assert literal(value, dtype) == text


def test_types() -> None:
    assert type_of("bool", 16) == "<16 x i1>"
    assert type_of("bool", 16, stored=True) == "<16 x i8>"
    assert type_of("uint32") == "i32"
    assert (lanes_of("<8 x double>"), lanes_of("double")) == (8, 0)
    assert [mangled(t) for t in ("<8 x double>", "i1", "<4 x ptr>")] == ["v8f64", "i1", "v4p0"]


def test_integers_fold_and_expressions_do_not() -> None:
    f = Module().function("f", [("i64", "n")])
    assert [f.add(2, 3), f.sub(2, 3), f.mul(2, 3), f.div(7, 2), f.rem(7, 2)] == [5, -1, 6, 3, 1]
    assert [f.minimum(2, 3), f.maximum(2, 3), f.less(2, 3)] == [2, 3, "true"]
    assert [f.add("%n", 0), f.mul(1, "%n"), f.mul("%n", 0), f.div("%n", 1), f.rem("%n", 1)] == ["%n", "%n", 0, "%n", 0]
    assert not f.lines
    f.add("%n", 1)
    assert f.lines == ["  %v1 = add i64 %n, 1"]


def test_a_nested_list_is_an_earlier_place(tmp_path: Path) -> None:
    module = Module()
    f = module.function("f", [("i64", "n")], returns="i64", internal=False)
    earlier: list = []
    f.lines.append(earlier)

    def body(i, carried):
        keep, f.lines = f.lines, earlier
        twice = f.mul("%n", 2) if not earlier else "%v0"
        f.lines = keep
        return [f.add(carried[0], twice)]

    f.ret("i64", str(f.for_(0, "%n", 1, body, [("i64", 0)])[0]))
    assert function(compiled(module, tmp_path), "f", ctypes.c_int64, returns=ctypes.c_int64)(7) == 98


def test_loops_and_branches(tmp_path: Path) -> None:
    module = Module()
    f = module.function("collatz", [("i64", "n"), ("i64", "most")], returns="i64", internal=False)

    def step(i, carried):
        x, steps = carried
        odd = f.value(f"trunc i64 {x} to i1")
        rest = f.if_(odd, lambda: [f.add(f.mul(x, 3), 1)], lambda: [f.div(x, 2)], ["i64"])
        done = f.less(x, 2)
        more = f.if_(done, lambda: [steps], lambda: [f.add(steps, 1)], ["i64"])
        return [f.value(f"select i1 {done}, i64 {x}, i64 {rest[0]}"), more[0]]

    f.exit_if(f.less("%n", 1), "i64", lambda: -1)
    f.ret("i64", str(f.for_(0, "%most", 1, step, [("i64", "%n"), ("i64", 0)])[1]))
    call = function(compiled(module, tmp_path), "collatz", ctypes.c_int64, ctypes.c_int64, returns=ctypes.c_int64)
    assert [call(n, 200) for n in (0, 1, 6, 27)] == [-1, 0, 8, 111]


@pytest.mark.parametrize(("places", "hidden"), [(9, True), (8, False)])
def test_addresses_with_many_fixed_distances_are_hidden(tmp_path: Path, places: int, hidden: bool) -> None:
    module = Module()
    f = module.function("sum", [("ptr", "x")], returns="float", internal=False)

    def row(i, carried):
        (total,) = carried
        at = f.element("%x", f.mul(i, 9))
        for j in range(places):  # the first is the address itself
            total = f.value(f"fadd float {total}, {f.load('float', f.element(at, j))}")
        return [total]

    f.ret("float", f.for_(0, 5, 1, row, [("float", "0.0")])[0])
    assert module.text().count("freeze ptr") == hidden
    x = np.arange(45, dtype=np.float32)
    call = function(compiled(module, tmp_path), "sum", ctypes.c_void_p, returns=ctypes.c_float)
    assert call(x.ctypes.data) == x.reshape(5, 9)[:, :places].sum()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16", "int32", "int64"])
def test_masks_gathers_and_reductions(tmp_path: Path, dtype: str, width: int) -> None:
    module = Module(restricted(host(), width))
    lanes = module.cpu.lanes(dtype)
    vector, scalar, part = type_of(dtype, lanes), type_of(dtype), lanes - 3 if lanes > 4 else 3
    f = module.function("f", [("ptr", "x"), ("ptr", "y"), ("ptr", "z")], internal=False)
    x = f.masked_load(vector, "%x", constant_mask(part, lanes), other=splat(9, dtype, lanes))
    f.masked_store(vector, x, "%y", constant_mask(part + 1, lanes))
    for j, monoid in enumerate(("sum", "product", "max", "min")):
        f.store(scalar, f.reduce(monoid, vector, x), f.element("%z", j, scalar))
    steps = ", ".join([f"i64 {2 * j}" for j in range(lanes)])
    addresses = f.value(f"getelementptr {scalar}, ptr %x, <{lanes} x i64> <{steps}>")
    if dtype in ("float32", "float64", "int32", "int64"):
        f.store(vector, f.gather(vector, addresses), f.element("%z", 4, scalar))
    f.ret()
    given = np.tile(np.array([1, -2, 3, 2], dtype), lanes)
    written, results = np.full(lanes, 77, dtype), np.zeros(4 + lanes, dtype)
    call = function(compiled(module, tmp_path), "f", *[ctypes.c_void_p] * 3)
    call(given.ctypes.data, written.ctypes.data, results.ctypes.data)
    seen = np.where(np.arange(lanes) < part, given[:lanes], np.array(9, dtype))
    np.testing.assert_array_equal(written, np.where(np.arange(lanes) < part + 1, seen, np.array(77, dtype)))
    wanted = [seen.sum(dtype=dtype), np.multiply.reduce(seen, dtype=dtype), seen.max(), seen.min()]
    np.testing.assert_array_equal(results[:4], wanted)
    if dtype in ("float32", "float64", "int32", "int64"):
        np.testing.assert_array_equal(results[4:], given[: 2 * lanes : 2])


def test_max_and_min_of_floats_keep_nan(tmp_path: Path) -> None:
    module = Module()
    lanes = module.cpu.lanes("float32")
    vector = type_of("float32", lanes)
    f = module.function("f", [("ptr", "x"), ("ptr", "y"), ("ptr", "z")], internal=False)
    x, y = f.load(vector, "%x"), f.load(vector, "%y")
    f.store(vector, f.fmaximum(x, y, vector), "%z")
    f.store(vector, f.fminimum(x, y, vector), f.element("%z", lanes))
    f.store("float", f.reduce("max", vector, x), f.element("%z", 2 * lanes))
    f.ret()
    a = np.resize(np.array([1, 2, np.nan, 4, np.inf, -np.inf], np.float32), lanes)
    b = np.resize(np.array([2, 1, 3, np.nan, -np.inf, 5], np.float32), lanes)
    z = np.zeros(2 * lanes + 1, np.float32)
    function(compiled(module, tmp_path), "f", *[ctypes.c_void_p] * 3)(a.ctypes.data, b.ctypes.data, z.ctypes.data)
    np.testing.assert_array_equal(z[:lanes], np.maximum(a, b))
    np.testing.assert_array_equal(z[lanes:-1], np.minimum(a, b))
    assert np.isnan(z[-1])


# ---- processors


def test_a_machine_without_avx512_is_the_same_processor_restricted() -> None:
    whole = host()
    with taken(without_avx512(own())):
        assert host() == restricted(whole, 256)
    assert without_avx512(replace(own(), features=("avx2", "avx512f", "fma"))).features == ("avx2", "fma")
    with taken(replace(own(), cpu="another", features=("avx2", "f16c", "fma"))):
        assert (host().name, host().vector_bits) == ("another", 256), "LLVM knows this one alone"


def test_a_restricted_processor_has_narrow_vectors(tmp_path: Path) -> None:
    narrow = restricted(host(), 256)
    assert (narrow.vector_bits, narrow.registers) == (256, 16)
    assert [narrow.lanes(d) for d in ("float32", "float64", "bfloat16", "int8", "bool")] == [8, 4, 8, 32, 32]
    listing = jit.assembly(accumulators(24, narrow).text())
    assert "%zmm" not in listing
    assert "%k1" not in listing
    x = np.arange(256, dtype=np.float32)
    kernel = build(reversed_twice(cpu=narrow), cache=tmp_path)
    np.testing.assert_array_equal(
        kernel.run({"x": x}, threads=3, guard=True)["y"], ((x + 1) * 2).reshape(4, 64)[::-1].ravel()
    )


def test_half_of_avx512_counts_as_avx2() -> None:
    known = host().features
    partly = replace(host(), features=(*[f for f in known if "avx512" not in f], "+avx2", "+fma", "+f16c", "+avx512f"))
    found = cpu_of(partly)
    assert found.vector_bits == 256
    assert "+avx512f" not in found.features


def test_processors_without_vectors_are_not_supported() -> None:
    old = Cpu("core2", ("+sse2", "-avx2"), 0, 16, False, False, 0, 0, 0)
    assert not supported(old)
    assert supported(restricted(host(), 256))
    assert not supported(restricted(host(), 128))


# ---- compilation


def test_what_llvm_refuses_is_an_error() -> None:
    module = Module()
    module.function("f", []).effect("ret i64 1")
    with pytest.raises(jit.CompileError, match="LLVM refuses"):
        jit.compile(module.text(), "none", Path("/nonexistent"))


def test_functions_that_do_not_exist(tmp_path: Path) -> None:
    module = Module()
    module.declare("declare void @nowhere_to_be_found()")
    f = module.function("f", [], internal=False)
    f.effect("call void @nowhere_to_be_found()")
    f.ret()
    with pytest.raises(jit.CompileError, match="'f' cannot be linked"):
        compiled(module, tmp_path).address("f")
    with pytest.raises(jit.CompileError, match="'g' cannot be linked"):
        jit.load(jit.compile(reversed_twice().module.text(), "none", tmp_path)).address("g")


@pytest.mark.parametrize("pipeline", [*jit.PIPELINES, "auto"])
def test_all_pipelines_compute_the_same(tmp_path: Path, pipeline: jit.Pipeline) -> None:
    kernel = build(reversed_twice(), pipeline=pipeline, cache=tmp_path)
    assert kernel.compiled.pipeline in jit.PIPELINES
    x = np.arange(256, dtype=np.float32)
    np.testing.assert_array_equal(kernel.run({"x": x})["y"], ((x + 1) * 2).reshape(4, 64)[::-1].ravel())


def accumulators(count: int, cpu: Cpu | None = None) -> Module:
    """A loop that keeps so many vectors in registers; values above 32 must spill."""
    module = Module(cpu)
    lanes = module.cpu.lanes("float32")
    vector = type_of("float32", lanes)
    f = module.function("f", [("ptr", "x"), ("i64", "n")], internal=False)

    def body(i, sums):
        x = f.load(vector, f.element("%x", f.mul(i, lanes)))
        return [f.fma(x, s, f.load(vector, f.element("%x", j * lanes)), vector) for j, s in enumerate(sums)]

    def outer(i, _):
        sums = f.for_(0, "%n", 1, body, [(vector, splat(0, "float32", lanes))] * count)
        for j, s in enumerate(sums):
            f.store(vector, s, f.element("%x", f.add(j * lanes, i)))

    f.for_(0, "%n", 1, outer)
    f.ret()
    return module


def test_spills_are_counted_in_innermost_loops_only(tmp_path: Path) -> None:
    assert jit.compile(accumulators(8).text(), "none", tmp_path).spills == 0
    assert jit.compile(accumulators(48).text(), "none", tmp_path).spills > 8
    module = Module()
    lanes = module.cpu.lanes("float32")
    vector = type_of("float32", lanes)
    f = module.function("f", [("ptr", "x"), ("i64", "n")], internal=False)
    many = [f.load(vector, f.element("%x", j * lanes)) for j in range(48)]
    f.for_(0, "%n", 1, lambda i, _: f.store("float", "0.0", f.element("%x", i)))
    for j, x in enumerate(many):
        f.store(vector, x, f.element("%x", j * lanes))
    f.ret()
    assert "Spill" in jit.assembly(module.text())
    spills, lines = jit.inner_spills(jit.assembly(module.text()))
    assert (spills, lines < 48) == (0, True)


def test_spills_are_counted_once_for_each_of_many_loops_that_overlap():
    """Ends of branches jump back across one another: the lines of all loops are as many as their number squared."""
    count = 10_000
    lines = [f".LBB{n}:" for n in range(count)]
    lines += [f"\tjne .LBB{n}" if n % 100 else f"\tjne .LBB{n} # %xmm1 4-byte Spill" for n in range(count)]
    spills, within = jit.inner_spills("\n".join(lines))
    assert within == count * (count + 1)
    assert spills == sum(n // 100 + 1 for n in range(count))


@pytest.mark.parametrize(
    ("spills", "chosen", "tried"),
    [
        ([0], "none", 1), ([5, 0], "lite", 2), ([5, 3, 4], "lite", 3), ([5, 5, 2], "O2", 3), ([500, 0], "O2", 2),
        ([500, 9, 3], "lite", 3), ([2, 0], "none", 1), ([3, 0], "lite", 2),
    ],
)  # fmt: skip
def test_auto_takes_the_first_pipeline_that_hardly_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spills: list[int], chosen: str, tried: int
) -> None:
    counts = iter(spills)
    monkeypatch.setattr(jit, "inner_spills", lambda listing: (next(counts), 200))
    found = jit.compile(accumulators(3).text(), "auto", tmp_path)
    assert (found.pipeline, found.spills) == (chosen, min(spills[:tried]))
    assert len(list(counts)) == len(spills) - tried


# ---- the cache


def test_objects_are_kept_and_read_back(tmp_path: Path) -> None:
    text = accumulators(3).text()
    first, second = jit.compile(text, "none", tmp_path), jit.compile(text, "none", tmp_path)
    assert first.seconds > 0 == second.seconds
    assert (first.object, first.spills, first.pipeline) == (second.object, second.spills, second.pipeline)
    assert {p.name for p in tmp_path.iterdir()} == {f"{first.digest}.object", jit._PRUNED}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "no head", "other fields", "binary"])
def test_damaged_files_are_rebuilt(tmp_path: Path, damage: str) -> None:
    text = accumulators(3).text()
    first = jit.compile(text, "none", tmp_path)
    path = tmp_path / f"{first.digest}.object"
    data = path.read_bytes()
    head, facts, body = data.split(b"\n", 2)
    path.write_bytes(
        {
            "cut": data[:-5],
            "flip": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
            "empty": b"",
            "no head": facts + b"\n" + body,
            "other fields": b"\n".join([head, facts.replace(b'"spills"', b'"others"'), body]),
            "binary": b"\xff\xfe\n" + body,
        }[damage]
    )
    again = jit.compile(text, "none", tmp_path)
    assert again.seconds > 0
    assert jit.compile(text, "none", tmp_path).seconds == 0


def test_a_folder_that_cannot_be_written_is_only_slower(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert jit.compile(accumulators(3).text(), "none", tmp_path / "file").object


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(jit.os, "replace", full)
        assert jit.compile(accumulators(3).text(), "none", tmp_path).object
    assert list(tmp_path.iterdir()) == []
    killed, busy = tmp_path / "killed.part", tmp_path / "busy.part"
    for path in (killed, busy):
        path.write_bytes(b"half")
    os.utime(killed, (1000, 1000))
    assert jit.prune(tmp_path) == 0
    assert list(tmp_path.iterdir()) == [busy]


def test_processes_prune_a_folder_one_after_the_other_and_not_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[Path] = []
    monkeypatch.setattr(jit, "prune", pruned.append)
    for age_s, times in ((0, 1), (60, 1), (3600, 2), (-3600, 3)):
        jit._prune_seldom.cache_clear()  # as in another process
        for name in ("a.object", "b.object"):
            if pruned:
                os.utime(tmp_path / jit._PRUNED, (time.time() - age_s,) * 2)
            jit.write_beside(tmp_path / name, b"content")
        assert pruned == [tmp_path] * times


def test_objects_not_used_for_longest_are_deleted(tmp_path: Path) -> None:
    texts = [accumulators(n).text() for n in (2, 3, 4, 5)]
    made = [jit.compile(text, "none", tmp_path) for text in texts]
    for age, compiled in enumerate(made):
        os.utime(tmp_path / f"{compiled.digest}.object", (1000 + age, 1000 + age))
    jit.compile(texts[0], "none", tmp_path)  # used again
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert jit.prune(tmp_path, total) == 0
    used = [made[i].digest for i in (1, 2, 3, 0)]
    sizes = [(tmp_path / f"{digest}.object").stat().st_size for digest in used]
    rest = next(k for k in range(len(used)) if sum(sizes[k:]) <= (total - 1) // 2)  # sizes depend on the processor
    assert rest >= 2
    assert jit.prune(tmp_path, total - 1) == rest
    assert {path.stem for path in tmp_path.iterdir()} == {*used[rest:], jit._PRUNED}


def test_what_is_known_of_a_kernel_is_deleted_with_it(tmp_path: Path) -> None:
    for age, name in enumerate(("old.kernel", "old.verdict", "old.agrees", "gone.verdict", "new.agrees", "new.kernel")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    os.utime(tmp_path / "old.verdict", (1, 1))
    assert jit.prune(tmp_path, 600) == 0
    assert jit.prune(tmp_path, 599) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"new.kernel", "new.agrees"}
    jit.used(tmp_path / "new.kernel")
    assert (tmp_path / "new.kernel").stat().st_mtime > 2000


def test_a_masked_store_of_one_lane_writes_one_element(tmp_path: Path) -> None:
    module = Module()
    f = module.function("f", [("ptr", "x"), ("ptr", "y")], internal=False)
    narrow = f.value(f"trunc <16 x i32> {f.load('<16 x i32>', '%x')} to <16 x i8>")
    f.masked_store("<16 x i8>", narrow, "%y", constant_mask(1, 16))
    f.ret()
    x, y = np.arange(5, 21, dtype=np.int32), np.full(16, 9, np.int8)
    function(compiled(module, tmp_path), "f", ctypes.c_void_p, ctypes.c_void_p)(x.ctypes.data, y.ctypes.data)
    assert y.tolist() == [5] + [9] * 15


@pytest.mark.parametrize(("element", "kind"), [("i8", np.int8), ("i16", np.int16)])
def test_a_mask_that_becomes_one_lane_writes_one_element(element: str, kind: type, tmp_path: Path) -> None:
    module = Module()
    f = module.function("f", [("ptr", "x"), ("ptr", "y"), ("i64", "task")], internal=False)
    narrow = f.value(f"trunc <16 x i32> {f.load('<16 x i32>', '%x')} to <16 x {element}>")
    lanes = f.value(f"add <16 x i32> <{', '.join([f'i32 {j}' for j in range(16)])}>, splat (i32 0)")
    f.masked_store(f"<16 x {element}>", narrow, "%y", f.value(f"icmp slt <16 x i32> {lanes}, splat (i32 1)"))
    f.ret()
    x, y = np.arange(5, 21, dtype=np.int32), np.full(16, 9, kind)
    call = function(compiled(module, tmp_path), "f", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call(x.ctypes.data, y.ctypes.data, 0)
    assert y.tolist() == [5] + [9] * 15


def test_the_digest_holds_what_decides_the_code(tmp_path: Path) -> None:
    digests = {
        jit.compile(accumulators(2).text(), "none", tmp_path).digest,
        jit.compile(accumulators(3).text(), "none", tmp_path).digest,
        jit.compile(accumulators(3).text(), "lite", tmp_path).digest,
        jit.compile(reversed_twice(cpu=restricted(host(), 256)).module.text(), "none", tmp_path).digest,
    }
    assert len(digests) == 4


def test_sixteen_bit_literals_are_rounded_to_nearest_even() -> None:
    for value in (0.1, 1 / 3, 1e-40, 65519.0, 3.0e38):
        bits = int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))
        assert literal(value, "bfloat16") == f"0xR{bits:04X}"
