"""Declared tensor intrinsics: the code of a step computes its semantics."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.expr import const, convert, load
from superopt.ir.scalar import DTYPE
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import type_of, vector
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.stage import Buffer, LoopProgram
from superopt.kernels.runtime.kernel import Code, Phase, build
from superopt.kernels.schedule.intrinsics import INTRINSICS, fitting, intrinsic

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")
AVAILABLE = [name for name, i in INTRINSICS.items() if i.available(host()) and (i.group > 1 or i.a == i.accumulator)]


def extremes(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = DTYPE[dtype]
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return np.where(
            rng.random(shape) < 0.5, rng.choice([info.min, info.max], shape), rng.integers(info.min, info.max, shape)
        ).astype(kind)
    return rng.standard_normal(shape).astype(kind)


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_step_computes_the_semantics(name):
    kind, cpu = intrinsic(name), host()
    lanes, a_type = kind.lanes(cpu), "uint8" if kind.offset else kind.a
    buffers = (
        Buffer("a", (kind.group,), a_type, "input"), Buffer("b", (lanes, kind.group), kind.b, "input"),
        Buffer("c", (lanes,), kind.accumulator, "output"),
    )  # fmt: skip
    module = Module(cpu)
    f = module.function("phase0", [("ptr", "bufs"), ("i64", "task")])
    a, b, c = [f.load("ptr", f.element("%bufs", j, "ptr"), 8) for j in range(3)]
    wide = type_of(kind.accumulator, lanes)
    if kind.group > 1:
        bytes_ = vector("i8", lanes * kind.group)
        whole = f.broadcast(f.load("i32", a, 1), "i32", lanes)
        x, y = f.value(f"bitcast {vector('i32', lanes)} {whole} to {bytes_}"), f.load(bytes_, b)
    else:
        scalar = type_of(kind.a)
        x, y = f.broadcast(f.load(scalar, a), scalar, lanes), f.load(type_of(kind.b, lanes), b)
    f.store(wide, kind.step(f, f.load(wide, c), x, y, lanes), c)
    f.ret()
    kernel = build(Code(module, (Phase("phase0", 1),), buffers))
    stage = kind.semantics(lanes)
    for seed in range(20):
        given = {"a": extremes(a_type, (kind.group,), seed), "b": extremes(kind.b, (lanes, kind.group), seed + 100)}
        start = extremes(kind.accumulator, (lanes,), seed + 200)
        made = kernel.run({**given, "c": start}, guard=True)["c"]
        as_input = LoopProgram("one", (*buffers[:2], Buffer("c", (lanes,), kind.accumulator, "input")), ())
        program = LoopProgram("one", (*as_input.buffers, Buffer("d", (lanes,), kind.accumulator, "output")), (
            type(stage)("d", stage.axes, stage.index, stage.value),
        ))  # fmt: skip
        want = evaluate(program, {**given, "c": start}, wide=kind.accumulator == "float32")["d"]
        np.testing.assert_allclose(made, want, rtol=1e-6 if kind.group == 1 else 0, atol=1e-6 if kind.group == 1 else 0)


def test_tiles_fit_the_registers():
    kind = intrinsic("fma_f32")
    assert kind.registers(14, 2) <= 32
    assert kind.registers(6, 4) <= 32
    assert kind.registers(16, 2) > 32
    assert kind.registers(6, 2) <= 16


def test_which_intrinsics_fit():
    byte, other = load("x", (0,), "int8"), load("y", (0,), "uint8")
    wide = [convert(e, e.dtype, "int32") for e in (byte, other)]
    names = {i.name for i in fitting(wide[0], wide[1], host())}
    assert names == ({"dot_s8u8"} if host().vnni else set())
    assert fitting(const(1, "int32"), wide[0], host()) == []
    half = convert(load("x", (0,), "bfloat16"), "bfloat16", "float32")
    assert {i.name for i in fitting(half, half, host())} == {"fma_f32", "fma_bf16"}


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="no tensor intrinsic 'mma'"):
        intrinsic("mma")
