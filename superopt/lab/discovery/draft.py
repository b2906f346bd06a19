"""Drafts: rules in pieces, in which form they are lifted and changed before they become text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Side: TypeAlias = "tuple[Any, ...]"
"""("var", name) | ("ew", f, args) | ("dot", args, roles) | ("conv", args, feature, space) | ("concat", args, role)
| ("slice", arg, role, start, stop) with start and stop as text | ("cut", arg, role) | ("red", arg, role, kind)
| ("win", arg, role, kind) | ("grouped", (image, image, kernel, kernel), feature, space, out)
| ("fn", function or operator, args) | ("num", text) | ("count", role) | ("iota", role) | ("bcast", arg, role)
| ("power", arg, exponent as text)."""

CONV = ("t", "p", "q", "u", "d")
POOL = ("w", "wt", "wp", "wq")
GROUP = "jg"
CUTS = (("x", "y", "z"), ("e", "h", "j"))


@dataclass(frozen=True, slots=True)
class Draft:
    """A rule in pieces.

    Attributes:
        vars: tensor -> its (role, size token) in order.
        sides: left and right, one term per equation.
        many: roles for any number of axes.
        metas: elementwise op -> meta-variable that stands for it.
        single: roles that must stay single (axes that are joined or split).
        plain: whether slices keep their step 1.
        unpadded: whether pools have no padding, since a window of padding alone is a special case.
        spaces: the spatial roles of convolutions.
        nonempty: roles that the rule's premise wants to have elements.
        cancels: whether terms of the right side may cancel, and digits be lost.
    """

    vars: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    sides: tuple[tuple[Side, ...], tuple[Side, ...]]
    many: frozenset[str] = frozenset()
    metas: tuple[tuple[str, str], ...] = ()
    single: frozenset[str] = frozenset()
    plain: bool = False
    unpadded: bool = False
    spaces: frozenset[str] = frozenset()
    nonempty: tuple[str, ...] = ()
    cancels: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles in order of declaration."""
        return tuple(dict.fromkeys(role for _, axes in self.vars for role, _ in axes))

    @property
    def ops(self) -> tuple[str, ...]:
        """Elementwise ops that occur."""
        return tuple(
            dict.fromkeys(s[1] for side in self.sides for root in side for s in subsides(root) if s[0] == "ew")
        )

    @property
    def contracted(self) -> frozenset[str]:
        """Roles that some product, convolution or reduction removes."""
        parts = [s for side in self.sides for root in side for s in subsides(root)]
        kinds = ("dot", "conv", "grouped", "red")
        return frozenset(r for s in parts if s[0] in kinds for r in (s[2] if s[0] == "dot" else (s[2],)))

    @property
    def pools(self) -> bool:
        """Whether a windowed reduction occurs."""
        return any(s[0] == "win" for side in self.sides for root in side for s in subsides(root))

    def swapped(self) -> Draft:
        """The same equation from right to left."""
        return replace(self, sides=self.sides[::-1])

    def text(self, name: str = "found") -> str:
        """The draft as rule text."""
        arity = {f: 1 if f == "relu" else 2 for f, _ in self.metas}
        words = [f"{meta}/{arity[f]}" for f, meta in self.metas]
        for var, axes in self.vars:
            inside = " ".join(("*" if role in self.many else "") + token for role, token in axes)
            words.append(f"{var}[{inside}]")
        if any(s[0] == "grouped" for side in self.sides for root in side for s in subsides(root)):
            words.append(f"extra {GROUP}")
        left, right = (", ".join(self._spell(root) for root in side) for side in self.sides)
        premise = f"\n  if {', '.join(f'{role} >= 1' for role in self.nonempty)}" if self.nonempty else ""
        loss = "\n  numerics range" if self.cancels else ""
        return f"{name}: {'  '.join(words)}\n  {left}\n    == {right}{premise}{loss}"

    def _spell(self, s: Side, outer: int = 0) -> str:
        op = s[0]
        if op == "var":
            return s[1]
        if op == "ew":
            return self._elementwise(s[1], s[2], outer)
        if op == "num":
            return s[1]
        if op in ("count", "iota"):
            return f"{op}({s[1]})"
        if op == "bcast":
            return f"bcast({self._spell(s[1])}, {s[2]})"
        if op == "power":
            return f"({self._spell(s[1], 3)} ** {s[2]})"
        if op == "fn":
            return self._function(s[1], [self._spell(x, 3) for x in s[2]])
        if op == "slice":
            return f"slice({self._spell(s[1])}, {s[2]}({s[3]}, {s[4]}))"
        if op == "cut":
            names = CUTS[[r for r in self.roles if r in self._cut_roles()].index(s[2])]
            return f"slice({self._spell(s[1])}, {s[2]}({', '.join(names[: 2 if self.plain else 3])}))"
        if op == "red":
            return f"{s[3]}({self._spell(s[1])}, {s[2]})"
        if op == "win":
            return f"{s[3]}({self._spell(s[1])}, {s[2]}({', '.join(POOL[: 2 if self.unpadded else 4])}))"
        inside = [self._spell(x) for x in s[1]]
        if op == "conv":
            return f"conv({inside[0]}, {inside[1]}, {s[2]}, {s[3]}({', '.join(CONV)}))"
        if op == "grouped":
            units = [f"unit({x}, {GROUP})" for x in inside]
            image, kernel = (f"concat({', '.join(units[i : i + 2])}, {GROUP})" for i in (0, 2))
            return f"merge(conv({image}, {kernel}, {s[2]}, {s[3]}({', '.join(CONV)})), {GROUP}, {s[4]}, {s[4]})"
        roles = s[2] if op == "dot" else (s[2],)
        return f"{op}({', '.join([*inside, *roles])})"

    @staticmethod
    def _function(name: str, args: list[str]) -> str:
        if name.isidentifier():
            return f"{name}({', '.join(args)})"
        return f"({name}{args[0]})" if len(args) == 1 else f"({args[0]} {name} {args[1]})"

    def _cut_roles(self) -> set[str]:
        return {s[2] for side in self.sides for root in side for s in subsides(root) if s[0] == "cut"}

    def _elementwise(self, f: str, args: tuple[Side, ...], outer: int) -> str:
        meta = dict(self.metas).get(f)
        if meta is not None:
            return f"{meta}({', '.join(self._spell(x) for x in args)})"
        if f == "relu":
            return f"maximum({self._spell(args[0])}, 0)"
        if f == "maximum":
            return f"maximum({self._spell(args[0])}, {self._spell(args[1])})"
        level, sign = {"add": (1, " + "), "sub": (1, " - "), "mul": (2, " * ")}[f]
        out = self._spell(args[0], level) + sign + self._spell(args[1], level + 1)
        return f"({out})" if level < outer else out


def subsides(s: Side) -> Iterator[Side]:
    """A side and all its subterms."""
    yield s
    for x in operands(s):
        yield from subsides(x)


def operands(s: Side) -> tuple[Side, ...]:
    """The operands of a side's op."""
    if s[0] in ("var", "num", "count", "iota"):
        return ()
    if s[0] in ("slice", "cut", "red", "win", "bcast", "power"):
        return (s[1],)
    return s[2] if s[0] in ("ew", "fn") else s[1]
