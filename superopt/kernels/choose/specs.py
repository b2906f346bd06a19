"""Kernel specs: regions to be compiled as kernels, with their schedules, as plain data for files and workers.

Nodes are numbered by their place in `Graph.nodes()`, which the text form of a graph keeps; those of bodies of control
flow follow, so that a kernel may stand in a loop.  A schedule is a trace: the
primitives with their decisions.  A kernel without a trace gets the default schedule of the machine that builds it.  The
backend that builds it is given by name (`superopt.backends.protocol`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.files.reading import field, shown, typed
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.kernels.choose.regions import Region, region_of

NATIVE = "native"
"""Backend of specs that name none, as in files written before there were several."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A region to be compiled as one kernel.

    Attributes:
        root: number of the value that it computes.
        reads: numbers of the values that it reads, in the order of the region's inputs.
        trace: the schedule; None: the default of the machine.
        backend: name of the backend that builds the kernel.
    """

    root: int
    reads: tuple[int, ...]
    trace: tuple[Any, ...] | None = None
    backend: str = NATIVE

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON data."""
        trace = None if self.trace is None else list(self.trace)
        return {"root": self.root, "reads": list(self.reads), "trace": trace, "backend": self.backend}


def read_spec(data: Any) -> KernelSpec:
    """Parse a spec that `to_json` wrote.

    Raises:
        InputError: the data is not a spec.
    """
    with typed("it holds no kernel of this version"):
        root, reads = field(data, "root", int), field(data, "reads", list)
        if not all(type(n) is int for n in reads):
            raise InputError(f"the kernel for value {root} reads {shown(reads)}")
        trace = field(data, "trace", (list, type(None)))
        backend = field(data, "backend", str) if "backend" in data else NATIVE
        return KernelSpec(root, tuple(reads), None if trace is None else _tuples(trace), backend)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def specs_of(
    graph: Graph, regions: Iterable[tuple[Region, tuple[Any, ...] | None]], backend: str = NATIVE
) -> tuple[KernelSpec, ...]:
    """Return specs of one backend for regions of a graph, each with its schedule."""
    number = {node: i for i, node in enumerate(numbered(graph))}
    return tuple(KernelSpec(number[r.root], tuple(number[x] for x in r.reads), trace, backend) for r, trace in regions)


def regions_of(graph: Graph, specs: Sequence[KernelSpec]) -> tuple[Region, ...]:
    """Return the regions that specs refer to.

    Raises:
        InputError: they do not fit the graph: numbers that it does not have, or regions that no kernel computes.
    """
    return _regions(Graph(graph.inputs, graph.outputs), tuple([(c.root, c.reads) for c in specs]))  # no weights


@functools.lru_cache(maxsize=16)
def _regions(graph: Graph, specs: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[Region, ...]:
    nodes = numbered(graph)
    regions: list[Region] = []
    for root, reads in specs:
        if not all(0 <= n < len(nodes) for n in (root, *reads)):
            raise InputError(f"a kernel is chosen for value {root} of a program of {len(nodes)} values")
        try:
            regions.append(region_of(nodes[root], [nodes[n] for n in reads]))
        except ValueError as error:
            raise InputError(f"the kernel for value {root} does not fit the program: {error}") from error
    return tuple(regions)


def numbered(graph: Graph) -> list[Node]:
    """Return the nodes in the order of their numbers: inputs first, used or not, and those of bodies last."""
    order = dict.fromkeys((*graph.inputs, *graph.nodes()))
    for node in tuple(order):
        for body in bodies_of(node):
            order |= dict.fromkeys(numbered(body))
    return list(order)
