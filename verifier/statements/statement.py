"""Statements: two JAX functions are equal for all sizes of their arguments and all inputs.

One statement, one verdict: refute at a few tiny sizes, prove at symbolic sizes, refute at more sizes.  PROVED comes
from the prover alone, REFUTED from the reference interpreter alone.  The domain states the sizes: from 0 on, or from 1
on where JAX traces a function for non-empty arrays only.  Ranks are those of the specifications, unless the statement
lifts to a rule (`rewrites.lift.lifting`), widened as far as the prover allows, whose proof covers groups of axes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.lift.lifting import Lifted, Unliftable, lift, widen
from superopt.errors import ArgumentError, InputError, ProverDefectError, RuleError
from superopt.frontends.symbolic.graphs import Traced, parameters_of, trace_symbolic
from superopt.frontends.symbolic.specs import Specs, read_specs
from superopt.ir.graph import Graph, topological
from superopt.ir.text import print_graph
from superopt.machine.deadline import Stopwatch
from verifier.equal.equality import DEFINED, Proof, Stop
from verifier.rules.process import LIMIT, shared
from verifier.rules.prove import FINITE
from verifier.rules.refute import clearest
from verifier.rules.snippet import body, identifier, written
from verifier.statements.constants import by_contents
from verifier.statements.guards import differing_behind_guards
from verifier.statements.nonvacuity import never
from verifier.statements.prove import Pair, prove_elsewhere, unsupported_ops
from verifier.statements.refute import (
    LARGEST,
    OtherGraph,
    Pairing,
    StatementDifference,
    differ_at,
    differ_by_conversions,
    differ_on,
    failure,
    show_sizes,
    simpler,
    smaller,
    telling_sizes,
    tiny_sizes,
)
from verifier.statements.watch import watched
from verifier.verdict import (
    EXACTNESS,
    LEFT,
    PROVED,
    REFUTED,
    RIGHT,
    UNKNOWN,
    UNSUPPORTED,
    Counterexample,
    Query,
    ValidityDomain,
    Verdict,
)

BEFORE, AFTER, CANDIDATES = 4, 14, 8
NOT_EMPTY = "every size is at least 1"


UNDECIDED = "no tier of the prover decides it"


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """The statement that two functions of the same arguments are equal.

    Attributes:
        name: name in reports.
        left, right: the functions.
        specs: their arguments.
        given: the specifications as written, by position and by name.
        constraints: comparisons of sizes, as written.
        where: file and line.
    """

    name: str
    left: Callable[..., Any]
    right: Callable[..., Any]
    specs: Specs
    given: tuple[tuple[Any, ...], dict[str, Any]]
    constraints: tuple[str, ...] = ()
    where: str = ""

    def under(self, extra: Sequence[str]) -> Statement:
        """The statement under further constraints."""
        return make_statement(self.name, self.left, self.right, *self.given, (*self.constraints, *extra), self.where)


def make_statement(
    name: str,
    left: Callable[..., Any],
    right: Callable[..., Any],
    specs: Sequence[Any],
    named: dict[str, Any],
    constraints: Sequence[str] = (),
    where: str = "",
) -> Statement:
    """Make a statement from functions and specifications.

    Raises:
        InputError: a specification or a constraint cannot be read.
    """
    constraints = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    read = read_specs(parameters_of(left), specs, named, constraints)
    return Statement(name, left, right, read, (tuple(specs), dict(named)), constraints, where)


def check_statement(statement: Statement, *, before: int = BEFORE, after: int = AFTER) -> Verdict:
    """The verdict on a statement.

    Args:
        statement: the statement.
        before: sizes tried before the proof.
        after: further sizes tried when the proof fails.

    Raises:
        ProverDefectError: the statement is proved and refuted at once (the prover or the interpreter is wrong).
    """
    return _checked(statement, before, after)[0]


def proved_alone(statement: Statement) -> Verdict:
    """The prover's verdict on a statement, without any search for a counterexample."""
    watch = Stopwatch()
    pair, problem = traced_pair(statement)
    asked = Verdict(statement.name, statement_key(statement, pair.traced), statement.where, "statement", UNKNOWN)
    return replace(_proved(pair, asked, Proof(), problem), seconds=watch.elapsed_s)


def seen_wrong(statement: Statement) -> str:
    """The message by which evaluation would detect this statement if it were falsely proved; empty if it would not."""
    pair, _ = traced_pair(statement)
    claimed = ValidityDomain(EXACTNESS[1], (), (), (FINITE,), ())
    tried = [at for at, _ in zip(tiny_sizes(statement.specs, pair.lowest), range(BEFORE), strict=False)]
    example = _search(pair, tried)
    if example is not None:
        return "refuted"
    seen = watched(pair, claimed, tried)[1]
    return seen.text if seen is not None else differing_behind_guards(pair, claimed, tried)


def as_rule(statement: Statement) -> tuple[Rule | None, Verdict]:
    """The rule over named axes that states the same, with its verdict; without one, None and the statement's verdict.

    Raises:
        VerificationError: see `check_statement`.
    """
    verdict, pair = _checked(statement, BEFORE, AFTER, ranks=False)
    if not verdict.proved:
        return None, verdict
    try:
        made, proof = general(statement, pair)
    except Unliftable as error:
        return None, replace(verdict, cause=str(error))
    if made is None:
        why = "" if proof is None else proof.cause
        return None, replace(verdict, cause=f"{lifted(statement, pair).text()}\n{why}")
    return made, shared().check(made)


def _checked(statement: Statement, before: int, after: int, ranks: bool = True) -> tuple[Verdict, Pairing]:
    """Return the verdict on a statement: tried at small sizes, proved for all, and tried again."""
    watch = Stopwatch()
    pair, problem = traced_pair(statement)
    done = Proof()
    verdict = Verdict(
        statement.name, statement_key(statement, pair.traced), statement.where, "statement", UNKNOWN, cause=problem
    )
    sizes = tiny_sizes(statement.specs, pair.lowest)
    try:
        tried = [*(at for at, _ in zip(sizes, range(before), strict=False)), *telling_sizes(pair)]
        example = _search(pair, tried)
        aside = example if example is not None and example.unclear else None
        if example is None or aside is not None:
            verdict = _proved(pair, verdict, done, problem)
            if verdict.proved:
                if example is not None and _excluded(example, verdict):
                    example = None
                changes = [at for at in done.changes if at not in tried and _within(pair, at)]
                example = example or _search(pair, changes)
                if example is not None and _excluded(example, verdict):
                    aside, example = aside or example, None
                if example is None:
                    tried += changes
                    verdict = _without_empty(pair, _tried_in_earnest(statement, pair, verdict, tried))
                    missing = _never(pair, verdict, tried, aside is not None)
                    if missing:
                        cause = next(iter(missing.values()))
                        verdict = replace(verdict, status=UNKNOWN, domain=None, cause=cause)
                        example = aside if aside is not None and aside.output in missing else None
            elif example is None:
                example = clearest(differ_on(pair, at, values) for at, values in done.suspects)
                example = example or _search(pair, [at for at, _ in zip(sizes, range(after), strict=False)])
                example = example or differ_by_conversions(pair)
    except OtherGraph as other:
        verdict, example = replace(verdict, status=UNKNOWN, domain=None, cause=str(other)), None
    if example is not None and verdict.proved:
        shown = counterexample(statement, simpler(pair, example))
        raise ProverDefectError(f"{statement.name} is proved and yet refuted at {show_sizes(example.sizes)}:\n{shown}")
    if example is not None:
        shown = counterexample(statement, simpler(pair, smaller(pair, example)))
        when = _weakest(statement, pair)
        verdict = replace(verdict, status=REFUTED, counterexample=shown, cause="", domain=None, proved_when=when)
    elif verdict.domain is not None:
        if ranks and not _by_machine(done):
            verdict = replace(verdict, domain=any_rank(statement, pair, verdict.domain))
    elif verdict.status != UNSUPPORTED:
        verdict = replace(verdict, cause=f"{verdict.cause or UNDECIDED}; no counterexample at {pair.tried} sizes")
    verdict = replace(
        verdict,
        tiers=tuple(done.tiers or ()) if verdict.proved else (),
        obligations=done.obligations,
        queries=done.queries,
        seconds=watch.elapsed_s,
    )
    return verdict, pair


def _by_machine(done: Proof) -> bool:
    """Whether a tier of machine integers was used; a rule would cover all widths at once, which may take minutes."""
    return any(tier == "bits" or tier.startswith("integers (") for tier in done.tiers or ())


def _without_empty(pair: Pairing, verdict: Verdict) -> Verdict:
    """The verdict for sizes from 1 on where one function was seen to refuse empty arrays."""
    if verdict.domain is None or not pair.refuses_empty:
        return verdict
    assumptions = tuple(dict.fromkeys((NOT_EMPTY, *verdict.domain.assumptions)))
    return replace(verdict, domain=replace(verdict.domain, assumptions=assumptions))


def _tried_in_earnest(
    statement: Statement, pair: Pairing, verdict: Verdict, tried: Sequence[dict[str, int]]
) -> Verdict:
    """The verdict of a proof after both functions were evaluated in their own dtypes (`verifier.statements.watch`)."""
    assert verdict.domain is not None
    claimed = verdict.domain.exactness
    domain, example = watched(pair, verdict.domain, tried)
    if example is not None and example.defect:
        raise ProverDefectError(f"{statement.name} is proved ({claimed}) and yet refuted: {example.text}")
    if example is not None:
        cause = f"the proof says {claimed}, evaluation in the dtypes gives {example.text}"
        return replace(verdict, status=UNKNOWN, domain=None, cause=cause)
    behind = differing_behind_guards(pair, domain, tried)
    if behind:
        cause = f"the proof says {claimed}, but evaluation gives {behind}"
        return replace(verdict, status=UNKNOWN, domain=None, cause=cause)
    if domain.exactness != claimed:
        domain = replace(domain, assumptions=tuple(dict.fromkeys((*domain.assumptions, FINITE))))
    return replace(verdict, domain=domain)


def _never(pair: Pairing, verdict: Verdict, tried: Sequence[dict[str, int]], strict: bool) -> dict[int, str]:
    """Messages about results that never have the finite values that a proof of class real or range assumes."""
    if verdict.domain is None or verdict.domain.exactness == EXACTNESS[0]:
        return {}
    return never(pair, tried, strict)


def _within(pair: Pairing, at: dict[str, int]) -> bool:
    """Whether sizes are among those of the statement and inputs there are small enough."""
    return min(at.values(), default=0) >= pair.lowest and pair.specs.admits(at) and pair.elements(at) <= LARGEST


def _excluded(found: StatementDifference, verdict: Verdict) -> bool:
    """Whether the certificate excludes the difference: by an empty size, or by undefined or infinite values."""
    assumed = () if verdict.domain is None else verdict.domain.assumptions
    empty = 0 in found.sizes.values() and NOT_EMPTY in assumed
    undefined = found.undefined and any(a.startswith(DEFINED) for a in assumed)
    return empty or undefined or (FINITE in assumed and found.infinite)


def traced_pair(statement: Statement) -> tuple[Pairing, str]:
    """Both functions traced at symbolic sizes from 0 on, else from 1 on; with an error message where neither works."""
    problem = ""
    for lowest in (0, 1) if statement.specs.sizes else (0,):
        side = LEFT
        try:
            left = trace_symbolic(statement.left, statement.specs, lowest)
            side = RIGHT
            right = trace_symbolic(statement.right, statement.specs, lowest)
        except ArgumentError as error:
            problem = f"at symbolic sizes, the {side} side {failure(error)}"
            continue
        named = by_contents((left.graph, right.graph))
        traced = (replace(left, graph=named[0]), replace(right, graph=named[1]))
        return Pairing(statement.left, statement.right, statement.specs, traced, lowest), ""
    return Pairing(statement.left, statement.right, statement.specs, lowest=1), problem


def _search(pair: Pairing, sizes: Sequence[dict[str, int]]) -> StatementDifference | None:
    return clearest(differ_at(pair, at) for at in sizes)


def _proved(pair: Pairing, verdict: Verdict, done: Proof, problem: str) -> Verdict:
    if pair.traced is None:
        return replace(verdict, status=UNSUPPORTED, cause=problem)
    left, right = pair.traced
    if left.tree != right.tree or len(left.graph.outputs) != len(right.graph.outputs):
        return replace(verdict, status=UNKNOWN, cause="the functions have different structures")
    dtypes = [(a.dtype, b.dtype) for a, b in zip(left.graph.outputs, right.graph.outputs, strict=True)]
    if any(a != b for a, b in dtypes) or any(
        a.type.rank != b.type.rank for a, b in zip(left.graph.outputs, right.graph.outputs, strict=True)
    ):
        return replace(verdict, status=UNKNOWN, cause="the functions have different types")
    refused = [*left.refused, *right.refused]
    if refused and (unsupported_ops(left.graph) or unsupported_ops(right.graph)):
        return replace(verdict, status=UNSUPPORTED, cause="; ".join(f"{name}: {why}" for name, why in refused))
    try:
        domain, asked = _at_lowest(pair, left, right, done)
    except Stop as stop:
        return replace(verdict, status=stop.status, cause=stop.cause)
    return replace(verdict, status=PROVED, domain=domain, cause="", asked=asked)


def _at_lowest(pair: Pairing, left: Traced, right: Traced, done: Proof) -> tuple[ValidityDomain, tuple[Query, ...]]:
    """Prove for sizes from 0 on; where that fails for no other reason, from 1 on."""
    sizes = pair.specs.sizes
    compared = tuple((q.zero, str(q)) for q in dict.fromkeys((*left.comparisons, *right.comparisons)))
    made = Pair(left.graph, right.graph, sizes, pair.lowest, pair.specs.premises, compared)
    try:
        domain, asked = prove_elsewhere(made, done)
    except Stop as stop:
        if pair.lowest or not sizes or stop.status == UNSUPPORTED or stop.cause.startswith(LIMIT):
            raise
        made = replace(made, lowest=1)
        again = Proof()
        try:
            domain, asked = prove_elsewhere(made, again)
        except Stop:
            raise stop from None
        done.__dict__.update(again.__dict__)
    if made.lowest:
        domain = replace(domain, assumptions=tuple(dict.fromkeys((NOT_EMPTY, *domain.assumptions))))
    return domain, asked


def _weakest(statement: Statement, pair: Pairing) -> str:
    """A condition on sizes under which a refuted statement is proved, as text; empty where none is found."""
    names = [*(n for n, _ in statement.specs.solved), *(n for n in statement.specs.sizes if not n.endswith("_"))]
    if pair.traced is None or not names:
        return ""
    candidates = [tuple(f"{n} >= 1" for n in names), *((f"{n} == 1",) for n in names)]
    candidates += [(f"{a} == {b}",) for i, a in enumerate(names) for b in names[i + 1 :]]
    for extra in candidates[:CANDIDATES]:
        try:
            narrowed = statement.under(extra)
        except InputError:  # the constraints exclude it
            continue
        other, problem = traced_pair(narrowed)
        tried = [at for at, _ in zip(tiny_sizes(narrowed.specs, other.lowest), range(3), strict=False)]
        try:
            if problem or not tried or _search(other, tried) is not None:
                continue
        except OtherGraph:
            continue
        verdict = _proved(other, Verdict(statement.name, "", "", "statement", UNKNOWN), Proof(), "")
        if verdict.proved and not _never(other, verdict, tried, strict=False):
            return " and ".join(extra)
    return ""


def lifted(statement: Statement, pair: Pairing) -> Lifted:
    """The statement as rule text over single axes.

    Raises:
        Unliftable: the rule language cannot express it.
    """
    if pair.traced is None:
        raise Unliftable("it cannot be traced at symbolic sizes")
    left, right = (t.graph for t in pair.traced)
    return lift(statement.name, left, right, statement.specs.sizes, statement.specs.premises)


def general(
    statement: Statement, pair: Pairing, judge: Callable[[Rule], Verdict] | None = None
) -> tuple[Rule | None, Verdict | None]:
    """The most general rule that `judge` (by default the prover) proves, and its verdict; else None and the last one.

    Raises:
        Unliftable: the rule language cannot express the statement.
    """
    text = lifted(statement, pair)
    try:
        parse(text.text(), statement.where or "<lifted>")
    except RuleError as error:
        raise Unliftable(f"{text.text()}\n{error.args[0]}") from error
    verdicts: dict[str, Verdict] = {}
    last: list[Verdict] = []

    def accepts(rule: Rule) -> bool:
        verdict = judge(rule) if judge is not None else shared().prove(rule)
        last.append(verdict)
        verdicts[str(sorted(rule.many))] = verdict
        return verdict.proved

    made = widen(text, accepts, statement.where or "<lifted>")
    if made is None:
        return None, last[-1] if last else None
    return made, verdicts[str(sorted(made.many))]


def any_rank(statement: Statement, pair: Pairing, domain: ValidityDomain) -> ValidityDomain:
    """The domain with the ranks for which the lifted rule is proved; unchanged where there is no such rule."""
    try:
        made, verdict = general(statement, pair)
    except Unliftable:
        return domain
    if made is None or verdict is None or verdict.domain is None:
        return domain
    wide = dict(verdict.domain.ranks)
    ranks = tuple((role, wide.get(role, "1")) for role in made.roles if role in made.many)
    single = tuple((role, "1") for role in made.roles if role not in made.many)
    return replace(domain, ranks=(*ranks, *single))


def statement_key(statement: Statement, traced: tuple[Traced, Traced] | None) -> str:
    """Hash of both graphs over symbolic sizes and of the premises; empty where there are no such graphs."""
    if traced is None:
        return ""
    text = [f"{p} >= 0" for p in statement.specs.premises]
    for side in traced:
        order = topological((*side.graph.inputs, *side.graph.outputs))
        number = {node: i for i, node in enumerate(order)}
        text += [f"{n.op}{n.attrs}({[number[x] for x in n.inputs]})" for n in order]
        text.append(f"{[number[x] for x in side.graph.outputs]} {side.tree}")
        text += [f"{name}: {array.tobytes().hex()}" for name, array in sorted(side.graph.constants.items())]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]


def counterexample(statement: Statement, found: StatementDifference) -> Counterexample:
    """A difference as a counterexample."""
    left, right = found.results
    at = found.index
    return Counterexample(
        inputs={k: np.asarray(v).tolist() for k, v in found.values.items()},
        shapes={k: tuple(v.shape) for k, v in found.values.items()},
        choices={k: str(v) for k, v in found.sizes.items()},
        root=found.output,
        index=at,
        left=str(left[at]) if at is not None else found.cause if found.failed == LEFT else "a result",
        right=str(right[at]) if at is not None else found.cause if found.failed == RIGHT else "a result",
        graphs=(_text(found.graphs[0]), _text(found.graphs[1])),
        seed=0,
        undefined=found.undefined,
        results=tuple(None if x is None else np.asarray(x).tolist() for x in (left, right)),  # pyright: ignore[reportArgumentType]
        code=_test(statement, found),
        failed=found.failed,
    )


def _text(graph: Graph | None) -> str:
    return "" if graph is None else print_graph(graph)


def _test(statement: Statement, found: StatementDifference) -> str:
    left, right = found.graphs
    known = right if left is None else left
    if known is None:
        return ""
    values: dict[str, Any] = dict(found.values)
    for x in known.inputs:
        if x["name"] not in known.constants:
            values.setdefault(x["name"], np.zeros([int(str(n)) for n in x.shape], x.dtype))
    try:
        sides = [_body(graph, found.output, found.cause) for graph in (left, right)]
    except (KeyError, IndexError):  # an operation has no written form, or the numbers of outputs differ
        return ""
    names = {name: identifier(name) for name in values}
    whole = found.index is not None and np.asarray(found.results[0]).dtype.kind in "biu"
    told = 0.0 if whole else found.tolerance
    cause = found.cause and f"the {found.failed} side {found.cause}"
    return written(statement.name, names, values, sides[0], sides[1], cause, told, statement.specs.wide)


def _body(graph: Graph | None, output: int, cause: str) -> list[str]:
    if graph is None:
        return [f"    raise ValueError({cause!r})"]
    if graph.constants:
        raise KeyError("an array that the function closes over")
    return body({x: identifier(x["name"]) for x in graph.inputs}, graph.outputs[output])
