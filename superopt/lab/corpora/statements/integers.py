"""True statements about machine integers, quantised products and masks, as compilers meet them.

bits          Laws of Boolean algebra, shifts and powers of two.
order         Comparisons, maxima and signs of integers of one width.
widths        Conversions between integers, and computation in the wider type.
quantised     Products of int8 accumulated in int32, zero points, split sums.
masks         Minus infinity and Boolean masks in softmax, maxima and sums.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from superopt.lab.corpora.statements.engineer import softmax
from superopt.lab.corpora.statements.kinds import TensorFunction
from verifier.statements.statement import Statement, make_statement


def _like(a: Any, value: int) -> Any:
    return jnp.full_like(a, value)


def _wide(a: Any) -> Any:
    return a.astype("int32")


def _product(a: Any, b: Any) -> Any:
    """A product of int8 accumulated in int32."""
    return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type="int32")


def _shift(a: Any, by: int) -> Any:
    return lax.shift_left(a, _like(a, by))


def _logical(a: Any, by: int) -> Any:
    return lax.shift_right_logical(a, _like(a, by))


def _arithmetic(a: Any, by: int) -> Any:
    return lax.shift_right_arithmetic(a, _like(a, by))


def _causal(s: Any) -> Any:
    n, m = s.shape[-2:]
    return lax.broadcasted_iota("int32", (n, m), 0) >= lax.broadcasted_iota("int32", (n, m), 1)


_BITS: dict[str, tuple[TensorFunction, TensorFunction, str]] = {
    "not-twice": (lambda a: ~~a, lambda a: a, "int32"),
    "xor-twice": (lambda a, b: (a ^ b) ^ b, lambda a, b: a, "int16"),
    "xor-itself": (lambda a: a ^ a, lambda a: _like(a, 0), "uint32"),
    "de-morgan-and": (lambda a, b: ~(a & b), lambda a, b: ~a | ~b, "int32"),
    "de-morgan-or": (lambda a, b: ~(a | b), lambda a, b: ~a & ~b, "uint8"),
    "absorb-and": (lambda a, b: a & (a | b), lambda a, b: a, "int8"),
    "absorb-or": (lambda a, b: a | (a & b), lambda a, b: a, "int32"),
    "and-distributes": (lambda a, b, c: a & (b | c), lambda a, b, c: (a & b) | (a & c), "uint16"),
    "and-with-zero": (lambda a: a & 0, lambda a: _like(a, 0), "int32"),
    "and-with-ones": (lambda a: a & -1, lambda a: a, "int32"),
    "or-with-ones": (lambda a: a | -1, lambda a: _like(a, -1), "int16"),
    "shift-as-product": (lambda a: _shift(a, 3), lambda a: a * 8, "int32"),
    "shift-as-product-narrow": (lambda a: _shift(a, 3), lambda a: a * 8, "int8"),
    "two-shifts": (lambda a: _shift(_shift(a, 3), 4), lambda a: _shift(a, 7), "uint32"),
    "two-right-shifts": (lambda a: _logical(_logical(a, 3), 4), lambda a: _logical(a, 7), "uint32"),
    "shift-beyond": (lambda a: _shift(a, 40), lambda a: _like(a, 0), "int32"),
    "unsigned-quotient": (lambda a: lax.div(a, _like(a, 4)), lambda a: _logical(a, 2), "uint32"),
    "unsigned-quotient-python": (lambda a: a // 8, lambda a: a >> 3, "uint16"),
    "floor-quotient": (lambda a: a // 4, lambda a: _arithmetic(a, 2), "int32"),
    "unsigned-remainder": (lambda a: lax.rem(a, _like(a, 16)), lambda a: a & 15, "uint32"),
    "floor-remainder": (lambda a: a % 16, lambda a: a & 15, "int32"),
    "low-bits-by-shifts": (lambda a: _logical(_shift(a, 24), 24), lambda a: a & 255, "uint32"),
    "sign-bit": (lambda a: _arithmetic(a, 31), lambda a: jnp.where(a < 0, -1, 0), "int32"),
    "negation": (lambda a: -a, lambda a: ~a + 1, "int32"),
    "difference-by-not": (lambda a, b: a - b, lambda a, b: a + ~b + 1, "int16"),
    "sum-by-bits": (lambda a, b: a + b, lambda a, b: (a ^ b) + ((a & b) << 1), "int32"),
    "or-as-sum": (lambda a, b: (a & ~b) + b, lambda a, b: a | b, "int32"),
    "average-without-overflow": (
        lambda a, b: (a & b) + _logical(a ^ b, 1),
        lambda a, b: ((a.astype("uint32") + b.astype("uint32")) // 2).astype("uint16"),
        "uint16",
    ),
    "power-of-two-test": (lambda a: (a & (a - 1)) == 0, lambda a: lax.population_count(a) <= 1, "uint8"),
    "lowest-bit": (lambda a: a & -a, lambda a: a & (~a + 1), "int32"),
    "bits-and-zeros": (lambda a: lax.population_count(a) + lax.population_count(~a), lambda a: _like(a, 8), "uint8"),
    "swapped-bytes-twice": (
        lambda a: (lambda s: _shift(s, 8) | _logical(s, 8))(_shift(a, 8) | _logical(a, 8)),
        lambda a: a,
        "uint16",
    ),
}
_ORDER: dict[str, tuple[TensorFunction, TensorFunction, str]] = {
    "abs-by-sign": (lambda a: jnp.abs(a), lambda a: jnp.where(a < 0, -a, a), "int32"),
    "abs-by-shift": (lambda a: jnp.abs(a), lambda a: (a ^ _arithmetic(a, 31)) - _arithmetic(a, 31), "int32"),
    "max-by-comparison": (lambda a, b: jnp.maximum(a, b), lambda a, b: jnp.where(a > b, a, b), "uint32"),
    "min-by-max": (lambda a, b: jnp.minimum(a, b), lambda a, b: ~jnp.maximum(~a, ~b), "int32"),
    "sign-by-comparisons": (
        lambda a: jnp.sign(a),
        lambda a: (a > 0).astype("int32") - (a < 0).astype("int32"),
        "int32",
    ),
    "less-by-flipped-sign": (
        lambda a, b: a < b,
        lambda a, b: (a ^ jnp.int32(-(2**31))).astype("uint32") < (b ^ jnp.int32(-(2**31))).astype("uint32"),
        "int32",
    ),
    "relu-by-mask": (lambda a: jnp.maximum(a, 0), lambda a: a & ~_arithmetic(a, 31), "int32"),
    "clip-twice": (lambda a: jnp.clip(jnp.clip(a, -100, 100), -128, 127), lambda a: jnp.clip(a, -100, 100), "int32"),
    "unsigned-never-negative": (lambda a: a >= 0, lambda a: a == a, "uint16"),
    "not-equal-by-xor": (lambda a, b: a != b, lambda a, b: (a ^ b) != 0, "int32"),
    "range-by-one-comparison": (lambda a: (a >= 0) & (a < 100), lambda a: a.astype("uint32") < 100, "int32"),
    "parity-of-sum": (lambda a, b: (a + b) & 1, lambda a, b: (a ^ b) & 1, "int32"),
    "select-by-mask": (
        lambda a, b: jnp.where(a < b, a, b),
        lambda a, b: b ^ ((a ^ b) & -(a < b).astype("int32")),
        "int32",
    ),
}
_WIDTHS: dict[str, tuple[TensorFunction, TensorFunction, tuple[str, ...]]] = {
    "widen-and-narrow": (lambda a: a.astype("int32").astype("int8"), lambda a: a, ("int8",)),
    "widen-twice": (lambda a: a.astype("int16").astype("int32"), lambda a: a.astype("int32"), ("int8",)),
    "narrow-twice": (lambda a: a.astype("int16").astype("int8"), lambda a: a.astype("int8"), ("int32",)),
    "sum-then-narrow": (
        lambda a, b: (a + b).astype("int8"),
        lambda a, b: a.astype("int8") + b.astype("int8"),
        ("int32", "int32"),
    ),
    "product-then-narrow": (
        lambda a, b: (a * b).astype("int8"),
        lambda a, b: a.astype("int8") * b.astype("int8"),
        ("int16", "int16"),
    ),
    "sum-in-wider": (lambda a, b: a + b, lambda a, b: (_wide(a) + _wide(b)).astype("int8"), ("int8", "int8")),
    "comparison-in-wider": (lambda a, b: a < b, lambda a, b: _wide(a) < _wide(b), ("int8", "int8")),
    "unsigned-comparison-in-wider": (lambda a, b: a < b, lambda a, b: _wide(a) < _wide(b), ("uint8", "uint8")),
    "maximum-in-wider": (
        lambda a, b: jnp.maximum(a, b),
        lambda a, b: jnp.maximum(_wide(a), _wide(b)).astype("uint8"),
        ("uint8", "uint8"),
    ),
    "sign-changes-nothing": (lambda a: a.astype("uint32").astype("int32"), lambda a: a, ("int32",)),
    "sum-without-sign": (
        lambda a, b: (a.astype("uint32") + b.astype("uint32")).astype("int32"),
        lambda a, b: a + b,
        ("int32", "int32"),
    ),
    "no-overflow-in-wider": (
        lambda a, b: _wide(a) + _wide(b) >= _wide(a),
        lambda a, b: _wide(b) >= 0,
        ("int8", "int8"),
    ),
    "square-in-wider": (lambda a: _wide(a) * _wide(a) >= 0, lambda a: a == a, ("int8",)),
    "zero-extension": (lambda a: _wide(a), lambda a: _wide(a.astype("int8")) & 255, ("uint8",)),
    "saturating-sum": (
        lambda a, b: jnp.clip(_wide(a) + _wide(b), -128, 127).astype("int8"),
        lambda a, b: jnp.minimum(jnp.maximum(_wide(b) + _wide(a), -128), 127).astype("int8"),
        ("int8", "int8"),
    ),
    "truth-as-integer": (lambda a, b: (a < b).astype("int32"), lambda a, b: jnp.where(a < b, 1, 0), ("int32", "int32")),
    "truth-of-sum": (
        lambda a, b: ((a < b).astype("int32") + (a >= b).astype("int32")) == 1,
        lambda a, b: a == a,
        ("int32", "int32"),
    ),
    "pack-and-unpack": (
        lambda a, b: ((_wide(a) << 8) | (_wide(b) & 255)) & 255,
        lambda a, b: _wide(b) & 255,
        ("int8", "int8"),
    ),
    "high-half": (
        lambda a, b: (((_wide(a) << 8) | (_wide(b) & 255)) >> 8).astype("int8"),
        lambda a, b: a,
        ("int8", "int8"),
    ),
}
_QUANTISED: dict[str, tuple[TensorFunction, TensorFunction, tuple[str, ...], tuple[str, ...]]] = {
    "accumulate-in-int32": (
        lambda a, b: _product(a, b),
        lambda a, b: _wide(a) @ _wide(b),
        ("int8[m,k]", "int8[k,n]"),
        (),
    ),
    "zero-point-of-a": (
        lambda a, b: (_wide(a) - 7) @ _wide(b),
        lambda a, b: _product(a, b) - 7 * jnp.sum(_wide(b), 0),
        ("int8[m,k]", "int8[k,n]"),
        (),
    ),
    "zero-point-of-b": (
        lambda a, b: _wide(a) @ (_wide(b) - 3),
        lambda a, b: _product(a, b) - 3 * jnp.sum(_wide(a), 1, keepdims=True),
        ("int8[m,k]", "int8[k,n]"),
        (),
    ),
    "zero-points-given": (
        lambda a, b, z: (_wide(a) - z) @ _wide(b),
        lambda a, b, z: _product(a, b) - z * jnp.sum(_wide(b), 0),
        ("int8[m,k]", "int8[k,n]", "int32[]"),
        (),
    ),
    "zero-points-of-both": (
        lambda a, b: (_wide(a) - 7) @ (_wide(b) - 3),
        lambda a, b: (
            _product(a, b) - 7 * jnp.sum(_wide(b), 0) - 3 * jnp.sum(_wide(a), 1, keepdims=True) + 21 * a.shape[1]
        ),
        ("int8[m,k]", "int8[k,n]"),
        ("k <= 1000",),
    ),
    "split-k": (
        lambda a, b: _product(a, b),
        lambda a, b: _product(a[:, :32], b[:32]) + _product(a[:, 32:], b[32:]),
        ("int8[m,64]", "int8[64,n]"),
        (),
    ),
    "split-k-of-any-size": (
        lambda a, b, c, d: _product(jnp.concatenate([a, b], 1), jnp.concatenate([c, d], 0)),
        lambda a, b, c, d: _product(a, c) + _product(b, d),
        ("int8[m,k]", "int8[m,j]", "int8[k,n]", "int8[j,n]"),
        (),
    ),
    "transposed-product": (
        lambda a, b: _product(a, b).T,
        lambda a, b: _product(b.T, a.T),
        ("int8[m,k]", "int8[k,n]"),
        (),
    ),
    "bias-first": (
        lambda a, b, c: _product(a, b) + c,
        lambda a, b, c: c + _product(a, b),
        ("int8[m,k]", "int8[k,n]", "int32[n]"),
        (),
    ),
    "associates": (
        lambda a, b, c: (a @ b) @ c,
        lambda a, b, c: a @ (b @ c),
        ("int32[m,k]", "int32[k,n]", "int32[n,p]"),
        (),
    ),
    "distributes": (
        lambda a, b, c: a @ b + a @ c,
        lambda a, b, c: a @ (b + c),
        ("int32[m,k]", "int32[k,n]", "int32[k,n]"),
        (),
    ),
    "sum-in-int32": (lambda a: jnp.sum(a, dtype="int32"), lambda a: jnp.sum(_wide(a)), ("int8[n]",), ()),
    "sum-of-rows": (lambda a: jnp.sum(jnp.sum(_wide(a), 0)), lambda a: jnp.sum(_wide(a)), ("int8[m,n]",), ()),
    "shift-after-sum": (
        lambda a: jnp.sum(_wide(a) * 4, 0),
        lambda a: _shift(jnp.sum(_wide(a), 0), 2),
        ("int8[m,n]",),
        (),
    ),
    "uint8-as-int8": (
        lambda a, b: _wide(a) @ _wide(b),
        lambda a, b: _wide((a ^ 128).astype("int8")) @ _wide(b) + 128 * jnp.sum(_wide(b), 0),
        ("uint8[m,k]", "int8[k,n]"),
        (),
    ),
    "requantise-clip": (
        lambda a: jnp.clip(jnp.clip(a, -128, 127), -128, 127).astype("int8"),
        lambda a: jnp.clip(a, -128, 127).astype("int8"),
        ("int32[n]",),
        (),
    ),
    "relu-in-int8": (
        lambda a: jnp.clip(jnp.maximum(a, 0), -128, 127).astype("int8"),
        lambda a: jnp.maximum(jnp.clip(a, -128, 127).astype("int8"), 0),
        ("int32[n]",),
        (),
    ),
    "gather-then-widen": (
        lambda a, i: _wide(jnp.take(a, i, mode="clip")),
        lambda a, i: jnp.take(_wide(a), i, mode="clip"),
        ("int8[n]", "int32[m]"),
        (),
    ),
}
_MASKS: dict[str, tuple[TensorFunction, TensorFunction, tuple[str, ...], tuple[str, ...]]] = {
    "causal-added": (
        lambda s: softmax(s + jnp.where(_causal(s), 0.0, -jnp.inf)),
        lambda s: softmax(jnp.where(_causal(s), s, -jnp.inf)),
        ("n n",),
        (),
    ),
    "boolean-mask-added": (
        lambda s, m: s + jnp.where(m, 0.0, -jnp.inf),
        lambda s, m: jnp.where(m, s, -jnp.inf),
        ("m n", "bool[m,n]"),
        (),
    ),
    "exp-of-mask": (
        lambda s, m: jnp.exp(jnp.where(m, s, -jnp.inf)),
        lambda s, m: jnp.where(m, jnp.exp(s), 0.0),
        ("m n", "bool[m,n]"),
        (),
    ),
    "sum-of-exp-of-mask": (
        lambda s, m: jnp.sum(jnp.exp(jnp.where(m, s, -jnp.inf)), -1),
        lambda s, m: jnp.sum(jnp.where(m, jnp.exp(s), 0.0), -1),
        ("m n", "bool[m,n]"),
        (),
    ),
    "causal-exp": (
        lambda s: jnp.exp(jnp.where(_causal(s), s, -jnp.inf)),
        lambda s: jnp.where(_causal(s), jnp.exp(s), 0.0),
        ("n n",),
        (),
    ),
    "mask-twice": (
        lambda s, m: jnp.where(m, jnp.where(m, s, -jnp.inf), -jnp.inf),
        lambda s, m: jnp.where(m, s, -jnp.inf),
        ("m n", "bool[m,n]"),
        (),
    ),
    "masks-meet": (
        lambda s, m, k: jnp.where(m, jnp.where(k, s, -jnp.inf), -jnp.inf),
        lambda s, m, k: jnp.where(m & k, s, -jnp.inf),
        ("m n", "bool[m,n]", "bool[m,n]"),
        (),
    ),
    "mask-negated": (
        lambda s, m: jnp.where(~m, -jnp.inf, s),
        lambda s, m: jnp.where(m, s, -jnp.inf),
        ("m n", "bool[m,n]"),
        (),
    ),
    "maximum-of-mask": (
        lambda s, m: jnp.max(jnp.where(m, s, -jnp.inf), -1),
        lambda s, m: jnp.max(jnp.where(~m, -jnp.inf, s), -1),
        ("m n", "bool[m,n]"),
        (),
    ),
    "scale-before-mask": (
        lambda s, m: jnp.where(m, s * 0.125, -jnp.inf),
        lambda s, m: 0.125 * jnp.where(m, s, -jnp.inf),
        ("m n", "bool[m,n]"),
        (),
    ),
    "masked-sum": (
        lambda s, m: jnp.sum(jnp.where(m, s, 0.0), -1),
        lambda s, m: jnp.sum(s * m.astype("float32"), -1),
        ("m n", "bool[m,n]"),
        (),
    ),
    "masked-product": (
        lambda s, m, v: jnp.where(m, s, 0.0) @ v,
        lambda s, m, v: (s * m) @ v,
        ("m k", "bool[m,k]", "k n"),
        (),
    ),
    "softmax-of-mask-by-sums": (
        lambda s, m: softmax(jnp.where(m, s, -jnp.inf)),
        lambda s, m: jax.nn.softmax(jnp.where(m, s, -jnp.inf), axis=-1),
        ("m n", "bool[m,n]"),
        (),
    ),
    "triangle-by-iota": (lambda s: jnp.tril(s), lambda s: jnp.where(_causal(s), s, 0.0), ("n n",), ()),
    "band": (
        lambda s: jnp.triu(jnp.tril(s, 1), -1),
        lambda s: jnp.where(jnp.abs(jnp.arange(s.shape[0])[:, None] - jnp.arange(s.shape[0])[None]) <= 1, s, 0.0),
        ("n n",),
        (),
    ),
    "window-of-mask": (lambda s: jnp.where(_causal(s) & ~_causal(s), s, 0.0), lambda s: 0.0 * s, ("n n",), ()),
    "any-by-sum": (lambda m: jnp.any(m, -1), lambda m: jnp.max(m.astype("int32"), -1) > 0, ("bool[m,n]",), ("n >= 1",)),
    "all-by-any": (lambda m: jnp.all(m, -1), lambda m: ~jnp.any(~m, -1), ("bool[m,n]",), ()),
}


def _made() -> list[Statement]:
    statements: list[Statement] = []

    def add(
        name: str,
        left: TensorFunction,
        right: TensorFunction,
        specs: tuple[str, ...],
        constraints: tuple[str, ...] = (),
    ) -> None:
        statements.append(make_statement(name, left, right, specs, {}, constraints, f"{__name__}:{name}"))

    for table in (_BITS, _ORDER):
        for name, (left, right, kind) in table.items():
            add(name, left, right, (f"{kind}[n]",) * left.__code__.co_argcount)
    for name, (left, right, kinds) in _WIDTHS.items():
        add(name, left, right, tuple(f"{kind}[n]" for kind in kinds))
    for name, (left, right, specs, constraints) in (_QUANTISED | _MASKS).items():
        add(name, left, right, specs, constraints)
    return statements


STATEMENTS = tuple(_made())
