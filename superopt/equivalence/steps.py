"""Discontinuous operations (steps): their operands must be proved equal in class exact.

Two programs are first proved equal as far as exact laws go.  A value that a step still reads then becomes a fresh
argument, about which nothing is known, and the laws of wider classes are tried on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.equivalence.cuts import PairProof, UsableRules, prove
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.ops.reduction import ARG
from superopt.ir.ops.table import CONTROL
from superopt.ir.scalar import PREDICATES, SCALARS
from superopt.ir.types import FLOATS

STEPS = CONTROL | PREDICATES | ARG.keys() | {"round", "nextafter"} | {n for n, fn in SCALARS.items() if fn.steps}


def reads_floats(node: Node) -> bool:
    """Whether an operation has a float among its operands."""
    return any(t.dtype in FLOATS for x in node.inputs for t in x.types)


def _step(node: Node) -> bool:
    """Whether an operation is discontinuous in a float operand."""
    integer = node.op in ("convert_element_type", "bitcast_convert_type") and node.dtype not in FLOATS
    return reads_floats(node) and (node.op in STEPS or integer)


def prove_by_steps(
    first: Graph, second: Graph, arrays: Mapping[str, np.ndarray], usable: UsableRules, end_s: float
) -> PairProof:
    """`superopt.equivalence.cuts.prove`, with the operands of steps replaced in class exact alone."""
    steps = [n for n in topological((*first.outputs, *second.outputs)) if _step(n)]
    if usable.numerics == "exact" or all(_argument(x) for n in steps for x in n.inputs):
        return prove(first, second, arrays, usable, end_s)
    begun = prove(first, second, arrays, usable.exact(), end_s)
    apart: dict[Node, Node] = {}
    done = _apart(topological((*first.outputs, *begun.outputs)), apart)
    both = [
        Graph((*graph.inputs, *apart.values()), tuple(done[n] for n in outputs))
        for graph, outputs in ((first, first.outputs), (second, begun.outputs))
    ]
    verdict = prove(both[0], both[1], arrays, usable, end_s)
    outputs = tuple(
        own if have is want else back
        for own, have, want, back in zip(first.outputs, verdict.outputs, both[0].outputs, begun.outputs, strict=True)
    )
    now = {n: done.get(x, x) for n, x in begun.image.items()}
    return replace(
        verdict,
        outputs=outputs,
        image={n: verdict.image.get(x, x) for n, x in now.items()},
        rules=begun.rules | verdict.rules,
        assumptions=begun.assumptions | verdict.assumptions,
        folded=begun.folded | verdict.folded,
    )


def _argument(node: Node) -> bool:
    """Whether a node is an argument of the call, a literal, not a float, or has several results."""
    given = node.op == "literal" or (node.op == "input" and not node["frozen"])
    if len(node.types) > 1:  # the projections read it, and its own operands are handled apart
        return True
    return given or not any(t.dtype in FLOATS for t in node.types)


def _apart(nodes: Sequence[Node], apart: dict[Node, Node]) -> dict[Node, Node]:
    """Images of nodes, operands first, in which steps read fresh arguments; `apart` maps operands to these."""
    done: dict[Node, Node] = {}
    for node in nodes:
        operands = [done[x] for x in node.inputs]
        if _step(node):
            for i, x in enumerate(node.inputs):
                if not _argument(x):
                    operands[i] = apart.setdefault(x, make_input(f"read_by_a_step{len(apart)}", x.shape, x.dtype))
        done[node] = mk(node.op, *operands, **dict(node.attrs)) if node.inputs else node
    return done
