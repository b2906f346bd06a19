"""Pallas kernels by interpretation, compiled in haste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.pallas.lower import lower
from superopt.machine.jitting import QUICKLY


def inputs(program: LoopProgram, arrays: Mapping[str, Any]) -> list[Any]:
    """The arguments of a program's kernel, in order."""
    return [arrays[b.name] for b in program.buffers if b.scope in ("input", "frozen")]


def run(program: LoopProgram, arrays: Mapping[str, Any]) -> list[Any]:
    """The outputs of a scheduled program."""
    given = inputs(program, arrays)
    compiled = jax.jit(lower(program, interpret=True)).lower(*given).compile(compiler_options=QUICKLY)
    return [np.asarray(x) for x in compiled(*given)]
