"""Calls of a scheduled program for timing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.runtime.pages import enlarge
from superopt.measure.loop import Thunk


def kernel_calls(program: LoopProgram, arrays: Mapping[str, np.ndarray], threads: int) -> tuple[Thunk, Thunk]:
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
