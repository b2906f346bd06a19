"""Reading a region of an e-graph: the products, sums and broadcasts above its operands, with a label for every axis.

A region is read from its root downwards by the matcher's own `flow`.  In its index form it is one sum over labels of a
product of operands: the labels of an operand are its axes, a broadcast adds none, a sum or a product marks those that
it sums over.  Labels that no op of the region tells apart play one role.

An open region also has sums and differences of two parts: it is a sum of products, one for each choice of a side at
each of them.  What is known ahead of time is an operand of a closed region, and is read through in an open one.

A diagonal mask, `where(i == j, A, 0)`, is a factor that is 1 where two positions agree.  In a sum one of them takes the
place of the other in all operands, and the factor is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rewrites.match.flow import flow
from rewrites.match.labels import Labels, Layout
from rewrites.match.space import VIEW, Alternative, Class, EGraphSpace
from rewrites.match.walk import below
from superopt.ir.ops.table import PRODUCTS
from superopt.ir.types import POSITIONS

MOST_OPERANDS = 8  # the dynamic program looks at 3^8 = 6,561 splits
_DEEPEST = 24  # ops from the root; the longest of the zoo has eleven
KINDS = {
    **dict.fromkeys(PRODUCTS, "dot"), "reduce_sum": "sum", "mul": "mul", "div": "div", "broadcast_in_dim": "copy",
    "select_n": "mask", "square": "square", "add": "add", "sub": "sub",
}  # fmt: skip
"""Op -> its kind in a region; views are read through, all else is an operand."""
_AHEAD = ("view", "copy", "mask")  # kinds that are read where they are known ahead of time: all else is computed then
_SIDES = ("add", "sub")
_MOST_OPENED = 6  # operands of an open region: 729 splits for each of its products


@dataclass(frozen=True, slots=True, eq=False)
class RegionPart:
    """An op of a region, or an operand of it.

    Attributes:
        kind: `leaf`, `view`, or a value of `KINDS`.
        cls: the class that it computes.
        lay: labels of the class's axes; not resolved.
        args: operands; of a mask, what it lets through; of a square, its operand twice, with sums of their own.
        marks: labels that a sum sums over, that a broadcast adds, or that a mask compares, with their sizes.
    """

    kind: str
    cls: Class
    lay: Layout
    args: tuple[RegionPart, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()

    def walk(self) -> Iterator[RegionPart]:
        """The part and all parts below it, the first operand first."""
        yield self
        for arg in self.args:
            yield from arg.walk()


@dataclass(frozen=True, slots=True)
class IndexForm:
    """A region as a sum over roles of a product; of an open region, one of the products that it is a sum of.

    Attributes:
        root: the ops of the region.
        parts: those of the product, operands included.
        negative: whether the product is subtracted.
        operands: the leaves, from left to right.
        roles: roles of every part's axes.
        marks: roles that a part sums over, adds, or compares.
        taken: role of a mask -> the role that takes its place.
        twin: leaf of the second factor of a square -> the same leaf of the first.
        sizes: number of elements along a role.
        inverse: leaves that the product is divided by.
        frozen: leaves that are known ahead of time.
    """

    root: RegionPart
    parts: tuple[RegionPart, ...]
    negative: bool
    operands: tuple[RegionPart, ...]
    roles: dict[RegionPart, frozenset[str]]
    marks: dict[RegionPart, frozenset[str]]
    sizes: dict[str, int]
    taken: dict[str, str]
    twin: dict[RegionPart, RegionPart]
    inverse: frozenset[RegionPart]
    frozen: frozenset[RegionPart]

    @property
    def reach(self) -> frozenset[str]:
        """Roles of the parts of the product, and those that they sum over."""
        return frozenset[str]().union(*[self.roles[x] | self.marks[x] for x in self.parts])

    @property
    def out(self) -> frozenset[str]:
        """Roles of the result."""
        return self.roles[self.root]

    @property
    def tensors(self) -> tuple[RegionPart, ...]:
        """The leaves of the region without those that are second factors of squares."""
        return tuple(part for part in self.root.walk() if part.kind == "leaf" and part not in self.twin)

    def one_point(self, roles: frozenset[str]) -> frozenset[str]:
        """Roles after each mask has put one role in place of another."""
        return frozenset(self.taken.get(role, role) for role in roles)


@dataclass(slots=True)
class _RegionReader:
    """Reads one region; `room` is the number of operands that may still be added."""

    space: EGraphSpace
    labels: Labels = field(default_factory=Labels)
    masks: bool = True
    opened: bool = False
    sums: bool = False  # whether sums of two parts are read
    masked: int = 0  # masks above: the prover does not see that what they let through divides where they do
    room: int = MOST_OPERANDS - 1

    def part(self, cls: Class, lay: Layout, depth: int = 0) -> RegionPart:
        """The part that computes a class, by the oldest op of a region that the class holds."""
        if depth > _DEEPEST:
            return RegionPart("leaf", cls, lay)
        dtype, frozen = self.space.dtype(cls), self.space.frozen(cls)
        for op, alternatives in self.space.alternatives(cls).items():
            kind = "view" if op == VIEW else KINDS.get(op)
            if kind is None or (kind == "div" and self.masked) or (frozen and not (self.opened or kind in _AHEAD)):
                continue
            if kind in _SIDES and not self.sums:
                continue
            for alternative in alternatives:
                if kind == "mask":
                    found = self._mask(cls, lay, alternative, depth) if self.masks else None
                    if found is not None:
                        return found
                    continue
                two = len(alternative.children) == 2 or kind == "square"
                if (two and not self.room) or any(self.space.dtype(c) != dtype for c, _ in alternative.children):
                    continue
                self.room -= two
                square = kind == "square"
                found = (self._square if square else self._op)(kind, cls, lay, alternative, depth)
                if found is not None:
                    return found
                self.room += two
        return RegionPart("leaf", cls, lay)

    def _op(self, kind: str, cls: Class, lay: Layout, a: Alternative, depth: int) -> RegionPart | None:
        own = below(lay, a.perm)
        flowed = flow(a.op, a.site, own, self.labels)
        if flowed is None:
            return None
        layouts, marks = flowed
        self.labels.note((own, *layouts))
        marked: list[tuple[int, int]] = []
        for label, mark in marks.items():
            if not isinstance(mark, int) or mark < 0:
                return None
            marked.append((label, mark))
        args: list[RegionPart] = []
        for number, ((child, perm), inner) in enumerate(zip(a.children, layouts, strict=True)):
            held = below(inner, perm) if self.space.rank(child) else ()
            divisor = kind == "div" and number == 1
            args.append(RegionPart("leaf", child, held) if divisor else self.part(child, held, depth + 1))
        return RegionPart(kind, cls, lay, tuple(args), tuple(marked))

    def _square(self, kind: str, cls: Class, lay: Layout, a: Alternative, depth: int) -> RegionPart | None:
        """A square of a sum: its operand is read twice, so that each factor has sums of its own."""
        ((child, perm),) = a.children
        inner = below(below(lay, a.perm), perm)
        room, sums = self.room, self.sums
        self.sums = False  # a square of a sum as a sum of squares loses digits where these cancel
        first, second = (self.part(child, inner, depth + 1) for _ in range(2))
        self.sums = sums
        if first.kind == "leaf" or [x.cls for x in first.walk()] != [x.cls for x in second.walk()]:
            self.room = room
            return None
        return RegionPart(kind, cls, lay, (first, second))

    def _mask(self, cls: Class, lay: Layout, a: Alternative, depth: int) -> RegionPart | None:
        """A selection of zero but where the positions along two axes are equal."""
        (condition, turned), (other, _), (inner, perm) = a.children
        if self.space.scalar(other) != 0:
            return None
        own = below(lay, a.perm)
        axes = [
            self._position(child, below(below(held, equal.perm), to))
            for held, equal in self._equalities(condition, below(own, turned))
            for child, to in equal.children
        ]
        if len(axes) != 2 or axes[0] is None or axes[1] is None or axes[0] == axes[1]:
            return None
        kept = () if not self.space.rank(inner) else below(own, perm)
        self.masked += 1
        inside = self.part(inner, kept, depth + 1)
        self.masked -= 1
        return RegionPart("mask", cls, lay, (inside,), (axes[0], axes[1]))

    def _equalities(self, cls: Class, lay: Layout) -> Iterator[tuple[Layout, Alternative]]:
        """The comparisons for equality that a class holds or repeats, each with its layout."""
        alternatives = self.space.alternatives(cls)
        yield from [(lay, equal) for equal in alternatives.get("eq", ())]
        for copy in alternatives.get("broadcast_in_dim", ()):
            held, (child, turned) = below(lay, copy.perm), copy.children[0]
            axes: tuple[int, ...] = copy.site.values["broadcast_dimensions"]
            yield from self._equalities(child, below(tuple([held[axis] for axis in axes]), turned))

    def _position(self, cls: Class, lay: Layout) -> tuple[int, int] | None:
        """The label along which a class counts positions, with its size; None where it does not."""
        for copy in self.space.alternatives(cls).get("broadcast_in_dim", ()):
            axes: tuple[int, ...] = copy.site.values["broadcast_dimensions"]
            counts = self.space.alternatives(copy.children[0][0]).get("iota", ())
            if len(axes) == 1 and any(x.site.values["dtype"] in POSITIONS for x in counts):
                held = below(lay, copy.perm)[axes[0]]
                if len(held) == 1:
                    return held[0]
        return None


def read(space: EGraphSpace, cls: Class) -> IndexForm | None:
    """The index form of the region below a class; None where the class is no region, or an axis would stand twice."""
    for masks in (True, False):
        forms = _read(_RegionReader(space, masks=masks), cls)
        if forms is not None:
            return forms[0]
    return None


def read_opened(space: EGraphSpace, cls: Class) -> list[IndexForm]:
    """The products that the open region below a class is the sum of; none where the class is no such region."""
    reader = _RegionReader(space, opened=True, sums=True, room=_MOST_OPENED - 1)
    forms = _read(reader, cls) or []
    is_more = any(x.kind in _SIDES or _is_computed_ahead(x, space) for form in forms[:1] for x in form.root.walk())
    return forms if is_more else []


def _is_computed_ahead(part: RegionPart, space: EGraphSpace) -> bool:
    """Whether a part of an open region is an operand of the closed one."""
    return part.kind not in ("leaf", *_AHEAD) and space.frozen(part.cls)


def _read(reader: _RegionReader, cls: Class) -> list[IndexForm] | None:
    root = reader.part(cls, tuple([((reader.labels.fresh(), n),) for n in reader.space.shape(cls)]))
    if root.kind in ("leaf", "view", "copy", *_SIDES) or not reader.labels.distinct():
        return None
    return _indexed(root, reader.labels, reader.space)


def _products(part: RegionPart) -> list[tuple[bool, tuple[RegionPart, ...]]]:
    """The products that a part is the sum of: whether one is subtracted, and its parts, the operands from the left."""
    if part.kind in _SIDES:
        sides = [_products(arg) for arg in part.args]
        turned = [(negative != (part.kind == "sub"), parts) for negative, parts in sides[1]]
        return [*sides[0], *turned]
    products: list[tuple[bool, tuple[RegionPart, ...]]] = [(False, (part,))]
    for arg in part.args:
        products = [(a != b, (*p, *q)) for a, p in products for b, q in _products(arg)]
    return products


def _indexed(root: RegionPart, labels: Labels, space: EGraphSpace) -> list[IndexForm] | None:
    parts = list(root.walk())
    held: dict[RegionPart, dict[int, int]] = {}
    marked: dict[RegionPart, dict[int, int]] = {}
    for part in parts:
        lay, marks = labels.layout(part.lay), labels.axis(part.marks)
        if lay is None or marks is None:
            return None
        held[part] = {label: n for axis in lay for label, n in axis if n != 1}
        marked[part] = {label: n for label, n in marks if n != 1}
    seen: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for number, part in enumerate(parts):
        for facts in (held[part], marked[part]):
            for label, n in facts.items():
                seen.setdefault(label, []).append(2 * number + (facts is marked[part]))
                if sizes.setdefault(label, n) != n:
                    return None
    roles: dict[tuple[int, ...], str] = {}
    sizes_of: dict[str, int] = {}
    role_of: dict[int, str] = {}
    for label, where in seen.items():
        if tuple(where) not in roles:
            if len(roles) == len(_LETTERS):
                return None
            roles[tuple(where)] = _LETTERS[len(roles)]
        role_of[label] = role = roles[tuple(where)]
        sizes_of[role] = sizes_of.get(role, 1) * sizes[label]

    def named(facts: dict[int, int]) -> frozenset[str]:
        return frozenset(role_of[label] for label in facts)

    twin: dict[RegionPart, RegionPart] = {}
    for part in parts:
        if part.kind == "square":
            twin |= {b: a for a, b in zip(*(arg.walk() for arg in part.args), strict=True) if a.kind == "leaf"}
    if any(a in twin for a in twin.values()) or (twin and any(part.kind == "mask" for part in parts)):
        return None  # squares of squares, and masks of squares
    inverse = frozenset(part.args[1] for part in parts if part.kind == "div")
    frozen = frozenset(part for part in parts if part.kind == "leaf" and space.frozen(part.cls))
    held_roles, marks = ({part: named(facts[part]) for part in parts} for facts in (held, marked))
    forms: list[IndexForm] = []
    for negative, chosen in _products(root):
        taken = _taken([sorted(marks[part]) for part in chosen if part.kind == "mask"], held_roles[root])
        if taken is None or any(sizes_of[gone] != sizes_of[stays] for gone, stays in taken.items()):
            return None
        leaves = tuple(part for part in chosen if part.kind == "leaf")
        if any({gone, stays} <= held_roles[leaf] for leaf in leaves for gone, stays in taken.items()):
            return None
        forms.append(
            IndexForm(
                root=root, parts=chosen, negative=negative, operands=leaves, roles=held_roles, marks=marks,
                sizes=sizes_of, taken=taken, twin=twin, inverse=inverse, frozen=frozen,
            )
        )  # fmt: skip
    return forms


def _taken(pairs: list[list[str]], out: frozenset[str]) -> dict[str, str] | None:
    """For each pair of equal positions, the role that goes and the one that stays; None where both are in the result.

    Only single axes can be compared, and no role takes part in two masks.
    """
    taken: dict[str, str] = {}
    seen: set[str] = set()
    for pair in pairs:
        if len(pair) != 2 or seen & set(pair) or set(pair) <= out:
            return None
        seen |= set(pair)
        first, second = pair
        gone, stays = (first, second) if second in out else (second, first)
        taken[gone] = stays
    return taken


_LETTERS: Sequence[str] = "abcdefghijklmnopqrstuvwxyz"
