"""Refutation: concrete arrays on which the two sides of a rule differ, by the reference interpreter alone.

Both sides are built as IR graphs from one environment that satisfies the premises (`rewrites.lift.generate`) and
evaluated by `superopt.ir.interp`; no part of the prover is involved.  Small sizes (0 included) and small integers come
first, so most wrong rules are refuted in milliseconds.  A rule is refuted when, at an instance with a well-formed left
side, the right side is ill-formed, has another shape, or has another value.  Entries at which the left side is
undefined (NaN, or infinite by a division or a logarithm) are ignored: that is the assumption of finite values.
`verifier.rules.shrink` makes differences small and readable.

A proof of class `exact` says that both sides agree in every bit, on zeros with signs, NaN, infinities and others.  The
interpreter tests this, too (`different_bits`).  All NaN are one value.  The sign of a maximum or minimum of two zeros
is left open: IEEE 754 orders them, NumPy does not.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np

from rewrites.language.named import Env
from rewrites.language.shapes import shape
from rewrites.language.show import text
from rewrites.language.term import Rule, Term, names_in, subterms, walk, windows
from rewrites.lift.generate import Instance, at_env, choose_env
from superopt.errors import SuperoptError
from superopt.ir.graph import Node, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import CONTRACTIONS, POLES
from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import FLOATS, INTEGERS, range_of
from verifier.rules.nonvacuity import Observations

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-9
PATIENCE, DRAWS, LARGE = 8, 400, 1 << 20
STAGES = ((0, 2), (1, 2), (0, 3), (1, 4), (1, 5), (2, 5), (3, 8), (1, 3), (0, 4), (4, 9))
"""Smallest and largest size, in the order in which they are tried."""
_EXTREMES = (-(2**31), 2**31 - 1, 46341, -1, 0, 1, 2, 3)
MAGNITUDES = (1.0, 30.0, 1e-3, 1e3, 1e6)
"""Magnitudes of inputs: a square root of `x - 100` has a value only where some are as large."""


@dataclass
class Attempts:
    """Counts of a search for a counterexample.

    Attributes:
        built: instances compared.
        missing: seeds for which no environment was found.
        unbuilt: instances of which the builder refused a side.
        reason: reason for the last of these.
    """

    built: int = 0
    missing: int = 0
    unbuilt: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """An instance at which the two sides of a rule differ.

    Attributes:
        env: sizes and attributes.
        seed: seed of axis orders, meta-variables and values.
        root: which equation of the rule.
        made: both sides as graphs, where they can be built.
        values: the inputs.
        index: first index at which the results differ; None when a whole side failed.
        results: the two results at that root.
        cause: why a whole side failed.
        undefined: whether the right side is NaN there (it divides by zero, or leaves a function's domain).
    """

    env: Env
    seed: int
    root: int
    made: Instance | None = None
    values: Arrays = field(default_factory=dict[str, np.ndarray])
    index: tuple[int, ...] | None = None
    results: tuple[Any, Any] = (None, None)
    cause: str = ""
    undefined: bool = False

    @property
    def unclear(self) -> int:
        """1 where the right side is NaN, 0 where two numbers differ."""
        return int(self.undefined)


class Telling(Protocol):
    """Interface of differences that can be ranked by how conclusive they are."""

    @property
    def unclear(self) -> int:
        """Rank of the difference: 0 where two numbers differ, more the less conclusive it is."""
        ...


D = TypeVar("D", bound=Telling)


def clearest(found: Iterable[D | None]) -> D | None:
    """The first difference of two numbers, else the first of the least unclear; reads `found` only as far as needed."""
    best: D | None = None
    for one in found:
        if one is not None and (best is None or one.unclear < best.unclear):
            best = one
            if not best.unclear:
                break
    return best


@dataclass
class Search:
    """A search among random instances: `step` until `done`.

    Values that differ are better evidence than a right side without a value: `patience` more instances are tried to
    find some.

    Attributes:
        seed: seed of the next instance.
        last: the seed before which the search ends; it is lowered once a right side has no value.
        found: the difference so far.
        attempts: counts of the search.
    """

    rule: Rule
    seed: int
    last: int
    patience: int = PATIENCE
    attempts: Attempts = field(default_factory=Attempts)
    found: Difference | None = None

    def done(self) -> bool:
        """Whether values differ, or no seed is left."""
        return self.seed >= self.last or (self.found is not None and self.found.index is not None)

    def step(self) -> None:
        """Compare the two sides at the next instance."""
        seed, self.seed = self.seed, self.seed + 1
        env = env_of_seed(self.rule, seed)
        if env is None:
            self.attempts.missing += 1
            return
        example = differ_at(env, seed, self.attempts)
        if example is None or (self.found is not None and example.index is None):
            return
        self.found = example
        self.last = min(self.last, seed + self.patience + 1)


def search(
    rule: Rule, tries: int, first_seed: int = 0, attempts: Attempts | None = None, patience: int = PATIENCE
) -> Difference | None:
    """Search for a difference among `tries` random instances; the same seeds give the same answer."""
    one = Search(rule, first_seed, first_seed + tries, patience, attempts if attempts is not None else Attempts())
    while not one.done():
        one.step()
    return one.found


def env_of_seed(rule: Rule, seed: int) -> Env | None:
    """Random ranks, sizes and attributes that satisfy the premises, or None after many tries."""
    low, high = STAGES[seed % len(STAGES)]
    rng = random.Random(f"{rule.name}/{seed}")
    choice = (0, 1) if seed % 3 == 0 else (1, 1, 2)
    return choose_env(rule, {r: rng.choice(choice) for r in sorted(rule.many)}, rng, high, low, DRAWS)


def differ_at(
    env: Env, seed: int, log: Attempts | None = None, metas: Mapping[str, Any] | None = None
) -> Difference | None:
    """Compare the two sides of a rule at one environment that satisfies its premises.

    With given meta-variables, axes lie in the order of the declarations; else both are random.
    """
    rule, log = env.rule, log or Attempts()
    bad = _ill_formed(env)
    try:
        made = at_env(rule, env, random.Random(seed), metas=metas)
    except SuperoptError as error:  # the physical op takes no such sizes (a convolution without groups)
        made = None
        log.reason = str(error)
    if bad is not None:
        root, cause = bad
        return Difference(env, seed, root, made, {} if made is None else _values(made, seed, 0), cause=cause)
    if made is None or not made.rhs:
        log.unbuilt += 1
        log.reason = log.reason if made is None else made.reason
        return None
    if _work((*made.lhs, *made.rhs)) > LARGE:
        log.unbuilt += 1
        log.reason = "too large to evaluate"
        return None
    log.built += 1
    return clearest(difference(made, _values(made, seed, n), seed) for n in range(12 if made.given else 3))


def sizes_of(node: Node) -> tuple[int, ...]:
    """The shape of a node without symbols."""
    return tuple([n for n in node.shape if isinstance(n, int)])


def _work(roots: tuple[Node, ...]) -> int:
    """Approximate number of elements that the interpreter touches for the most expensive node."""
    most = 0
    for node in topological(roots):
        read = math.prod(sizes_of(node.inputs[-1])) if node.op in CONTRACTIONS else 1
        most = max(most, math.prod(sizes_of(node)) * read)
    return most


def difference(made: Instance, values: Arrays, seed: int = 0, tolerance: float = TOLERANCE) -> Difference | None:
    """The first difference of the two sides on these inputs; None without one, or where premises about values fail."""
    if made.given and not all(bool(np.all(g)) for g in evaluate(made.given, values)):
        return None
    poles = any(t.get("f", t.op) in POLES for t in subterms(made.env.rule.lhs))
    for root, results in enumerate(_sides(made, values)):
        left, right = (np.asarray(r) for r in results)
        where = first_difference(left, right, poles, tolerance, numbers_first=True)
        if where is not None:
            undefined = right.dtype.kind == "f" and bool(np.isnan(right[where]))
            return Difference(made.env, seed, root, made, values, where, results, undefined=undefined)
    return None


def _sides(made: Instance, values: Mapping[str, np.ndarray]) -> Iterator[tuple[Any, Any]]:
    """The results of both sides, root by root; what they share is evaluated once."""
    results = evaluate((*made.lhs, *made.rhs), values)
    return zip(results[: len(made.lhs)], results[len(made.lhs) :], strict=True)


def seen_at(env: Env, seed: int, *, empty: bool = False) -> Observations:
    """Observations of the results of both sides on inputs of several magnitudes; none where an array is empty.

    With `empty`, inputs may be: a sum over nothing is a number.
    """
    seen = Observations(range(len(env.rule.lhs)))
    try:
        made = at_env(env.rule, env, random.Random(seed))
    except SuperoptError:
        return seen
    if not made.rhs or _work((*made.lhs, *made.rhs)) > LARGE:
        return seen
    if any(0 in sizes_of(node) for node in (*(() if empty else made.inputs.values()), *made.lhs)):
        return seen
    drawn = [_values(made, seed, n) for n in range(9)]  # integers stay in samples, so more than one has some
    for values in itertools.chain(drawn[:3], *map(samples, drawn[1::3])):
        if not made.given or all(bool(np.all(g)) for g in evaluate(made.given, values)):
            seen.see(*(dict(enumerate(map(np.asarray, side))) for side in zip(*_sides(made, values), strict=True)))
            if not seen.left:
                break
    return seen


def samples(values: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yield inputs scaled to several magnitudes, with both signs and with one sign only; integers stay."""
    for scale, sign in itertools.product(MAGNITUDES, (0, 1, -1)):
        yield {name: _scaled(x, scale, sign) if str(x.dtype) in FLOATS else x for name, x in values.items()}


def _scaled(x: np.ndarray, scale: float, sign: int) -> np.ndarray:
    """A multiple of an array, clipped to the range of its dtype; a `sign` other than 0 makes all entries have it."""
    wide, most = x.astype(np.float64) * scale, extremes(str(x.dtype))[0]
    return np.clip(sign * np.abs(wide) if sign else wide, -most, most).astype(x.dtype)


def first_difference(
    a: np.ndarray, b: np.ndarray, poles: bool, tolerance: float, *, numbers_first: bool = False
) -> tuple[int, ...] | None:
    """First index at which the results differ where `a` is defined, or None; with `numbers_first` NaN comes last."""
    if a.dtype == bool or a.dtype.kind in "iu":
        bad = a != b
    else:
        defined = np.isfinite(a) if poles else ~np.isnan(a)
        scale = 1.0 + np.abs(np.where(np.isfinite(a), a, 0.0))
        with np.errstate(invalid="ignore"):
            same = (a == b) | (np.abs(a - b) <= tolerance * scale * max(1.0, math.sqrt(a.size)))
        bad = defined & ~same
        if numbers_first and (bad & ~np.isnan(b)).any():
            bad &= ~np.isnan(b)
    if not bad.any():
        return None
    return tuple(int(i) for i in np.argwhere(bad)[0])


def _ill_formed(env: Env) -> tuple[int, str] | None:
    """The first root whose right side is ill-formed or has another named shape, with the reason."""
    for root, (left, right) in enumerate(zip(env.rule.lhs, env.rule.rhs, strict=True)):
        conditions: list[Any] = []
        try:
            there = shape(right, env, conditions)
        except (ZeroDivisionError, KeyError) as error:
            return root, f"is ill-formed: {error!r}"
        if not all(conditions):
            return root, f"is ill-formed: {_offender(env, right)}"
        here = shape(left, env, [])
        if here != there:
            return root, f"has the sizes {_sizes(env, there)}, the left side {_sizes(env, here)}"
    return None


def _sizes(env: Env, sizes: Mapping[Any, Any]) -> str:
    roles = {label: role for role, labels in env.labels.items() for label in labels}
    return " ".join(f"{roles[label]}={n}" for label, n in sizes.items()) or "(none)"


def _offender(env: Env, t: Term) -> str:
    """The innermost ill-formed subterm, with the numbers in it."""
    for part in list(walk(t))[::-1]:
        conditions: list[Any] = []
        try:
            shape(part, env, conditions)
        except ZeroDivisionError:
            return text(env.rule, part)
        except KeyError:  # inside a fold, its index is not bound here
            continue
        if not all(conditions):
            names = sorted({n for _, exprs in windows(part) for e in exprs if e is not None for n in names_in(e)})
            told = [f"{n} = {_all(env, n)[0]}" for n in names if _all(env, n)]
            if part.op not in ("fold", "stack"):
                told = [f"operands of {_sizes(env, shape(a, env, []))}" for a in part.args] + told
            brief = {a: "..." for a in part.args if len(text(env.rule, a)) > 30}
            return f"{text(env.rule, part, brief)}{' with ' if told else ''}{', '.join(told)}"
    return "sizes do not fit"


def _all(env: Env, name: str) -> list[Any]:
    if name in env.params:
        return [env.params[name]]
    values = [v for (n, _), v in (*env.tok.items(), *env.attr.items()) if n == name]
    return values


def _values(made: Instance, seed: int, attempt: int) -> Arrays:
    """Input arrays: small integers first, then fractions, then halves."""
    rng = np.random.default_rng((seed, attempt))
    numbers = made.env.rule.dtype == "int"
    out: Arrays = {}
    for name, node in sorted(made.inputs.items()):
        sizes = sizes_of(node)
        if node.dtype == "bool":
            out[name] = np.asarray(rng.random(sizes) > 0.5)
        elif node.dtype.startswith("int"):
            wide = numbers and made.env.rule.kinds[name] != "int"
            drawn = (
                rng.choice(_EXTREMES, sizes) if wide and attempt == 2 else rng.integers(-4 if wide else -1, 6, sizes)
            )
            out[name] = drawn.astype(node.dtype)
        elif attempt == 0:
            out[name] = rng.integers(-2, 4, sizes).astype(node.dtype)
        else:
            drawn = rng.standard_normal(sizes)
            out[name] = np.asarray(drawn if attempt % 3 == 1 else np.rint(6.0 * drawn) / 2, node.dtype)
    return out


# ---- exactness by evaluation

DRAWN = 4
TYPED_FLOATS = ("float64", "float32", "bfloat16", "float16")
TYPED_INTEGERS = ("int32", "int8", "uint8", "int64", "uint32", "int16")
_ORDER = frozenset({"max", "min", "maximum", "minimum", "clamp"})


def strewn(x: np.ndarray, numbers: Sequence[Any], offset: int) -> np.ndarray:
    """An array with every other entry replaced by these numbers in turn, from the entry of this offset on.

    Different offsets for different inputs make special numbers meet ordinary ones, and in a third input each other.
    """
    turns = np.resize(np.array(numbers, x.dtype), x.size).reshape(x.shape)
    return np.where((np.arange(x.size) + offset).reshape(x.shape) % 2 == 0, turns, x)


@functools.cache
def special(dtype: str) -> tuple[Any, ...]:
    """Special numbers of a dtype: zeros of both signs, NaN, infinities, the largest and the least; ends of integers."""
    if dtype in INTEGERS:
        low, high = range_of(dtype)
        return low, high, high - 1, high // 2 + 1, low + 1, 0, 1, 2, 3
    most, tiny, least = extremes(dtype)
    return 0.0, -0.0, math.nan, math.inf, -math.inf, most, -most, least, tiny, 1.0, -2.0, 3.5, 2.5


def epsilon(dtype: str) -> float:
    """The distance of a type of floats from 1 to the next number."""
    read: Any = ml_dtypes.finfo  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return float(read(dtype).eps)


def extremes(dtype: str) -> tuple[float, float, float]:
    """The largest finite, the least positive normal and the least positive number of a float dtype."""
    read: Any = ml_dtypes.finfo  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    info: Any = read(dtype)
    return float(info.max), float(info.tiny), float(info.smallest_subnormal)


def different_bits(
    rule: Rule, tries: int, first_seed: int = 0, *, dtype: str = "", at: Mapping[int, Env] | None = None
) -> Difference | None:
    """An instance and special values at which the sides of a rule have different bits, or None.

    Args:
        rule: the rule.
        tries: number of instances, from `first_seed` on.
        first_seed: seed of the first instance.
        dtype: dtype of the numbers; float64 by default.
        at: environments by seed, in place of random ones.
    """
    seeds = range(first_seed, first_seed + tries)
    for seed, env in (at or {n: env_of_seed(rule, n) for n in seeds}).items():
        bits = None if env is None else _bits_at(rule, env, seed, dtype)
        if bits is not None:
            return bits
    return None


def _bits_at(rule: Rule, env: Env, seed: int, dtype: str) -> Difference | None:
    ordered = any({t.get("f"), t.get("kind")} & (_ORDER | set(rule.metas)) for t in subterms((*rule.lhs, *rule.rhs)))
    try:
        made = at_env(rule, env, random.Random(seed), dtype=dtype)
    except (SuperoptError, ValueError, OverflowError):  # an op takes no such sizes, or the type has no such constant
        return None
    if not made.rhs:
        return None
    for values in _special_draws(made, seed):
        if made.given and not all(bool(np.all(g)) for g in evaluate(made.given, values)):
            continue
        for root, sides in enumerate(_sides(made, values)):
            where = first_other_bits(*map(np.asarray, sides), zeros=not ordered)
            if where is not None:
                return Difference(env, seed, root, made, values, where, sides)
    return None


def first_other_bits(a: np.ndarray, b: np.ndarray, zeros: bool = True) -> tuple[int, ...] | None:
    """First index at which two arrays of one dtype differ in bits, or None.

    All NaN are alike; with `zeros`, zeros of different signs differ.
    """
    same = a == b
    if str(a.dtype) in FLOATS:
        if zeros:
            same &= np.signbit(a) == np.signbit(b)
        same |= np.isnan(a) & np.isnan(b)
    return None if same.all() else tuple(int(i) for i in np.argwhere(~same)[0])


def _special_draws(made: Instance, seed: int) -> Iterator[dict[str, Any]]:
    """Yield inputs of special numbers in random orders; each draw starts at another one, so small inputs get all."""
    rng = np.random.default_rng(seed)
    fixed: dict[str, Any] = {}
    turned: dict[str, tuple[tuple[int, ...], Any]] = {}
    for name, node in sorted(made.inputs.items()):
        sizes = sizes_of(node)
        kind = numpy_dtype(node.dtype)
        if node.dtype == "bool":
            fixed[name] = np.asarray(rng.random(sizes) > 0.5)
        elif made.env.rule.kinds[name] == "int":  # an index
            fixed[name] = rng.integers(-1, 6, sizes).astype(kind)
        else:
            turned[name] = sizes, rng.permutation(np.array(special(node.dtype), kind))
    for draw in range(DRAWN):
        yield fixed | {name: _turn(numbers, draw, sizes) for name, (sizes, numbers) in turned.items()}


def _turn(numbers: Any, draw: int, sizes: tuple[int, ...]) -> Any:
    """An array that repeats the numbers cyclically; each draw starts at another one."""
    first = draw * max(1, len(numbers) // DRAWN)
    return numbers[(np.arange(math.prod(sizes)) + first) % len(numbers)].reshape(sizes)
