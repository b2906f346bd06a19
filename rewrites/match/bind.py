"""From walks to matches: labels are assigned to roles, and the conditions of the rule are checked.

The requirements of the left side on each role are computed once per rule (`MatchPlan`).  The *signature* of a role is
the set of tensors that hold it and of pattern ops that act on it; a label's signature is the set of tensors that hold
it and what the pattern ops did to it.  A role can take a label when their signatures are the same: the answer is a
table look-up, not a search over permutations.  Where several roles fit (`*p` and `n` of a merge), every choice is a
valid and different rewrite.  A label that no role takes may be dropped only where it is inert: size 1 in every tensor,
the root included, and untouched by attributes.

A role may live in *parts* of the left side that nothing connects (the free axes of two separate products).  It has one
group of labels per part; only the rule ties them, so they are paired here: by equal sizes where the size token is the
same, then by order.  A single-axis role without any axis is an absent axis of size 1.  The last step checks that the
*named* shape of the left side, computed from the bindings alone, is the *physical* shape of the roots.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rewrites.language.named import Env, derived_labels
from rewrites.language.names import WINDOW_DEFAULTS
from rewrites.language.shapes import shape
from rewrites.language.show import unmet
from rewrites.language.term import Rule, Term, TokenExpr, halves, roles_of, stem, subterms, touched, windows
from rewrites.match.flow import FlowMarks, Mark
from rewrites.match.labels import Labels, Layout
from rewrites.match.walk import WalkState


@dataclass(frozen=True, slots=True)
class Acts:
    """Effects of one pattern op: roles it acts on as a set, roles with attributes, tensors below it."""

    over: frozenset[str]
    windows: Mapping[str, tuple[TokenExpr | None, ...]]
    under: frozenset[str]


@dataclass(frozen=True, slots=True)
class MatchPlan:
    """Signatures of the left side.

    Attributes:
        roles: roles that occur on the left side; of many-axis roles with equal signatures only the first.
        holders: role -> tensors of the left side that hold it.
        parts: role -> tensors tied together by the left side, one set per unconnected part.
        token: tensor -> role -> size token.
        acts: op term of the left side -> its effects.
    """

    roles: tuple[str, ...]
    holders: Mapping[str, frozenset[str]]
    parts: Mapping[str, tuple[frozenset[str], ...]]
    token: Mapping[str, Mapping[str, str]]
    acts: Mapping[Term, Acts]


def _plan(rule: Rule) -> MatchPlan:
    terms = subterms(rule.lhs)
    used = {t["name"] for t in terms if t.op == "var"}
    present = {r for t in terms for r in (*roles_of(rule.vars, t), *touched(t))}
    roles = tuple(r for r in rule.roles if r in present)
    return MatchPlan(
        roles=_distinct(rule, roles),
        holders={r: frozenset(v for v in used if r in map(stem, rule.vars[v])) for r in rule.roles},
        parts={r: _parts(rule, r) for r in roles},
        token={v: {stem(t): t for t in tokens} for v, tokens in rule.vars.items()},
        acts={t: _acts(t) for t in terms},
    )


def _distinct(rule: Rule, roles: tuple[str, ...]) -> tuple[str, ...]:
    """Drop a many-axis role that has the same tensors and is acted on by the same ops as an earlier one."""
    terms = subterms(rule.lhs + rule.rhs)
    seen: set[tuple[object, ...]] = set()
    out: list[str] = []
    for r in roles:
        tokens = tuple(frozenset(t for t in ts if stem(t) == r) != frozenset() for ts in rule.vars.values())
        plain = not any(r in dict(windows(t)) for t in terms) and len({t for t in rule.sizes if stem(t) == r}) == 1
        signature = (tokens, tuple(r in t.get("over", ()) for t in terms))
        if r in rule.many and plain and r not in rule.extras:
            if signature in seen:
                continue
            seen.add(signature)
        out.append(r)
    return tuple(out)


def _acts(t: Term) -> Acts:
    """Return the effects of a term's op."""
    under = frozenset(u["name"] for u in subterms((t,)) if u.op == "var")
    return Acts(frozenset(t.get("over", ())), dict(windows(t)), under)


def _parts(rule: Rule, role: str) -> tuple[frozenset[str], ...]:
    """Tensors whose axes of a role the left side itself ties together."""
    parent: dict[str, str] = {}

    def find(x: str) -> str:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    def visit(t: Term) -> str | None:
        if t.op == "var":
            name: str = t["name"]
            return find(name) if role in map(stem, rule.vars[name]) else None
        below = [c for c in map(visit, t.args) if c is not None]
        for c in below[1:]:
            parent[find(c)] = find(below[0])
        if not below or (t.op in ("dot", "red", "conv", "take", "segsum") and role in t["over"]):
            return None
        return None if t.op == "solve" and role in halves(t)[0] else below[0]

    for root in rule.lhs:
        visit(root)
    groups: dict[str, set[str]] = {}
    for name in list(parent):
        groups.setdefault(find(name), set()).add(name)
    return tuple(frozenset(g) for g in groups.values())


SETS = frozenset({"dot", "red", "concat", "bcast", "rev", "cum", "take", "iota", "segsum", "inverse", "solve"})
"""Pattern ops that act on roles as sets; the others carry attributes per axis."""

Resolved = dict[int, Any]
"""label -> int (acted on as a set, at this size) or (values, differs from neutral)"""


@dataclass(slots=True)
class Sorted:
    """A walk with labels resolved and candidate roles per label."""

    sizes: dict[str, dict[int, int]]
    layouts: dict[str, Layout]
    roots: list[Layout]
    marks: list[tuple[Term, Resolved]]
    holders: dict[int, frozenset[str]]
    candidates: dict[int, list[str]]
    dropped: frozenset[int]
    root_size: dict[int, int]


def resolve(s: Labels, marks: FlowMarks, op: str) -> Resolved | None:
    """Marks on the labels that are left after unions and splits; None where a split label carries attributes."""
    out: Resolved = {}
    for label, mark in marks.items():
        if isinstance(mark, tuple):
            label = s.find(label)
            if label not in s.split:
                out[label] = mark
            elif mark[1]:
                return None
        else:
            parts = s.axis(((label, mark),))
            if parts is None:
                return None
            out.update(parts)
    return out


def sort_labels(rule: Rule, roots: list[Layout], s: WalkState) -> Sorted | str:
    """Candidate roles for every label, or the reason why there is no match."""
    names = s.labels
    if not names.distinct():
        return "one axis would stand twice in a tensor"
    layouts: dict[str, Layout] = {}
    sizes: dict[str, dict[int, int]] = {}
    for v, (_, raw) in s.vars.items():
        lay = names.layout(raw)
        if lay is None:
            return "axes do not nest"
        layouts[v] = lay
        if v not in s.wild:
            sizes[v] = {label: n for axis in lay for label, n in axis}
    marks: list[tuple[Term, Resolved]] = []
    for t, found in s.happened():
        resolved = resolve(names, found, t.op)
        if resolved is None:
            return "an op acts on part of a merged axis"
        marks.append((t, resolved))
    root_layouts: list[Layout] = []
    root_size: dict[int, int] = {}
    for raw in roots:
        lay = names.layout(raw)
        if lay is None:
            return "axes do not nest"
        root_layouts.append(lay)
        for axis in lay:
            for label, n in axis:
                root_size[label] = max(n, root_size.get(label, 0))
    acted = {label for _, m in marks for label, mark in m.items() if isinstance(mark, int) or mark[1]}
    labels = sorted({label for held in sizes.values() for label in held} | acted)
    holders = {label: frozenset(v for v, held in sizes.items() if label in held) for label in labels}
    out = Sorted(sizes, layouts, root_layouts, marks, holders, {}, frozenset(), root_size)
    dropped: set[int] = set()
    signature = Signatures(rule, out, s.wild)
    for label in labels:
        roles = signature.candidates(label)
        if roles:
            out.candidates[label] = roles
        elif signature.inert(label):
            dropped.add(label)
        else:
            return "an axis has no role"
    out.dropped = frozenset(dropped)
    return out


class Signatures:
    """Comparison of the labels of a walk with the roles of one rule."""

    def __init__(self, rule: Rule, found: Sorted, wild: frozenset[str]) -> None:
        self.plan = plan = rule.fact(_plan)
        self.found = found
        self.many = rule.many
        self.holders: Mapping[str, frozenset[str]] = plan.holders
        self.parts: Mapping[str, tuple[frozenset[str], ...]] = plan.parts
        self.wild_roles: frozenset[str] = frozenset()
        if wild:  # a scalar that stands for its broadcast belongs to whichever of its roles have axes
            self.holders = {r: v - wild for r, v in plan.holders.items()}
            self.parts = {r: tuple(p - wild for p in ps if p - wild) for r, ps in plan.parts.items()}
            self.wild_roles = frozenset(r for r, v in plan.holders.items() if v & wild and r in rule.many)

    def candidates(self, label: int) -> list[str]:
        """Roles that the label can play, the most fitting first."""
        fitting: list[tuple[int, str]] = []
        for r in self.plan.roles:
            penalty = self._penalty(label, r)
            if penalty is not None:
                fitting.append((penalty, r))
        if len(fitting) < 2:
            return [r for _, r in fitting]
        fitting.sort()
        held = self.found.holders[label]
        # drop redundant choices: roles that fit only because the axis has size 1, many-axis roles
        # with attributes that are neutral here, and many-axis roles of a scalar that stands for its broadcast
        exact = [(p, r) for p, r in fitting if held <= self.holders[r]] or fitting
        if exact[0][0] == 0:
            exact = [(p, r) for p, r in exact if p == 0 or r not in self.many]
        roles = [r for _, r in exact]
        return [r for r in roles if r not in self.wild_roles] or roles

    def _penalty(self, label: int, r: str) -> int | None:
        """How far the label is from the role's signature; None when it cannot play the role."""
        found = self.found
        holders = self.holders[r]
        held = found.holders[label]
        mine = held & holders
        if not holders and held:
            return None
        for v in held - holders:
            if found.sizes[v][label] != 1:
                return None
        if holders and mine != holders and mine not in self.parts[r]:
            return None
        penalty = 0
        for t, marks in found.marks:
            acts = self.plan.acts[t]
            mark: Mark | None = marks.get(label)
            listed = r in acts.over
            if t.op in SETS or isinstance(mark, int) or (mark is None and listed):
                hit = isinstance(mark, int)
                if hit != listed and (hit or mine & acts.under or not holders):
                    return None
            elif mark is not None and mark[1] and r not in acts.windows:
                return None
            elif r in acts.windows and (mark is None or not mark[1]) and mine & acts.under:
                if t.op == "conv":  # a window axis is never a plain shared axis
                    return None
                penalty += 1
        return penalty + (0 if mine == held else 1)

    def inert(self, label: int) -> bool:
        """Whether an axis without a role carries nothing: size 1 everywhere, and no attribute acts on it."""
        found = self.found
        if found.root_size.get(label, 1) != 1 or any(found.sizes[v][label] != 1 for v in found.holders[label]):
            return False
        return all(neutral(t, marks.get(label)) is not False for t, marks in found.marks)


def neutral(t: Term, mark: Mark | None) -> bool | None:
    """Whether an op leaves an axis of size 1 as it is; None where it does not touch it."""
    if mark is None or isinstance(mark, int):
        return True if t.op == "bcast" and mark is not None else None
    values, acts = mark
    return values[1] == values[2] == 0 if t.op == "conv" else not acts


ABSENT = 1_000_000
"""Labels from here on stand for axes that are absent (size 1) or made by `split` and `merge`."""
CHOICES = 4096


@dataclass(frozen=True, slots=True)
class Binding:
    """Labels of every role, sizes, attributes, and layouts in these labels.

    Attributes:
        env: the instance of the rule.
        layouts: tensor -> layout of its class's natural axes.
        roots: layouts of the roots' natural axes.
    """

    env: Env
    layouts: Mapping[str, Layout]
    roots: tuple[Layout, ...]


def bindings(rule: Rule, found: Sorted, s: WalkState) -> Iterator[Binding | str]:
    """All complete bindings of a sorted walk; a string is the reason why one choice of roles failed."""
    order = sorted(found.candidates, key=lambda label: (len(found.candidates[label]), label))
    choices = itertools.product(*[found.candidates[label] for label in order])
    for choice in itertools.islice(choices, CHOICES):
        played: dict[str, list[int]] = defaultdict(list)
        for label, r in sorted(zip(order, choice, strict=True)):
            played[r].append(label)
        yield from _Binder(rule, found, s).bind(played)


class _Binder:
    """One choice of roles."""

    def __init__(self, rule: Rule, found: Sorted, s: WalkState) -> None:
        self.rule, self.plan, self.found, self.s = rule, rule.fact(_plan), found, s
        self.renamed: dict[int, int] = {}
        self.labels: dict[str, list[int]] = {}
        self.tok: dict[tuple[str, Any], int] = {}
        self.attr: dict[tuple[str, Any], int] = {}

    def name(self, label: int) -> int:
        """The label after pairing."""
        return self.renamed.get(label, label)

    def bind(self, played: Mapping[str, list[int]]) -> Iterator[Binding | str]:
        """Complete one choice, or say why it fails."""
        for step in (lambda: self._pair(played), self._sizes, self._broadcast_sizes, self._attributes):
            reason = step()
            if reason:
                yield reason
                return
        binding = self._binding({})
        wf: list[Any] = []
        try:
            shapes = [shape(t, binding.env, wf) for t in self.rule.lhs]
        except KeyError as error:
            yield f"not bound: {error}"
            return
        if not all(wf):
            yield "the left side is not well formed here"
        elif not all(map(_same_shape, shapes, binding.roots)):
            yield "the named shape is not the physical shape"
        else:
            yield from self._conditions(binding)

    def _conditions(self, binding: Binding) -> Iterator[Binding | str]:
        """Check the `if` conditions for each choice of the free parameters."""
        params = self.rule.params
        reason = ""
        passed = False
        for values in itertools.product(*params.values()):
            env = binding.env
            if params:
                env = Env(self.rule, env.labels, env.tok, env.attr, dict(zip(params, values, strict=True)))
            try:
                failed = env.unmet()
            except KeyError as error:
                reason = f"not bound: {error}"
                continue
            if failed is not None:
                reason = unmet(self.rule, failed)
            else:
                passed = True
                yield Binding(env, binding.layouts, binding.roots)
        if not passed:
            yield reason

    def _pair(self, played: Mapping[str, list[int]]) -> str | None:
        """Identify the labels of each role across unconnected parts; a string is the reason of failure."""
        rule, plan = self.rule, self.plan
        for r in rule.roles:
            if r in rule.derived:
                continue
            holders = plan.holders[r] - self.s.wild
            groups: dict[frozenset[str], list[int]] = defaultdict(list)
            for label in played.get(r, ()):
                groups[self.found.holders[label] & holders].append(label)
            full = groups.pop(holders, [])
            if groups:
                reason = self._pair_parts(r, groups, full)
                if reason:
                    return reason
            if r in plan.roles and r not in rule.many:
                if not full and plan.holders[r]:
                    full = [ABSENT + len(self.labels)]
                if len(full) != 1:
                    return f"the single axis {r} has {len(full)} axes"
            self.labels[r] = sorted(full)
        self.labels.update(derived_labels(rule, self.labels, itertools.count(2 * ABSENT)))
        return None

    def _pair_parts(self, r: str, groups: dict[frozenset[str], list[int]], full: list[int]) -> str | None:
        """Pair the axes of the parts into which a role is split; return why they do not fit, or None."""
        rule = self.rule
        parts = [p - self.s.wild for p in self.plan.parts[r]]
        many = r in rule.many
        if len({len(g) for g in groups.values()}) != 1 or (full and not many):
            return "parts of a role have different numbers of axes"
        if set(groups) != set(parts) and (many or not set(groups) <= set(parts)):
            return "a part of a role is missing"
        keys = sorted(groups, key=lambda k: min(groups[k]))
        first, lead = keys[0], groups[keys[0]]
        sizes, token = self.found.sizes, self.plan.token
        for key in keys[1:]:
            a, b = min(first), min(key)
            if token[a][r] != token[b][r]:
                continue
            for order in itertools.permutations(groups[key]):
                if all(sizes[a][x] == sizes[b][y] for x, y in zip(lead, order, strict=True)):
                    groups[key] = list(order)
                    break
            else:
                return "parts of a role have different sizes"
        for together in zip(*[groups[k] for k in keys], strict=True):
            full.append(min(together))
            for label in together:
                self.renamed[label] = min(together)
        return None

    def _sizes(self) -> str | None:
        """Bind size tokens from the tensors, then from the roots; a string is the reason of failure."""
        for v, held in self.found.sizes.items():
            sizes = {self.name(x): n for x, n in held.items() if x not in self.found.dropped}
            for t in self.rule.vars[v]:
                for label in self.labels[stem(t)]:
                    n = sizes.get(label, 1)
                    if self.tok.setdefault((t, label), n) != n:
                        return f"size {t} differs between tensors"
        root = {self.name(x): n for x, n in self.found.root_size.items()}
        for v in self.s.wild:
            for t in self.rule.vars[v]:
                for label in self.labels[stem(t)]:
                    self.tok.setdefault((t, label), root.get(label, 1))
        return None

    def _broadcast_sizes(self) -> str | None:
        """Sizes of roles that exist only under an explicit broadcast, as positions or as segments."""
        for t, marks in self.found.marks:
            if t.op not in ("bcast", "iota", "segsum") or t.get("like"):
                continue
            named = {self.name(x): n for x, n in marks.items()}
            for r, token in zip(t["over"][-len(t["size"]) :], t["size"], strict=True):
                for label in self.labels[r]:
                    n = named.get(label, 1)
                    if isinstance(n, int) and self.tok.setdefault((token, label), n) != n:
                        return f"size {token} differs between broadcasts or positions"
        return None

    def _attributes(self) -> str | None:
        """Bind attribute names that stand alone, then compare all others; a string is the reason of failure."""
        todo: list[tuple[Any, int, int]] = []
        for t, raw in self.found.marks:
            win = self.plan.acts[t].windows
            if not win:
                continue
            marks = {self.name(x): mark for x, mark in raw.items()}
            for r, exprs in win.items():
                for label in self.labels[r]:
                    mark = marks.get(label)
                    values = cast("Sequence[int | None]", mark[0] if isinstance(mark, tuple) else WINDOW_DEFAULTS[t.op])
                    for e, value in zip(exprs, values, strict=True):
                        if e is None:
                            continue
                        if value is None:
                            return "an axis is absent where the rule slices it"
                        if e[0] == "v" and (e[1], label) not in self.tok:
                            if self.attr.setdefault((e[1], label), value) != value:
                                return f"attribute {e[1]} differs between ops"
                        else:
                            todo.append((e, label, value))
        env = Env(self.rule, self.labels, self.tok, self.attr)
        try:
            for e, label, value in todo:
                if env.value(e, label) != value:
                    return "an attribute has another value"
        except KeyError as error:
            return f"not bound: {error}"
        return None

    def _binding(self, params: Mapping[str, int]) -> Binding:
        rule, found = self.rule, self.found
        layouts: dict[str, Layout] = {}
        for v, lay in found.layouts.items():
            own = {label for t in rule.vars[v] for label in self.labels[stem(t)]}
            if v in self.s.wild:
                layouts[v] = tuple(
                    ((label, self.tok[t, label]),) for t in rule.vars[v] for label in self.labels[stem(t)]
                )
            else:  # an axis of size 1 whose role the tensor lacks is no axis
                layouts[v] = tuple(tuple((self.name(x), n) for x, n in axis if self.name(x) in own) for axis in lay)
        roots = tuple(
            tuple(tuple((self.name(x), n) for x, n in axis if x not in found.dropped) for axis in lay)
            for lay in found.roots
        )
        return Binding(Env(rule, self.labels, self.tok, self.attr, params), layouts, roots)


def _same_shape(named: Mapping[Any, int], lay: Sequence[Sequence[tuple[int, int]]]) -> bool:
    physical = {label: n for axis in lay for label, n in axis}
    return all(named.get(label, 1) == physical.get(label, 1) for label in {*named, *physical})
