"""The timeline of an optimised function: its native program step by step, with the regions and prices of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superopt.backends.mixed import MixedExecutable
from superopt.backends.xla import XlaExecutable
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import Imported
from superopt.kernels.choose.regions import key_of
from superopt.kernels.runtime.kernel import Kernel
from superopt.native.running import NativeProgram
from superopt.native.timeline import Timeline, timeline
from superopt.report.data import Report


def profile(
    imported: Imported, executable: XlaExecutable, report: Report, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Timeline:
    """Return the times of the steps of a function's native program for these arguments.

    Raises:
        InputError: it has no native program.
        ArgumentError: the arguments are not those of the function.
    """
    native = executable.native if isinstance(executable, MixedExecutable) else None
    if not isinstance(native, NativeProgram) or not isinstance(executable, MixedExecutable):
        raise InputError(
            f"{report.program} has no steps to time: {f'it leaves {native} to XLA' if native else 'XLA computes it'}",
            hint="jax.profiler shows what XLA computes",
        )
    leaves = imported.flatten(args if imported.head is None else imported.head(tuple(args)), kwargs)
    rows = {row.key: row for row in report.native}
    names: dict[str, str] = {}
    predicted_us: dict[str, float] = {}
    for kernel in executable.mix.kernels:
        row = None if kernel is None else rows.get(key_of(kernel.graph))
        if kernel is not None and row is not None and isinstance(kernel.hot, Kernel):
            names[kernel.hot.digest] = row.name
            if row.predicted_ms is not None:
                predicted_us[kernel.hot.digest] = 1e3 * row.predicted_ms
    return timeline(native, [np.asarray(leaves[i]) for i in imported.live], names, predicted_us)
