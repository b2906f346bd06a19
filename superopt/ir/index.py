"""Integer polynomials: symbolic sizes, loop indices and symbolic attributes, in normal form.

A `Poly` is a sum of integer multiples of products of atoms.  An atom is a `Symbol` (a size, or a loop iterator, with
its range) or a `Form`: `a // b`, `a % b`, `min(a, b)`, `max(a, b)`, `clip(x, low, high)`, or an integer `value` read
from a tensor.  Polynomials that are equal as polynomials in their atoms are equal objects, and one that is constant
is a Python `int`.  `//` is the floor, for divisors >= 1; `a % b = a - b * (a // b)`.

Comparisons give a bool where ranges decide them, else a `Guard`: a conjunction of polynomials that must be >= 0.
Ranges of symbols may be symbolic themselves (an iterator below `n`); `decide` substitutes them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from superopt.ir.intervals import INF, Interval, applied, polynomial

Size: TypeAlias = "int | Poly"
Atom: TypeAlias = "Symbol | Form"
Mono: TypeAlias = "tuple[Atom, ...]"
Truth: TypeAlias = "bool | Guard"


class ScalarValue(Protocol):
    """A scalar expression that is read as an index (`superopt.ir.expr.Expr`)."""

    @property
    def key(self) -> str:
        """Text that identifies the expression."""
        ...

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Free symbols."""
        ...

    def substitute(self, mapping: Mapping[Symbol, Size]) -> ScalarValue:
        """Return the expression with symbols replaced."""
        ...

    def as_index(self) -> Size:
        """Return the expression as an index."""
        ...


class Symbol:
    """A named integer with an inclusive range (None: unbounded on that side); equal ones are one object."""

    __slots__ = ("__weakref__", "high", "key", "low", "name")

    name: str
    low: Size | None
    high: Size | None
    key: str

    def __new__(cls, name: str, low: Size | None = 0, high: Size | None = None) -> Symbol:
        at = (name, low, high)
        known = _SYMBOLS.get(at)
        if known is not None:
            return known
        made = super().__new__(cls)
        made.name, made.low, made.high, made.key = name, low, high, name
        with _LOCK:
            known = _SYMBOLS.get(at)
            if known is None:
                known = _SYMBOLS[at] = made
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.low, self.high)

    def __repr__(self) -> str:
        return self.name

    @property
    def extent(self) -> Size:
        """Number of values of an iterator that starts at 0."""
        if self.high is None:
            raise ValueError(f"the symbol {self.name} has no upper bound")
        return self.high + 1

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbol itself."""
        return frozenset((self,))


_SYMBOLS: weakref.WeakValueDictionary[tuple[str, Size | None, Size | None], Symbol] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()  # for two look-ups


class Form:
    """A non-polynomial atom.

    Attributes:
        op: `//`, `%`, `min`, `max` (two arguments), `clip` (x, low, high) or `value` (one scalar expression).
        args: sizes, or the expression.
    """

    __slots__ = ("_hash", "args", "key", "op", "symbols")

    def __init__(self, op: str, args: tuple[Any, ...]) -> None:
        self.op, self.args = op, args
        self.symbols: frozenset[Symbol] = frozenset().union(*(x.symbols for x in args if not isinstance(x, int)))
        self._hash = hash((op, args))
        if op == "value":
            self.key = f"value#{args[0].key}"
        else:
            self.key = f"{op}({','.join(x.key if isinstance(x, Poly) else str(x) for x in args)})"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Form) and self._hash == other._hash and self.op == other.op and self.args == other.args
        )

    def __repr__(self) -> str:
        if self.op in ("//", "%"):
            a, b = (f"({x})" if isinstance(x, Poly) and not x.is_atom else str(x) for x in self.args)
            return f"{a}{self.op}{b}"
        return f"{self.op}({', '.join(map(str, self.args))})"


class Poly:
    """A polynomial that is not a constant: sorted pairs of a product of atoms and its integer coefficient."""

    __slots__ = ("_forms", "_hash", "_key", "_symbols", "terms")

    def __init__(self, terms: tuple[tuple[Mono, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._key: str | None = None
        self._symbols: frozenset[Symbol] | None = None
        self._forms: tuple[Form, ...] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic size {self} is not known")

    @property
    def key(self) -> str:
        """Text that identifies the polynomial and orders atoms."""
        if self._key is None:
            self._key = "+".join(f"{c}*{'*'.join(a.key for a in m)}" if m else str(c) for m, c in self.terms)
        return self._key

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that occur, also inside forms."""
        if self._symbols is None:
            atoms = [a for m, _ in self.terms for a in m]
            inside = [a.symbols for a in atoms if isinstance(a, Form)]
            self._symbols = frozenset([a for a in atoms if isinstance(a, Symbol)]).union(*inside)
        return self._symbols

    @property
    def forms(self) -> tuple[Form, ...]:
        """The non-polynomial atoms at the top level, each once."""
        if self._forms is None:
            self._forms = tuple(dict.fromkeys([a for m, _ in self.terms for a in m if isinstance(a, Form)]))
        return self._forms

    @property
    def is_atom(self) -> bool:
        """Whether it is a single atom with coefficient 1."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms at the top level, each once."""
        return tuple(dict.fromkeys(a for m, _ in self.terms for a in m))

    @property
    def constant(self) -> int:
        """The constant term."""
        for m, c in self.terms:
            if not m:
                return c
        return 0

    def __repr__(self) -> str:
        out = ""
        ordered = sorted(self.terms, key=_display_order)
        for m, c in ordered:
            body = "*".join(f"({a})" if isinstance(a, Form) and a.op in ("//", "%") and (len(m) > 1 or c != 1)
                            else str(a) for a in m)  # fmt: skip
            size = str(abs(c)) if not body else body if abs(c) == 1 else f"{abs(c)}*{body}"
            out += ("-" if c < 0 else "+" if out else "") + size
        return out

    def __add__(self, other: Size) -> Size:
        if isinstance(other, Poly):
            terms = dict(self.terms)
            for m, c in other.terms:
                terms[m] = terms.get(m, 0) + c
            return make(terms)
        if not other:
            return self
        first, c = self.terms[0]  # a constant is the first term
        constant, rest = (other, self.terms) if first else (other + c, self.terms[1:])
        return Poly((((), constant), *rest) if constant else rest)

    __radd__ = __add__

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, Poly):
            terms: dict[Mono, int] = {}
            for m, c in self.terms:
                for n, d in other.terms:
                    both = tuple(sorted(m + n, key=atom_key)) if m and n else m or n
                    terms[both] = terms.get(both, 0) + c * d
            return make(terms)
        if other == 1:
            return self
        return Poly(tuple((m, c * other) for m, c in self.terms)) if other else 0

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __floordiv__(self, other: Size) -> Size:
        return divide(self, other)[0]

    def __rfloordiv__(self, other: int) -> Size:
        return divide(other, self)[0]

    def __mod__(self, other: Size) -> Size:
        return divide(self, other)[1]

    def __rmod__(self, other: int) -> Size:
        return divide(other, self)[1]

    def __ge__(self, other: Size) -> Truth:
        return nonnegative(self - other)

    def __le__(self, other: Size) -> Truth:
        return nonnegative(other - self)

    def __gt__(self, other: Size) -> Truth:
        return nonnegative(self - other - 1)

    def __lt__(self, other: Size) -> Truth:
        return nonnegative(other - self - 1)


class Guard:
    """A condition whose truth is not known: every polynomial of `terms` is >= 0."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Iterable[Poly]) -> None:
        self.terms = frozenset(terms)
        self._hash = hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.terms == other.terms

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self} is not known")

    def __repr__(self) -> str:
        return " & ".join(f"{p}>=0" for p in self.ordered)

    @property
    def ordered(self) -> list[Poly]:
        """The polynomials in a fixed order."""
        return sorted(self.terms, key=lambda p: p.key)

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that occur."""
        return frozenset[Symbol]().union(*(p.symbols for p in self.terms))


# ---- construction


def symbol(name: str, low: Size | None = 0, high: Size | None = None) -> Poly:
    """The polynomial of one symbol, by default a size >= 0."""
    return Poly(((((Symbol(name, low, high),)), 1),))


def of_atom(atom: Atom) -> Poly:
    """The polynomial of one atom."""
    return Poly((((atom,), 1),))


def iterator(name: str, extent: Size) -> tuple[Symbol, Size]:
    """A loop iterator `0 <= name < extent` and its value (0 when there is only one)."""
    it = Symbol(name, 0, extent - 1)
    return it, 0 if isinstance(extent, int) and extent == 1 else of_atom(it)


def atom_key(atom: Atom) -> str:
    """Return the key by which atoms are ordered."""
    return atom.key


def _term_key(term: tuple[Mono, int]) -> list[str]:
    """Return the keys of a term's atoms, whatever its coefficient."""
    return [a.key for a in term[0]]


def _display_order(term: tuple[Mono, int]) -> tuple[bool, bool, list[str]]:
    return (not term[0] and term[1] < 0, term[1] < 0, _term_key(term))


def make(terms: Mapping[Mono, int]) -> Size:
    """Return the polynomial of these terms; an `int` if it is constant."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1:
        return kept[0][1] if not kept[0][0] else Poly((kept[0],))
    for mono, c in kept:
        for atom in mono:
            if isinstance(atom, Form) and atom.op == "%" and (joined := _joined(mono, c, terms)) is not None:
                return joined
    kept.sort(key=_term_key)
    return Poly(tuple(kept))


def _joined(mono: Mono, c: int, terms: Mapping[Mono, int]) -> Size | None:
    """Replace `c * (x % b) + c*b * (x // b)` in a sum by `c * x`; None without such terms."""
    for at, atom in enumerate(mono):
        if isinstance(atom, Form) and atom.op == "%":
            x, b = atom.args
            others = (*mono[:at], *mono[at + 1 :])
            quotient = divide(x, b)[0] if isinstance(b, int) else 0
            products = terms_of(make({others: 1}) * b * quotient)
            if len(products) != 1:
                continue
            ((whole, k),) = products
            if k and terms.get(whole) == c * k:
                rest = {m: d for m, d in terms.items() if m not in (mono, whole)}
                return make(rest) + make({others: c}) * x
    return None


def symbols_of(x: Size | Truth) -> frozenset[Symbol]:
    """Return the symbols of an index or of a guard; none for a number or a known guard."""
    return x.symbols if isinstance(x, Poly | Guard) else frozenset()


def sides_of(guard: Truth) -> list[Poly]:
    """Return the polynomials that a guard requires to be >= 0, in a fixed order; none where the guard is known."""
    return guard.ordered if isinstance(guard, Guard) else []


def terms_of(x: Size) -> Sequence[tuple[Mono, int]]:
    """Products of atoms and their coefficients."""
    return x.terms if isinstance(x, Poly) else [((), x)] if x else []


# ---- ranges
#
# Numeric bounds come from interval arithmetic.  Where symbols have symbolic bounds (an iterator below `n`), a lower
# bound of a polynomial is found by putting, one symbol after another, the end of its range at which it is least.

_DEPTH = 8  # symbolic bounds are substituted at most this often


def bounds(x: Size, within: Mapping[Symbol, Interval] | None = None) -> Interval:
    """Return inclusive numeric bounds (-inf and inf when unknown); `within` narrows symbols."""
    if isinstance(x, int):
        return x, x
    return polynomial(x.terms, lambda atom: _atom_bounds(atom, within))


def _atom_bounds(atom: Atom, within: Mapping[Symbol, Interval] | None) -> Interval:
    if isinstance(atom, Symbol):
        if within is not None and atom in within:
            return within[atom]
        low, high = atom.low, atom.high
        return (
            low if isinstance(low, int) else -INF if low is None else bounds(low, within)[0],
            high if isinstance(high, int) else INF if high is None else bounds(high, within)[1],
        )
    if atom.op == "value":
        return -INF, INF
    return applied(atom.op, [bounds(x, within) for x in atom.args])


def decide(x: Size) -> bool | None:
    """Return whether x >= 0; None when ranges do not decide it."""
    low, high = bounds(x)
    if low >= 0:
        return True
    if high < 0:
        return False
    if _proved(x):
        return True
    return False if _proved(-1 - x) else None


def _proved(x: Size) -> bool:
    """Whether a lower bound of x, taken symbol by symbol, is >= 0."""
    for _ in range(_DEPTH):
        if not isinstance(x, Poly):
            break
        smaller = _lowest(x)
        if smaller is None:
            return False
        x = smaller
        if bounds(x)[0] >= 0:
            return True
    return False


def _lowest(x: Poly) -> Size | None:
    """Return a lower bound of x with one symbol eliminated: one with a symbolic bound, in which x is monotone."""
    for s in sorted(x.symbols, key=atom_key):
        inner = any(isinstance(a, Form) and s in a.symbols for a in x.atoms)
        if inner or not (isinstance(s.low, Poly) or isinstance(s.high, Poly)):
            continue
        signs: set[bool] = set()
        for mono, c in x.terms:
            if s not in mono:
                continue
            others = make({tuple(a for a in mono if a != s): c})
            low, high = bounds(others)
            if mono.count(s) > 1 or (low < 0 < high):
                signs = {True, False}
                break
            signs.add(low >= 0)
        end = s.low if signs == {True} else s.high if signs == {False} else None
        if end is not None:
            return substitute(x, {s: end})
    return None


def nonnegative(x: Size) -> Truth:
    """Return the condition x >= 0: a bool where ranges decide it."""
    known = decide(x)
    if known is not None:
        return known
    assert isinstance(x, Poly)
    return Guard((x,))


def all_of(*guards: Truth) -> Truth:
    """Conjunction."""
    terms: set[Poly] = set()
    for g in guards:
        if isinstance(g, Guard):
            terms |= g.terms
        elif not g:
            return False
    return Guard(terms) if terms else True


def equal(a: Size, b: Size) -> Truth:
    """Return the condition a = b."""
    d = a - b
    return all_of(nonnegative(d), nonnegative(-d))


# ---- division
#
# (d*y + z) // b = y // (b/d)  and  (d*y + z) % b = d * (y % (b/d)) + z      where 0 <= z < d and d divides b
# (x // a) // b = x // (a*b)     (x % a) % b = x % b                         where b divides a

_STEPS = 8  # multiples of a sum are taken out at most this often


def divide(a: Size, b: Size) -> tuple[Size, Size]:
    """Return floor quotient and remainder, simplified by ranges.

    Raises:
        ZeroDivisionError: b is 0.
        ValueError: b is a negative constant.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"{a} divided by 0")
        if b < 0:
            raise ValueError(f"{a} divided by the negative constant {b}")
        return (a // b, a % b) if isinstance(a, int) else _divide_by_int(a, b)
    return _divide_by_poly(a, b)


def _divide_by_int(a: Poly, b: int) -> tuple[Size, Size]:
    """Return the quotient of a polynomial by a positive number, rounded down, and the rest."""
    if b == 1:
        return a, 0
    whole: dict[Mono, int] = {}
    left: dict[Mono, int] = {}
    for m, c in a.terms:
        q = c // b if not m or c % b == 0 else int(c / b)
        whole[m], left[m] = q, c - q * b
    quotient, rest = make(whole), make(left)
    if isinstance(rest, int):
        return quotient, rest
    low, high = bounds(rest)
    if low > -INF and high < INF and low // b == high // b:
        k = int(low // b)
        return quotient + k, rest - k * b
    for d in sorted({math.gcd(c, b) for m, c in rest.terms if m} - {1, b}, reverse=True):
        # (d*y + z) // b = y // (b/d) and (d*y + z) % b = d * (y % (b/d)) + z where 0 <= z < d
        coarse = make({m: c // d for m, c in rest.terms if c % d == 0})
        fine = make({m: c for m, c in rest.terms if c % d})
        low, high = bounds(fine)
        if isinstance(coarse, Poly) and low >= 0 and high < d:
            q, r = divide(coarse, b // d)
            return quotient + q, r * d + fine
    for m, c in rest.terms:
        if c == 1 and len(m) == 1 and isinstance(form := m[0], Form) and isinstance(k := form.args[-1], int):
            x, others = form.args[0], rest - of_atom(form)
            if form.op == "//":  # (x // k + y) // b = (x + k*y) // (k*b)
                return quotient + divide(x + k * others, k * b)[0], of_atom(Form("%", (rest, b)))
            if form.op == "%" and k % b == 0 and others == 0:
                return quotient + of_atom(Form("//", (rest, b))), divide(x, b)[1]
    return quotient + of_atom(Form("//", (rest, b))), of_atom(Form("%", (rest, b)))


def _divide_by_poly(a: Size, b: Poly) -> tuple[Size, Size]:
    """Return the quotient of a size by a polynomial, rounded down, and the rest."""
    whole: dict[Mono, int] = {}
    left: dict[Mono, int] = {}
    lead, k = b.terms[0]
    for m, c in terms_of(a):
        part = _without(m, lead) if len(b.terms) == 1 and c % k == 0 else None
        if part is None:
            left[m] = left.get(m, 0) + c
        else:
            whole[part] = whole.get(part, 0) + c // k
    quotient, rest = make(whole), make(left)
    for _ in range(_STEPS if len(b.terms) > 1 else 0):  # take out multiples of a sum, led by its first term
        divided = next(
            ((p, c // k) for m, c in terms_of(rest) if c % k == 0 and (p := _without(m, lead)) is not None), None
        )
        if divided is None:
            break
        step = make({divided[0]: divided[1]})
        fewer = rest - step * b
        if len(terms_of(fewer)) >= len(terms_of(rest)):
            break
        quotient, rest = quotient + step, fewer
    if isinstance(rest, int) and rest == 0:
        return quotient, 0
    if decide(rest) is True and decide(b - 1 - rest) is True:
        return quotient, rest
    return quotient + of_atom(Form("//", (rest, b))), of_atom(Form("%", (rest, b)))


def _without(mono: Mono, part: Mono) -> Mono | None:
    left = list(mono)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def least(a: Size, b: Size) -> Size:
    """min(a, b)."""
    return _extreme("min", a, b, b - a)


def greatest(a: Size, b: Size) -> Size:
    """max(a, b)."""
    return _extreme("max", a, b, a - b)


def _extreme(op: str, a: Size, b: Size, gap: Size) -> Size:
    """Return a where the gap is not negative, b where it is; a form where that is unknown."""
    known = decide(gap)
    if known is not None:
        return a if known else b
    first, second = sorted((a, b), key=_size_key)
    return of_atom(Form(op, (first, second)))


def clip(x: Size, low: Size, high: Size) -> Size:
    """min(max(x, low), high)."""
    if isinstance(x, int) and isinstance(low, int) and isinstance(high, int):
        return min(max(x, low), high)
    if decide(x - low) is True and decide(high - x) is True:
        return x
    return of_atom(Form("clip", (x, low, high)))


def _size_key(x: Size) -> str:
    return x.key if isinstance(x, Poly) else f"{x:+021d}"


def _quotient(a: Size, b: Size) -> Size:
    return divide(a, b)[0]


def _remainder(a: Size, b: Size) -> Size:
    return divide(a, b)[1]


APPLY: dict[str, Callable[..., Size]] = {
    "//": _quotient, "%": _remainder, "min": least, "max": greatest, "clip": clip,
}  # fmt: skip


# ---- substitution and evaluation


def substitute(x: Size, mapping: Mapping[Symbol, Size]) -> Size:
    """Return the polynomial with symbols replaced, in normal form again."""
    if isinstance(x, int) or x.symbols.isdisjoint(mapping):
        return x
    terms: dict[Mono, int] = {}
    for mono, c in x.terms:
        if not any(a in mapping if isinstance(a, Symbol) else not a.symbols.isdisjoint(mapping) for a in mono):
            terms[mono] = terms.get(mono, 0) + c
            continue
        term: Size = c
        for a in mono:
            term = term * _substitute_atom(a, mapping)
        for m, k in terms_of(term):
            terms[m] = terms.get(m, 0) + k
    return make(terms)


def _substitute_atom(atom: Atom, mapping: Mapping[Symbol, Size]) -> Size:
    if isinstance(atom, Symbol):
        return mapping[atom] if atom in mapping else of_atom(atom)
    if atom.symbols.isdisjoint(mapping):
        return of_atom(atom)
    if atom.op == "value":
        return atom.args[0].substitute(mapping).as_index()
    return APPLY[atom.op](*(substitute(x, mapping) for x in atom.args))


def substitute_guard(guard: Truth, mapping: Mapping[Symbol, Size]) -> Truth:
    """Return the condition with symbols replaced."""
    if not isinstance(guard, Guard):
        return guard
    return all_of(*[nonnegative(substitute(p, mapping)) for p in guard.terms])


def evaluate(x: Size, atom: Callable[[Atom], Any]) -> Any:
    """Evaluate the polynomial over other integers: `atom` gives the meaning of each atom."""
    if isinstance(x, int):
        return x
    total: Any = None
    for mono, c in x.terms:
        term: Any = None
        for a in mono:
            term = atom(a) if term is None else term * atom(a)
        term = c if term is None else term if c == 1 else term * c
        total = term if total is None else total + term
    return total


def concrete(x: Size, values: Mapping[str, int]) -> int:
    """Return the integer value of the polynomial for these values of its symbols.

    Raises:
        KeyError: a symbol has no value.
    """

    def atom(a: Atom) -> int:
        if isinstance(a, Symbol):
            return values[a.name]
        args = [concrete(y, values) for y in a.args]
        return int(APPLY[a.op](*args))  # pyright: ignore[reportArgumentType]

    return evaluate(x, atom)


# ---- positions


def row_major(index: Sequence[Size], shape: Sequence[Size]) -> Size:
    """Return the position of an index in an array of this shape, its last axis contiguous."""
    at: Size = 0
    for i, n in zip(index, shape, strict=True):
        at = at * n + i
    return at


def coefficient(x: Size, s: Symbol) -> int | None:
    """Return the integer factor of a symbol in an index; None where the index is not affine in it."""
    if isinstance(x, int) or s not in x.symbols:
        return 0
    factor = 0
    for mono, c in x.terms:
        if mono == (s,):
            factor = c
        elif any(s in atom.symbols for atom in mono):
            return None
    return factor
