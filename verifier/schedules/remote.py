"""What the arithmetic of this package leaves open, asked of Z3 and of the prover of rules, in a process under a clock.

`settle_all` is the parent's side; `settle` and `equal` run inside.  A question about indices is a conjunction of
ranges, guards and the negated goal; its model is a witness only after it was checked in exact integers by the parent.
Two expressions become terms of the prover by folding them over its algebra.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.fold import fold
from superopt.ir.index import Atom, Poly, Size, Symbol
from verifier.equal import conditions as c
from verifier.equal.conditions import Sym
from verifier.equal.poly import OPS, greatest, least, poly, var
from verifier.rules.process import LimitExceededError, Prover
from verifier.schedules.domain import Domain
from verifier.schedules.points import value_at
from verifier.schedules.questions import Findings
from verifier.schedules.verdict import PROVED, REFUTED, CheckLimits
from verifier.schedules.wire import Encoder, atoms_of, decoder

RLIMIT = 2_000_000


class Answers(Protocol):
    """Where answers are kept (`verifier.schedules.ledger.ScheduleLedger`)."""

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """An entry, or None."""
        ...

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep an entry."""
        ...


def settle_all(out: Findings, pairs: Sequence[tuple[int, Expr, Expr, Domain]], answers: Answers | None) -> bool:
    """Ask about every open question and pair of expressions; did a proof take sums in another order?"""
    if not out.limits.solver or not (out.open or pairs):
        return False
    ask = _Asking(out.limits, time.monotonic() + out.limits.seconds, answers)
    for question in out.open:
        answer = ask.about("settle", _encoded(question.domain, question.goals))
        if answer is None:
            continue
        if all(a["status"] == "yes" for a in answer["goals"]):
            out.settle(question, PROVED, "solver")
            continue
        for a, goal in zip(answer["goals"], question.goals, strict=True):
            point = _checked(a.get("model"), question.domain, goal)
            if point is not None:
                out.settle(question, REFUTED, "solver", point)
                break
    real = False
    for at, left, right, domain in pairs:
        message = _pair(left, right, domain)
        answer = ask.about("equal", general(message))  # for all extents at once, where they are only extents
        if answer is None or not answer["proved"]:
            answer = ask.about("equal", message)
        if answer is not None and answer["proved"]:
            out.found[at] = replace(out.found[at], status=PROVED, tier="prover")
            real |= answer["exactness"] != "exact"
    return real


def _pair(left: Expr, right: Expr, domain: Domain) -> dict[str, Any]:
    encoder = Encoder()
    free = [encoder.symbol(s) for s in domain.ranges]
    message = {"left": encoder.expr(left), "right": encoder.expr(right), "free": free}
    message |= {"facts": [encoder.size(f) for f in domain.facts]}
    return {**message, "ranges": encoder.ranges(), "nodes": encoder.nodes}


def general(message: Mapping[str, Any]) -> dict[str, Any]:
    """The question for all extents: numbers that occur as extents alone become sizes of at least 1."""
    used: set[int] = set()
    _numbers([message["nodes"], message["facts"]], used)
    sizes: dict[int, str] = {}
    ranges: list[Any] = []
    for name, low, high in message["ranges"]:
        plain = low == 0 and used.isdisjoint((high, high + 1, -high, -high - 1)) and high > 0
        ranges.append([name, low, sizes.setdefault(high, f"n{len(sizes)}") if plain else high])
    return {**message, "ranges": ranges}


def _numbers(x: Any, found: set[int]) -> None:
    if isinstance(x, list):
        for y in cast(list[Any], x):
            _numbers(y, found)
    elif isinstance(x, int):
        found.add(x)


def _encoded(domain: Domain, goals: Sequence[Size]) -> dict[str, Any]:
    encoder = Encoder()
    for s in domain.ranges:
        encoder.symbol(s)
    facts = [encoder.size(f) for f in domain.facts]
    message = {"facts": facts, "goals": [encoder.size(g) for g in goals]}
    return {**message, "ranges": encoder.ranges(), "nodes": encoder.nodes}


def _checked(model: Sequence[int] | None, domain: Domain, goal: Size) -> Mapping[Atom, int] | None:
    """The solver's point, if it is one."""
    if model is None or len(model) < len(domain.ranges):
        return None
    at: dict[Atom, int] = dict(zip(domain.ranges, model, strict=False))
    inside = all(l <= at[s] <= h for s, (l, h) in domain.ranges.items())
    opaque = [f for f in (*domain.facts, goal) if isinstance(f, Poly) and not f.symbols <= set(domain.ranges)]
    if opaque or not inside:
        return None
    holds = all(value_at(f, at) >= 0 for f in domain.facts)
    return at if holds and value_at(goal, at) < 0 else None


_PROVER: list[Any] = []
_ASKING = threading.Lock()


@dataclass
class _Asking:
    """The process, until a deadline; answers that are proofs are kept."""

    limits: CheckLimits
    deadline: float
    answers: Answers | None

    def about(self, name: str, message: Mapping[str, Any]) -> Any:
        """An answer, or None where there is no time left."""
        key = hashlib.sha256(json.dumps([name, message], sort_keys=True).encode()).hexdigest()[:32]
        known = self.answers.get("answer", key) if self.answers is not None else None
        if known is not None:
            return known["answer"]
        found = self._call(name, message)
        proof = found is not None and (found["proved"] if name == "equal" else _all_yes(found))
        if proof and self.answers is not None:
            self.answers.put("answer", key, {"answer": found})
        return found

    def _call(self, name: str, message: Mapping[str, Any]) -> Any:
        if self.deadline <= time.monotonic():
            return None
        with _ASKING:  # one process, one limit: threads ask in turn
            left = max(self.deadline - time.monotonic(), 0.1)
            if not _PROVER:
                _PROVER.append(Prover(self.limits.seconds))
                atexit.register(_PROVER[0].close)
            _PROVER[0].seconds = left
            try:
                return _PROVER[0].call(f"verifier.schedules.remote:{name}", message)
            except LimitExceededError:
                return None


def _all_yes(answer: Mapping[str, Any]) -> bool:
    return all(a["status"] == "yes" for a in answer["goals"])


# ---- inside the process


def settle(message: Mapping[str, Any]) -> dict[str, Any]:
    """Whether each goal follows, and a model where it does not."""
    from verifier.equal.solver import Context

    read = decoder(message["ranges"], message["nodes"])
    ctx = Context(rlimit=RLIMIT)
    names = [f"i{k}" for k in range(len(read.symbols))]
    ctx.dims |= set(names)
    lower = _Lower(read.symbols, names)
    for s, name in zip(read.symbols, names, strict=True):
        ctx.premises += [c.ge(_var(name), s.low), c.ge(s.high, _var(name))]  # pyright: ignore[reportArgumentType]
    ctx.premises += [c.ge(lower.size(read.size(f)), 0) for f in message["facts"]]
    ctx.premises += lower.ranges()
    found: list[dict[str, Any]] = []
    for goal in message["goals"]:
        wanted = c.ge(lower.size(read.size(goal)), 0)
        status = ctx.entails(wanted)
        model = ctx.model([c.negate(wanted)]) if status == "no" else None
        found.append({"status": status, "model": None if model is None else [model[n] for n in names]})
    return {"goals": found}


def _var(name: str) -> Any:
    return var(name)


class _Lower:
    """Indices as polynomials of the prover; what is read from tensors is a variable of its own."""

    def __init__(self, symbols: Sequence[Symbol], names: Sequence[str]) -> None:
        self.names = dict(zip(symbols, names, strict=True))
        self.values: dict[Any, tuple[str, int, int]] = {}

    def size(self, x: Size) -> Any:
        return poly(atoms_of(x, self._atom))

    def _atom(self, a: Atom) -> Any:
        from verifier.schedules.numbers import range_of_dtype

        if isinstance(a, Symbol):
            return _var(self.names[a])
        if a.op == "value":
            low, high = range_of_dtype(a.args[0].dtype)
            name, *_ = self.values.setdefault(a.args[0], (f"v{len(self.values)}", int(low), int(high)))
            return _var(name)
        args = [self.size(x) for x in a.args]
        if a.op == "clip":
            return least(greatest(args[0], args[1]), args[2])
        return OPS[a.op](*args)

    def ranges(self) -> list[Any]:
        """Ranges of what is read."""
        return [x for name, low, high in self.values.values() for x in (c.ge(_var(name), low), c.ge(high, _var(name)))]


def equal(message: Mapping[str, Any]) -> dict[str, Any]:
    """Are two expressions equal by laws of the prover that keep ranges?"""
    from verifier.equal.equality import ORDER, Proof, Stop, equal_terms
    from verifier.equal.monomial import Unsupported
    from verifier.equal.solver import Context
    from verifier.statements.ranges import PremiseRanges
    from verifier.statements.terms import Terms

    read = decoder(message["ranges"], message["nodes"])
    ctx = Context(rlimit=RLIMIT)
    env: dict[Symbol, Any] = {}
    facts: list[Any] = []
    names: dict[Symbol, str] = {}
    for size in read.sizes:
        env[size] = Sym(_var(size.name))
        ctx.dims.add(size.name)
        ctx.premises.append(c.ge(_var(size.name), 1))
        names[size] = size.name
    free: list[int] = message["free"]
    for number in free:
        s = read.symbols[number]
        extent = _Lower(list(names), list(names.values())).size(s.extent)
        names[s] = name = ctx.fresh(extent, "o")
        env[s] = Sym(_var(name))
        facts += [c.ge(_var(name), 0), c.lt(_var(name), extent)]
    lower = _Lower(list(names), list(names.values()))
    facts += [c.ge(lower.size(read.size(f)), 0) for f in message["facts"]]
    terms: Any = Terms(ctx, PremiseRanges(ctx))
    left, right = read.expr(message["left"]), read.expr(message["right"])
    done = Proof()
    try:
        sides = [fold(e, terms, _reader(terms, e), env) for e in (left, right)]
        equal_terms(ctx, sides[0], sides[1], tuple(facts), done, dtype="int" if terms.arithmetic else "")
    except (Stop, Unsupported, NotImplementedError) as why:
        return {"proved": False, "exactness": "", "cause": str(why)}
    exactness = ORDER[done.laws]
    return {"proved": exactness != "range", "exactness": exactness, "cause": "only where no exponential overflows"}


def _reader(terms: Any, root: Expr) -> Any:
    dtypes = {e.args[0]: e.dtype for e in subexpressions(root) if e.kind == "load"}

    def read(name: str, index: tuple[Any, ...]) -> Any:
        return terms.read(name, index, dtypes[name])

    return read
