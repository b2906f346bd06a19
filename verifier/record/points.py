"""Points at which the checker evaluates a rule: sizes, attributes, an index of the result, inputs, and both values.

Rules are built as graphs from their text, which the reference interpreter evaluates.  Sizes are drawn at random, or
taken from the record, where they meet the premises.  Names are those of records: `n@a.0` is the size token n on the
first axis of the role a.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewrites.language.named import Env, derived_labels
from rewrites.language.term import Rule
from rewrites.lift.generate import Instance, admissible, at_env, choose_env
from superopt.ir.interp import evaluate

META = {1: "tanh", 2: "sub", 3: "select_n"}
"""The function that stands for a meta-variable, by its number of operands."""


@dataclass
class Point:
    """Sizes, attributes, an index of the result and inputs, with the values of both sides there."""

    names: dict[str, int]
    arrays: dict[str, np.ndarray]
    left: float
    right: float


def point(rule: Rule, row: Any, rng: random.Random, draw: int) -> Point | None:
    """A point at which both sides have values, evaluated from the rule's text; None where the draw has none."""
    env = choose_env(rule, row["ranks"], rng, 2 if draw % 2 else 3, tries=200)
    env = env if env is not None else _witness(rule, row)
    if env is None:
        return None
    metas = {
        f: (f"reduce_{row['metas'][f]}", ()) if isinstance(n, tuple) else (META[n], ()) for f, n in rule.metas.items()
    }
    made = at_env(rule, env, rng, dtype="int32" if rule.dtype == "int" else "float64", metas=metas)
    if not made.rhs:
        return None
    arrays = _inputs(made, rng, positive=draw % 3 == 2)
    if not all(bool(np.all(g)) for g in evaluate(made.given, arrays)):
        return None
    root: int = row["root"]
    sides = [np.asarray(evaluate([side[root]], arrays)[0]) for side in (made.lhs, made.rhs)]
    if not sides[0].size:
        return None
    names = _names(env)
    place = tuple(rng.randrange(n) for n in sides[0].shape)
    at: dict[str, int] = {}
    for axis, i in zip(made.layouts[root], place, strict=True):
        for label, n in reversed(axis):
            i, at[_axis(env)[label]] = divmod(i, n)
    index: dict[str, Any] = row["index"]
    for name, i in index.items():
        value = at.pop(name, None)
        if i and value is not None:  # a variable, or 0 on an axis of length 1
            names[i[0][1][0]] = value
    left, right = (float(x[place]) for x in sides)
    return Point(names, arrays, left, right) if not math.isnan(left) else None


def _axis(env: Env) -> dict[Any, str]:
    """Axis of an instance -> its name in records."""
    many = env.rule.many
    return {x: f"{r}.{i}" if r in many else r for r, labels in env.labels.items() for i, x in enumerate(labels)}


def _names(env: Env) -> dict[str, int]:
    axis = _axis(env)
    values = {(name, axis[x]): n for (name, x), n in (*env.tok.items(), *env.attr.items())}
    out: dict[str, int] = {name if name == at else f"{name}@{at}": n for (name, at), n in values.items()}
    return {**out, **env.params}


def _witness(rule: Rule, row: Any) -> Env | None:
    """The environment with the sizes that the record names, or None where they do not meet the premises."""
    labels: dict[str, list[int]] = {}
    for r in rule.roles:
        if r not in rule.derived:
            count = len(labels)
            labels[r] = [1000 + 50 * count + i for i in range(row["ranks"].get(r, 1) if r in rule.many else 1)]
    labels.update(derived_labels(rule, labels, iter(range(9000, 9999))))
    env = Env(rule, labels, {}, {}, {})
    axis, given = _axis(env), row["witness"]
    for name, role in rule.owner.items():
        for x in labels[role] if name not in rule.indices else ():
            value = given.get(name if name == axis[x] else f"{name}@{axis[x]}")
            if value is not None:
                (env.tok if name in rule.sizes else env.attr)[name, x] = value
    env = Env(rule, labels, env.tok, env.attr, {p: given[p] for p in rule.params})
    return env if admissible(env) else None


def _inputs(made: Instance, rng: random.Random, *, positive: bool) -> dict[str, np.ndarray]:
    arrays = made.arrays(rng.randrange(1 << 30))
    numbers = made.env.rule.dtype == "int"
    for name, x in arrays.items():
        if numbers and made.env.rule.kinds[name] != "int" and x.dtype != np.bool_:
            x = np.asarray(1 + np.abs(x)).astype(x.dtype)
        arrays[name] = np.abs(x) if positive and x.dtype.kind == "f" else x
    return arrays


__all__ = ["META", "Point", "point"]
