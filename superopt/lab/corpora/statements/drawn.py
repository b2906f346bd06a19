"""Random statements: two functions that are one random expression except for one place, where a law is applied.

Laws are true or only look true.  The verifier must answer without an exception, and evaluation in the dtypes must not
contradict what the prover proves.  Every value has the shape of the first argument.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import jax
from jax import lax
from jax import numpy as jnp

from verifier.statements.statement import Statement, make_statement

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int32", "int8", "uint8", "int16", "uint32")
DEPTH = 3
"""Nesting depth of functions: deeper ones take longer and reveal no more."""
NAMES = {"jax": jax, "jnp": jnp, "lax": lax}

_ANY = (
    "jnp.where({p}, {a}, {b})", "{a}[::-1]", "jnp.flip({a}, -1)", "jnp.roll({a}, 1, -1)", "lax.cummax({a}, axis=0)",
    "jnp.broadcast_to(jnp.max({a}, -1, keepdims=True), x.shape)", "jnp.maximum({a}, {b})", "jnp.minimum({a}, {b})",
    "jnp.broadcast_to(jnp.sum({a}, -1, keepdims=True, dtype={dtype!r}), x.shape)", "{a} + {b}", "{a} - {b}",
    "{a} * {b}", "-{a}", "jnp.abs({a})", "jnp.sign({a})", "jnp.clip({a}, {c}, {k})", "{p}.astype({dtype!r})",
    "jnp.full(x.shape, {c}, {dtype!r})", "lax.select({p}, {a}, {b})", "jnp.concatenate([{a}, {b}])[: x.shape[0]]",
    "jnp.pad({a}, 1)[(slice(1, -1),) * {a}.ndim]", "lax.cond({p}.all(), lambda: {a}, lambda: {b})",
    "jnp.take({a}, {i}.reshape(-1)[:1] * 0 + 1, axis=-1, mode='clip') * jnp.ones(x.shape, {dtype!r})",
    "lax.fori_loop(0, 2, lambda _, s: s + {a}, {b})", "jnp.cumsum({a}, 0, dtype={dtype!r})",
    "jnp.broadcast_to(lax.iota({dtype!r}, x.shape[-1]), x.shape)", "jnp.square({a})", "{a} ** 2",
    "jnp.sort({a}, -1)", "jnp.broadcast_to(jnp.prod({a}, -1, keepdims=True, dtype={dtype!r}), x.shape)",
)  # fmt: skip
_FLOAT = (
    "{a} / {b}", "jnp.exp({a})", "jnp.log({a})", "jnp.tanh({a})", "jnp.sqrt({a})", "lax.rsqrt({a})", "jnp.sin({a})",
    "jax.nn.relu({a})", "jax.nn.sigmoid({a})", "jnp.floor({a})", "{a} ** 3", "{a} ** 0.5", "{i}.astype({dtype!r})",
    "{a}.astype('bfloat16').astype({dtype!r})", "{a}.astype('float32').astype({dtype!r})", "{a} * {c}", "{a} + 0.5",
    "jnp.nan_to_num({a})", "jax.nn.softmax({a}, axis=-1)", "jnp.log1p(jnp.exp({a}))", "lax.erf({a})",
    "jnp.where({p}, {a}, -jnp.inf)", "jnp.broadcast_to(jnp.mean({a}, -1, keepdims=True), x.shape)", "1 / {a}",
    "{a}.astype('float16').astype({dtype!r})", "jax.nn.logsumexp({a}, -1, keepdims=True) + {b}", "{a} % {b}",
    "{a} * x.shape[-1]", "jnp.exp2({a})",
)  # fmt: skip
_INTEGER = (
    "{a} // {b}", "{a} % {b}", "lax.div({a}, {b})", "lax.rem({a}, {b})", "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "~{a}",
    "{a} << {k}", "{a} >> {k}", "lax.shift_right_logical({a}, jnp.full_like({a}, {k}))", "{a} * {c}", "{a} + {k}",
    "{a}.astype('int32').astype({dtype!r})", "{a}.astype('int8').astype({dtype!r})", "lax.population_count({a})",
    "{f}.astype({dtype!r})", "jnp.full(x.shape, x.shape[0], {dtype!r})", "{a}.astype('uint8').astype({dtype!r})",
    "jnp.argmax({f}, -1, keepdims=True).astype({dtype!r}) + 0 * {a}", "lax.clz({a})",
)  # fmt: skip
_TRUTH = (
    "{a} < {b}", "{a} <= {b}", "{a} == {b}", "{a} != {b}", "{i} > {j}", "{i} >= {k}", "{p} & {q}", "{p} | {q}", "~{p}",
    "{p} ^ {q}", "jnp.isnan({f})", "jnp.isfinite({f})", "jnp.broadcast_to(jnp.any({p}, -1, keepdims=True), x.shape)",
    "jnp.broadcast_to(jnp.all({p}, -1, keepdims=True), x.shape)", "jnp.where({p}, {q}, ~{q})", "{i}.astype(bool)",
    "jnp.broadcast_to(lax.iota('int32', x.shape[-1]) < {k}, x.shape)", "{p} == {q}", "{f} > {c}",
)  # fmt: skip
_TEMPLATES = {"f": _ANY + _FLOAT, "i": _ANY + _INTEGER, "p": _TRUTH}

_ANY_LAWS = (
    ("{a} + {b}", "{b} + {a}"), ("({a} + {b}) - {b}", "{a}"), ("{a} * ({b} + {d})", "{a} * {b} + {a} * {d}"),
    ("jnp.maximum({a}, {b})", "jnp.where({a} > {b}, {a}, {b})"), ("{a} - {a}", "jnp.zeros_like({a})"),
    ("-jnp.maximum({a}, {b})", "jnp.minimum(-{a}, -{b})"), ("jnp.abs(-{a})", "jnp.abs({a})"), ("-(-{a})", "{a}"),
    ("jnp.where({p}, {a}, {a})", "{a}"), ("jnp.where(~{p}, {a}, {b})", "jnp.where({p}, {b}, {a})"),
    ("{a} + 0", "{a}"), ("{a} * 1", "{a}"), ("{a} * 0", "jnp.zeros_like({a})"), ("{a}[::-1][::-1]", "{a}"),
    ("jnp.sum({a}[::-1], 0, dtype={dtype!r}) + {b}", "jnp.sum({a}, 0, dtype={dtype!r}) + {b}"),
    ("{a} ** 2", "{a} * {a}"),
    ("jnp.max(-{a}, 0) + {b}", "-jnp.min({a}, 0) + {b}"), ("jnp.clip({a}, {c}, {k})", "jnp.clip({a}, {k}, {c})"),
    ("jnp.where({p}, {a} + {b}, {a})", "{a} + jnp.where({p}, {b}, 0)"), ("jnp.abs({a}) * jnp.sign({a})", "{a}"),
    ("jnp.where({p}, {a}, {b}) * {d}", "jnp.where({p}, {a} * {d}, {b} * {d})"), ("{a}", "{b}"),
    ("jnp.maximum({a} + {d}, {b} + {d})", "jnp.maximum({a}, {b}) + {d}"), ("{a} * {c}", "{a} * {k}"),
    ("jnp.where({p}, jnp.where({q}, {a}, {b}), {b})", "jnp.where({p} & {q}, {a}, {b})"), ("{a} * 2", "{a} + {a}"),
)  # fmt: skip
_FLOAT_LAWS = (
    ("{a} / {b}", "{a} * (1 / {b})"), ("jnp.exp({a}) * jnp.exp({b})", "jnp.exp({a} + {b})"), ("{a} / {a}", "{a} ** 0"),
    ("jnp.log(jnp.exp({a}))", "{a}"), ("jnp.exp(jnp.log({a}))", "{a}"), ("jnp.sqrt({a} * {a})", "jnp.abs({a})"),
    ("jnp.sqrt({a} * {b})", "jnp.sqrt({a}) * jnp.sqrt({b})"), ("jnp.log({a} * {b})", "jnp.log({a}) + jnp.log({b})"),
    ("jnp.sqrt({a}) ** 2", "{a}"), ("jnp.log(jnp.sqrt({a}))", "0.5 * jnp.log({a})"),
    ("jnp.log({a} ** 2)", "2 * jnp.log({a})"),
    ("{a}.astype('bfloat16').astype({dtype!r})", "{a}"), ("{a}.astype('float32').astype({dtype!r})", "{a}"),
    ("jax.nn.softmax({a} + {c}, -1)", "jax.nn.softmax({a}, -1)"), ("jnp.where(jnp.isnan({a}), 0, {a})", "{a}"),
    ("jax.nn.sigmoid(-{a})", "1 - jax.nn.sigmoid({a})"), ("jnp.tanh({a})", "2 * jax.nn.sigmoid(2 * {a}) - 1"),
    ("({a} + {b}).astype('bfloat16').astype({dtype!r})", "({b} + {a}).astype('bfloat16').astype({dtype!r})"),
    ("({i} + {j}).astype({dtype!r})", "{i}.astype({dtype!r}) + {j}.astype({dtype!r})"), ("1 / (1 / {a})", "{a}"),
    ("jnp.sqrt(4 * {a})", "2 * jnp.sqrt({a})"), ("jnp.floor({a} + 1)", "jnp.floor({a}) + 1"),
    ("{a} - {b}", "-({b} - {a})"),
    ("jnp.sum({a} * {c}, -1, keepdims=True) + {b}", "{c} * jnp.sum({a}, -1, keepdims=True) + {b}"),
    ("{a} ** 0.5", "jnp.sqrt({a})"),
    ("jnp.mean({a}, 0) + {b}", "jnp.sum({a}, 0) / x.shape[0] + {b}"), ("lax.rsqrt({a})", "1 / jnp.sqrt({a})"),
)  # fmt: skip
_INTEGER_LAWS = (
    ("{a} // 4", "{a} >> 2"), ("lax.div({a}, jnp.full_like({a}, 4))", "{a} >> 2"), ("{a} % 8", "{a} & 7"),
    ("lax.rem({a}, jnp.full_like({a}, 8))", "{a} & 7"), ("({a} * 3) // 3", "{a}"), ("{a} ^ {b} ^ {b}", "{a}"),
    ("({a} << 2) >> 2", "{a}"), ("{a}.astype('int32').astype({dtype!r})", "{a}"), ("-{a}", "~{a} + 1"),
    ("{a}.astype('int8').astype({dtype!r})", "{a}"), ("{a}.astype('float32').astype({dtype!r})", "{a}"),
    ("{a} & ({a} | {b})", "{a}"), ("{a} + {b}", "({a} ^ {b}) + (({a} & {b}) << 1)"), ("({a} + 1) - 1", "{a}"),
    ("({a} // {b}) * {b} + {a} % {b}", "{a}"), ("jnp.maximum({a} * {a}, 0)", "{a} * {a}"), ("{a} >> 1", "{a} // 2"),
    ("lax.iota({dtype!r}, x.shape[-1]) * {a}", "lax.iota('int32', x.shape[-1]).astype({dtype!r}) * {a}"),
    ("{p}.astype({dtype!r})", "jnp.where({p}, 1, 0).astype({dtype!r})"), ("{a} * 4", "{a} << 2"), ("{a} | {a}", "{a}"),
    ("{f}.astype('int32').astype({dtype!r})", "{f}.astype({dtype!r})"), ("jnp.abs({a}) + 0", "jnp.maximum({a}, -{a})"),
)  # fmt: skip
_TRUTH_LAWS = (
    ("{a} < {b}", "{b} > {a}"), ("~({a} < {b})", "{a} >= {b}"), ("{a} == {a}", "{p} | ~{p}"),
    ("{p} ^ {q}", "{p} != {q}"),
    ("{i} + 1 > {i}", "{i} == {i}"), ("{i} - {j} > 0", "{i} > {j}"), ("{i} < {j}", "{i} + 1 <= {j}"),
    ("~({p} & {q})", "~{p} | ~{q}"),
    ("{f} < {g}", "{f}.astype('bfloat16') < {g}.astype('bfloat16')"), ("{f} - {g} > 0", "{f} > {g}"), ("~~{p}", "{p}"),
    ("{f} + {c} < {g} + {c}", "{f} < {g}"), ("({f} < {g}) & ({g} < {f})", "{p} & ~{p}"),
    ("{i} * {i} >= 0", "{i} == {i}"),
    ("jnp.any({p}, 0) & {q}", "~jnp.all(~{p}, 0) & {q}"), ("jnp.any({p}, 0) & {q}", "(jnp.sum({p}, 0) > 0) & {q}"),
    ("({f} < {g}) | ({f} >= {g})", "{p} | ~{p}"), ("{f} * 2 < {g} * 2", "{f} < {g}"),
    ("{i}.astype('uint8') < 5", "{i} < 5"),
)  # fmt: skip
_LAWS = {"f": _ANY_LAWS + _FLOAT_LAWS, "i": _ANY_LAWS + _INTEGER_LAWS, "p": _TRUTH_LAWS}


def drawn(seed: int, count: int) -> Iterator[Statement]:
    """A sequence of `count` random statements."""
    for number in range(seed, seed + count):
        yield _Draw(random.Random(number)).statement(f"drawn-{number}")


class _Draw:
    """One statement: its types and its inputs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = {"f": rng.choice(FLOATS), "i": rng.choice(INTEGERS), "p": "bool"}
        self.result = rng.choice("ffiip")
        self.shape = rng.choice(("n", "m n", "n n", "3 n"))

    def statement(self, name: str) -> Statement:
        left, right = self.pair(self.result, self.rng.randint(1, DEPTH), True)
        leaves = {"x": "f", "y": "f", "i": "i", "j": "i", "p": "p"}
        code = [f"lambda {', '.join(leaves)}: {body}" for body in (left, right)]
        specs = [f"{self.kinds[kind]}[{self.shape.replace(' ', ',')}]" for kind in leaves.values()]
        sides = [eval(text, dict(NAMES)) for text in code]
        sizes = dict.fromkeys(s for s in self.shape.split() if s.isalpha())
        constraints = tuple(f"{n} >= 1" for n in sizes) if self.rng.random() < 0.8 else ()
        where = f"{__name__}: {specs} {constraints}\n  {code[0]}\n  {code[1]}"
        return make_statement(name, sides[0], sides[1], tuple(specs), {}, constraints, where)

    def pair(self, kind: str, depth: int, here: bool) -> tuple[str, str]:
        """Two copies of an expression; with `here` they differ by a law somewhere inside."""
        rng = self.rng
        if depth == 0 and not here:
            leaf = {"f": ("x", "y"), "i": ("i", "j"), "p": ("p",)}[kind]
            return (rng.choice(leaf),) * 2
        if here and (depth <= 1 or rng.random() < 0.4):
            texts, inside = rng.choice(_LAWS[kind]), ""
        else:
            texts = (rng.choice(_TEMPLATES[kind]),) * 2
            inside = rng.choice([n for n in "abdfgijpq" if f"{{{n}}}" in texts[0]] or [""]) if here else ""
        if here and not inside and texts[0] == texts[1]:  # nothing to go on with: the law stands here
            texts = rng.choice(_LAWS[kind])
        sides: list[dict[str, str]] = [{}, {}]
        main = "f" if kind == "p" and rng.random() < 0.5 else "i" if kind == "p" else kind
        for name in "abdfgijpq":
            if any(f"{{{name}}}" in text for text in texts):
                of = {"f": "f", "g": "f", "i": "i", "j": "i", "p": "p", "q": "p"}.get(name, main)
                made = self.pair(of, max(depth - 1, 0), name == inside)
                for side, text in zip(sides, made, strict=True):
                    side[name] = f"({text})"
        given = {"c": rng.choice((0, 1, 2, 3, 100)), "k": rng.choice((1, 2, 7)), "dtype": self.kinds[kind]}
        left, right = (text.format(**side, **given) for text, side in zip(texts, sides, strict=True))
        return left, right
