"""The objective of a search with several backends: a kernel costs what it takes on the fastest of them.

    XLA      the kernel as XLA compiles it; ways to compute an op (macros) as what they expand to
    native   kernels of our own, one for each region that the kernel is cut into; the ops themselves in place of ways

Either has a model of its own, which kernels timed during the search correct (`costmodel.model.measured`).  What one
backend cannot compute costs it infinitely much.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from superopt.measure.kernels import NATIVE, XLA

HANDOVER_S = 4e-5  # of one region of XLA's between kernels: with one, a program of three takes 65 us in place of 22
IN_QUESTION = 2.0  # times the least price: what either model errs by, of unseen families, in nine kernels of ten


@dataclass(frozen=True, slots=True, eq=False)
class KernelJob:
    """One kernel to time: as the model knows it, and as it runs."""

    backend: str
    kernel: Graph
    runs: Graph


class NativeModel(NamedTuple):
    """What is known of kernels of our own before anything is timed: a model of regions, and what lies between them."""

    regions: Objective
    boundary: Boundary = NOTHING

    @property
    def version(self) -> str:
        """Changes whenever a price may change."""
        return f"{self.regions.version} {self.boundary}"


class Native:
    """Kernels of our own as an objective.

    Attributes:
        model: prices regions, one kernel each.
        boundary: what lies between kernels.
    """

    def __init__(self, known: NativeModel) -> None:
        self.model, self.boundary = Measured(known.regions, plain_op), known.boundary
        self._regions: weakref.WeakKeyDictionary[Node, tuple[Graph, ...] | None] = weakref.WeakKeyDictionary()

    def regions(self, kernel: Graph) -> tuple[Graph, ...] | None:
        """The regions of a kernel of the search that move or compute anything; None if it is not all in regions."""
        output = kernel.outputs[0]
        if output not in self._regions:
            self._regions[output] = _regions(expand_graph(kernel, plain_op))
        return self._regions[output]

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds of the kernels of our own that compute each; infinite where none can."""
        cuts = [self.regions(kernel) for kernel in kernels]
        distinct = {g.outputs[0]: g for cut in cuts for g in cut or ()}
        prices = dict(zip(distinct, self.model.price(list(distinct.values())), strict=True)) if distinct else {}
        sums = [np.inf if cut is None else sum(prices[g.outputs[0]] for g in cut) for cut in cuts]
        return np.array(sums, dtype=np.float64)


class Joint:
    """The least of the prices of the backends.

    Attributes:
        xla: what XLA takes.
        native: what our kernels take; None where none are to be used.
    """

    def __init__(self, base: Objective, expand: Expand, native: NativeModel | None = None) -> None:
        self.xla = Measured(base, expand)
        self.native = None if native is None else Native(native)
        self.name = base.name if native is None else f"{base.name}, by XLA or kernels of our own"
        self.version = base.version if native is None else f"{base.version}+{native.version}"

    def is_native(self, region: Graph) -> bool:
        """Is a region to be a kernel of our own: unless XLA was timed to be faster (predictions err)?"""
        if self.native is None:
            return False
        own_s, xla_s = self.native.model.seconds.get(region.outputs[0]), self.xla.seconds.get(region.outputs[0])
        return own_s is None or xla_s is None or own_s <= xla_s + HANDOVER_S

    @property
    def count(self) -> int:
        """How many kernels were timed."""
        return len(self.errors())

    def errors(self) -> list[float]:
        """How far a model was from each timed kernel, as a factor of at least 1, smallest first."""
        return sorted([*self.xla.errors(), *([] if self.native is None else self.native.model.errors())])

    def factors(self) -> Mapping[str, float]:
        """Kind, that of our kernels with their backend's name -> what predictions are multiplied with."""
        own = {} if self.native is None else self.native.model.factors()
        return {**self.xla.factors(), **{f"{NATIVE} {kind}": factor for kind, factor in own.items()}}

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds that each kernel takes inside a program, on the fastest backend."""
        return np.min(np.stack(list(self.by_backend(kernels).values())), axis=0)

    def __contains__(self, kernel: Graph) -> bool:
        """Was this kernel timed, on any backend?"""
        return bool(self.timed(kernel))

    def timed(self, kernel: Graph) -> list[str]:
        """The backends on which a kernel was timed, all of its regions where it has several."""
        cut = None if self.native is None else self.native.regions(kernel)
        own = cut and self.native is not None and all(g in self.native.model for g in cut)
        return [*([XLA] if kernel in self.xla else []), *([NATIVE] if own else [])]

    def untimed(self, kernels: Sequence[Graph]) -> list[KernelJob]:
        """What it takes to know these kernels on every backend that may be the fastest; kernels in their order."""
        prices = self.by_backend(kernels)
        jobs: dict[tuple[str, Node], KernelJob] = {}
        for i, kernel in enumerate(kernels):
            least = min(float(p[i]) for p in prices.values())
            asked = [backend for backend, p in prices.items() if p[i] <= IN_QUESTION * least]
            if XLA in asked and kernel not in self.xla:
                jobs[XLA, kernel.outputs[0]] = KernelJob(XLA, kernel, expand_graph(kernel, self.xla.expand))
            if NATIVE in asked and self.native is not None:
                for graph in self.native.regions(kernel) or ():
                    if graph not in self.native.model:
                        jobs[NATIVE, graph.outputs[0]] = KernelJob(NATIVE, graph, graph)
        return list(jobs.values())

    def learn(self, jobs: Sequence[KernelJob], seconds: Sequence[float]) -> None:
        """Take timings in."""
        for backend, model in ((XLA, self.xla), (NATIVE, None if self.native is None else self.native.model)):
            some = [(job.kernel, s) for job, s in zip(jobs, seconds, strict=True) if job.backend == backend]
            if model is not None and some:
                model.learn([kernel for kernel, _ in some], [s for _, s in some])

    def refuse(self, job: KernelJob) -> None:
        """Take in that no kernel of ours could be made: the backend is not asked for it again."""
        if job.backend == NATIVE and self.native is not None:
            self.native.model.seconds[job.kernel.outputs[0]] = np.inf

    def program_s(self, regions: Sequence[Graph], native: Container[Graph], apart_s: float = 0.0) -> float:
        """Seconds of a program of these regions, some of them as kernels of ours, and of what belongs to none."""
        if self.native is None or not regions:
            return float(np.sum(self.xla.price(regions))) + apart_s if regions else apart_s
        prices = self.by_backend(regions)
        own = np.array([region in native for region in regions])
        total_s = float(np.where(own, prices[NATIVE], prices[XLA] + HANDOVER_S).sum()) + apart_s
        return float(self.native.boundary.seconds(total_s, sum(sum(boundary_bytes(g)) for g in regions)))

    def anchor(self, predicted_s: float, seconds: float) -> None:
        """Take in what a program took of which a time was predicted: others of its kind are off by the same factor."""
        if self.native is not None and predicted_s > 0.0:
            self.native.boundary = self.native.boundary.times(seconds / predicted_s)

    def by_backend(self, kernels: Sequence[Graph]) -> Mapping[str, PerKernel]:
        """Seconds of each kernel by backend."""
        found = {XLA: self.xla.price(kernels)}
        if self.native is not None:
            found[NATIVE] = self.native.price(kernels)
        return found


def _regions(kernel: Graph) -> tuple[Graph, ...] | None:
    if not all(node.op == "input" or is_inside(node) for node in kernel.nodes()):
        return None
    return tuple(region.graph for region in partition(kernel) if not region.is_free)
