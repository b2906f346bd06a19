"""One returnable program, as everything that makes, times, checks, returns or reports one describes it.

What happens to a candidate (its timings, its check, the reason why it was chosen or refused) is no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from superopt.ir.graph import Graph, every_node
from superopt.ir.loop_steps import LoopStep
from superopt.ir.program import Program, original_program
from superopt.kernels.choose.regions import Region, is_inside, runs_of
from superopt.kernels.choose.specs import KernelSpec, regions_of

_LEAVES = ("input", "literal")


class Provenance(Enum):
    """The source of a candidate's program."""

    ORIGINAL = "the original"
    OWN_FORM = "the program as it is, with frozen work done ahead"
    SEARCH = "a selection of the e-graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A program that may be returned, with its kernels and compiler options.

    Attributes:
        name: name for the report.
        program: equal to the original.
        origin: where the program comes from.
        finalist: name of the search's selection that it computes; empty for other origins.
        regions: all of the program's regions that move or compute anything; none where they are not known.
        kernels: the regions that are our kernels.
        loops: the steps that took work out of its loops.
        options: compiler options.
        option_names: names of the option choices that `options` came from.
        base: the candidate that is the same with default options; None where this one has default options.
        apart_s: predicted seconds of the ops that belong to no region.
        predicted_s: predicted seconds of the program; None where there is no prediction.
        plain: this is the plain candidate, which is returned unless another one is faster beyond doubt.
        closed: arrays that the program closes over are constants of the compiled code, as `jax.jit` makes them.
        searched: schedules of its kernels were searched.
    """

    name: str
    program: Program
    origin: Provenance = Provenance.SEARCH
    finalist: str = ""
    regions: tuple[Region, ...] = ()
    kernels: tuple[KernelSpec, ...] = ()
    loops: tuple[LoopStep, ...] = ()
    options: Mapping[str, bool | str] = field(default_factory=dict[str, bool | str])
    option_names: tuple[str, ...] = ()
    base: Candidate | None = None
    apart_s: float = 0.0
    predicted_s: float | None = None
    plain: bool = False
    closed: bool = False
    searched: bool = False

    @property
    def is_original(self) -> bool:
        """Whether the program is the original, perhaps with compiler options."""
        return self.origin is Provenance.ORIGINAL

    @property
    def changes_nothing(self) -> bool:
        """Whether this is the original itself: no kernel in it, and nothing moved to the prepare part."""
        return self.origin is not Provenance.SEARCH and not self.kernels and not self.program.computes_ahead

    @property
    def runs(self) -> Counter[Graph]:
        """Number of runs of each region in a call."""
        return runs_of(self.regions)

    @property
    def form(self) -> str:
        """The name without compiler options."""
        return self.name if self.base is None else self.base.name

    @property
    def chosen(self) -> frozenset[Graph]:
        """The regions that are computed by our kernels."""
        return frozenset(region.graph for region in regions_of(self.program.hot, self.kernels))

    @property
    def by_xla(self) -> frozenset[str]:
        """Names of the operations that XLA computes: all that are in no kernel of ours."""
        hot = self.program.hot
        if not self.kernels:
            return frozenset(node.op for node in every_node([hot]))
        chosen = self.chosen
        others = [region.graph for region in self.regions if region.graph not in chosen]
        updated = {region.root for region in self.regions if region.graph in chosen}
        apart = (n for n in every_node([hot]) if n.op not in _LEAVES and not is_inside(n) and n not in updated)
        return frozenset(node.op for node in (*every_node(others), *apart) if node.op not in _LEAVES)

    def with_options(self, names: tuple[str, ...], options: Mapping[str, bool | str]) -> Candidate:
        """Return the same program with compiler options."""
        name = f"{self.name} with {' + '.join(names)}"
        return replace(self, name=name, options=options, option_names=names, base=self, plain=False, closed=False)


def original_candidate(graph: Graph, *, closed: bool = False) -> Candidate:
    """Return the original as a candidate; with `closed`, its arrays are constants of the compiled code."""
    return Candidate(name="original", program=original_program(graph), origin=Provenance.ORIGINAL, closed=closed)
