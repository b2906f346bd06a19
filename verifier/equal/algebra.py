"""The prover's symbolic algebra: it evaluates the op table's own denotations over symbolic indices.

`Terms` implements the protocol of `superopt.ir.algebra` with polynomials as indices and the terms of
`verifier.equal.terms` as scalars.  The semantics of a proved rule, statement or schedule is thus given by the very code
that the reference interpreter runs.

An integer scalar that is a size or an index stays an index polynomial: a mask `iota(n) <= k` is an index condition, and
an index computed from other indices can be read at.  It stays one only where its type holds it (`ranges`).  Arithmetic
on entries of integer inputs wraps; where its result is used as an index, it must provably not wrap.  Integer functions
that the reals do not have are named `$div[int32]`.  They are uninterpreted, so only congruence holds for them, except
in the tier for machine integers.  So are roundings to fewer bits, conversions whose values are not exact, and the tests
for NaN and infinities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.ir.ops.record import identity
from superopt.ir.scalar import COMPARISONS, LOGICAL, UNROUNDED, numpy_dtype
from superopt.ir.scalar import apply as scalar_apply
from superopt.ir.scalar import convert as scalar_convert
from superopt.ir.types import FLOATS, INTEGERS
from verifier.equal import conditions as c
from verifier.equal.bits import FUNCTIONS, width_of
from verifier.equal.conditions import Cond, CondOrBool, Int, Sym, unwrap
from verifier.equal.domains import Domains
from verifier.equal.equality import Proof
from verifier.equal.infinities import NAN, cases_of, chooses_infinity, of_infinities, without_value
from verifier.equal.normal import ENTRY, INVERSE, MATRIX, MULTISET, REAL
from verifier.equal.places import Places
from verifier.equal.poly import Poly, const, divide, form_of, greatest, least, unknown, var
from verifier.equal.positions import (
    LATTICE,
    RING,
    constant_as,
    index_condition,
    indicator,
    integer,
    of_positions,
    plain_position,
    position,
)
from verifier.equal.ranges import FLOAT_BITS, PremiseRanges, of_type
from verifier.equal.rounding import Rounded, counts, within
from verifier.equal.terms import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Apply,
    Const,
    Infinity,
    Integer,
    Read,
    Reduce,
    ScalarTerm,
    Where,
    alike,
    free_of,
    walk_terms,
)

WIDE = ("int32", "int64", "uint32", "uint64")
"""Integers that hold every position of an axis."""
SINGLE = ("float32", "float64")
"""Floats that round sizes no more than results."""
WIDEST = "float64"
PLACE, VALUE, UPWARDS, DOWNWARDS = "place#", "extreme#", "upwards#", "downwards#"
"""Prefixes of unknown integers, behind which their number stands: places of extremes, extremes, places in an order."""
TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
"""Comparison -> the same comparison with its operands swapped."""
LARGEST_DENOMINATOR = 1000
FRACTIONS = "a float constant is the simplest fraction that rounds to it"
FINITE_TEST = "values that are tested for being finite numbers are"
ROUNDED = "a size as a float is rounded as results of floats are"
BESIDE_INFINITY = "numbers beside infinities are finite"
MIXED = "results are finite and rounded alike in all types of floats"
ANY_ZERO = "which zero a maximum or a minimum over both zeros gives is not said"
ANY_ORDER = "in which order a sort leaves zeros of both signs is not said"
ZEROS = {"max": ANY_ZERO, "min": ANY_ZERO, MULTISET: ANY_ORDER}
"""Reductions of floats -> what class exact leaves open about them."""
SORTED = "values that are sorted are numbers"


class Wraps(Exception):
    """Raised for an index that is computed in a type which may not hold it; the message names the type."""


@dataclass
class Terms(Places):
    """The algebra of rules, statements and schedules.

    Attributes:
        machine: name integer functions plainly, for the tier of machine integers.
        typed: name them with their type (`add[int8]`), for the tier of bits; entries are then no positions.
        apart: name functions of floats that round with their type (`add[bfloat16]`), since types round differently.
        ranges: ranges of integers.
        fractions: let a float32 constant stand for a simple fraction; float64 tells both apart.
        finite: assume that values tested for being finite are so, if they are finite wherever inputs are.
        tested: whether such values occurred.
        domains: where values are defined.
        rounded: values of floats that were rounded when they were computed.
        assumptions: assumptions made so far.
        arithmetic: terms of integer arithmetic on values that are no positions, which wraps, by identity; with dtypes.
        floating: functions of floats by identity: comparisons, conversions and arithmetic.
        held: terms that are unknown positions, with the index variables in them.
    """

    ranges: PremiseRanges
    machine: bool = False
    finite: bool = False
    typed: bool = False
    apart: bool = False
    fractions: bool = True
    tested: bool = False
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    arithmetic: dict[int, tuple[ScalarTerm, str]] = field(default_factory=dict[int, tuple[ScalarTerm, str]])
    floating: dict[int, ScalarTerm] = field(default_factory=dict[int, ScalarTerm])
    held: list[tuple[ScalarTerm, list[str]]] = field(default_factory=list[tuple[ScalarTerm, list[str]]])
    domains: Domains = field(init=False)
    rounded: Rounded = field(init=False)

    def __post_init__(self) -> None:
        self.domains = Domains(self.known)
        self.rounded = Rounded(self.ranges.kinds)

    def certify(self, done: Proof) -> None:
        """Add the assumptions made by this algebra to the proof, and thus to its certificate."""
        for text in self.assumptions:
            done.assume(text)
        if ROUNDED in self.assumptions:
            done.note(REAL, "sizes as floats")
        if BESIDE_INFINITY in self.assumptions:
            done.note(REAL, "infinities apart")
            done.integers = False
        if self.ranges.assumption:
            done.assume(self.ranges.assumption)

    # ---- leaves
    def read(self, name: str, index: Sequence[Int], dtype: str) -> ScalarTerm:
        """The entry of an input; one at the place of an extreme of the same entries is that extreme."""
        self.ranges.kinds[name] = dtype
        made = Read(name, tuple([unwrap(i) for i in index]), dtype == "bool")
        return self._at_place(made, dtype) if self.held else made

    def _at_place(self, made: Read, dtype: str) -> ScalarTerm:
        """An entry, or the extreme of the entries among which it stands at the place of that extreme."""
        for name, at in dict.fromkeys(place for p in made.index for place in _places(p)):
            what, _, number = name.partition("#")
            known, names = self.held[int(number)]
            if not isinstance(known, Reduce) or not isinstance(known.body, Read):
                continue
            body, here = known.body, dict(zip(names, at, strict=False))  # behind these stands a position in an order
            size = known.size.subst(here)
            place = _on_axis(unknown(name, at), size)
            if made == _read_at(body, {**here, known.var: place}):
                if known.kind != MULTISET:
                    return self._of_entries(known.kind, size, body, known.var, here, dtype)
                entry_at = functools.partial(_entry_at, body, known.var, here)
                return self.in_order(Sym(size), Sym(at[-1]), entry_at, dtype, greatest=f"{what}#" == DOWNWARDS)
        return made

    def _of_entries(
        self, kind: str, size: Poly, body: Read, over: str, here: Mapping[str, Poly], dtype: str
    ) -> ScalarTerm:
        """The extreme of entries over a fresh index in place of the variable `over`."""
        return self.reduce(kind, [Sym(size)], functools.partial(_entry_at, body, over, here), dtype)

    def entries(self, array: np.ndarray, index: Sequence[Int]) -> ScalarTerm:
        """The entry of a small constant array."""
        dtype = str(array.dtype)
        where = [unwrap(i) for i in index]

        def at(part: Any, axis: int) -> ScalarTerm:
            if axis == len(where):
                return self.const(part.item(), dtype)
            value, last = where[axis].value, part.shape[0] - 1
            if value is not None:
                return at(part[min(max(value, 0), last)], axis + 1)
            term = at(part[last], axis + 1)
            for j in range(last - 1, -1, -1):
                term = Where(c.eq(where[axis], j), at(part[j], axis + 1), term)
            return term

        return at(array, 0)

    def const(self, value: bool | int | float, dtype: str) -> ScalarTerm:
        """A constant; a float32 stands for a simple fraction that rounds to it, if there is one."""
        if isinstance(value, float):
            if math.isnan(value):
                return NAN
            if math.isinf(value):
                return Infinity(1 if value > 0 else -1)
            if not value and math.copysign(1.0, value) < 0:
                return self.of_floats(Apply("neg", (ZERO,)))
            exact = Fraction(value)
            simple = exact.limit_denominator(LARGEST_DENOMINATOR) if self.fractions else exact
            if simple != exact and dtype == "float32" and float(np.float32(float(simple))) == value:
                self.assumptions[FRACTIONS] = None
                return Const(simple)
            return Const(exact)
        if dtype == "bool":
            return TRUE if value else FALSE
        return Const(Fraction(int(value)))

    # ---- scalar functions
    def op(self, fn: str, dtype: str, *args: ScalarTerm) -> ScalarTerm:
        """A scalar function on operands of a dtype."""
        if fn == "select_n":
            return self._select(args)
        if fn in COMPARISONS and (special := self._compare(fn, dtype, args)) is not None:
            return special
        if dtype == "bool":
            return self._logical(fn, args)
        if dtype in FLOATS and (special := self._number_test(fn, dtype, args)) is not None:
            return special
        if dtype in INTEGERS:
            return self._integers(fn, dtype, args)
        if dtype in FLOATS and (special := self._beside_infinity(fn, dtype, args)) is not None:
            return special
        if any(isinstance(a, Integer) for a in args) and (p := self._sum_of_sizes(fn, dtype, args)) is not None:
            self._as_float(p, dtype)
            return integer(p)
        if dtype not in FLOATS:
            return Apply(fn, args)
        if fn in UNROUNDED:
            return self.of_floats(Apply(fn, args))
        return self.rounded.to(dtype, self.of_floats(Apply(f"{fn}[{dtype}]" if self.apart else fn, args)))

    def of_floats(self, made: ScalarTerm) -> ScalarTerm:
        """Register a term as a function of floats."""
        self.floating[id(made)] = made
        return made

    def _sum_of_sizes(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> Poly | None:
        """A function of sizes as floats as a polynomial; None where a zero of it may have the sign -0.

        Sums and products of sizes that the type does not hold are None, too: they see how these were rounded.
        """
        known = [p for a in args if (p := position(a)) is not None]
        here = fn in RING | LATTICE | {"abs"} and len(known) == len(args)
        if fn in ("add", "sub", "mul") and not all(self.ranges.exact(p, dtype) for p in known):
            return None
        total = self._positions(fn, known) if here else None
        signless = fn in ("add", "sub", "abs", *LATTICE) or (fn == "mul" and all(self.known(c.ge(p, 0)) for p in known))
        return total if total is None or signless or self.known(c.ne(total, 0)) else None

    def _number_test(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm | None:
        """A test for NaN or finite values as an uninterpreted predicate, or as true by assumption; None for others.

        A comparison of a size that the float type does not hold is an uninterpreted predicate, too.
        Rules proved by more than exact laws hold for finite values only, so they may make this assumption.
        """
        if fn in ("eq", "ne") and args[0] == args[1] and not self.ranges.untyped:
            if position(args[0]) is not None or without_value(args[0]):
                return TRUE if (fn == "eq") != (args[0] == NAN) else FALSE
            number = self._finite("?number", args[0])
            return number if fn == "eq" else self._logical("not", (number,))
        if fn == "is_finite":
            if without_value(args[0]):
                return FALSE
            return TRUE if position(args[0]) is not None else self._finite("?is_finite", args[0])
        sizes = [a.value for a in args if isinstance(a, Integer)] if fn in COMPARISONS else []
        if not all(self.ranges.exact(p, dtype) for p in sizes):
            return self.of_floats(Apply(f"?{fn}[{dtype}]", tuple(args)))
        return None

    def _finite(self, test: str, value: ScalarTerm) -> ScalarTerm:
        """A test for finite values; it is assumed to hold only for values that are defined wherever inputs are."""
        made = self.of_floats(Apply(test, (value,)))
        if not self.domains.whole(value):
            return made
        self.tested = True
        if not self.finite:
            return made
        self.assumptions[FINITE_TEST] = None
        return TRUE

    def _beside_infinity(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm | None:
        """A function of infinities, or of a choice with an infinite branch, which is applied to each branch.

        Values beside an infinity are assumed to be finite, as in class real; None where they may be undefined.
        """
        at = next((i for i, a in enumerate(args) if chooses_infinity(a)), None)
        if (at is None and not any(isinstance(a, Infinity) for a in args)) or not self.domains.whole(*args):
            return None
        if at is not None:
            choice = args[at]
            assert isinstance(choice, Apply | Where)
            parts = choice.args[1:] if isinstance(choice, Apply) else (choice.orelse, choice.then)
            made = [self._with_zero(fn, dtype, *args[:at], part, *args[at + 1 :]) for part in parts]
            if isinstance(choice, Where):
                return Where(choice.guard, made[1], made[0])
            return self._select((choice.args[0], *made))
        infinite = of_infinities(fn, args)
        if infinite is not None and (isinstance(infinite, Infinity) or fn not in LATTICE):
            self.assumptions[BESIDE_INFINITY] = None
        return infinite

    def _with_zero(self, fn: str, dtype: str, *args: ScalarTerm) -> ScalarTerm:
        """A function of one branch of a choice; adding 0, as a mask does where it is open, gives the other operand."""
        if fn == "add" and ZERO in args:
            self.assumptions[BESIDE_INFINITY] = None
            return args[1] if args[0] == ZERO else args[0]
        return self.op(fn, dtype, *args)

    def _as_float(self, p: Poly, dtype: str) -> None:
        if not self.ranges.exact(p, dtype):
            self.assumptions[ROUNDED] = None

    def _integers(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm:
        if fn == "shift_left" and not self.typed and (times := _power(args[1], dtype)) is not None:
            return self._integers("mul", dtype, (args[0], times))
        positions = [position(a) for a in args]
        if None not in positions:
            total = self._positions(fn, [p for p in positions if p is not None])
            if total is not None and self.ranges.fits(total, dtype):
                return integer(total)
        if any(isinstance(a, Where) for a in args) and fn not in COMPARISONS:
            return self._cases(fn, dtype, args)
        plain = self.machine or fn in RING | LATTICE | COMPARISONS
        named = f"{fn}[{dtype}]" if self.typed else fn if plain else f"${fn}[{dtype}]"
        made = Apply(named, tuple(args))
        return made if fn in LATTICE | COMPARISONS else self.wrapping(made, dtype)

    def wrapping(self, made: ScalarTerm, dtype: str) -> ScalarTerm:
        """Register a term as integer arithmetic in a dtype."""
        self.arithmetic[id(made)] = made, dtype
        return made

    def wraps(self, *sides: ScalarTerm) -> bool:
        """Whether some side has integer arithmetic on values that are no positions, which may wrap."""
        return any(id(t) in self.arithmetic for side in sides for t in walk_terms(side))

    def kind(self, *sides: ScalarTerm) -> str:
        """`int` where integer arithmetic may wrap, `mixed` where floats occur as well, empty where no integers wrap."""
        mixed = any(id(t) in self.floating or self.is_float(t) for side in sides for t in walk_terms(side))
        return ("mixed" if mixed else "int") if self.wraps(*sides) else ""

    def is_float(self, t: ScalarTerm) -> bool:
        """Whether a term reads an entry of a float input."""
        return isinstance(t, Read) and self.ranges.kinds.get(t.name) not in (*INTEGERS, "bool")

    def _cases(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm:
        """Move a function of a choice by an index condition into the branches of the choice."""
        at = next(i for i, a in enumerate(args) if isinstance(a, Where))
        choice = args[at]
        assert isinstance(choice, Where)

        def of(part: ScalarTerm) -> ScalarTerm:
            return self.op(fn, dtype, *args[:at], part, *args[at + 1 :])

        return Where(choice.guard, of(choice.then), of(choice.orelse))

    def _compare(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm | None:
        """A comparison of positions (sizes, indices, entries of integer inputs) as an index condition."""
        sides = [self._side(a, dtype) for a in args]
        if sides.count(None) == 1 and dtype in INTEGERS and not self.typed:
            sides = [self._computed(a) if p is None else p for a, p in zip(args, sides, strict=True)]
        if None in sides and dtype in INTEGERS and (inside := self._compared_inside(fn, dtype, args)) is not None:
            return inside
        if any(isinstance(a, Where) for a in args) and all(self._chosen_side(a, dtype) for a in args):
            return self._cases(fn, dtype, args)
        if None in sides or all(isinstance(a, Read) for a in args):
            return None
        if dtype in FLOATS and not self._compared_alike([p for p in sides if p is not None], dtype):
            return None
        a, b = sides
        assert a is not None
        assert b is not None
        made = {
            "lt": c.lt(a, b), "gt": c.lt(b, a), "ge": c.ge(a, b), "le": c.ge(b, a), "eq": c.eq(a, b), "ne": c.ne(a, b),
        }[fn]  # fmt: skip
        return self._truth(made)

    def _side(self, t: ScalarTerm, dtype: str) -> Poly | None:
        """The polynomial of a term as an operand of a comparison, for which -0 and 0 are equal; None if it has none.

        A sum of floats has one if no rounding occurs in it.  It also has one if it is that of a size and a small
        number: sizes that are rounded are so large that the sum stays larger than all small numbers.
        """
        known = plain_position(t, dtype in INTEGERS and not self.typed)
        if known is not None or dtype in INTEGERS or not isinstance(t, Apply) or t.fn not in RING:
            return known
        parts = [p for a in t.args if (p := self._side(a, dtype)) is not None]
        value = of_positions(t.fn, parts) if len(parts) == len(t.args) else None
        if value is None or all(self.ranges.exact(p, dtype) for p in (*parts, value)):
            return value
        numbers = [p.value for p in parts if p.value is not None and abs(p.value) < 2 ** (FLOAT_BITS[dtype][1] - 1)]
        near = t.fn in ("add", "sub") and numbers and all(position(a) is not None for a in t.args)
        return value if near else None

    def _computed(self, t: ScalarTerm) -> Poly | None:
        """The polynomial of the place of an extreme, or of a choice between positions that nothing makes wrap."""
        if not isinstance(t, Reduce | Where) and not (isinstance(t, Apply) and t.fn in LATTICE | {"select_n"}):
            return None
        try:
            return self._place(t) if isinstance(t, Reduce) else self._index(t, ())
        except (NotImplementedError, Wraps):
            return None

    def _chosen_side(self, t: ScalarTerm, dtype: str) -> bool:
        """Whether a term is a position, or a choice between positions (a concatenation of positions)."""
        if isinstance(t, Where):
            return self._chosen_side(t.then, dtype) and self._chosen_side(t.orelse, dtype)
        return self._side(t, dtype) is not None

    def _compared_inside(self, fn: str, dtype: str, args: Sequence[ScalarTerm]) -> ScalarTerm | None:
        """Move a comparison with a constant into a maximum of integers, or into a choice between constants.

        max_k a_k > c holds where some a_k > c, min_k a_k < c where some a_k < c, also over an empty range of k.
        """
        if isinstance(args[0], Const):
            fn, args = TURNED[fn], (args[1], args[0])
        inner, by = args
        if not isinstance(by, Const):
            return None
        if isinstance(inner, Reduce) and (fn, inner.kind) in (("gt", "max"), ("lt", "min")):
            return Reduce("or", inner.var, inner.size, self.op(fn, dtype, inner.body, by))
        parts = cases_of(inner)
        if parts is not None and all(isinstance(x, Const) for x in parts[1:]):
            return self._select((parts[0], *(self.op(fn, dtype, x, by) for x in parts[1:])))
        return None

    def _compared_alike(self, sides: Sequence[Poly], dtype: str) -> bool:
        """Whether integers compare the same after conversion to a float dtype.

        They do where all are exact.  They also do where one is a small constant, since rounding is monotone.
        """
        exact = [self.ranges.exact(p, dtype) for p in sides]
        return all(exact) or any(p.value is not None and abs(p.value) < 2 ** FLOAT_BITS[dtype][1] for p in sides)

    def _truth(self, g: Cond) -> ScalarTerm:
        if self.known(g):
            return TRUE
        return FALSE if self.known(c.negate(g)) else Where(g, TRUE, FALSE)

    def _select(self, args: Sequence[ScalarTerm]) -> ScalarTerm:
        """Return a choice between cases, simplified where the predicate is known."""
        which, cases = args[0], args[1:]
        chosen = position(which)
        if chosen is not None and chosen.value is not None:
            return cases[min(max(chosen.value, 0), len(cases) - 1)]
        if len(cases) > 2:  # the predicate is an integer
            term = cases[0]
            for j, case in enumerate(cases[1:], 1):
                term = self._select((self.op("ge", "int32", which, Const(Fraction(j))), term, case))
            return term
        if len(cases) == 1:
            return cases[0]
        if not is_truth(which):
            which = self.op("ge", "int32", which, ONE)
        false, true = (_chosen(case, which, j) for j, case in enumerate(cases))
        if alike(false, true):
            return false
        if isinstance(false, Const) and isinstance(true, Const) and false.truth and true.truth:
            return which if true == ONE else self._logical("not", (which,))
        guard = index_condition(which)
        if guard is not None:
            return Where(guard, true, false)
        if isinstance(which, Apply) and which.fn == "not":
            return self._select((which.args[0], true, false))
        if (inner := cases_of(true)) is not None and alike(inner[1], false):  # two nested conditions for one value
            return self._select((self._logical("and", (which, inner[0])), false, inner[2]))
        return Apply("select_n", (which, false, true))

    def _logical(self, fn: str, args: Sequence[ScalarTerm]) -> ScalarTerm:
        guards = [index_condition(a) for a in args]
        fn = {"max": "or", "min": "and", "ne": "xor", "mul": "and", "add": "or"}.get(fn, fn)
        if fn == "eq":
            return self._logical("not", [self._logical("xor", args)])
        if fn == "not" and isinstance(args[0], Apply) and args[0].fn == "not":
            return args[0].args[0]
        if None not in guards:
            gs = [g for g in guards if g is not None]
            match fn:
                case "not":
                    return self._truth(c.negate(gs[0]))
                case "and":
                    return self._truth(c.conj(gs))
                case "or":
                    return self._truth(c.disj(gs))
                case "xor":
                    both, neither = c.conj(gs), c.conj([c.negate(g) for g in gs])
                    return self._truth(c.negate(c.disj([both, neither])))
                case _:
                    pass
        return Apply(fn if fn in ("and", "or", "xor", "not") else f"?{fn}[bool]", tuple(args))

    def _positions(self, fn: str, xs: list[Poly]) -> Poly | None:
        """A function of sizes and indices as a polynomial over unbounded integers, or None."""
        match fn, xs:
            case (("div" | "rem"), [a, b]):
                if not (self.known(c.ge(a, 0)) and self.known(c.ge(b, 1))):
                    return None
                return divide(a, b)[0 if fn == "div" else 1]
            case "sign", [a]:
                return const(1) if self.known(c.ge(a, 1)) else least(1, greatest(-1, a))
            case "abs", [a]:
                return greatest(a, -a)
            case _:
                return of_positions(fn, xs)

    def convert(self, value: ScalarTerm, source: str, target: str) -> ScalarTerm:
        """The value in another dtype: widening is the identity, an inexact conversion an uninterpreted function."""
        if source == target:
            return value
        if target == "bool":
            return self.op("ne", source, value, ZERO)
        if source == "bool":
            guard = index_condition(value)
            return Where(guard, ONE, ZERO) if guard is not None else Apply("select_n", (value, ZERO, ONE))
        known = position(value)
        if known is not None and (found := self._position_as(known, value, source, target)) is not None:
            return found
        if source in FLOATS and target in FLOATS:
            if within(source, target):
                return value
            return value if self.rounded.holds(target, value) else self.of_floats(Apply(f"narrow[{target}]", (value,)))
        if isinstance(value, Where):
            parts = [self.convert(x, source, target) for x in (value.then, value.orelse)]
            return Where(value.guard, parts[0], parts[1])
        if (affine := self._affine(value, source, target)) is not None:
            return affine
        if source in INTEGERS and target in FLOATS and counts(target, source):
            target = WIDEST  # the number is the same in every float type that has it
        if source in FLOATS and isinstance(value, Apply) and value.fn.startswith("convert["):
            known, _, wide = value.fn[8:-1].partition(",")
            held = of_type(target)[0] <= of_type(known)[0] and of_type(known)[1] <= of_type(target)[1]
            if held and wide == WIDEST and counts(wide, known):
                return self.convert(value.args[0], known, target)
        made = Apply(f"convert[{source},{target}]", (value,))
        return self.of_floats(made) if source in FLOATS else made

    def _affine(self, value: ScalarTerm, source: str, target: str) -> ScalarTerm | None:
        """The affine form of a widened function of one 8-bit entry that is affine at all 256 values; else None."""
        wide = target in INTEGERS and source in INTEGERS and width_of(target) > width_of(source) == 8
        if self.typed or not wide or not isinstance(value, Apply):
            return None
        reads = {t for t in walk_terms(value) if isinstance(t, Read)}
        kinds = {self.ranges.kinds.get(t.name, "") for t in reads}
        if len(reads) != 1 or not kinds <= {"int8", "uint8"}:
            return None
        (entry_of,), (kind,) = reads, kinds
        numbers = np.arange(of_type(kind)[0], of_type(kind)[1] + 1)
        table = self._tabulated(value, source, {entry_of: numbers.astype(kind)})
        if table is None:
            return None
        values = table.astype(np.int64)
        slope = int(values[1] - values[0])
        start = int(values[0]) - slope * int(numbers[0])
        if not (values == slope * numbers + start).all():
            return None
        line = self.op("mul", target, self.convert(entry_of, kind, target), Const(Fraction(slope)))
        return self.op("add", target, line, Const(Fraction(start)))

    def _tabulated(self, t: ScalarTerm, dtype: str, given: dict[Read, np.ndarray]) -> np.ndarray | None:
        """The values of an integer term at all values of one entry, by the interpreter.

        None where the term has other ops, types or inputs.
        """
        if isinstance(t, Read):
            return given[t] if str(given[t].dtype) == dtype else None
        if isinstance(t, Const):
            return np.full(256, int(t.value), numpy_dtype(dtype))
        if not isinstance(t, Apply):
            return None
        name, _, kind = t.fn.removeprefix("$").partition("[")
        if name == "convert":
            before, _, after = kind.removesuffix("]").partition(",")
            inside = self._tabulated(t.args[0], before, given) if after == dtype and before in INTEGERS else None
            return None if inside is None else scalar_convert(inside, before, dtype)
        parts = [self._tabulated(x, dtype, given) for x in t.args]
        if name not in FUNCTIONS or self.arithmetic.get(id(t), (t, ""))[1] != dtype or any(x is None for x in parts):
            return None
        return scalar_apply(name, dtype, tuple(parts))

    def _position_as(self, p: Poly, value: ScalarTerm, source: str, target: str) -> ScalarTerm | None:
        """An integer in another dtype, or None where the conversion may change it."""
        if p.value is not None:
            return constant_as(p.value, source, target)
        if source in FLOATS and target in FLOATS and not self.ranges.exact(p, source) and within(source, target):
            return self.of_floats(Apply(f"convert[{source},{target}]", (value,)))  # a size that was rounded
        if target in INTEGERS:
            whole = source in INTEGERS or self.ranges.exact(p, source)
            return value if whole and self.ranges.fits(p, target, assume=source in INTEGERS) else None
        if target in SINGLE or self.ranges.exact(p, target):
            self._as_float(p, target)
            return value
        return None

    # ---- indices
    def to_index(self, value: ScalarTerm) -> Int:
        """An integer scalar as an index.

        Raises:
            NotImplementedError: it is computed by a function that index polynomials do not have.
            Wraps: it is computed in a type that may not hold it.
        """
        return Sym(self._index(value, ()))

    def _index(self, t: ScalarTerm, facts: tuple[Cond, ...]) -> Poly:
        """Return an integer term as a polynomial of positions; opaque parts become atoms."""
        known = position(t, entries=True)
        if known is not None:
            return known
        if isinstance(t, Reduce) and (place := self._place(t)) is not None:
            return place
        if isinstance(t, Reduce) and t.kind in LATTICE and isinstance(t.body, Read):
            return self._held(t, VALUE)
        if isinstance(t, Where) and t.guard in (c.TRUE, c.FALSE):
            return self._index(t.then if t.guard == c.TRUE else t.orelse, facts)
        if isinstance(t, Where) and (one := indicator(t.guard)) is not None:
            then = self._index(t.then, (*facts, *c.clauses(t.guard)))
            orelse = self._index(t.orelse, (*facts, *c.clauses(c.negate(t.guard))))
            return orelse + (then - orelse) * one
        if isinstance(t, Apply) and t.fn == "select_n" and (guard := self._condition(t.args[0], facts)) is not None:
            return self._index(Where(guard, t.args[2], t.args[1]), facts)
        if isinstance(t, Apply) and t.fn.partition("[")[0] in (*RING, *LATTICE, "convert"):
            parts = [self._index(a, facts) for a in t.args]
            if t.fn.startswith("convert["):
                source, _, kind = t.fn[8:-1].partition(",")
                made = parts[0] if source in INTEGERS and kind in INTEGERS else None
            else:
                made, kind = of_positions(t.fn, parts), self.arithmetic.get(id(t), (t, ""))[1]
            if made is not None:
                if not self.ranges.fits(made, kind, facts):
                    raise Wraps(f"an index is computed by {t.fn.partition('[')[0]} in {kind}, which may wrap")
                return made
        raise NotImplementedError("an index that is computed by " + (t.fn if isinstance(t, Apply) else "a reduction"))

    def _place(self, t: Reduce) -> Poly | None:
        """The place of an extreme, as `argmax` denotes it, as an unknown position on its axis; else None.

        Some entry is the extreme of an axis that is not empty, or is NaN, so the least such place is on the axis.
        """
        parts = cases_of(t.body) if t.kind == "min" else None
        if parts is None or parts[2] != Integer(var(t.var)) or not self.known(c.ge(t.size, 1)):
            return None
        hit, beyond, _ = parts
        same, none = hit.args if isinstance(hit, Apply) and hit.fn == "or" else (hit, None)
        if not (
            isinstance(same, Apply) and same.fn == "eq" and isinstance(beyond, Const) and beyond.value >= 2**31 - 1
        ):
            return None
        value, best = same.args
        if not isinstance(best, Reduce) or best.kind not in LATTICE or best.size != t.size:
            return None
        if not alike(replace(best, var=t.var, body=value), best):
            return None
        floats = any(id(x) in self.floating or self.is_float(x) for x in walk_terms(value))
        number = Apply("not", (Apply("?number", (value,)),))
        if floats and not self.finite and (none is None or not alike(none, number)):
            return None
        kind, body = best.kind, value
        if isinstance(value, Apply) and value.fn == "neg" and id(value) in self.floating:
            kind, body = "min" if kind == "max" else "max", value.args[0]
        return _on_axis(self._held(Reduce(kind, t.var, t.size, body), PLACE), t.size)

    def _held(self, t: ScalarTerm, what: str) -> Poly:
        """An unknown integer that is the same for terms that are alike, at the index variables of each."""
        free = free_of(t) - self.ctx.dims
        names = [x for x in self.ctx.ranges if x in free]
        if len(names) != len(free):
            raise NotImplementedError("an index at a position without a range")
        for i, (known, own) in enumerate(self.held):
            if len(own) == len(names) and alike(_closed(t, names), _closed(known, own)):
                return unknown(f"{what}{i}", tuple(map(var, names)))
        self.held.append((t, names))
        return unknown(f"{what}{len(self.held) - 1}", tuple(map(var, names)))

    def _condition(self, t: ScalarTerm, facts: tuple[Cond, ...]) -> Cond | None:
        """The condition of a comparison of integers that can be index polynomials; None for other truth values."""
        known = index_condition(t)
        if known is not None or not isinstance(t, Apply) or t.fn not in COMPARISONS or id(t) in self.floating:
            return known
        a, b = (self._index(x, facts) for x in t.args)
        made = {
            "lt": c.lt(a, b), "gt": c.lt(b, a), "ge": c.ge(a, b), "le": c.ge(b, a), "eq": c.eq(a, b), "ne": c.ne(a, b),
        }[t.fn]  # fmt: skip
        return c.TRUE if self.known(made) else c.FALSE if self.known(c.negate(made)) else made

    def from_index(self, index: Int, dtype: str) -> ScalarTerm:
        """An index as a scalar."""
        p = unwrap(index)
        value = integer(p)
        if self.ranges.untyped:
            return value
        if dtype in WIDE:  # the axis exists, so its length is bounded like that of any axis
            if p.value is None and not self.ranges.fits(p, dtype, assume=False):
                self.ranges.assume()
            return value
        made = self._position_as(p, value, "int64", dtype)
        return Apply(f"convert[int64,{dtype}]", (value,)) if made is None else made

    # ---- choice and reductions
    def where(self, guard: CondOrBool, then: Callable[[], ScalarTerm], orelse: Callable[[], ScalarTerm]) -> ScalarTerm:
        """A choice by an index condition; one branch where premises and ranges decide the condition."""
        g = c.conj(x for x in c.clauses(c.truth(guard)) if not self.known(x))
        self.guards[c.truth(guard)] = None
        if g == c.TRUE:
            return then()
        return orelse() if self.known(c.negate(g)) else Where(g, then(), orelse())

    def reduce(self, monoid: str, extents: Sequence[Int], body: Callable[..., ScalarTerm], dtype: str) -> ScalarTerm:
        """Fold over fresh bound variables; short products are written out."""
        sizes = [unwrap(n).subst(self.settled) for n in extents]
        counts = [n.value for n in sizes]
        rounds = monoid in ("sum", "prod") and dtype in FLOATS
        by = f"{self.added_by} {len(sizes)}" if rounds and self.added_by else ""
        few = None not in counts and math.prod(n or 0 for n in counts) <= UNROLLED
        bitwise = monoid == "xor" or (monoid in ("and", "or") and dtype in INTEGERS)
        if few and (bitwise or monoid == "prod"):
            return self._unrolled(monoid, [n or 0 for n in counts], body, dtype)
        kind = {"max": "or", "min": "and"}.get(monoid, monoid) if dtype == "bool" else monoid
        kind = f"{kind}[{dtype}]" if bitwise else kind
        binders: list[tuple[str, Poly]] = []
        index = [self.variable(n, "k", binders) for n in sizes]
        term = body(*index)
        kind = f"{kind}[{dtype}]" if rounds and self.apart else kind
        every = kind == "and"  # written as the negation of `or` of the negations
        if every:
            kind, term = "or", self._logical("not", (term,))
        for name, n in reversed(binders):
            term = Reduce(kind, name, n, term, by)
        if every:
            term = self._logical("not", (term,))
        if rounds and binders:
            self.rounded.to(dtype, term)
        if monoid == "sum" and dtype in FLOATS and sizes and not binders:
            term = self.op("add", dtype, ZERO, term)  # turns -0 into 0
        wraps = dtype in INTEGERS and monoid not in LATTICE
        return self.wrapping(term, dtype) if wraps else term

    def inverse(
        self,
        rows: Sequence[Int],
        columns: Sequence[Int],
        entry: Callable[..., ScalarTerm],
        at: Sequence[Int],
        dtype: str,
    ) -> ScalarTerm:
        """An entry of the inverse of a matrix: a function of its place and of all entries of the matrix."""
        sizes = [unwrap(n).subst(self.settled) for n in (*rows, *columns)]
        binders: list[tuple[str, Poly]] = []
        ends = [self.variable(n, "k", binders) for n in sizes]
        term: ScalarTerm = Apply(ENTRY, (*[integer(unwrap(i)) for i in ends], entry(*ends)))
        for name, length in reversed(binders):
            term = Reduce(MATRIX, name, length, term)
        numbers = [integer(p) for p in (*sizes, *map(unwrap, at))]
        return self.rounded.to(dtype, self.of_floats(Apply(INVERSE, (*numbers, term))))

    # ---- orders
    def numbers(self, value: ScalarTerm) -> bool:
        """Whether floats that are sorted are assumed to be no NaN; only values that are defined wherever inputs are."""
        if not self.domains.whole(value):
            return False
        self.tested = True
        if self.finite:
            self.assumptions[SORTED] = None
        return self.finite

    def _entries_of(self, n: Poly, body: Callable[..., ScalarTerm]) -> ScalarTerm:
        """The multiset of all values of `body` below a size."""
        binders: list[tuple[str, Poly]] = []
        term = body(self.variable(n, "k", binders))
        for name, size in reversed(binders):
            term = Reduce(MULTISET, name, size, term)
        return term

    def in_order(
        self, size: Int, position: Int, body: Callable[..., ScalarTerm], dtype: str, *, greatest: bool = False
    ) -> ScalarTerm:
        """The entry at a position in ascending order, NaN last.

        With `greatest` it is one in descending order by bits, which is the order of numbers except for zeros.
        """
        n, at, floats = unwrap(size), unwrap(position), dtype in FLOATS
        entries = self._entries_of(n, body)
        if not isinstance(entries, Reduce) or entries.kind != MULTISET:  # one entry
            return entries
        if greatest and (not floats or self.numbers(entries.body)):
            at, greatest = n - 1 - at, False
        if (inside := _ordered(entries, _IN_ORDER[greatest])) is not None:
            entries = inside
        elif not greatest and self.known(c.eq(at, n - 1)):
            return self.reduce("max", [size], body, dtype)
        elif not greatest and self.known(c.eq(at, 0)) and (not floats or self.numbers(entries.body)):
            return self.reduce("min", [size], body, dtype)
        made = Apply(_IN_ORDER[greatest], (integer(at), entries))
        return self.of_floats(made) if floats else made

    def place_in_order(
        self, size: Int, position: Int, body: Callable[..., ScalarTerm], *, greatest: bool = False
    ) -> Int:
        """The place at which the entry at a position in order stands, as an unknown position on its axis."""
        n = unwrap(size)
        entries = self._entries_of(n, body)
        if not isinstance(entries, Reduce) or entries.kind != MULTISET:
            return 0
        ((name, at),) = _places(self._held(entries, DOWNWARDS if greatest else UPWARDS))
        return Sym(_on_axis(unknown(name, (*at, unwrap(position))), n))

    def _unrolled(self, monoid: str, counts: Sequence[int], body: Callable[..., ScalarTerm], dtype: str) -> ScalarTerm:
        total: ScalarTerm | None = None
        fold = {"prod": "mul"}.get(monoid, monoid)
        for at in np.ndindex(*counts):
            part = body(*[int(i) for i in at])
            total = part if total is None else self.op(fold, dtype, total, part)
        return self.const(identity(monoid, dtype), dtype) if total is None else total


def is_truth(t: ScalarTerm) -> bool:
    """Whether a term is a truth value rather than an integer."""
    if isinstance(t, Apply):
        if t.fn == "select_n":
            return all(map(is_truth, t.args[1:]))
        name = t.fn.partition("[")[0]
        return name.startswith("?") or name in COMPARISONS or name in LOGICAL
    if isinstance(t, Where):
        return is_truth(t.then) and is_truth(t.orelse)
    if isinstance(t, Reduce):
        return t.kind in ("or", "and", "xor[bool]")
    return t.boolean if isinstance(t, Read) else isinstance(t, Const) and t.value in (0, 1)


def _on_axis(place: Poly, size: Poly) -> Poly:
    """An unknown position as one on an axis that is not empty."""
    return least(greatest(place, 0), size - 1)


def _read_at(t: Read, at: Mapping[str, Poly]) -> Read:
    """An entry at other values of index variables."""
    return replace(t, index=tuple([p.subst(at) for p in t.index]))


def _ordered(entries: Reduce, order: str) -> ScalarTerm | None:
    """The multiset of which these are the first entries in order; None for others."""
    inner = entries.body
    if not isinstance(inner, Apply) or inner.fn != order or inner.args[0] != Integer(var(entries.var)):
        return None
    return None if entries.var in free_of(inner.args[1]) else inner.args[1]


def _entry_at(body: Read, over: str, here: Mapping[str, Poly], k: Int) -> Read:
    """An entry at k in place of the variable `over`, and at other values of index variables."""
    return _read_at(body, {**here, over: unwrap(k)})


def _places(p: Poly) -> Iterator[tuple[str, tuple[Poly, ...]]]:
    """The unknown places in a position: name, and the index variables at which each is meant."""
    for op, args in filter(None, map(form_of, p.forms)):
        if op.startswith((PLACE, UPWARDS, DOWNWARDS)):
            yield op, args
        else:
            for a in args:
                yield from _places(a)


def _closed(t: ScalarTerm, names: Sequence[str]) -> ScalarTerm:
    """A term with index variables bound, so that `alike` pairs them in this order."""
    for name in names:
        t = Reduce("", name, const(0), t)
    return t


def _chosen(case: ScalarTerm, which: ScalarTerm, truth: int) -> ScalarTerm:
    """The case of a choice whose condition has a known value; nested choices by the same condition are resolved."""
    while (inner := cases_of(case)) is not None and alike(inner[0], which):
        case = inner[1 + truth]
    return case


def _power(by: ScalarTerm, dtype: str) -> ScalarTerm | None:
    """The factor by which a shift to the left multiplies, modulo the width; None where the shift is no constant."""
    if not isinstance(by, Const) or not 0 <= by.value < width_of(dtype) - 1:
        return None
    return Const(Fraction(2 ** int(by.value)))


UNROLLED = 16
_IN_ORDER = {False: "ascending", True: "descending"}
"""Functions of a position and a multiset."""
