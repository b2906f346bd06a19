"""One entry for both ways to build a program: by XLA alone, or with kernels of our own in it.

The modules of the kernels, and with them LLVM, are loaded only for programs that have kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from superopt.backends import native
from superopt.backends.options import Options
from superopt.backends.xla import XlaExecutable, build
from superopt.ir.program import Program
from superopt.kernels.choose.choice import Choice


def build_any(
    program: Program,
    frozen_values: Mapping[str, Any] | Sequence[Any] = (),
    options: Options | None = None,
    kernels: Sequence[Choice] = (),
) -> XlaExecutable:
    """Build a program, with kernels where there are any (see `superopt.backends.native.build`)."""
    if not kernels:
        return build(program, frozen_values, options=options)

    return native.build(program, frozen_values, options=options, kernels=kernels)
