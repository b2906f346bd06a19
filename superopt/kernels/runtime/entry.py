"""The description of a kernel for the runtime: a constant beside its code, read by the shared code of `pool` and `ffi`.

The entry points of all kernels are the same code, compiled once per process.  A kernel brings a description (phases
with their tasks, buffers with dtype, dimensions and the message for wrong ones) and a handler of one call.  All fields
are 8 bytes wide; `FIELDS`, `PHASE` and `BUFFER` give their offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.stage import Buffer

FIELDS = {
    name: 8 * i
    for i, name in enumerate(
        (
            "phases",
            "phase_table",
            "buffers",
            "buffer_table",
            "operands",
            "results",
            "message",
            "threads",
            "tasks",
            "work",
        )
    )
}
WORK = {name: 8 * i for i, name in enumerate(("work", "alone", "shared", "calls"))}
"""Measurements of a kernel's calls, in cycles: all tasks; a call without and with helpers; the number of calls."""
PHASE = {"function": 0, "tasks": 8}
PHASE_BYTES = 16
BUFFER = {
    name: 8 * i for i, name in enumerate(("is_result", "index", "dtype", "rank", "dims", "bytes", "message"))
}  # fmt: skip
BUFFER_BYTES = 8 * len(BUFFER)
OPERANDS = ("input", "frozen")


def describe(
    module: Module,
    label: str,
    phases: Sequence[tuple[str, int]],
    pointers: Sequence[Buffer],
    threads: int,
    codes: Mapping[str, int],
    work: int = 0,
) -> None:
    """Add the description `kernel` and the handler `handler` to a module.

    Args:
        module: has the functions of the phases.
        label: name of the kernel in messages.
        phases: symbol of `void f(ptr bufs, i64 task)` and number of tasks, in order.
        pointers: buffers in the order of the array of addresses; inputs and frozen are operands, the others results.
        threads: most threads of a call; 1: the calling thread does all the work.
        codes: XLA's numbers of dtypes.
        work: estimate of the cycles of all tasks, until calls have measured them.
    """
    operands = [b for b in pointers if b.scope in OPERANDS]
    results = [b for b in pointers if b.scope not in OPERANDS]
    rows = []
    for b in pointers:
        side = operands if b.scope in OPERANDS else results
        dims = f"kernel.dims.{len(rows)}"
        module.constant(dims, f"[{len(b.shape)} x i64]", f"[{', '.join([f'i64 {n}' for n in b.shape])}]")
        what = f"kernel {label}: {b.name} must be {b.dtype}{list(b.shape)}, after dimensions of one batch for all"
        numbers = (int(b.scope not in OPERANDS), side.index(b), codes.get(b.dtype, 0), len(b.shape))
        fields = [*[f"i64 {n}" for n in numbers], f"ptr @{dims}", f"i64 {size_bytes(b)}"]
        rows.append(f"{{ {', '.join([*fields, f'ptr {module.text_constant(what)}'])} }}")
    row = "{ i64, i64, i64, i64, ptr, i64, ptr }"
    module.constant("kernel.buffers", f"[{len(rows)} x {row}]", f"[{', '.join([f'{row} {r}' for r in rows])}]")
    lines = [f"{{ ptr, i64 }} {{ ptr @{symbol}, i64 {tasks} }}" for symbol, tasks in phases]
    module.constant("kernel.phases", f"[{len(lines)} x {{ ptr, i64 }}]", f"[{', '.join(lines)}]")
    counts = module.text_constant(f"kernel {label}: expected {len(operands)} operands and {len(results)} results")
    most = max([tasks for _, tasks in phases], default=0)
    known = ", ".join([f"i64 {-max(work, 1) if name == 'work' else 0}" for name in WORK])  # negative: not measured
    module.variable("kernel.work", f"[{len(WORK)} x i64]", f"[{known}]")
    values = {
        "phases": f"i64 {len(phases)}", "phase_table": "ptr @kernel.phases", "buffers": f"i64 {len(pointers)}",
        "buffer_table": "ptr @kernel.buffers", "operands": f"i64 {len(operands)}", "results": f"i64 {len(results)}",
        "message": f"ptr {counts}", "threads": f"i64 {threads}", "tasks": f"i64 {most}",
        "work": "ptr @kernel.work",
    }  # fmt: skip
    assert list(values) == list(FIELDS)
    kinds = ", ".join([value.split()[0] for value in values.values()])
    module.constant("kernel", f"{{ {kinds} }}", f"{{ {', '.join(values.values())} }}", exported=True)
    module.declare("declare ptr @runtime.handle(ptr, ptr)")
    handler = module.function("handler", [("ptr", "frame")], returns="ptr", internal=False)
    handler.ret("ptr", handler.value("tail call ptr @runtime.handle(ptr @kernel, ptr %frame)"))


def size_bytes(b: Buffer) -> int:
    """Return the size of a buffer in bytes."""
    return ITEMSIZE_BYTES[b.dtype] * math.prod(b.shape)
