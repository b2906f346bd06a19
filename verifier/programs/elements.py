"""Element labels: every element of every tensor of a program gets the label of the expression that computes it.

Two tensors with equal labels are the same function of the inputs, whatever movement, layout, order of operands or
grouping of axes lies between.  A movement op moves labels.  An elementwise op labels each element by its function and
its operands' labels; a reduction by the multiset that it reduces.  A product labels it by the pairs that it sums,
matched over the contracted positions, in any order.  Hence reshapes, transposes, slices, concatenations, broadcasts and
the layout of every product need no rule here.  In addition a few named laws hold: neutral elements, double negation,
selects between equal values or by constants, conversion to the own dtype, folded scalar constants (`LAWS`).

Equalities by a rule are added with `Merges.unite`; labels computed afterwards take them into account.  Recomputing all
labels until nothing changes is therefore congruence closure.  No part of the search or the e-graph is used.  With
`exact`, laws that change bits (`x + 0`, for -0.0) are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from rewrites.language import names
from superopt.ir import scalar
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.scalar import COMMUTATIVE
from superopt.ir.text import print_graph
from superopt.ir.types import FLOATS
from verifier.programs import element_sums as sums
from verifier.programs.mixing import Ids, Merges, Tags, add, mix, ordered

LAWS = (
    "x + 0 = x and x - 0 = x (bit-exact only as x + -0 and x - 0)", "x * 1 = x", "x / 1 = x", "neg(neg x) = x",
    "max(x, -inf) = x", "min(x, inf) = x", "x and true = x", "x or false = x", "x xor false = x",
    "where(true, a, b) = a", "where(p, a, a) = a", "integer_pow(x, 1) = x",
    "integer_pow(x, 2) = square(x)", "a truth value as a float = where(it, 1, 0)", "convert to the own dtype = x",
    "a fold over one element = that element", "scalar constants are folded",
)  # fmt: skip
"""The laws that are used in addition to the denotations of the op table."""

_FOLDED = frozenset(
    "add sub mul div max min neg abs sqrt floor ceil eq ne lt le gt ge and or xor not".split()  # noqa: SIM905
)


class ElementLabels:
    """The labels of nodes over the inputs of one program.

    Args:
        key: key of the scrambling.
        exact: whether to leave out laws that are not bit-exact.
        bodies: text of a body of control flow -> text of the body that represents it.
    """

    def __init__(self, key: bytes, *, exact: bool = False, bodies: Mapping[str, str] | None = None) -> None:
        self.tag, self.merges, self.exact = Tags(key), Merges(), exact
        self.bodies = dict(bodies or {})
        self._constants: dict[int, tuple[str, Any]] = {}

    def of(self, node: Node) -> Ids:
        """Labels of the elements of a node with one result."""
        (ids,) = self.of_any(node)
        return ids

    def of_any(self, node: Node) -> tuple[Ids, ...]:
        """Labels of each result of a node; the labels of a node below it are freed after their last read."""
        order = topological([node])
        left = Counter([x for n in order for x in set(n.inputs)])
        held: dict[Node, tuple[Ids, ...]] = {}
        for n in order:
            held[n] = self.label(n, [held[x] for x in n.inputs])
            for x in set(n.inputs):
                left[x] -= 1
                if not left[x]:
                    del held[x]
        return held[node]

    def literal(self, dtype: str, values: Any) -> Ids:
        """Labels of constants."""
        array = np.asarray(values)
        if dtype in FLOATS:
            bits = np.ascontiguousarray(array.astype(np.float64)).view(np.uint64).reshape(array.shape)
        else:
            bits = array.astype(np.uint64) if dtype == "uint64" else array.astype(np.int64).astype(np.uint64)
        return mix(add(bits, self.tag("literal", dtype)))

    # ---- one node

    def label(self, node: Node, below: Sequence[tuple[Ids, ...]]) -> tuple[Ids, ...]:
        """Labels of a node's results from those of its operands' results."""
        op = node.op
        if op == "result":
            index: int = node["index"]
            return (below[0][index],)
        if len(node.types) != 1 or any(len(x.types) != 1 for x in node.inputs):
            return self._whole(node, below)
        xs = [x for (x,) in below]
        attrs = dict(node.attrs)
        if op == "macro":
            op, attrs = attrs["op"], dict(attrs["attrs"])
        move = _MOVE.get(op)
        if move is not None:
            return (move(self, node, xs, attrs),)
        if op in names.ELEMENTWISE:
            ids = self._elementwise(node, op, xs, attrs)
        elif op in sums.LABEL:
            ids = sums.LABEL[op](self.tag, node, xs, attrs)
        elif op == "input":
            ids = self._input(node)
        elif op == "literal":
            ids = self.literal(node.dtype, node["value"])
            self._constants[int(ids)] = (node.dtype, node["value"])
        else:
            return self._whole(node, below)
        return (self.merges.seldom(ids),)

    def _input(self, node: Node) -> Ids:
        size = prod(_ints(node))
        tag = self.tag("input", node["name"], str(node.type))
        return mix(add(mix(np.arange(size, dtype=np.uint64)), tag)).reshape(_ints(node))

    def _whole(self, node: Node, operands: Sequence[tuple[Ids, ...]]) -> tuple[Ids, ...]:
        """Labels of the results of an opaque op: a function of its operands in their layout."""
        pairs = zip(node.inputs, operands, strict=True)
        below = [ordered(self.tag("operand", x.types), *map(digest, ids)) for x, ids in pairs]
        out: list[Ids] = []
        for i, kind in enumerate(node.types):
            tag = ordered(self.tag("op", node.op, self._text(node.attrs), i), *below)
            shape = [int(str(n)) for n in kind.shape]
            ids = mix(add(mix(np.arange(prod(shape), dtype=np.uint64)), tag))
            out.append(self.merges.find(ids.reshape(shape)))
        return tuple(out)

    def _text(self, value: Any) -> str:
        if isinstance(value, Graph):
            text = print_graph(value)
            return self.bodies.get(text, text)
        if isinstance(value, tuple):
            return f"({', '.join([self._text(v) for v in cast(tuple[Any, ...], value)])})"
        return repr(value)

    # ---- elementwise

    def _elementwise(self, node: Node, op: str, xs: list[Ids], attrs: dict[str, Any]) -> Ids:
        dtypes = [x.dtype for x in node.inputs]
        constants = [self._constant(x) for x in xs]
        if all(c is not None for c in constants):
            folded = self._folded(node, op, dtypes, [c[1] for c in constants if c is not None])
            if folded is not None:
                ids = self.literal(node.dtype, folded)
                self._constants[int(ids)] = (node.dtype, folded)
                return np.broadcast_to(ids, _ints(node))
        return np.broadcast_to(self._function(node, op, attrs, dtypes, list(map(compact, xs))), _ints(node))

    def _function(self, node: Node, op: str, attrs: dict[str, Any], dtypes: list[str], xs: list[Ids]) -> Ids:
        """Labels of an elementwise function; operands have one element along axes that are only broadcast."""
        if op == "convert_element_type" and dtypes[0] == "bool" and node.dtype in FLOATS:
            return self._select(node, "bool", [xs[0], *(self.literal(node.dtype, value) for value in (0.0, 1.0))])
        if op == "convert_element_type":
            return xs[0] if dtypes[0] == node.dtype else ordered(self.tag(op, dtypes[0], node.dtype), xs[0])
        if op == "integer_pow" and attrs["y"] in (1, 2):
            if attrs["y"] == 1:
                return xs[0]
            op, attrs = "square", {}
        if op == "neg":
            return xs[0] ^ self.tag("neg", node.dtype)
        if op == "select_n":
            return self._select(node, dtypes[0], xs)
        tag = self.tag(op, sorted(attrs.items()), node.dtype)
        alike = op in COMMUTATIVE
        ids = ordered(tag, np.minimum(*xs), np.maximum(*xs)) if alike else ordered(tag, *xs)
        if len(xs) == 2 and dtypes[0] == dtypes[1] == node.dtype:
            ids = self._neutral(op, node.dtype, xs, ids)
        return ids

    def _neutral(self, op: str, dtype: str, xs: list[Ids], ids: Ids) -> Ids:
        for c in self._neutral_values(op, dtype):
            label = self.merges.find(self.literal(dtype, c))
            for one, other in ((xs[1], xs[0]), (xs[0], xs[1])) if op in COMMUTATIVE else ((xs[1], xs[0]),):
                neutral = one == label
                if neutral.any():
                    ids = np.where(neutral, other, ids)
        return ids

    def _neutral_values(self, op: str, dtype: str) -> tuple[Any, ...]:
        real = dtype in FLOATS
        if op in ("add", "sub") and dtype != "bool":
            if not real:
                return (0,)
            return ((-0.0,) if op == "add" else (0.0,)) if self.exact else (0.0, -0.0)
        if op in ("mul", "div") and dtype != "bool":
            return (1,)
        if op in ("max", "min") and real:
            return (-np.inf,) if op == "max" else (np.inf,)
        if dtype == "bool" and op in ("and", "or", "xor"):
            return (op == "and",)
        return ()

    def _select(self, node: Node, which: str, xs: list[Ids]) -> Ids:
        ids = ordered(self.tag("select_n", which, node.dtype), *xs)
        for value, case in enumerate(xs[1:]):
            ids = np.where(xs[0] == self.merges.find(self.literal(which, value)), case, ids)
        same = np.ones(ids.shape, bool)
        for case in xs[2:]:
            same &= case == xs[1]
        return np.where(same, xs[1], ids)

    def _constant(self, ids: Ids) -> tuple[str, Any] | None:
        if not ids.size:
            return None
        first = ids.flat[0]
        known = self._constants.get(int(first))
        return known if known is not None and (ids == first).all() else None

    def _folded(self, node: Node, op: str, dtypes: Sequence[str], values: Sequence[Any]) -> Any:
        """The constant of a function that every implementation rounds alike, or None."""
        arrays = [np.asarray(v, scalar.numpy_dtype(d)) for v, d in zip(values, dtypes, strict=True)]
        if op == "convert_element_type":
            if dtypes[0] in FLOATS and node.dtype not in FLOATS:
                return None
            return scalar.convert(arrays[0], dtypes[0], node.dtype).item()
        if op == "square":  # a product
            op, arrays = "mul", arrays * 2
        if op not in _FOLDED or len(set(dtypes)) != 1 or (op == "div" and dtypes[0] not in FLOATS):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(scalar.apply(op, dtypes[0], tuple(arrays))).item()


def _ints(node: Node) -> tuple[int, ...]:
    return tuple([int(str(n)) for n in node.shape])


def compact(x: Ids) -> Ids:
    """The array with one element along each axis of stride 0, that is, an axis that was only broadcast."""
    return x[tuple([slice(0, 1) if stride == 0 and n > 1 else slice(None) for n, stride in zip(x.shape, x.strides)])]  # noqa: B905


def digest(ids: Ids) -> np.uint64:
    """One label of a whole tensor in its layout."""
    places = mix(np.arange(ids.size, dtype=np.uint64)).reshape(ids.shape)
    return mix(add(ids, places)).sum(dtype=np.uint64)


# ---- movement


def _same(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return xs[0]


def _transpose(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return xs[0].transpose(v["permutation"])


def _reshape(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return xs[0].reshape(_ints(node))


def _regroup(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return xs[0].transpose([a for ins, _ in v["groups"] for a in ins]).reshape(_ints(node))


def _broadcast(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    shape = [1] * len(v["shape"])
    for axis, n in zip(v["broadcast_dimensions"], xs[0].shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(xs[0].reshape(shape), _ints(node))


def _rev(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return np.flip(xs[0], v["dimensions"])


def _slice(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    bounds = zip(v["start_indices"], v["limit_indices"], v["strides"], strict=True)
    return xs[0][tuple([slice(a, b, s) for a, b, s in bounds])]


def _pad(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return sums.padded(xs[0], [(lo, hi, inner + 1) for lo, hi, inner in v["padding_config"]], xs[1])


def _concatenate(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    return np.concatenate(xs, axis=v["dimension"])


def _iota(labels: ElementLabels, node: Node, xs: list[Ids], v: dict[str, Any]) -> Ids:
    shape = [1] * len(v["shape"])
    shape[v["dimension"]] = -1
    line: Any = np.asarray(range(v["shape"][v["dimension"]]), scalar.numpy_dtype(v["dtype"]))
    return np.broadcast_to(labels.literal(v["dtype"], line).reshape(shape), _ints(node))


_MOVE: dict[str, Callable[[ElementLabels, Node, list[Ids], dict[str, Any]], Ids]] = {
    "barrier": _same, "transpose": _transpose, "reshape": _reshape, "regroup": _regroup, "rev": _rev,
    "broadcast_in_dim": _broadcast, "slice": _slice, "pad": _pad, "concatenate": _concatenate, "iota": _iota,
}  # fmt: skip
