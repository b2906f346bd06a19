"""Rule instances as graphs: both sides of a rule with everything bound, after all side conditions were checked.

These checks make an instance true.  The rule is proved for all sizes and tensors that meet its premises; here the
premises are evaluated with concrete numbers, by the same functions that the prover evaluates with symbols.  Both sides
are then built from the bindings alone; the origin of the instance does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rewrites.build.arrange import arrange
from rewrites.build.target import IRTarget
from rewrites.build.terms import Builder
from rewrites.language.named import Env
from rewrites.language.names import ELEMENTWISE
from rewrites.language.shapes import shape
from rewrites.language.term import Rule, stem
from rewrites.match.labels import Layout
from rewrites.match.matching import Match
from superopt.errors import SuperoptError
from superopt.ir.graph import Node
from superopt.ir.types import FLOATS, INTEGERS


class NotAnInstance(Exception):
    """Raised for bindings that are not an instance of the rule; the message says why."""


def sides(
    rule: Rule,
    env: Env,
    tensors: Mapping[str, tuple[Node, Layout]],
    metas: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]],
    roots: Sequence[Layout],
    dtype: str,
    carried: tuple[Any, Any],
) -> list[tuple[Node, Node]]:
    """Left and right side of every equation of a rule at one place, each pair of one type.

    Raises:
        NotAnInstance: a premise does not hold there, or the bindings do not fit the rule.
    """
    _check_names(rule, env, tensors, metas, roots, dtype)
    for name, (node, lay) in tensors.items():
        _check_tensor(rule, env, name, node, lay, dtype)
    _check_premises(rule, env)
    match = Match(rule, env, dict(tensors), dict(metas), (), dtype, carried)
    target, out = IRTarget(), list[tuple[Node, Node]]()
    left, right = Builder(match, target), Builder(match, target)
    for lhs, rhs, lay in zip(rule.lhs, rule.rhs, roots, strict=True):
        try:
            pair = [arrange(target, b.go(t, lay, env), lay)[0] for b, t in ((left, lhs), (right, rhs))]
        except (SuperoptError, KeyError, ValueError, IndexError) as error:
            raise NotAnInstance(f"a side cannot be built: {error}") from error
        if pair[0].types != pair[1].types:
            raise NotAnInstance(f"the sides have the types {pair[0].type} and {pair[1].type}")
        out.append((pair[0], pair[1]))
    return out


def _check_names(
    rule: Rule,
    env: Env,
    tensors: Mapping[str, Any],
    metas: Mapping[str, tuple[str, Any]],
    roots: Sequence[Any],
    dtype: str,
) -> None:
    """Raise unless an instance binds just the tensors, roles and attributes of its rule, with a sort that fits."""
    if rule.given or rule.dtype:
        raise NotAnInstance("the rule has premises about values, or is not about floats")
    if set(tensors) != set(rule.vars):
        raise NotAnInstance(f"it binds {sorted(tensors)}, the rule has {sorted(rule.vars)}")
    if set(env.labels) != set(rule.roles) or len(roots) != len(rule.lhs):
        raise NotAnInstance("its roles or roots are not those of the rule")
    for role, labels in env.labels.items():
        if len(set(labels)) != len(labels) or (role not in rule.many and len(labels) != 1):
            raise NotAnInstance(f"role {role} has the axes {list(labels)}")
    used = [label for labels in env.labels.values() for label in labels]
    if len(set(used)) != len(used):
        raise NotAnInstance("one axis has two roles")
    if dtype not in FLOATS:
        raise NotAnInstance(f"it is of dtype {dtype}, the rule is proved for floats")
    if set(env.params) != set(rule.params) or any(value < 1 for value in env.params.values()):
        raise NotAnInstance(f"its parameters are {dict(env.params)}")
    if any(n < 0 for n in env.tok.values()):
        raise NotAnInstance("a size is negative")
    for name, kinds in rule.metas.items():
        op = metas.get(name, ("", ()))[0]
        known = ELEMENTWISE.get(op) == kinds if isinstance(kinds, int) else op in [f"reduce_{kind}" for kind in kinds]
        if not known:
            raise NotAnInstance(f"{name} stands for {op or 'nothing'}")


def _check_tensor(rule: Rule, env: Env, name: str, node: Node, lay: Layout, dtype: str) -> None:
    kind = rule.kinds[name]
    allowed = {"bool": ("bool",), "int": INTEGERS}.get(kind, (dtype,))
    if len(node.types) != 1 or node.dtype not in allowed:
        raise NotAnInstance(f"{name} is {', '.join(map(str, node.types))}, not of kind {kind}")
    wanted = {label: env.tok[tok, label] for tok in rule.vars[name] for label in env.labels[stem(tok)]}
    held = [entry for axis in lay for entry in axis]
    if len({label for label, _ in held}) != len(held):
        raise NotAnInstance(f"{name} holds one axis twice")
    for label, n in held:
        if wanted.get(label, n if n == 1 else -1) != n:
            raise NotAnInstance(f"axis {label} of {name} has {n} elements, the rule says {wanted.get(label)}")
    for label, n in wanted.items():
        if n != 1 and label not in dict(held):
            raise NotAnInstance(f"{name} lacks axis {label} of size {n}")
    have = tuple([math.prod([n for _, n in axis]) for axis in lay])
    if node.shape != have and node.shape != ():
        raise NotAnInstance(f"{name} is {node.type}, its axes have the sizes {have}")


def _check_premises(rule: Rule, env: Env) -> None:
    wf: list[Any] = []
    try:
        unmet = env.unmet()
        if unmet is not None:
            raise NotAnInstance(f"the condition {unmet} does not hold")
        lefts = [shape(t, env, wf) for t in rule.lhs]
        if not all(wf):
            raise NotAnInstance("the left side is not well formed")
        rights = [shape(t, env, wf) for t in rule.rhs]
    except (KeyError, ZeroDivisionError, ValueError) as error:
        raise NotAnInstance(f"a size or attribute is missing or wrong: {error}") from error
    if not all(wf):
        raise NotAnInstance("the right side is not well formed")
    for left, right in zip(lefts, rights, strict=True):
        if {k: n for k, n in left.items() if n != 1} != {k: n for k, n in right.items() if n != 1}:
            raise NotAnInstance("the sides have different shapes")
