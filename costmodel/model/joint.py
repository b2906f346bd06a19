"""The objective of a search with several backends: a kernel costs what it takes on the fastest of them.

    XLA            the kernel as XLA compiles it; ways to compute an op (macros) as what they expand to
    kernels of     one for each region that the kernel is cut into, by the backend that makes kernels of our own; the
    our own        ops themselves in place of ways

Either has a model of its own, which kernels timed during the search correct (`costmodel.model.measured`).  What one
backend cannot compute costs it infinitely much.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from costmodel.arrays import PerKernel
from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.measured import Measured
from costmodel.model.objective import Objective
from rewrites.build.expander import Expand, expand_graph, plain_op
from superopt.ir.counters import boundary_bytes
from superopt.ir.graph import Graph, Node
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import is_inside
from superopt.measure.kernels import XLA

HANDOVER_S = 4e-5  # of one region of XLA's between kernels: with one, a program of three takes 65 us in place of 22
IN_QUESTION = 2.0  # times the least price: what either model errs by, of unseen families, in nine kernels of ten


@dataclass(frozen=True, slots=True, eq=False)
class KernelJob:
    """One kernel to time: as the model knows it, and as it runs."""

    backend: str
    kernel: Graph
    runs: Graph


class NativeModel(NamedTuple):
    """What is known of kernels before anything is timed: a model of regions, and what lies between them."""

    regions: Objective
    boundary: Boundary = NOTHING

    @property
    def version(self) -> str:
        """Changes whenever a price may change."""
        return f"{self.regions.version} {self.boundary}"


class Priced(Objective, Protocol):
    """A backend as the objective knows it: prices regions, and says which it can run.

    Attributes:
        name: the backend's.
        version: changes whenever a price may change; empty where there is no model to price by.
        boundary: what lies between its kernels in a program.
    """

    @property
    def boundary(self) -> Boundary: ...

    def can_run(self, region: Graph) -> bool:
        """Is there code for such a region, of types and ops that the backend knows?"""
        ...


class Side:
    """A backend in the search.

    Attributes:
        model: prices what the backend runs as one kernel, corrected by timings.
    """

    def __init__(self, model: Measured) -> None:
        self.model = model

    def parts(self, kernel: Graph) -> tuple[Graph, ...] | None:
        """What the backend runs for a kernel of the search, each by itself; None where it cannot."""
        return (kernel,)

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds of what computes each kernel; infinite where nothing can."""
        return self.model.price(kernels)


class Own(Side):
    """Kernels of our own.

    Attributes:
        backend: that makes them.
        boundary: what lies between them in a program.
    """

    def __init__(self, backend: Priced) -> None:
        super().__init__(Measured(backend, plain_op))
        self.backend, self.boundary = backend, backend.boundary
        self._parts: weakref.WeakKeyDictionary[Node, tuple[Graph, ...] | None] = weakref.WeakKeyDictionary()

    def parts(self, kernel: Graph) -> tuple[Graph, ...] | None:
        """The regions of a kernel that move or compute anything; None if the backend does not run them all."""
        output = kernel.outputs[0]
        if output not in self._parts:
            cut = _regions(expand_graph(kernel, plain_op))
            self._parts[output] = cut if cut is not None and all(map(self.backend.can_run, cut)) else None
        return self._parts[output]

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds of the kernels that compute each; infinite where none can."""
        cuts = [self.parts(kernel) for kernel in kernels]
        distinct = {g.outputs[0]: g for cut in cuts for g in cut or ()}
        prices = dict(zip(distinct, self.model.price(list(distinct.values())), strict=True)) if distinct else {}
        sums = [np.inf if cut is None else sum(prices[g.outputs[0]] for g in cut) for cut in cuts]
        return np.array(sums, dtype=np.float64)


class Joint:
    """The least of the prices of the backends.

    Attributes:
        xla: what XLA takes.
        own: what our kernels take; None where none are to be used.
        sides: both by the name of the backend.
    """

    def __init__(self, base: Objective, expand: Expand, own: Priced | None = None) -> None:
        self.xla = Measured(base, expand)
        self.own = None if own is None else Own(own)
        self.sides: dict[str, Side] = {XLA: Side(self.xla)}
        self.name, self.version = base.name, base.version
        if own is not None and self.own is not None:
            self.sides[own.name] = self.own
            self.name, self.version = f"{base.name}, by XLA or {own.name} kernels", f"{base.version}+{own.version}"

    def is_own(self, region: Graph) -> bool:
        """Is a region to be a kernel of our own: unless XLA was timed to be faster (predictions err)?"""
        if self.own is None or not self.own.backend.can_run(region):
            return False
        own_s, xla_s = self.own.model.seconds.get(region.outputs[0]), self.xla.seconds.get(region.outputs[0])
        return own_s is None or xla_s is None or own_s <= xla_s + HANDOVER_S

    @property
    def count(self) -> int:
        """How many kernels were timed."""
        return len(self.errors())

    def errors(self) -> list[float]:
        """How far a model was from each timed kernel, as a factor of at least 1, smallest first."""
        return sorted(error for side in self.sides.values() for error in side.model.errors())

    def factors(self) -> Mapping[str, float]:
        """Kind, that of our kernels with their backend's name -> what predictions are multiplied with."""
        own = {} if self.own is None else self.own.model.factors()
        return {**self.xla.factors(), **{f"{self.own_name} {kind}": factor for kind, factor in own.items()}}

    @property
    def own_name(self) -> str:
        """The backend of kernels of our own; empty where there are none."""
        return "" if self.own is None else self.own.backend.name

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds that each kernel takes inside a program, on the fastest backend."""
        return np.min(np.stack(list(self.by_backend(kernels).values())), axis=0)

    def __contains__(self, kernel: Graph) -> bool:
        """Was this kernel timed, on any backend?"""
        return bool(self.timed(kernel))

    def timed(self, kernel: Graph) -> list[str]:
        """The backends on which a kernel was timed, all of its regions where it has several."""
        parts = {name: side.parts(kernel) for name, side in self.sides.items()}
        return [name for name, some in parts.items() if some and all(g in self.sides[name].model for g in some)]

    def untimed(self, kernels: Sequence[Graph]) -> list[KernelJob]:
        """What it takes to know these kernels on every backend that may be the fastest; kernels in their order."""
        prices = self.by_backend(kernels)
        jobs: dict[tuple[str, Node], KernelJob] = {}
        for i, kernel in enumerate(kernels):
            least = min(float(p[i]) for p in prices.values())
            for name, side in self.sides.items():
                if prices[name][i] <= IN_QUESTION * least:
                    for part in side.parts(kernel) or ():
                        if part not in side.model:
                            runs = expand_graph(part, side.model.expand)
                            jobs[name, part.outputs[0]] = KernelJob(name, part, runs)
        return list(jobs.values())

    def learn(self, jobs: Sequence[KernelJob], seconds: Sequence[float]) -> None:
        """Take timings in."""
        for name, side in self.sides.items():
            some = [(job.kernel, s) for job, s in zip(jobs, seconds, strict=True) if job.backend == name]
            if some:
                side.model.learn([kernel for kernel, _ in some], [s for _, s in some])

    def refuse(self, job: KernelJob) -> None:
        """Take in that no kernel of ours could be made: the backend is not asked for it again."""
        if self.own is not None and job.backend == self.own_name:
            self.own.model.seconds[job.kernel.outputs[0]] = np.inf

    def program_s(self, regions: Sequence[Graph], ours: Container[Graph], apart_s: float = 0.0) -> float:
        """Seconds of a program of these regions, some of them as kernels of ours, and of what belongs to none."""
        if self.own is None or not regions:
            return float(np.sum(self.xla.price(regions))) + apart_s if regions else apart_s
        prices = self.by_backend(regions)
        own = np.array([region in ours for region in regions])
        total_s = float(np.where(own, prices[self.own_name], prices[XLA] + HANDOVER_S).sum()) + apart_s
        return float(self.own.boundary.seconds(total_s, sum(sum(boundary_bytes(g)) for g in regions)))

    def anchor(self, predicted_s: float, seconds: float) -> None:
        """Take in what a program took of which a time was predicted: others of its kind are off by the same factor."""
        if self.own is not None and predicted_s > 0.0:
            self.own.boundary = self.own.boundary.times(seconds / predicted_s)

    def by_backend(self, kernels: Sequence[Graph]) -> Mapping[str, PerKernel]:
        """Seconds of each kernel by backend."""
        return {name: side.price(kernels) for name, side in self.sides.items()}


def _regions(kernel: Graph) -> tuple[Graph, ...] | None:
    if not all(node.op == "input" or is_inside(node) for node in kernel.nodes()):
        return None
    return tuple(region.graph for region in partition(kernel) if not region.is_free)
