"""Search spaces of the matcher: e-classes of an e-graph, or nodes of an IR graph.

Both are seen as *classes*: tensors in a natural axis order, with alternatives that compute them.  A reference is a
class and a permutation (None for the identity).  In the e-graph a class is its number and transposes ride on
references; over the IR a class is a node below all transposes.  A `Joined` is a concatenation that the e-graph holds
only as part of a longer one; it is made when a match binds it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS, PERM_MASK, PERMS
from rewrites.match.flow import IntShape, OpSite
from superopt.ir.graph import Node, mk, topological

Class: TypeAlias = Any  # int in an e-graph, Node in the IR, or Joined
Reference: TypeAlias = Any  # a reference of the e-graph, or a Node
Perm: TypeAlias = "tuple[int, ...] | None"
Child: TypeAlias = tuple[Class, Perm]
Space: TypeAlias = "EGraphSpace | IRSpace"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One op that computes a class: value(class) = transpose(value(op), perm); `key` is its e-node, if it has one."""

    op: str
    site: OpSite
    children: tuple[Child, ...]
    perm: Perm
    attrs: tuple[tuple[str, Any], ...]
    key: tuple[int, ...] | None = None


VIEW = "@view"
"""Key of the alternatives that only lay out the same tensor differently: reshapes, and broadcasts along size 1."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The concatenation of some operands of a longer one."""

    dimension: int
    children: tuple[Child, ...]


class EGraphSpace:
    """The classes of an e-graph; cached until the e-graph changes."""

    def __init__(self, eg: EGraph) -> None:
        # the graph keeps this space alive, not the other way round
        self.eg: EGraph = weakref.proxy(eg)
        self.stamp = stamp(eg)
        self._alternatives: dict[Class, dict[str, list[Alternative]]] = {}

    def alternatives(self, cls: Class) -> dict[str, list[Alternative]]:
        """Ops that compute a class, by name."""
        found = self._alternatives.get(cls)
        if found is None:
            found = {} if isinstance(cls, Joined) else self._make(cls)
            self._alternatives[cls] = found
        return found

    def _make(self, cls: int) -> dict[str, list[Alternative]]:
        eg = self.eg
        shape = eg.shape(cls << PERM_BITS)
        rank = len(shape)
        out: dict[str, list[Alternative]] = {}
        for enode in eg.enodes(cls):
            p = eg.perm_from(enode, cls << PERM_BITS)
            perm = PERMS[p] if p else None
            own = shape
            if perm is not None:
                sizes = [0] * rank
                for i, axis in enumerate(perm):
                    sizes[axis] = shape[i]
                own = tuple(sizes)
            refs = [eg.find(r) for r in enode[1:]]
            site = OpSite(eg.values_of(enode), [eg.shape(r) for r in refs], own)
            children = tuple([self.child(r) for r in refs])
            _enter(self, out, Alternative(eg.op_of(enode), site, children, perm, eg.attrs_of(enode), enode))
        return out

    def child(self, value: Reference) -> Child:
        """The class and permutation of a reference."""
        ref = self.eg.find(value)
        p = ref & PERM_MASK
        return ref >> PERM_BITS, PERMS[p] if p else None

    def rank(self, cls: Class) -> int:
        """Rank of a class."""
        return self.eg.rank_of_class(cls if not isinstance(cls, Joined) else cls.children[0][0])

    def shape(self, cls: Class) -> IntShape:
        """Shape of a class."""
        return _joined_shape(self, cls) if isinstance(cls, Joined) else self.eg.shape(cls << PERM_BITS)

    def dtype(self, cls: Class) -> str:
        """Dtype of a class."""
        return self.eg.dtype((cls.children[0][0] if isinstance(cls, Joined) else cls) << PERM_BITS)

    def scalar(self, cls: Class) -> bool | int | float | None:
        """The constant that fills a class, or None."""
        return None if isinstance(cls, Joined) else self.eg.scalar(cls << PERM_BITS)

    def frozen(self, cls: Class) -> bool:
        """Whether a class is known ahead of time."""
        if isinstance(cls, Joined):
            return all(self.frozen(c) for c, _ in cls.children)
        return self.eg.frozen(cls << PERM_BITS)

    def readers(self, cls: Class) -> int:
        """Number of e-nodes that read a class."""
        return 0 if isinstance(cls, Joined) else len(self.eg.parents(cls))

    def value(self, cls: Class) -> Reference:
        """The reference of a class in its natural axis order; makes the e-node of a `Joined`."""
        if not isinstance(cls, Joined):
            return self.eg.find(cls << PERM_BITS)
        refs = [_transposed_ref(self.eg, c, perm) for c, perm in cls.children]
        return self.eg.add("concatenate", *refs, dimension=cls.dimension)


def _enter(space: Space, out: dict[str, list[Alternative]], new: Alternative) -> None:
    """Add an alternative under its op, as a view if it only reshapes, and a long concatenation as first and rest."""
    op, site = new.op, new.site
    out.setdefault(op, []).append(new)
    if op in ("regroup", "reshape") or (
        op == "broadcast_in_dim" and math.prod(site.shape) == math.prod(site.shapes[0])
    ):
        out.setdefault(VIEW, []).append(new)
    elif op == "concatenate" and len(new.children) > 2:
        rest = Joined(site.values["dimension"], new.children[1:])
        split = OpSite(site.values, [site.shapes[0], _joined_shape(space, rest)], site.shape)
        out[op].append(Alternative(op, split, (new.children[0], (rest, None)), new.perm, new.attrs, new.key))


def _transposed_ref(eg: EGraph, cls: int, perm: Perm) -> int:
    ref = eg.find(cls << PERM_BITS)
    return ref if perm is None else eg.transpose(ref, perm)


def _joined_shape(space: Space, cls: Joined) -> IntShape:
    shapes = [apply(space.shape(c), perm) for c, perm in cls.children]
    d = cls.dimension
    return (*shapes[0][:d], sum(s[d] for s in shapes), *shapes[0][d + 1 :])


def apply(values: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    """Per-axis values after a transpose."""
    return tuple(values) if perm is None else tuple([values[i] for i in perm])


def stamp(eg: EGraph) -> tuple[int, int]:
    """A version of the e-graph: it changes whenever the e-nodes of an existing class may have changed."""
    return len(eg.unions), len(eg._pending)  # pyright: ignore[reportPrivateUsage]


_SPACES: weakref.WeakKeyDictionary[EGraph, EGraphSpace] = weakref.WeakKeyDictionary()


def space_of(graph: EGraph | Space) -> Space:
    """The space of an e-graph, shared by all matches until the e-graph changes; a space is itself."""
    if not isinstance(graph, EGraph):
        return graph
    space = _SPACES.get(graph)
    if space is None or space.stamp != stamp(graph):
        space = _SPACES[graph] = EGraphSpace(graph)
    return space


class IRSpace:
    """The nodes of an IR graph, below their transposes; readers are those among the given roots.

    With `verbatim` a transpose is an op like any other, so that matches bind the nodes as they stand.
    """

    def __init__(self, roots: Sequence[Node] = (), *, verbatim: bool = False) -> None:
        self.verbatim = verbatim
        self._alternatives: dict[Node, dict[str, list[Alternative]]] = {}
        self._readers: dict[Node, int] = {}
        for node in topological(roots):
            if node.op != "transpose":
                for x in {self.child(x)[0] for x in node.inputs}:
                    self._readers[x] = self._readers.get(x, 0) + 1
        self._frozen: dict[Node, bool] = {}

    def alternatives(self, cls: Class) -> dict[str, list[Alternative]]:
        """The op of a node."""
        if isinstance(cls, Joined):
            return {}
        found = self._alternatives.get(cls)
        if found is None:
            site = OpSite(dict(cls.attrs), [_int_shape(x) for x in cls.inputs], _int_shape(cls) if _single(cls) else ())
            children = tuple([self.child(x) for x in cls.inputs])
            found = self._alternatives[cls] = {}
            _enter(self, found, Alternative(cls.op, site, children, None, cls.attrs))
        return found

    def child(self, value: Reference) -> Child:
        """The node below all transposes, and the permutation that they make."""
        if self.verbatim:
            return value, None
        perm: Perm = None
        while value.op == "transpose":
            step = value["permutation"]
            perm = step if perm is None else tuple([step[i] for i in perm])
            value = value.inputs[0]
        return value, None if perm == tuple(range(len(perm or ()))) else perm

    def rank(self, cls: Class) -> int:
        """Rank of a node."""
        return len(self.shape(cls))

    def shape(self, cls: Class) -> IntShape:
        """Shape of a node."""
        return _joined_shape(self, cls) if isinstance(cls, Joined) else _int_shape(cls)

    def dtype(self, cls: Class) -> str:
        """Dtype of a node."""
        return (cls.children[0][0] if isinstance(cls, Joined) else cls).dtype

    def scalar(self, cls: Class) -> bool | int | float | None:
        """The value of a literal or of its broadcast."""
        while not isinstance(cls, Joined) and cls.op in ("broadcast_in_dim", "reshape", "transpose"):
            cls = cls.inputs[0]
        return cls["value"] if not isinstance(cls, Joined) and cls.op == "literal" else None

    def frozen(self, cls: Class) -> bool:
        """Whether a node depends on frozen inputs and constants alone."""
        if isinstance(cls, Joined):
            return all(self.frozen(c) for c, _ in cls.children)
        found = self._frozen.get(cls)
        if found is None:
            if cls.op == "input":
                found = bool(cls["frozen"])
            else:
                found = cls.op != "opaque" and all(self.frozen(x) for x in cls.inputs)
            self._frozen[cls] = found
        return found

    def readers(self, cls: Class) -> int:
        """Number of nodes that read a node."""
        return 0 if isinstance(cls, Joined) else self._readers.get(cls, 0)

    def value(self, cls: Class) -> Reference:
        """The node itself; makes the node of a `Joined`."""
        if not isinstance(cls, Joined):
            return cls
        parts = [c if p is None else mk("transpose", c, permutation=p) for c, p in cls.children]
        return mk("concatenate", *parts, dimension=cls.dimension)


def _single(node: Node) -> bool:
    return len(node.types) == 1


def _int_shape(node: Node) -> IntShape:
    if not _single(node):
        return ()
    return tuple([n for n in node.shape if isinstance(n, int)])
