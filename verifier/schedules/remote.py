"""Open questions put to Z3 and to the prover of rules, in a separate process with a time limit.

A question about indices is a conjunction of ranges, guards and the negated goal.  A model is a witness only after it
was verified here in exact integers.  The process runs `verifier.schedules.prover`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from superopt.ir.expr import Expr
from superopt.ir.index import Atom, Poly, Size
from superopt.machine.deadline import Stopwatch
from verifier.rules.process import LimitExceededError, shared
from verifier.schedules.domain import Domain, value_at
from verifier.schedules.questions import Findings
from verifier.schedules.wire import Encoder
from verifier.verdict import PROVED, REFUTED

_LEAST_S = 0.1  # least time of a query: one that exceeds its limit kills a process that all proofs share


class Answers(Protocol):
    """Interface of a cache of answers (`verifier.schedules.ledger.ScheduleLedger`)."""

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """An entry, or None."""
        ...

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep an entry."""
        ...


def settle_all(out: Findings, pairs: Sequence[tuple[int, Expr, Expr, Domain]], answers: Answers | None) -> bool:
    """Ask about every open question and pair of expressions; return whether a proof takes sums in another order."""
    if not out.limits.solver or not (out.open or pairs):
        return False
    ask = _Asking(out.limits.seconds, answers)
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
        answer = ask.about("equal", general(message))  # first for all extents at once
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
    """The solver's model as a point, if it is in the domain and the goal is negative there; else None."""
    if model is None or len(model) < len(domain.ranges):
        return None
    at: dict[Atom, int] = dict(zip(domain.ranges, model, strict=False))
    inside = all(l <= at[s] <= h for s, (l, h) in domain.ranges.items())
    opaque = [f for f in (*domain.facts, goal) if isinstance(f, Poly) and not f.symbols <= set(domain.ranges)]
    if opaque or not inside:
        return None
    holds = all(value_at(f, at) >= 0 for f in domain.facts)
    return at if holds and value_at(goal, at) < 0 else None


@dataclass
class _Asking:
    """Access to the prover within a limit of seconds for one schedule; answers that are proofs are cached."""

    left_s: float
    answers: Answers | None

    def about(self, name: str, message: Mapping[str, Any]) -> Any:
        """An answer, or None where there is no time left."""
        key = hashlib.sha256(json.dumps([name, message], sort_keys=True).encode()).hexdigest()[:32]
        known = self.answers.get("answer", key) if self.answers is not None else None
        if known is not None:
            return known["answer"]
        answer = self._call(name, message)
        proof = answer is not None and (answer["proved"] if name == "equal" else _all_yes(answer))
        if proof and self.answers is not None:
            self.answers.put("answer", key, {"answer": answer})
        return answer

    def _call(self, name: str, message: Mapping[str, Any]) -> Any:
        if self.left_s <= 0:
            return None
        prover = shared()
        with prover.turn:  # time spent on the questions of others does not count
            watch = Stopwatch()
            try:
                return prover.call(f"verifier.schedules.prover:{name}", message, seconds=max(self.left_s, _LEAST_S))
            except LimitExceededError:
                return None
            finally:
                self.left_s -= watch.elapsed_s


def _all_yes(answer: Mapping[str, Any]) -> bool:
    return all(a["status"] == "yes" for a in answer["goals"])
