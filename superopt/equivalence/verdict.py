"""Verdicts on whether two programs compute the same function: per output proved, refuted or open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from superopt.equivalence.cuts import PairProof, UsableRules
from superopt.equivalence.folding import Folded
from superopt.equivalence.refute import (
    REPORT,
    Evaluation,
    PairDifference,
    contradiction,
    defect,
    differences,
    inputs,
    vacuous,
)
from superopt.equivalence.sharing import Shared, arguments, differing_types, share
from superopt.equivalence.steps import prove_by_steps
from superopt.equivalence.whole import by_statements
from superopt.errors import ProverDefectError, UsageError
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.program import map_nodes
from superopt.ir.text import show_type
from superopt.machine.deadline import Stopwatch
from verifier.rules.process import processor_s
from verifier.verdict import EXACTNESS, PROVED, REFUTED, UNKNOWN

if TYPE_CHECKING:
    from superopt.store import Store

SECONDS = 60.0  # processor time of a proof; a program of 500 nodes may need that long
LATER = 4  # 1 / LATER of the seconds is reserved for the check of nonvacuity
_SHOWN = 4  # assumptions about constants that the text lists; --json has all
_LONGEST = 160  # characters of an expression of constants


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """The verdict on one result.

    Attributes:
        name: name of the result.
        status: PROVED, REFUTED or UNKNOWN.
        cause: the reason why it is not proved.
        difference: inputs on which the programs differ.
    """

    name: str
    status: str
    cause: str = ""
    difference: PairDifference | None = None


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The verdict on two programs.

    Attributes:
        outputs: one verdict for each result.
        sizes: the sizes for which it holds.
        exactness: the widest class of equality that the proof used: exact, real or range.
        folded: stored tensors that were assumed equal to expressions of others, with the distance.
        apart: the largest of these distances; 0: all are equal bit by bit.
        assumptions: assumptions of the rules' certificates.
        rules: names of the rules used.
        differs: the first operation of the second program without a proved counterpart in the first.
        code: code to paste: inputs and both results.
        seconds: wall time.
    """

    outputs: tuple[OutputVerdict, ...]
    sizes: str
    exactness: str = "exact"
    folded: tuple[str, ...] = ()
    apart: float = 0.0
    assumptions: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    differs: str = ""
    code: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The status of all results together."""
        statuses = {o.status for o in self.outputs}
        return REFUTED if REFUTED in statuses else UNKNOWN if UNKNOWN in statuses else PROVED

    def to_json(self) -> dict[str, Any]:
        """The verdict as one JSON-serialisable object."""
        return {"status": self.status, **asdict(self)}

    def __str__(self) -> str:
        proved = sum(o.status == PROVED for o in self.outputs)
        lines = [
            f"{self.status}: {proved} of {len(self.outputs)} outputs proved equal ({self.seconds:.1f} s); {self.sizes}"
        ]
        if proved:
            lines.append(f"  class {self.exactness}, {len(self.rules)} rules")
            rounded = f", up to {self.apart:.2g} of their largest element, which is rounding" if self.apart else ""
            if self.folded:
                lines.append(f"  assuming {len(self.folded)} stored tensors to be what they were folded from{rounded}:")
                lines += [f"    {text}" for text in self.folded[:_SHOWN]]
                if len(self.folded) > _SHOWN:
                    lines.append(f"    ... and {len(self.folded) - _SHOWN} more (--json lists them)")
            lines += [f"  assuming {text}" for text in self.assumptions]
        for o in self.outputs:
            lines.append(f"  {o.status:8} {o.name}" + (f": {o.cause}" if o.cause else ""))
        if self.differs:
            lines.append(f"  first operation that differs: {self.differs}")
        if self.code:
            lines += ["", *self.code.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Spoken:
    """Names of two programs and their parts, for messages.

    Attributes:
        names: names of the results; without them, their places.
        load: code that defines both as `a` and `b`, for the code to paste.
        origins: names, from its file, of the origins of the second program's nodes; called where one is to be named.
    """

    names: Sequence[str] = ()
    load: str = ""
    origins: Callable[[], Mapping[Node, str]] = dict


def compare_graphs(
    first: Graph,
    second: Graph,
    words: Spoken = Spoken(),
    *,
    numerics: str = "real",
    seconds: float = SECONDS,
    seed: int = 0,
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute that two programs compute the same, output by output.

    Args:
        first, second: graphs whose frozen inputs come with values; arguments are taken by position.
        words: names for the verdict.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: processor time after which no further window is tried.
        seed: seed of the refuter's inputs.
        store: the store to look up certificates in.

    Raises:
        UsageError: there is no such class of numerics.
        InputError: the programs take different arguments.
        ProverDefectError: evaluation refutes a proof.
    """
    watch, end_s = Stopwatch(), processor_s() + seconds
    if numerics not in EXACTNESS:
        raise UsageError(f"numerics {numerics!r} is none of {', '.join(EXACTNESS)}")
    shared = share(first, second)
    titles = list(words.names) or [f"output {i}" for i in range(len(first.outputs))]
    types = ", ".join(show_type(n.type) for n in arguments(first))
    sizes = f"for inputs of these sizes: {types}"
    why = differing_types(first, second)
    if why:
        outputs = tuple(OutputVerdict(name, REFUTED, f"results differ in type: {why}") for name in titles)
        return PairVerdict(outputs, sizes, seconds=watch.elapsed_s)
    proof = prove_by_steps(shared.first, shared.second, shared.arrays, UsableRules.of(store, numerics), end_s)
    wanted = {i: x is y for i, (x, y) in enumerate(zip(proof.outputs, shared.first.outputs, strict=True))}
    stated = by_statements(shared, [i for i in wanted if not wanted[i]], numerics, end_s)
    wanted |= dict.fromkeys(stated, True)
    exactness = max((proof.exactness, *(d.exactness for d in stated.values())), key=EXACTNESS.index)
    both = Evaluation(shared)
    proved = [i for i in wanted if wanted[i]]
    different = differences(both, seed, wanted)
    beyond = beyond_finite(both, {i: different[i] for i in proved if i in different}, exactness, titles)
    told = contradiction(both, proved, exactness, seed)
    if told:
        raise ProverDefectError(f"what was proved differs: {told}", hint=REPORT)
    later_s = max(end_s, processor_s() + seconds / LATER)
    seen = vacuous(both, proved if exactness != EXACTNESS[0] else (), beyond, seed, later_s)
    never = {i: seen.missing(i) for i in seen.left}
    if never:
        exact = UsableRules.of(store, EXACTNESS[0])
        again = prove_by_steps(shared.first, shared.second, shared.arrays, exact, later_s)
        exactly = {i for i, d in stated.items() if d.exactness == EXACTNESS[0]}
        exactly |= {i for i in never if again.outputs[i] is shared.first.outputs[i]}
        for i in never.keys() & exactly & set(beyond):
            raise defect(titles[i], different[i])
        wanted |= dict.fromkeys(never.keys() - exactly, False)
    different = {i: d for i, d in different.items() if not wanted[i]}
    differs = "" if all(wanted.values()) else _first_stuck(proof, shared, words.origins)
    differs = differs or ("time is up" if processor_s() >= end_s else "the result itself")
    outputs = tuple(_verdict(titles[i], wanted[i], different.get(i), differs, never.get(i, "")) for i in wanted)
    one = next(iter(different.values()), None)
    folded = tuple(folding_text(fold, shared) for fold in proof.folded.values())
    return PairVerdict(
        outputs,
        sizes,
        exactness=exactness,
        folded=folded,
        apart=max((f.apart for f in proof.folded.values()), default=0.0),
        assumptions=tuple(dict.fromkeys((*proof.assumptions, *(a for d in stated.values() for a in d.assumptions)))),
        rules=tuple(proof.rules),
        differs="" if all(wanted[i] or i in never for i in wanted) else differs,
        code="" if one is None else code_of(one, first, words.load),
        seconds=watch.elapsed_s,
    )


def beyond_finite(
    both: Evaluation, found: Mapping[int, PairDifference], exactness: str, titles: Sequence[str]
) -> list[int]:
    """Proved outputs that differ only where an intermediate value is not finite, where the proof claims nothing.

    Raises:
        ProverDefectError: evaluation refutes a proof.
    """
    for i, d in found.items():
        live = inputs(both.types, d.seed, d.scale, d.numbers, d.kind, d.told)
        if exactness == EXACTNESS[0] or not both.leaving(live, [i]):
            raise defect(titles[i], d)
    return list(found)


def _verdict(name: str, proved: bool, difference: PairDifference | None, differs: str, never: str) -> OutputVerdict:
    if proved:
        return OutputVerdict(name, PROVED)
    if difference is None:
        return OutputVerdict(name, UNKNOWN, never or f"no proof and no difference found; unexplained: {differs}")
    return OutputVerdict(name, REFUTED, told_of(difference), difference)


def told_of(d: PairDifference) -> str:
    """A sentence on the inputs and place where two programs differ."""
    where = f"at {list(d.place)} it is {d.values[0]!r} and {d.values[1]!r}"
    return f"{where}; they are {d.apart:.3g} apart, rounding explains {d.rounding:.3g}"


def _first_stuck(proof: PairProof, shared: Shared, origins: Callable[[], Mapping[Node, str]]) -> str:
    """The first operation without a proved counterpart, and its origin in the second program's file."""
    for node, why in proof.stuck.items():
        source = _source({x for x, now in proof.image.items() if now is node}, origins(), shared)
        where = [_name(x, shared) for x in node.inputs if x.op == "input" and x["frozen"]]
        reads = f" of {', '.join(where)}" if where else ""
        return f"{node.op} {', '.join(map(show_type, node.types))}{reads}{source} ({why})"
    return ""


def _source(nodes: set[Node], origins: Mapping[Node, str], shared: Shared) -> str:
    """A text naming the first part of the second file that computes one of these nodes, or depends on one."""
    made = map_nodes(origins, given=shared.given[1])
    needing = set(nodes)
    for node in topological([made[x] for x in origins]):
        if not needing.isdisjoint(node.inputs):
            needing.add(node)
    return next((f" in {text}" for x, text in origins.items() if made[x] in needing), "")


def folding_text(fold: Folded, shared: Shared) -> str:
    """The expression that a stored tensor was assumed equal to, in words."""
    stored = _name(fold.stored, shared)
    apart = f"to within {fold.apart:.2g}" if fold.apart else "bit by bit"
    return f"{stored} is {_expression(fold.term, shared)}, {apart}"


def _expression(node: Node, shared: Shared) -> str:
    """A term of stored tensors with the names that they have in the models."""
    if node.op == "input":
        return _name(node, shared)
    if node.op == "literal":
        return str(node["value"])
    if node.op in ("broadcast_in_dim", "reshape", "convert_element_type"):
        return _expression(node.inputs[0], shared)
    text = f"{node.op}({', '.join(_expression(x, shared) for x in node.inputs)})"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _name(node: Node, shared: Shared) -> str:
    """The name of a stored tensor in a model, with the program that has it unless that is the first."""
    first, second = shared.names[node["name"]]
    return first.removeprefix("params.") if first else f"{second.removeprefix('params.')} (of the second)"


def code_of(d: PairDifference, graph: Graph, load: str) -> str:
    """Code that evaluates both programs on inputs where they differ."""
    types = [(n.shape, n.dtype) for n in arguments(graph)]
    drawn = f"seed={d.seed}, scale={d.scale}" + (f", numbers={d.numbers}" if d.numbers else "")
    drawn += (f", kind={d.kind!r}" if d.kind else "") + (f", told={d.told}" if d.told else "")
    lines = [
        "import numpy as np",
        "from superopt.equivalence.refute import inputs",
        load,
        f"arrays = inputs({types!r}, {drawn})",
        f"x, y = (np.asarray(f(*arrays)[{d.output}]) for f in (a, b))",
        f"print(x[{d.place}], y[{d.place}])  # {d.values[0]!r} and {d.values[1]!r}",
    ]
    return "\n".join(line for line in lines if line)


__all__ = [
    "LATER",
    "SECONDS",
    "OutputVerdict",
    "PairVerdict",
    "Spoken",
    "beyond_finite",
    "code_of",
    "compare_graphs",
    "folding_text",
    "told_of",
]
