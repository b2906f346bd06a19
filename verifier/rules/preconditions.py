"""Weakest preconditions: which premises of a rule are redundant, and which one a wrong rule lacks.

Each premise is dropped in turn.  Arrays on which the two sides then differ show that it is needed; a proof without it,
in a domain as wide, shows that it is redundant.  A premise may also be needed for the domain alone: without it the
rule still holds, but for fewer ranks, under more assumptions, or only over the reals.

The condition that would make a refuted rule true comes from a small grammar:

    l >= 0, h >= 0          comparisons of attributes and sizes of one role with 0, 1 and each other, at most two.
    S does not vary along k
    S >= 0, L <= H          comparisons of values.

Conditions are guessed from instances.  A condition that holds at an instance with a difference is discarded; of the
others, those that keep most of the instances come first.  A condition is reported only when the prover proves the rule
under it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rewrites.language.named import Env
from rewrites.language.parse import parse
from rewrites.language.show import expr, show, text
from rewrites.language.term import Rule, Term, TokenExpr, per_axis_names, roles_of, stem, term
from superopt.errors import RuleError
from verifier.rules.instance import solved_envs
from verifier.rules.mutate import with_parts
from verifier.rules.process import LimitExceededError, shared
from verifier.rules.prove import prove
from verifier.rules.refute import differ_at, env_of_seed, search
from verifier.verdict import EXACTNESS, PROVED, REFUTED, Counterexample, ValidityDomain, Verdict

NEEDED, REDUNDANT, DOMAIN, OPEN = "needed", "redundant", "needed for the domain", "open"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The verdict on a rule without one of its premises.

    Attributes:
        rule: name of the rule.
        premise: the premise as text.
        status: needed (refuted without it), redundant (proved without it), needed for the domain, or open.
        counterexample: arrays that show that the premise is needed.
        cause: the loss of the domain, or the cause of an open verdict.
    """

    rule: str
    premise: str
    status: str
    counterexample: Counterexample | None = None
    cause: str = ""

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.premise} is {self.status}{': ' if self.cause else ''}{self.cause}"]
        return "\n".join([*lines, str(self.counterexample)] if self.counterexample else lines)


def preconditions(rule: Rule) -> list[Dropped]:
    """The result of dropping each premise of a proved rule in turn; empty for a rule that is not proved."""
    weaker = list(_weaker(rule))
    whole = shared().check(rule) if weaker else None
    if whole is None or whole.domain is None:
        return []
    out: list[Dropped] = []
    for premise, without in weaker:
        verdict = shared().check(without)
        if verdict.status == REFUTED:
            out.append(Dropped(rule.name, premise, NEEDED, verdict.counterexample))
        elif verdict.status == PROVED and verdict.domain is not None:
            lost = _lost(whole.domain, verdict.domain)
            out.append(Dropped(rule.name, premise, DOMAIN if lost else REDUNDANT, cause=lost))
        else:
            out.append(Dropped(rule.name, premise, OPEN, cause=verdict.cause))
    return out


def _weaker(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for i, e in enumerate(rule.cond):
        yield expr(e), _reread(with_parts(rule, cond=rule.cond[:i] + rule.cond[i + 1 :]))
    for i, t in enumerate(rule.given):
        yield text(rule, t), _reread(with_parts(rule, given=rule.given[:i] + rule.given[i + 1 :]))


def _reread(rule: Rule) -> Rule:
    """The rule printed and parsed again, so that derived fields agree with its text."""
    return parse(show(rule), rule.where)


def _lost(whole: ValidityDomain, without: ValidityDomain) -> str:
    """The message about what a domain covers and another does not; empty where it loses nothing."""
    lost: list[str] = []
    if EXACTNESS.index(without.exactness) > EXACTNESS.index(whole.exactness):
        lost.append(f"only {without.exactness} without it")
    held = dict(without.ranks)
    lost += [f"ranks of {r} up to {held[r]} only" for r, n in whole.ranks if n != held.get(r, n)]
    lost += [f"not for {kind}" for kind in whole.dtypes if kind not in without.dtypes]
    lost += [f"assumes that {a}" for a in without.assumptions if a not in whole.assumptions]
    return "; ".join(lost)


def report(rules: Sequence[Rule]) -> tuple[dict[str, Any], str]:
    """The output of `superopt verify --preconditions`: counts with one row per premise, and the text."""
    unmet = [dropped for rule in rules for dropped in preconditions(rule)]
    counts = {status: sum(d.status == status for d in unmet) for status in (NEEDED, REDUNDANT, DOMAIN, OPEN)}
    words = ", ".join(f"{n} {status}" for status, n in counts.items())
    data = {"rules": len(rules), "premises": len(unmet), **counts, "rows": [asdict(d) for d in unmet]}
    return data, "\n".join([*map(str, unmet), f"{len(unmet)} premises of {len(rules)} rules: {words}"])


# ---- the condition that would make a refuted rule true

SAMPLES, SOLVED = 40, 16
"""Instances on which conditions are tried: random ones, and ones chosen by the solver."""
MORE = 20
PROOFS = 16
"""Most conditions of each sort that go to the prover."""
_PAIRED = 60


@dataclass(frozen=True, slots=True)
class _Sample:
    env: Env
    differs: bool


def explained(rule: Rule, verdict: Verdict) -> Verdict:
    """A REFUTED verdict with the condition under which the rule is proved, where one is found."""
    if verdict.status != REFUTED or verdict.direction != "forward":
        return verdict
    try:
        repair = shared().call("verifier.rules.preconditions:remedy_of", show(rule))
    except LimitExceededError:
        return verdict
    return replace(verdict, proved_when=repair)


def remedy_of(text: str) -> str:
    """Entry point of the prover's process: `remedy` of a rule text."""
    return remedy(parse(text))


def remedy(rule: Rule) -> str:
    """A condition under which a wrong rule is proved, or an empty text."""
    samples = _samples(rule)
    sized = _sized(rule, samples, degenerate=False)
    if sized:
        return sized
    for words, candidate in itertools.chain(_narrowed(rule), _valued(rule)):
        if prove(candidate).proved:
            return words
    return _sized(rule, samples, degenerate=True)


# sizes and attributes


def _sized(rule: Rule, samples: list[_Sample], *, degenerate: bool) -> str:
    """The first condition on sizes that no instance contradicts and the prover proves; a failure adds an instance."""
    comparisons = list(_comparisons(rule, degenerate))
    for _ in range(PROOFS):
        conditions = _best(comparisons, samples)
        made = _read(with_parts(rule, cond=(*rule.cond, *conditions))) if conditions else None
        if made is None:
            return ""
        suspects: list[Env] = []
        if prove(made, suspects=suspects).proved:
            return ", ".join(map(expr, conditions))
        examples = [*map(differ_at, suspects, itertools.count()), search(made, MORE, SAMPLES)]
        wrong = [_Sample(replace(f.env, rule=rule), True) for f in examples if f is not None]
        samples += wrong
        if not wrong:
            comparisons = [e for e in comparisons if e not in conditions]
    return ""


def _best(comparisons: Sequence[TokenExpr], samples: Sequence[_Sample]) -> tuple[TokenExpr, ...]:
    """The best one or two conditions that hold at no instance with a difference and at as many others as possible."""
    good = [s.env for s in samples if not s.differs]
    bad = [s.env for s in samples if s.differs]
    ranked: list[tuple[int, int, int, tuple[TokenExpr, ...]]] = []
    coarse = max(1, len(good) // 4)  # a rough measure: among similar counts, simple conditions come first
    useful: list[tuple[TokenExpr, frozenset[int], frozenset[int]]] = []
    for e in comparisons:
        kept = frozenset(i for i, env in enumerate(good) if _holds(e, env))
        left = frozenset(i for i, env in enumerate(bad) if _holds(e, env))
        if kept and not left:
            ranked.append((-(len(kept) // coarse), _complexity(e), -len(kept), (e,)))
        elif kept and len(left) < len(bad):
            useful.append((e, kept, left))
    useful.sort(key=lambda u: (len(u[2]), -len(u[1])))
    for (a, kept_a, left_a), (b, kept_b, left_b) in itertools.combinations(useful[:_PAIRED], 2):
        if not left_a & left_b and kept_a & kept_b:
            kept = len(kept_a & kept_b)
            ranked.append((-(kept // coarse), 1 + _complexity(a) + _complexity(b), -kept, (a, b)))
    return min(ranked, default=(0, 0, 0, ()))[3]


def _complexity(e: TokenExpr) -> int:
    constant = e[2][0] == "n"
    return 0 if constant and e[2][1] == 0 and e[0] == ">=" else 1 if e[0] == "==" and not constant else 2


def _samples(rule: Rule) -> list[_Sample]:
    envs = [env_of_seed(rule, seed) for seed in range(SAMPLES)]
    chosen = [env for env in (*envs, *solved_envs(rule, SOLVED)) if env is not None]
    return [_Sample(env, differ_at(env, n) is not None) for n, env in enumerate(chosen)]


def _holds(e: TokenExpr, env: Env) -> bool:
    try:
        return all(env.value(e, label) for label in env.axes_of(e))
    except (KeyError, ZeroDivisionError):
        return False


def _comparisons(rule: Rule, degenerate: bool) -> Iterator[TokenExpr]:
    """Yield comparisons of the integers that the left side binds, or with `degenerate`, that a size is 1."""
    names = [n for n in rule.owner if n not in rule.indices and rule.owner[n] not in rule.derived]
    if degenerate:
        yield from (("==", ("v", n), ("n", 1)) for n in names if n in rule.sizes)
        return
    for n in (*names, *rule.params):
        wanted = ((">=", 1),) if n in rule.sizes else ((">=", 0), ("==", 0), (">=", 1), ("==", 1), ("<=", 0))
        yield from ((op, ("v", n), ("n", value)) for op, value in wanted)
    for a, b in itertools.permutations(names, 2):
        sizes = a in rule.sizes and b in rule.sizes
        if (stem(a) == stem(b)) if sizes else _comparable(rule, a, b):
            ops = ("==",) if sizes else ("==", "<=", "<") if a < b else ("<=", "<")
            yield from ((op, ("v", a), ("v", b)) for op in ops)


def _comparable(rule: Rule, a: str, b: str) -> bool:
    """Whether two names belong to one role, or to single-axis roles only."""
    roles = {rule.owner[n] for n in per_axis_names(("+", ("v", a), ("v", b)))}
    return len(roles) == 1 or not roles & rule.many


# tensors that lack a role


def _narrowed(rule: Rule) -> Iterator[tuple[str, Rule]]:
    count = 0
    for name, tokens in rule.vars.items():
        for i, token in enumerate(tokens):
            made = _read(with_parts(rule, vars={**rule.vars, name: tokens[:i] + tokens[i + 1 :]}))
            if made is not None and count < PROOFS and search(made, 12) is None:
                count += 1
                yield f"{name} does not vary along {stem(token)}", made


# values


def _valued(rule: Rule) -> Iterator[tuple[str, Rule]]:
    count = 0
    for words, given in _premises(rule):
        made = _read(with_parts(rule, given=(*rule.given, given), mode="proof"))
        if made is not None and count < PROOFS and search(made, 24) is None:
            count += 1
            yield words, made


def _premises(rule: Rule) -> Iterator[tuple[str, Term]]:
    numbers = [term("var", name=v) for v, kind in rule.kinds.items() if kind == "float"]
    zero = term("lit", value=("n", 0))
    for f, sign in (("ge", ">="), ("gt", ">")):
        for v in numbers:
            yield f"{v['name']} {sign} 0", _compared(rule, f, v, zero)
    for a, b in itertools.permutations(numbers, 2):
        if set(roles_of(rule.vars, a)) == set(roles_of(rule.vars, b)):
            yield f"{a['name']} <= {b['name']}", _compared(rule, "le", a, b)


def _compared(rule: Rule, f: str, a: Term, b: Term) -> Term:
    roles = roles_of(rule.vars, a)
    if b.op == "lit" and roles:
        b = term("bcast", b, over=roles, like=(a,), size=())
    return term("ew", a, b, f=f, params=())


def _read(rule: Rule) -> Rule | None:
    """The rule printed and parsed again, or None where it is trivial or does not parse."""
    try:
        made = parse(show(rule), rule.where)
    except (RuleError, KeyError):
        return None
    return None if made.lhs == made.rhs else made
