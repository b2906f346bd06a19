"""The objective of a search with several backends: a kernel costs the sum of the regions that it is cut into.

    kernels of     one for each region, by the backend that makes them; ways to compute an op (macros) are priced as
    our own        their expansion.
    XLA            regions that were timed to be faster there or that have no kernel; kernels that are not all regions;
                   everything where our kernels are switched off.

Either has a model of its own, which kernels timed during the search correct (`costmodel.model.measured`).  Models price
kernels whose weights lie in the caches.  Where those of the program do not fit there, the cost of loading them is
added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from costmodel.arrays import KernelMask, PerKernel
from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.kept import NONE_EARLIER, EarlierKernels, TimedKernel
from costmodel.model.measured import Measured
from costmodel.model.objective import Objective, outside_of, uncertainty_of
from rewrites.build.expander import Expand, expand_graph
from superopt.ir.counters import boundary_bytes
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import CONTROL
from superopt.ir.program import frozen_bytes
from superopt.kernels.choose.partition import partition_whole
from superopt.kernels.choose.regions import is_inside, runs_of
from superopt.machine.facts import beyond_caches
from superopt.machine.rates import NOMINAL
from superopt.measure.kernels import XLA

MOST = 0.75  # share of the timed kernels: the models' error on so many of them is assumed elsewhere


@dataclass(frozen=True, slots=True, eq=False)
class KernelJob:
    """One kernel to time: in the model's form, and in the form that runs."""

    backend: str
    kernel: Graph
    runs: Graph


class NativeModel(NamedTuple):
    """The shipped model of our kernels: prices of regions, and the costs between them."""

    regions: Objective
    boundary: Boundary = NOTHING

    @property
    def version(self) -> str:
        """The version; it changes whenever a price may change."""
        return f"{self.regions.version} {self.boundary}"


class Priced(Objective, Protocol):
    """A backend as an objective: prices regions, and decides which it can run.

    Attributes:
        name: the backend's.
        version: changes whenever a price may change; empty where there is no model to price by.
        boundary: costs between its kernels in a program.
    """

    @property
    def boundary(self) -> Boundary:
        """Costs between its kernels in a program."""
        ...

    def can_run(self, region: Graph) -> bool:
        """Whether there is code for a region of these types and ops."""
        ...


class PricedBy:
    """A backend whose kernels another objective prices, as parts of nothing: costs between them are in the prices.

    Attributes:
        name: the backend's.
        version: the objective's.
    """

    boundary = NOTHING

    def __init__(self, objective: Objective, backend: Priced) -> None:
        self.objective, self.backend = objective, backend
        self.name, self.version = backend.name, objective.version

    def can_run(self, region: Graph) -> bool:
        """Whether there is code for a region of these types and ops."""
        return self.backend.can_run(region)

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of each kernel."""
        return self.objective.price(kernels)

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price."""
        return uncertainty_of(self.objective, kernels)

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Return whether each kernel is outside the training domain of the objective."""
        return outside_of(self.objective, kernels)


class FromMemory:
    """Prices of an objective for kernels whose frozen operands come from memory.

    Attributes:
        byte_s: seconds of a byte of them.
    """

    def __init__(self, base: Objective, byte_s: float) -> None:
        self.base, self.byte_s = base, byte_s
        self.name, self.version = base.name, f"{base.version} cold"

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of each kernel."""
        return self.base.price(kernels) + self.byte_s * np.array([frozen_bytes(kernel) for kernel in kernels], float)

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price."""
        return uncertainty_of(self.base, kernels)

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Return whether each kernel is outside the training domain of the base."""
        return outside_of(self.base, kernels)


class Own:
    """Prices of our own kernels.

    Attributes:
        backend: the backend that makes them.
        boundary: costs between them in a program.
        model: prices regions.
    """

    def __init__(self, backend: Priced, expand: Expand, cold: bool, earlier: EarlierKernels) -> None:
        self.backend, self.boundary = backend, backend.boundary
        base = FromMemory(backend, self.boundary.cold_s) if cold else backend
        self.model, self._expand = Measured(base, expand, earlier.get(base.version, ())), expand
        self._parts: dict[Node, Mapping[Graph, int] | None] = {}  # each round of a search asks for the same kernels

    def parts(self, kernel: Graph) -> Mapping[Graph, int] | None:
        """Return how often a kernel runs each region that moves or computes anything.

        None where something outside of loops is in no region, or no region can run.
        """
        output = kernel.outputs[0]
        if output not in self._parts:
            cut = _regions(expand_graph(kernel, self._expand))
            runs = cut is not None and (not cut or any(map(self.backend.can_run, cut)))
            self._parts[output] = cut if runs else None
        return self._parts[output]


class Joint:
    """Prices of kernels by the backends of their regions.

    Attributes:
        xla: prices of XLA's kernels.
        own: prices of our kernels; None where none are to be used.
        models: the model that prices a kernel or region, by the name of the backend.
    """

    def __init__(
        self,
        base: Objective,
        expand: Expand,
        own: Priced | None = None,
        weights: int = 0,
        earlier: EarlierKernels = NONE_EARLIER,
    ) -> None:
        """Make an objective for a program with `weights` bytes of frozen operands, on a machine that timed before."""
        cold = own is not None and beyond_caches(weights)
        by_xla = FromMemory(base, own.boundary.cold_xla_s) if own and cold else base
        self.xla = Measured(by_xla, expand, earlier.get(by_xla.version, ()))
        self.own = None if own is None else Own(own, expand, cold, earlier)
        self.models: dict[str, Measured] = {XLA: self.xla}
        self._region_s: dict[Node, float] = {}  # of regions, until the next timings
        self.name, self.version = base.name, base.version
        if own is not None and self.own is not None:
            self.models[own.name] = self.own.model
            self.name, self.version = f"{base.name}, by XLA or {own.name} kernels", f"{base.version}+{own.version}"

    def is_own(self, region: Graph) -> bool:
        """Whether a region is to be our kernel: unless XLA was timed to be faster (predictions alone may err)."""
        if self.own is None or not self.own.backend.can_run(region):
            return False
        own_s, xla_s = self.own.model.seconds.get(region.outputs[0]), self.xla.seconds.get(region.outputs[0])
        return own_s is None or (own_s < np.inf and (xla_s is None or own_s <= xla_s + NOMINAL.handover_s))

    def refused(self, region: Graph) -> bool:
        """Whether building our kernel of a region failed when it was to be timed."""
        return self.own is not None and self.own.model.seconds.get(region.outputs[0]) == np.inf

    def was_made(self, region: Graph) -> bool:
        """Whether our kernel of a region was timed, so that its code is cached on this machine."""
        return self.own is not None and self.own.model.seconds.get(region.outputs[0], np.inf) < np.inf

    @property
    def count(self) -> int:
        """The number of kernels that were timed."""
        return len(self.errors())

    def errors(self) -> list[float]:
        """Return the model's error on each timed kernel, as a factor of at least 1, smallest first."""
        return sorted(error for model in self.models.values() for error in model.errors())

    def error_of(self, share: float) -> float:
        """Return the bound on the models' errors over this share of the timed kernels, as a factor.

        It is infinite where no kernel was timed.
        """
        errors = self.errors()
        return errors[min(int(share * len(errors)), len(errors) - 1)] if errors else np.inf

    def factors(self) -> Mapping[str, float]:
        """Return, by kind (our kernels' with their backend's name), the factor that predictions are multiplied with."""
        own = {} if self.own is None else self.own.model.factors()
        return {**self.xla.factors(), **{f"{self.own_name} {kind}": factor for kind, factor in own.items()}}

    @property
    def own_name(self) -> str:
        """The backend of kernels of our own; empty where there are none."""
        return "" if self.own is None else self.own.backend.name

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel adds to a program: the sum over its regions, each on its backend."""
        if self.own is None:
            return self.xla.price(kernels)
        cuts = [self.own.parts(kernel) for kernel in kernels]
        seconds = self._region_s
        fresh = {g.outputs[0]: g for cut in cuts for g in cut or () if g.outputs[0] not in seconds}
        seconds.update(zip(fresh, self.region_s(list(fresh.values())).tolist(), strict=True))
        whole = [kernel for kernel, cut in zip(kernels, cuts, strict=True) if cut is None]
        by_xla = iter(self.own.boundary.company * self.xla.price(whole) if whole else ())
        return np.array(
            [next(by_xla) if cut is None else sum(n * seconds[g.outputs[0]] for g, n in cut.items()) for cut in cuts],
            dtype=np.float64,
        )

    def uncertain_s(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds by which each price may be off: those of its regions that were not timed."""
        out = np.zeros(len(kernels))
        for i, kernel in enumerate(kernels):
            for part, n in ((None if self.own is None else self.own.parts(kernel)) or {kernel: 1}).items():
                model = self.own.model if self.own is not None and self.is_own(part) else self.xla
                out[i] += n * float(model.price([part])[0] * model.uncertainty([part])[0])
        return out

    def region_s(self, regions: Sequence[Graph], ours: Container[Graph] | None = None) -> PerKernel:
        """Return the seconds that regions add to a program, each as a kernel of ours or handed over to XLA.

        Args:
            ours: the regions that are ours; None: the objective decides.
        """
        if self.own is None or not regions:
            return self.xla.price(regions) if regions else np.zeros(0)
        seconds, boundary = self.own.model.price(regions), self.own.boundary
        left = [i for i, g in enumerate(regions) if not (self.is_own(g) if ours is None else g in ours)]
        if left:
            seconds[left] = self.xla.price([regions[i] for i in left]) + NOMINAL.handover_s
        moved = np.array([sum(boundary_bytes(region)) for region in regions])
        return boundary.seconds(seconds, moved) - boundary.dispatch_s

    def __contains__(self, kernel: Graph) -> bool:
        """Whether this kernel was timed, on any backend."""
        return bool(self.timed(kernel))

    def timed(self, kernel: Graph) -> list[str]:
        """Return the backends on which a kernel was timed, all of its regions where it has several."""
        parts = (None if self.own is None else self.own.parts(kernel)) or (kernel,)

        def was_timed(model: Measured, region: Graph) -> bool:
            return model.seconds.get(region.outputs[0], np.inf) < np.inf  # else it was refused

        return [
            name
            for name, model in self.models.items()
            if was_timed(model, kernel) or all(was_timed(model, part) for part in parts)
        ]

    def untimed(self, kernels: Sequence[Graph]) -> list[KernelJob]:
        """Return the jobs still needed to time these kernels, in order: our regions, and on XLA those it may win."""
        jobs: dict[tuple[str, Graph], None] = {}
        for kernel in kernels:
            cut = None if self.own is None else self.own.parts(kernel)
            for part in (kernel,) if cut is None else cut:
                ours = cut is not None and self.own is not None and self.own.backend.can_run(part)
                jobs |= dict.fromkeys((name, part) for name in self.models if ours or name == XLA)
        asked = list(dict.fromkeys(part for name, part in jobs if name != XLA))
        prices = self.by_backend(asked) if asked else {}
        faster = (
            dict(zip(asked, prices[XLA] + NOMINAL.handover_s < prices[self.own_name], strict=True)) if asked else {}
        )
        return [
            KernelJob(name, part, expand_graph(part, self.xla.expand))
            for name, part in jobs
            if part not in self.models[name] and (name != XLA or faster.get(part, True))
        ]

    def learn(self, jobs: Sequence[KernelJob], seconds: Sequence[float]) -> None:
        """Record timings of kernels with weights as cold as in the program.

        Timings of a kernel whose traffic is mostly weights include the slowdown among other kernels
        (`Boundary.company`), which is divided out.
        """
        self._region_s.clear()
        for name, model in self.models.items():
            company = 1.0 if name == XLA or self.own is None else self.own.boundary.company
            some = [
                (job.kernel, s / company if 2 * frozen_bytes(job.runs) > sum(boundary_bytes(job.runs)) else s)
                for job, s in zip(jobs, seconds, strict=True)
                if job.backend == name
            ]
            if some:
                model.learn([kernel for kernel, _ in some], [s for _, s in some])

    def labels(self) -> Mapping[str, Iterator[tuple[Graph, TimedKernel]]]:
        """Return the kernels that were timed, by version of the model that priced them."""
        return {model.version: model.labels() for model in self.models.values()}

    def refuse(self, job: KernelJob) -> None:
        """Record that our kernel of a job cannot be built, so that the backend is not asked for it again.

        A kernel that was timed is not affected.
        """
        if self.own is not None and job.backend == self.own_name:
            self._region_s.clear()
            self.own.model.seconds.setdefault(job.kernel.outputs[0], np.inf)

    def program_s(self, runs: Mapping[Graph, int], ours: Container[Graph], apart_s: float = 0.0) -> float:
        """Return the seconds of a program, some of whose regions are kernels of ours.

        Args:
            runs: how often a call runs each region.
            ours: those that are kernels of ours.
            apart_s: seconds of what is in no region.
        """
        dispatch_s = 0.0 if self.own is None or not runs else self.own.boundary.dispatch_s
        return dispatch_s + float(self.region_s(list(runs), ours) @ np.array([*runs.values()], float)) + apart_s

    def by_backend(self, regions: Sequence[Graph], *, timed: bool = True) -> Mapping[str, PerKernel]:
        """Return the seconds of each region by backend, as timed if requested; infinite where it cannot run."""
        models = self.models.items()
        prices = {name: (model.price if timed else model.predicted)(regions) for name, model in models}
        if self.own is not None:
            prices[self.own_name][[not self.own.backend.can_run(region) for region in regions]] = np.inf
        return prices


def _regions(kernel: Graph) -> Counter[Graph] | None:
    """Return how often a kernel runs each region of it and of the bodies in it; None where there is more to it."""
    loops = False
    for node in kernel.nodes():
        loops = loops or node.op in CONTROL
        if not (node.op in ("input", "result", *CONTROL) or is_inside(node)):
            return None
    runs = runs_of(partition_whole(kernel))
    return runs if runs or not loops else None
