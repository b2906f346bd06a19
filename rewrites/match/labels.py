"""Labels of physical axes during one match: fresh names, unification, splitting.

A *layout* says, per physical axis, which labels it holds and with what sizes: none (an axis of size 1), one, or
several (a merged axis, row-major).  Walking through a reshape may split a label into two; meeting a variable twice
unifies the labels of its axes.  No tensor may end up with one label on two axes: that would read its diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Axis: TypeAlias = tuple[tuple[int, int], ...]
"""(label, size) pairs that one physical axis holds, row-major."""
Layout: TypeAlias = tuple[Axis, ...]


class Labels:
    """Union-find over labels, with splits."""

    __slots__ = ("count", "seen", "split", "uf")

    def __init__(self) -> None:
        self.count = 0
        self.uf: dict[int, int] = {}
        self.split: dict[int, Axis] = {}
        self.seen: tuple[Any, ...] = ()
        """Every layout met so far, as a linked list (rest, layouts)."""

    def copy(self) -> Labels:
        """An independent copy."""
        new = Labels()
        new.count, new.uf, new.split, new.seen = self.count, self.uf.copy(), self.split.copy(), self.seen
        return new

    def fresh(self) -> int:
        """A new label."""
        self.count += 1
        return self.count

    def find(self, label: int) -> int:
        """The representative of a label."""
        uf = self.uf
        while label in uf:
            label = uf[label]
        return label

    def axis(self, axis: Iterable[tuple[int, int]]) -> Axis | None:
        """An axis with unions and splits followed; None where a split does not fit the size."""
        if not self.uf and not self.split:
            return tuple(axis)
        out: list[tuple[int, int]] = []
        for label, n in axis:
            label = self.find(label)
            parts = self.split.get(label)
            if parts is None:
                out.append((label, n))
                continue
            if math.prod([k for _, k in parts]) != n:
                return None
            inner = self.axis(parts)
            if inner is None:
                return None
            out += inner
        return tuple(out)

    def layout(self, layout: Layout) -> Layout | None:
        """A layout with unions and splits followed."""
        if not self.uf and not self.split:
            return layout
        out: list[Axis] = []
        for axis in layout:
            resolved = self.axis(axis)
            if resolved is None:
                return None
            out.append(resolved)
        return tuple(out)

    def unify(self, a: Layout, b: Layout) -> bool:
        """Unify the layouts of one tensor that was reached twice; False where they contradict each other."""
        for x, y in zip(a, b, strict=True):
            p, q = self.axis(x), self.axis(y)
            if p is None or q is None:
                return False
            if len(p) != len(q):
                p, q = tuple(e for e in p if e[1] != 1), tuple(e for e in q if e[1] != 1)
                if len(p) != len(q):
                    return False
            for (label, n), (other, k) in zip(p, q, strict=True):
                if n != k:
                    return False
                label, other = self.find(label), self.find(other)
                if label != other:
                    self.uf[max(label, other)] = min(label, other)
        return True

    def note(self, layouts: Sequence[Layout]) -> None:
        """Remember layouts met on the walk for `distinct`."""
        self.seen = (self.seen, layouts)

    def distinct(self) -> bool:
        """Whether no tensor met on the walk holds one label on two axes (it would be a diagonal)."""
        if not self.uf:
            return True
        rest = self.seen
        while rest:
            layouts: Sequence[Layout] = rest[1]
            rest = rest[0]
            for layout in layouts:
                names = [label for axis in layout for label, _ in (self.axis(axis) or ())]
                if len(set(names)) != len(names):
                    return False
        return True

    def carve(self, atoms: Iterable[tuple[int, int]], dims: Sequence[int]) -> list[Axis] | None:
        """Distribute row-major atoms over axes of these sizes, splitting where needed; None if they do not nest."""
        out: list[list[tuple[int, int]]] = [[] for _ in dims]
        j = 0
        left = dims[0] if dims else 1
        for label, n in atoms:
            if n == 1:
                continue
            while True:
                while left == 1 and j + 1 < len(dims):
                    j += 1
                    left = dims[j]
                if n == 0 or left == 0:
                    return None
                if left % n == 0:
                    out[j].append((label, n))
                    left //= n
                    break
                if n % left or left == 1:
                    return None
                high, low = self.fresh(), self.fresh()
                self.split[label] = ((high, left), (low, n // left))
                out[j].append((high, left))
                label, n, left = low, n // left, 1
        if left != 1 or any(d != 1 for d in dims[j + 1 :]):
            return None
        return [tuple(axis) for axis in out]
