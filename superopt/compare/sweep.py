"""Two programs over symbolic sizes proved equal node by node.

Nodes are hash-consed, so what both programs compute alike is one node from the start.  Beyond that the second program
is walked from its inputs.  Values at some small sizes say which node of the first program a node may be equal to; the
prover of statements decides it (`verifier.statements.prove`), with values that both programs have as inputs of their
own (cuts): what holds for all values of the cuts holds for those that occur.  A proved node of the second program is
replaced by that of the first, so neither the values nor the choice of cuts need be trusted.

What holds of real numbers, or where the left side is defined, is said of numbers alone.  A step (a comparison, rounding
to integers) makes a plain value of what is none and is far off for what is near, so what a step reads is replaced in
class exact alone, and a step behind a cut that may be no number is proved in class exact alone.  The prover itself
says of a step that it sees as a whole what more is known.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from superopt.backends.xla import to_jax
from superopt.certify.library import ledger_of, proved_library
from superopt.compare.constants import MOVES
from superopt.compare.cuts import prove
from superopt.compare.refute import inputs, widened
from superopt.compare.sharing import differing_types, share
from superopt.compare.verdict import folding_text
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.index import Symbol
from superopt.ir.ops.table import CONTRACTIONS, CONTROL, PARTIAL, REDUCTIONS, WINDOWS
from superopt.ir.program import map_nodes
from superopt.ir.resize import resize
from superopt.ir.scalar import SCALARS
from superopt.ir.types import FLOATS
from verifier.equal.equality import DEFINED, Proof, Stop
from verifier.rules.process import processor_s
from verifier.statements.prove import SMALL, Pair, prove_elsewhere
from verifier.verdict import EXACTNESS, UNSUPPORTED, ValidityDomain

if TYPE_CHECKING:
    from superopt.store import Store

_TRIED = 3  # nodes of the first program with the values of one of the second's: what is equal to one is to all
_MOST = 60  # nodes of both sides behind the cuts that are given to the prover at once
_NEAR = 1e-4  # of values, relative to the largest: stored tensors folded in the type of the model differ by less
_STEPS = CONTROL | {"round", "nextafter"} | {name for name, fn in SCALARS.items() if fn.steps}
_HEAVY = CONTRACTIONS | REDUCTIONS | WINDOWS


@dataclass(slots=True)
class Swept:
    """What was proved of the second program.

    Attributes:
        outputs: of the second program, what is proved replaced by nodes of the first.
        proved: numbers of those that are the first's.
        lowest: sizes from which on it holds.
        exactness: the widest class of what was used.
        assumptions: of the proofs.
        stuck: the first node that nothing in the first program is proved equal to, and why.
    """

    outputs: tuple[Node, ...]
    lowest: int
    proved: tuple[int, ...] = ()
    exactness: str = "exact"
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    stuck: tuple[Node, str] | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored tensors of either program that are taken to be expressions of the other's.

    Attributes:
        images: input node -> expression.
        texts: what is assumed, in words.
        apart: the largest distance; 0: bit by bit.
    """

    images: Mapping[Node, Node] = field(default_factory=dict[Node, Node])
    texts: tuple[str, ...] = ()
    apart: float = 0.0


def stored_alike(pair: Pair, graphs: Sequence[Graph], numerics: str, store: Store | None, end_s: float) -> Stored:
    """What stored tensors of one program are in the other's, as the comparison at some sizes finds it.

    Args:
        pair: both programs over symbolic sizes.
        graphs: both programs at the sizes.
        numerics: the widest class of rules that may be used.
        store: of certificates.
        end_s: processor time (`verifier.rules.process.processor_s`) after which nothing further is looked for.
    """
    own = [
        {_content(n, graph.constants[n["name"]]): n for n in graph.inputs if n["name"] in graph.constants}
        for graph in (pair.left, pair.right)
    ]
    if own[0].keys() == own[1].keys() or differing_types(*graphs):
        return Stored()
    shared = share(*graphs)
    library = proved_library(store, numerics=numerics)
    proof = prove(
        shared.first, shared.second, shared.arrays, library.rules, library.certificates, ledger_of(store), numerics,
        end_s,
    )  # fmt: skip
    nodes = own[0] | own[1]
    frozen = {n for graph in (shared.first, shared.second) for n in graph.inputs if n["frozen"]}
    given = {n: nodes[key] for n in frozen if (key := _content(n, shared.arrays[n["name"]])) in nodes}
    images: dict[Node, Node] = {}
    folds = [f for f in proof.folded.values() if f.stored in given and _inputs(f.term) <= given.keys()]
    for fold in folds:
        images[given[fold.stored]] = map_nodes([fold.term], given=given)[fold.term]
    return Stored(images, tuple(folding_text(f, shared) for f in folds), max((f.apart for f in folds), default=0.0))


def _inputs(term: Node) -> set[Node]:
    return {n for n in topological([term]) if n.op == "input"}


def _content(node: Node, array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return node.dtype, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def sweep(pair: Pair, sizes: Mapping[str, int], numerics: str, end_s: float, stored: Stored = Stored()) -> Swept:
    """Replace what the second program computes by nodes of the first, as far as that is proved.

    Args:
        pair: both programs.
        sizes: at which values are looked at.
        numerics: the widest class of a proof that counts.
        end_s: processor time (`verifier.rules.process.processor_s`) after which no further proof is begun.
        stored: stored tensors that are taken for expressions.
    """
    if stored.images:
        pair = replace(pair, left=_with(pair.left, pair.right, stored), right=_with(pair.right, pair.left, stored))
    first, second = pair.left, pair.right
    values = _values(pair, sizes)
    known = dict.fromkeys(first.nodes())
    done = Swept(second.outputs, pair.lowest)
    image: dict[Node, Node] = {}
    reasons: dict[Node, str] = {}
    read = _read_by_steps((*first.outputs, *second.outputs))
    for node in topological(second.outputs):
        fresh = map_nodes([node], given=image)[node]
        image[node] = fresh
        if fresh in known or node.op == "literal":
            continue
        reasons[fresh] = "nothing in the first program has its values"
        for other in _alike(node, first, values):
            plain = node not in read and other not in read
            found = _equal(pair, done, other, fresh, numerics, plain) if processor_s() < end_s else "time is up"
            if isinstance(found, ValidityDomain):
                image[node] = other
                done.exactness = max(done.exactness, found.exactness, key=EXACTNESS.index)
                done.assumptions |= dict.fromkeys(found.assumptions)
                break
            reasons[fresh] = found
    done.outputs = tuple(image[n] for n in second.outputs)
    left = [n for n, want in zip(done.outputs, first.outputs, strict=True) if n is not want]
    stuck = [n for n in topological(left) if n in reasons] if left else []
    done.stuck = next(((n, reasons[n]) for n in stuck), None)
    why = _sized(replace(pair, lowest=done.lowest), [n for n in done.outputs if n in known])
    if why:
        done.outputs, done.stuck = second.outputs, (second.outputs[0], why)
    done.proved = tuple(i for i, n in enumerate(done.outputs) if n is first.outputs[i])
    return done


def _with(graph: Graph, other: Graph, stored: Stored) -> Graph:
    """A program with those of its stored tensors that the other has not as expressions."""
    theirs = set(other.inputs)
    given = {n: x for n, x in stored.images.items() if n not in theirs}
    done = map_nodes(graph.outputs, given=given)
    constants = {**other.constants, **graph.constants}
    return Graph(tuple(dict.fromkeys((*graph.inputs, *other.inputs))), tuple(done[n] for n in graph.outputs), constants)


def _sized(pair: Pair, outputs: Sequence[Node]) -> str:
    """Why nodes behind some outputs may have no shape, which the proofs behind cuts take for granted; else empty."""
    shapes = dict.fromkeys(n.shape for n in topological(outputs) if len(n.types) == 1)
    zero = literal(0.0, "float32")
    roots = tuple(mk("broadcast_in_dim", zero, shape=shape, broadcast_dimensions=()) for shape in shapes)
    try:
        prove_elsewhere(replace(pair, left=Graph((), roots), right=Graph((), roots)), Proof())
    except Stop as stop:
        return stop.cause
    return ""


def _small(graph: Graph) -> dict[str, Any]:
    """The stored tensors that the prover writes out."""
    return {name: x for name, x in graph.constants.items() if x.size <= SMALL}


def _values(pair: Pair, sizes: Mapping[str, int]) -> dict[Node, np.ndarray]:
    """Values of all nodes with one result, on random inputs."""
    at = {Symbol(name, pair.lowest): n for name, n in sizes.items()}
    nodes = [n for n in topological((*pair.left.outputs, *pair.right.outputs)) if len(n.types) == 1]
    given = tuple(dict.fromkeys((*pair.left.inputs, *pair.right.inputs)))
    arrays = dict(pair.left.constants) | dict(pair.right.constants)
    try:
        graph = resize(Graph(given, tuple(nodes)), at)
        live = [n for n in graph.inputs if n["name"] not in arrays]
        kinds = [(tuple(int(d) for d in n.shape), n.dtype) for n in live]  # pyright: ignore[reportArgumentType]
        drawn = {n["name"]: x for n, x in zip(live, inputs(kinds, 0, 1.0), strict=True)}
        taken = [np.asarray((drawn | arrays)[n["name"]]) for n in graph.inputs]
        wide = [x.astype(np.float64) if str(x.dtype) in FLOATS else x for x in taken]
        with jax.enable_x64(True):
            found = jax.jit(to_jax(widened(graph)))(*wide)
    except (SuperoptError, TypeError, ValueError):  # without values nothing is looked for
        return {}
    return dict(zip(nodes, map(np.asarray, found), strict=True))


def _alike(node: Node, first: Graph, values: Mapping[Node, np.ndarray]) -> list[Node]:
    """Nodes of the first program with the type and the values of one of the second's, those of its op first."""
    have = values.get(node)
    if have is None:
        return []
    found: list[Node] = []
    for other in first.nodes():
        value = values.get(other)
        if value is None or other.types != node.types or value.shape != have.shape:
            continue
        if value.dtype.kind == "f":
            size = 1.0 + float(np.max(np.abs(have[np.isfinite(have)]), initial=0.0))
            close = np.allclose(value, have, rtol=0.0, atol=_NEAR * size, equal_nan=True)
        else:
            close = np.array_equal(value, have)
        if close:
            found.append(other)
    return sorted(found, key=lambda n: n.op != node.op)[:_TRIED]


def _steps(node: Node) -> bool:
    """Does an operation make of floats what is none, or far results of near ones?"""
    if not any(t.dtype in FLOATS for x in node.inputs for t in x.types):
        return False
    return node.op in _STEPS or any(t.dtype not in FLOATS for t in node.types)


def _read_by_steps(outputs: Sequence[Node]) -> set[Node]:
    """What is computed for a step."""
    return set(topological([x for n in topological(outputs) if _steps(n) for x in n.inputs]))


def _equal(pair: Pair, done: Swept, one: Node, two: Node, numerics: str, plain: bool) -> ValidityDomain | str:
    """The proof that two nodes are equal, or why there is none; `plain`: no step reads them."""
    why = "it is too far from what both programs have"
    seen: set[Graph] = set()
    for through in (frozenset[str](), MOVES, None):
        left, right, partial = _behind_cuts(pair, one, two, through)
        size = len(left.nodes()) + len(right.nodes())
        if left in seen or size > _MOST:
            continue
        seen.add(left)
        for lowest in dict.fromkeys((done.lowest, 1)):
            try:
                domain, _ = prove_elsewhere(replace(pair, left=left, right=right, lowest=lowest), Proof())
            except Stop as stop:
                why = stop.cause
                if stop.status == UNSUPPORTED:
                    break
                continue
            if EXACTNESS.index(domain.exactness) > EXACTNESS.index(numerics):
                why = f"proved as {domain.exactness} alone"
                continue
            stepped = not plain or (partial and any(map(_steps, (*left.nodes(), *right.nodes()))))
            if stepped and (domain.exactness != "exact" or any(a.startswith(DEFINED) for a in domain.assumptions)):
                why = "proved of numbers alone, and a comparison or the like asks for more"
                continue
            done.lowest = lowest
            return domain
    return why


def _behind_cuts(pair: Pair, one: Node, two: Node, through: frozenset[str] | None) -> tuple[Graph, Graph, bool]:
    """Two nodes over inputs in place of values that both have; those that some operations make are looked through.

    Last: may a value that an input stands for be no number where the arguments are?
    """
    both = set(topological([one])) & set(topological([two]))
    taken = {n["name"] for n in (*pair.left.inputs, *pair.right.inputs)}
    names = (name for i in itertools.count() if (name := f"cut{i}") not in taken)
    live: set[Node] = set()  # what reads an argument
    for n in topological([one, two]):
        if (n.op == "input" and not n["frozen"]) or any(x in live for x in n.inputs):
            live.add(n)
    cuts: dict[Node, Node] = {}
    seen: set[Node] = set()
    todo = [one, two]
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        passes = x.op in ("input", *through) if through is not None else x.op not in _HEAVY
        if x in both and x in live and not passes and len(x.types) == 1:
            cuts[x] = make_input(next(names), x.shape, x.dtype)
        else:
            todo += x.inputs
    done = map_nodes([one, two], given=cuts)
    stored = {**_small(pair.left), **_small(pair.right)}
    roots = (done[one], done[two])
    kept = tuple(n for n in topological(roots) if n.op == "input")
    constants = {n["name"]: stored[n["name"]] for n in kept if n["name"] in stored}
    partial = any(n.op in PARTIAL and n.dtype in FLOATS for n in topological(cuts))
    return Graph(kept, roots[:1], constants), Graph(kept, roots[1:], constants), partial


__all__ = ["Stored", "Swept", "stored_alike", "sweep"]
