"""Refutation: concrete arrays on which the two sides of a rule differ, by the reference interpreter alone.

Both sides are built as IR graphs from one random environment that satisfies the premises (`rewrites.generate`) and
evaluated by `superopt.ir.interp`; nothing of the prover takes part.  Small sizes (0 included) and small integers come
first, so most wrong rules fall in milliseconds.  A rule is refuted when, at an instance with a well-formed left side,
the right side is ill-formed, has another shape, or has another value.  Entries at which the left side is undefined
(NaN, or infinite by a division or a logarithm) say nothing: that is the assumption of finite values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rewrites.generate import Instance, at_env, choose_env
from rewrites.named import Env, shape
from rewrites.term import Rule, stem, subterms
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node
from superopt.ir.interp import evaluate
from superopt.ir.text import print_graph
from verifier.verdict import Counterexample

TOLERANCE = 1e-9
PARTIAL = frozenset({"div", "rem", "log", "log1p", "rsqrt", "pow", "integer_pow", "atanh", "tan", "digamma", "lgamma"})
STAGES = ((0, 2), (1, 2), (0, 3), (1, 4), (1, 5), (2, 5), (3, 8), (1, 3), (0, 4), (4, 9))
"""Smallest and largest size, in the order in which they are tried."""


@dataclass
class Attempts:
    """What a search for a counterexample did.

    Attributes:
        built: instances compared.
        missing: seeds for which no environment was found.
        unbuilt: instances of which the builder refused a side, with the last reason.
    """

    built: int = 0
    missing: int = 0
    unbuilt: int = 0
    reason: str = ""


def refute(rule: Rule, tries: int, first_seed: int = 0, attempts: Attempts | None = None) -> Counterexample | None:
    """Search for a counterexample among `tries` random instances; the same seeds give the same answer."""
    log = attempts if attempts is not None else Attempts()
    for seed in range(first_seed, first_seed + tries):
        low, high = STAGES[seed % len(STAGES)]
        rng = random.Random(f"{rule.name}/{seed}")
        choice = (0, 1) if seed % 3 == 0 else (1, 1, 2)
        env = choose_env(rule, {r: rng.choice(choice) for r in sorted(rule.many)}, rng, high, low)
        if env is None:
            log.missing += 1
            continue
        found = refute_at(env, seed, log)
        if found is not None:
            return found
    return None


def refute_at(env: Env, seed: int, log: Attempts) -> Counterexample | None:
    """Compare the two sides of a rule at one environment that satisfies its premises."""
    rule = env.rule
    bad = _ill_formed(env)
    if bad is not None:
        root, cause = bad
        shapes = {v: tuple(env.tok[t, x] for t in ts for x in env.labels[stem(t)]) for v, ts in rule.vars.items()}
        values = {v: np.zeros(sizes) for v, sizes in shapes.items()}
        return _counterexample(env, values, seed, root, None, "a well-formed result", cause, ("", ""))
    try:
        made = at_env(rule, env, random.Random(seed))
    except SuperoptError as error:  # the physical op takes no such sizes (a convolution without groups)
        log.unbuilt += 1
        log.reason = str(error)
        return None
    if not made.rhs:
        log.unbuilt += 1
        log.reason = made.reason
        return None
    log.built += 1
    partial = any(t.op == "ew" and t["f"] in PARTIAL for t in subterms(rule.lhs))
    undefined: Counterexample | None = None
    for attempt in range(12 if made.given else 3):
        values = _values(made, seed, attempt)
        if made.given and not all(bool(np.all(g)) for g in evaluate(made.given, values)):
            continue
        lefts, rights = evaluate(made.lhs, values), evaluate(made.rhs, values)
        for root, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            where = _differs(left, right, partial)
            if where is None:
                continue
            a, b = np.asarray(left)[where], np.asarray(right)[where]
            graphs = (_text(made, made.lhs[root]), _text(made, made.rhs[root]))
            found = _counterexample(env, values, seed, root, where, str(a), str(b), graphs)
            if np.isnan(b):
                undefined = undefined or replace(found, undefined=True)
            else:
                return found
    return undefined


def _text(made: Instance, root: Node) -> str:
    return print_graph(Graph(tuple(made.inputs.values()), (root,)))


def smallest(rule: Rule, found: Counterexample, tries: int = 20) -> Counterexample:
    """The smallest counterexample of the same kind among some tiny instances and the given one."""
    best, log = found, Attempts()
    for seed in range(tries):
        rng = random.Random(f"{rule.name}/{seed}/small")
        env = choose_env(rule, {r: rng.choice((0, 1)) for r in sorted(rule.many)}, rng, 2 + seed // 10, 1)
        other = refute_at(env, seed, log) if env is not None else None
        if other is None or (other.index is None) != (found.index is None) or other.undefined != found.undefined:
            continue
        if not best.elements or 0 < other.elements < best.elements:
            best = other
    return best


def _ill_formed(env: Env) -> tuple[int, str] | None:
    """The first root whose right side is ill-formed or has another named shape, with the reason."""
    for root, (left, right) in enumerate(zip(env.rule.lhs, env.rule.rhs, strict=True)):
        conditions: list[Any] = []
        try:
            there = shape(right, env, conditions)
        except (ZeroDivisionError, KeyError) as error:
            return root, f"an ill-formed right side: {error!r}"
        if not all(conditions):
            return root, f"an ill-formed right side: {sum(not x for x in conditions)} condition(s) fail"
        here = shape(left, env, [])
        if here != there:
            return root, f"a right side of sizes {sorted(there.values())} for {sorted(here.values())}"
    return None


def _values(made: Instance, seed: int, attempt: int) -> dict[str, np.ndarray]:
    """Input arrays: small integers first, then fractions, then signs and magnitudes mixed."""
    rng = np.random.default_rng((seed, attempt))
    out: dict[str, np.ndarray] = {}
    for name, node in sorted(made.inputs.items()):
        sizes = tuple(int(str(n)) for n in node.shape)
        if node.dtype == "bool":
            out[name] = rng.random(sizes) > 0.5
        elif node.dtype.startswith("int"):
            out[name] = rng.integers(-1, 6, sizes).astype(node.dtype)
        elif attempt == 0:
            out[name] = rng.integers(-2, 4, sizes).astype(node.dtype)
        else:
            out[name] = np.asarray(rng.standard_normal(sizes) * (1.0 if attempt == 1 else 3.0), node.dtype)
    return out


def _differs(left: Any, right: Any, partial: bool) -> tuple[int, ...] | None:
    """First index at which the results differ where the left one is defined, or None."""
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype == bool or a.dtype.kind in "iu":
        bad = a != b
    else:
        defined = np.isfinite(a) if partial else ~np.isnan(a)
        scale = 1.0 + np.abs(np.where(np.isfinite(a), a, 0.0))
        with np.errstate(invalid="ignore"):
            same = (a == b) | (np.abs(a - b) <= TOLERANCE * scale * max(1.0, math.sqrt(a.size)))
        bad = defined & ~same
    if not bad.any():
        return None
    return tuple(int(i) for i in np.argwhere(bad)[0])


def _counterexample(
    env: Env,
    values: dict[str, np.ndarray],
    seed: int,
    root: int,
    index: tuple[int, ...] | None,
    left: str,
    right: str,
    graphs: tuple[str, str],
) -> Counterexample:
    choices = {k: str(v) for k, v in sorted(env.params.items())}
    choices |= {f"{name}@{i}": str(v) for name, i, v in _attributes(env)}
    return Counterexample(
        inputs={k: v.tolist() for k, v in values.items()},
        shapes={k: v.shape for k, v in values.items()},
        choices=choices,
        root=root,
        index=index,
        left=left,
        right=right,
        graphs=graphs,
        seed=seed,
    )


def _attributes(env: Env) -> Iterator[tuple[str, int, Any]]:
    count: dict[str, int] = {}
    for (name, _), value in env.attr.items():
        yield name, count.get(name, 0), value
        count[name] = count.get(name, 0) + 1
