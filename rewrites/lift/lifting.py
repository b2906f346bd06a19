"""Lifting: two graphs over symbolic sizes become a rule over named axes.

Both graphs are walked from shared labels on the axes of their results with the matcher's own `flow`: labels that meet
at an input are one axis.  Labels that remain distinct become roles, and the walk prints the terms.  `flow` works on
numbers, so each size name stands for a different prime; attributes are printed from the symbolic graph.

The text has single-axis roles.  `widen` makes roles stand for groups of axes, wherever the text still parses and a
given predicate (the prover) accepts it.  There is no rule where axes do not nest, where one tensor would hold a label
twice (its diagonal), or where the language lacks an op.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewrites.language.names import IN_TEXT, OPERATORS, TEXT_NAME
from rewrites.language.parse import parse
from rewrites.language.show import number
from rewrites.language.term import REDUCERS, Rule, stem
from rewrites.match.flow import FlowMarks, OpSite, flow
from rewrites.match.labels import Axis, Labels, Layout
from superopt.errors import RuleError, ShapeError
from superopt.ir import index
from superopt.ir.graph import Graph, Node
from superopt.ir.index import Form, Poly, Size, Symbol
from superopt.ir.ops.reduction import CUMULATIVE, REDUCE, WINDOW
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS, lookup
from superopt.ir.resize import resize

_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)


class Unliftable(ValueError):
    """Raised for graphs that the rule language cannot express; the message says why."""


@dataclass(slots=True)
class Walked:
    """One op of the walk, printed once all labels are known."""

    op: str
    node: Node
    args: tuple[Walked, ...] = ()
    lay: Layout = ()
    marks: FlowMarks = field(default_factory=dict[int, Any])


class GraphWalk:
    """Labels of the axes of two graphs over the same inputs."""

    def __init__(self, sizes: Sequence[str]) -> None:
        if len(sizes) > len(_PRIMES):
            raise Unliftable(f"{len(sizes)} sizes")
        self.number = dict(zip(sizes, _PRIMES, strict=False))
        self.labels = Labels()
        self.inputs: dict[str, Layout] = {}

    def concrete(self, graph: Graph) -> Graph:
        """The graph at sizes that are primes.

        Raises:
            Unliftable: the constraints do not allow these sizes.
        """
        symbols = {s for node in graph.nodes() for s in _symbols((node.types, *(v for _, v in node.attrs)))}
        try:
            return resize(graph, {s: self.number[s.name] for s in symbols})
        except ShapeError as error:
            raise Unliftable(f"no example at prime sizes: {error.args[0]}") from error

    def fresh(self, node: Node) -> Layout:
        """New labels for a result."""
        return tuple([((self.labels.fresh(), self.at(n)),) if n != 1 else () for n in node.shape])

    def at(self, n: Size) -> int:
        """The number that stands for a size: size symbols are primes here."""
        return index.concrete(n, self.number)

    def term(self, big: Node, small: Node, lay: Layout) -> Walked:
        """Walk a node of the symbolic and of the concrete graph together."""
        if big.op == "input":
            known = self.inputs.setdefault(big["name"], lay)
            if not self.labels.unify(known, lay):
                raise Unliftable(f"the axes of {big['name']} do not align")
            self.labels.note([lay])
            return Walked("input", big, (), lay)
        if big.op == "literal":
            return Walked("literal", big)
        if (n := counted(big)) is not None:
            return Walked("count", n)
        if big.op == "transpose":
            inner: list[Axis] = [()] * len(lay)
            for axis, p in zip(lay, big["permutation"], strict=True):
                inner[p] = axis
            return Walked("view", big, (self.term(big.inputs[0], small.inputs[0], tuple(inner)),), lay)
        shapes = [tuple(int(str(n)) for n in x.shape) for x in small.inputs]
        site = OpSite(dict(small.attrs), shapes, tuple(int(str(n)) for n in small.shape))
        flowed = flow(big.op, site, lay, self.labels)
        if flowed is None:
            raise Unliftable(f"{big.op} does not keep axes apart")
        lays, marks = flowed
        lays = [() if not shape else x for x, shape in zip(lays, shapes, strict=True)]
        self.labels.note([lay, *lays])
        pairs = zip(big.inputs, small.inputs, lays, strict=True)
        args = tuple([self.term(*three) for three in pairs])
        return Walked("view" if big.op == "reshape" else big.op, big, args, lay, marks)


def counted(node: Node) -> Node | None:
    """The iota of which the node reads the last entry, or None; this is how a size appears as a value."""
    if node.op == "convert_element_type":
        return counted(node.inputs[0])
    if node.op != "reshape" or node.shape or node.inputs[0].op != "slice":
        return None
    iota = node.inputs[0].inputs[0]
    return iota if iota.op == "iota" and node.inputs[0]["start_indices"] == (iota.shape[0] - 1,) else None


def _symbols(value: Any) -> set[Symbol]:
    if isinstance(value, Poly):
        return set(value.symbols)
    if isinstance(value, tuple):
        return set().union(*(_symbols(x) for x in value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    shape = getattr(value, "shape", None)
    return _symbols(shape) if isinstance(shape, tuple) else set()


_ELEMENTWISE = IN_TEXT | set(TEXT_NAME)


@dataclass(frozen=True, slots=True)
class Lifted:
    """A rule text whose roles can be widened.

    Attributes:
        name: of the rule.
        declarations: input -> size tokens.
        extras: tokens that only broadcasts have.
        roles: all roles, in order of appearance.
        left, right: terms of the two sides, one per result.
        conditions: comparisons of tokens.
        integers: whether the rule is about integers alone.
    """

    name: str
    declarations: tuple[tuple[str, tuple[str, ...]], ...]
    extras: tuple[str, ...]
    roles: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    conditions: tuple[str, ...]
    integers: bool = False

    def text(self, many: Iterable[str] = ()) -> str:
        """The rule with these roles standing for any number of axes."""
        wide = set(many)

        def token(t: str) -> str:
            return f"*{t}" if stem(t) in wide else t

        parts = [f"{name}[{' '.join(map(token, tokens))}]" for name, tokens in self.declarations]
        if self.extras:
            parts.append(f"extra {' '.join(map(token, self.extras))}")
        lines = [f"{self.name}: {'  '.join(parts)}", f"  {', '.join(self.left)}  ==  {', '.join(self.right)}"]
        if self.conditions:
            lines.append(f"  if {', '.join(self.conditions)}")
        if self.integers:
            lines.append("  dtype int")
        return "\n".join(lines)


class Printer:
    """Names roles and sizes, and prints terms."""

    def __init__(self, walk: GraphWalk, name: str, inputs: Sequence[str]) -> None:
        self.walk, self.name = walk, name
        self.tensors = {x: _tensor(x, i) for i, x in enumerate(inputs)}
        self.roles: dict[int, str] = {}
        self.tokens: dict[tuple[str, int], str] = {}
        self.of_size: dict[int, list[str]] = {}
        self.names = {n: s for s, n in walk.number.items()}
        self.extra: dict[str, None] = {}
        self.views = False

    def lifted(self, sides: Sequence[Sequence[Walked]], premises: Sequence[Poly]) -> Lifted:
        declarations: list[tuple[str, tuple[str, ...]]] = []
        for x, tensor in self.tensors.items():
            if x in self.walk.inputs:
                axes = [e for axis in self._layout(self.walk.inputs[x]) for e in axis if e[1] != 1]
                declarations.append((tensor, tuple(self.token(label, n) for label, n in axes)))
        declared = set(self.tokens.values())
        left, right = ([self.show(t) for t in side] for side in sides)
        if left == right:  # a rule that only moves axes says nothing over named axes: print its views explicitly
            self.views = True
            left, right = ([self.show(t) for t in side] for side in sides)
        conditions = [f"{self.expr(p)} >= 0" for p in premises]
        extras = [t for t in self.tokens.values() if t not in declared]
        roles = tuple(dict.fromkeys(self.roles.values()))
        return Lifted(
            self.name, tuple(declarations), tuple(extras), roles, tuple(left), tuple(right), tuple(conditions)
        )

    def _layout(self, lay: Layout) -> Layout:
        found = self.walk.labels.layout(lay)
        if found is None:
            raise Unliftable("axes that do not nest")
        return found

    def role(self, label: int) -> str:
        """The role of a label."""
        label = self.walk.labels.find(label)
        return self.roles.get(label) or self._new_role(label, 0)

    def _new_role(self, label: int, n: int) -> str:
        base = re.sub(r"[^a-z]", "", self.names.get(n, "").lower()) or "u"
        role, i = base, 0
        while role in self.roles.values() or role in RESERVED:
            role, i = f"{base}{_letters(i)}", i + 1
        self.roles[label] = role
        return role

    def token(self, label: int, n: int) -> str:
        """The size token of an axis."""
        label = self.walk.labels.find(label)
        role = self.roles.get(label) or self._new_role(label, n)
        if (role, n) not in self.tokens:
            count = sum(1 for r, _ in self.tokens if r == role)
            self.tokens[role, n] = role if not count else f"{role}{count + 1}"
            self.of_size.setdefault(n, []).append(self.tokens[role, n])
        return self.tokens[role, n]

    def expr(self, x: Size, role: str = "") -> str:
        """An integer expression over size tokens, those of the role first."""
        if not isinstance(x, Poly):
            return str(x)
        return (
            " + ".join(
                "*".join([*([str(k)] if k != 1 or not mono else []), *(self._atom(a, role) for a in mono)])
                for mono, k in x.terms
            )
            .replace("+ -1*", "- ")
            .replace("+ -", "- ")
        )

    def _atom(self, a: Symbol | Form, role: str) -> str:
        if isinstance(a, Form):
            if a.op in ("//", "%"):
                return f"(({self.expr(a.args[0], role)}) {a.op} ({self.expr(a.args[1], role)}))"
            if a.op in ("min", "max"):
                return f"{a.op}({self.expr(a.args[0], role)}, {self.expr(a.args[1], role)})"
            raise Unliftable(f"{a} in an attribute")
        found = self.of_size.get(self.walk.number[a.name], [])
        best = [t for t in found if stem(t) == role] or found
        if not best:
            raise Unliftable(f"the size {a.name} is no axis of an input")
        return best[0]

    # ---- terms
    def show(self, t: Walked) -> str:
        """A term as rule text."""
        node = t.node
        if t.op == "input":
            return self.tensors[node["name"]]
        if t.op == "literal":
            return _literal(node["value"])
        if t.op == "count":
            return self.count(node.shape[0] - 1)
        if t.op == "view":
            return f"view({self.show(t.args[0])})" if self.views else self.show(t.args[0])
        if lookup(node.op).family == "elementwise":
            return self.elementwise(t)
        if t.op == "broadcast_in_dim":
            new = [self.token(label, n) for label, n in self._leaves(t.marks) if n != 1]
            inner = self.show(t.args[0])
            return f"bcast({inner}, {', '.join(new)})" if new else inner
        if t.op not in _SHOWN:
            raise Unliftable(f"{t.op} has no place in a rule")
        return _SHOWN[t.op](self, t)

    def _leaves(self, marks: FlowMarks) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []
        for label, n in marks.items():
            assert isinstance(n, int)
            axis = self.walk.labels.axis(((label, n),)) if n >= 0 else ((label, n),)
            if axis is None:
                raise Unliftable("axes that do not nest")
            out += axis
        return out

    def over(self, t: Walked) -> str:
        """The roles that an op acts on as a set."""
        found = [(self.walk.labels.find(k), n) for k, n in self._leaves(t.marks)]
        return ", ".join(dict.fromkeys(self.roles.get(k) or self.token(k, n) for k, n in found))

    def count(self, n: Size) -> str:
        """A size as a scalar term of rule text."""
        text = self.expr(n)
        return f"count({text})" if re.fullmatch(r"[a-z]+\d*", text) else f"num({text})"

    def elementwise(self, t: Walked) -> str:
        """An elementwise op as rule text; operands that are broadcast only to match the others are written bare."""
        args = [self._bare(a, [b for b in t.args if b is not a]) for a in t.args]
        op = t.node.op
        if op in OPERATORS and len(args) == 2:
            return f"({args[0]} {OPERATORS[op]} {args[1]})"
        if op == "select_n" and len(args) == 3:
            return f"where({args[0]}, {args[2]}, {args[1]})"
        if op == "neg":
            return f"(-{args[0]})"
        if op == "integer_pow":
            return f"integer_pow({args[0]}, {t.node['y']})"
        if op not in _ELEMENTWISE:
            raise Unliftable(f"{op} has no place in a rule")
        return f"{TEXT_NAME.get(op, op)}({', '.join(args)})"

    def _bare(self, a: Walked, others: Sequence[Walked]) -> str:
        inner = a
        while inner.op == "view" and inner.args[0].op in ("view", "broadcast_in_dim", "literal"):
            inner = inner.args[0]
        if inner.op != "broadcast_in_dim":
            return self.show(a)
        new = {label for label, n in self._leaves(inner.marks) if n != 1}
        if all(any(k in self._held(b) for b in others) for k in new):
            return self.show(inner.args[0])
        return self.show(a)

    def _held(self, t: Walked) -> set[int]:
        """Labels that a term has before any broadcast."""
        if t.op in ("literal", "count"):
            return set()
        if t.op == "broadcast_in_dim":
            gone = {label for label, _ in self._leaves(t.marks)}
        elif t.op == "view" or lookup(t.node.op).family == "elementwise":
            return set[int]().union(*(self._held(a) for a in t.args))
        else:
            gone = set[int]()
        return {label for axis in self._layout(t.lay) for label, _ in axis} - gone

    def windows(self, t: Walked, values: Sequence[Sequence[Size]], neutral: Callable[[int], Sequence[Size]]) -> str:
        """Per-axis attributes of the axes that they change."""
        out: list[str] = []
        for i, axis in enumerate(t.lay):
            if tuple(values[i]) == tuple(neutral(i)):
                continue
            if len(axis) != 1:
                raise Unliftable(f"{t.op} on an axis of size 1 or on several axes in one")
            role = self.role(axis[0][0])
            out.append(f"{role}({', '.join(self.expr(v, role) for v in values[i])})")
        return ", ".join(out)


RESERVED = frozenset(
    {"in", "is", "if", "or", "as", "prefer", "with", "extra", "given", "mode", "source", "dtype", "numerics"}
)


def _letters(i: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i // 26)


def _tensor(name: str, i: int) -> str:
    """The name of a tensor in rule text: capitals, so that it is no role."""
    text = re.sub(r"\W", "_", name).upper()
    return text if text[:1].isalpha() else f"X{i}"


def _literal(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        raise Unliftable("a constant that is no number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value) if isinstance(value, bool) else number(value)
    return f"({text})" if text.startswith("-") else text


def _dot(p: Printer, t: Walked) -> str:
    a, b = (p.show(x) for x in t.args)
    over = p.over(t)
    return f"dot({a}, {b}, {over})" if over else f"dot({a}, {b})"


def _reduced(p: Printer, t: Walked) -> str:
    if t.node.dtype == "bool":
        raise Unliftable(f"{t.op} of truth values")
    over = p.over(t)
    return f"{REDUCE[t.op]}({p.show(t.args[0])}, {over})" if over else p.show(t.args[0])


def _prefix(p: Printer, t: Walked) -> str:
    if t.node["reverse"]:
        raise Unliftable("a scan from the end")
    return f"{t.op}({p.show(t.args[0])}, {p.over(t)})"


def _concat(p: Printer, t: Walked) -> str:
    return f"concat({', '.join(map(p.show, t.args))}, {p.over(t)})"


def _slice(p: Printer, t: Walked) -> str:
    n, shape = t.node, t.node.inputs[0].shape
    values = list(zip(n["start_indices"], n["limit_indices"], n["strides"], strict=True))
    inside = p.windows(t, values, lambda i: (0, shape[i], 1))
    return f"slice({p.show(t.args[0])}, {inside})" if inside else p.show(t.args[0])


def _pad(p: Printer, t: Walked) -> str:
    inside = p.windows(t, t.node["padding_config"], lambda i: (0, 0, 0))
    return f"pad({p.show(t.args[0])}, {p.show(t.args[1])}, {inside})" if inside else p.show(t.args[0])


def _rev(p: Printer, t: Walked) -> str:
    over = p.over(t)
    return f"rev({p.show(t.args[0])}, {over})" if over else p.show(t.args[0])


def _window(p: Printer, t: Walked) -> str:
    n = t.node
    values = [(w, s, *pad) for w, s, pad in zip(n["window_dimensions"], n["window_strides"], n["padding"], strict=True)]
    return f"w{WINDOW[t.op]}({p.show(t.args[0])}, {p.windows(t, values, lambda i: (1, 1, 0, 0))})"


def _conv(p: Printer, t: Walked) -> str:
    n = t.node
    numbers: tuple[tuple[int, ...], ...] = n["dimension_numbers"]
    out = numbers[2]
    per_axis = zip(n["window_strides"], n["padding"], n["lhs_dilation"], n["rhs_dilation"], strict=True)
    windows: list[str] = []
    spatial: set[int] = set()
    for j, (step, (low, high), base, dilation) in enumerate(per_axis):
        axis: Axis = t.lay[out[2 + j]]
        if len(axis) != 1:
            raise Unliftable("a window on an axis of size 1")
        role = p.role(axis[0][0])
        spatial.add(axis[0][0])
        values = (step, low, high, base, dilation)
        windows.append(f"{role}({', '.join(p.expr(v, role) for v in values)})")
    features = [p.role(label) for label in t.marks if label not in spatial]
    a, b = (p.show(x) for x in t.args)
    return f"conv({', '.join([a, b, *features, *windows])})"


def _linear(p: Printer, t: Walked) -> str:
    over = p.over(t)
    if over.count(",") != 1:
        raise Unliftable(f"{t.op} of matrices of size 1")
    return f"{t.op}({', '.join([*map(p.show, t.args), over])})"


def _take(p: Printer, t: Walked) -> str:
    (label,) = t.marks
    return f"take({p.show(t.args[0])}, {p.show(t.args[1])}, {p.role(label)})"


def _segments(p: Printer, t: Walked) -> str:
    (axis,) = t.lay[:1]
    if len(axis) != 1:
        raise Unliftable("segments along an axis of size 1 or along several axes in one")
    return f"segsum({p.show(t.args[0])}, {p.show(t.args[1])}, {p.token(*axis[0])})"


_SHOWN: dict[str, Callable[[Printer, Walked], str]] = {
    **dict.fromkeys(PRODUCTS, _dot), **dict.fromkeys(CONVOLUTIONS, _conv),
    "concatenate": _concat, "slice": _slice, "pad": _pad, "rev": _rev, "gather": _take, "segment_sum": _segments,
    "inverse": _linear, "solve": _linear,
    **{op: _reduced for op, kind in REDUCE.items() if kind in REDUCERS},
    **dict.fromkeys(WINDOW, _window), **dict.fromkeys(CUMULATIVE, _prefix),
}  # fmt: skip


def widen(lifted: Lifted, accepts: Callable[[Rule], bool], where: str = "<lifted>") -> Rule | None:
    """The most general rule that `accepts` takes, or None where it refuses the text as lifted."""

    def tried(many: Sequence[str]) -> Rule | None:
        try:
            made = parse(lifted.text(many), where)
        except RuleError:
            return None
        return made if accepts(made) else None

    best = tried(lifted.roles)
    if best is not None:
        return best
    best, many = tried(()), list[str]()
    if best is None:
        return None
    for role in lifted.roles:
        wider = tried([*many, role])
        if wider is not None:
            best, many = wider, [*many, role]
    return best


def lift(name: str, left: Graph, right: Graph, sizes: Sequence[str], premises: Sequence[Poly] = ()) -> Lifted:
    """The statement `left == right` as a rule over single axes.

    Args:
        name: of the rule.
        left, right: graphs with the same inputs over the same size symbols.
        sizes: names of the symbols.
        premises: polynomials of sizes that are at least 0.

    Raises:
        Unliftable: the rule language cannot express the statement.
    """
    if left.constants or right.constants:
        raise Unliftable("an array that a function closes over")
    if any(len(node.types) > 1 for graph in (left, right) for node in graph.nodes()):
        raise Unliftable("an operation with several results")
    walk = GraphWalk(sizes)
    sides: list[list[Any]] = []
    roots = [walk.fresh(node) for node in left.outputs]
    for graph in (left, right):
        small = walk.concrete(graph)
        sides.append([walk.term(a, b, lay) for a, b, lay in zip(graph.outputs, small.outputs, roots, strict=True)])
    if not walk.labels.distinct():
        raise Unliftable("the sides agree only if two axes of one tensor are the same axis")
    made = Printer(walk, name, [x["name"] for x in left.inputs]).lifted(sides, premises)
    kinds = {x.dtype for graph in (left, right) for x in graph.nodes()} - {"bool"}
    return replace(made, integers=bool(kinds) and all(k.startswith(("int", "uint")) for k in kinds))
