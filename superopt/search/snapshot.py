"""A compact, read-only view of the part of an e-graph that a selection can use.

Live classes (reachable from the roots and not frozen) are numbered from 0.  An `Option` is one e-node of a class, its
live children given as (class number, permutation), its frozen children as `FrozenLeaf`.  The `OptionForm` of an option
is the part that does not depend on which classes it reads: op, attributes, operand shapes, and how each frozen operand
is stored.  Forms are interned, so that identical layers share every price.

Frozen leaves are stored in their cheapest representation.  A broadcast of something smaller is kept as its source and
broadcast where it is read; a literal is no tensor at all.

Ops differ in how they take part in kernels.  A *view* moves data without arithmetic and is recomputed in each reader.
A *reduction* or a concatenation ends a kernel but fuses elementwise producers.  Every other op that is not elementwise
is *heavy*: its operands must lie in memory.  Ops with several results (control flow, opaque) have no layout: they read
and return natural order.  For a producer that several kernels read, this follows the compiled programs of XLA:CPU.
It computes *cheap* ones (additions, products, comparisons, `abs`, `sin` ...) again in every reader, and keeps the
result of costly ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewrites.egraph import perm
from superopt.ir.graph import Attrs, Node
from superopt.ir.ops.axes import AxisRule, Flow
from superopt.ir.ops.table import CONTRACTIONS, CONTROL, ELEMENTWISE, PRODUCTS, REDUCTIONS, TABLE
from superopt.ir.ops.table import VIEWS as MOVES
from superopt.ir.types import Shape, TensorType
from superopt.kernels.choose.regions import is_computed
from superopt.search.graphs import cheapest, components

if TYPE_CHECKING:
    from rewrites.egraph.graph import EGraph

SHIFT = perm.PERM_BITS
MASK = perm.PERM_MASK
VIEWS = MOVES | {"literal"}
CHEAP = VIEWS | {op for op in ELEMENTWISE if not TABLE[op].kept}
FUSED = ELEMENTWISE | VIEWS  # ops whose results need not be materialised
LIGHT = FUSED | REDUCTIONS | {"input", "concatenate"}  # ops whose operands need not be
FOLLOWING = REDUCTIONS | CONTRACTIONS  # ops that want layouts which depend on those that their operands have
WantedOrders = tuple[int, tuple[int, ...]]  # number of the answer, interned order of each operand


@dataclass(frozen=True, slots=True)
class FrozenLeaf:
    """A frozen operand: `source` broadcast so that its axis j stands at operand axis `dims[j]`, or a literal.

    Attributes:
        source: e-graph reference of the stored tensor (unused for a literal).
        shape: shape of the source.
        dims: operand axis of each source axis.
        full: shape of the operand.
        value: the scalar when the operand is a (broadcast) literal, else None.
    """

    source: int
    shape: Shape
    dims: tuple[int, ...]
    full: Shape
    dtype: str
    value: bool | int | float | None = None

    @property
    def signature(self) -> tuple[Any, ...]:
        """The properties that a price may depend on: not which tensor it is."""
        return (repr(self.value), self.shape, self.dims, self.dtype)


@dataclass(frozen=True, slots=True)
class OptionForm:
    """Op, attributes and operands of an option apart from their identity; `fid` numbers forms.

    A macro is described by the op that it stands for, with `rule` set to the macro rule's name.  `axes` is how axes
    flow through the op, and `flow` how they do here; both are None for ops without.
    """

    fid: int
    op: str
    attrs: dict[str, Any]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    frozen: tuple[FrozenLeaf | None, ...]
    shape: Shape
    dtype: str
    rule: str | None = None
    axes: AxisRule | None = None
    flow: Flow | None = None

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of the result and of the operands."""
        operands = itertools.starmap(TensorType, zip(self.shapes, self.dtypes, strict=True))
        return (TensorType(self.shape, self.dtype), *operands)


class Forms:
    """The interning table of forms, and what follows from forms alone; shared by the searches of one e-graph.

    Attributes:
        all: the forms, by number.
        plain, following: the orders that a form wants for its operands, with their number (see `emit.Wants`).
        laid: by that number, the form, the order of its result and those of its operands.
        alone: by that number, output node of the op as a kernel of its own; None where it costs nothing.
        kernels: signature of a kernel (`State.signature`) -> its output node; None where it costs nothing.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[Any, ...], OptionForm] = {}
        self.all: list[OptionForm] = []
        self.plain: dict[int, WantedOrders] = {}
        self.following: dict[tuple[int, ...], WantedOrders] = {}
        self.laid: list[tuple[OptionForm, int, tuple[int, ...]]] = []
        self.alone: dict[int, Node | None] = {}
        self.kernels: dict[Hashable, Node | None] = {}

    def intern(
        self,
        op: str,
        attrs: Attrs,
        shapes: tuple[Shape, ...],
        dtypes: tuple[str, ...],
        frozen: tuple[FrozenLeaf | None, ...],
        result: TensorType,
    ) -> OptionForm:
        """The form with these parts, created if it is new."""
        signature = tuple(None if leaf is None else leaf.signature for leaf in frozen)
        key = (op, repr(attrs) if op == "literal" else attrs, shapes, dtypes, signature, result)
        form = self.table.get(key)
        if form is None:
            rule: str | None = None
            named = dict(attrs)
            if op == "macro":
                rule, op, named = named["rule"], named["op"], dict(named["attrs"])
            axes = TABLE[op].axes
            form = OptionForm(
                len(self.all), op, named, shapes, dtypes, frozen=frozen, shape=result.shape, dtype=result.dtype,
                rule=rule, axes=axes, flow=None if axes is None else axes.flow(named, shapes, result.shape),
            )  # fmt: skip
            self.table[key] = form
            self.all.append(form)
        return form


class Option:
    """One e-node of a class.

    Attributes:
        form: its op, attributes and operand shapes.
        live: (operand position, child class, permutation) of each live operand, in order.
        kids: the child classes of `live`, with repetitions.
        frozen: the frozen leaf at each operand position, or None.
        out: permutation h with value(e-node) = transpose(value(class), h); `out_inverse` its inverse.
        enode, origin: the e-node and the rule instance that introduced it (None: the program itself).
        apart: whether none of our kernels can compute it.
        indexes: whether it is an index map in any of our kernels (a pad chooses).
        chains: whether one of our kernels may also compute its operands: a product of live values (attention), or
            rows and slices that are picked (of what lies in memory, or of what is picked itself).
    """

    __slots__ = ("apart", "chains", "cheap", "control", "ends", "enode", "fid", "form", "frozen", "heavy", "indexes",
                 "kids", "live", "needs_current", "origin", "out", "out_inverse", "view")  # fmt: skip

    def __init__(
        self,
        form: OptionForm,
        live: tuple[tuple[int, int, int], ...],
        frozen: tuple[FrozenLeaf | None, ...],
        out: int,
        enode: tuple[int, ...],
        origin: Any,
    ) -> None:
        self.form = form
        self.fid = form.fid
        self.live = live
        self.kids = tuple(k for _, k, _ in live)
        self.frozen = frozen
        self.out = out
        self.out_inverse = perm.inverse(out)
        self.enode = enode
        self.origin = origin
        self.heavy = form.op not in LIGHT
        self.ends = form.op not in FUSED
        self.control = form.op in CONTROL
        self.view = form.op in VIEWS
        self.indexes = self.view and form.op != "pad"
        self.cheap = form.op in CHEAP
        self.needs_current = form.op in FOLLOWING
        self.apart = form.op in CONTROL or not is_computed(form.op, form.types)
        live_product = form.op in PRODUCTS and len(live) == len(form.shapes)
        self.chains = live_product or TABLE[form.op].family == "indexing"

    def __repr__(self) -> str:
        return f"<{self.form.op} of {self.kids}>"


@dataclass(frozen=True, slots=True)
class Selection:
    """One choice of the search: per class the option, the layout, the override bit and whether it is materialised."""

    options: Sequence[int]
    layouts: Sequence[int]
    bits: Sequence[int]
    materialised: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Root:
    """An output of the program: a live class through a permutation, or a frozen leaf (`cls` is -1)."""

    cls: int
    perm: int
    leaf: FrozenLeaf | None = None


class Snapshot:
    """Live classes of an e-graph with their options.

    Attributes:
        options: per class, its options (original e-nodes first, then in the e-graph's order).
        shapes, dtypes: per class, of its value in natural axis order.
        roots: the outputs, in program order.
        returned: class -> numbers of the outputs that are its value.
        class_ids: the e-graph's class behind each number.
        component: per class, its strongly connected component; `component_size` by component; numbered so that
            children come before (or with) their readers.
        home: per class, its layout in the program itself (0 where the program lacks it).
    """

    def __init__(self, eg: EGraph, forms: Forms | None = None) -> None:
        self.eg = eg
        self.forms = forms or Forms()
        self.options: list[list[Option]] = []
        self.shapes: list[Shape] = []
        self.dtypes: list[str] = []
        self.class_ids: list[int] = []
        self._number: dict[int, int] = {}
        self._leaves: dict[int, FrozenLeaf] = {}
        self.roots: tuple[Root, ...] = tuple(self._root(ref) for ref in eg.roots)
        done = 0
        while done < len(self.class_ids):
            self.options.append(self._options(self.class_ids[done]))
            done += 1
        self._drop_dead_ends()
        self.size = len(self.options)
        self.home = self._home()
        self.returned: dict[int, list[int]] = {}
        for i, root in enumerate(self.roots):
            if root.cls >= 0:
                self.returned.setdefault(root.cls, []).append(i)
        self.component, self.component_size = components(
            [sorted({k for option in row for k in option.kids}) for row in self.options]
        )

    @property
    def cyclic_components(self) -> int:
        """Number of strongly connected components of more than one class."""
        return sum(1 for n in self.component_size if n > 1)

    @property
    def option_count(self) -> int:
        """Number of options of all live classes."""
        return sum(map(len, self.options))

    def extract(
        self, cost: Callable[[int, Option], float], combine: Callable[[Iterable[float]], float] = sum
    ) -> tuple[list[int | None], list[float]]:
        """`cheapest` over the live classes: (class, option) -> positive cost of the option itself."""
        rows = self.options
        return cheapest([[o.kids for o in row] for row in rows], lambda c, i: cost(c, rows[c][i]), combine)

    def original(self) -> list[int]:
        """The program as imported: in each class the e-node that no rule introduced, acyclic over all classes."""
        penalty = 1e6
        chosen, _ = self.extract(lambda c, option: 1.0 if option.origin is None else penalty, max)
        return [0 if choice is None else choice for choice in chosen]

    def is_acyclic(self, selection: Sequence[int]) -> bool:
        """Whether a choice of options for all classes is free of cycles."""
        mark = [0] * self.size
        for start in range(self.size):
            if mark[start]:
                continue
            stack = [(start, 0)]
            while stack:
                c, i = stack.pop()
                mark[c] = 1
                kids = self.options[c][selection[c]].kids if self.options[c] else ()
                if i == len(kids):
                    mark[c] = 2
                    continue
                stack.append((c, i + 1))
                if mark[kids[i]] == 1:
                    return False
                if not mark[kids[i]]:
                    stack.append((kids[i], 0))
        return True

    def _root(self, ref: int) -> Root:
        ref = self.eg.find(ref)
        if self.eg.frozen(ref):
            return Root(-1, 0, self._leaf(ref))
        return Root(self._index(ref >> SHIFT), ref & MASK)

    def _index(self, cls: int) -> int:
        number = self._number.get(cls)
        if number is None:
            number = self._number[cls] = len(self.class_ids)
            self.class_ids.append(cls)
            self.shapes.append(self.eg.shape(cls << SHIFT))
            self.dtypes.append(self.eg.dtype(cls << SHIFT))
        return number

    def _leaf(self, ref: int) -> FrozenLeaf:
        leaf = self._leaves.get(ref)
        if leaf is None:
            leaf = self._leaves[ref] = frozen_leaf(self.eg, ref)
        return leaf

    def _options(self, cls: int) -> list[Option]:
        """Return the e-nodes of a class as options, those of the original program first."""
        eg, first, later = self.eg, list[Option](), list[Option]()
        for enode in list(eg.enodes(cls)):
            children = [eg.find(x) for x in enode[1:]]
            if any(x >> SHIFT == cls for x in children):
                continue  # contains itself: never useful
            live: list[tuple[int, int, int]] = []
            frozen: list[FrozenLeaf | None] = []
            for position, x in enumerate(children):
                if eg.frozen(x):
                    frozen.append(self._leaf(x))
                else:
                    frozen.append(None)
                    live.append((position, -1, x))
            origin = eg.origin.get(enode)
            kids = tuple((position, self._index(x >> SHIFT), x & MASK) for position, _, x in live)
            out = eg.ref_of(enode) & MASK
            value_shape = eg.shape(eg.ref_of(enode))
            form = self.forms.intern(
                eg.op_of(enode),
                eg.attrs_of(enode),
                tuple(eg.shape(x) for x in children),
                tuple(eg.dtype(x) for x in children),
                tuple(frozen),
                TensorType(value_shape, eg.dtype(cls << SHIFT)),
            )
            (first if origin is None else later).append(Option(form, kids, tuple(frozen), out, enode, origin))
        return first + later

    def _home(self) -> list[int]:
        home: dict[int, int] = {}
        for ref in self.eg.imported:
            ref = self.eg.find(ref)
            number = self._number.get(ref >> SHIFT)
            if number is not None:
                home.setdefault(number, ref & MASK)  # where a tensor is held twice, the first is where it is made
        return [home.get(c, 0) for c in range(self.size)]

    def _drop_dead_ends(self) -> None:
        """Remove options that lead to a class without any acyclic choice."""
        order, _ = self.extract(lambda c, option: 1.0)
        dead = {c for c, choice in enumerate(order) if choice is None}
        if dead:
            self.options = [[o for o in row if dead.isdisjoint(o.kids)] for row in self.options]


def frozen_leaf(eg: EGraph, ref: int) -> FrozenLeaf:
    """The cheapest stored form of a frozen operand."""
    ref = eg.find(ref)
    full, dtype = eg.shape(ref), eg.dtype(ref)
    value = eg.scalar(ref)
    if value is not None:
        return FrozenLeaf(ref, (), (), full, dtype, value)
    best = FrozenLeaf(ref, full, tuple(range(len(full))), full, dtype)
    for enode, axes in eg.views(ref, "broadcast_in_dim"):
        source = eg.find(enode[1])
        place = {axis: i for i, axis in enumerate(axes)}
        dims = tuple(place[d] for d in dict(eg.attrs_of(enode))["broadcast_dimensions"])
        leaf = FrozenLeaf(source, eg.shape(source), dims, full, dtype)
        if math.prod(leaf.shape) < math.prod(best.shape) and all(  # pyright: ignore[reportArgumentType]
            n == full[d] for n, d in zip(leaf.shape, dims, strict=True)
        ):
            best = leaf
    return best
