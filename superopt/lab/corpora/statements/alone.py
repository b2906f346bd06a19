"""Claims for the prover by itself, each with its truth by an oracle that shares no code with the project.

    monoids      Every reduction, prefix, window, scatter and segment of every dtype against every other, and the laws
                 that such a fold may have: order, nesting, parts, repetition, neutral elements, negation.
    conversions  There and back through every dtype, and every pair of steps against the one that leaves the first out.
    names        Statements with an argument that has the name of one of the prover's own symbols.

A claim is written once over an interface that JAX and NumPy have.  NumPy, with `ml_dtypes`, evaluates it on revealing
values: all of 8 and 16 bits, those beside powers of two, zeros of both signs, NaN and infinities, extremes.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp

import verifier
from superopt.ir.scalar import Array
from verifier.statements.statement import Statement, make_statement

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
FOREIGN = ("int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""Types that JAX has and the op table lacks."""
KINDS = ("sum", "prod", "max", "min", "and", "or", "xor")
SEGMENTS, DRAWS, FEW = 3, 12, 400
StatementBody = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A statement, and whether it is false.

    Attributes:
        family: monoids, conversions or names.
        statement: the statement given to the prover.
        differs: whether both sides differ on some values; as finite numbers alone, or (`exact`) bit by bit on all.
    """

    family: str
    statement: Statement
    differs: Callable[[bool], bool]


def claims(seed: int, each: int | None = None) -> Iterator[JudgedClaim]:
    """All claims, or a random sample of `each` per family."""
    for family, make in _FAMILIES.items():
        made = list(make())
        if each is not None and each < len(made):
            rng = np.random.default_rng([seed, len(family)])
            made = [made[int(i)] for i in sorted(rng.choice(len(made), each, replace=False))]
        yield from (claim(family) for claim in made)


# ---- one interface, twice


def dtype_of(name: str) -> np.dtype[Any]:
    """A dtype by name, those of `ml_dtypes` too."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def neutral(kind: str, dtype: str) -> Any:
    """The neutral element of a fold, as a number."""
    if dtype == "bool":
        return kind in ("and", "min", "prod")
    if kind in ("max", "min"):
        if dtype in FLOATS:
            return -np.inf if kind == "max" else np.inf
        return int(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)
    if kind == "and":
        return -1 if dtype.startswith("int") else int(np.iinfo(dtype).max)
    return int(kind == "prod")


class _Jax:
    """The folds and conversions of a claim, in JAX."""

    xp = jnp

    def full(self, shape: tuple[Any, ...], value: Any, dtype: str) -> Array:
        return jnp.full(shape, value, dtype)

    def two(self, kind: str, a: Array, b: Array) -> Array:
        return {"sum": lax.add, "prod": lax.mul, "max": lax.max, "min": lax.min, "and": lax.bitwise_and,
                "or": lax.bitwise_or, "xor": lax.bitwise_xor}[kind](a, b)  # fmt: skip

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...] = (0,)) -> Array:
        return getattr(lax, f"reduce_{kind}")(x, axes)

    def prefix(self, kind: str, x: Array) -> Array:
        return getattr(lax, f"cum{kind}")(x, 0)

    def window(self, kind: str, x: Array) -> Array:
        start = np.asarray(neutral(kind, str(x.dtype)), x.dtype)
        return lax.reduce_window(x, start, functools.partial(self.two, kind), (3, 1), (1, 1), "VALID")

    def scatter(self, kind: str, x: Array, places: Array) -> Array:
        into = self.full((SEGMENTS, x.shape[1]), neutral(kind, str(x.dtype)), str(x.dtype)).at[places]
        return {"sum": into.add, "prod": into.mul, "max": into.max, "min": into.min}[kind](x)

    def segment(self, kind: str, x: Array, places: Array) -> Array:
        return getattr(jax.ops, f"segment_{kind}")(x, places, num_segments=SEGMENTS)

    def convert(self, x: Array, source: str, target: str) -> Array:
        return lax.convert_element_type(x, dtype_of(target))


class _NumPy:
    """Folds computed one operand after the other, and conversions by their definitions."""

    xp = np

    def full(self, shape: tuple[Any, ...], value: Any, dtype: str) -> Array:
        return np.full(shape, value, dtype_of(dtype))

    def two(self, kind: str, a: Array, b: Array) -> Array:
        wide = a.dtype.name in ("float16", "bfloat16")
        x, y = (v.astype(np.float32) if wide else v for v in (a, b))
        made = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
                "or": np.bitwise_or, "xor": np.bitwise_xor}[kind](x, y)  # fmt: skip
        return made.astype(a.dtype)

    def reduce(self, kind: str, x: Array, axes: tuple[int, ...] = (0,)) -> Array:
        for axis in sorted(axes, reverse=True):
            moved = np.moveaxis(x, axis, 0)
            start = self.full(moved.shape[1:], neutral(kind, x.dtype.name), x.dtype.name)
            x = functools.reduce(functools.partial(self.two, kind), moved, start)
        return x

    def prefix(self, kind: str, x: Array) -> Array:
        rows = [self.reduce(kind, x[: i + 1]) for i in range(len(x))]
        return np.stack(rows) if rows else x

    def window(self, kind: str, x: Array) -> Array:
        return np.stack([self.reduce(kind, x[i : i + 3]) for i in range(len(x) - 2)])

    def scatter(self, kind: str, x: Array, places: Array) -> Array:
        return np.stack([self.reduce(kind, x[places == i]) for i in range(SEGMENTS)])

    segment = scatter

    def convert(self, x: Array, source: str, target: str) -> Array:
        if source == target:
            return x
        whole = source == "bool" or "int" in source
        if target == "bool":
            return x.astype(np.float64) != 0 if not whole else x != 0
        if "int" in target:
            return _to_integer(x, whole, target)
        if not whole and dtype_of(target).itemsize < 4 < x.dtype.itemsize:
            x = _odd(x)
        if whole:
            x = x.astype(np.int64) if x.dtype.itemsize < 8 else x
            return (x if target in ("float32", "float64") else _odd(x.astype(np.float64))).astype(dtype_of(target))
        return x.astype(dtype_of(target))


def _to_integer(x: Array, whole: bool, target: str) -> Array:
    """Convert to integers: floats towards zero and saturating, NaN to 0, integers by their lowest bits."""
    bits = int("".join(c for c in target if c.isdigit()))
    low, high = (0, 2**bits - 1) if target.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if whole:
        numbers = [(int(v) - low) % 2**bits + low for v in x.reshape(-1).tolist()]
    else:
        wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70)))
        numbers = [min(max(int(v), low), high) for v in wide.reshape(-1).tolist()]
    plain = np.asarray(numbers, np.uint64 if low == 0 else np.int64).reshape(x.shape)
    return plain.astype(dtype_of(target))


def _odd(x: Array) -> Array:
    """float64 to float32, rounded to odd, so that a further rounding equals a single one."""
    near = x.astype(np.float32)
    inward = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    bits = inward.view(np.uint32) | (inward.astype(np.float64) != x).astype(np.uint32)
    return np.where(np.isfinite(x), bits.view(np.float32), near)


JAX, NUMPY = _Jax(), _NumPy()


def _apart(a: Array, b: Array, exact: bool) -> bool:
    """Whether two results differ: bit by bit but for the payload of NaN, or as finite numbers."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    if a.dtype.kind in "iub":
        return bool((a != b).any())
    x, y = a.astype(np.float64), b.astype(np.float64)
    if exact:
        zeros = (x == 0) & (np.signbit(x) != np.signbit(y))
        return bool((((x != y) & ~(np.isnan(x) & np.isnan(y))) | zeros).any())
    finite = np.isfinite(x) & np.isfinite(y)
    return bool((x[finite] != y[finite]).any())


# ---- monoids


def _values(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, draw: int) -> Array:
    """Small numbers, whose sums and products are exact; extremes of integers among them in every other draw."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool) if draw % 3 else np.full(shape, draw % 2 == 0)
    if dtype in FLOATS:
        return rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], shape).astype(dtype_of(dtype))
    info = np.iinfo(dtype)
    few = np.arange(-3 if info.min else 0, 4)
    ends = [int(info.min), int(info.min) + 1, int(info.max) - 1, int(info.max), int(info.max) // 3]
    pool = few.tolist() if draw % 2 else [*few.tolist(), *ends]
    return np.asarray([pool[int(i)] for i in rng.integers(0, len(pool), int(np.prod(shape)))], dtype).reshape(shape)


def _folds(least: int, dtype: str, left: StatementBody, right: StatementBody) -> Callable[[bool], bool]:
    """The oracle of two bodies over a matrix with at least so many rows, and positions of its rows."""

    @functools.cache
    def differs(exact: bool) -> bool:
        rng = np.random.default_rng(len(dtype))
        with np.errstate(all="ignore"):
            for draw, (rows, columns) in itertools.product(range(DRAWS), ((0, 1), (1, 2), (2, 1), (3, 2), (5, 1))):
                x = _values(dtype, (rows + least, columns), rng, draw)
                places = rng.integers(0, SEGMENTS, len(x)).astype(np.int32)
                if _apart(np.asarray(left(NUMPY, x, places)), np.asarray(right(NUMPY, x, places)), exact):
                    return True
        return False

    return differs


def _monoids() -> Iterator[Callable[[str], JudgedClaim]]:
    for dtype in DTYPES:
        kinds = KINDS[:4] if dtype in FLOATS else KINDS[2:] if dtype == "bool" else KINDS
        plain = [k for k in kinds if k in KINDS[:4]]
        for form, of, least in (("reduce", kinds, 0), ("prefix", plain, 0), ("window", kinds, 3),
                                ("scatter", plain, 0), ("segment", plain, 0)):  # fmt: skip
            if dtype == "bool" and form in ("prefix", "scatter", "segment"):
                continue
            for a, b in itertools.product(of, of):
                sides = _fold(form, a), _fold(form, b)
                yield _claim(f"{form} {a} and {b} of {dtype}", dtype, least, *sides)
                if form == "reduce":
                    yield _claim(f"{form} {a} and {b} of {dtype}, behind a guard", dtype, 0, *sides, guard=True)
        for kind in kinds:
            for name, (least, left, right) in _laws(kind, dtype).items():
                yield _claim(f"{name}, {kind} of {dtype}", dtype, least, left, right)


def _fold(form: str, kind: str) -> StatementBody:
    if form in ("scatter", "segment"):
        return lambda k, x, places: getattr(k, form)(kind, x, places)
    return lambda k, x, _: getattr(k, form)(kind, x)


def _laws(kind: str, dtype: str) -> dict[str, tuple[int, StatementBody, StatementBody]]:
    """Name -> least number of rows, and both sides; each law holds for some kinds and types alone."""
    unit = neutral(kind, dtype)
    other = {"max": "min", "min": "max", "and": "or", "or": "and"}.get(kind)

    def whole(k: Any, x: Array, _: Array) -> Array:
        return k.reduce(kind, x)

    statements: dict[str, tuple[int, StatementBody, StatementBody]] = {
        "in another order": (0, whole, lambda k, x, _: k.reduce(kind, x[::-1])),
        "axis by axis": (
            0, lambda k, x, _: k.reduce(kind, x, (0, 1)), lambda k, x, _: k.reduce(kind, k.reduce(kind, x, (1,))),
        ),
        "in two parts": (
            2, whole, lambda k, x, _: k.two(kind, k.reduce(kind, x[:2]), k.reduce(kind, x[2:])),
        ),
        "everything twice": (0, whole, lambda k, x, _: k.reduce(kind, k.xp.concatenate([x, x]))),
        "without the first": (1, whole, lambda k, x, _: k.reduce(kind, x[1:])),
        "of two tensors": (
            0, lambda k, x, _: k.reduce(kind, k.two(kind, x, x[::-1])),
            lambda k, x, _: k.two(kind, k.reduce(kind, x), k.reduce(kind, x[::-1])),
        ),
        "neutral elements between": (
            0, whole, lambda k, x, _: k.reduce(kind, k.xp.concatenate([x, k.full((2, x.shape[1]), unit, dtype)])),
        ),
        "zeros between": (
            0, whole, lambda k, x, _: k.reduce(kind, k.xp.concatenate([x, k.full((2, x.shape[1]), 0, dtype)])),
        ),
    }  # fmt: skip
    if kind in KINDS[:4] and dtype != "bool":
        statements["the last of the prefixes"] = 1, whole, lambda k, x, _: k.prefix(kind, x)[-1]
    if other in ("max", "min") and dtype != "bool":
        statements["negated"] = 0, whole, lambda k, x, _: -k.reduce(other, -x)
    if other is not None and (dtype == "bool" or (dtype in INTEGERS and kind in ("and", "or"))):
        statements["inverted"] = 0, whole, lambda k, x, _: ~k.reduce(other, ~x)
    if dtype in INTEGERS:
        statements["inverted, in integers"] = 0, whole, lambda k, x, _: ~k.reduce(other or kind, ~x)
    return statements


def _claim(
    name: str, dtype: str, least: int, left: StatementBody, right: StatementBody, guard: bool = False
) -> Callable[[str], JudgedClaim]:
    def of(body: StatementBody) -> Callable[[Array, Array], Array]:
        def plain(x: Array, places: Array) -> Array:
            made = body(JAX, x, places)
            return jnp.where(jnp.arange(made.shape[0]) > 1_000_000, made, jnp.zeros_like(made)) if guard else made

        return plain

    def make(family: str) -> JudgedClaim:
        rows = f"m+{least}" if least else "m"
        made = make_statement(name, of(left), of(right), (f"{dtype}[{rows} n]", f"int32[{rows}]"), {})
        return JudgedClaim(family, made, _folds(least, dtype, left, right))

    return make


# ---- conversions


@functools.cache
def values_of(dtype: str) -> Array:
    """All values of up to 16 bits; for wider types a revealing selection, and random bits.

    The selection has values beside powers of two, integers, halves, and values half way between those of shorter types.
    """
    kind = dtype_of(dtype)
    if dtype in ("int4", "uint4"):
        return np.arange(-8 if dtype == "int4" else 0, 8 if dtype == "int4" else 16).astype(kind)
    if dtype == "bool":
        return np.asarray([False, True])
    if kind.itemsize <= 2:
        return np.arange(2 ** (8 * kind.itemsize)).astype(f"uint{8 * kind.itemsize}").view(kind)
    beside = sorted({s * (2**e + d) for e in range(65) for d in range(-3, 4) for s in (1, -1)})
    if "int" in dtype:
        info = np.iinfo(kind)
        numbers = np.asarray([v for v in beside if info.min <= v <= info.max], kind)
    else:
        halves = [v / 2 for v in range(-70, 70)] + [v + 0.5 for v in beside if abs(v) < 2**52]
        below = [s * (v - 2.0**-e) for v in range(1, 130) for e in (9, 12, 20, 40) for s in (1, -1)]
        twice = [1 + 2.0**-e + s * 2.0**-d for e in range(2, 26) for d in (e + 3, e + 9, e + 26) for s in (1, -1)]
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 65504.0, 65520.0, 3.39e38, 1e300, -1e300]
        with np.errstate(all="ignore"):
            numbers = np.asarray([float(v) for v in (*beside, *halves, *below, *twice, *special)]).astype(kind)
    rng = np.random.default_rng(kind.itemsize)
    drawn = rng.integers(0, 2**32, (3000, kind.itemsize // 4), np.uint32).view(kind).reshape(-1)
    return np.concatenate([numbers, drawn])


def _through(k: Any, x: Array, path: Sequence[str]) -> Array:
    for source, target in itertools.pairwise(path):
        x = k.convert(x, source, target)
    return x


def _conversion(left: tuple[str, ...], right: tuple[str, ...]) -> Callable[[str], JudgedClaim]:
    @functools.cache
    def differs(exact: bool) -> bool:
        with np.errstate(all="ignore"):
            x = values_of(left[0])
            kept = x if exact or left[0] not in (*FLOATS, *FOREIGN) else x[np.isfinite(x.astype(np.float64))]
            return _apart(_through(NUMPY, kept, left), _through(NUMPY, kept, right), exact)

    def make(family: str) -> JudgedClaim:
        name = f"{' to '.join(left)} is {' to '.join(right)}"
        kind: Any = f"{left[0]}[n]" if left[0] in DTYPES else jax.ShapeDtypeStruct((5,), dtype_of(left[0]))
        sides = [functools.partial(_through, JAX, path=path) for path in (left, right)]
        return JudgedClaim(family, make_statement(name, _one(sides[0]), _one(sides[1]), (kind,), {}), differs)

    return make


def _one(body: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: body(x)


def _conversions() -> Iterator[Callable[[str], JudgedClaim]]:
    everything = (*DTYPES, *FOREIGN)
    for a, b in itertools.permutations(everything, 2):
        yield _conversion((a, b, a), (a,))
    for a, b, c in itertools.product(everything, repeat=3):
        if a != b != c:
            yield _conversion((a, b, c), (a, c))


# ---- names

_FALSE_OF_NAMES: tuple[tuple[StatementBody, StatementBody, tuple[str, str]], ...] = (
    (lambda a, x: jnp.exp(-a) * x, lambda a, x: x * 0, ("", "n")),
    (lambda a, x: jnp.exp(a) * x, lambda a, x: x, ("", "n")),
    (lambda a, x: a * x, lambda a, x: x * 0, ("n", "n")),
    (lambda a, x: a * x, lambda a, x: jnp.arange(x.shape[0]) * x, ("n", "n")),
    (lambda a, x: a * x, lambda a, x: x.shape[0] * x, ("", "n")),
    (lambda a, x: jnp.maximum(a, x), lambda a, x: x, ("n", "n")),
    (lambda a, x: x + a, lambda a, x: x - a, ("n", "n")),
    (lambda a, x: a.sum() * x, lambda a, x: x.sum() * a, ("n", "n")),
    (lambda a, x: jnp.exp(x + a), lambda a, x: jnp.exp(x) * a, ("n", "n")),
    (lambda a, x: a.max() + x, lambda a, x: x.max() + a, ("n+1", "n+1")),
    (lambda a, x: jnp.take(x, a, mode="clip"), lambda a, x: jnp.take(x, a[::-1], mode="clip"), ("int32[n]", "n+1")),
    (lambda a, x: jnp.where(a, x, 0), lambda a, x: x, ("bool[n]", "n")),
)
_TRUE_OF_NAMES: tuple[tuple[StatementBody, StatementBody, tuple[str, str]], ...] = (
    (lambda a, x: a * x, lambda a, x: x * a, ("n", "n")),
    (lambda a, x: jnp.exp(a + x), lambda a, x: jnp.exp(x) * jnp.exp(a), ("n", "n")),
    (lambda a, x: (a * x).sum(), lambda a, x: (a[::-1] * x[::-1]).sum(), ("n", "n")),
    (lambda a, x: jnp.take(x, a, mode="clip") * 2, lambda a, x: jnp.take(x * 2, a, mode="clip"), ("int32[n]", "n+1")),
)
_SPELLED = (
    "k!1", "o!1", "a!1", "p!0", "p0", "_", "_0", "!0", "#0", "$0", "0", "inf", "size", "value", "value()", "nan()",
    "rsum#0", "rmax#0", "exp#0", "exp(", 'exp(1*"x"^1)', '"x"', 'x"', "x^1", "?x", "?lt#0", "n", "m", "of floats 0",
    "in x", "fn exp", "index x", "cut0", "rounded0", "const0", "const0_", "x0", "w0", "read_by_a_step0", "x[k!1]",
    "min(n, 1)", "(n)//(2)", "x_1", "", "\\", "\n", "é",
)  # fmt: skip
"""Words that the prover derives from others, and words that might end a quotation."""


@functools.cache
def words() -> tuple[str, ...]:
    """Every word in the sources of the prover, and the words that it derives from these."""
    spelled: dict[str, None] = dict.fromkeys(_SPELLED)
    for path in sorted(Path(verifier.__file__).parent.glob("equal/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 20:
                spelled[node.value] = None
    return tuple(spelled)


def _names() -> Iterator[Callable[[str], JudgedClaim]]:
    for number, word in enumerate(words()):
        for left, right, specs in (*_FALSE_OF_NAMES, *_TRUE_OF_NAMES) if number < FEW else ():
            yield functools.partial(_named, word, left, right, specs)


def _named(word: str, left: StatementBody, right: StatementBody, specs: tuple[str, str], family: str) -> JudgedClaim:
    other = "x" if word != "x" else "y"

    def of(body: StatementBody) -> Callable[..., Array]:
        return lambda **given: body(given[word], given[other])

    false = any(body is left for body, _, _ in _FALSE_OF_NAMES)
    made = make_statement(f"{word!r} as an argument", of(left), of(right), (), dict(zip((word, other), specs)))  # noqa: B905
    return JudgedClaim(family, made, lambda exact: false)


_FAMILIES: dict[str, Callable[[], Iterator[Callable[[str], JudgedClaim]]]] = {
    "monoids": _monoids, "conversions": _conversions, "names": _names,
}  # fmt: skip


def judged(claim: JudgedClaim, prove: Callable[[Statement], Any]) -> dict[str, Any]:
    """The prover's verdict on a claim, and whether it is wrong."""
    with jax.enable_x64(True):
        verdict = prove(claim.statement)
    exact = verdict.domain is not None and verdict.domain.exactness == "exact"
    return {
        "family": claim.family,
        "name": claim.statement.name,
        "status": verdict.status,
        "exactness": "" if verdict.domain is None else verdict.domain.exactness,
        "true": not claim.differs(False),
        "false_proof": verdict.proved and claim.differs(exact),
        "ms": round(1e3 * verdict.seconds, 1),
        "cause": verdict.cause[:200],
    }
