"""Random instances of a rule: both sides as IR graphs at random ranks, sizes, axis orders and attributes.

The builder makes the *left side* as well as the right one, from one environment, so every rule has test graphs at no
extra cost.  The refuter evaluates both; the tests also match the left graph and build the right side from the match.
Instances satisfy the rule's premises (conditions, well-formed left side).  Where the right side cannot be built the
reason is kept, since this is one way in which a wrong rule fails.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewrites.build.arrange import Built, arrange, extent, labels_in, sizes_in
from rewrites.build.target import IRTarget
from rewrites.build.terms import Builder
from rewrites.language.named import Env, derived_labels
from rewrites.language.shapes import shape
from rewrites.language.term import Rule, Term, stem
from rewrites.match.labels import Axis, Layout
from rewrites.match.matching import Match
from superopt.errors import SuperoptError
from superopt.ir.graph import Node, make_input

if TYPE_CHECKING:
    import numpy as np

TRIES = 3000
METAS = {1: ("exp", "tanh", "abs", "neg"), 2: ("add", "mul", "max", "sub"), 3: ("select_n",)}


@dataclass(frozen=True, slots=True)
class Instance:
    """One concrete instance of a rule.

    Attributes:
        env: labels, sizes and attributes.
        lhs: one node per root.
        rhs: one node per root, in the layouts of the left side; empty where it cannot be built.
        inputs: tensor -> its input node.
        match: bindings of variables and meta-variables, with the layouts of the inputs.
        layouts: one layout per root.
        reason: why the right side cannot be built, or empty.
        given: the premises about values, as graphs.
    """

    env: Env
    lhs: tuple[Node, ...]
    rhs: tuple[Node, ...]
    inputs: Mapping[str, Node]
    match: Match
    layouts: tuple[Layout, ...]
    reason: str = ""
    given: tuple[Node, ...] = ()

    def arrays(self, seed: int) -> dict[str, np.ndarray]:
        """Random values of the inputs, away from zero; indices may be out of range on both sides."""
        import numpy as np

        rng = np.random.default_rng(seed)
        out: dict[str, np.ndarray] = {}
        for name, node in self.inputs.items():
            sizes = tuple(int(str(n)) for n in node.shape)
            if node.dtype == "bool":
                out[name] = rng.random(sizes) > 0.5
            elif node.dtype.startswith("int"):
                out[name] = rng.integers(-1, 6, sizes).astype(node.dtype)
            else:
                sign = rng.choice([-1.0, 1.0], sizes)
                out[name] = np.asarray(sign * (0.25 + 2 * rng.random(sizes)), node.dtype)
        return out


def instance(
    rule: Rule,
    seed: int,
    *,
    ranks: Iterable[int] = (0, 1, 1, 2),
    smallest: int = 1,
    largest: int = 4,
    dtype: str = "",
    frozen: Iterable[str] = (),
) -> Instance | None:
    """A random instance with sizes up to `largest`, or up to twice that where the premises require it, or None."""
    rng = random.Random(f"{rule.name}/{seed}")
    choice = list(ranks)
    lengths = {r: rng.choice(choice) for r in sorted(rule.many)}
    for most in (largest, 2 * largest):
        env = choose_env(rule, lengths, rng, most, smallest)
        if env is not None:
            return at_env(rule, env, rng, dtype=dtype, frozen=frozen)
    return None


def at_env(
    rule: Rule,
    env: Env,
    rng: random.Random,
    *,
    dtype: str = "",
    frozen: Iterable[str] = (),
    metas: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]] | None = None,
) -> Instance:
    """The instance at given sizes and attributes, which satisfy the premises; axis orders are random.

    Without a dtype, numbers are float64, or int32 where the rule is about integers.  With given meta-variables, axes
    lie in the order of the declarations.

    Raises:
        SuperoptError: the physical ops take no such sizes on the left side (a convolution without groups).
    """
    dtype = dtype or ("int32" if rule.dtype == "int" else "float64")
    inputs: dict[str, Node] = {}
    variables: dict[str, tuple[Node, Layout]] = {}
    cold = set(frozen)
    for v, tokens in rule.vars.items():
        axes: list[Axis] = [((x, env.tok[t, x]),) for t in tokens for x in env.labels[stem(t)]]
        if metas is None:
            rng.shuffle(axes)
        if metas is None and axes and rng.random() < 0.15:
            axes.insert(rng.randint(0, len(axes)), ())
        kind = {"float": dtype, "bool": "bool", "int": "int32"}[rule.kinds[v]]
        inputs[v] = make_input(v, tuple(map(extent, axes)), kind, frozen=v in cold)
        variables[v] = (inputs[v], tuple(axes))
    chosen = dict(metas or {})
    for f, kinds in rule.metas.items():
        if f not in chosen:
            chosen[f] = (rng.choice(METAS[kinds]) if isinstance(kinds, int) else f"reduce_{rng.choice(kinds)}", ())
    match = Match(rule=rule, env=env, vars=variables, metas=chosen, roots=(), dtype=dtype)
    target = IRTarget()
    plain = Builder(match, target)
    given = tuple(plain.go(t, None, env)[0] for t in rule.given)
    left = _ViewBuilder(match, target, rng)
    lhs = tuple(left.go(t, None, env) for t in rule.lhs)
    roots, layouts = tuple(n for n, _ in lhs), tuple(lay for _, lay in lhs)
    right = Builder(match, target)
    try:
        rhs = tuple(arrange(target, right.go(t, lay, env), lay)[0] for t, (_, lay) in zip(rule.rhs, lhs, strict=True))
    except (SuperoptError, ZeroDivisionError, KeyError) as error:  # an attribute without a value
        return Instance(env, roots, (), inputs, match, layouts, str(error), given)
    return Instance(env, roots, rhs, inputs, match, layouts, "", given)


def choose_env(
    rule: Rule,
    ranks: Mapping[str, int],
    rng: random.Random,
    largest: int = 4,
    smallest: int = 1,
    tries: int = TRIES,
) -> Env | None:
    """Random sizes and attributes at these ranks that satisfy the premises, or None after many tries."""
    labels: dict[str, list[int]] = {}
    count = 1000
    for r in rule.roles:
        if r in rule.derived:
            continue
        n = ranks.get(r, 1) if r in rule.many else 1
        labels[r] = list(range(count, count + n))
        count += n
    labels.update(derived_labels(rule, labels, iter(range(count, count + 100))))
    names = [
        x for x in rule.owner if x not in rule.indices and (x not in rule.sizes or rule.owner[x] not in rule.derived)
    ]
    for _ in range(tries):
        tok: dict[tuple[str, Any], int] = {}
        attr: dict[tuple[str, Any], int] = {}
        for x in names:
            for label in labels[rule.owner[x]]:
                if x in rule.sizes:
                    tok[x, label] = rng.randint(smallest, largest)
                else:
                    attr[x, label] = _attribute(rng)
        params = {p: rng.randint(1, 3) if values else rng.randint(-2, 6) for p, values in rule.params.items()}
        env = Env(rule, labels, tok, attr, params)
        if admissible(env):
            return env
    return None


def admissible(env: Env) -> bool:
    """Whether sizes and attributes satisfy the premises: the conditions hold and the left sides are well formed."""
    wf: list[Any] = []
    try:
        if not all(env.conditions()):
            return False
        for t in env.rule.lhs:
            shape(t, env, wf)
    except ZeroDivisionError:
        return False
    return all(wf)


def _attribute(rng: random.Random) -> int:
    z = rng.random()
    return rng.randint(0, 4) if z < 0.6 else rng.randint(0, 7) if z < 0.85 else rng.randint(-3, 3)


class _ViewBuilder(Builder):
    """Like the builder, but a `view` becomes a reshape: two axes merged, or an axis of size 1 added."""

    def __init__(self, match: Match, target: IRTarget, rng: random.Random) -> None:
        super().__init__(match, target)
        self.rng = rng
        self.chosen: dict[frozenset[int], Layout] = {}

    def make(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a term without looking it up in the memo."""
        if t.op != "view":
            return super().make(t, hint, env)
        built = self.go(t.args[0], hint, env)
        names = labels_in(built[1])
        want = self.chosen.get(frozenset(names))
        if want is None:
            want = self.chosen[frozenset(names)] = self._layout(built)
        value, lay = arrange(self.target, built, want)
        if value is built[0]:
            lay = (*lay, ())
            value = self.target.mk("reshape", value, new_sizes=tuple(map(extent, lay)))
        return value, lay

    def _layout(self, built: Built) -> Layout:
        entries = list(sizes_in(built[1]).items())
        axes: list[Axis] = [(e,) for e in entries]
        if len(entries) > 1 and math.prod([n for _, n in entries]) > 0:
            i = self.rng.randrange(len(entries) - 1)
            axes[i : i + 2] = [(entries[i], entries[i + 1])]
        return tuple(axes)
