"""Shapes of terms on named axes, generic over the number type.

A shape is {label: size}; a label is one axis of a role; a missing label means size 1.  Where a term is an entry of the
op table, the entry's type rule gives the sizes of the axes that it acts on, and their conditions.  This module adds the
treatment of names: axes over which an op is mapped (one size in all operands), and axes that a broadcast adds, a `ren`
renames or a fold binds.  The same function serves the matcher (Python ints) and the prover (symbols).  `wf` collects
the conditions under which the term is well formed (every access in bounds): a premise on the left side, a proof goal on
the right side.
"""

from __future__ import annotations

from math import prod
from typing import Any

from rewrites.language.entries import NUMBER, POSITION, TermEntry, entry_of
from rewrites.language.named import INTEGERS, Env, NamedShape, Num, labels_of, per_axis
from rewrites.language.term import Rule, Term, halves, stem
from superopt.ir.ops.record import collecting
from superopt.ir.ops.table import lookup
from superopt.ir.types import TensorType

_KEPT = 10_000
"""Shapes that are kept of one rule at most, some megabytes; ResNet-50 and its e-graph have 900 of all rules."""


def shape(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape] | None = None) -> NamedShape:
    """Named shape of a term; appends its well-formedness conditions to `wf`.

    Over numbers a shape is a function of the numbers of axes, sizes and attributes: it is kept with the rule, since
    one network has the same sizes at many sites.

    Args:
        t: the term.
        env: axes, sizes and attributes.
        wf: gets the conditions.
        done: shapes of other terms at the same instance, whose conditions are known.
    """
    if env.arith is not INTEGERS:
        return _shape(t, env, wf, {} if done is None else done)
    known = env.rule.fact(_known)
    axes = [label for own in env.labels.values() for label in own]
    key = t, tuple([(r, len(own)) for r, own in env.labels.items()]), env.numbers()
    found = known.get(key)
    if found is None:
        conditions: list[Any] = []
        sizes = _shape(t, env, conditions, {})
        place = {label: i for i, label in enumerate(axes)}
        found = all(conditions), tuple([(place[label], n) for label, n in sizes.items()])
        if len(known) >= _KEPT:
            known.clear()
        known[key] = found
    met, sized = found
    if not met:
        wf.append(False)
    return {axes[i]: n for i, n in sized}


def _known(rule: Rule) -> dict[Any, tuple[bool, tuple[tuple[int, int], ...]]]:
    """Cache of a rule's shapes, filled by `shape`.

    It maps a term, axes and numbers to whether the conditions hold, and to the sizes by the place of their axis.
    """
    return {}


def _shape(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    """The shape of a term; shared subterms are visited once."""
    found = done.get(t)
    if found is None:
        found = done[t] = _infer(t, env, wf, done)
    return found


def _infer(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    op = t.op
    if op == "var":
        return {label: env.tok[(tok, label)] for tok in env.rule.vars[t["name"]] for label in env.labels[stem(tok)]}
    if op == "lit":
        return {}
    if op == "fold":
        return _fold(t, env, wf)
    if op == "stack":
        bound = env.labels[env.rule.owner[t["bound"]]]
        new = zip(labels_of(env, t["over"]), bound, strict=True)
        return {**_fold(t, env, wf), **{label: env.look(t["bound"], axis) for label, axis in new}}
    inner = [_shape(a, env, wf, done) for a in t.args]
    entry = entry_of(t, env, inner, {})
    if entry is not None:
        return _typed(entry, env, inner, wf)
    first = inner[0]
    if op in ("inverse", "solve"):
        return _linear(t, env, inner, wf)
    if op in ("view", "lay"):
        return first
    if op == "ew":
        for c in inner[1:]:
            wf += [c[label] == first[label] for label in first if c[label] is not first[label]]
        return first
    if op == "bcast":
        return {**first, **_broadcast_sizes(t, env, wf, done)}
    if op == "expand":
        new_sizes = {label: size for label, (size,) in per_axis(t, env)}
        wf += [size >= 0 for size in new_sizes.values()]
        return {**first, **new_sizes}
    if op == "unit":
        return {**first, **dict.fromkeys(labels_of(env, t["over"]), 1)}
    pairs = dict(zip(*(env.labels[r] for r in t["over"]), strict=True))
    if op == "diag":
        return {**first, **{new: first[old] for old, new in pairs.items()}}
    if op == "ren":
        return {pairs.get(label, label): n for label, n in first.items()}
    raise ValueError(f"no shape rule for {op}")


def _typed(entry: TermEntry, env: Env, inner: list[NamedShape], wf: list[Num]) -> NamedShape:
    """Sizes from the entry's type rule, and those of the axes over which the entry is mapped."""
    wf += entry.conditions
    out: NamedShape = {}
    for acted, sizes in zip(entry.operands, inner, strict=True):
        for label, n in sizes.items():
            if label in entry.out:
                out.setdefault(label)  # its place; its size comes below
            elif label in acted or label in entry.summed:
                continue
            elif label not in out:
                out[label] = n
            elif out[label] is not n:
                wf.append(out[label] == n)
    for label in entry.summed:
        wf.append(inner[0][label] == inner[1][label])
    types = [
        TensorType(tuple([sizes.get(x, 1) for x in acted]), POSITION if j in entry.indices else NUMBER)
        for j, (acted, sizes) in enumerate(zip(entry.operands, inner, strict=True))
    ]
    types += [TensorType((), POSITION)] * len(entry.positions)
    with collecting(wf, env.arith.max):
        made = lookup(entry.op).type(tuple(types), entry.attrs)
    assert isinstance(made, TensorType)
    for label, size in zip(entry.out, made.shape, strict=True):
        if label is not None:
            out[label] = env.arith.simplify(size)
    return out


def _linear(t: Term, env: Env, inner: list[NamedShape], wf: list[Num]) -> NamedShape:
    """Sizes of an inverse, or of a solution: of all axes but the rows of the matrix, which has as many columns."""
    matrix, *right = inner
    rows, columns = (labels_of(env, roles) for roles in halves(t))
    wf.append(prod(matrix.get(x, 1) for x in rows) == prod(matrix.get(x, 1) for x in columns))
    out = {label: n for label, n in matrix.items() if not right or label not in rows}
    for label, n in (item for sizes in right for item in sizes.items()):
        if label in matrix:
            wf.append(n == matrix[label])
        elif label not in rows:
            out[label] = n
    return out


def _fold(t: Term, env: Env, wf: list[Num]) -> NamedShape:
    """The shape of the body, which is one for all values of the index.

    It is enough that both ends are well formed and of one shape where sizes are affine in the index, which the prover
    checks.
    """
    labels = env.labels[env.rule.owner[t["bound"]]]
    first = shape(t.args[0], env.with_attrs({(t["idx"], label): 0 for label in labels}), wf)
    ends = {(t["idx"], label): env.look(t["bound"], label) - 1 for label in labels}
    last = shape(t.args[0], env.with_attrs(ends), wf)
    wf += [first[label] == n for label, n in last.items() if first[label] is not n]
    return first


def _broadcast_sizes(t: Term, env: Env, wf: list[Num], done: dict[Term, NamedShape]) -> NamedShape:
    like: NamedShape = {}
    for y in t["like"]:
        like.update(_shape(y, env, wf, done))  # y is an operand beside this one
    tokens = t["size"] or t["over"]
    return {
        label: like[label] if label in like else env.tok[(token, label)]
        for r, token in zip(t["over"], tokens, strict=True)
        for label in env.labels[r]
    }
