"""Validation of a returned program from its plan: no search, no e-graph, files suffice.

    1. every rule of the plan is PROVED: by its certificate, or anew; so is every step that takes work out of a loop.
    2. every step is an instance of its rule. Premises, sizes and attributes are checked at its place, and both sides
       built from its bindings (`verifier.rules.instances`).
    3. element labels of the original, of all terms and sides, and of the returned program are computed. The two sides
       of each step are made equal; this is repeated while anything changes (`verifier.programs.elements`,
       `verifier.programs.sweep`).
    4. the outputs of the original and of the returned program must have the same labels.

A step that does not belong is refused at 2 with its number and rule, or leads nowhere at 3; then the first unexplained
operation of the returned program is named.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rewrites.language.named import Env
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from superopt.certify.loops import LoopProof, LoopStepError, prove_step
from superopt.certify.plan import Plan, RuleInstance
from superopt.errors import FileLimitError, RuleError, SuperoptError
from superopt.files.reading import shown
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.loop_steps import LoopStep
from superopt.ir.loops import results_of
from superopt.ir.program import Program, replace
from superopt.ir.text import print_graph
from superopt.machine.deadline import Stopwatch
from verifier.programs.elements import ElementLabels, compact
from verifier.programs.mixing import Ids
from verifier.programs.sweep import IdRow, LabelTask, sweep, tasks
from verifier.record.ledger import Certificate, Ledger, require_proved, unusable
from verifier.rules.instances import NotAnInstance, sides
from verifier.verdict import EXACTNESS

_PASSES = 60  # programs and plans of the tests take two; files of strangers have to come to an end
_SEEN_BITS = 27  # bits of a label that index a table of 128 MB


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of validating a program against its plan.

    Attributes:
        valid: whether the program computes the same as the original, under the `assumptions`.
        cause: the reason why not, with the step or operation.
        steps: number of rule instances of the plan, and of steps of loops.
        rules: rule -> key of its certificate.
        exactness: the widest class of the rules: exact, real or range.
        assumptions: assumptions of the certificates.
        passes: rounds until the outputs were equal.
        seconds: wall time.
        notes: parts that were not checked.
        kernels: number of our kernels in the program whose schedules are proved, equal ones counted once.
        code: of these, how many were shown to be computed by their machine code.
    """

    valid: bool
    cause: str
    steps: int
    rules: Mapping[str, str]
    exactness: str
    assumptions: tuple[str, ...]
    passes: int
    seconds: float
    notes: tuple[str, ...] = ()
    kernels: int = 0
    code: int = 0

    def __str__(self) -> str:
        if not self.valid:
            return f"NOT VALIDATED: {self.cause}"
        kinds = f"{self.steps} steps by {len(self.rules)} proved rules, {self.exactness}"
        lines = [f"VALIDATED: {kinds}; outputs are equal to the original's ({self.seconds:.1f} s)"]
        if self.kernels:
            lines.append(f"  {self.kernels} schedules of kernels, each PROVED to compute what its region says")
            lines.append(f"  machine code of {self.code} of them validated against that")
        lines += [f"  assuming {text}" for text in self.assumptions]
        return "\n".join([*lines, *(f"  {text}" for text in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return one JSON-serialisable object."""
        return asdict(self)


class _PlanRefused(Exception):
    """The plan does not hold; the message names the step or operation."""


@dataclass(slots=True)
class _ProvedParts:
    """Grounds of a validation: certificates of rules, and proofs of steps that take work out of loops."""

    certificates: dict[str, Certificate] = field(default_factory=dict[str, Certificate])
    loops: list[LoopProof] = field(default_factory=list[LoopProof])


def validate(
    original: Graph,
    returned: Program,
    plan: Plan,
    ledger: Ledger | None = None,
    most: float = math.inf,
    given: Sequence[tuple[Node, Node]] = (),
) -> Validation:
    """Check that a program computes the same as another, step by step of its plan.

    Args:
        original: the program that was optimised.
        returned: the program that is claimed to be equal.
        plan: its plan; its claims are checked, not trusted.
        ledger: certificates; rules that it does not hold are proved now.
        most: elements that may be visited in a round: those of all values, and of the windows over them.
        given: pairs of terms that the caller guarantees: they are taken to be equal.

    Raises:
        FileLimitError: there are more.
    """
    watch = Stopwatch()
    proved = _ProvedParts()
    passes, cause = 0, ""
    try:
        passes = _check(original, returned, plan, ledger or Ledger(), proved, most, given)
    except _PlanRefused as refused:
        cause = shown(refused, 1000)
    parts = [*proved.certificates.values(), *proved.loops]
    classes = [EXACTNESS.index(part.exactness) for part in parts]
    assumptions = dict.fromkeys(a for part in parts for a in part.assumptions)
    steps = len(plan.instances) + sum(len(b.plan.instances) for b in plan.bodies) + len(proved.loops)
    keys = {name: c.key for name, c in proved.certificates.items()}
    exactness = EXACTNESS[max(classes, default=0)]
    return Validation(not cause, cause, steps, keys, exactness, tuple(assumptions), passes, watch.elapsed_s)


def _check(
    original: Graph,
    returned: Program,
    plan: Plan,
    ledger: Ledger,
    proved: _ProvedParts,
    most: float,
    given: Sequence[tuple[Node, Node]] = (),
) -> int:
    """Label both programs until their labels agree; return the number of rounds, or refuse the plan."""
    if plan.numerics not in EXACTNESS:
        raise _PlanRefused(f"the plan says numerics {plan.numerics!r}")
    outputs = _whole(original, returned)
    rules = _proved_rules(plan, ledger, proved.certificates)
    bodies: dict[str, str] = {}
    for number, body in enumerate(plan.bodies):
        if body.plan.numerics != plan.numerics:
            raise _PlanRefused(
                f"body {number}: its plan says {body.plan.numerics}, that of the program {plan.numerics}"
            )
        try:
            _check(body.before, Program(None, body.after), body.plan, ledger, proved, most)
        except _PlanRefused as refused:
            raise _PlanRefused(f"body {number}: {refused}") from refused
        bodies[print_graph(body.after)] = print_graph(body.before)
    known = set(original.inputs)
    for node in topological(plan.terms.outputs):
        if node.op == "input" and node not in known:
            raise _PlanRefused(f"the plan speaks of an input {node['name']!r}, which the original does not have")
    opened = [_loop(number, step, plan, known) for number, step in enumerate(plan.loops)]
    proved.loops += [proof for _, proof in opened]
    given = [*given, *(pair for pairs, _ in opened for pair in pairs)]
    steps = [_sides(number, step, plan, rules) for number, step in enumerate(plan.instances)]
    terms = Graph(original.inputs, tuple(side for pair in given for side in pair))
    texts = [original, *(g for g in (returned.prepare, returned.hot) if g), *((terms,) if given else ())]
    seed = "\0".join(map(print_graph, texts))
    key = hashlib.sha256(f"{seed}\0{plan.to_json()}".encode()).digest()
    labels = ElementLabels(key, exact=plan.numerics == "exact", bodies=bodies)
    sides = [*(pair for pairs in steps for pair in pairs), *given]
    order = tasks(original.outputs, sides, outputs)
    if (count := sum(visited_elements(task.node) for task in order)) > most:
        raise FileLimitError(
            f"a round of the validation looks at {count:.0f} elements; a file of this size is given {most:.0f}",
            hint="validate it without a limit if you trust where it comes from",
        )
    for count in range(1, _PASSES + 1):
        before = labels.merges.united
        covered = sweep(labels, order)
        if _same(covered, original.outputs, outputs):
            return count
        if labels.merges.united == before:
            if not labels.merges.sampling:
                raise _PlanRefused(_unexplained(labels, order, original, outputs, plan, steps))
            labels.merges.sampling = False  # look at every label before anything is refused
    raise _PlanRefused(f"labels still change after {_PASSES} rounds")


def visited_elements(node: Node) -> float:
    """Count the elements that labelling a node visits: of its operands and results, for each place of a window."""
    sizes = [float(math.prod(t.shape)) for x in (node, *node.inputs) for t in x.types]  # pyright: ignore[reportArgumentType] -- numbers
    window: Any = dict(node.attrs).get("window_dimensions", ())
    if node.op == "conv_general_dilated":
        window = [node.inputs[1].shape[axis] for axis in node["dimension_numbers"][1][2:]]
    return sum(sizes) * float(math.prod(window))


def _whole(original: Graph, returned: Program) -> tuple[Node, ...]:
    """Return the outputs of the returned program over the original's inputs."""
    live = tuple(n for n in original.inputs if not n["frozen"])
    if returned.prepare is None:
        outputs = returned.hot.outputs
    else:
        if returned.live_inputs != live:
            raise _PlanRefused("the returned program takes other arguments")
        if len(returned.prepared_inputs) != len(returned.prepare.outputs):
            raise _PlanRefused("the returned program reads other tensors than are prepared")
        outputs = replace(
            returned.hot.outputs, dict(zip(returned.prepared_inputs, returned.prepare.outputs, strict=True))
        )
    if [n.types for n in outputs] != [n.types for n in original.outputs]:
        raise _PlanRefused("the returned program has results of other types")
    known = set(original.inputs)
    for node in topological(outputs):
        if node.op == "input" and node not in known:
            raise _PlanRefused(f"the returned program reads {node['name']!r}, which the original does not have")
    if returned.prepare is None and returned.hot.inputs != original.inputs:  # arguments are passed by position
        raise _PlanRefused("the returned program takes other arguments")
    return outputs


def _proved_rules(plan: Plan, ledger: Ledger, certificates: dict[str, Certificate]) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name, text in plan.rules.items():
        try:
            rule = parse(text, where="<plan>")
        except RuleError as error:
            raise _PlanRefused(f"rule {name} of the plan cannot be read: {error}") from error
        kept, proved = require_proved([rule], ledger)
        if not kept or rule.name != name:
            raise _PlanRefused(f"rule {name} of the plan is not proved")
        certificate = proved[name]
        if EXACTNESS.index(certificate.exactness) > EXACTNESS.index(plan.numerics):
            raise _PlanRefused(f"rule {name} is {certificate.exactness}, the plan says {plan.numerics}")
        why = unusable(rule, certificate)
        if why:
            raise _PlanRefused(f"rule {name} cannot be used: {why}")
        rules[name] = rule
        certificates[name] = certificate
    return rules


def _sides(number: int, step: RuleInstance, plan: Plan, rules: Mapping[str, Rule]) -> list[tuple[Node, Node]]:
    """Return both sides of a step; refused where it is no instance of its rule."""
    rule = rules.get(step.rule)
    if rule is None:
        raise _PlanRefused(f"step {number}: the plan has no rule {step.rule}")
    sizes = {(name, label): n for name, label, n in step.sizes}
    attributes = {(name, label): n for name, label, n in step.attributes}
    env = Env(rule, dict(step.labels), sizes, attributes, dict(step.parameters))
    terms = plan.terms.outputs
    if any(not 0 <= at < len(terms) for at, _ in step.tensors.values()):
        raise _PlanRefused(f"step {number} ({step.rule}): it names a term that is not there")
    tensors = {name: (terms[at], lay) for name, (at, lay) in step.tensors.items()}
    try:
        return sides(rule, env, tensors, step.metas, step.roots, step.dtype, step.carried)
    except NotAnInstance as error:
        raise _PlanRefused(f"step {number} ({step.rule}): {error}") from error
    except (SuperoptError, KeyError, ValueError, TypeError, IndexError) as error:
        raise _PlanRefused(f"step {number} ({step.rule}): {type(error).__name__}: {error}") from error


def _loop(number: int, step: LoopStep, plan: Plan, known: Set[Node]) -> tuple[list[tuple[Node, Node]], LoopProof]:
    """Return the results of a loop with those of a step that takes work out of it; refused where it is not proved."""
    where = f"step {number} of loops ({step.kind})"
    try:
        proof = prove_step(step, plan.numerics)
        before, after = results_of(step.loop), step.results()
    except LoopStepError as error:
        raise _PlanRefused(f"{where} is not proved: {error}") from error
    except (SuperoptError, KeyError, ValueError, TypeError, IndexError) as error:
        raise _PlanRefused(f"{where}: {type(error).__name__}: {error}") from error
    if any(node.op == "input" and node not in known for node in topological((*before, *after))):
        raise _PlanRefused(f"{where} reads an input that the original does not have")
    return list(zip(before, after, strict=True)), proof


def _same(found: Mapping[Node, IdRow], want: Sequence[Node], have: Sequence[Node]) -> bool:
    return all(np.array_equal(x, y) for a, b in zip(want, have, strict=True)
               for x, y in zip(found[a], found[b], strict=True))  # fmt: skip


class _SeenBits:
    """The set of labels that have occurred; it may have false positives, never false negatives."""

    def __init__(self) -> None:
        self._bits = np.zeros(1 << _SEEN_BITS, np.bool_)

    def add(self, row: IdRow) -> None:
        for ids in row:
            self._bits[self._places(ids)] = True

    def holds(self, row: IdRow) -> list[npt.NDArray[np.bool_]]:
        return [self._bits[self._places(ids)] for ids in row]

    @staticmethod
    def _places(ids: Ids) -> npt.NDArray[np.uint64]:
        return compact(ids) >> np.uint64(64 - _SEEN_BITS)


def _unexplained(
    labels: ElementLabels,
    order: Sequence[LabelTask],
    original: Graph,
    outputs: Sequence[Node],
    plan: Plan,
    steps: Sequence[Sequence[tuple[Node, Node]]],
) -> str:
    """Describe the first operation of the returned program whose elements occur nowhere else, and unused steps."""
    program, known = _SeenBits(), _SeenBits()
    mine = set(original.nodes())
    explained = mine | set(topological([side for pairs in steps for pair in pairs for side in pair]))

    def note(node: Node, row: IdRow) -> None:
        if node in mine:
            program.add(row)
        if node in explained:
            known.add(row)

    sweep(labels, order, note)
    lefts = {left for pairs in steps for left, _ in pairs}
    reached: set[Node] = set()
    loose: set[Node] = set()

    def look(node: Node, row: IdRow) -> None:
        if node in lefts and any(hits.any() for hits in program.holds(row)):
            reached.add(node)
        if node not in explained and not all(hits.all() for hits in known.holds(row)):
            loose.add(node)

    sweep(labels, order, look)
    nowhere = [
        f"{number} ({plan.instances[number].rule})"
        for number, pairs in enumerate(steps)
        if not any(left in reached for left, _ in pairs)
    ]
    hint = f"; steps that lead nowhere: {', '.join(nowhere)}" if nowhere else ""
    for node in topological(outputs):
        if node in loose:
            return f"no step gives {node!r} of the returned program{hint}"
    return f"the outputs of the returned program are not those of the original{hint}"


__all__ = ["Validation", "validate"]
