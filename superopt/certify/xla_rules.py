"""Cross-check of proved rules by XLA: evaluates instances of both sides in the types of programs.

The prover and the interpreter both rely on the op table; this check relies on JAX instead.  XLA may round differently
on the two sides, so floats are compared within the rounding of small integers, and NaN and infinities only where the
certificate claims every bit.  Integers are compared exactly, at the ends of their type.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from rewrites.language.term import Rule
from rewrites.lift.generate import Instance, at_env
from superopt.backends.xla import to_jax
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.interp import evaluate
from superopt.machine.jitting import jit_quickly
from verifier.equal.equality import NO_OVERFLOW, POSITIONS
from verifier.equal.normal import EXACT
from verifier.rules.refute import DRAWN, env_of_seed, first_difference, special, strewn
from verifier.verdict import ValidityDomain

SEED, TRIES = 100, 8  # the first seed of the arrays of a rule, and how many are drawn
NEAR = 1e-3
"""Rounding error of small integers in float32, relative to an element of about their size."""


def by_xla(rule: Rule, domain: ValidityDomain) -> str:
    """Describe where the two sides of a proved rule differ when XLA evaluates them; empty where they do not."""
    for dtype in _types(rule, domain):
        made = _instance(rule, dtype)
        if made is None:
            continue
        inputs = tuple(made.inputs.values())
        both = jit_quickly(to_jax(Graph(inputs, (*made.lhs, *made.rhs))))  # compiled once: most of the time is that
        for kind, values in _values(made, dtype, domain.exactness == EXACT):
            if not all(bool(np.all(g)) for g in evaluate(made.given, values)):
                continue
            arrays = [values[n] for n in made.inputs]
            results = [np.asarray(x) for x in both(*arrays)]
            for root, (a, b) in enumerate(zip(results, results[len(made.lhs) :], strict=False)):
                at = first_difference(a, b, not kind, NEAR)
                if at is not None:
                    return f"equation {root + 1} gives {a[at]} and {b[at]} at {list(at)} in {dtype}{kind}, by XLA"
    return ""


def _types(rule: Rule, domain: ValidityDomain) -> list[str]:
    types = [] if rule.dtype else ["float32"]
    wraps = "int" in domain.dtypes and not {NO_OVERFLOW, POSITIONS} & set(domain.assumptions)
    return [*types, "int32"] if wraps else types


def _instance(rule: Rule, dtype: str) -> Instance | None:
    """Return the first of some instances in which an input has entries."""
    for seed in range(SEED, SEED + TRIES):
        env = env_of_seed(rule, seed)
        if env is None:
            continue
        try:
            made = at_env(rule, env, random.Random(seed), dtype=dtype)
            to_jax(Graph(tuple(made.inputs.values()), (*made.lhs, *made.rhs)))
        except (SuperoptError, ValueError, OverflowError):  # an op takes no such sizes or types
            continue
        if made.rhs and all(int(str(n)) for x in made.lhs for n in x.shape):
            return made
    return None


def _values(made: Instance, dtype: str, bits: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield inputs with their kind: small integers first, then the ends of integers, or NaN and infinities in turn."""
    ends = [" at the ends of the type"] * DRAWN
    kinds = ["", *ends] if dtype == "int32" else ["", *(f" with {k}" for k in _NONE if bits)]
    for draw, kind in enumerate(kinds):
        rng, values = np.random.default_rng(draw), dict[str, Any]()
        for number, (name, node) in enumerate(sorted(made.inputs.items())):
            sizes = tuple(int(str(n)) for n in node.shape)
            x = np.asarray(rng.integers(-2, 4, sizes)).astype(node.dtype)
            if node.dtype == "bool":
                x = np.asarray(rng.random(sizes) > 0.5)
            elif kind and made.env.rule.kinds[name] != "int" and dtype == "int32":
                x = rng.choice(np.array(special(dtype), dtype), sizes)
            elif kind and made.env.rule.kinds[name] != "int":
                x = strewn(x.astype(np.float32), [float(_NONE[draw - 1])], number)
            values[name] = x
        yield kind, values


_NONE = ("nan", "inf", "-inf")

__all__ = ["by_xla"]
