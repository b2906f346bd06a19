"""Compilation of LLVM IR text to machine code, and execution of kernels as such."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from superopt.ir.scalar import DTYPE, Array
from superopt.kernels.loops.stage import Buffer

_ALIGN = 64
_BAND = 64  # bytes around each array


class Unread(Exception):
    """Raised for a construct that validation cannot interpret; the message names it."""


class KernelPart(NamedTuple):
    """A kernel: text of its module, phases with their numbers of tasks, and the buffers of its call."""

    text: str
    phases: Sequence[tuple[str, int]]
    pointers: Sequence[Buffer]


def compiled(text: str, effort: int = 1) -> Any:
    """Compile a module to an engine, a context manager that frees it; `get_function_address` finds its functions.

    Args:
        text: text of the module.
        effort: optimization level of LLVM; 0 takes a third of the time of 1, for code that takes twice as long.

    Raises:
        Unread: LLVM refuses the text.
    """
    llvm = binding()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=effort, codemodel="jitdefault")
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise Unread(f"what LLVM refuses: {str(error).strip().splitlines()[-1][:200]}") from None
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


@functools.cache
def binding() -> Any:
    """The LLVM binding, initialized for this machine."""
    import llvmlite.binding as llvm  # late: few load it  # pyright: ignore[reportMissingTypeStubs]

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


class MachineCode:
    """Kernels compiled from their texts, run one after the other; only for kernels whose accesses were checked.

    It is a context manager: the code exists inside its block.
    """

    def __init__(self, parts: Sequence[KernelPart]) -> None:
        self.parts, self._stack = parts, ExitStack()
        self._phases: list[list[tuple[Any, int]]] = []

    def __enter__(self) -> MachineCode:
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        for part in self.parts:
            names = "|".join([re.escape(name) for name, _ in part.phases])
            engine = self._stack.enter_context(
                compiled(re.sub(rf"^define internal void @({names})\(", r"define void @\1(", part.text, flags=re.M))
            )
            self._phases.append([(signature(engine.get_function_address(name)), n) for name, n in part.phases])
        return self

    def __exit__(self, *_: object) -> None:
        self._phases.clear()
        self._stack.close()

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run all parts on one thread and return the buffers; elements that nothing wrote are NaN."""
        held = {name: _placed(x) for name, x in arrays.items()}
        for part, phases in zip(self.parts, self._phases, strict=True):
            for b in part.pointers:
                if b.scope in ("output", "scratch"):
                    held[b.name] = _placed(np.full(b.shape, np.nan, DTYPE[b.dtype]))
            table = np.array([held[b.name].ctypes.data for b in part.pointers], np.int64)
            for call, tasks in phases:
                for task in range(tasks):
                    call(table.ctypes.data, task)
        return held


def _placed(x: Array) -> Array:
    """A copy aligned as the arrays of a call, with unused bytes around it."""
    whole = np.empty(x.nbytes + _ALIGN + 2 * _BAND, np.uint8)
    start = _BAND + (-(whole.ctypes.data + _BAND)) % _ALIGN
    array = whole[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    array[...] = x
    return array
