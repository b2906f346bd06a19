"""The plan of a returned program: the rule instances that lead from the original to it, as plain data.

An instance is a rule with a binding for everything that it leaves open: the axes of its roles with their sizes, its
attributes, the tensors of its variables, and the axes of its roots.  A tensor is the number of an output of `terms`, a
graph over the original's inputs, with the axes that it has there.  Both sides of the step follow from that.  Instances
are in the order in which they were found; nothing depends on it.  `bodies` are plans of their own, of bodies of control
flow.  `loops` are the steps that took work out of loops first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rewrites.match.labels import Layout
from superopt.errors import InputError
from superopt.files.reading import Allowance, field, typed
from superopt.ir.graph import Graph
from superopt.ir.loop_steps import LoopStep, read_step
from superopt.ir.text import parse_graph, print_graph

FORMAT = 2
_STEPS_OF_INSTANCE = 100  # steps of a file's allowance: about the tokens of an instance as text


@dataclass(frozen=True, slots=True)
class RuleInstance:
    """A rule at one place.

    Attributes:
        rule: name of the rule.
        labels: role -> its axes, as numbers.
        sizes, attributes: (name, axis, value) of every size token and attribute.
        parameters: free parameter -> value.
        tensors: variable -> number of a term, and the content of its axes: (axis, size) pairs, merged ones together.
        metas: meta-variable -> op and attributes.
        dtype: float dtype of the rule there.
        carried: precision and preferred_element_type of its products.
        roots: the content of the axes of each root.
    """

    rule: str
    labels: Mapping[str, tuple[int, ...]]
    sizes: tuple[tuple[str, int, int], ...]
    attributes: tuple[tuple[str, int, int], ...]
    parameters: Mapping[str, int]
    tensors: Mapping[str, tuple[int, Layout]]
    metas: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]]
    dtype: str
    carried: tuple[Any, Any]
    roots: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The derivation of a program from the original.

    Attributes:
        numerics: exact, real or range: the widest class of rules that was allowed.
        rules: name -> text of every rule used.
        terms: the tensors that variables of the instances are bound to.
        instances: the steps.
        bodies: plans of bodies of control flow.
        loops: loops with work taken out of them, before all other steps.
        note: the reason why there is no plan, where there is none (the original itself needs none).
    """

    numerics: str
    rules: Mapping[str, str]
    terms: Graph
    instances: tuple[RuleInstance, ...]
    bodies: tuple[BodyPlan, ...] = ()
    loops: tuple[LoopStep, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return one JSON-serialisable object."""
        return {
            "format": FORMAT,
            "numerics": self.numerics,
            "rules": dict(self.rules),
            "terms": print_graph(self.terms),
            "instances": [asdict(i) for i in self.instances],
            "bodies": [[print_graph(b.before), print_graph(b.after), b.plan.to_json()] for b in self.bodies],
            "loops": [step.to_json() for step in self.loops],
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A body of control flow before and after, and its plan."""

    before: Graph
    after: Graph
    plan: Plan


def read_plan(data: Any, allowance: Allowance | None = None) -> Plan:
    """Parse a plan that `to_json` wrote.

    Raises:
        InputError: it is none.
        FileLimitError: it asks for more than the allowance of its file.
    """
    with typed("it holds no plan of this version"):
        return _plan(data, allowance)


def _plan(data: Mapping[str, Any], allowance: Allowance | None) -> Plan:
    if field(data, "format", int) != FORMAT:
        raise InputError(f"it has format {data['format']}, this version reads {FORMAT}")
    if allowance is not None:
        allowance.spend(_STEPS_OF_INSTANCE * len(field(data, "instances", list)))
    return Plan(
        str(data["numerics"]),
        {str(k): str(v) for k, v in data["rules"].items()},
        parse_graph(data["terms"], allowance=allowance),
        tuple(_instance(i) for i in data["instances"]),
        tuple(
            BodyPlan(parse_graph(a, allowance=allowance), parse_graph(b, allowance=allowance), _plan(p, allowance))
            for a, b, p in data["bodies"]
        ),
        tuple(read_step(step, allowance) for step in data["loops"]),
        str(data["note"]),
    )


def _instance(data: Mapping[str, Any]) -> RuleInstance:
    return RuleInstance(
        rule=str(data["rule"]),
        labels={str(k): tuple(map(int, v)) for k, v in data["labels"].items()},
        sizes=tuple((str(a), int(b), int(c)) for a, b, c in data["sizes"]),
        attributes=tuple((str(a), int(b), int(c)) for a, b, c in data["attributes"]),
        parameters={str(k): int(v) for k, v in data["parameters"].items()},
        tensors={str(k): (int(n), _layout(lay)) for k, (n, lay) in data["tensors"].items()},
        metas={str(k): (str(op), tuple((str(n), _value(v)) for n, v in at)) for k, (op, at) in data["metas"].items()},
        dtype=str(data["dtype"]),
        carried=(data["carried"][0], data["carried"][1]),
        roots=tuple(_layout(lay) for lay in data["roots"]),
    )


def _layout(data: Any) -> Layout:
    return tuple(tuple((int(label), int(n)) for label, n in axis) for axis in data)


def _value(x: Any) -> Any:
    return tuple(map(_value, x)) if isinstance(x, list) else x


def empty_plan(graph: Graph, numerics: str = "real", note: str = "") -> Plan:
    """Return the plan without steps."""
    return Plan(numerics, {}, Graph(graph.inputs, (), graph.constants), (), note=note)


__all__ = ["BodyPlan", "Layout", "Plan", "RuleInstance", "empty_plan", "read_plan"]
