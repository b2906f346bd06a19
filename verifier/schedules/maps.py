"""Index maps and their inverses: the iteration that writes an element, as a function of the element.

An equation `c1*a1 + ... + cn*an = t` relates iterators (or quotients and remainders of them) to a target.  It
determines the iterator with the greatest coefficient when that coefficient exceeds the greatest sum of all others:
a1 = t' // c1, the rest is t' % c1, and so on.  `x // d` and `x % d` together determine x, also where `x // d` is part
of a sum.  Every step follows from the equations and the ranges, so a solution is the only iteration that may write the
target.  An index map that is solved for fresh targets is therefore injective, and the target is written exactly when
the solution is in the stage's domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.index import (
    Atom,
    Form,
    Poly,
    Size,
    Symbol,
    divide,
    of_atom,
    substitute,
)
from verifier.schedules.domain import Domain
from verifier.schedules.intervals import INF


@dataclass
class _Equation:
    """The sum of `parts` (atom with unknowns -> coefficient) is `target`; None: not of this form."""

    parts: dict[Atom, int]
    target: Size


@dataclass
class _System:
    unknown: frozenset[Symbol]
    domain: Domain
    solved: dict[Atom, Size] = field(default_factory=dict[Atom, Size])
    equations: list[_Equation] = field(default_factory=list[_Equation])
    joined: set[tuple[Size, int]] = field(default_factory=set[tuple[Size, int]])

    def add(self, left: Size, right: Size) -> None:
        """Add the equation left = right; one that is not linear in unknown atoms is ignored."""
        parts: dict[Atom, int] = {}
        target = right
        if isinstance(left, int):
            return
        for mono, c in left.terms:
            inner = [a for a in mono if not a.symbols.isdisjoint(self.unknown)]
            if not inner:
                target = target - Poly(((mono, c),)) if mono else target - c
            elif len(mono) == 1:
                parts[mono[0]] = c
            else:
                return
        self.equations.append(_Equation(parts, target))

    def known(self, atom: Atom) -> Size | None:
        """The value of an atom, if it is determined."""
        value = self.solved.get(atom)
        if value is None and isinstance(atom, Form):
            free = atom.symbols & self.unknown
            values = {s: self.solved[s] for s in free if s in self.solved}
            if len(values) == len(free) and atom.op != "value":
                value = self.solved[atom] = substitute(of_atom(atom), values)
        if value is None:
            low, high = self.domain.bounds(of_atom(atom))
            if low == high:
                value = self.solved[atom] = int(low)
        return value

    def run(self) -> None:
        """Solve until nothing more follows."""
        progress = True
        while progress:
            progress = False
            for equation in self.equations:
                for atom in list(equation.parts):
                    value = self.known(atom)
                    if value is not None:
                        equation.target = equation.target - value * equation.parts.pop(atom)
                progress |= self._peel(equation)
            progress |= self._join()

    def _peel(self, equation: _Equation) -> bool:
        """Solve for the atoms of greatest coefficients, as far as each exceeds what is below it."""
        parts: list[tuple[int, Atom, int, int, int]] = []
        rest = equation.target
        for atom, c in equation.parts.items():
            low, high = self.domain.bounds(of_atom(atom))
            if low == -INF or high == INF or low > high:
                return False
            base = int(low) if c > 0 else int(high)
            rest = rest - base * c
            parts.append((abs(c), atom, c, base, int(high) - int(low)))
        parts.sort(key=lambda p: -p[0])
        done = False
        for at, (size, atom, c, base, _) in enumerate(parts):
            if size <= sum(k * width for k, _, _, _, width in parts[at + 1 :]) and not self._below(
                size, parts[at + 1 :]
            ):
                break
            digit = rest // size if size > 1 else rest
            rest = rest % size if at + 1 < len(parts) else 0
            value = base + digit if c > 0 else base - digit
            self.solved[atom] = value
            equation.target = equation.target - value * equation.parts.pop(atom)
            done = True
        return done

    def _below(self, size: int, parts: Sequence[tuple[int, Atom, int, int, int]]) -> bool:
        """Whether the guards of the domain keep the sum of these parts below `size` (a padded digit, say)."""
        total: Size = size - 1
        for k, atom, c, base, _ in parts:
            total = total - k * ((of_atom(atom) - base) if c > 0 else (base - of_atom(atom)))
        return self.domain.holds(total)

    def _join(self) -> bool:
        """Add equations from pairs of a quotient and a remainder of x by d, which give x; return whether any is new.

        The quotient may stand in a sum.
        """
        changed = False
        for atom in list(self.solved):
            if not isinstance(atom, Form) or atom.op != "//" or not isinstance(d := atom.args[1], int):
                continue
            x = atom.args[0]
            rest = self.remainder(x, d)
            if rest is not None and self._once(x, d):
                self.add(x, self.solved[atom] * d + rest)
                changed = True
            for other, b in self._remainders():  # x // (a * b) and (x // a) % b give x // a
                if d % b == 0 and d > b and divide(x, d // b)[0] == other and self._once(other, -b):
                    self.add(other, self.solved[atom] * b + self.solved[Form("%", (other, b))])
                    changed = True
        for x, n in self._remainders():  # (x // d + y) % n and x % d give (x + d * y) % (d * n)
            for mono, c in x.terms if isinstance(x, Poly) else ():
                atom = mono[0] if len(mono) == 1 and c == 1 else None
                if not isinstance(atom, Form) or atom.op != "//" or not isinstance(d := atom.args[1], int):
                    continue
                rest = self.remainder(atom.args[0], d)
                left = divide(atom.args[0] + d * (x - of_atom(atom)), d * n)[1]
                if rest is not None and self._once(left, 0):
                    self.add(left, self.solved[Form("%", (x, n))] * d + rest)
                    changed = True
        for equation in list(self.equations):
            for atom, c in equation.parts.items():
                if not isinstance(atom, Form) or atom.op != "//" or not isinstance(d := atom.args[1], int):
                    continue
                rest = self.remainder(atom.args[0], d)
                left: Size = atom.args[0] * c
                for other, k in equation.parts.items():
                    left = left + of_atom(other) * (k * d) if other is not atom else left
                if rest is not None and self._once(left, 0):
                    self.add(left, equation.target * d + rest * c)
                    changed = True
        return changed

    def _once(self, x: Size, d: int) -> bool:
        """Whether an equation about x is new and concerns an unknown; marks it as added."""
        if (x, d) in self.joined or isinstance(x, int) or x.symbols.isdisjoint(self.unknown):
            return False
        self.joined.add((x, d))
        return True

    def _remainders(self) -> list[tuple[Size, int]]:
        """Pairs (x, d) for which x % d is solved."""
        known = [a for a in self.solved if isinstance(a, Form) and a.op == "%" and isinstance(a.args[1], int)]
        return [(a.args[0], a.args[1]) for a in known]

    def remainder(self, x: Size, d: int) -> Size | None:
        """The value of x % d, if it is determined."""
        found = self.value(divide(x, d)[1])
        if found is not None:
            return found
        for other, b in self._remainders():  # x % (a * b) = a * ((x // a) % b) + x % a
            a = d // b
            if d % b == 0 and a > 1 and divide(x, a)[0] == other:
                rest = self.value(divide(x, a)[1])
                if rest is not None:
                    return self.solved[Form("%", (other, b))] * a + rest
        return None

    def value(self, x: Size) -> Size | None:
        """The value of an index whose atoms are all determined."""
        if isinstance(x, int):
            return x
        total: Size = 0
        for mono, c in x.terms:
            term: Size = c
            for a in mono:
                known = of_atom(a) if a.symbols.isdisjoint(self.unknown) else self.known(a)
                if known is None:
                    return None
                term = term * known
            total = total + term
        return total


def solve(
    index: Sequence[Size], target: Sequence[Size], unknown: Iterable[Symbol], domain: Domain
) -> dict[Symbol, Size]:
    """The unknowns that `index = target` determines on a domain, as functions of the target.

    Args:
        index: over the unknowns, and symbols that it shares with the target.
        target: over other symbols.
        unknown: the symbols to solve for.
        domain: where solutions may lie; it gives the ranges of the unknowns.
    """
    system = _System(frozenset(unknown), domain)
    for left, right in zip(index, target, strict=True):
        system.add(left, right)
    system.run()
    solution = {s: system.known(s) for s in system.unknown}
    return {s: v for s, v in solution.items() if v is not None}


def renamed(symbols: Iterable[Symbol], prefix: str) -> dict[Symbol, Size]:
    """Map each iterator to a fresh copy whose name begins with the prefix."""
    return {s: of_atom(Symbol(f"{prefix}.{s.name}", s.low, s.high)) for s in symbols}


def only(mapping: Mapping[Symbol, Size]) -> list[Symbol]:
    """The symbols that `renamed` made."""
    return [next(iter(p.symbols)) for p in mapping.values() if isinstance(p, Poly)]
