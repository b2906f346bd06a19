"""Small kernels written with the builder, shared by the tests of the layer below the generator."""

from __future__ import annotations

import numpy as np

from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import splat, type_of
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Phase


def reversed_twice(tasks: int = 4, each: int = 64, microseconds: float | None = None, cpu: Cpu | None = None) -> Code:
    """s = x + 1; y = 2 * the blocks of s in reverse order: the second phase reads what other tasks wrote."""
    module = Module(cpu)
    lanes = module.cpu.lanes("float32")
    vector, size = type_of("float32", lanes), tasks * each
    for name, source, target, op, amount in (("add", 0, 2, "add", 1.0), ("double", 2, 1, "mul", 2.0)):
        f = module.function(name, [("ptr", "bufs"), ("i64", "task")])
        x, y = [f.load("ptr", f.element("%bufs", i, "ptr")) for i in (source, target)]
        start = f.mul("%task", each)
        read = start if name == "add" else f.sub(size - each, start)

        def body(i, _, f=f, x=x, y=y, start=start, read=read, op=op, amount=amount):
            value = f.fop(op, f.load(vector, f.element(x, f.add(read, i))), splat(amount, "float32", lanes), vector)
            f.store(vector, value, f.element(y, f.add(start, i)))

        f.for_(0, each, lanes, body)
        f.ret()
    buffers = (
        Buffer("x", (size,), "float32", "input"),
        Buffer("y", (size,), "float32", "output"),
        Buffer("s", (size,), "float32", "scratch"),
    )
    return Code(module, (Phase("add", tasks, microseconds), Phase("double", tasks, microseconds)), buffers, "twice")


def expected(x: np.ndarray, tasks: int = 4) -> np.ndarray:
    """What `reversed_twice` computes."""
    return ((x + 1) * 2).reshape(tasks, -1)[::-1].reshape(x.shape)
