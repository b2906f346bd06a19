"""Naming then denoting is evaluating: the meaning of rule terms agrees with the reference interpreter.

Part of the trust base: `verifier.equal.sem` says which entries of the op table a rule's terms are, the builder which
nodes they become.  Random instances of every library rule (and of rules that exercise the other ops) are built as IR
graphs and evaluated; the same terms, evaluated index by index through `sem` over numbers, must give the same arrays.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rewrites.language.parse import parse_many
from rewrites.language.term import Rule, Term, stem, subterms
from rewrites.library import load
from rewrites.lift.generate import Instance, instance
from superopt.errors import SuperoptError
from superopt.ir.index import greatest, least, symbol
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import canonical, infer
from tests.support.oracles import Numeric
from verifier.equal.conditions import Cond, Sym, eq, ge, unwrap
from verifier.equal.places import to_poly
from verifier.equal.poly import Poly, form_of, var
from verifier.equal.sem import _MEANING, Meaning
from verifier.record import digests
from verifier.rules.instance import instantiate, output, settled, symbolic

MORE = parse_many(
    """
sem-cum: A[*a n]
  cumsum(view(A), n) + cummax(A, n)  ==  cummax(A, n) + cumsum(A, n)

sem-reduce: R in sum|max|min|prod  A[*a *k]
  R(view(A), k)  ==  R(A, k)

sem-take: T[v *k]  I[*b]
  take(view(T), I, v)  ==  take(T, I, v)

sem-rev: A[*a *n]
  rev(view(A), n)  ==  rev(A, n)

sem-windows: X[*b u *s]
  wsum(view(X), s(w, t, p, q)) * wmin(X, s(w, t, p, q))  ==  wmin(X, s(w, t, p, q)) * wsum(X, s(w, t, p, q))

sem-pad: A[*a *n]  V[]
  pad(view(A), V, n(l, h, i))  ==  pad(A, V, n(l, h, i))

sem-conv: X[*b *g c *s]  W[*g o c *s2]
  conv(view(X), W, c, s(t, p, q, u, d))  ==  conv(X, W, c, s(t, p, q, u, d))

sem-conv-features: X[*b *c *s]  W[o *c *s2]
  conv(view(X), W, c, s(t, p, q, u, d))  ==  conv(X, W, c, s(t, p, q, u, d))

sem-split: A[*a n]  extra o i  q in 2|3
  view(A)  ==  merge(split(A, n, o, i(q)), o, i, n)
  if n % q == 0

sem-logic: P[*a]  Q[*a]  A[*a]  B[*a]
  where(logical_and(P, invert(Q)), A, B)  ==  where(logical_or(invert(P), Q), B, A)

sem-dynamic: A[*a *n]  B[*a *n2]
  dynslice(dynupdate(A, B, n(i)), n(j, m))  ==  dynslice(view(dynupdate(A, B, n(i))), n(j, m))
  mode proof

sem-positions: c in int  A[*a n]  extra m
  iota(n) * A + bcast(num(c + n), a, n)  ==  iota(n) * A + bcast(bcast(num(c + n), a), n(n))
  mode proof

sem-truth: P[*a]
  logical_or(P, False)  ==  logical_and(True, P)

sem-scalar: A[*a]  B[*a]
  clamp(A, B, abs(B)) + A ** 3 - square(B) + maximum(tanh(A), minimum(A, B)) + where(lt(A, B), A, B)
    ==  clamp(A, B, abs(B)) + A ** 3 - square(B) + maximum(tanh(A), minimum(A, B)) + minimum(A, B)
"""
)
OPS = {"//": operator.floordiv, "%": operator.mod, "min": least, "max": greatest}
SEEDS = range(4)
LARGEST = 600  # entries compared per root


def named_arrays(inst: Instance, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs with their axes in the order of the rule's declarations."""
    out: dict[str, np.ndarray] = {}
    for name, tokens in inst.env.rule.vars.items():
        _, layout = inst.match.vars[name]
        labels = [axis[0][0] for axis in layout if axis]
        flat = values[name].reshape([n for n, axis in zip(values[name].shape, layout, strict=True) if axis])
        wanted = [x for t in tokens for x in inst.env.labels[stem(t)]]
        out[name] = np.transpose(flat, [labels.index(x) for x in wanted])
    return out


def denoted(inst: Instance, t: Term, layout: Any, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The term evaluated at every index of a physical layout, through `sem`."""
    metas = {m: op.removeprefix("reduce_") for m, (op, _) in inst.match.metas.items()}
    numbers = Numeric(named_arrays(inst, values))
    meaning = Meaning(inst.env, numbers, numbers.read, metas)
    entries = [e for axis in layout for e in axis]
    shape = [int(np.prod([n for _, n in axis], dtype=int)) for axis in layout]
    with np.errstate(all="ignore"):
        flat = [
            meaning.at(t, {label: i for (label, _), i in zip(entries, index, strict=True)})
            for index in itertools.product(*(range(n) for _, n in entries))
        ]
    return np.asarray(flat).reshape(shape)


@pytest.mark.parametrize("rule", [*load(), *MORE], ids=lambda r: r.name)
def test_sem_is_the_interpreter(rule: Rule) -> None:
    compared = 0
    for seed in SEEDS:
        try:
            inst = instance(rule, seed, largest=3)
        except SuperoptError:
            continue
        if inst is None:
            continue
        values = inst.arrays(seed)
        sides = [(rule.lhs, inst.lhs)] + ([(rule.rhs, inst.rhs)] if inst.rhs else [])
        for terms, nodes in sides:
            for t, node, layout in zip(terms, nodes, inst.layouts, strict=True):
                got = np.asarray(evaluate([node], values)[0])
                if got.size > LARGEST:
                    continue
                want = denoted(inst, t, layout, values)
                np.testing.assert_allclose(want, got, rtol=1e-12, atol=1e-12, err_msg=f"{rule.name} seed {seed}")
                compared += 1
    assert compared >= 2


def test_entries_are_well_typed_and_known_to_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, set[str]] = {}
    real = Meaning.apply

    def apply(self: Meaning[Any], op: str, t: Term, labels: Any, ix: Any, operands: Any, **attrs: Any) -> Any:
        named.setdefault(t.op, set()).add(op)
        found = infer(op, [kind for _, kind in operands], canonical(op, attrs))
        assert found == (self.typed(t, labels),), f"{op} of {t}"  # the type rule agrees with the shapes of names
        return real(self, op, t, labels, ix, operands, **attrs)

    monkeypatch.setattr(Meaning, "apply", apply)
    for rule, seed in itertools.product((*MORE, *load()), SEEDS):
        try:
            inst = instance(rule, seed, largest=3)
        except SuperoptError:
            continue
        if inst is not None and inst.rhs:
            for t in (rule.lhs[0], rule.rhs[0]):
                first = [tuple((label, min(n, 1)) for label, n in axis) for axis in inst.layouts[0]]
                denoted(inst, t, first, inst.arrays(0))
    named.pop("ew")
    assert set(_MEANING) - named.keys() == set(
        "var lit view lay bcast expand unit ren diag fold stack ew".split()  # noqa: SIM905 (one name per word)
    )
    for op, entries in named.items():
        assert entries <= set(digests._IR[op]), op


def ir_size(p: Any, lows: Mapping[str, int | None]) -> Any:
    """A size or an attribute of the prover as one of the IR."""

    def atom(name: str) -> Any:
        form = form_of(name)
        if form is None:
            return symbol(name, lows.get(name, 0))
        op, args = form
        return OPS[op](*(ir_size(a, lows) for a in args))

    total: Any = 0
    for mono, k in unwrap(p).terms:
        total = total + math.prod(map(atom, mono), start=k)
    return total


def ir_attribute(value: Any, lows: Mapping[str, int | None], known: Mapping[str, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple([ir_attribute(v, lows, known) for v in value])
    return ir_size(unwrap(value).subst(known), lows) if isinstance(value, Sym) else value


def divided(premises: Sequence[Cond]) -> Iterator[tuple[Poly, Poly]]:
    """What premises say is a multiple of what."""
    for p in [x.poly for x in premises if x.kind == "eq" and x.poly is not None]:
        forms = [form_of(name) for mono, _ in p.terms for name in mono]
        if len(forms) == 1 and forms[0] is not None and forms[0][0] == "%":
            yield forms[0][1]


@pytest.mark.parametrize("rule", [*load(), *MORE], ids=lambda r: r.name)
def test_shapes_of_names_are_those_of_type_rules_at_all_sizes(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last one, over symbols: type rules of the op table against the shapes that proofs are about."""
    made = instantiate(rule, {})
    ctx, known = made.ctx, settled(made.ctx)
    known |= {str(n): q * var(f"{n}/{q}") for n, q in divided(ctx.premises) if str(n) in ctx.dims}
    sizes = {str(n) for n in made.env.tok.values()}
    lows = {n: 1 if n in sizes or ge(var(n), 1) in ctx.premises else None for n in ctx.dims}
    filled = tuple(ge(var(n), 1) for n in sizes)
    real = Meaning.apply

    def apply(self: Meaning[Any], op: str, t: Term, labels: Any, ix: Any, operands: Any, **attrs: Any) -> Any:
        types = [replace(k, shape=ir_attribute(k.shape, lows, known)) for _, k in operands]
        (found,) = infer(op, types, canonical(op, {n: ir_attribute(v, lows, known) for n, v in attrs.items()}))
        want = self.typed(t, labels)
        assert found.dtype == want.dtype
        for n, m in zip(found.shape, want.shape, strict=True):
            assert ctx.holds(eq(to_poly(n), unwrap(m).subst(known)), filled), f"{op} of {t}: {n} and {m}"
        return real(self, op, t, labels, ix, operands, **attrs)

    monkeypatch.setattr(Meaning, "apply", apply)
    metas = {name: kinds[0] for name, kinds in rule.metas.items() if isinstance(kinds, tuple)}
    for root, sides in enumerate(zip(rule.lhs, rule.rhs, strict=True)):
        meaning = symbolic(made, metas)
        index, _ = output(meaning, made.shapes[root])
        for t in sides:
            meaning.at(t, index)


def test_every_op_of_the_language_is_compared() -> None:
    met = {t.op for rule in (*load(), *MORE) for t in subterms((*rule.lhs, *rule.rhs))}
    assert set(_MEANING) - met <= {"lay"}
