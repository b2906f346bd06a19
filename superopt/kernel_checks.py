"""Kernels of a saved program are compared with XLA's values before they are used, once on a machine.

A schedule in a file may be legal and proved, and its code still be wrong on a machine that it was not tried on: another
processor, another version of LLVM.  Every kernel of a loaded program is therefore run on random arrays between bands of
memory; one that writes outside of them or differs is left to XLA.  What agreed is remembered beside its code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.choice import Choice, regions_of
from superopt.measure.arrays import random_values
from superopt.measure.numerics import Tolerance, output_errors


def disagreeing(hot: Graph, choices: Sequence[Choice]) -> dict[int, str]:
    """The choices whose kernels do not give XLA's values, by number, and why; those without a kernel are not asked."""
    from superopt.backends import made, native  # late: loads LLVM

    found: dict[int, str] = {}
    known: dict[tuple[Graph, object], str] = {}
    for number, (region, choice) in enumerate(zip(regions_of(hot, choices), choices, strict=True)):
        case = (region.graph, choice.trace)
        if case not in known:
            try:
                kernel = native.compiled(region.graph, choice.trace)
                trace = native.default_trace(region.graph) if choice.trace is None else choice.trace
            except SuperoptError:  # the build says so
                known[case] = ""
                continue
            key = made.key_of(region.graph, trace)
            known[case] = "" if key and made.agrees(key) else _difference(kernel)
            if key and not known[case]:
                made.agree(key)
        if known[case]:
            found[number] = known[case]
    return found


def _difference(kernel: object) -> str:
    """How the kernel of a region differs from XLA's version on random arrays; empty where it does not."""
    from superopt.backends.native import Compiled  # late: see above

    assert isinstance(kernel, Compiled)
    values = random_values({n["name"]: (n.shape, n.dtype) for n in kernel.graph.inputs}, 0)
    expected = _of_xla(kernel.graph, values)
    if not all(np.isfinite(x.astype(np.float64)).all() for x in expected if x.dtype.kind not in "biu"):
        values = {n: x if x.dtype.kind in "biu" else np.abs(x) for n, x in values.items()}
        expected = _of_xla(kernel.graph, values)
    try:
        arrays = dict(values)
        if kernel.prepare is not None:
            arrays |= kernel.prepare.run(values, threads=1, guard=True)
        results = kernel.hot.run(arrays, threads=1, guard=True)
    except SuperoptError as error:
        return str(error.args[0])
    got = [results[b.name] for b in kernel.hot.outputs]
    for error, array in zip(output_errors(expected, got), expected, strict=True):
        if not Tolerance().accepts(error, str(array.dtype)):
            sizes = f"normwise {error.normwise:.1e}, elementwise {error.elementwise:.1e}"
            return f"it differs from XLA's values: {error.detail or sizes}"
    return ""


def _of_xla(graph: Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    from superopt.backends.xla import build  # late: compiles

    program = original_program(graph)
    frozen = {n["name"]: values[n["name"]] for n in graph.inputs if n["frozen"]}
    return [np.asarray(x) for x in build(program, frozen)(*[values[n["name"]] for n in program.live_inputs])]
