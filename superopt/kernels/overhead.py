"""What the runtime costs on this machine: `python -m superopt.kernels.overhead`.

Prints minima over rounds, in microseconds: a call inside `jax.jit`; waking and joining the threads of XLA's pool, as
the time of one task per processor beyond that of one task; compiling a small kernel; reading it back from disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from superopt.kernels import ffi
from superopt.kernels.llvm import Module, splat, type_of
from superopt.kernels.runtime import Code, Kernel, Phase, build
from superopt.kernels.stage import Buffer
from superopt.machine import usable_cores


def spinning(tasks: int, steps: int, phases: int = 1, shared: bool = True) -> Code:
    """Tasks that each run a chain of so many dependent multiply-adds and write one vector."""
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
    """Least mean time of a call over rounds of so many."""
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


if __name__ == "__main__":
    main()
