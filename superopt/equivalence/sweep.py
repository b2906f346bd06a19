"""Two programs over symbolic sizes proved equal node by node.

Nodes are hash-consed, so equal subprograms are one node from the start.  For the rest, the second program is walked
from its inputs.  Values at some small sizes suggest which node of the first program a node may equal.  The prover of
statements decides it (`verifier.statements.prove`), with values that both programs have as fresh inputs (cuts): a
statement that holds for all values of the cuts holds for those that occur.  A proved node of the second program is
replaced by that of the first, so neither the values nor the choice of cuts need be trusted.

Equality over the reals, or where the left side is defined, is claimed for numbers alone.  A step (a comparison,
rounding to integers) turns NaN and infinities into ordinary values and is discontinuous.  So operands of steps are
replaced in class exact alone, and a step behind a cut that may be no number is proved in class exact alone.  For steps
inside a statement the prover itself knows more.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from superopt.backends.xla import to_jax
from superopt.equivalence.constants import MOVES
from superopt.equivalence.cuts import UsableRules, prove
from superopt.equivalence.refute import EQUAL, inputs, widened
from superopt.equivalence.sharing import differing_types, share
from superopt.equivalence.steps import STEPS, reads_floats
from superopt.equivalence.verdict import folding_text
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.index import Symbol
from superopt.ir.ops.table import CONTRACTIONS, PARTIAL, REDUCTIONS, WINDOWS
from superopt.ir.program import map_nodes
from superopt.ir.resize import resize
from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import FLOATS
from superopt.machine.jitting import jit_quickly
from verifier.equal.equality import DEFINED, Proof, Stop
from verifier.rules.process import processor_s
from verifier.statements.prove import SMALL, Pair, prove_elsewhere
from verifier.verdict import EXACTNESS, UNSUPPORTED, ValidityDomain

if TYPE_CHECKING:
    from superopt.store import Store

_TRIED = 3  # candidates in the first program with equal values: if one is equal, all are
_MOST = 60  # nodes of both sides behind the cuts in one question to the prover
_RELATED = 12  # operations between shared values of which one is a function of the other: a mean has 4
_NEAR = 1e-4  # relative to the largest value; stored tensors folded in the model's dtype differ by less
_ROUNDED = 1e-6  # relative effect of constants rounded to float32: a few of its units
_TOLD = 3  # constants of either side that a reason lists
_NOTHING = "nothing in the first program has its values"
_PLACES = frozenset(["argmax", "argmin"])  # steps that the prover compares by laws of real numbers
_HEAVY = CONTRACTIONS | REDUCTIONS | WINDOWS


@dataclass(slots=True)
class Swept:
    """Result of a sweep: the outputs of the second program, with proved nodes replaced.

    Attributes:
        outputs: outputs of the second program, with proved parts replaced by nodes of the first.
        proved: numbers of the outputs that became the first's.
        lowest: the least sizes for which the proofs hold.
        exactness: the widest class of equality that was used.
        assumptions: assumptions of the proofs.
        stuck: the first node without a proved counterpart in the first program, and the reason.
    """

    outputs: tuple[Node, ...]
    lowest: int
    proved: tuple[int, ...] = ()
    exactness: str = "exact"
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    stuck: tuple[Node, str] | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored tensors of either program that are assumed equal to expressions of the other's.

    Attributes:
        images: input node, or a number -> expression.
        texts: the assumptions, in words.
        apart: the largest distance; 0: bit by bit.
    """

    images: Mapping[Node, Node] = field(default_factory=dict[Node, Node])
    texts: tuple[str, ...] = ()
    apart: float = 0.0

    def beside(self, other: Stored) -> Stored:
        """The assumptions of both together."""
        return Stored({**self.images, **other.images}, self.texts + other.texts, max(self.apart, other.apart))


def stored_alike(pair: Pair, graphs: Sequence[Graph], numerics: str, store: Store | None, end_s: float) -> Stored:
    """Stored tensors of one program that the comparison at fixed sizes finds equal to expressions of the other's.

    Args:
        pair: both programs over symbolic sizes.
        graphs: both programs at fixed sizes.
        numerics: the widest class of rules that may be used.
        store: the store to look up certificates in.
        end_s: processor time (`verifier.rules.process.processor_s`) after which no further match is sought.
    """
    own = [
        {_content(n, graph.constants[n["name"]]): n for n in graph.inputs if n["name"] in graph.constants}
        for graph in (pair.left, pair.right)
    ]
    if own[0].keys() == own[1].keys() or differing_types(*graphs):
        return Stored()
    shared = share(*graphs)
    proof = prove(shared.first, shared.second, shared.arrays, UsableRules.of(store, numerics), end_s)
    nodes = own[0] | own[1]
    frozen = {n for graph in (shared.first, shared.second) for n in graph.inputs if n["frozen"]}
    given = {n: nodes[key] for n in frozen if (key := _content(n, shared.arrays[n["name"]])) in nodes}
    images: dict[Node, Node] = {}
    folds = [f for f in proof.folded.values() if f.stored in given and _inputs(f.term) <= given.keys()]
    for fold in folds:
        images[given[fold.stored]] = map_nodes([fold.term], given=given)[fold.term]
    return Stored(images, tuple(folding_text(f, shared) for f in folds), max((f.apart for f in folds), default=0.0))


def reciprocals(pair: Pair) -> Stored:
    """Numbers of the second program that are reciprocals of the first one's numbers, rounded in their own dtype.

    An optimiser multiplies by what the exporter divides by.
    """
    mine, theirs = (
        {
            n: np.asarray(n["value"], numpy_dtype(n.dtype))
            for n in topological(graph.outputs)
            if n.op == "literal" and n.dtype in FLOATS
        }
        for graph in (pair.left, pair.right)
    )
    images: dict[Node, Node] = {}
    texts: list[str] = []
    worst = 0.0
    for one, two in itertools.product(mine.keys() - theirs.keys(), theirs.keys() - mine.keys()):
        for stored, of in ((two, one), (one, two)):
            by = (mine | theirs)[of]
            if stored.dtype != of.dtype or not by or not np.isfinite(by):
                continue
            image = np.divide(np.ones((), by.dtype), by)
            if image != (mine | theirs)[stored] or not image or stored in images or one in images or two in images:
                continue
            apart = float(abs(Fraction(float(image)) * Fraction(float(by)) - 1))
            images[stored] = mk("div", literal(1.0, stored.dtype), of)
            worst = max(worst, apart)
            texts.append(f"the number {_number(stored)} is 1 / {_number(of)}, to within {apart:.2g}")
    return Stored(images, tuple(texts), worst)


def _number(node: Node) -> str:
    """A number in as few digits as identify it in its dtype."""
    return str(np.asarray(node["value"], numpy_dtype(node.dtype)))


def _inputs(term: Node) -> set[Node]:
    return {n for n in topological([term]) if n.op == "input"}


def _content(node: Node, array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return node.dtype, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def sweep(
    pair: Pair,
    sizes: Mapping[str, int],
    numerics: str,
    end_s: float,
    stored: Stored = Stored(),
    *,
    by_values: bool = True,
) -> Swept:
    """Replace values of the second program by nodes of the first, as far as their equality is proved.

    Args:
        pair: both programs.
        sizes: sizes at which values are compared.
        numerics: the widest class of a proof that counts.
        end_s: processor time (`verifier.rules.process.processor_s`) after which no further proof is begun.
        stored: stored tensors that are assumed equal to expressions.
        by_values: try only nodes with the same values, not all of one type; the proofs must not depend on it.
    """
    if stored.images:
        pair = replace(pair, left=_with(pair.left, pair.right, stored), right=_with(pair.right, pair.left, stored))
    first, second = pair.left, pair.right
    values = _values(pair, sizes) if by_values else None
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
        reasons[fresh] = _NOTHING
        for other in _alike(node, first, values):
            plain = node not in read and other not in read
            status = _equal(pair, done, other, fresh, numerics, plain) if processor_s() < end_s else "time is up"
            if isinstance(status, ValidityDomain):
                image[node] = other
                done.exactness = max(done.exactness, status.exactness, key=EXACTNESS.index)
                done.assumptions |= dict.fromkeys(status.assumptions)
                break
            if values is None or (reasons[fresh] == _NOTHING and _apart(values[node], values[other]) <= _ROUNDED):
                reasons[fresh] = "; ".join(filter(None, (status, _gap(node, other, fresh, values))))
    done.outputs = tuple(image[n] for n in second.outputs)
    left = [n for n, want in zip(done.outputs, first.outputs, strict=True) if n is not want]
    done.stuck = next(((n, reasons[n]) for n in _stuck(left, reasons)), None)
    why = _sized(replace(pair, lowest=done.lowest), [n for n in done.outputs if n in known])
    if why:  # nothing is proved then, not even where both programs have one graph
        done.outputs, done.stuck = second.outputs, (second.outputs[0], why)
        return done
    done.proved = tuple(i for i, n in enumerate(done.outputs) if n is first.outputs[i])
    return done


def _stuck(left: Sequence[Node], reasons: Mapping[Node, str]) -> list[Node]:
    """Unproved nodes of open outputs, the most telling first.

    A constant is reported through its reader.  Where the values agree again further on, the node in between is
    reported.
    """
    stuck = [n for n in topological(left) if n in reasons]
    live = _live(left)
    met = set(topological([x for n in stuck if reasons[n] != _NOTHING for x in n.inputs]))
    return sorted(stuck, key=lambda n: (n not in live, n in met and reasons[n] == _NOTHING))


def _live(nodes: Iterable[Node]) -> set[Node]:
    """Those nodes that depend on an argument of the call, among all that some nodes depend on."""
    live: set[Node] = set()
    for n in topological(nodes):
        if (n.op == "input" and not n["frozen"]) or any(x in live for x in n.inputs):
            live.add(n)
    return live


def _gap(node: Node, other: Node, fresh: Node, values: Mapping[Node, np.ndarray] | None) -> str:
    """A text of how far two nodes' values differ in float64, with their constants; empty within rounding."""
    apart = 0.0 if values is None else _apart(values[node], values[other])
    if apart <= EQUAL:
        return ""
    here, there = (
        {_number(n) for n in topological([x]) if n.op == "literal" and n.dtype in FLOATS} for x in (fresh, other)
    )
    sides = (", ".join(sorted(one - two)[:_TOLD]) or "none" for one, two in ((here, there), (there, here)))
    told = "it has the constants {}, that one has {}".format(*sides) if here != there else ""
    return f"its values are {apart:.1g} away from the nearest in the first program" + (f": {told}" if told else "")


def _with(graph: Graph, other: Graph, stored: Stored) -> Graph:
    """A program with its stored tensors that the other lacks replaced by expressions."""
    theirs = {*other.inputs, *topological(other.outputs)}
    given = {n: x for n, x in stored.images.items() if n not in theirs}
    done = map_nodes(graph.outputs, given=given)
    constants = {**other.constants, **graph.constants}
    return Graph(tuple(dict.fromkeys((*graph.inputs, *other.inputs))), tuple(done[n] for n in graph.outputs), constants)


def _sized(pair: Pair, outputs: Sequence[Node]) -> str:
    """The reason why nodes of some outputs may have no shape, which proofs behind cuts take for granted; else empty."""
    shapes = dict.fromkeys(n.shape for n in topological(outputs) if len(n.types) == 1)
    zero = literal(0.0, "float32")
    roots = tuple(mk("broadcast_in_dim", zero, shape=shape, broadcast_dimensions=()) for shape in shapes)
    try:
        prove_elsewhere(replace(pair, left=Graph((), roots), right=Graph((), roots)), Proof())
    except Stop as stop:
        return stop.cause
    return ""


def _small(graph: Graph) -> dict[str, Any]:
    """The stored tensors that are small enough for the prover to write out."""
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
            results = jit_quickly(to_jax(widened(graph)))(*wide)
    except (SuperoptError, TypeError, ValueError):  # without values nothing is looked for
        return {}
    return dict(zip(nodes, map(np.asarray, results), strict=True))


def _alike(node: Node, first: Graph, values: Mapping[Node, np.ndarray] | None) -> list[Node]:
    """Nodes of the first program with the type and the values of a node of the second, those with its op first."""
    if values is None:
        return [n for n in first.nodes() if n.types == node.types]
    have = values.get(node)
    if have is None:
        return []
    marks: list[tuple[bool, bool, int]] = []
    nodes = first.nodes()
    for number, other in enumerate(nodes):
        value = values.get(other)
        if value is None or other.types != node.types or value.shape != have.shape:
            continue
        apart = _apart(have, value)
        if apart <= _NEAR:
            marks.append((apart > EQUAL, other.op != node.op, number))
    return [nodes[number] for _, _, number in sorted(marks)[:_TRIED]]


def _apart(have: np.ndarray, value: np.ndarray) -> float:
    """The largest difference of values of one shape, relative to the largest; infinite where kinds differ."""
    if value.dtype.kind != "f":
        return 0.0 if np.array_equal(have, value) else np.inf
    finite = np.isfinite(have)
    if not np.array_equal(have[~finite], value[~finite], equal_nan=True):
        return np.inf
    size = 1.0 + float(np.max(np.abs(have[finite]), initial=0.0))
    gap = float(np.max(np.abs(have[finite] - value[finite]), initial=0.0)) / size
    return gap if np.isfinite(gap) else np.inf


def _steps(node: Node) -> bool:
    """Whether an operation turns floats into other types, or is discontinuous in a float operand."""
    return reads_floats(node) and (node.op in STEPS or any(t.dtype not in FLOATS for t in node.types))


def _read_by_steps(outputs: Sequence[Node]) -> set[Node]:
    """All values that steps depend on."""
    return set(topological([x for n in topological(outputs) if _steps(n) for x in n.inputs]))


def _equal(pair: Pair, done: Swept, one: Node, two: Node, numerics: str, plain: bool) -> ValidityDomain | str:
    """The domain in which two nodes are proved equal, or why they are not; `plain`: no step depends on them."""
    why = "it is too far from what both programs have"
    seen: set[tuple[Graph, Graph]] = set()
    for through, apart in ((frozenset[str](), False), (MOVES, False), (None, False), (None, True)):
        left, right, cuts = _behind_cuts(pair, one, two, through, apart)
        partial = any(n.op in PARTIAL and n.dtype in FLOATS for n in topological(cuts.values()))
        size = len(left.nodes()) + len(right.nodes())
        if (left, right) in seen or size > _MOST:
            continue
        seen.add((left, right))
        for lowest in dict.fromkeys((done.lowest, 1)):
            try:
                domain, _ = prove_elsewhere(replace(pair, left=left, right=right, lowest=lowest), Proof())
            except Stop as stop:
                why = _readable(stop.cause, cuts)
                if stop.status == UNSUPPORTED:
                    break
                continue
            if EXACTNESS.index(domain.exactness) > EXACTNESS.index(numerics):
                why = f"proved as {domain.exactness} alone"
                continue
            steps = [n for n in (*left.nodes(), *right.nodes()) if _steps(n)]
            stepped = not plain or any(partial or n.op in _PLACES for n in steps)
            if stepped and (domain.exactness != "exact" or any(a.startswith(DEFINED) for a in domain.assumptions)):
                why = "proved of numbers alone, and a comparison or the like asks for more"
                continue
            done.lowest = lowest
            return replace(domain, assumptions=tuple(_readable(a, cuts) for a in domain.assumptions))
    return why


def _readable(text: str, cuts: Mapping[str, Node]) -> str:
    """An assumption with operations in place of the names of cuts."""

    def said(found: re.Match[str]) -> str:
        node = cuts.get(found[0])
        return found[0] if node is None else f"{{{node.op} {node.type}}}"

    return re.sub(r"\bcut\d+\b", said, text)


def _behind_cuts(
    pair: Pair, one: Node, two: Node, through: frozenset[str] | None, apart: bool
) -> tuple[Graph, Graph, dict[str, Node]]:
    """Two nodes over fresh inputs in place of shared values, and the value of each input by its name.

    Values made by operations of `through` are looked through.  With `apart`, no input is a value that other inputs
    determine in a few steps (a mean beside its operand).
    """
    both = set(topological([one])) & set(topological([two]))
    taken = {n["name"] for n in (*pair.left.inputs, *pair.right.inputs)}
    names = (name for i in itertools.count() if (name := f"cut{i}") not in taken)
    live = _live([one, two])
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
    for x in reversed(topological(cuts)) if apart else ():
        if x in cuts and _given_by(x, cuts, seen):
            del cuts[x]
    done = map_nodes([one, two], given=cuts)
    stored = {**_small(pair.left), **_small(pair.right)}
    roots = (done[one], done[two])
    kept = tuple(n for n in topological(roots) if n.op == "input")
    constants = {n["name"]: stored[n["name"]] for n in kept if n["name"] in stored}
    return Graph(kept, roots[:1], constants), Graph(kept, roots[1:], constants), {c["name"]: n for n, c in cuts.items()}


def _given_by(node: Node, cuts: Collection[Node], seen: Collection[Node]) -> bool:
    """Whether a value is a few operations away from other cuts, and from arguments that are read anyway."""
    steps: set[Node] = set()
    todo = list(node.inputs)
    while todo and len(steps) <= _RELATED:
        x = todo.pop()
        if x in cuts or x in steps or (x.op == "input" and x in seen):
            continue
        if x.op == "input" and not x["frozen"]:
            return False
        steps.add(x)
        todo += x.inputs
    return len(steps) <= _RELATED


__all__ = ["Stored", "Swept", "reciprocals", "stored_alike", "sweep"]
