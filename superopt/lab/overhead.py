"""Costs of the runtime on this machine: `python -m superopt.lab.overhead [functions]`.

Prints minima over rounds, in microseconds: a call inside `jax.jit`; waking and joining the threads of XLA's pool, as
the time of one task per processor beyond that of one task; compiling a small kernel; reading it back from disk.
With `functions`: nanoseconds per element of each transcendental function, beside XLA's on the same processor.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from superopt.ir.scalar import SCALARS
from superopt.kernels.llvm.module import Module, Value
from superopt.kernels.llvm.types import splat, type_of
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.math import table as vecmath
from superopt.kernels.runtime import ffi
from superopt.kernels.runtime.kernel import Code, Kernel, Phase, build
from superopt.machine.facts import usable_cores


def spinning(tasks: int, steps: int, phases: int = 1, shared: bool = True) -> Code:
    """A kernel of several tasks, each a chain of `steps` dependent multiply-adds that ends in one vector store."""
    module = Module()
    lanes = module.cpu.lanes("float32")
    vector = type_of("float32", lanes)
    f = module.function("spin", [("ptr", "bufs"), ("i64", "task")])
    y = f.load("ptr", f.element("%bufs", 1, "ptr"))
    one, small = splat(1.0, "float32", lanes), splat(1e-3, "float32", lanes)
    sums = f.for_(0, steps, 1, lambda _, x: [f.fma(x[0], one, small, vector)], [(vector, splat(0.0, "float32", lanes))])
    f.store(vector, sums[0], f.element(y, f.mul("%task", lanes)))
    f.ret()
    size = max(tasks * lanes, 256)
    buffers = (Buffer("x", (size,), "float32", "input"), Buffer("y", (size,), "float32", "output"))
    return Code(module, (Phase("spin", tasks, None if shared else 0.0),) * phases, buffers, "spin")


def fastest_us(call: Callable[[], Any], calls: int, rounds: int = 40) -> float:
    """Least mean time of a call over rounds of `calls` calls."""
    import jax

    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready([call() for _ in range(calls)])
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def inside_jit_us(kernel: Kernel, length: int = 50) -> float:
    """Time of one of many calls in a row inside one jitted function."""
    import jax

    x = jax.numpy.zeros(kernel.operands[0].shape)

    def chain(n: int) -> Callable[[], Any]:
        def run(x: Any) -> Any:
            for _ in range(n):
                x = kernel.call(x)[0]
            return x

        jitted = jax.jit(run)
        jitted(x).block_until_ready()
        return lambda: jitted(x)

    once, often = chain(1), chain(length + 1)
    return (fastest_us(often, 3) - fastest_us(once, 20)) / length


def main() -> None:
    """Measure and print."""
    start = time.perf_counter()
    reason = ffi.probe()
    print(
        f"probe                      {(time.perf_counter() - start) * 1e6:10.0f}   {reason or 'kernels can be called'}"
    )
    if reason:
        return
    print(f"call inside jit            {inside_jit_us(build(spinning(1, 1))):10.2f}")
    cores = usable_cores()
    for steps in (100, 10_000, 50_000, 200_000):
        alone = inside_jit_us(build(spinning(1, steps)), 10)
        together = inside_jit_us(build(spinning(cores, steps)), 10)
        serial = inside_jit_us(build(spinning(cores, steps, shared=False)), 10)
        cost = together - alone
        print(f"{cores} tasks of {alone:7.1f}: {together:7.1f} shared, {serial:7.1f} on one thread; cost {cost:6.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for what in ("compile", "read back"):
            codes = [spinning(4, 1000 + i) for i in range(5)]
            times = []
            for code in codes:
                start = time.perf_counter()
                build(code, cache=Path(folder))
                times.append(time.perf_counter() - start)
            print(f"{what:27s}{min(times) * 1e6:10.0f}")


def function_ns(fn: str, dtype: str, size: int = 1 << 15) -> tuple[float, float]:
    """Time per element of a scalar function on vectors, here and in XLA, on one thread."""
    import jax
    import numpy as np

    module, arity = Module(), SCALARS[fn].arity or 1
    lanes, element = module.cpu.lanes(dtype), type_of(dtype)
    vector = type_of(dtype, lanes)
    f = module.function("map", [("ptr", "bufs"), ("i64", "task")])
    x, y = [f.load("ptr", f.element("%bufs", i, "ptr")) for i in range(2)]

    def body(i: Value, _: list[Value]) -> None:
        args = (f.load(vector, f.element(x, i, element)),) * arity
        f.store(vector, vecmath.apply(f, fn, dtype, args, lanes), f.element(y, i, element))

    f.for_(0, size, lanes, body)
    f.ret()
    buffers = (Buffer("x", (size,), dtype, "input"), Buffer("y", (size,), dtype, "output"))
    values = np.random.default_rng(0).uniform(0.1, 0.9, size).astype(dtype) + np.dtype(dtype).type(fn == "acosh")
    go = build(Code(module, (Phase("map", 1),), buffers), pipeline="lite").bind({"x": values})
    with jax.enable_x64(dtype == "float64"):
        given = jax.numpy.asarray(values)
        plain = jax.jit(lambda x: getattr(jax.lax, fn)(*[x] * arity))
        plain(given).block_until_ready()
        theirs = fastest_us(lambda: plain(given), 1, 30)
    return fastest_us(go, 1, 30) / size * 1e3, theirs / size * 1e3


def functions() -> None:
    """Measure and print all transcendental functions; on the first processor only."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'ns per element':16s}{'float32':>8s}{'XLA':>8s}{'float64':>9s}{'XLA':>8s}")
    for fn in [name for name, spec in SCALARS.items() if spec.transcendental]:
        single, double = function_ns(fn, "float32"), function_ns(fn, "float64")
        print(f"{fn:16s}{single[0]:8.2f}{single[1]:8.2f}{double[0]:9.2f}{double[1]:8.2f}")


if __name__ == "__main__":
    functions() if sys.argv[1:] == ["functions"] else main()
