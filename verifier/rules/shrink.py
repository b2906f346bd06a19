"""Shrinking of counterexamples, for people to read: few axes, sizes of 1, attributes near 0, zeros and ones as values.

A difference that the refuter found is made smaller step by step.  A step is kept only if the reference interpreter
still sees a difference of the same kind, so the result is a counterexample whatever the steps are.  Axes are first put
in the order of the declarations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rewrites.language.named import Env
from rewrites.language.term import Rule, stem
from rewrites.lift.generate import admissible, at_env
from superopt.ir.graph import Graph, Node
from superopt.ir.interp import evaluate
from superopt.ir.text import print_graph
from verifier.rules.refute import TOLERANCE, Arrays, Attempts, Difference, differ_at, difference, search, sizes_of
from verifier.rules.snippet import snippet
from verifier.verdict import RIGHT, Counterexample

D = TypeVar("D")
STEPS = 120
"""Most smaller instances that are tried, and most simpler values."""
CLEAR = 1e-3
_SIMPLE = (0.0, 1.0, 2.0, -1.0, 3.0, -2.0, 0.5, -3.0)


def refute(rule: Rule, tries: int, first_seed: int = 0, attempts: Attempts | None = None) -> Counterexample | None:
    """A readable counterexample among `tries` random instances; the same seeds give the same answer."""
    example = search(rule, tries, first_seed, attempts)
    return None if example is None else readable(example)


def readable(found: Difference, small: bool = True) -> Counterexample:
    """The difference as a counterexample; with `small`, shrunk and then simplified in at most `STEPS` steps each."""
    if not small:
        return _described(found)
    plain = _again(found, found.env)
    if plain is not None:
        found = _smaller(plain)
    return _described(_simpler(found))


def _again(found: Difference, env: Env) -> Difference | None:
    """A difference of the same kind at another environment, axes in the order of the declarations, or None."""
    metas: Mapping[str, Any] = {} if found.made is None else found.made.match.metas
    other = differ_at(env, found.seed, metas=metas)
    if other is None and found.index is not None and found.undefined:  # few elements are rarely 0 by chance
        made = at_env(env.rule, env, random.Random(found.seed), metas=metas)
        zeros = {k: np.zeros_like(found.values[k], shape=sizes_of(v)) for k, v in made.inputs.items()}
        other = difference(made, zeros, found.seed) if made.rhs else None
    if other is None or other.undefined != found.undefined or (other.index is None) != (found.index is None):
        return None
    return other


# -- sizes and attributes


def _smaller(found: Difference) -> Difference:
    steps, again = 0, True
    while again:
        again = False
        for env in _reduced(found.env):
            steps += 1
            if steps > STEPS:
                return found
            other = _again(found, env) if admissible(env) else None
            if other is not None:
                found, again = other, True
                break
    return found


def _reduced(env: Env) -> Iterator[Env]:
    """Yield environments with one axis less, one smaller size, or one attribute nearer to its neutral value."""
    rule = env.rule
    for role in rule.roles:
        if role in rule.many and role not in rule.derived:
            yield from (_without(env, role, i) for i in range(len(env.labels[role])))
    for key, n in env.tok.items():
        yield from (replace(env, tok={**env.tok, key: m}) for m in _lower(n, 1))
    for key, value in env.attr.items():
        yield from (replace(env, attr={**env.attr, key: m}) for m in _lower(value, 0))
    for name, value in env.params.items():
        yield from (replace(env, params={**env.params, name: m}) for m in _lower(value, 1))
    for role, labels in env.labels.items():  # sizes and attributes of an axis often have to go together
        for label in labels:
            held = [k for k in env.tok if k[1] == label and stem(k[0]) == role and env.tok[k] > 1]
            moved = [k for k in env.attr if k[1] == label and env.attr[k] > 0]
            for k in held:
                for m in moved:
                    yield replace(
                        env, tok={**env.tok, k: env.tok[k] - 1}, attr={**env.attr, m: env.attr[m] - 1}
                    )  # fmt: skip


def _without(env: Env, role: str, i: int) -> Env:
    """The environment without one axis of a role, and of the roles derived from it."""
    rule, gone, labels = env.rule, set[Any](), dict(env.labels)
    for r in rule.roles:
        source = r
        while source in rule.derived:
            source = rule.derived[source]
        if source == role:
            gone.add(labels[r][i])
            labels[r] = [*labels[r][:i], *labels[r][i + 1 :]]
    tok = {k: v for k, v in env.tok.items() if k[1] not in gone}
    attr = {k: v for k, v in env.attr.items() if k[1] not in gone}
    return replace(env, labels=labels, tok=tok, attr=attr)


def _lower(value: int, least: int) -> list[int]:
    """Values nearer to `least` than this one, nearest to it first."""
    far = value - least
    nearer = (least, least + far // 2 if far > 0 else least - (-far) // 2, value - (1 if far > 0 else -1))
    return [v for v in dict.fromkeys(nearer) if abs(v - least) < abs(far)]


# -- values


def _simpler(found: Difference) -> Difference:
    """The difference with values as near to zeros and ones as a clear difference allows."""
    made = found.made
    if made is None or found.index is None:
        zeros = {k: np.ones_like(v) for k, v in found.values.items()}
        return replace(found, values=zeros)
    tolerance = CLEAR if difference(made, found.values, tolerance=CLEAR) is not None else TOLERANCE

    def fits(values: Arrays) -> Difference | None:
        other = difference(made, values, found.seed, tolerance)
        return other if other is not None and other.undefined == found.undefined else None

    return simplest(found, lambda d: d.values, fits)


def simplest(found: D, values_of: Callable[[D], Arrays], fits: Callable[[Arrays], D | None]) -> D:
    """A difference with values as near to zeros and ones as a limited number of steps reaches.

    Args:
        found: the difference to start from.
        values_of: the inputs of a difference.
        fits: the difference on other inputs, or None where there is none of the same kind.
    """
    steps = 0
    for values in _whole(values_of(found)):
        other = fits(values)
        if other is not None:
            found = other
            break
    for name, array in values_of(found).items():
        for place in np.ndindex(array.shape):
            for value in _nearer(values_of(found)[name][place]):
                if np.asarray(value).astype(array.dtype) != value:
                    continue  # the type has no such value
                changed = np.array(values_of(found)[name])  # also of a NumPy scalar, which is immutable
                changed[place] = value
                other = fits({**values_of(found), name: changed})
                steps += 1
                if other is not None:
                    found = other
                    break
            if steps > STEPS:
                return found
    return found


def _whole(values: Arrays) -> Iterator[Arrays]:
    """Yield the values with all numbers rounded, to integers first."""
    for digits in (0, 1):
        yield {k: np.asarray(np.round(v, digits) + 0.0) if v.dtype.kind == "f" else v for k, v in values.items()}


def _nearer(value: Any) -> list[Any]:
    plain: bool | int | float = value.item()
    if isinstance(plain, bool):
        return [False] if plain else []
    if isinstance(plain, int):
        return [v for v in (0, 1, 2, -1) if abs(v) < abs(plain)]
    return [v for v in _SIMPLE if v != plain and not (plain.is_integer() and _cost(v) >= _cost(plain))]


def _cost(value: float) -> int:
    return _SIMPLE.index(value) if value in _SIMPLE else len(_SIMPLE)


# -- words


def _described(found: Difference) -> Counterexample:
    """Return a difference between both sides as sizes, choices and values that a reader can check."""
    env, made, rule = found.env, found.made, found.env.rule
    shapes = {v: tuple(env.tok[t, x] for t in ts for x in env.labels[stem(t)]) for v, ts in rule.vars.items()}
    values = found.values or {v: np.ones(sizes) for v, sizes in shapes.items()}
    choices = {} if made is None else {f: op for f, (op, _) in sorted(made.match.metas.items())}
    choices |= {k: str(v) for k, v in sorted(env.params.items())}
    choices |= dict(_attributes(env))
    if found.index is None:
        left, right, failed = "well formed", found.cause, RIGHT
        results: tuple[Any, Any] = (None, None)
        if made is not None:
            results = (np.asarray(evaluate(made.lhs, values)[found.root]).tolist(), None)
    else:
        a, b = (x if x.dtype.kind != "f" else x + 0.0 for x in map(np.asarray, found.results))  # no -0.0
        left, right, results = str(a[found.index]), str(b[found.index]), (a.tolist(), b.tolist())
        failed = ""
    return Counterexample(
        inputs={k: values[k].tolist() for k in rule.vars},
        shapes={k: values[k].shape for k in rule.vars},
        choices=choices,
        root=found.root,
        index=found.index,
        left=left,
        right=right,
        graphs=("", "") if made is None or not made.rhs else _texts(made.inputs, made.lhs, made.rhs, found.root),
        seed=found.seed,
        undefined=found.undefined,
        results=results,
        code=snippet(rule, made, values, found.root, found.cause and f"the {RIGHT} side {found.cause}"),
        failed=failed,
    )


def _texts(inputs: Mapping[str, Node], lhs: tuple[Node, ...], rhs: tuple[Node, ...], root: int) -> tuple[str, str]:
    left, right = (print_graph(Graph(tuple(inputs.values()), (side[root],))) for side in (lhs, rhs))
    return left, right


def _attributes(env: Env) -> Iterator[tuple[str, str]]:
    """Yield attributes by name; for a role of several axes the name has the number of the axis."""
    names = list(dict.fromkeys(name for name, _ in env.attr))
    for name in names:
        values = [v for (n, _), v in env.attr.items() if n == name]
        for i, value in enumerate(values):
            yield (name if len(values) == 1 else f"{name}@{i}"), str(value)
