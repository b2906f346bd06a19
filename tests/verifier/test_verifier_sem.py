"""Naming then denoting is evaluating: the meaning of rule terms agrees with the reference interpreter.

Part of the trust base: `rewrites.language.entries` says which entries of the op table a rule's terms are, the builder
which nodes they become.  Random instances of every library rule (and of rules that exercise the other ops) are built as
IR graphs and evaluated; the same terms, evaluated index by index through `sem` over numbers, must give the same arrays.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rewrites.language.entries import ENTRIES, POSITION, TermEntry
from rewrites.language.kinds import kind_of
from rewrites.language.parse import parse_many
from rewrites.language.shapes import shape
from rewrites.language.term import Rule, Term, stem, subterms
from rewrites.library import load
from rewrites.lift.generate import Instance, instance
from superopt.errors import SuperoptError
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import canonical, infer
from superopt.ir.types import TensorType
from tests.support.oracles import Numeric
from tests.support.sampling import one_in, ops_of, sampled
from verifier.equal.conditions import FALSE, TRUE, arithmetic, truth, unwrap
from verifier.equal.poly import const
from verifier.equal.sem import _MEANING, AxisPositions, Meaning
from verifier.record import digests
from verifier.rules.instance import RankInstance, env_at, instantiate

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
SEEDS = range(4)
POINTS = 30  # numbers at which shapes of a rule are compared
LARGEST = 600  # entries per root
COMPARED = 100
"""Entries compared per root; where it has more, they are drawn."""


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


class Remembered(Meaning[Any]):
    """The meaning, which evaluates a term once at each index of its own axes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._values: dict[tuple[Term, tuple[Any, ...]], Any] = {}
        self._bound: dict[frozenset[Any], Remembered] = {}

    def at(self, t: Term, ix: AxisPositions) -> Any:
        place = (t, tuple([ix.get(label) for label in self.shape(t)]))
        if place not in self._values:
            self._values[place] = super().at(t, ix)
        return self._values[place]

    def inside(self, attrs: Mapping[tuple[str, Any], Any]) -> Remembered:
        bound = frozenset(attrs.items())
        if bound not in self._bound:
            self._bound[bound] = Remembered(self.env.with_attrs(dict(attrs)), self.k, self.read, self.metas)
        return self._bound[bound]


def denoted(
    inst: Instance, t: Term, layout: Any, values: Mapping[str, np.ndarray], most: int = LARGEST
) -> tuple[np.ndarray, np.ndarray]:
    """Entries of a physical layout, drawn where it has more than `most`, and the term at them, through `sem`."""
    metas = {m: op.removeprefix("reduce_") for m, (op, _) in inst.match.metas.items()}
    numbers = Numeric(named_arrays(inst, values))
    meaning = Remembered(inst.env, numbers, numbers.read, metas)
    entries = [e for axis in layout for e in axis]
    sizes = [n for _, n in entries]
    count = int(np.prod(sizes, dtype=int))
    drawn = np.sort(np.random.default_rng(0).permutation(count)[:most])
    with np.errstate(all="ignore"):
        found = [
            meaning.at(t, {label: int(i) for (label, _), i in zip(entries, np.unravel_index(n, sizes), strict=True)})
            for n in drawn
        ]
    return drawn, np.asarray(found)


@pytest.mark.parametrize("rule", sampled([*load(), *MORE], one_in(5, ops_of)), ids=lambda r: r.name)
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
                assert got.shape == tuple([int(np.prod([n for _, n in axis], dtype=int)) for axis in layout])
                drawn, want = denoted(inst, t, layout, values, COMPARED)
                flat = got.reshape(-1)[drawn]
                np.testing.assert_allclose(want, flat, rtol=1e-12, atol=1e-12, err_msg=f"{rule.name} seed {seed}")
                compared += 1
    assert compared >= 2


def test_entries_have_the_types_of_terms_and_are_known_to_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, set[str]] = {}
    real = Meaning.apply

    def apply(self: Meaning[Any], entry: TermEntry, t: Term, ix: Any) -> Any:
        named.setdefault(t.op, set()).add(entry.op)
        types = [self.typed(a, labels) for a, labels in zip(t.args, entry.operands, strict=True)]
        # an iota is a number of any type, as a literal is
        kinds = [kind_of(self.env.rule.kinds, a, {}) for a in t.args]
        others = {x.dtype for kind, x in zip(kinds, types, strict=True) if kind != "number"}
        if entry.op in ("eq", "ne", "lt", "le", "gt", "ge") and len(others) == 1:
            types = [TensorType(x.shape, *others) for x in types]
        if entry.op == "gather":
            types[1] = TensorType(types[1].shape, POSITION)
        types += [TensorType((), POSITION)] * len(entry.positions)
        found = infer(entry.op, types, canonical(entry.op, entry.attrs))
        assert found == (self.typed(t, entry.out),), f"{entry.op} of {t}"
        return real(self, entry, t, ix)

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
    assert named.keys() == ENTRIES.keys()
    for op, entries in named.items():
        assert entries <= set(digests._IR[op]), op


def over_symbols(made: RankInstance, t: Term) -> tuple[list[Any], dict[Any, Any]]:
    """The conditions under which a term is well formed, and its shape, as the prover has them over symbols."""
    conditions: list[Any] = []
    sizes = shape(t, replace(made.env, arith=arithmetic(conditions.append)), conditions)
    return [truth(x) for x in conditions], sizes


def at_numbers(
    symbolic: tuple[list[Any], dict[Any, Any]], put: Callable[[Any], Any], axis: Mapping[Any, Any]
) -> tuple[bool, dict[Any, Any]]:
    """Whether a term is well formed at some numbers, and its shape there."""
    told = [put(x) for x in symbolic[0]]
    assert all(x in (TRUE, FALSE) for x in told)
    return FALSE not in told, {axis[x]: put(unwrap(n)).value for x, n in symbolic[1].items()}


def put_in(numbers: Mapping[str, int]) -> Callable[[Any], Any]:
    """A function that puts numbers in, once into what several terms have in common."""
    constants = {name: const(n) for name, n in numbers.items()}
    return functools.cache(lambda x: x.subst(constants))


@pytest.mark.parametrize("rule", sampled([*load(), *MORE], one_in(5, ops_of)), ids=lambda r: r.name)
def test_what_is_proved_over_symbols_is_what_is_matched_over_numbers(rule: Rule) -> None:
    """Shapes and well-formedness, of both sides, at numbers of all kinds: no elements, and windows that do not fit."""
    made, rng = instantiate(rule, {}), random.Random(rule.name)
    symbols, met = functools.cache(lambda t: over_symbols(made, t)), 0
    terms = subterms((*rule.lhs, *rule.rhs))
    if any(t.op in ("fold", "stack") for t in terms):
        terms = [t for t in terms if t in rule.lhs + rule.rhs]  # the index of a fold is not bound outside
    for _ in range(POINTS):
        numbers = {name: rng.choice((0, 1, 1, 2, 2, 3, 4)) for name in sorted(made.ctx.dims)}
        env, put = env_at(made, numbers), put_in(numbers)
        axis = {x: y for r, own in made.env.labels.items() for x, y in zip(own, env.labels[r], strict=True)}
        for t in terms:
            conditions: list[Any] = []
            try:
                symbolic = at_numbers(symbols(t), put, axis)
                sizes = shape(t, env, conditions)
            except (ZeroDivisionError, ValueError):
                continue  # a division by what a condition says is positive
            assert all(conditions) == symbolic[0], f"{t} at {numbers}"
            if symbolic[0]:
                assert sizes == symbolic[1], f"{t} at {numbers}"
                met += 1
    assert met


def test_every_op_of_the_language_is_compared() -> None:
    met = {t.op for rule in (*load(), *MORE) for t in subterms((*rule.lhs, *rule.rhs))}
    assert (_MEANING.keys() | ENTRIES.keys()) - met <= {"lay"}
    assert not _MEANING.keys() & ENTRIES.keys()
