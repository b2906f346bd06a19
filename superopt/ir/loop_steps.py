"""Steps that take work out of loops, as data: what is replaced in a body, and by what.

`superopt.ir.loops` has the loop after each kind of step; `superopt.certify.loops` proves that a step keeps its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.files.reading import Allowance
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.loops import counted, entered, hoisted, powered, projected, results_of, summed, sunk, unrolled
from superopt.ir.program import replace
from superopt.ir.text import parse_graph, print_graph

LOOP_STEPS = ("counted", "entered", "body", "hoisted", "sunk", "summed", "powered", "projected", "unrolled")


@dataclass(frozen=True, slots=True)
class LoopStep:
    """A loop with less work in its body.

    Attributes:
        kind: one of `LOOP_STEPS`.
        inputs: the inputs of the program.
        loop: the loop, over these inputs.
        values: values of its body.
        instead: what comes in their place: of all trips, over the program's inputs, where they are hoisted; of the
            same trip, over the body's inputs, where the body itself changes.
        number: the carry that is counted, summed, powered or projected; the result that is sunk; the operand that is
            entered.
    """

    kind: str
    inputs: tuple[Node, ...]
    loop: Node
    values: tuple[Node, ...] = ()
    instead: tuple[Node, ...] = ()
    number: int = 0

    def results(self) -> tuple[Node, ...]:
        """The nodes that give the loop's results after the step."""
        if self.kind == "counted":
            return counted(self.loop, self.number)
        if self.kind == "entered":
            return entered(self.loop, self.number)
        if self.kind == "summed":
            return summed(self.loop, self.number)
        if self.kind == "powered":
            return powered(self.loop, self.number)
        if self.kind == "projected":
            return projected(self.loop, self.number)
        if self.kind == "sunk":
            return sunk(self.loop, self.number)
        if self.kind == "unrolled":
            return unrolled(self.loop)
        if self.kind == "hoisted":
            return hoisted(self.loop, self.values, self.instead)
        return _with_body(self.loop, dict(zip(self.values, self.instead, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Return one JSON-serialisable object."""
        body = self.loop["body"]
        over = body.inputs if self.kind == "body" else self.inputs
        return {
            "kind": self.kind,
            "loop": print_graph(Graph(self.inputs, results_of(self.loop))),
            "values": print_graph(Graph(body.inputs, self.values)),
            "instead": print_graph(Graph(over, self.instead)),
            "number": self.number,
        }


def read_step(data: Mapping[str, Any], allowance: Allowance | None = None) -> LoopStep:
    """Parse a step that `to_json` wrote.

    Raises:
        InputError: it is none.
    """
    graph = parse_graph(data["loop"], allowance=allowance)
    loops = {x.inputs[0] if x.op == "result" else x for x in graph.outputs}
    loop = next(iter(loops), None)
    if len(loops) != 1 or loop is None or loop.op != "scan" or results_of(loop) != graph.outputs:
        raise InputError("a step of loops is about something else than a loop")
    if data["kind"] not in LOOP_STEPS:
        raise InputError(f"there is no step {data['kind']!r} of loops")
    values = parse_graph(data["values"], allowance=allowance)
    instead = parse_graph(data["instead"], allowance=allowance)
    if values.inputs != loop["body"].inputs or len(values.outputs) != len(instead.outputs):
        raise InputError("the values of a step are not those of its loop")
    return LoopStep(str(data["kind"]), graph.inputs, loop, values.outputs, instead.outputs, int(data["number"]))


def _with_body(loop: Node, images: Mapping[Node, Node]) -> tuple[Node, ...]:
    body: Graph = loop["body"]
    changed = Graph(body.inputs, replace(body.outputs, images))
    return results_of(mk(loop.op, *loop.inputs, **{**dict(loop.attrs), "body": changed}))
