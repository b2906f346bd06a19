"""From a pair of equal terms to a rule over named axes, by principal types.

Every axis of every leaf starts with a label and a size of its own.  Ops unite the labels and sizes of the axes that
meet in them (a joined axis has the sizes of its parts in a row), and the two sides unite their results.  Axes with one
label are then one role.  Two axes of one tensor must keep different labels: otherwise the pair is equal only because
all axes have one length, and is no rule.  The result is a `Draft`: the declarations and sides of a rule, in pieces that
`widen` can change before it becomes text.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from superopt.lab.discovery.algebra import ELEMENTWISE, SPACE, TAPS, generic
from superopt.lab.discovery.draft import CUTS, Draft, Side, subsides
from superopt.lab.discovery.terms import IMAGE, KERNEL, AnonymousTerm, Universe

PartSize: TypeAlias = "tuple[Any, ...]"
"""Sizes of the parts of an axis: numbers of the union-find, ("cut", number) or ("conv", image, kernel)."""
ROLES = "mknlorvac"


class UnliftableError(ValueError):
    """The pair is equal only where different axes have one length, or the language cannot express it."""


@dataclass(slots=True)
class _Types:
    """Union-find of labels and of sizes."""

    label: list[int] = field(default_factory=list[int])
    size: list[Any] = field(default_factory=list[Any])

    def fresh(self) -> tuple[int, PartSize]:
        """A new axis."""
        self.label.append(len(self.label))
        self.size.append(None)
        return len(self.label) - 1, (len(self.size) - 1,)

    def root(self, label: int) -> int:
        """The representative of a label."""
        while self.label[label] != label:
            label = self.label[label]
        return label

    def resolve(self, part: Any) -> Any:
        """The representative of a size."""
        while isinstance(part, int) and self.size[part] is not None:
            part = self.size[part]
        return tuple([x if isinstance(x, str) else self.resolve(x) for x in part]) if isinstance(part, tuple) else part

    def unite(self, a: tuple[int, PartSize], b: tuple[int, PartSize]) -> None:
        """Unite two axes."""
        self.join(a[0], b[0])
        if len(a[1]) != len(b[1]):
            raise UnliftableError("axes of different numbers of parts")
        for x, y in zip(a[1], b[1], strict=True):
            self.equal(x, y)

    def join(self, a: int, b: int) -> None:
        """Unite two labels."""
        self.label[self.root(a)] = self.root(b)

    def equal(self, x: Any, y: Any) -> None:
        """Unite two sizes."""
        x, y = self.resolve(x), self.resolve(y)
        if x == y:
            return
        if isinstance(x, int):
            if x in _numbers(y):
                raise UnliftableError("a size inside itself")
            self.size[x] = y
        elif isinstance(y, int):
            self.equal(y, x)
        elif x[0] == y[0]:
            for p, q in zip(x[1:], y[1:], strict=True):
                self.equal(p, q)
        else:
            raise UnliftableError("sizes of different kinds")


def _numbers(part: Any) -> set[int]:
    return {part} if isinstance(part, int) else {n for x in part if not isinstance(x, str) for n in _numbers(x)}


SizedAxes: TypeAlias = "list[tuple[int, PartSize]]"


class _Lifter:
    def __init__(self, u: Universe) -> None:
        self.u = u
        self.types = _Types()
        self.leaves: dict[int, SizedAxes] = {}
        self.made: dict[int, SizedAxes] = {}
        self.seen: list[SizedAxes] = []

    def axes(self, t: AnonymousTerm) -> SizedAxes:
        """Labels and sizes of the axes of a term."""
        if t.form is None:
            if t.number not in self.leaves:
                self.leaves[t.number] = [self.types.fresh() for _ in t.type]
            return self.leaves[t.number]
        known = self.made.get(t.number) if t.number >= 0 else None
        if known is None:
            known = self._apply(t)
            self.made[t.number if t.number >= 0 else -1 - len(self.made)] = known
            self.seen.append(known)
        return known

    def _apply(self, t: AnonymousTerm) -> SizedAxes:
        assert t.form is not None
        op, at = t.form.op, t.form.at
        args = [self.u.terms[i] for i in t.args]
        inner = [self.axes(x) for x in args]
        a = inner[0]
        if op == "relu":
            return a
        if op in ("sum", "max"):
            return [x for i, x in enumerate(a) if i != at[0]]
        if op in ("wsum", "wmax"):
            return [(label, (("win", size[0]),)) if i == at[0] else (label, size) for i, (label, size) in enumerate(a)]
        if op in ("first", "rest", "cut"):
            label, parts = a[at[0]]
            kept = parts[:1] if op == "first" else parts[1:] if op == "rest" else (("cut", parts[0]),)
            return [(label, kept) if i == at[0] else x for i, x in enumerate(a)]
        b = inner[1]
        if op in ELEMENTWISE:
            for j, i in enumerate(at):
                self.types.unite(a[i], b[j])
            return a
        if op == "dot":
            for i, j in at:
                self.types.unite(a[i], b[j])
            gone = {i for i, _ in at}, {j for _, j in at}
            return [x for i, x in enumerate(a) if i not in gone[0]] + [x for j, x in enumerate(b) if j not in gone[1]]
        if op in ("conv", "gconv"):
            return self._conv(args, a, b, at)
        along, m = at[0], at[1:]
        for j, i in enumerate(m):
            if i == along:
                self.types.join(a[i][0], b[j][0])
            else:
                self.types.unite(a[i], b[j])
        return [(x[0], x[1] + b[m.index(i)][1]) if i == along else x for i, x in enumerate(a)]

    def _conv(self, args: list[AnonymousTerm], a: SizedAxes, b: SizedAxes, at: tuple[int, ...]) -> SizedAxes:
        image, kernel = args[0].type, args[1].type
        (batch,) = [i for i in generic(image) if i != at[0]]
        (out,) = [j for j in generic(kernel) if j != at[1]]
        label, parts = a[at[0]]
        groups = len(parts) // len(b[at[1]][1])
        self.types.unite((label, parts), (b[at[1]][0], b[at[1]][1] * groups))
        if groups == 2:
            self.types.equal(*b[out][1])
        s, r = a[image.index(SPACE)], b[kernel.index(TAPS)]
        self.types.join(s[0], r[0])
        return [a[batch], b[out], (s[0], (("conv", s[1][0], r[1][0]),))]

    def check(self) -> None:
        """Refuse a pair in which two axes of one tensor have one label."""
        for axes in (*self.leaves.values(), *self.seen):
            labels = [self.types.root(label) for label, _ in axes]
            if len(set(labels)) != len(labels):
                raise UnliftableError("two axes of one tensor would be one")


def typeable(u: Universe, t: AnonymousTerm) -> bool:
    """Whether the term has a principal type."""
    lifter = _Lifter(u)
    try:
        lifter.axes(t)
        lifter.check()
    except UnliftableError:
        return False
    return True


def lift(u: Universe, left: AnonymousTerm, right: AnonymousTerm) -> Draft:
    """The rule of which two terms with equal values are an instance.

    Raises:
        UnliftableError: there is no such rule.
    """
    error: UnliftableError | None = None
    for order in _orders(u, left, right):
        try:
            return _lift(u, left, right, order)
        except UnliftableError as cause:
            error = cause
    raise error or UnliftableError("no axis order of the right side gives the values of the left side")


def _orders(u: Universe, left: AnonymousTerm, right: AnonymousTerm) -> list[tuple[int, ...]]:
    """Axis orders under which the right side has the values of the left side."""
    a, b = u.evaluate(left, {}), u.evaluate(right, {})
    orders: list[tuple[int, ...]] = []
    for order in itertools.permutations(range(len(right.type))):
        if tuple(right.type[i] for i in order) == left.type and (a == b.transpose(0, *(i + 1 for i in order))).all():
            orders.append(order)
    return orders


def _lift(u: Universe, left: AnonymousTerm, right: AnonymousTerm, order: tuple[int, ...]) -> Draft:
    lifter = _Lifter(u)
    a, b = lifter.axes(left), lifter.axes(right)
    for i, j in enumerate(order):
        lifter.types.unite(a[i], b[j])
    lifter.check()
    return _Namer(lifter).draft(left, right)


class _Namer:
    """Names for tensors, roles and sizes in the order of their first use."""

    def __init__(self, lifter: _Lifter) -> None:
        self.lifter = lifter
        self.u = lifter.u
        self.names: dict[int, str] = {}
        self.roles: dict[int, str] = {}
        self.tokens: dict[Any, str] = {}
        self.single: set[str] = set()
        self.spaces: set[str] = set()

    def draft(self, left: AnonymousTerm, right: AnonymousTerm) -> Draft:
        order = list(dict.fromkeys(self.u.leaves(left) + self.u.leaves(right)))
        for n in order:
            self._name(n)
        declared = tuple(
            (
                self.names[n],
                tuple((self._role(label), self._token(label, size)) for label, size in self.lifter.leaves[n]),
            )
            for n in order
        )
        sides = self._side(left), self._side(right)
        cut = {s[2] for side in sides for s in subsides(side) if s[0] == "cut"}
        if len(cut) > len(CUTS):
            raise UnliftableError("too many roles are cut")
        return Draft(declared, ((sides[0],), (sides[1],)), single=frozenset(self.single), spaces=frozenset(self.spaces))

    def _name(self, n: int) -> None:
        t = self.u.terms[n].type
        pool = "XYZQ" if t == IMAGE else "WVUT" if t == KERNEL else "ABCDEFGH" if len(t) > 1 else "SRP"
        self.names[n] = next(x for x in (*pool, *"HIJKLMNO") if x not in self.names.values())

    def _role(self, label: int) -> str:
        label = self.lifter.types.root(label)
        if label not in self.roles:
            space = any(
                self.lifter.types.root(x) == label and kind in (SPACE, TAPS)
                for n, axes in self.lifter.leaves.items()
                for (x, _), kind in zip(axes, self.u.terms[n].type, strict=True)
            )
            pool = "s" if space else ROLES
            free = [r for r in pool if r not in self.roles.values()]
            if not free:
                raise UnliftableError("too many roles")
            self.roles[label] = free[0]
        return self.roles[label]

    def _token(self, label: int, size: PartSize) -> str:
        role = self._role(label)
        key = role, self.lifter.types.resolve(size[0])
        if key not in self.tokens:
            count = sum(r == role for r, _ in self.tokens)
            self.tokens[key] = role + (str(count + 1) if count else "")
        return self.tokens[key]

    def _extent(self, label: int, part: Any) -> str:
        """The size of a part as text of the rule."""
        key = self._role(label), self.lifter.types.resolve(part)
        if key not in self.tokens:
            raise UnliftableError("the size of a part has no name")
        return self.tokens[key]

    def _side(self, t: AnonymousTerm) -> Side:
        if t.form is None:
            return ("var", self.names[t.number])
        op, at = t.form.op, t.form.at
        args = [self.u.terms[i] for i in t.args]
        inner = tuple(self._side(x) for x in args)
        axes = [self.lifter.axes(x) for x in args]
        if op in ELEMENTWISE or op == "relu":
            return ("ew", op, inner)
        if op == "dot":
            return ("dot", inner, tuple(self._role(axes[0][i][0]) for i, _ in at))
        if op == "conv":
            space = self._role(axes[0][args[0].type.index(SPACE)][0])
            self.spaces.add(space)
            return ("conv", inner, self._role(axes[0][at[0]][0]), space)
        if op == "gconv":
            return self._grouped(args, axes, at)
        label, parts = axes[0][at[0]]
        role = self._role(label)
        if op == "cut":
            return ("cut", inner[0], role)
        if op in ("sum", "max"):
            return ("red", inner[0], role, op)
        if op in ("wsum", "wmax"):
            return ("win", inner[0], role, op)
        self.single.add(role)
        if op == "concat":
            return ("concat", inner, role)
        bounds = ["0", self._extent(label, parts[0])] if op == "first" else [self._extent(label, parts[0])]
        if op == "rest":
            bounds.append(" + ".join(self._extent(label, p) for p in parts))
        return ("slice", inner[0], role, *bounds)

    def _grouped(self, args: list[AnonymousTerm], axes: list[SizedAxes], at: tuple[int, ...]) -> Side:
        """A convolution in two groups of an image and a kernel that were joined for it."""
        (out,) = [j for j in generic(args[1].type) if j != at[1]]
        operands: list[Side] = []
        for x, along in ((args[0], at[0]), (args[1], out)):
            if x.form is None or x.form.op != "concat" or x.form.at[0] != along:
                raise UnliftableError("groups of what was not joined")
            operands += [self._side(self.u.terms[i]) for i in x.args]
        space = self._role(axes[0][args[0].type.index(SPACE)][0])
        self.spaces.add(space)
        role = self._role(axes[1][out][0])
        self.single.add(role)
        return ("grouped", tuple(operands), self._role(axes[0][at[0]][0]), space, role)
