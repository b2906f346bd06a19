"""A small checker for certificates of the normal form: adds up both sides again, with none of the prover's code.

The record of a proof by normal forms (`verifier.equal.written`) holds, for each equation of the rule, each choice of
ranks and reducers, both sides as sums of products under conditions.  Three checks are made of each:

1. *Equal as sums.*  Products that agree up to names of bound variables and order are added up, left minus right.  Where
   nothing remains, the sides are equal at all sizes, by arithmetic of fractions alone.
2. *Equal at sizes.*  The remaining summands cancel only because conditions on indices add up, or because bound
   variables can be solved for.  They are added up at concrete sizes and indices, over all values of the bound
   variables: each product of entries must have the same coefficient on both sides.  This holds for these sizes only;
   for all sizes it rests on the solver's answers, which `recheck` replays.
3. *Sums of this rule.*  At the same sizes, each side's value on random numbers must equal the value of the rule's own
   text by the reference interpreter.  This refuses sums of another rule, or a coefficient changed on both sides.

All equations and all reducers must be present.  From the rest of the package the checker uses the rule language, the
builder of graphs and the interpreter.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from rewrites.language.direction import reverse
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from superopt.errors import SuperoptError
from superopt.ir import scalar
from verifier.record.points import META, Point, point

Json: TypeAlias = "Any"
Names: TypeAlias = "Mapping[str, int]"
POINTS, DRAWS, MOST = 3, 12, 30_000
"""Points at which a record is added up, draws to find them, and most values of bound variables of one summand."""
NEAR = 1e-6
_LAWS = ("exact", "real", "range")
_NUMBERS = {"0": 0.0, "inf": math.inf, "row": 1.0, "column": 1.0}
_COMPARED = {"?lt": np.less, "?le": np.less_equal, "?eq": np.equal}


class Claim(Protocol):
    """Interface of the claims of a certificate (`verifier.record.ledger.Certificate` implements it)."""

    @property
    def rule(self) -> str:
        """Name of the rule."""
        ...

    @property
    def direction(self) -> str:
        """Forward or backward."""
        ...

    @property
    def text(self) -> str:
        """Text of the proved statement."""
        ...

    @property
    def exactness(self) -> str:
        """Exactness class: exact, real or range."""
        ...

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers of the prover that were used."""
        ...


class Refused(Exception):
    """Raised for a record that is no proof of its rule; the message says why."""


@dataclass
class Checked:
    """Counts of a check: equations added up, those equal at all sizes, points evaluated; and the refused records."""

    sums: int = 0
    for_all_sizes: int = 0
    points: int = 0
    refused: list[str] = field(default_factory=list[str])


def check(claim: Claim, rows: Sequence[Json] | None, done: Checked) -> None:
    """Check the record of one certificate; errors are added to `done.refused`."""
    name, direction = claim.rule, claim.direction
    try:
        if rows is None:
            raise Refused("it has no record of sums, or a damaged one")
        whole = f"{name}: {claim.text}"
        forward = direction == "forward"  # mode proof: a forward rule need not be matchable
        rule = parse(f"{whole}\n  mode proof" if forward else whole, "<certificate>")
        rule = rule if forward else reverse(rule)
        if rule is None:
            raise Refused("it has no such direction")
        keys = {(row["root"], tuple(sorted(row["metas"].items()))) for row in rows}
        if all(tier.startswith("normal form") for tier in claim.tiers) and not _wanted(rule) <= keys:
            raise Refused("equations or reducers of the rule are missing")
        if not rule.dtype and any(_LAWS.index(row["laws"]) > _LAWS.index(claim.exactness) for row in rows):
            raise Refused(f"it claims class {claim.exactness}, and its record uses more")
        for row in rows:
            _row(rule, row, done)
    except Refused as why:
        done.refused.append(f"{name}: {why}")
    except (SuperoptError, KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        done.refused.append(f"{name}: its record cannot be read: {type(error).__name__}: {error}")


def _wanted(rule: Rule) -> set[tuple[int, Any]]:
    kinds = [[(name, kind) for kind in of] for name, of in sorted(rule.metas.items()) if isinstance(of, tuple)]
    return {(root, pick) for root in range(len(rule.lhs)) for pick in itertools.product(*kinds)}


def _row(rule: Rule, row: Json, done: Checked) -> None:
    done.sums += 1
    left, right = row.get("added") or (row["left"], row["right"])
    rest = _added(left, right)
    done.for_all_sizes += not rest
    rng, seen = random.Random(f"{rule.name}/{row['root']}"), 0
    for draw in range(DRAWS):
        here = point(rule, row, rng, draw)
        if here is None:
            continue
        seen += 1
        if _coefficients(row, rest, here):
            raise Refused(f"the sides of equation {row['root'] + 1} differ as sums where {_told(here.names)}")
        for side, wanted in (("left", here.left), ("right", here.right)):
            got = _Values(row, here).sum(row[side], here.names)
            if not abs(got - wanted) <= NEAR * (1.0 + abs(wanted)) and not (math.isnan(wanted) or math.isinf(wanted)):
                raise Refused(f"the {side} side of equation {row['root'] + 1} is {wanted:g} and the record {got:g}")
        if seen == POINTS:
            break
    done.points += seen
    if not seen:
        raise Refused(f"no sizes were found at which equation {row['root'] + 1} can be added up")


def _told(names: Names) -> str:
    return ", ".join(f"{k} = {v}" for k, v in sorted(names.items()))


# ---- as sums, for all sizes


def _added(left: Json, right: Json) -> list[Json]:
    """The summands of left minus right that do not cancel."""
    totals: dict[str, Fraction] = {}
    first: dict[str, Json] = {}
    for sign, side in ((1, left), (-1, right)):
        for m in side:
            key = _key(m)
            totals[key] = totals.get(key, Fraction(0)) + sign * Fraction(m[0])
            first.setdefault(key, m)
    return [[str(k), *first[key][1:]] for key, k in totals.items() if k]


def _key(m: Json) -> str:
    """Canonical key of a summand without its coefficient: factors sorted, bound variables numbered as they occur."""
    _, sizes, conds, binders, factors = m
    blank = dict.fromkeys(binders, "!")
    ordered = sorted(factors, key=lambda a: repr([a[0], a[2], _renamed(a[1], blank)]))
    guards = sorted(conds, key=lambda g: repr(_renamed(g, blank)))
    names: dict[str, str] = {}
    for word in _words([ordered, guards]):
        if word in blank:
            names.setdefault(word, f"!{len(names)}")
    names |= {k: f"!{len(names) + i}" for i, k in enumerate(x for x in binders if x not in names)}
    shown = sorted(repr(_renamed(g, names)) for g in guards)
    return repr([_renamed(sizes, names), _renamed(ordered, names), shown, len(binders)])


def _renamed(x: Json, names: Mapping[str, str]) -> Json:
    """A part of a summand with names replaced; the terms of polynomials are sorted again."""
    if isinstance(x, str):
        return names.get(x, x)
    if not isinstance(x, list):
        return x
    inner: list[Json] = [_renamed(y, names) for y in cast(list[Json], x)]
    if len(inner) > 1 and all(map(_is_term, inner)):
        return sorted(([k, sorted(atoms, key=repr)] for k, atoms in inner), key=repr)
    return inner


def _is_term(x: Json) -> bool:
    """Whether a value is one term [factor, atoms] of a polynomial."""
    pair = cast(list[Json], x) if isinstance(x, list) else []
    return len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], list)


def _words(x: Json) -> Iterator[str]:
    if isinstance(x, str):
        yield x
    elif isinstance(x, list):
        for y in cast(list[Json], x):
            yield from _words(y)


# ---- numbers


def poly(p: Json, names: Names, entries: Mapping[str, np.ndarray]) -> int:
    """The value of a polynomial."""
    return sum(k * math.prod(_atom(a, names, entries) for a in atoms) for k, atoms in p)


def _atom(a: Json, names: Names, entries: Mapping[str, np.ndarray]) -> int:
    if isinstance(a, str):
        return names[a]
    op, args = a[0], [poly(x, names, entries) for x in a[1]]
    if op in ("min", "max"):
        return (min if op == "min" else max)(args)
    if op in ("//", "%"):
        return args[0] // args[1] if op == "//" else args[0] % args[1]
    array = entries[json.loads(op)]
    return int(array[tuple(min(max(i, 0), n - 1) for i, n in zip(args, array.shape, strict=True))])


def _holds(g: Json, names: Names, entries: Mapping[str, np.ndarray]) -> bool:
    kind, of = g
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(_holds(x, names, entries) for x in of)
    if kind in ("true", "false"):
        return kind == "true"
    value = poly(of, names, entries)
    return value >= 0 if kind == "ge" else (value == 0) == (kind == "eq")


def _bound(row: Json, m: Json, names: Names, entries: Mapping[str, np.ndarray]) -> Iterator[dict[str, int]]:
    """Yield the values of the bound variables of a summand at which its conditions hold."""
    ranges = [range(poly(row["ranges"][k], names, entries)) for k in m[3]]
    if math.prod(map(len, ranges)) > MOST:
        raise Refused("a sum is too long to be added up")
    for values in itertools.product(*ranges):
        at = {**names, **dict(zip(m[3], values, strict=True))}
        if all(_holds(g, at, entries) for g in m[2]):
            yield at


def _coefficients(row: Json, side: Json, here: Point) -> dict[Any, Fraction]:
    """Map each product of factors at concrete places to its coefficient, where that is not 0."""
    out: dict[Any, Fraction] = {}
    entries = here.arrays
    for m in side:
        for at in _bound(row, m, here.names, entries):
            powers: Counter[Any] = Counter()
            for label, args, e in m[4]:
                place = (label, tuple(poly(x, at, entries) for x in args))
                powers[place] = 1 if label.startswith("?") else powers[place] + e
            product = tuple(sorted((k, e) for k, e in powers.items() if e))
            sizes = math.prod((Fraction(poly(q, at, entries)) ** e for q, e in m[1]), start=Fraction(1))
            out[product] = out.get(product, Fraction(0)) + Fraction(m[0]) * sizes
    return {product: k for product, k in out.items() if k}


@dataclass
class _Values:
    """Evaluation of sums at a point, on its inputs."""

    row: Json
    point: Point

    def sum(self, side: Json, names: Names) -> float:
        """The value of a sum."""
        return math.fsum(self._product(m, at) for m in side for at in _bound(self.row, m, names, self.point.arrays))

    def _product(self, m: Json, at: Names) -> float:
        arrays = self.point.arrays
        value = float(Fraction(m[0]))
        for q, e in m[1]:
            value *= float(poly(q, at, arrays)) ** e
        for label, args, e in m[4]:
            value *= self._factor(label, [poly(x, at, arrays) for x in args]) ** e
        return value

    def _factor(self, label: str, args: Sequence[int]) -> float:
        if label in self.row["atoms"]:
            fn, params, sums = self.row["atoms"][label]
            return self._function(fn, sums, {**self.point.names, **dict(zip(params, args, strict=True))})
        if label in (*_NUMBERS, "size"):
            return _NUMBERS.get(label, float(args[0] if args else 0))
        return float(self.point.arrays[json.loads(label.removeprefix("?"))][tuple(args)])

    def _function(self, fn: str, sums: Json, at: Names) -> float:
        added = fn.startswith("rsum[")
        if fn in ("rmax", "rprod") or added:
            products = [self._product(m, x) for m in sums[0] for x in _bound(self.row, m, at, self.point.arrays)]
            if added:
                return math.fsum(products)
            return max(products, default=-math.inf) if fn == "rmax" else math.prod(products)
        if fn == "inverse":
            return self._inverse(sums, at)
        args = [self.sum(p, at) for p in sums]
        if fn == "value":
            return args[0]
        if fn in _COMPARED:
            return float(_COMPARED[fn](args[0], args[1] if len(args) > 1 else 0.0))
        if fn.startswith("$"):
            fn = META[len(args)]
        name, _, power = fn.partition("[")
        if name == "integer_pow":
            return args[0] ** int(power[:-1])
        return float(scalar.apply(name, "float64", tuple(np.float64(a) for a in args)))

    def _inverse(self, sums: Json, at: Names) -> float:
        """An entry of an inverse, by lengths of rows and columns, its place, and the matrix as a sum over unknowns."""
        numbers, arrays = [int(self.sum(p, at)) for p in sums[:-1]], self.point.arrays
        half, axes = len(numbers) // 2, len(numbers) // 4
        matrix = np.zeros(numbers[:half])
        for m in sums[-1]:
            ends = {label: args for label, args, _ in m[4]}
            for x in _bound(self.row, m, at, arrays):
                matrix[tuple([poly(p, x, arrays) for p in ends["row"] + ends["column"]])] += self._product(m, x)
        inverse = np.linalg.inv(matrix.reshape(math.prod(numbers[:axes]), -1))
        return float(inverse.reshape(numbers[axes:half] + numbers[:axes])[tuple(numbers[half:])])


__all__ = ["Checked", "Refused", "check"]
