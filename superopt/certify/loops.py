"""Proofs of loops with work taken out of them: each step holds at its place, for every trip.

A step replaces values of a body by what comes from outside (`superopt.ir.loops`).  Where the outside is computed for
all trips at once, its row at a symbolic trip is proved equal to the body's value there.  Where a value of the body is
replaced by another one of the same trip, those two are proved equal.  The rest is the meaning of a loop: bodies that
are equal for every carry and trip make equal loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.index import Poly, symbol
from superopt.ir.inline import STEPS
from superopt.ir.loop_steps import LoopStep
from superopt.ir.loops import (
    LoopParts,
    adds_row,
    counters,
    next_product,
    powers,
    projections,
    row_of,
    sums,
    tail_of,
)
from superopt.ir.program import replace
from superopt.ir.types import INTEGERS
from verifier.rules.prove import FINITE
from verifier.statements.prove import Pair, Proof, Stop, prove_elsewhere
from verifier.verdict import EXACTNESS


@dataclass(frozen=True, slots=True)
class LoopProof:
    """The class in which a step keeps the values of its loop, and what it assumes."""

    exactness: str
    assumptions: tuple[str, ...] = ()


class LoopStepError(SuperoptError):
    """A step is not proved to keep the values of its loop; the message says why."""


def prove_step(step: LoopStep, numerics: str = "real") -> LoopProof:
    """Prove that a step keeps the values of its loop, in a class no wider than `numerics`.

    Raises:
        LoopStepError: it is not proved.
    """
    if step.kind == "unrolled":
        if LoopParts(step.loop).length > STEPS:  # of a file: its trips would be written out
            raise LoopStepError(f"a loop of more than {STEPS} trips is not unrolled")
        return LoopProof("exact")
    if step.kind == "sunk":
        if not tail_of(step.loop, step.number)[0]:
            raise LoopStepError(f"result {step.number} has no end of its own")
        return LoopProof("exact")
    if step.kind == "entered":
        if step.number not in range(step.loop["num_consts"]):
            raise LoopStepError(f"operand {step.number} is not the same each trip")
        return LoopProof("exact")
    if step.kind in _CARRIES:
        return _prove_carry(step, numerics)
    proofs: list[LoopProof] = []
    try:
        if step.kind == "projected":
            proofs.append(_prove_projected(step))
        for value, instead in zip(step.values, step.instead, strict=True):
            proofs.append(_prove_value(step, value, instead))
    except Stop as stop:
        raise LoopStepError(stop.cause) from stop
    widest = max((p.exactness for p in proofs), key=EXACTNESS.index, default="exact")
    if EXACTNESS.index(widest) > EXACTNESS.index(numerics):
        raise LoopStepError(f"it holds in the class {widest} alone")
    return LoopProof(widest, tuple(dict.fromkeys(a for p in proofs for a in p.assumptions)))


_CARRIES = {"counted": counters, "summed": sums, "powered": powers}
"""Kinds of steps about one carry -> the carries of a loop that they are for."""


def _prove_carry(step: LoopStep, numerics: str) -> LoopProof:
    """The proof of a carry that is counted, summed or powered, which its form is."""
    fits = step.number in _CARRIES[step.kind](step.loop)
    if not fits or (step.kind == "summed" and not adds_row(step.loop, step.number)):
        raise LoopStepError(f"carry {step.number} is not {step.kind}")
    if step.kind == "counted" or step.loop.types[step.number].dtype in INTEGERS:
        return LoopProof("exact")
    if numerics == "exact":
        raise LoopStepError("sums and products have another order")
    return LoopProof("real", (FINITE,))


def _prove_projected(step: LoopStep) -> LoopProof:
    """Prove that the product of the next carry with a matrix is the next of the products.

    Raises:
        LoopStepError, Stop: it is not.
    """
    seen = projections(step.loop).get(step.number)
    if seen is None:
        raise LoopStepError(f"carry {step.number} is not projected")
    parts = LoopParts(step.loop)
    carry, after = parts.split(parts.body.inputs)[1][step.number], parts.body.outputs[step.number]
    of_next = mk(seen.op, *[after if x is carry else x for x in seen.inputs], **dict(seen.attrs))
    inputs = parts.body.inputs
    return _equal(Graph(inputs, (of_next,)), Graph(inputs, (next_product(after, carry, seen),)))


def _prove_value(step: LoopStep, value: Node, instead: Node) -> LoopProof:
    """Prove that a value and what comes in its place are equal, on every trip.

    Raises:
        LoopStepError, Stop: they are not.
    """
    parts = LoopParts(step.loop)
    if value not in parts.body.nodes():
        raise LoopStepError("a value is not of the loop's body")
    if step.kind == "body":
        return _equal(Graph(parts.body.inputs, (value,)), Graph(parts.body.inputs, (instead,)))
    _, carries, rows = parts.split(parts.body.inputs)
    operands, trip = parts.operands(), _trip(parts.length) - 1
    below = topological((value,))
    if any(x in carries for x in below):
        raise LoopStepError("a hoisted value depends on a carry")
    varies = any(x in rows for x in below)
    own = {x: row_of(operands[x], trip) if x in rows else operands[x] for x in below if x.op == "input"}
    left, right = replace((value,), own)[0], row_of(instead, trip) if varies else instead
    if left is right:
        return LoopProof("exact")
    return _equal(*_cut_at(step, (left, right)), parts.length if varies else None)


_TRIP = "trip"


def _trip(trips: int) -> Poly:
    """The number of a trip, counted from 1: sizes in a proof are positive."""
    return symbol(_TRIP, 1, trips)


def _cut_at(step: LoopStep, sides: tuple[Node, Node]) -> tuple[Graph, Graph]:
    """Both sides over inputs in place of the operands of the loop that the body reads, whatever they are."""
    named = {x: make_input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(dict.fromkeys(step.loop.inputs))}
    inputs = tuple(named.values())
    return Graph(inputs, replace((sides[0],), named)), Graph(inputs, replace((sides[1],), named))


def _equal(left: Graph, right: Graph, trips: int | None = None) -> LoopProof:
    """Prove two graphs equal, at each of so many trips."""
    sizes = () if trips is None else (_TRIP,)
    premises = () if trips is None else (trips - _trip(trips),)
    domain, _ = prove_elsewhere(Pair(left, right, sizes, 1, premises), Proof())
    return LoopProof(domain.exactness, domain.assumptions)
