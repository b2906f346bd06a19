"""Equality of two expressions on a domain, up to proved index arithmetic and the order of sums.

Equal expressions are one object, so parts that a schedule did not touch cost nothing.  Where two differ, choices are
decided by the domain or split it.  Loads must read one buffer at indices whose difference is zero; functions are
compared operand by operand.  Folds are brought to sums of `[guard] body` over iterators and matched by a map between
their iterators.  The map is guessed from the indices that both read, then proved to be a bijection of their domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from superopt.ir.expr import Expr
from superopt.ir.index import Guard, Poly, Size, Symbol, of_atom, substitute
from superopt.ir.scalar import COMMUTATIVE, HALVES
from superopt.ir.types import FLOATS
from verifier.schedules.domain import Domain
from verifier.schedules.folds import (
    Equations,
    Expansion,
    Part,
    TooManyError,
    is_zero,
    may_expand,
    parts,
    row_major,
    unified,
    widened,
    written_out,
)
from verifier.schedules.intervals import box_of
from verifier.schedules.maps import only, renamed, solve
from verifier.schedules.stages import outside

_IDEMPOTENT = frozenset({"max", "min", "and", "or"})


@dataclass
class Equality:
    """Comparisons of expressions; `real` is set when sums of floats were taken in another order."""

    real: bool = False
    _expanding: bool = False
    _known: dict[tuple[Expr, Expr, int], bool] = field(default_factory=dict[tuple[Expr, Expr, int], bool])
    _kept: list[Domain] = field(default_factory=list[Domain])

    def same(self, l: Expr, r: Expr, d: Domain) -> bool:
        """Whether two expressions are proved equal at every point of a domain; False says nothing."""
        if l is r or d.empty:
            return True
        key = (l, r, id(d))
        if key not in self._known:
            d.budget.spend()
            self._kept.append(d)  # its address is a key
            self._known[key] = self._same(l, r, d) or self._ring(l, r, d)
        return self._known[key]

    def _same(self, l: Expr, r: Expr, d: Domain) -> bool:
        if l.dtype != r.dtype:
            return False
        if "where" in (l.kind, r.kind):
            return self._choices(l, r, d)
        if l.dtype in HALVES and {l.kind, r.kind} == {"reduce", "convert"}:
            return self.same(widened(l), widened(r), d)
        if "reduce" in (l.kind, r.kind):
            return self._folds(l, r, d)
        if l.kind != r.kind:
            return (is_zero(r) and self._zero(l, d)) or (is_zero(l) and self._zero(r, d))
        match l.kind:
            case "load":
                return l.args[0] == r.args[0] and all(d.zero(i - j) for i, j in zip(l.args[1], r.args[1], strict=True))
            case "index":
                return d.zero(l.args[0] - r.args[0])
            case "convert":
                return l.args[0] == r.args[0] and self.same(l.args[1], r.args[1], d)
            case "op":
                return self._ops(l, r, d)
            case _:
                return False

    def _ops(self, l: Expr, r: Expr, d: Domain) -> bool:
        a, b = l.operands, r.operands
        if l.args[:2] != r.args[:2] or len(a) != len(b):
            return False
        if all(self.same(x, y, d) for x, y in zip(a, b, strict=True)):
            return True
        swapped = l.args[0] in COMMUTATIVE and len(a) == 2
        return swapped and self.same(a[0], b[1], d) and self.same(a[1], b[0], d)

    def _choices(self, l: Expr, r: Expr, d: Domain) -> bool:
        for x, y in ((l, r), (r, l)):
            if x.kind == "where":
                guard = x.args[0]
                always, never = d.always(guard), d.never(guard)
                if always and never:
                    return True  # there is no such point
                if always or never:
                    return self.same(x.args[1 if always else 2], y, d)
        x, y = (l, r) if l.kind == "where" else (r, l)
        guard = x.args[0]
        return self.same(x.args[1], y, d.under(guard)) and all(
            self.same(x.args[2], y, part) for part in outside(d, guard)
        )

    def _zero(self, e: Expr, d: Domain) -> bool:
        """Whether an expression is proved to be 0 at every point."""
        if is_zero(e) or d.empty:
            return True
        if e.kind == "where":
            parts = outside(d, e.args[0])
            return self._zero(e.args[1], d.under(e.args[0])) and all(self._zero(e.args[2], p) for p in parts)
        if e.kind == "op" and e.args[0] == "mul":
            found = any(self._zero(x, d) for x in e.operands)
            self.real |= found and e.dtype in FLOATS
            return found
        if e.kind == "reduce" and e.args[0] == "sum":
            return self._zero(e.args[2], d.over(e.args[1]))
        return e.kind == "convert" and self._zero(e.args[1], d)

    # ---- ring laws
    def _ring(self, l: Expr, r: Expr, d: Domain) -> bool:
        """Whether two sums of products are equal term by term, once terms that cancel are removed."""
        if self._expanding or l.dtype != r.dtype or not may_expand(l, r):
            return False
        expansion = Expansion(l.dtype)
        try:
            left, right = expansion.terms(l), expansion.terms(r)
        except TooManyError:
            return False
        if len(left) == len(right) == 1 and left[0].factors == (l,):
            return False
        self._expanding = True  # factors are compared without these laws
        cancelled = self._cancels((*left, *(replace(t, coefficient=-t.coefficient) for t in right)), l.dtype, d)
        self._expanding = False
        self.real |= cancelled and l.dtype in FLOATS
        return cancelled

    def _cancels(self, terms: Sequence[Part], dtype: str, d: Domain) -> bool:
        groups: list[tuple[Part, Fraction]] = []
        for term in terms:
            part = term.multiplied(dtype)
            for at, (other, k) in enumerate(groups):
                if self._part(other, part, d, "sum"):
                    groups[at] = (other, k + term.coefficient)
                    break
            else:
                groups.append((part, term.coefficient))
        return all(k == 0 for _, k in groups)

    # ---- folds
    def _folds(self, l: Expr, r: Expr, d: Domain) -> bool:
        monoid = l.args[0] if l.kind == "reduce" else r.args[0]
        for split in (False, True):
            left, right = parts(l, monoid, split), parts(r, monoid, split)
            if len(left) != len(right):
                left, right = written_out(left, len(right)), written_out(right, len(left))
            if len(left) == len(right) and self._matched(left, right, d, monoid):
                return True
            if {len(left), len(right)} == {1, 2} and self._seamed(left, right, d, monoid):
                return True
        return False

    def _seamed(self, left: Sequence[Part], right: Sequence[Part], d: Domain, monoid: str) -> bool:
        """Whether one fold equals two others, one over the iterations before a seam and one over those after it."""
        (whole,), two = (left, right) if len(left) == 1 else (right, left)
        if len(whole.iterators) != 1:
            return False
        (s,) = whole.iterators
        return any(
            self._matched([_bounded(whole, seam - 1 - of_atom(s)), _bounded(whole, of_atom(s) - seam)], two, d, monoid)
            for seam in seams(whole, two, d)
        )

    def _matched(self, left: Sequence[Part], right: Sequence[Part], d: Domain, monoid: str) -> bool:
        free = list(right)
        for part in left:
            match = next((other for other in free if self._part(part, other, d, monoid)), None)
            if match is None:
                return False
            free.remove(match)
        moved = len(left) > 1 or any(p.strict for p in (*left, *right))
        self.real |= moved and left[0].body.dtype in FLOATS
        return True

    def _part(self, l: Part, r: Part, d: Domain, monoid: str) -> bool:
        """Whether one fold equals another under a change of iterators."""
        names = {s.name for s in (*d.ranges, *l.body.symbols, *r.body.symbols)}
        prefix = "~"
        while any(f"{prefix}.{s.name}" in names for s in r.iterators):
            prefix += "~"
        fresh = renamed(r.iterators, prefix)
        r = r.named(dict(zip(r.iterators, only(fresh), strict=True)))
        l = l.apart(frozenset(d.ranges) | r.symbols)
        left = d.over(l.iterators).under(*_guards(l.guards))
        right = d.over(r.iterators).under(*_guards(r.guards))
        for at in self._maps(l, r, left):
            if not self._bijection(l, r, at, left, right, monoid in _IDEMPOTENT):
                continue
            if self.same(l.body.substitute(at), r.body, right):
                plain = [of_atom(s) for s in r.iterators] == list(at.values())
                self.real |= not plain and l.body.dtype in FLOATS and monoid in ("sum", "prod")
                return True
        return False

    def _maps(self, l: Part, r: Part, left: Domain) -> Iterator[dict[Symbol, Size]]:
        """Candidate maps that give the iterators of one fold as functions of those of another."""
        seen: list[dict[Symbol, Size]] = []
        for equations in unified(l.body, r.body):
            at = _paired(l, r, solve(*_sides(equations), l.iterators, left))
            if at is not None and at not in seen:
                seen.append(at)
                yield at
        at = row_major(l.iterators, r.iterators)
        if at is not None and at not in seen:
            yield at

    def _bijection(self, l: Part, r: Part, at: dict[Symbol, Size], left: Domain, right: Domain, onto: bool) -> bool:
        """Whether `at` maps the iterations of r one to one onto those of l; with `onto`, it need not be one to one."""
        for s, value in at.items():
            low, high = box_of(s)
            if not (right.holds(value - low) and right.holds(high - value)):
                return False
        if not all(right.holds(substitute(g, at)) for g in l.guards):
            return False
        fresh = renamed(l.iterators, "^")
        back = solve([at[s] for s in l.iterators], list(fresh.values()), r.iterators, right)
        if len(back) < len(r.iterators):
            if not onto:
                return False
            back = {**dict.fromkeys(r.iterators, 0), **back}
        named: dict[Symbol, Size] = {n: of_atom(s) for s, n in zip(l.iterators, only(fresh), strict=True)}
        back = {s: substitute(v, named) for s, v in back.items()}
        for s, value in back.items():
            low, high = box_of(s)
            if not (left.holds(value - low) and left.holds(high - value)):
                return False
        if not all(left.holds(substitute(g, back)) for g in r.guards):
            return False
        return all(left.zero(substitute(value, back) - of_atom(s)) for s, value in at.items())


def seams(whole: Part, two: Sequence[Part], d: Domain) -> Iterator[Size]:
    """Candidate seams: places, in the iterator of the whole fold, where one of the two others begins or ends."""
    (s,) = whole.iterators
    seen: list[Size] = []
    for part in two:
        for equations in unified(whole.body, part.body):
            at = solve(*_sides(equations), whole.iterators, d.over(whole.iterators).over(part.iterators)).get(s)
            if at is None:
                continue
            first: dict[Symbol, Size] = {t: box_of(t)[0] for t in part.iterators}
            last: dict[Symbol, Size] = {t: box_of(t)[1] for t in part.iterators}
            for seam in (substitute(at, first), substitute(at, last) + 1):
                if not isinstance(seam, int) and seam not in seen:
                    seen.append(seam)
                    yield seam


def _bounded(part: Part, guard: Size) -> Part:
    assert isinstance(guard, Poly)
    return replace(part, guards=(*part.guards, guard))


def _sides(equations: Equations) -> tuple[list[Size], list[Size]]:
    return [a for a, _ in equations], [b for _, b in equations]


def _guards(polys: Sequence[Poly]) -> list[Guard]:
    return [Guard(polys)] if polys else []


def _paired(l: Part, r: Part, at: dict[Symbol, Size]) -> dict[Symbol, Size] | None:
    """Complete a map: iterators that it leaves open take unused ones of equal extent, in order; None if none fits."""
    missing = [s for s in l.iterators if s not in at]
    used = frozenset[Symbol]().union(*(v.symbols for v in at.values() if isinstance(v, Poly)))
    spare = [s for s in r.iterators if s not in used]
    for s in missing:
        match = next((t for t in spare if t.high == s.high), None)
        if match is None:
            return None
        spare.remove(match)
        at[s] = of_atom(match)
    return {s: at[s] for s in l.iterators}
