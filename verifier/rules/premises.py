"""Premises about values (`given` clauses) where a proof needs them: at every entry that the two sides read.

A premise such as `ge(X, 0)` holds at every index of its operands.  A proof over uninterpreted inputs uses it at the
indices at which the two sides read these operands, and at the index of the result where that has all its axes; each
time under the condition that the index is in range.
"""

from __future__ import annotations

from typing import Any

from rewrites.language.named import NamedShape
from rewrites.language.term import Term as RuleTerm
from rewrites.language.term import stem, subterms
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond, Sym, unwrap
from verifier.equal.pointwise import Premise
from verifier.equal.sem import Meaning, Where
from verifier.equal.terms import Read, Term, walk_terms


def premises_at(meaning: Meaning[Term], left: Term, right: Term, index: Where) -> tuple[Premise, ...]:
    """The premises of the rule at the entries that two scalars read, and at the index of the result."""
    rule = meaning.env.rule
    if not rule.given:
        return ()
    reads = {x for side in (left, right) for x in walk_terms(side) if isinstance(x, Read)}
    out: dict[Premise, None] = {}
    for t in rule.given:
        shape = meaning.shape(t)
        if not shape:
            out[c.TRUE, meaning.at(t, {})] = None
            continue
        if set(shape) <= set(index):
            out[_inside(shape, index), meaning.at(t, index)] = None
        held = {x["name"] for x in subterms((t,)) if x.op == "var"}
        for read in sorted((r for r in reads if r.name in held), key=repr):
            where = _index(meaning, t, shape, read)
            if where is not None:
                out[where] = None
    return tuple(out)


def _index(meaning: Meaning[Term], t: RuleTerm, shape: NamedShape, read: Read) -> Premise | None:
    """The premise at the index of a read, or None where the read does not say all of the index."""
    env = meaning.env
    labels = [x for token in env.rule.vars[read.name] for x in env.labels[stem(token)]]
    index: dict[Any, Any] = {x: Sym(i) for x, i in zip(labels, read.index, strict=True)}
    if not set(shape) <= set(index):
        return None
    return _inside(shape, index), meaning.at(t, index)


def _inside(shape: NamedShape, index: Where) -> Cond:
    at = {x: unwrap(index[x]) for x in shape}
    return c.conj(cond for x, n in shape.items() for cond in (c.ge(at[x], 0), c.lt(at[x], unwrap(n))))
