"""Symbols, forms, polynomials and guards: the classes, and sums and products in normal form.

Division and comparison need ranges, which need these classes: their modules are imported at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Size: TypeAlias = "int | Poly"
Atom: TypeAlias = "Symbol | Form"
Mono: TypeAlias = "tuple[Atom, ...]"
Truth: TypeAlias = "bool | Guard"


class Value(Protocol):
    """A scalar expression that is read as an index (`superopt.ir.expr.Expr`)."""

    @property
    def uid(self) -> int:
        """Number that identifies the expression."""
        ...

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Free symbols."""
        ...

    def substitute(self, mapping: Mapping[Symbol, Size]) -> Value:
        """The expression with symbols replaced."""
        ...

    def as_index(self) -> Size:
        """The expression as an index."""
        ...


class Symbol:
    """A named integer with an inclusive range (None: unbounded on that side)."""

    __slots__ = ("_hash", "high", "key", "low", "name")

    def __init__(self, name: str, low: Size | None = 0, high: Size | None = None) -> None:
        self.name, self.low, self.high, self.key = name, low, high, name
        self._hash = hash((name, low, high))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Symbol)
            and self._hash == other._hash
            and (self.name, self.low, self.high) == (other.name, other.low, other.high)
        )

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
            self.key = f"value#{args[0].uid}"
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

    __slots__ = ("_hash", "_key", "_symbols", "terms")

    def __init__(self, terms: tuple[tuple[Mono, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._key: str | None = None
        self._symbols: frozenset[Symbol] | None = None

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
            self._symbols = frozenset().union(*(a.symbols for m, _ in self.terms for a in m))
        return self._symbols

    @property
    def is_atom(self) -> bool:
        """A single atom with coefficient 1?"""
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
        terms = dict(self.terms)
        if isinstance(other, Poly):
            for m, c in other.terms:
                terms[m] = terms.get(m, 0) + c
        elif other:
            terms[()] = terms.get((), 0) + other
        return make(terms)

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
        return division.divide(self, other)[0]

    def __rfloordiv__(self, other: int) -> Size:
        return division.divide(other, self)[0]

    def __mod__(self, other: Size) -> Size:
        return division.divide(self, other)[1]

    def __rmod__(self, other: int) -> Size:
        return division.divide(other, self)[1]

    def __ge__(self, other: Size) -> Truth:
        return ranges.nonnegative(self - other)

    def __le__(self, other: Size) -> Truth:
        return ranges.nonnegative(other - self)

    def __gt__(self, other: Size) -> Truth:
        return ranges.nonnegative(self - other - 1)

    def __lt__(self, other: Size) -> Truth:
        return ranges.nonnegative(other - self - 1)


class Guard:
    """A condition that is not known: every polynomial of `terms` is >= 0."""

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
    """Order of atoms."""
    return atom.key


def _term_key(term: tuple[Mono, int]) -> tuple[str, ...]:
    return tuple([a.key for a in term[0]])


def _display_order(term: tuple[Mono, int]) -> tuple[bool, bool, tuple[str, ...]]:
    return (not term[0] and term[1] < 0, term[1] < 0, _term_key(term))


def make(terms: Mapping[Mono, int]) -> Size:
    """The polynomial of these terms, or the number that it is."""
    kept = [(m, c) for m, c in terms.items() if c]
    if len(kept) > 1:
        for mono, c in kept:
            joined = _joined(mono, c, terms)
            if joined is not None:
                return joined
    if not kept:
        return 0
    if len(kept) == 1:
        return kept[0][1] if not kept[0][0] else Poly((kept[0],))
    kept.sort(key=_term_key)
    return Poly(tuple(kept))


def _joined(mono: Mono, c: int, terms: Mapping[Mono, int]) -> Size | None:
    """The sum with `c * (x % b) + c*b * (x // b)` replaced by `c * x`, if it holds these."""
    for at, atom in enumerate(mono):
        if isinstance(atom, Form) and atom.op == "%":
            x, b = atom.args
            others = (*mono[:at], *mono[at + 1 :])
            quotient = division.divide(x, b)[0] if isinstance(b, int) else 0
            products = terms_of(make({others: 1}) * b * quotient)
            if len(products) != 1:
                continue
            ((whole, k),) = products
            if k and terms.get(whole) == c * k:
                rest = {m: d for m, d in terms.items() if m not in (mono, whole)}
                return make(rest) + make({others: c}) * x
    return None


def terms_of(x: Size) -> Sequence[tuple[Mono, int]]:
    """Products of atoms and their coefficients."""
    return x.terms if isinstance(x, Poly) else [((), x)] if x else []


from superopt.ir.index import division, ranges  # noqa: E402 (at the end: they need the classes above)
