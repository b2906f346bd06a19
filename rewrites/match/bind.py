"""From labels sorted into roles to a complete match: pairing, sizes, attributes, conditions, self-check.

A role that lives in unconnected parts of the left side has one group of labels per part; only the rule ties them, so
they are paired here: by equal sizes where the size token is the same, then by order.  A single-axis role without any
axis is an absent axis of size 1.  The last step checks that the *named* shape of the left side, computed from the
bindings alone, is the *physical* shape of the roots.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rewrites.language.named import Env, derived_labels, shape
from rewrites.language.names import WINDOW_DEFAULTS
from rewrites.language.show import unmet
from rewrites.language.term import Rule, stem
from rewrites.match.labels import Layout
from rewrites.match.plan import MatchPlan
from rewrites.match.sort import Sorted
from rewrites.match.walk import WalkState

ABSENT = 1_000_000
"""Labels from here on stand for axes that are absent (size 1) or made by `split` and `merge`."""
CHOICES = 4096


@dataclass(frozen=True, slots=True)
class Binding:
    """Labels of every role, sizes, attributes, and layouts in these labels.

    Attributes:
        env: the instance of the rule.
        layouts: tensor -> layout of its class's natural axes.
        wild: tensors bound to a scalar that stands for its broadcast.
        roots: layouts of the roots' natural axes.
    """

    env: Env
    layouts: Mapping[str, Layout]
    wild: frozenset[str]
    roots: tuple[Layout, ...]


def bindings(rule: Rule, plan: MatchPlan, found: Sorted, s: WalkState) -> Iterator[Binding | str]:
    """All complete bindings of a sorted walk; a string is the reason why one choice of roles failed."""
    order = sorted(found.candidates, key=lambda label: (len(found.candidates[label]), label))
    choices = itertools.product(*[found.candidates[label] for label in order])
    for choice in itertools.islice(choices, CHOICES):
        played: dict[str, list[int]] = defaultdict(list)
        for label, r in sorted(zip(order, choice, strict=True)):
            played[r].append(label)
        yield from _Binder(rule, plan, found, s).bind(played)


class _Binder:
    """One choice of roles."""

    def __init__(self, rule: Rule, plan: MatchPlan, found: Sorted, s: WalkState) -> None:
        self.rule, self.plan, self.found, self.s = rule, plan, found, s
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
        if any(n != 1 for lay in self.found.roots for axis in lay for x, n in axis if x in self.found.dropped):
            yield "a dropped axis is not of size 1"
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
        """Check `if` for each choice of the free parameters."""
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
                yield Binding(env, binding.layouts, binding.wild, binding.roots)
        if not passed:
            yield reason

    def _pair(self, played: Mapping[str, list[int]]) -> str | None:
        """Labels per role, with the labels of unconnected parts identified."""
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
        """Size tokens from the tensors, then from the roots."""
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
        """Sizes of roles that exist only under an explicit broadcast."""
        for t, marks in self.found.marks:
            if t.op != "bcast" or t["like"]:
                continue
            named = {self.name(x): n for x, n in marks.items()}
            for r, token in zip(t["over"], t["size"], strict=True):
                for label in self.labels[r]:
                    n = named.get(label, 1)
                    if isinstance(n, int) and self.tok.setdefault((token, label), n) != n:
                        return f"size {token} differs between broadcasts"
        return None

    def _attributes(self) -> str | None:
        """Bind names that stand alone, then compare everything else."""
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
        return Binding(Env(rule, self.labels, self.tok, self.attr, params), layouts, self.s.wild, roots)


def _same_shape(named: Mapping[Any, int], lay: Sequence[Sequence[tuple[int, int]]]) -> bool:
    physical = {label: n for axis in lay for label, n in axis}
    return all(named.get(label, 1) == physical.get(label, 1) for label in {*named, *physical})
