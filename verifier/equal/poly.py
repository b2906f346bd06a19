"""Integer index polynomials: the arithmetic of sizes, indices and attributes, in canonical form.

A polynomial is a sum of integer multiples of products of atoms.  An atom is a variable, or one of the non-polynomial
forms `a // b`, `a % b`, `min(a, b)`, `max(a, b)`, `name[a, ...]` over polynomials, named by its own text, so that
equal atoms are equal strings.  Canonical means: two polynomials that agree as polynomials in their atoms are the same
by value, and most index equations are settled by comparing them, without a solver.

Definitions: `a // b` is the floor and `a % b = a - b(a // b)`, both for b >= 1, which the caller must ensure.  An entry
of an integer input used as an index is an atom `"name"[args]`.

Names of inputs are quoted (`quoted`) in texts that identify values, and names of sizes are identifiers, with an axis
behind `@` in rules.  Generated names contain other characters (`k!1`, `min(a, b)`), so no input or size can collide
with them, whatever its name is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

NameProduct: TypeAlias = "tuple[str, ...]"
PolyLike: TypeAlias = "int | Poly"

AtomForm: TypeAlias = "tuple[str, tuple[Poly, ...]]"
_FORMS: dict[str, AtomForm] = {}  # hash-consing table of the non-polynomial atoms: text -> (op, arguments)


class Poly:
    """An immutable integer polynomial over named atoms."""

    __slots__ = ("_hash", "_text", "_vars", "terms")

    def __init__(self, terms: Iterable[tuple[NameProduct, int]]) -> None:
        self.terms: tuple[tuple[NameProduct, int], ...] = tuple(sorted((m, c) for m, c in terms if c))
        self._hash: int | None = None
        self._vars: frozenset[str] | None = None
        self._text: str | None = None

    # ---- identity
    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = const(other)
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _show(self.terms)
        return self._text

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise TypeError("the truth of a symbolic size is not known; build a condition instead")

    # ---- facts
    @property
    def value(self) -> int | None:
        """The value of a constant polynomial, or None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def vars(self) -> frozenset[str]:
        """The variables that occur, also inside divisions, minima and maxima."""
        if self._vars is None:
            out: set[str] = set()
            for mono, _ in self.terms:
                for atom in mono:
                    form = _FORMS.get(atom)
                    if form is None:
                        out.add(atom)
                    else:
                        out.update(*(a.vars for a in form[1]))
            self._vars = frozenset(out)
        return self._vars

    @property
    def forms(self) -> tuple[str, ...]:
        """The non-polynomial atoms at the top level."""
        return tuple(dict.fromkeys(a for mono, _ in self.terms for a in mono if a in _FORMS))

    # ---- arithmetic
    def __add__(self, other: PolyLike) -> Poly:
        other = poly(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        out = dict(self.terms)
        for m, c in other.terms:
            out[m] = out.get(m, 0) + c
        return Poly(out.items())

    __radd__ = __add__

    def __neg__(self) -> Poly:
        return self.scale(-1)

    def __sub__(self, other: PolyLike) -> Poly:
        return self + poly(other).scale(-1)

    def __rsub__(self, other: PolyLike) -> Poly:
        return poly(other) + self.scale(-1)

    def scale(self, k: int) -> Poly:
        """This polynomial times an integer."""
        return self if k == 1 else Poly((m, c * k) for m, c in self.terms)

    def __mul__(self, other: PolyLike) -> Poly:
        other = poly(other)
        for a, b in ((self, other), (other, self)):
            v = a.value
            if v is not None:
                return b.scale(v)
        out: dict[NameProduct, int] = {}
        for m, c in self.terms:
            for n, d in other.terms:
                k = tuple(sorted(m + n))
                out[k] = out.get(k, 0) + c * d
        return Poly(out.items())

    __rmul__ = __mul__

    def __floordiv__(self, other: PolyLike) -> Poly:
        return divide(self, poly(other))[0]

    def __rfloordiv__(self, other: PolyLike) -> Poly:
        return divide(poly(other), self)[0]

    def __mod__(self, other: PolyLike) -> Poly:
        return divide(self, poly(other))[1]

    def __rmod__(self, other: PolyLike) -> Poly:
        return divide(poly(other), self)[1]

    # ---- substitution
    def subst(self, sub: Mapping[str, Poly]) -> Poly:
        """Replace variables by polynomials."""
        if not any(v in sub for v in self.vars):
            return self
        total = const(0)
        keep: list[tuple[NameProduct, int]] = []
        for mono, c in self.terms:
            if not any(a in sub or a in _FORMS for a in mono):
                keep.append((mono, c))
                continue
            term = const(c)
            for a in mono:
                term = term * _subst_atom(a, sub)
            total = total + term
        return total + Poly(keep) if keep else total

    def affine(self, k: str) -> tuple[Poly, Poly] | None:
        """`(c, r)` with self = c*k + r and k in neither, or None."""
        lin: list[tuple[NameProduct, int]] = []
        rest: list[tuple[NameProduct, int]] = []
        for mono, c in self.terms:
            n = mono.count(k)
            if n == 1:
                i = mono.index(k)
                lin.append((mono[:i] + mono[i + 1 :], c))
            elif n:
                return None
            else:
                rest.append((mono, c))
        a, b = Poly(lin), Poly(rest)
        return None if k in a.vars or k in b.vars else (a, b)


def _subst_atom(atom: str, sub: Mapping[str, Poly]) -> Poly:
    if atom in sub:
        return sub[atom]
    form = _FORMS.get(atom)
    if form is None:
        return var(atom)
    op, args = form
    made = OPS.get(op)
    new = tuple(a.subst(sub) for a in args)
    return made(*new) if made else _entry(op, new)


def _show(terms: tuple[tuple[NameProduct, int], ...]) -> str:
    if not terms:
        return "0"
    out: list[str] = []
    for mono, c in sorted(terms, key=_display_order):
        body = "*".join(mono)
        mag = abs(c)
        piece = str(mag) if not body else body if mag == 1 else f"{mag}*{body}"
        if not out:
            out.append(piece if c > 0 else f"-{piece}")
        else:
            out.append(f" {'+' if c > 0 else '-'} {piece}")
    return "".join(out)


def _display_order(term: tuple[NameProduct, int]) -> tuple[bool, NameProduct]:
    return (not term[0], term[0])


def const(n: int) -> Poly:
    """The constant polynomial n."""
    return Poly((((), n),))


def var(name: str) -> Poly:
    """The polynomial of one variable."""
    return Poly((((name,), 1),))


def poly(x: PolyLike) -> Poly:
    """An int or polynomial as a polynomial."""
    return x if isinstance(x, Poly) else const(x)


def form_of(atom: str) -> AtomForm | None:
    """`(op, arguments)` of a non-polynomial atom, None for a variable."""
    return _FORMS.get(atom)


def _form(op: str, a: Poly, b: Poly) -> Poly:
    text = f"({a}){op}({b})" if op in ("//", "%") else f"{op}({a}, {b})"
    _FORMS.setdefault(text, (op, (a, b)))
    return var(text)


@functools.cache
def quoted(name: str) -> str:
    """The name of an input as the prover's texts have it: in quotes, which no other name has."""
    return json.dumps(name)


def unquoted(text: str) -> str:
    """The name that was quoted."""
    return json.loads(text)


def readable(text: str) -> str:
    """A text of the prover for messages: names without quotes."""
    return _QUOTED.sub(lambda found: unquoted(found[0]), text)


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def entry(name: str, args: tuple[Poly, ...]) -> Poly:
    """The entry of an integer input, as an index."""
    return _entry(quoted(name), args)


def unknown(name: str, args: tuple[Poly, ...]) -> Poly:
    """An integer of which nothing is known but that it is a function of these positions."""
    return _entry(name, args)


def _entry(op: str, args: tuple[Poly, ...]) -> Poly:
    text = f"{op}[{', '.join(map(str, args))}]"
    _FORMS.setdefault(text, (op, args))
    return var(text)


def read_of(atom: str) -> tuple[str, tuple[Poly, ...]] | None:
    """Name and index of an atom that is an entry of an input; None for a variable and for other forms."""
    form = _FORMS.get(atom)
    return None if form is None or form[0][0] != '"' else (unquoted(form[0]), form[1])


def of_data(p: Poly) -> bool:
    """Whether a polynomial contains entries of inputs or unknown positions, beside sizes and index variables."""
    return any(op not in OPS or any(map(of_data, args)) for op, args in filter(None, map(form_of, p.forms)))


def divide(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Quotient and remainder, after every multiple of b in a is divided exactly.

    Raises:
        ZeroDivisionError: b is the constant 0.
        ValueError: b is a negative constant.
    """
    n = b.value
    if n == 1:
        return a, const(0)
    if n == 0:
        raise ZeroDivisionError(f"{a} divided by 0")
    if n is not None and n < 0:
        raise ValueError(f"division by the negative constant {n}")
    quot: list[tuple[NameProduct, int]] = []
    rest: list[tuple[NameProduct, int]] = []
    lead, k = b.terms[0] if len(b.terms) == 1 else ((), 0)
    for mono, c in a.terms:
        if n is not None:
            quot.append((mono, c // n))
            rest.append((mono, c % n))
        elif k and c % k == 0 and (left := _without(mono, lead)) is not None:
            quot.append((left, c // k))
        else:
            rest.append((mono, c))
    q, r = Poly(quot), Poly(rest)
    if k == 0:  # a sum of several terms: take out integer multiples of the whole
        m, c = b.terms[-1]
        got = dict(r.terms).get(m, 0)
        if got and got % c == 0 and len((r - b.scale(got // c)).terms) < len(r.terms):
            q, r = q + got // c, r - b.scale(got // c)
    rv = r.value
    if rv == 0:
        return q, r
    if rv is not None and n is not None:
        return q + rv // n, const(rv % n)
    deeper, left_over = _divide_again(r, b)
    return q + deeper, left_over


def _divide_again(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """a // b and a % b where a may itself be a quotient or a remainder.

    (x // y) // b = x // (y*b);  (x % (b*w)) // b = (x // b) % w  and  (x % (b*w)) % b = x % b.
    """
    form = (
        _FORMS.get(a.terms[0][0][0]) if len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1 else None
    )
    if form is not None and form[0] == "//":
        return divide(form[1][0], form[1][1] * b)[0], _form("%", a, b)
    if form is not None and form[0] == "%" and len(b.terms) == 1:
        x, whole = form[1]
        times, rest = divide(whole, b)
        if rest.value == 0 and times.value != 1:
            outer, inner = divide(x, b)
            return divide(outer, times)[1], inner
    return _form("//", a, b), _form("%", a, b)


def _without(mono: NameProduct, part: NameProduct) -> NameProduct | None:
    left = list(mono)
    for a in part:
        if a not in left:
            return None
        left.remove(a)
    return tuple(left)


def least(a: PolyLike, b: PolyLike) -> Poly:
    """min(a, b)."""
    return _extreme("min", poly(a), poly(b))


def greatest(a: PolyLike, b: PolyLike) -> Poly:
    """max(a, b)."""
    return _extreme("max", poly(a), poly(b))


def _extreme(op: str, a: Poly, b: Poly) -> Poly:
    gap = (a - b).value
    if gap is not None:
        return (a if gap <= 0 else b) if op == "min" else (a if gap >= 0 else b)
    if str(b) < str(a):
        a, b = b, a
    return _form(op, a, b)


def _floordiv(a: Poly, b: Poly) -> Poly:
    return divide(a, b)[0]


def _mod(a: Poly, b: Poly) -> Poly:
    return divide(a, b)[1]


OPS: dict[str, Callable[[Poly, Poly], Poly]] = {"//": _floordiv, "%": _mod, "min": least, "max": greatest}
