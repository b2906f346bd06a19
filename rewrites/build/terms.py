"""Building right sides: terms to physical tensors, in an e-graph or as IR nodes.

Bottom-up over the right side; a value is (node, layout).  Positions of labels *are* the dimension numbers, so products
and convolutions take operands in any order; elementwise ops adopt the layout of one operand; `sigma` and `maxi` are
unrolled over the axes of their role.  The layout of the root is passed down as a hint, the result is arranged to it
and must have exactly its type.  Ops with nothing to do are not emitted.

Products and convolutions carry precision and preferred_element_type of the matched ones; literals have the rule's
dtype at the site.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from rewrites.build.arrange import BuildError, Built, arrange, broadcast, labels_in, ordered
from rewrites.build.ops import OPS
from rewrites.build.target import IRTarget, Target
from rewrites.language.named import Env, shape
from rewrites.language.term import Rule, Term, names_in, windows
from rewrites.match.labels import Layout
from rewrites.match.matching import Match, matches
from rewrites.match.space import IRSpace
from superopt.ir.graph import Node
from superopt.ir.types import FLOATS


class Builder:
    """Builds terms of one match."""

    def __init__(self, match: Match, target: Target) -> None:
        self.match, self.target = match, target
        self.rule, self.env = match.rule, match.env
        self.precision, self.preferred = match.carried
        self._memo: dict[Any, Built] = {}
        self._depends: dict[Term, frozenset[str]] = match.rule.cache.setdefault("depends", {})

    def go(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """The value of a term; `hint` is the layout that its reader would like."""
        used = self.depends(t)
        key = (t, tuple(env.attr[k] for k in sorted(env.attr, key=repr) if k[0] in used)) if used else t
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.make(t, hint, env)
        return found

    def make(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a term anew."""
        op = t.op
        if op == "var":
            return self._var(t["name"])
        if op == "lit":
            return self.literal(t, env), ()
        if op == "view":
            return self.go(t.args[0], hint, env)
        if op == "ew":
            return self._elementwise(t, hint, env)
        if op == "bcast":
            return self._bcast(t, hint, env)
        if op == "fold":
            return self._fold(t, hint, env)
        return OPS[op](self, t, hint, env)

    def depends(self, t: Term) -> frozenset[str]:
        """Fold indices that a term mentions."""
        found = self._depends.get(t)
        if found is None:
            found = frozenset[str]().union(*[self.depends(a) for a in t.args])
            if self.rule.indices:
                own = [names_in(e) for _, exprs in windows(t) for e in exprs if e is not None]
                own += [names_in(t["value"])] if t.op == "lit" else []
                found |= frozenset[str]().union(*own) & self.rule.indices
            self._depends[t] = found
        return found

    def sizes(self, t: Term, env: Env) -> dict[int, int]:
        """Named shape of a term."""
        return shape(t, env, [])

    def literal(self, t: Term, env: Env) -> Any:
        """A scalar of the rule's dtype."""
        e, dtype = t["value"], self.match.dtype
        value = e[1] if e[0] == "n" else env.value(e)
        if isinstance(value, bool):
            return self.target.mk("literal", value=value, dtype="bool")
        return self.target.mk("literal", value=float(value) if dtype in FLOATS else int(value), dtype=dtype)

    def zero(self) -> Any:
        """The scalar 0 of the rule's dtype."""
        return self.target.mk("literal", value=0.0 if self.match.dtype in FLOATS else 0, dtype=self.match.dtype)

    def _var(self, name: str) -> Built:
        value, lay = self.match.vars[name]
        if lay and not self.target.shape(value):  # a scalar that stands for its broadcast
            sizes = tuple(math.prod([n for _, n in axis]) for axis in lay)
            value = self.target.mk("broadcast_in_dim", value, shape=sizes, broadcast_dimensions=())
        return value, lay

    def _elementwise(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Adopt one operand's layout: in the hint's order if there is one, else the largest."""
        target = self.target
        kids = [None if a.op in ("bcast", "lit") else self.go(a, hint, env) for a in t.args]
        full = [kid for kid in kids if kid is not None]
        if full:
            lay = max(full, key=lambda kid: (_follows(kid[1], hint), math.prod(target.shape(kid[0]))))[1]
        else:
            sizes: dict[int, int] = {}
            for a in t.args:
                sizes.update(self.sizes(a, env))
            lay = ordered(sizes, hint)
        out: list[Any] = []
        for a, kid in zip(t.args, kids, strict=True):
            if kid is None:
                inner = a.args[0] if a.op == "bcast" else a
                out.append(broadcast(target, self.go(inner, None, env), lay))
            else:
                out.append(arrange(target, kid, lay)[0])
        op, attrs = self.match.metas.get(t["f"], (t["f"], t["params"]))
        return target.mk(op, *out, **dict(attrs)), lay

    def _bcast(self, t: Term, hint: Layout | None, env: Env) -> Built:
        inner = self.go(t.args[0], None, env)
        sizes = self.sizes(t, env)
        if hint is not None:
            lay = ordered(sizes, hint)
        else:
            have = set(labels_in(inner[1]))
            lay = (*inner[1], *[((label, n),) for label, n in sizes.items() if label not in have])
        return broadcast(self.target, inner, lay), lay

    def _fold(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Unroll over the box of the role's axes."""
        op = "add" if t["kind"] == "sum" else "max"
        total: Built | None = None
        for part in self.unrolled(t, hint, env):
            if total is None:
                total = part
            else:
                value, lay = total
                total = self.target.mk(op, value, arrange(self.target, part, lay)[0]), lay
        if total is None:
            raise BuildError(f"rule {self.rule.name}: an empty {op} cannot be unrolled")
        return total

    def unrolled(self, t: Term, hint: Layout | None, env: Env) -> Iterator[Built]:
        """The body at every point of the box of the role's axes, row-major."""
        labels = env.labels[self.rule.owner[t["bound"]]]
        for point in itertools.product(*[range(env.look(t["bound"], label)) for label in labels]):
            at = {(t["idx"], label): k for label, k in zip(labels, point, strict=True)}
            yield self.go(t.args[0], hint, env.with_attrs(at))


def _follows(lay: Layout, hint: Layout | None) -> bool:
    if hint is None:
        return False
    have = labels_in(lay)
    held = set(have)
    return have == [label for label in labels_in(hint) if label in held]


def build(match: Match, target: Target) -> tuple[Any, ...]:
    """The right sides at a site, one value per root, each of exactly the root's type.

    Raises:
        BuildError: a right side cannot be built here, or has another type than the root.
    """
    builder = Builder(match, target)
    out: list[Any] = []
    for t, (root, lay) in zip(match.rule.rhs, match.roots, strict=True):
        value, _ = arrange(target, builder.go(t, lay, match.env), lay)
        want, got = (target.shape(root), target.dtype(root)), (target.shape(value), target.dtype(value))
        if want != got:
            raise BuildError(f"rule {match.rule.name}: the root is {want}, the right side {got}")
        out.append(value)
    return tuple(out)


def expand_macro(rule: Rule, node: Node) -> Node:
    """The right side of a macro rule for one op node, in the node's physical layouts; same type.

    Raises:
        BuildError: the rule's left side does not match the node.
    """
    target = IRTarget()
    for match in matches(rule, IRSpace(verbatim=True), node, prefer=False):
        return build(match, target)[0]
    raise BuildError(f"rule {rule.name} does not match {node!r}")
