"""Exactness by evaluation: do the sides of a rule agree in every bit, on zeros with signs, NaN, infinities and others?

A proof of class `exact` says so; this asks the reference interpreter.  All NaN are one value.  Which zero a maximum or
minimum of both zeros is, is left open: IEEE 754 orders them, NumPy does not.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from rewrites.language.term import Rule, subterms
from rewrites.lift.generate import Instance, at_env
from superopt.errors import SuperoptError
from superopt.ir.interp import evaluate
from verifier.rules.refute import Difference, env_of_seed

SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -2.0, 3.5, 1e-40, 1e30)
_ORDER = frozenset({"max", "min", "maximum", "minimum", "clamp"})


def different_bits(rule: Rule, tries: int, first_seed: int = 0) -> Difference | None:
    """An instance and special values at which the sides of a rule about floats have different bits, or None."""
    ordered = any({t.get("f"), t.get("kind")} & (_ORDER | set(rule.metas)) for t in subterms((*rule.lhs, *rule.rhs)))
    for seed in range(first_seed, first_seed + tries):
        env = env_of_seed(rule, seed)
        if env is None:
            continue
        try:
            made = at_env(rule, env, random.Random(seed))
        except SuperoptError:  # the physical op takes no such sizes
            continue
        if made.rhs:
            values = _values(made, seed)
            for root, sides in enumerate(zip(evaluate(made.lhs, values), evaluate(made.rhs, values), strict=True)):
                where = first_other_bits(*map(np.asarray, sides), zeros=not ordered)
                if where is not None:
                    return Difference(env, seed, root, made, values, where, sides)
    return None


def first_other_bits(a: np.ndarray, b: np.ndarray, zeros: bool = True) -> tuple[int, ...] | None:
    """First index at which two arrays of one type differ in bits, or None; NaN is NaN, `zeros` have signs."""
    same = a == b
    if a.dtype.kind == "f":
        if zeros:
            same &= np.signbit(a) == np.signbit(b)
        same |= np.isnan(a) & np.isnan(b)
    return None if same.all() else tuple(int(i) for i in np.argwhere(~same)[0])


def _values(made: Instance, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    out: dict[str, Any] = {}
    for name, node in sorted(made.inputs.items()):
        sizes = tuple(int(str(n)) for n in node.shape)
        if node.dtype == "bool":
            out[name] = np.asarray(rng.random(sizes) > 0.5)
        elif node.dtype.startswith("int"):
            out[name] = rng.integers(-1, 6, sizes).astype(node.dtype)
        else:
            out[name] = rng.choice(np.array(SPECIAL), sizes).astype(node.dtype)
    return out
