"""Evaluation of branches behind guards, that is, behind conditions that no input tried has met.

`where(arange(n) > 1_000_000, a, 0)` is 0 at every size that can be tried, whatever a is.  After a proof both graphs are
evaluated again with other answers for comparisons that had one answer on all inputs and sizes tried.  Comparisons of
positions and sizes alone are answered together, as in an array longer than can be allocated, with positions near the
literals of the program and beyond.  Numbers made of positions by clips, quotients, narrow types and the like get their
values in that array, too, since they hide as much as comparisons do.  Then answers of comparisons are inverted, first
where operands came nearest to another answer.

No input corresponds to such an evaluation, so a difference refutes nothing; it only withdraws a proof.  A comparison
that the prover shows to be constant (`abs(x) >= 0`) is no guard and keeps its answer.  Functions with sorts are not
evaluated in this way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.index import Poly, Symbol, substitute
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import CONTRACTIONS, lookup
from superopt.ir.resize import resized
from superopt.ir.scalar import numpy_dtype
from verifier.equal.equality import Proof, Stop
from verifier.rules.refute import sizes_of
from verifier.statements.draws import further_values, literals
from verifier.statements.prove import Pair, prove_elsewhere
from verifier.statements.refute import ATTEMPTS, Pairing, Sizes, by_jax_alone, make_values, show_sizes
from verifier.verdict import ValidityDomain

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
TOLERANCE = 1e-6
_SETS, _CONSTANT, _SIZES = 12, 6, 4
"""Most sets of comparisons to invert, most comparisons to prove constant, and most sizes."""
_SIZE = 64
"""The place in a list of positions whose entry is the size of the array."""
_MOST_ELEMENTS = 1 << 12
_PLAIN = frozenset(
    ["add", "sub", "mul", "neg", "broadcast_in_dim", "reshape", "transpose", "squeeze", "copy", "slice", "rev",
     "concatenate", "reduce_sum", *CONTRACTIONS, *COMPARISONS]
)  # fmt: skip
"""Operations on positions that do not select among them."""
_POWERS = (1 << 10, 46341, 1 << 17, 1 << 20, 3_000_000, 1 << 24, 1 << 28, 1 << 30)
_BOUND = re.compile(r"at most 2\^(\d+)")


@dataclass
class _Seen:
    """Observations of a comparison: its answers on the inputs tried, and the least relative gap of its operands."""

    true: bool = False
    false: bool = False
    gap: float = math.inf
    special: bool = False

    @property
    def one(self) -> bool:
        """Whether it had one answer only, and on finite operands."""
        return self.true != self.false and not self.special

    def note(self, node: Node, operands: tuple[Any, ...], answers: np.ndarray) -> None:
        """Record the answers on one kind of inputs."""
        self.true, self.false = self.true or bool(answers.any()), self.false or not bool(answers.all())
        a, b = (np.asarray(x, np.float64) for x in operands)
        if node.inputs[0] is node.inputs[1] or not (np.isfinite(a).any() and np.isfinite(b).any()):
            self.special = True
            return
        with np.errstate(invalid="ignore"):
            gaps = np.abs(a - b) / (1.0 + np.minimum(np.abs(a), np.abs(b)))
        self.gap = min(self.gap, float(np.nanmin(np.where(np.isnan(gaps), math.inf, gaps))))


@dataclass
class _Opened:
    """Two graphs at one size.

    Attributes:
        outputs: outputs of both, in pairs.
        inputs: inputs of both.
        constants: arrays that they close over.
        small: node at symbolic sizes -> node at this size.
        origin: node at this size -> the nodes at symbolic sizes from which it comes.
    """

    outputs: tuple[tuple[Node, Node], ...]
    inputs: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]
    small: dict[Node, Node]
    origin: dict[Node, list[Node]]

    def watch(self, values: Mapping[str, np.ndarray], seen: dict[Node, _Seen]) -> None:
        """Evaluate both graphs and record the answers of comparisons in `seen`."""

        def instead(node: Node, operands: tuple[Any, ...], found: tuple[Any, ...]) -> tuple[Any, ...]:
            if node.op in COMPARISONS and found[0].size:
                for x in self.origin[node]:
                    seen.setdefault(x, _Seen()).note(node, operands, found[0])
            return found

        evaluate([x for pair in self.outputs for x in pair], {**self.constants, **values}, wide=True, instead=instead)

    def reads_inside(self, x: Node, value: np.ndarray) -> bool:
        """Whether the value of a node is within bounds wherever the node is used as an index."""
        here = self.small[x]
        for node in topological([y for pair in self.outputs for y in pair]):
            rule = lookup(node.op).axes
            at = None if rule is None else rule.data
            if at is not None and here in node.inputs[at:] and value.size:
                least = min(sizes_of(node.inputs[0]), default=1)
                if value.min() < 0 or value.max() >= least:
                    return False
        return True

    def run(self, values: Mapping[str, np.ndarray], answers: Mapping[Node, Any]) -> str:
        """Evaluate with given answers of comparisons; the first difference of numbers as text, empty without one."""

        def instead(node: Node, _: tuple[Any, ...], found: tuple[Any, ...]) -> tuple[Any, ...]:
            for x in self.origin[node]:
                if x in answers:
                    return (np.broadcast_to(np.asarray(answers[x]), found[0].shape),)
            return found

        roots = [x for pair in self.outputs for x in pair]
        results = evaluate(roots, {**self.constants, **values}, wide=True, instead=instead)
        for a, b in zip(results[::2], results[1::2], strict=True):
            at = _apart(a, b)
            if at is not None:
                return f"{a[at]} and {b[at]}"
        return ""


def _apart(a: np.ndarray, b: np.ndarray) -> tuple[int, ...] | None:
    """The first index at which two results are different finite numbers, or None."""
    if a.dtype.kind in "biu":
        bad = a != b
    else:
        numbers = np.isfinite(a) & np.isfinite(b)
        scale = 1.0 + float(np.max(np.abs(np.where(numbers, a, 0.0)), initial=0.0))
        with np.errstate(invalid="ignore"):
            bad = numbers & (np.abs(a - b) > TOLERANCE * scale)
    return None if not bad.any() else tuple(int(i) for i in np.argwhere(bad)[0])


def differing_behind_guards(pair: Pairing, domain: ValidityDomain, tried: Sequence[Sizes]) -> str:
    """A difference of two functions behind conditions that no input tried has met, as text; empty without one.

    Args:
        pair: the functions, proved equal.
        domain: the domain of the proof.
        tried: sizes at which they have values.
    """
    if pair.traced is None or not any(_selecting(t.graph) for t in pair.traced):
        return ""
    if any(by_jax_alone(t.graph) for t in pair.traced):
        return ""
    fit = [at for at in tried if 0 not in at.values() and pair.elements(at) <= _MOST_ELEMENTS]
    fit = sorted(fit, key=lambda at: (min(at.values(), default=2) > 1, len(set(at.values())), -sum(at.values())))
    told = literals(t.graph for t in pair.traced)
    seen, made, draws = dict[Node, _Seen](), None, list[dict[str, np.ndarray]]()
    for at in fit[-_SIZES:]:
        try:
            made = _at(pair, at)
        except SuperoptError:  # a graph cannot be resized to this size
            continue
        inputs = [x for x in made.inputs if x["name"] in pair.specs.names]
        draws = [make_values(inputs, pair.specs.names, attempt) for attempt in range(ATTEMPTS)]
        draws += further_values(inputs, told)
        for values in draws:
            made.watch(values, seen)
    guards = sorted((x for x, differing in seen.items() if differing.one), key=lambda x: seen[x].gap)
    if made is None:
        return ""
    where = f" at {show_sizes(fit[-1])}" if pair.specs.sizes else ""
    draws = [values for values in draws if not made.run(values, {})]  # a difference there is said by the watch
    answers = {x: not seen[x].true for x in guards}
    differing, met = _stretched(pair, domain, made, draws, told, answers)
    differing = differing or _turned(pair, made, draws, {x: answer for x, answer in answers.items() if x not in met})
    return f"{differing}{where} behind a condition that no input tried has met" if differing else ""


def _selecting(graph: Graph) -> bool:
    """Whether there are comparisons, or operations on positions that select."""
    given = _given(graph.outputs)
    return any(node.op in COMPARISONS or (node in given and _hides(node)) for node in graph.nodes())


def _at(pair: Pairing, sizes: Sizes) -> _Opened:
    assert pair.traced is not None
    graphs = [t.graph for t in pair.traced]
    at = {Symbol(name, pair.lowest): n for name, n in sizes.items()}
    done = dict[Node, Node]()
    for node in topological([x for g in graphs for x in (*g.inputs, *g.outputs)]):
        done[node] = resized(node, done, at)
    origin = dict[Node, list[Node]]()
    for node, made in done.items():
        origin.setdefault(made, []).append(node)
    pairs = tuple((done[a], done[b]) for a, b in zip(graphs[0].outputs, graphs[1].outputs, strict=True))
    inputs = tuple(dict.fromkeys(done[x] for g in graphs for x in g.inputs))
    return _Opened(pairs, inputs, {**graphs[0].constants, **graphs[1].constants}, done, origin)


# ---- positions of longer arrays


def _stretched(
    pair: Pairing,
    domain: ValidityDomain,
    made: _Opened,
    draws: Sequence[dict[str, np.ndarray]],
    told: Sequence[float],
    answers: Mapping[Node, bool],
) -> tuple[str, set[Node]]:
    """A difference, as text, where values made of positions and sizes alone are those of longer arrays.

    Also returns the comparisons that got their other answer in this way, together with the numbers that go with it.
    """
    assert pair.traced is not None
    roots = [x for t in pair.traced for x in t.graph.outputs]
    given = _given(roots)
    of_positions = [x for x in answers if x in given]
    numbers = [x for x in _met(roots, given) if x.op not in COMPARISONS]
    stepped = [x for x in numbers if any(map(_hides, topological([x])))]
    met = set[Node]()
    if not (of_positions or stepped):
        return "", met
    numbers = numbers if stepped else []
    bounds = [1 << int(k) for text in domain.assumptions for k in _BOUND.findall(text)]
    most, known = min([*bounds, 1 << 30]), set[bytes]()
    for start in _starts(told):
        positions = [*start, *range(start[-1] + 1, start[-1] + _MOST_ELEMENTS)]
        if start[-1] >= most or not _reached(pair, positions):
            continue
        wanted, values = _longer([*of_positions, *numbers], made.small, positions)
        results = evaluate(wanted, values, wide=True)
        key = b"".join(x.tobytes() for x in results)
        if key in known:
            continue
        known.add(key)
        longer = dict(zip((*of_positions, *numbers), results, strict=True))
        longer = {x: value for x, value in longer.items() if x in of_positions or made.reads_inside(x, value)}
        ways = [longer]
        if numbers:  # numbers that hide nothing may be those of the short array or of the longer one: try both
            ways.append({x: value for x, value in longer.items() if x in of_positions or x in stepped})
        text = next(filter(None, (_in_all(made, values, ways) for values in draws)), "")
        if text:
            return text, met
        met |= {x for x in of_positions if stepped and (longer[x] == answers[x]).any()}
    return "", met


def _in_all(made: _Opened, values: Mapping[str, np.ndarray], ways: Sequence[Mapping[Node, Any]]) -> str:
    """The first difference, as text, if every assignment of answers in `ways` shows one; else empty."""
    results = [made.run(values, way) for way in ways]
    return results[0] if all(results) else ""


def _given(roots: Sequence[Node]) -> set[Node]:
    """Nodes that are computed from positions and sizes alone."""
    nodes = set[Node]()
    for node in topological(roots):
        if node.op != "input" and all(x in nodes for x in node.inputs):
            nodes.add(node)
    return nodes


def _met(roots: Sequence[Node], given: set[Node]) -> list[Node]:
    """Nodes computed from positions and sizes alone that are read by nodes that depend on inputs, or are results."""
    met = {x: None for node in topological(roots) if node not in given for x in node.inputs if x in given}
    return list(met | {x: None for x in roots if x in given})


def _hides(node: Node) -> bool:
    """Whether an operation on positions may behave differently at large positions than at small ones."""
    if node.op == "convert_element_type":
        return node.dtype not in ("int32", "int64", "float32", "float64")
    return bool(node.inputs) and node.op not in _PLAIN


def _longer(
    wanted: Sequence[Node], small: Mapping[Node, Node], positions: Sequence[int]
) -> tuple[list[Node], dict[str, np.ndarray]]:
    """Graphs with positions and sizes replaced by inputs, and the values of these inputs in a longer array."""
    values, done = dict[str, np.ndarray](), dict[Node, Node]()
    longer: dict[Symbol, int] = {}
    for node in topological(wanted):
        here = small[node]
        shape = sizes_of(here)
        name = f"longer {len(done)}"
        if node.op == "literal" and isinstance(node["value"], Poly):
            for symbol in node["value"].symbols:
                longer.setdefault(symbol, positions[_SIZE])
            values[name] = np.asarray(substitute(node["value"], longer), np.float64).astype(numpy_dtype(node.dtype))
        elif node.op == "iota" and isinstance(node.shape[node["dimension"]], Poly):
            axis = node["dimension"]
            along = np.asarray(positions[: shape[axis]], np.float64).astype(numpy_dtype(node.dtype))
            made = along.reshape([-1 if i == axis else 1 for i in range(len(shape))])
            values[name] = np.ascontiguousarray(np.broadcast_to(made, shape))
        else:
            done[node] = mk(here.op, *(done[x] for x in node.inputs), **dict(here.attrs))
            continue
        done[node] = make_input(name, shape, node.dtype)
    return [done[x] for x in wanted], values


def _starts(told: Sequence[float]) -> Iterator[list[int]]:
    """Yield the first positions of longer arrays: near each literal, beyond it, and at powers of two."""
    for n in dict.fromkeys(int(x) for x in reversed(told) if 2 < x < 1 << 30):
        yield [n - 1, n, n + 1]
        yield [1, n + 1, 2 * n + 3]
        yield [0, n // 2 + 1, n + 5]
    for low, high in zip(_POWERS, _POWERS[2:], strict=False):
        yield [0, low, high]


def _reached(pair: Pairing, positions: Sequence[int]) -> bool:
    """Whether constraints allow arrays of this length."""
    return not pair.specs.premises or pair.specs.admits(dict.fromkeys(pair.specs.sizes, positions[_SIZE]))


# ---- other answers


def _turned(pair: Pairing, made: _Opened, draws: Sequence[dict[str, np.ndarray]], answers: Mapping[Node, bool]) -> str:
    """A difference, as text, where comparisons that had one answer get the other; those proved constant keep theirs."""
    guards, known = list(answers), dict[Node, bool]()
    for count in list(range(len(guards), 0, -1))[:_SETS]:
        turned = guards[:count]
        while turned:
            given = {x: answers[x] for x in turned}
            reason = next(filter(None, (made.run(values, given) for values in draws[:ATTEMPTS])), "")
            if not reason:
                break
            for x in turned:
                if x not in known and len(known) < _CONSTANT:
                    known[x] = _always(pair, x, not answers[x])
            left = [x for x in turned if not known.get(x, False)]
            if left == turned:
                return reason
            turned = left
    return ""


def _always(pair: Pairing, guard: Node, answer: bool) -> bool:
    """Whether the prover shows that a comparison always has this answer."""
    assert pair.traced is not None
    shape = guard.shape
    constant = mk("broadcast_in_dim", literal(answer, "bool"), shape=shape, broadcast_dimensions=())
    taken = tuple(dict.fromkeys(x for t in pair.traced for x in t.graph.inputs))
    stored = {k: v for t in pair.traced for k, v in t.graph.constants.items()}
    asked = (Graph(taken, (guard,), stored), Graph(taken, (constant,), stored))
    try:
        prove_elsewhere(Pair(*asked, pair.specs.sizes, max(pair.lowest, 1), pair.specs.premises), Proof())
    except Stop:
        return False
    return True


__all__ = ["differing_behind_guards"]
