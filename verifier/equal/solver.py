"""The only interface to Z3: integer conditions and pointwise scalar terms, under a list of premises.

Every query uses a fresh solver, in one Z3 context per proof, bounded by `rlimit` (a count of elementary steps), never
by the clock: the same query has the same answer on any machine and in any order.  Queries use only quantifier-free
integer arithmetic, reals, bit-vectors and uninterpreted functions.  Inside `recorded()` every query is kept as SMT-LIB
text with its answer, for certificates.  Hard limits on time and memory are those of the surrounding process
(`verifier.rules.judging`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from superopt.machine.deadline import Stopwatch
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond
from verifier.equal.poly import OPS, Poly, const, form_of, var
from verifier.verdict import Query

RLIMIT = 3_000_000
QUICK, PLACES = 100_000, 6
"""Solver steps of an auxiliary query, and most such queries for one proof."""
YES, NO, UNKNOWN = "yes", "no", "unknown"


class _Late:
    """The z3 module, imported at its first use, so that code which only shows or stores proofs does not load it."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("z3"), name)
        setattr(self, name, value)
        return value


z3: Any = _Late()
_RECORD: ContextVar[list[Query] | None] = ContextVar("record", default=None)


@contextmanager
def recorded() -> Generator[list[Query]]:
    """Context manager: record every query made inside the block, in order."""
    kept: list[Query] = []
    token = _RECORD.set(kept)
    try:
        yield kept
    finally:
        _RECORD.reset(token)


class CannotLower(Exception):
    """Raised for a term that has no counterpart in the solver's language."""


@dataclass
class Counters:
    """Counts of a proof's solver queries."""

    queries: int = 0
    seconds: float = 0.0
    unknown: int = 0


@dataclass
class Context:
    """Premises over sizes and attributes, the ranges of index variables, and the solver behind them."""

    rlimit: int = RLIMIT
    premises: list[Cond] = field(default_factory=list[Cond])
    dims: set[str] = field(default_factory=set[str])
    ranges: dict[str, Poly] = field(default_factory=dict[str, Poly])
    counters: Counters = field(default_factory=Counters)
    notes: list[str] = field(default_factory=list[str])
    opaque: dict[str, tuple[str, Sequence[Any]]] = field(default_factory=dict[str, tuple[str, Sequence[Any]]])
    """Label of each opaque function of sums -> its name and its arguments, for notes."""
    example: dict[str, Poly] = field(default_factory=dict[str, Poly])  # sizes and attributes that meet the premises
    forall: int = 0  # most 'for all axes' atoms in one verification condition so far (ranks.py)
    counted: frozenset[str] = frozenset()  # variables in lengths of intervals that weights count
    differing: list[tuple[Any, tuple[Cond, ...]]] = field(default_factory=list[tuple[Any, tuple[Cond, ...]]])
    _n: int = 0
    _polys: dict[Poly, Any] = field(default_factory=dict[Poly, Any])
    _asked: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])

    @functools.cached_property
    def _z3(self) -> Any:
        """The Z3 context, made at the first query."""
        return z3.Context()

    def fresh(self, size: Poly | None = None, prefix: str = "k") -> str:
        """A new variable name; with a size, its range is 0 .. size - 1."""
        self._n += 1
        name = f"{prefix}!{self._n}"
        if size is not None:
            self.ranges[name] = size
        return name

    def range_of(self, name: str) -> Poly | None:
        """The size that an index variable ranges over."""
        return self.ranges.get(name)

    def facts_of(self, names: Iterable[str]) -> tuple[Cond, ...]:
        """The ranges of index variables, of those that have one."""
        sized = ((name, self.range_of(name)) for name in names)
        return tuple(fact for name, n in sized if n is not None for fact in c.within(var(name), n))

    # ---- questions
    def entails(self, goal: Cond, extra: Sequence[Cond] = ()) -> str:
        """Whether the premises and `extra` imply the goal: yes, no or unknown."""
        return {YES: NO, NO: YES}.get(r := self.possible(c.negate(goal), extra), r)

    def holds(self, goal: Cond, extra: Sequence[Cond] = ()) -> bool:
        """Whether the goal is proved from the premises and `extra`."""
        if goal == c.TRUE or goal in self.premises or goal in extra:
            return True
        return self.entails(goal, extra) == YES

    def possible(self, fact: Cond, extra: Sequence[Cond] = ()) -> str:
        """Whether `fact` can hold together with the premises and `extra`: yes, no or unknown."""
        if fact == c.FALSE:
            return NO
        key = (fact, tuple(extra), len(self.premises))
        if key not in self._asked:
            self._asked[key] = self._check([self.cond(f) for f in (*self.premises, *extra, fact)])[0]
        return self._asked[key]

    def differ(self, formula: Any, extra: Sequence[Cond] = ()) -> str:
        """Whether a Z3 formula can hold together with the premises and `extra`: yes, no or unknown."""
        answer = self._check([self.cond(f) for f in (*self.premises, *extra)] + [formula])[0]
        if answer == YES:
            self.differing.append((formula, tuple(extra)))
        return answer

    def suspects(self, largest: int) -> Iterator[dict[str, int]]:
        """Yield small sizes and attributes at which a formula given to `differ` holds, the last formula first."""
        box = [f for n in sorted(self.dims) for f in (c.ge(var(n), -largest), c.ge(largest, var(n)))]
        for formula, extra in reversed(self.differing):
            answer, model = self._check([self.cond(f) for f in (*self.premises, *extra, *box)] + [formula])
            if answer == YES:
                yield self._integers(model)

    def edges(self, conds: Iterable[Cond], *largest: int) -> Iterator[dict[str, int]]:
        """Yield sizes and attributes at which conditions change: the last place where one holds, the first beyond.

        Each is within the first bound in `largest` that admits one.  They serve the evaluation of proved statements:
        these queries are no part of the proof, and are not recorded.
        """
        boxes = [[f for n in sorted(self.dims) for f in (c.ge(var(n), -k), c.ge(k, var(n)))] for k in largest]
        compared = (x.poly for g in conds for x in _comparisons(g) if x.poly is not None)
        places = dict.fromkeys(c.eq(p, off) for p in compared for off in (0, -1))
        for place in list(places)[:PLACES]:
            facts = (*self.premises, *self.facts_of(sorted(place.vars)), place)
            for box in boxes:
                answer, model = self._aside([self.cond(f) for f in (*facts, *box)])
                if answer == YES:
                    yield self._integers(model)
                    break

    def inputs(self, largest: int) -> Iterator[tuple[dict[str, int], Callable[[str, Sequence[int]], Any]]]:
        """Yield sizes at which a formula given to `differ` holds, the last formula first, with the entries of inputs.

        The entries are a function of an input's name, as in `verifier.equal.pointwise`, and an index; it returns None
        where the model has no value.
        """
        box = [f for n in sorted(self.dims) for f in (c.ge(var(n), 0), c.ge(largest, var(n)))]
        for formula, extra in reversed(self.differing[-PLACES:]):
            answer, model = self._aside([self.cond(f) for f in (*self.premises, *extra, *box)] + [formula])
            if answer != YES:
                continue
            known = {d.name(): d for d in model.decls()}

            def entry(name: str, index: Sequence[int], model: Any = model, known: Any = known) -> Any:
                made = known.get(name)
                if made is None or made.arity() != len(index):
                    return None
                return _python(model.eval(made(*index), model_completion=True))

            yield self._integers(model), entry

    def sample(self, facts: Sequence[Cond]) -> dict[str, int]:
        """Small sizes and attributes at which facts hold, at which a proof can be checked; empty where none is found.

        They are the example of the premises if the facts hold there at the first indices.
        """
        first = self.example | {name: const(0) for f in facts for name in f.vars - self.dims}
        if self.example and all(f.subst(first) == c.TRUE for f in facts):
            return {name: p.value or 0 for name, p in self.example.items()}
        k = self._alike(facts)
        if k:
            return dict.fromkeys(sorted(self.dims), k)
        for low, high in ((1, 3), (0, 7), (-3, 16)):
            box = [f for n in sorted(self.dims) for f in (c.ge(var(n), low), c.ge(high, var(n)))]
            answer, model = self._aside([self.cond(f) for f in (*self.premises, *facts, *box)])
            if answer == YES:
                return self._integers(model)
        return {}

    def _aside(self, formulas: list[Any]) -> tuple[str, Any]:
        """A quick query that is no part of the proof: neither counted nor recorded."""
        kept, token = (self.counters.queries, self.rlimit), _RECORD.set(None)
        self.rlimit = QUICK
        try:
            return self._check(formulas)
        finally:
            _RECORD.reset(token)
            self.counters.queries, self.rlimit = kept

    def witness(self, positive: Sequence[str] = ()) -> dict[str, int] | None:
        """Concrete sizes and attributes that satisfy the premises, small ones first; `positive` ones are at least 1.

        Where one number fits all of them, arithmetic finds it without the solver.
        """
        least = tuple(c.ge(var(n), 1) for n in positive)
        names = sorted(self.dims)
        k = self._alike(least)
        if k:
            self.example = dict.fromkeys(names, const(k))
            return dict.fromkeys(names, k)
        for low, high in ((1, 4), (0, 8), (-4, 16)):
            box = tuple(f for n in names for f in (c.ge(var(n), low), c.ge(high, var(n))))
            model = self.model((*least, *box))
            if model is not None:
                self.example = {n: const(k) for n, k in model.items()}
                return model
        return self.model(least)

    def _alike(self, facts: Sequence[Cond]) -> int:
        """A small number that all sizes and attributes may be at first indices, or 0."""
        for k in (1, 2, 3, 4):
            at = dict.fromkeys(self.dims, const(k)) | {name: const(0) for f in facts for name in f.vars - self.dims}
            with suppress(ZeroDivisionError):  # a divisor that is a difference of sizes may be 0
                if all(f.subst(at) == c.TRUE for f in (*self.premises, *facts)):
                    return k
        return 0

    def model(self, facts: Sequence[Cond]) -> dict[str, int] | None:
        """Concrete sizes and attributes that satisfy the premises and the facts, or None where none was found."""
        answer, model = self._check([self.cond(f) for f in (*self.premises, *facts)])
        if answer != YES:
            return None
        return self._integers(model)

    def _integers(self, model: Any) -> dict[str, int]:
        return {n: model.eval(self.int(n), model_completion=True).as_long() for n in sorted(self.dims)}

    def _check(self, formulas: list[Any]) -> tuple[str, Any]:
        solver = z3.Solver(ctx=self._z3)
        solver.set("rlimit", self.rlimit)
        solver.add(*formulas)
        watch = Stopwatch()
        answer = solver.check()
        self.counters.seconds += watch.elapsed_s
        self.counters.queries += 1
        kept = _RECORD.get()
        if kept is not None:
            kept.append(Query(solver.to_smt2(), YES if answer == z3.sat else NO if answer == z3.unsat else UNKNOWN))
        if answer == z3.unknown:
            self.counters.unknown += 1
            return UNKNOWN, None
        return (YES, solver.model()) if answer == z3.sat else (NO, None)

    # ---- lowering
    def int(self, name: str) -> Any:
        """An integer variable of the solver."""
        return z3.Int(name, self._z3)

    def poly(self, p: Poly) -> Any:
        """A polynomial as an integer expression."""
        if p not in self._polys:
            parts = [self._product(k, mono) for mono, k in p.terms]
            self._polys[p] = z3.Sum(parts) if len(parts) > 1 else parts[0] if parts else z3.IntVal(0, self._z3)
        return self._polys[p]

    def _product(self, k: int, mono: tuple[str, ...]) -> Any:
        out = z3.IntVal(k, self._z3)
        if not mono:
            return out
        atoms = [self._atom(a) for a in mono]
        body = atoms[0]
        for a in atoms[1:]:
            body = body * a
        return body if k == 1 else out * body

    def _atom(self, name: str) -> Any:
        form = form_of(name)
        if form is None:
            return self.int(name)
        op, args = form
        lowered = [self.poly(a) for a in args]
        if op not in OPS:
            integer = self.sort("int")
            return self.function(f"index {op}", [integer] * len(args), integer)(*lowered)
        x, y = lowered
        if op == "//":
            return x / y
        if op == "%":
            return x % y
        return z3.If(x <= y, x, y) if op == "min" else z3.If(x >= y, x, y)

    def cond(self, f: Cond) -> Any:
        """A condition as a Boolean expression."""
        if f.poly is not None:
            x, zero = self.poly(f.poly), z3.IntVal(0, self._z3)
            return x >= zero if f.kind == "ge" else x == zero if f.kind == "eq" else x != zero
        if f.kind == "true" or f.kind == "false":
            return z3.BoolVal(f.kind == "true", self._z3)
        parts = [self.cond(a) for a in f.args]
        return z3.And(*parts) if f.kind == "and" else z3.Or(*parts)

    # ---- builders for the pointwise tiers
    def function(self, name: str, domain: Sequence[Any], result: Any) -> Callable[..., Any]:
        """An uninterpreted function, or a constant when it has no arguments."""
        if not domain:
            constant = z3.Const(name, result)
            return lambda: constant
        return z3.Function(name, *domain, result)

    def sort(self, name: str) -> Any:
        """One of the sorts int, real, bool, or an uninterpreted one."""
        made = {"int": z3.IntSort, "real": z3.RealSort, "bool": z3.BoolSort}.get(name)
        return z3.DeclareSort(name, self._z3) if made is None else made(self._z3)

    def real(self, text: str) -> Any:
        """A rational constant."""
        return z3.RealVal(text, self._z3)

    def weighted(self, parts: Iterable[tuple[Poly, Cond]]) -> Any:
        """The sum of polynomials that count only under their conditions, different from zero."""
        zero = z3.IntVal(0, self._z3)
        total = [z3.If(self.cond(g), self.poly(p), zero) for p, g in parts]
        return z3.Sum(total) != zero if len(total) > 1 else total[0] != zero if total else z3.BoolVal(False, self._z3)

    def not_iff(self, left: Cond, right: Cond) -> Any:
        """Exactly one of two conditions holds."""
        return self.cond(left) != self.cond(right)


def _comparisons(g: Cond) -> Iterator[Cond]:
    """Yield the comparisons in a condition."""
    if g.poly is not None:
        yield g
    for x in g.args:
        yield from _comparisons(x)


def _python(value: Any) -> bool | int | float | None:
    """A value of a model: integers and bits (without a sign) as int, rationals as float."""
    if z3.is_bool(value):
        return bool(z3.is_true(value))
    if z3.is_int_value(value) or z3.is_bv_value(value):
        return int(value.as_long())
    return float(value.as_fraction()) if z3.is_rational_value(value) else None
