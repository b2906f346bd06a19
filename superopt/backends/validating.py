"""The machine code that the native backend makes of a region, validated against the region's loop program."""

from __future__ import annotations

from superopt.backends.native import scheduled_program
from superopt.backends.protocol import Trace
from superopt.ir.graph import Graph
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.program import from_graph
from verifier.kernels.check import KernelPart, KernelVerdict, validate
from verifier.kernels.scalars import known


def parts_of(region: Graph, trace: Trace = None) -> list[KernelPart]:
    """The kernels of a region: what packs its frozen operands, if anything does, and what every call runs.

    Raises:
        InputError: no kernel can be made of it here.
    """
    made = [generate(p) for p in hoisted(scheduled_program(region, trace)) if p is not None]
    return [KernelPart(code.module.text(), [(p.symbol, p.tasks) for p in code.phases], code.pointers) for code in made]


def validated(region: Graph, trace: Trace = None) -> KernelVerdict:
    """Does the code of a region compute it, in its own memory, without two tasks that meet?

    Raises:
        InputError: no kernel can be made of it here.
    """
    return validate(from_graph(region.outputs), parts_of(region, trace), known())
