"""Equivalence of two JAX functions for all sizes of their arguments, whose shapes are symbolic.

Programs of other frontends are passed here as functions that JAX traces.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jax import tree_util

from superopt.equivalence.refute import REPORT, Evaluation, contradiction, defect, differences, vacuous
from superopt.equivalence.sharing import differing_types, share
from superopt.equivalence.sweep import Stored, Swept, reciprocals, stored_alike, sweep
from superopt.equivalence.verdict import (
    LATER,
    SECONDS,
    OutputVerdict,
    PairVerdict,
    Spoken,
    beyond_finite,
    code_of,
    compare_graphs,
    told_of,
)  # fmt: skip
from superopt.equivalence.whole import MOST
from superopt.errors import ArgumentError, InputError, ProverDefectError, UsageError
from superopt.frontends.symbolic.graphs import Traced, trace_concrete
from superopt.frontends.symbolic.specs import Specs
from superopt.ir.graph import Node
from superopt.machine.deadline import Stopwatch
from verifier.rules.process import processor_s
from verifier.statements.prove import Pair
from verifier.statements.refute import Pairing, show_sizes, tiny_sizes
from verifier.statements.statement import NOT_EMPTY, Statement, check_statement, make_statement, traced_pair
from verifier.verdict import EXACTNESS, LEFT, PROVED, REFUTED, UNKNOWN, Counterexample, Verdict

if TYPE_CHECKING:
    from superopt.store import Store

_SIZES = 12
"""Number of small sizes to try; functions may have no value at some, for a larger window or a longer slice."""
_SAMPLES = 2
"""Number of assignments of sizes at which values are compared: one with distinct sizes, and others."""
SECOND = "_of_the_second"
"""Suffix of the second program's own names for sizes of the first."""


@dataclass(frozen=True, slots=True)
class SizedArguments:
    """The arguments and results of two functions over symbolic sizes.

    Attributes:
        specs, named: shapes of the arguments (`superopt.frontends.symbolic.specs`), by position and by name.
        constraints: comparisons of sizes that are assumed to hold.
        names: names of the results; without them, their places in the pytree.
        load: code that defines both functions as `a` and `b` at some sizes, for the code to paste.
    """

    specs: Sequence[Any]
    named: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constraints: Sequence[str] = ()
    names: Sequence[str] = ()
    load: Callable[[Mapping[str, int]], str] | None = None

    def statement(self, name: str, first: Callable[..., Any], second: Callable[..., Any]) -> Statement:
        """The statement that two functions of these arguments are equal.

        Raises:
            InputError: a specification cannot be read.
        """
        return make_statement(name, first, second, self.specs, dict(self.named), self.constraints)


def compare_symbolic(
    first: Callable[..., Any],
    second: Callable[..., Any],
    of: SizedArguments,
    sizes: Mapping[str, int] | None = None,
    numerics: str = "real",
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute for all sizes that two functions compute the same, leaf by leaf of their results.

    Args:
        first, second: functions that JAX traces at symbolic sizes.
        of: their arguments.
        sizes: sizes at which open results are compared as programs of fixed sizes are; without them they stay open.
        numerics: the widest class of a proof that counts.
        store: the store to look up certificates in.

    Raises:
        ArgumentError: JAX does not trace a function at any of some small sizes.
        InputError: a specification cannot be read, or the structures of the results differ.
    """
    watch, end_s = Stopwatch(), processor_s() + SECONDS
    whole = of.statement("both", first, second)
    given = {k: n for k, n in (sizes or {}).items() if k in whole.specs.sizes}
    if sizes and (set(given) != set(whole.specs.sizes) or set(sizes) - set(given) - {k for k, _ in whole.specs.solved}):
        raise UsageError(
            f"sizes are given for {', '.join(sorted(sizes))}, the names are {', '.join(whole.specs.sizes)}"
        )
    asked = _Asked(first, second, whole, of, numerics, store)
    at, traced = asked.traced(given)
    trees = [x.tree for x in traced]
    if trees[0] != trees[1]:
        raise InputError(f"the results have two structures: {trees[0]} and {trees[1]}")
    paths, _ = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(trees[0], range(trees[0].num_leaves)))
    names = list(of.names) or [f"result{tree_util.keystr(path)}" for path, _ in paths]
    text = f"for all sizes {', '.join(whole.specs.sizes)}" if whole.specs.sizes else "for these sizes"
    if whole.specs.premises:
        text += f" with {', '.join(f'{p} >= 0' for p in whole.specs.premises)}"
    alike = [f"{name} = {size}" for name, size in whole.specs.solved if not name.endswith(SECOND)]
    if alike:
        text += f" where {', '.join(alike)}"
    both, problem = traced_pair(whole)
    verdict = PairVerdict(tuple(OutputVerdict(name, UNKNOWN, problem) for name in names), text)
    if sum(len(x.graph.nodes()) for x in traced) <= MOST:
        verdict = asked.by_statements(verdict)
    if both.traced is not None and verdict.status != PROVED and _left(verdict):
        verdict = asked.by_sweep(verdict, both, end_s)
    elif _left(verdict) and len(traced[0].graph.nodes()) > MOST:
        verdict = asked.by_values(verdict, [])
    if _left(verdict) and given:
        verdict = _at_sizes(verdict, traced, names, ", ".join(f"{k} = {n}" for k, n in at.items()), numerics, store)
    return replace(verdict, seconds=watch.elapsed_s)


def proved_alone(
    first: Callable[..., Any], second: Callable[..., Any], of: SizedArguments, numerics: str, seconds: float
) -> Swept:
    """The result of a sweep that evaluates nothing and tries every node of one type.

    Raises:
        SuperoptError: a function has no trace at symbolic sizes, or the results differ in type.
    """
    whole = of.statement("both", first, second)
    both, problem = traced_pair(whole)
    made = None
    if both.traced is not None:
        made = _Asked(first, second, whole, of, numerics, None).swept(both, processor_s() + seconds, by_values=False)
    if made is None:
        raise InputError(problem or "the results differ in type, or an operation has no meaning at symbolic sizes")
    return made[0]


def _left(found: PairVerdict) -> list[int]:
    """Numbers of the results that are open."""
    return [i for i, o in enumerate(found.outputs) if o.status == UNKNOWN]


def _at_sizes(
    found: PairVerdict, traced: Sequence[Traced], names: list[str], at: str, numerics: str, store: Store | None
) -> PairVerdict:
    """The verdict with open results compared at some sizes."""
    left, outputs = _left(found), list(found.outputs)
    apart = compare_graphs(traced[0].graph, traced[1].graph, Spoken(names), numerics=numerics, store=store)
    for i in left:
        outputs[i] = replace(apart.outputs[i], cause=f"at {at} alone; {apart.outputs[i].cause}".rstrip("; "))
    return replace(
        apart,
        outputs=tuple(outputs),
        sizes=f"{found.sizes}, but {', '.join(names[i] for i in left)} at {at} alone",
        exactness=max(apart.exactness, found.exactness, key=EXACTNESS.index),
        assumptions=tuple(dict.fromkeys((*found.assumptions, *apart.assumptions))),
        code=found.code or apart.code,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """Two functions, and the request for their comparison."""

    first: Callable[..., Any]
    second: Callable[..., Any]
    whole: Statement
    of: SizedArguments
    numerics: str
    store: Store | None

    def traced(self, given: dict[str, int]) -> tuple[dict[str, int], list[Traced]]:
        """Both functions at the given sizes, else at the first of some small sizes at which both have values."""
        specs, refused = self.whole.specs, None
        for at in [given] if given or not specs.sizes else itertools.islice(tiny_sizes(specs, 1), _SIZES):
            try:
                return at, [trace_concrete(fn, specs, at) for fn in (self.first, self.second)]
            except ArgumentError as error:
                refused = refused or error
        raise refused or InputError("no sizes meet the constraints")

    def by_statements(self, found: PairVerdict) -> PairVerdict:
        """The verdict with each result tried as a statement of its own."""
        verdicts = [
            check_statement(self.of.statement(o.name, _leaf(self.first, i), _leaf(self.second, i)))
            for i, o in enumerate(found.outputs)
        ]
        outputs = [_output(o.name, v, self.numerics) for o, v in zip(found.outputs, verdicts, strict=True)]
        domains = [v.domain for v, o in zip(verdicts, outputs, strict=True) if o.status == PROVED and v.domain]
        shown = [(i, v.counterexample) for i, v in enumerate(verdicts) if v.counterexample is not None]
        return replace(
            found,
            outputs=tuple(outputs),
            exactness=max((d.exactness for d in domains), key=EXACTNESS.index, default="exact"),
            assumptions=tuple(dict.fromkeys(a for d in domains for a in d.assumptions)),
            code=_code(shown[0][1], shown[0][0], self.whole.specs, self.of.load) if shown else "",
        )

    def swept(self, both: Pairing, end_s: float, by_values: bool = True) -> tuple[Swept, Stored] | None:
        """The result of a node-by-node proof, with its assumptions on stored tensors; None if impossible."""
        assert both.traced is not None
        left, right = both.traced
        if (
            left.refused
            or right.refused
            or [n.types for n in left.graph.outputs] != [n.types for n in right.graph.outputs]
        ):
            return None
        compared = tuple((q.zero, str(q)) for q in dict.fromkeys((*left.comparisons, *right.comparisons)))
        specs = self.whole.specs
        pair = Pair(left.graph, right.graph, specs.sizes, both.lowest, specs.premises, compared)
        samples = self.samples()
        stored = Stored()
        if samples:
            graphs = [x.graph for x in self.traced(samples[0])[1]]
            half_s = min(end_s, processor_s() + SECONDS / 2)
            stored = stored_alike(pair, graphs, self.numerics, self.store, half_s)
        if self.numerics != "exact":
            stored = stored.beside(reciprocals(pair))
        at = samples[0] if samples else {}
        return sweep(pair, at, self.numerics, end_s, stored, by_values=by_values), stored

    def by_sweep(self, found: PairVerdict, both: Pairing, end_s: float) -> PairVerdict:
        """The verdict with open results proved node by node, or refuted by values."""
        made = self.swept(both, end_s)
        if made is None:
            return self.by_values(found, [])
        swept, stored = made
        proved = [i for i in _left(found) if i in swept.proved]
        stuck = "" if swept.stuck is None else _told(*swept.stuck)
        outputs = [
            OutputVerdict(o.name, PROVED) if i in proved
            else replace(o, cause=stuck or o.cause) if o.status == UNKNOWN else o
            for i, o in enumerate(found.outputs)
        ]  # fmt: skip
        assumed = dict.fromkeys((*found.assumptions, *([NOT_EMPTY] if swept.lowest else []), *swept.assumptions))
        found = replace(found, outputs=tuple(outputs), differs=stuck)
        if proved:
            classes = (found.exactness, swept.exactness, "real" if stored.apart else "exact")
            exactness = max(classes, key=EXACTNESS.index)
            found = replace(
                found, assumptions=tuple(assumed), exactness=exactness, folded=stored.texts, apart=stored.apart
            )
        later_s = max(end_s, processor_s() + SECONDS / LATER)
        made = self.by_values(found, proved, later_s)
        never = [i for i in proved if made.outputs[i].status != PROVED]
        again = replace(self, numerics=EXACTNESS[0]).swept(both, later_s) if never else None
        for i in never:
            if again is not None and i in again[0].proved:  # of all values, not of finite ones alone
                apart = made.outputs[i].difference
                if apart is not None:
                    raise defect(found.outputs[i].name, apart)
                made = replace(made, outputs=(*made.outputs[:i], found.outputs[i], *made.outputs[i + 1 :]))
        return made

    def samples(self) -> list[dict[str, int]]:
        """Sizes at which both functions have values, distinct ones first."""
        tiny = list(itertools.islice(tiny_sizes(self.whole.specs, 1), _SIZES))
        sizes: list[dict[str, int]] = []
        for at in sorted(tiny, key=lambda at: -len(set(at.values()) - {1})):
            try:
                self.traced(at)
            except ArgumentError:
                continue
            sizes.append(at)
            if len(sizes) == _SAMPLES:
                break
        return sizes

    def by_values(self, found: PairVerdict, proved: Sequence[int], later_s: float = 0.0) -> PairVerdict:
        """The verdict with open results refuted by values at small sizes, if they can be.

        Args:
            found: the verdict.
            proved: numbers of the results whose proofs are tested.
            later_s: processor time after which no further inputs in the domain of such a proof are sought.

        Raises:
            ProverDefectError: values refute a proof.
        """
        outputs, code = list(found.outputs), found.code
        missing: dict[int, list[str]] = {i: [] for i in proved}
        unlike: dict[int, str] = {}
        aside: dict[int, tuple[OutputVerdict, str]] = {}
        for at in self.samples():
            graphs = [x.graph for x in self.traced(at)[1]]
            if differing_types(*graphs):
                continue
            values = Evaluation(share(*graphs))
            wanted = {i: i in proved for i in range(len(outputs)) if i in proved or outputs[i].status == UNKNOWN}
            told = show_sizes(at)
            apart = differences(values, 0, wanted)
            titles = [f"{o.name} at {told}" for o in found.outputs]
            beyond = beyond_finite(values, {i: apart[i] for i in proved if i in apart}, found.exactness, titles)
            never = vacuous(values, proved if found.exactness != EXACTNESS[0] else (), beyond, 0, later_s)
            for i, d in apart.items():
                refuted = OutputVerdict(outputs[i].name, REFUTED, f"where {told}, {told_of(d)}", d)
                pasted = code_of(d, graphs[0], "" if self.of.load is None else self.of.load(at))
                if i in never.left:
                    aside[i] = refuted, pasted
                if wanted[i]:
                    continue
                outputs[i] = refuted
                code = code or pasted
            for i, why in missing.items():
                why.append(never.missing(i) if i in never.left else "")
                # entries that other sizes may not have
                if why[-1] and never.unlike(i) and 0 not in at.values():
                    unlike.setdefault(i, why[-1])
            wrong = contradiction(values, list(proved), found.exactness, 0) if proved else ""
            if wrong:
                raise ProverDefectError(f"what was proved differs at {told}: {wrong}", hint=REPORT)
        for i, why in missing.items():
            if i in unlike or (why and all(why)):  # at one size, or at none
                unknown = OutputVerdict(outputs[i].name, UNKNOWN, unlike.get(i) or why[0])
                outputs[i], pasted = aside.get(i, (unknown, ""))
                code = code or pasted
        return replace(found, outputs=tuple(outputs), code=code)


def _told(node: Node, why: str) -> str:
    """A sentence about an operation without a proved counterpart."""
    return f"{node.op} {', '.join(map(str, node.types))} ({why})"


def _code(found: Counterexample, number: int, specs: Specs, load: Callable[[Mapping[str, int]], str] | None) -> str:
    """Code to paste: arrays, and the results of both functions on them."""
    if load is None:
        return found.code
    if found.index is None:
        return ""
    lines = [load({k: int(n) for k, n in found.choices.items()}), "arrays = ("]
    for name, kind in zip(specs.names, specs.types, strict=True):
        lines.append(f"    np.array({found.inputs[name]!r}, {kind.dtype!r}).reshape({found.shapes[name]!r}),")
    lines += [")", f"x, y = (np.asarray(f(*arrays)[{number}]) for f in (a, b))"]
    at = found.index
    return "\n".join([*lines, f"print(x[{at}], y[{at}])  # {found.left} and {found.right}"])


def _leaf(fn: Callable[..., Any], number: int) -> Callable[..., Any]:
    """One leaf of a function's result."""

    @functools.wraps(fn)
    def leaf(*args: Any, **kwargs: Any) -> Any:
        return tree_util.tree_leaves(fn(*args, **kwargs))[number]

    return leaf


def _output(name: str, found: Verdict, numerics: str) -> OutputVerdict:
    if found.proved and found.domain is not None:
        if EXACTNESS.index(found.domain.exactness) <= EXACTNESS.index(numerics):
            return OutputVerdict(name, PROVED)
        return OutputVerdict(name, UNKNOWN, f"proved as {found.domain.exactness} alone")
    shown = found.counterexample
    if found.status == REFUTED and shown is not None:
        sizes = ", ".join(f"{k} = {v}" for k, v in shown.choices.items())
        if shown.failed:
            first = shown.failed == LEFT
            cause = shown.left if first else shown.right
            return OutputVerdict(name, REFUTED, f"where {sizes} the {'first' if first else 'second'} program {cause}")
        place = "" if shown.index is None else f" at {list(shown.index)}"
        return OutputVerdict(name, REFUTED, f"where {sizes} it is {shown.left} and {shown.right}{place}")
    return OutputVerdict(name, UNKNOWN, found.cause)


__all__ = ["MOST", "SECOND", "SizedArguments", "compare_symbolic", "proved_alone"]
