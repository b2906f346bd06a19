"""Proof of a rule: for every rank that ranks.py asks for, every reducer and every root, in this order.

1. Premises (sizes, conditions, well-formed left sides) are satisfiable, with concrete sizes as witness.
2. Goals: the right side is well formed and in bounds, shapes are equal: proved, not assumed.
3. Equality of the two scalars at a symbolic index: exact laws first, then real, then pointwise, then range.
4. The right side divides by nothing new that may be zero.

Nothing here decides that a rule is wrong: a failed obligation is UNKNOWN with its cause; only refute.py refutes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rewrites.direction import directions
from rewrites.kinds import Disagree, agree
from rewrites.named import Env
from rewrites.show import rule_key, text
from rewrites.term import Rule, names_in, subterms
from verifier import conditions as c
from verifier.conditions import Cond
from verifier.denominators import outside, undischarged
from verifier.elementary import Elementary
from verifier.instance import IllFormed, Impossible, Instance, algebra, instantiate, output, unsupported
from verifier.integers import ALWAYS, equal_integers, integral
from verifier.labels import INF, infinite
from verifier.monomial import NF, Atom, Unsupported
from verifier.normal import EXACT, PARTIAL, RANGE, REAL
from verifier.pointwise import Premise, equal_pointwise
from verifier.premises import premises_at
from verifier.ranks import ANY, MAX_RANK, attribute_roles, rank_vectors, uniform
from verifier.sem import Meaning
from verifier.shapes import LARGEST, env_at
from verifier.solver import UNKNOWN as OPEN
from verifier.solver import CannotLower, Context
from verifier.terms import Apply, Const, Reduce, Term, functions, reductions, walk_terms
from verifier.verdict import PROVED, UNKNOWN, UNSUPPORTED, Domain, Verdict
from verifier.weights import equal

DEFINED = "the left side is defined:"
CONTRADICTION = "the premises contradict each other"
EMPTY_ONLY = "the premises hold for empty tensors only: a size token stands for two lengths"
FINITE = "inputs and intermediate values are finite"
NO_OVERFLOW = "no operation on integers overflows"
_INFINITIES = (("n", math.inf), ("n", -math.inf))
QUICK = 200_000  # steps for the question whether a rule of floats holds of integers, too
POSITIONS = "sums of positions are in the range of the type"
_ORDER = (EXACT, REAL, RANGE)
_RING = frozenset({"add", "sub", "mul", "neg", "square", "select_n", "max", "min", "and", "or", "not", "xor"})


@dataclass
class Proof:
    """What a proof gathers over its instances."""

    laws: int = 0
    tiers: dict[str, None] | None = None
    assumptions: dict[str, None] | None = None
    integers: bool = True
    obligations: int = 0
    queries: int = 0
    forall: int = 0
    counted: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()
    failed: Instance | None = None

    def note(self, laws: str, tier: str) -> None:
        self.laws = max(self.laws, _ORDER.index(laws))
        self.tiers = {**(self.tiers or {}), tier: None}

    def assume(self, text: str) -> None:
        self.assumptions = {**(self.assumptions or {}), text: None}


class Stop(Exception):
    """A proof that cannot go on; carries status and cause."""

    def __init__(self, status: str, cause: str) -> None:
        super().__init__(cause)
        self.status, self.cause = status, cause


def prove(rule: Rule, direction: str = "forward", suspects: list[Env] | None = None) -> Verdict:
    """Prove one direction of a rule for all sizes and ranks; never refutes.

    Where it fails, sizes and attributes at which the solver sees a difference are added to `suspects`.  The backward
    direction of a rule that cannot be used backwards is UNSUPPORTED with the reason.
    """
    start = time.perf_counter()
    forward, backward = directions(rule)
    chosen = forward if direction == "forward" else backward
    done = Proof()
    if chosen.rule is None:
        status, cause, domain = UNSUPPORTED, f"not usable {direction}: {chosen.reason}", None
    else:
        try:
            domain = _prove(chosen.rule, done)
            status, cause = PROVED, ""
        except Stop as stop:
            status, cause, domain = stop.status, stop.cause, None
            if suspects is not None and done.failed is not None:
                models = itertools.islice(done.failed.ctx.suspects(LARGEST), 3)
                suspects += [env_at(done.failed, model) for model in models]
    return Verdict(
        rule=rule.name,
        key=rule_key(rule),
        where=rule.where,
        direction=direction,
        status=status,
        domain=domain,
        cause=cause,
        tiers=tuple(done.tiers or ()),
        obligations=done.obligations,
        queries=done.queries,
        seconds=time.perf_counter() - start,
    )


def _prove(rule: Rule, done: Proof) -> Domain:
    reason = unsupported(rule)
    if reason:
        raise Stop(UNSUPPORTED, reason)
    if rule.lhs == rule.rhs:
        raise Stop(UNKNOWN, "both sides are the same term: the rule says nothing")
    try:
        agree(rule)
    except Disagree as why:
        raise Stop(UNKNOWN, f"dtypes disagree: {why}") from why
    roles = attribute_roles(rule)
    low, high = -1, 2
    while True:
        for ranks in rank_vectors(roles, low, high):
            for metas in _reducers(rule):
                _at_ranks(rule, ranks, metas, done)
        if not roles or done.forall <= high or high >= MAX_RANK:
            break
        low, high = high, min(done.forall, MAX_RANK)
    tried = {r: ANY if _bounded(rule, r, done, high) else str(high) for r in roles}
    ranks = tuple((r, tried.get(r, ANY)) for r in sorted(rule.many))
    if done.laws:
        done.assume(FINITE)
    for premise in rule.given:
        done.assume(f"given: {text(rule, premise)}")
    return Domain(_ORDER[done.laws], ranks, _dtypes(rule, done), tuple(done.assumptions or ()), done.sizes)


def _dtypes(rule: Rule, done: Proof) -> tuple[str, ...]:
    if rule.dtype:
        return (rule.dtype,)
    if all(rule.kinds[v] == "bool" for v in rule.vars) and done.laws == 0 and rule.vars:
        return ("bool",)
    infinite_literal = any(t.op == "lit" and t["value"] in _INFINITIES for t in subterms((*rule.lhs, *rule.rhs)))
    return ("float", "int") if done.integers and not infinite_literal else ("float",)


def _bounded(rule: Rule, role: str, done: Proof, high: int) -> bool:
    counted = any(v.partition("@")[2].startswith(f"{role}.") for v in done.counted)
    return done.forall <= high and uniform(rule, role) and not counted


def _reducers(rule: Rule) -> Iterator[dict[str, str]]:
    choices = [(name, kinds) for name, kinds in rule.metas.items() if isinstance(kinds, tuple)]
    for pick in itertools.product(*(kinds for _, kinds in choices)):
        yield {name: kind for (name, _), kind in zip(choices, pick, strict=True)}


def _at_ranks(rule: Rule, ranks: Mapping[str, int], metas: Mapping[str, str], done: Proof) -> None:
    try:
        instance = instantiate(rule, ranks)
    except Impossible as bad:
        raise Stop(UNKNOWN, f"{CONTRADICTION} at ranks {dict(ranks)}: {bad}") from bad
    except IllFormed as bad:
        raise Stop(UNKNOWN, f"at ranks {dict(ranks)}: {bad}") from bad
    ctx = instance.ctx
    try:
        _premises(instance, done)
        for root in range(len(rule.lhs)):
            _goals(instance, root, done)
            _equal(instance, root, metas, done)
    except Stop as stop:
        done.failed = instance
        where = f" at ranks {dict(ranks)}" if ranks else ""
        raise Stop(stop.status, f"{stop.cause}{where}") from stop
    finally:
        done.queries += ctx.counters.queries
        done.forall = max(done.forall, ctx.forall)
        done.counted |= ctx.counted


def _premises(instance: Instance, done: Proof) -> None:
    ctx = instance.ctx
    said = {name for e in instance.env.rule.cond for name in names_in(e)}  # a rule may speak of empty axes on purpose
    sizes = [str(n) for n in instance.env.tok.values()]
    witness = ctx.witness(positive=sizes)
    if witness is None and said:
        witness = ctx.witness(positive=[str(n) for (token, _), n in instance.env.tok.items() if token not in said])
    done.obligations += 1
    if witness is not None:
        done.sizes = tuple(sorted(witness.items()))
        for positive in instance.divisors:
            if not ctx.holds(positive):
                raise Stop(UNKNOWN, f"a premise divides by what may not be positive: {positive} does not follow")
        return
    if ctx.witness() is not None:
        raise Stop(UNKNOWN, EMPTY_ONLY)
    unsure = ctx.possible(c.TRUE) == OPEN
    raise Stop(UNKNOWN, "no witness for the premises was found" if unsure else CONTRADICTION)


def _goals(instance: Instance, root: int, done: Proof) -> None:
    for goal in instance.goals[root]:
        done.obligations += 1
        if not instance.ctx.holds(goal):
            raise Stop(UNKNOWN, f"the right side may be ill-formed: {goal} does not follow")


def _equal(instance: Instance, root: int, metas: Mapping[str, str], done: Proof) -> None:
    ctx, rule = instance.ctx, instance.env.rule
    symbols = algebra(instance)
    meaning = Meaning(instance.env, symbols, metas)
    index, facts = output(instance, root)
    try:
        left, right = meaning.at(rule.lhs[root], index), meaning.at(rule.rhs[root], index)
        given = premises_at(meaning, left, right)
    except NotImplementedError as missing:
        raise Stop(UNSUPPORTED, str(missing)) from missing
    if symbols.computed:
        done.assume(POSITIONS)
    equal_terms(ctx, left, right, facts, done, given, rule.dtype)


def equal_terms(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    done: Proof,
    given: Sequence[Premise] = (),
    dtype: str = "",
) -> None:
    """Prove that two scalars are equal under the facts, by the strongest laws that suffice.

    Args:
        ctx: premises about sizes.
        left, right: the scalars.
        facts: conditions on the index.
        done: what the proof gathers.
        given: premises about values.
        dtype: `int` for integers alone.

    Raises:
        Stop: they are not proved equal; holds the causes.
    """
    done.obligations += 1
    causes: list[str] = []
    for laws in _ORDER:
        if dtype == "int" and not _ring_safe(laws, left, right):
            continue
        if _by_normal_form(ctx, laws, left, right, facts, done, causes, dtype):
            if not _ring_safe(laws, left, right):
                done.integers = done.integers and _by_integers(ctx, left, right, facts, given, causes, dtype) == ALWAYS
            break
        if laws == REAL and dtype != "int" and _by_points(ctx, left, right, facts, causes, given):
            done.note(REAL, "pointwise")
            done.integers = done.integers and _by_integers(ctx, left, right, facts, given, causes, dtype) == ALWAYS
            ctx.forall = max(ctx.forall, MAX_RANK + 1)  # the count of ranks.py is that of normal forms
            break
    else:
        range_of_proof = _by_integers(ctx, left, right, facts, given, causes, dtype) if dtype == "int" else ""
        if range_of_proof:
            if range_of_proof != ALWAYS:
                done.assume(NO_OVERFLOW)
            done.note(EXACT, "integers")
            ctx.forall = max(ctx.forall, MAX_RANK + 1)
            return
        unsupported_only = all(x.startswith("unsupported") for x in causes) and causes
        raise Stop(UNSUPPORTED if unsupported_only else UNKNOWN, "; ".join(dict.fromkeys(causes + ctx.notes[-2:])))
    if laws != EXACT:
        _nonempty_maxima(ctx, left, right, facts, done)


def _by_normal_form(
    ctx: Context,
    laws: str,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    done: Proof,
    causes: list[str],
    dtype: str,
) -> bool:
    normal = Elementary(ctx, laws)
    try:
        p = normal.nf(left)
        divided, inverted, partial = list(normal.denominators), list(normal.inverted), list(normal.partial)
        q = normal.nf(right)
        _check_infinities(p, q)
        if not equal(ctx, p, q, facts) and not _equal_fractions(normal, p, q, facts):
            return False
    except Unsupported as why:
        if laws != EXACT:
            causes.append(f"unsupported: {why}")
        return False
    nonzero = [*inverted, *normal.positive(partial)]
    new = undischarged(ctx, normal.denominators[len(divided) :], nonzero, facts)
    if new:
        causes.append(f"the right side divides by {'; '.join(new)}, which may be zero")
        return False
    wild = outside(ctx, normal.partial[len(partial) :], partial, facts)
    if wild and laws != EXACT:
        causes.append(f"the right side has {'; '.join(wild)}, which may be undefined where the left side is not")
        return False
    for divisor in undischarged(ctx, divided, (), facts):
        done.assume(f"{DEFINED} {divisor} is not zero")
    if partial:
        done.assume(f"{DEFINED} arguments of {', '.join(sorted({_function(a) for a in partial}))} are in the domain")
    done.note(EXACT if dtype == "int" else laws, f"normal form ({laws})")
    return True


def _equal_fractions(normal: Elementary, p: NF, q: NF, facts: tuple[Cond, ...]) -> bool:
    """Are two sums equal when both are multiplied by what they divide by?"""
    if normal.laws == EXACT:
        return False
    cleared = normal.cleared(p, q)
    return cleared != (p, q) and equal(normal.ctx, *cleared, facts)


def _function(a: Atom) -> str:
    return a.label.partition("(")[0].partition("#")[0]


def _check_infinities(*ps: NF) -> None:
    for p in ps:
        if not infinite(p):
            continue
        signs = {m.coef for m in p if any(a.label == INF for a in m.atoms)}
        plain = all(len(m.atoms) == 1 and not m.binders for m in p if any(a.label == INF for a in m.atoms))
        if len(signs) != 1 or not plain:
            raise Unsupported("arithmetic on an infinity")


def _ring_safe(laws: str, left: Term, right: Term) -> bool:
    """Does a proof hold in wrap-around integers: ring laws, integer constants, and negation never mixed with order."""
    used = functions(left) | functions(right)
    kinds = reductions(left) | reductions(right)
    order = kinds & {"max", "min"} or used & {"max", "min", "lt", "le", "gt", "ge", "clamp"}
    constants = {x.value for side in (left, right) for x in walk_terms(side) if isinstance(x, Const)}
    if order and (used & {"neg", "sub"} or any(k < 0 for k in constants)):
        return False
    if any(k.denominator != 1 for k in constants):
        return False
    if order and laws != EXACT and used & {"add", "mul", "square"}:
        return False  # sums keep their order only where nothing wraps
    return laws == EXACT or (laws == REAL and all(f in _RING or f.startswith("$") for f in used))


def _by_integers(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    given: Sequence[Premise],
    causes: list[str],
    dtype: str,
) -> str:
    if reductions(left) or reductions(right) or not integral(left, right):
        return ""
    if not dtype and "div" in functions(left) | functions(right):
        return ""  # a rule of quotients is one of floats unless it says so
    steps, ctx.rlimit = ctx.rlimit, ctx.rlimit if dtype else QUICK
    try:
        return equal_integers(ctx, left, right, facts, given)
    except CannotLower as why:
        causes.append(f"integers: {why}")
        return ""
    finally:
        ctx.rlimit = steps


def _by_points(
    ctx: Context,
    left: Term,
    right: Term,
    facts: tuple[Cond, ...],
    causes: list[str],
    given: Sequence[Premise],
) -> bool:
    if any(map(_may_be_undefined, (*walk_terms(left), *walk_terms(right)))):
        return False  # this tier keeps no record of where a value is defined
    try:
        return equal_pointwise(ctx, left, right, facts, given)
    except CannotLower as why:
        if not reductions(left) and not reductions(right):
            causes.append(f"pointwise: {why}")
        return False


def _may_be_undefined(t: Term) -> bool:
    """A function that is not defined everywhere, unless its argument is positive as it stands."""
    if not isinstance(t, Apply) or t.fn.partition("[")[0] not in PARTIAL | {"div", "rsqrt"}:
        return False
    if t.fn == "div":
        return not isinstance(t.args[1], Const) or not t.args[1].value
    return t.fn not in ("log", "log1p", "sqrt", "rsqrt") or not _is_positive(t.args[0])


def _is_positive(t: Term) -> bool:
    if isinstance(t, Const):
        return t.value > 0
    if isinstance(t, Apply) and t.fn in ("add", "mul"):
        return all(map(_is_positive, t.args))
    return isinstance(t, Apply) and t.fn in ("exp", "logistic")


def _nonempty_maxima(ctx: Context, left: Term, right: Term, facts: tuple[Cond, ...], done: Proof) -> None:
    """Beyond the exact class, a maximum over an empty range (infinite) must be ruled out or is an assumption."""
    for t in (*walk_terms(left), *walk_terms(right)):
        if isinstance(t, Reduce) and t.kind in ("max", "min") and not ctx.holds(c.ge(t.size, 1), facts):
            done.assume("maxima and minima are over non-empty ranges")
