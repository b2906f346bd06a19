"""Which classes look alike to a pattern, so that equal layers are matched once.

The *likeness* of a class to a depth is a number for its shape, dtype, constants and e-nodes down to that depth, as the
matcher sees them.  Two classes of one likeness differ only in which classes their operands are.  A rule whose left side
names each tensor once matches both or neither.  Where it matched a class at its present likeness, its right side is in
the e-graph already.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from rewrites.egraph.graph import EGraph
from rewrites.language.term import Rule, Term, TokenExpr
from rewrites.match.space import VIEW, Alternative, Class, Joined, Space
from rewrites.match.walk import VIEWS_PER_EDGE


class Likeness:
    """Likeness of the classes of one e-graph, and what rules found where.

    Attributes:
        unmatched: (rule, likeness) where nothing matches.
        matched: (rule, class) -> likeness of the class when all matches there were found.
    """

    def __init__(self) -> None:
        self.unmatched: set[tuple[str, int]] = set()
        self.matched: dict[tuple[str, int], int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Class, dict[tuple[int, int], int]] = {}

    def forget(self, classes: Iterable[int] | None) -> None:
        """Forget the likeness of classes that changed, or that are above such; of all where none are named."""
        for cls in list(self._known) if classes is None else classes:
            self._known.pop(cls, None)

    def of(self, space: Space, cls: Class, depth: int, views: int = VIEWS_PER_EDGE) -> int:
        """The likeness of a class to a depth in ops, through up to `views` reshapes between two of them."""
        if isinstance(cls, Joined):
            joined = (cls.dimension, tuple([(self.of(space, c, depth), perm) for c, perm in cls.children]))
            return self._number((space.shape(cls), joined))
        row = self._known.setdefault(cls, {})
        number = row.get((depth, views))
        if number is None:
            number = row[depth, views] = self._number(self._seen(space, cls, depth, views))
        return number

    def _number(self, seen: Hashable) -> int:
        return self._numbers.setdefault(seen, len(self._numbers))

    def _seen(self, space: Space, cls: int, depth: int, views: int) -> Hashable:
        ops = list[Hashable]()
        for op, alternatives in space.alternatives(cls).items() if depth else ():
            if op != VIEW:
                ops += [self._operands(space, a, depth - 1, VIEWS_PER_EDGE) for a in alternatives]
            elif views:
                ops += [(VIEW, self._operands(space, a, depth, views - 1)) for a in alternatives]
        return space.shape(cls), space.dtype(cls), space.frozen(cls), repr(space.scalar(cls)), tuple(ops)

    def _operands(self, space: Space, a: Alternative, depth: int, views: int) -> Hashable:
        return a.op, a.attrs, a.perm, tuple([(self.of(space, c, depth, views), perm) for c, perm in a.children])


def names_once(rule: Rule) -> bool:
    """Whether the left side has one root, names each tensor once, and asks nothing of readers."""
    names = Counter(t["name"] for root in rule.lhs for t in _terms(root) if t.op == "var")
    return len(rule.lhs) == 1 and max(names.values(), default=1) == 1 and not any(map(_asks_readers, rule.prefer))


def _terms(t: Term) -> Iterator[Term]:
    """A term and all terms in it, each as often as it stands there."""
    yield t
    for operand in t.args:
        yield from _terms(operand)


def _asks_readers(e: TokenExpr) -> bool:
    return e[0] == "single" or (e[0] in ("and", "or", "not") and any(map(_asks_readers, e[1:])))


_LIKENESS: weakref.WeakKeyDictionary[EGraph, Likeness] = weakref.WeakKeyDictionary()


def likeness_of(eg: EGraph) -> Likeness:
    """The likeness of the classes of an e-graph."""
    known = _LIKENESS.get(eg)
    if known is None:
        known = _LIKENESS[eg] = Likeness()
    return known
