"""Rules from pairs of functions: a program as it is written, and as a person would write it.

Both are evaluated over float64 on the example.  An operation of the one that has the value of an operation of the
other, under other operands, is a lemma of the pair: an equation between two small terms whose leaves are values that
both have.  A lemma is lifted to a rule over named axes (principal types, as in `superopt.lab.discovery.lift`), widened
and proved.  Equal numbers only propose; nothing but a proof makes a rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dc_replace
from typing import Any

import numpy as np

from rewrites.language.names import IN_TEXT, TEXT_NAME
from superopt.errors import ArgumentError
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.graph import Graph, Node, make_input, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import PRODUCTS, TABLE
from superopt.ir.program import replace
from superopt.ir.types import FLOATS
from superopt.lab.discovery.draft import Draft, Side, subsides
from superopt.lab.discovery.lift import ROLES, UnliftableError

TENSORS = "ABCDEFGH"
_CLOSE = 1e-9  # relative distance of equal values over float64; two orders of a sum differ by 1e-13
_VARIANTS = 16  # readings of the literals of a lemma that are tried
_ANY, _COUNT, _NUMBER = "any scalar", "a number of elements", "a number"
_REDUCERS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """A program as it is written and as a person would write it, imported on the same arguments.

    Attributes:
        written, wanted: their graphs; equal inputs are one node.
        imported: the first, with its example.
        env: input name -> value.
    """

    name: str
    written: Graph
    wanted: Graph
    imported: Imported
    env: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class PairLemma:
    """Two terms of equal values, and the values of both programs that are their leaves.

    Attributes:
        place: the operation of the program as it is written.
        drafts: readings of it as a rule, the most general first; none where it cannot be lifted.
        reason: why it cannot be lifted.
    """

    place: str
    drafts: tuple[Draft, ...]
    reason: str = ""


def pair(name: str, written: Any, wanted: Any, args: Sequence[Any], frozen: Any = ()) -> WrittenPair:
    """Import both functions on these arguments.

    Raises:
        ArgumentError: a function does not take the arguments, or closes over other arrays than the other.
    """
    one, other = (import_function(fn, args, {}, frozen=frozen) for fn in (written, wanted))
    held = [[x.graph.constants.get(node["name"]) for node in x.graph.inputs] for x in (one, other)]
    if len(held[0]) != len(held[1]) or not all(map(np.array_equal, *held)):
        raise ArgumentError(f"both forms of {name!r} close over other arrays", hint="make them arguments of both")
    names = {node: make_input(f"x{k}", node.shape, node.dtype) for k, node in enumerate(one.graph.inputs)}
    other_names = dict(zip(other.graph.inputs, names.values(), strict=True))
    fixed, live = {**one.frozen_values, **one.graph.constants}, iter(one.live_values)
    env = {new["name"]: np.asarray(fixed[old["name"]] if old["frozen"] else next(live)) for old, new in names.items()}
    graphs = [
        Graph(tuple(names.values()), replace(x.graph.outputs, inputs), {})
        for x, inputs in ((one, names), (other, other_names))
    ]
    return WrittenPair(name, graphs[0], graphs[1], one, env)


def lemmas(given: WrittenPair) -> list[PairLemma]:
    """The equations that take the first program of a pair to the second, each between values that both have."""
    kinds = _kinds_of_value(given)
    inputs = set(given.written.inputs)
    written, wanted = ([n for n in topological(graph.outputs) if n in kinds] for graph in (given.written, given.wanted))
    first, other = {kinds[n]: n for n in written}, {kinds[n]: n for n in reversed(wanted)}
    shared = first.keys() & other.keys()
    equations: dict[str, PairLemma] = {}
    for kind, one in first.items():
        two = other.get(kind)
        if two is None or one is two or one in inputs or one.op == "literal":
            continue
        lemma = _lemma(one, two, kinds, shared - {kind}, inputs)
        if lemma is not None:
            equations.setdefault(lemma.drafts[0].text() if lemma.drafts else f"{lemma.place} {lemma.reason}", lemma)
    return list(equations.values())


def _kinds_of_value(given: WrittenPair) -> dict[Node, int]:
    """Nodes of both graphs -> number of their value; nodes with one number are equal on the example."""
    order = topological((*given.written.outputs, *given.wanted.outputs))
    rng = np.random.default_rng(0)
    drawn: dict[int, np.ndarray] = {}
    known: dict[tuple[Any, ...], list[tuple[float, float, int]]] = {}
    numbers: dict[Node, int] = {}
    order = [node for node in order if len(node.types) == 1]  # loops are read by their `result` nodes
    for node, value in zip(order, evaluate(order, given.env, wide=True), strict=True):
        flat = np.asarray(value, np.float64).ravel()
        if flat.size not in drawn:
            drawn[flat.size] = rng.standard_normal(flat.size)
        weighed = flat * drawn[flat.size]
        mark, scale = float(weighed.sum()), float(np.abs(weighed).sum())
        rows = known.setdefault((node.shape, node.dtype in FLOATS), [])
        near = (n for x, s, n in rows if abs(mark - x) <= _CLOSE * max(scale, s))
        numbers[node] = number = next(near, len(numbers))
        if number == len(numbers) - 1:
            rows.append((mark, scale, number))
    return numbers


def _lemma(one: Node, two: Node, kinds: Mapping[Node, int], shared: set[int], inputs: set[Node]) -> PairLemma | None:
    """The equation of two nodes over values that both sides have; None where both sides are the same term."""
    left, right = (_leaves(node, kinds, shared, inputs) for node in (one, two))
    while apart := (left ^ right) & shared:  # a value that one side alone reaches is none of the leaves
        shared = shared - apart
        left, right = (_leaves(node, kinds, shared, inputs) for node in (one, two))
    place = f"{one.op} {list(one.shape)}"
    drafts: list[Draft] = []
    reason = ""
    for readings in _readings((one, two), kinds, left | right):
        try:
            draft = _Lifted(kinds, left | right, readings).draft(one, two)
        except UnliftableError as error:
            reason = reason or str(error)
            continue
        if draft.sides[0] == draft.sides[1]:
            return None
        drafts.append(draft)
        extremes = tuple(s[2] for side in draft.sides for s in subsides(side[0]) if s[0] == "red" and s[3] != "sum")
        if extremes:  # over nothing they are infinite
            drafts.append(dc_replace(draft, nonempty=tuple(dict.fromkeys((*draft.nonempty, *extremes)))))
    return PairLemma(place, tuple(drafts), "" if drafts else reason)


def _leaves(root: Node, kinds: Mapping[Node, int], shared: set[int], inputs: set[Node]) -> set[int]:
    """The values at which a term ends: those that both programs have, and inputs."""

    def ends(node: Node) -> bool:
        uniform = node.op in ("literal", "iota") or (node.op == "broadcast_in_dim" and node.inputs[0].op == "literal")
        return node in inputs or (kinds.get(node) in shared and not uniform)

    return {kinds[n] for n in _inside(root, ends) if n is not root and ends(n)}


def _inside(root: Node, ends: Callable[[Node], bool]) -> list[Node]:
    """The nodes of a term, those at which it ends included."""
    seen, todo = dict[Node, None](), [root]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen[node] = None
            todo += node.inputs if node is root or not ends(node) else ()
    return list(seen)


def _readings(roots: Sequence[Node], kinds: Mapping[Node, int], leaves: set[int]) -> Iterator[dict[Node, str]]:
    """Ways to read the literals of both terms, the most general first: any scalar, a number of elements, a number."""
    terms = [_inside(root, lambda node: kinds.get(node) in leaves) for root in roots]
    both = set(terms[0]) & set(terms[1])
    sizes = {n for term in terms for node in term for kind in node.types for n in kind.shape} - {1}
    literals = [node for node in dict.fromkeys(itertools.chain(*terms)) if node.op == "literal"]
    ways = [(*((_ANY,) if x in both else ()), *((_COUNT,) if _size_of(x) in sizes else ()), _NUMBER) for x in literals]
    for choice in itertools.islice(itertools.product(*ways), _VARIANTS):
        yield dict(zip(literals, choice, strict=True))


def _size_of(literal: Node) -> int:
    """The integer that a literal, or its reciprocal, is; 0 where it is neither."""
    value = float(np.asarray(literal["value"]))
    for x in (value, 1.0 / value if value else 0.0):
        if x > 1 and abs(x - round(x)) <= 1e-6 * x:
            return round(x)
    return 0


@dataclass(slots=True)
class _NamedTerm:
    """A term with the labels of the node's axes (None for an axis of size 1), and the labels that it depends on."""

    side: Side
    axes: tuple[int | None, ...]
    reads: frozenset[int]


@dataclass(slots=True)
class _Lifted:
    """The lifting of two nodes to one draft: labels of axes are united wherever operations say that they are one.

    Attributes:
        kinds, leaves: values of nodes, and those at which terms end.
        readings: literal -> how it is read.
    """

    kinds: Mapping[Node, int]
    leaves: set[int]
    readings: Mapping[Node, str]
    _label: list[int] = field(default_factory=list[int])
    _size: list[int] = field(default_factory=list[int])
    _vars: dict[int, tuple[int | None, ...]] = field(default_factory=dict[int, Any])
    _reduced_labels: list[int] = field(default_factory=list[int])
    _done: dict[Node, _NamedTerm] = field(default_factory=dict[Node, Any])

    def draft(self, one: Node, two: Node) -> Draft:
        """The draft of their equation.

        Raises:
            UnliftableError: the language does not express it.
        """
        terms = [self._leaf(node) if node.op == "input" else self._applied(node) for node in (one, two)]
        for a, b in zip(terms[0].axes, terms[1].axes, strict=True):
            self._unite(a, b)
        for axes in (*self._vars.values(), *(t.axes for t in self._done.values()), *(t.axes for t in terms)):
            own = [self._root(a) for a in axes if a is not None]
            if len(set(own)) != len(own):
                raise UnliftableError("two axes of one tensor would be one")
        roots = [{self._root(x) for x in t.reads} for t in terms]
        sides = [self._broadcast(t.side, roots[1 - i] - roots[i]) for i, t in enumerate(terms)]
        return self._named(_without_count(*sides))

    def _root(self, label: int) -> int:
        while self._label[label] != label:
            label = self._label[label]
        return label

    def _unite(self, a: int | None, b: int | None) -> None:
        if a is None or b is None:
            if a is not b:
                raise UnliftableError("an axis of size 1 meets a longer one")
            return
        self._label[self._root(a)] = self._root(b)

    def _fresh(self, size: int) -> int | None:
        if size == 1:
            return None
        self._label.append(len(self._label))
        self._size.append(size)
        return len(self._label) - 1

    def _term(self, node: Node) -> _NamedTerm:
        if node.op in ("broadcast_in_dim", "iota") and not self._is_leaf(node):  # its new axes are others at each use
            return self._applied(node)
        if node not in self._done:
            self._done[node] = self._leaf(node) if self._is_leaf(node) else self._applied(node)
        return self._done[node]

    def _is_leaf(self, node: Node) -> bool:
        return self.kinds.get(node) in self.leaves and node.op not in ("literal", "iota")

    def _leaf(self, node: Node) -> _NamedTerm:
        number = self.kinds[node]
        if number not in self._vars:
            self._vars[number] = tuple(self._fresh(int(n)) for n in node.shape)  # pyright: ignore[reportArgumentType]
        axes = self._vars[number]
        return _NamedTerm(("var", number), axes, frozenset(a for a in axes if a is not None))

    def _applied(self, node: Node) -> _NamedTerm:
        """The term of an operation.

        Raises:
            UnliftableError: the language has no such operation, or not over axes that have names.
        """
        op = node.op
        if op == "literal":
            return self._literal(node)
        if op == "iota":
            axes = tuple(self._fresh(int(n)) for n in node.shape)  # pyright: ignore[reportArgumentType]
            label = axes[node["dimension"]]
            if label is None:
                raise UnliftableError("an index along an axis of size 1")
            return _NamedTerm(("iota", label), axes, frozenset((label,)))
        args = [self._term(x) for x in node.inputs]
        if op in _REDUCERS:
            return self._reduced(node, args[0])
        if op in PRODUCTS:
            return self._product(node, args)
        if op in ("broadcast_in_dim", "transpose", "reshape"):
            return _NamedTerm(args[0].side, self._moved(node, args[0]), args[0].reads)
        if TABLE[op].family != "elementwise":
            raise UnliftableError(f"the operation {op}")
        return self._elementwise(node, args)

    def _literal(self, node: Node) -> _NamedTerm:
        value = np.asarray(node["value"]).item()
        reading = self.readings[node]
        if reading == _ANY:
            self._vars[self.kinds[node]] = ()
            return _NamedTerm(("var", self.kinds[node]), (), frozenset())
        if reading == _COUNT:
            size = _size_of(node)
            count = ("count", size)
            return _NamedTerm(count if value > 1 else ("fn", "/", (("num", "1"), count)), (), frozenset())
        text = str(value) if isinstance(value, bool) else f"{value:.9g}"
        return _NamedTerm(("num", text), (), frozenset())

    def _moved(self, node: Node, arg: _NamedTerm) -> tuple[int | None, ...]:
        """The labels of the axes of a transpose, a broadcast, or a reshape that only moves axes of size 1."""
        shape = [int(n) for n in node.shape]  # pyright: ignore[reportArgumentType]
        if node.op == "transpose":
            return tuple(arg.axes[i] for i in node["permutation"])
        if node.op == "broadcast_in_dim":
            place = dict(zip(node["broadcast_dimensions"], arg.axes, strict=True))
            kept = {i: label for i, label in place.items() if label is not None}
            return tuple(kept[i] if i in kept else self._fresh(n) for i, n in enumerate(shape))
        inner = [a for a in arg.axes if a is not None]
        if [self._size[a] for a in inner] != [n for n in shape if n != 1]:
            raise UnliftableError("a reshape that joins or splits axes")
        labels = iter(inner)
        return tuple(None if n == 1 else next(labels) for n in shape)

    def _broadcast(self, side: Side, labels: set[int]) -> Side:
        for label in sorted(labels):
            side = ("bcast", side, label)
        return side

    def _reduced(self, node: Node, arg: _NamedTerm) -> _NamedTerm:
        gone = [arg.axes[i] for i in node["axes"]]
        side, read = arg.side, {self._root(x) for x in arg.reads}
        for label in gone:
            if label is not None:
                side = self._broadcast(side, {label} if self._root(label) not in read else set())
                side = ("red", side, label, _REDUCERS[node.op])
                self._reduced_labels.append(label)
        axes = tuple(a for i, a in enumerate(arg.axes) if i not in node["axes"])
        roots = {self._root(x) for x in gone if x is not None}
        return _NamedTerm(side, axes, frozenset(x for x in arg.reads if self._root(x) not in roots))

    def _product(self, node: Node, args: Sequence[_NamedTerm]) -> _NamedTerm:
        (contracted, batches) = node["dimension_numbers"]
        for pairs in (contracted, batches):
            for i, j in zip(*pairs, strict=True):
                self._unite(args[0].axes[i], args[1].axes[j])
        summed = [a for i in contracted[0] if (a := args[0].axes[i]) is not None]
        roots = {self._root(a) for a in summed}
        sides = tuple(self._broadcast(x.side, roots - {self._root(a) for a in x.reads}) for x in args)
        kept = [[a for i, a in enumerate(x.axes) if i not in (*contracted[k], *batches[k])] for k, x in enumerate(args)]
        axes = (*(args[0].axes[i] for i in batches[0]), *kept[0], *kept[1])
        reads = frozenset(a for x in args for a in x.reads if self._root(a) not in roots)
        return _NamedTerm(("dot", sides, tuple(summed)) if summed else ("fn", "*", sides), axes, reads)

    def _elementwise(self, node: Node, args: Sequence[_NamedTerm]) -> _NamedTerm:
        axes = args[0].axes
        for other in args[1:]:
            for a, b in zip(axes, other.axes, strict=True):
                self._unite(a, b)
        reads = frozenset().union(*(x.reads for x in args))
        sides = tuple(x.side for x in args)
        op = node.op
        if op == "convert_element_type":
            if node.inputs[0].dtype != "bool" or node.dtype not in FLOATS:
                raise UnliftableError(f"a conversion of {node.inputs[0].dtype} to {node.dtype}")
            return _NamedTerm(("fn", "where", (sides[0], ("num", "1"), ("num", "0"))), axes, reads)
        if op == "select_n":
            if len(args) != 3 or node.inputs[0].dtype != "bool":
                raise UnliftableError("a choice among more than two")
            return _NamedTerm(("fn", "where", (sides[0], sides[2], sides[1])), axes, reads)
        if op == "integer_pow":
            power = node["y"]
            return _NamedTerm(("fn", "square", sides) if power == 2 else ("power", sides[0], str(power)), axes, reads)
        if op in ("add", "sub", "mul"):
            return _NamedTerm(("ew", op, sides), axes, reads)
        name = {"div": "/", "neg": "-"}.get(op, TEXT_NAME.get(op, op))
        if name not in ("/", "-") and name not in IN_TEXT:
            raise UnliftableError(f"the operation {op}")
        return _NamedTerm(("fn", name, sides), axes, reads)

    def _named(self, sides: Sequence[Side]) -> Draft:
        """The draft with names of tensors, roles and counted axes in the order of their first use."""
        tensors: dict[int, str] = {}
        roles: dict[int, str] = {}

        def role(label: int) -> str:
            root = self._root(label)
            if root not in roles:
                if len(roles) == len(ROLES):
                    raise UnliftableError("too many axes")
                roles[root] = ROLES[len(roles)]
            return roles[root]

        def name(side: Any) -> Any:
            kind = side[0]
            if kind == "var":
                if side[1] not in tensors:
                    if len(tensors) == len(TENSORS):
                        raise UnliftableError("too many tensors")
                    tensors[side[1]] = TENSORS[len(tensors)]
                    for label in self._vars[side[1]]:
                        if label is not None:
                            role(label)
                return ("var", tensors[side[1]])
            if kind == "num":
                return side
            if kind == "iota":
                return ("iota", role(side[1]))
            if kind == "count":
                return ("count", role(self._axis_of(side[1])))
            if kind == "red":
                return ("red", name(side[1]), role(side[2]), side[3])
            if kind == "bcast":
                return ("bcast", name(side[1]), role(side[2]))
            if kind == "power":
                return ("power", name(side[1]), side[2])
            if kind == "dot":
                return ("dot", tuple(map(name, side[1])), tuple(map(role, side[2])))
            return (kind, side[1], tuple(map(name, side[2])))

        made = tuple((name(side),) for side in sides)
        parts = [s for side in sides for s in subsides(side)]
        single = frozenset(role(s[1]) for s in parts if s[0] == "iota")
        nonempty = tuple(dict.fromkeys(role(self._axis_of(s[1])) for s in parts if s[0] == "count"))
        given = tuple((tensors[n], tuple((role(a), role(a)) for a in self._vars[n] if a is not None)) for n in tensors)
        return Draft(given, (made[0], made[1]), single=single, nonempty=nonempty, cancels=_cancels(made[1][0]))

    def _axis_of(self, size: int) -> int:
        """The label of the axes of a size, which must be one, or one that is reduced."""
        labels = {self._root(x) for x in range(len(self._label)) if self._size[x] == size}
        labels = labels & {self._root(x) for x in self._reduced_labels} or labels
        if len(labels) != 1:
            raise UnliftableError(f"{len(labels)} axes of size {size}, and a literal that counts one of them")
        return labels.pop()


def _without_count(left: Side, right: Side) -> tuple[Side, Side]:
    """The equation times the number of elements by which the left side ends in a division: none can be matched."""
    if left[:2] == ("fn", "/") and left[2][1][0] == "count":
        return left[2][0], ("ew", "mul", (right, left[2][1]))
    if left[:2] == ("ew", "mul"):
        for x, share in (left[2], left[2][::-1]):
            if share[:2] == ("fn", "/") and share[2][1][0] == "count":
                return x, ("ew", "mul", (right, share[2][1]))
    return left, right


def _cancels(side: Side) -> bool:
    """Whether a difference of two sums occurs: each may be large where the difference is small."""

    def sums(part: Side) -> bool:
        return any(s[0] in ("red", "dot") for s in subsides(part))

    return any(s[:2] == ("ew", "sub") and all(map(sums, s[2])) for s in subsides(side))
