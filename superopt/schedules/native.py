"""Calls of a scheduled program for timing, and the machine's peak rate of independent multiply-adds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import vector
from superopt.kernels.loops.stage import Buffer, LoopProgram
from superopt.kernels.runtime.kernel import Code, Phase, build
from superopt.kernels.runtime.pages import enlarge
from superopt.measure import loop

Call = Callable[[], Any]
_STEPS, _CHAINS = 4096, 24
_LOOKS = 40  # two milliseconds: the least of them is free of pauses


def kernel_calls(program: LoopProgram, arrays: Mapping[str, np.ndarray], threads: int) -> tuple[Call, Call]:
    """Return a scheduled program as two calls without arguments, its frozen operands packed ahead of time.

    Returns:
        Inside `jax.jit`, waiting for the results, a tuple of arrays; and directly, on our own threads, with results
        in memory of its own.
    """
    import jax  # late: the import takes a second

    values = dict(arrays)
    prepare, hot = hoisted(program)
    if prepare is not None:
        values |= build(generate(prepare)).run(values)
    kernel = build(generate(hot), threads_hint=threads)
    jitted = jax.jit(kernel.call)
    operands = [jax.numpy.asarray(values[b.name]) for b in kernel.operands]
    made = set() if prepare is None else {b.name for b in prepare.buffers if b.scope == "output"}
    for b, x in zip(kernel.operands, operands, strict=True):
        if b.name in made:
            enlarge(x)
    return lambda: jax.block_until_ready(jitted(*operands)), kernel.bind(values, threads)


@functools.cache
def fma_s() -> float:
    """Measure the seconds of one of many independent vector multiply-adds here, the least of some calls."""
    call = peak_call()[0]
    return min(loop.seconds_of(call, 2) for _ in range(_LOOKS)) / peak_fmas()


def peak_fmas() -> int:
    """Return the number of vector multiply-adds in a call of `peak_call`."""
    return _STEPS * _chains()


def _chains() -> int:
    return min(_CHAINS, host().registers - 2)  # with x, none spills


def peak_call() -> tuple[Call, float]:
    """Return a call of independent multiply-adds in registers, and its number of floating-point operations."""
    lanes, chains = host().lanes("float32"), _chains()
    kind = vector("float", lanes)
    module = Module()
    f = module.function("peak", [("ptr", "bufs"), ("i64", "t")])
    out = f.load("ptr", "%bufs")
    x = f.load(kind, out, 4)

    def body(_: Any, sums: Sequence[Any]) -> list[Any]:
        return [f.fma(s, x, x, kind) for s in sums]

    sums = f.for_(0, _STEPS, 1, body, [(kind, x)] * chains)
    total = sums[0]
    for s in sums[1:]:
        total = f.fop("add", total, s, kind)
    f.store(kind, total, out, 4)
    f.ret()
    code = Code(module, (Phase("peak", 1),), (Buffer("out", (lanes,), "float32", "output"),))
    return build(code, pipeline="none").bind({}), 2.0 * _STEPS * chains * lanes


def peak_gflops() -> float:
    """Measure the rate of multiply-adds of one thread, in GFLOP/s."""
    return 2e-9 * host().lanes("float32") / fma_s()
