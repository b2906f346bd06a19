"""Random JAX programs: gradients, vmap, scan, cond, while, neutral constants, integers at their extremes, movement.

Every value that is drawn has a code and its type in JAX (`jax.eval_shape`); values that JAX refuses are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from superopt.lab.fuzz.case import MODES, FuzzCase, FuzzValue, used

FLOATS = ("float32", "float32", "float32", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int32", "int8", "uint8", "int16", "uint32")
SHARES = (40, 8, 14, 10, 18, 10)
"""Relative frequencies of the modes: those that measure take longest."""
_FLOAT = (
    "jnp.tanh({a})",
    "jnp.exp(jnp.tanh({a}))",
    "jnp.sin({a})",
    "jnp.abs({a})",
    "jnp.sqrt(jnp.abs({a}) + 0.5)",
    "jnp.log1p(jnp.abs({a}))",
    "jax.nn.sigmoid({a})",
    "jax.nn.relu({a})",
    "jax.nn.gelu({a})",
    "jax.nn.silu({a})",
    "-{a}",
    "{a} * {a}",
    "{a} / (1 + jnp.abs({a}))",
    "jnp.maximum({a}, 0.25)",
    "jnp.clip({a}, -1, 1)",
    "jax.nn.softmax({a}, axis={axis})",
    "jax.nn.logsumexp({a}, axis={axis}, keepdims=True)",
    "{a} - {a}.mean({axis}, keepdims=True)",
    "jnp.cumsum({a}, axis={axis})",
    "lax.cummax({a}, axis={axis})",
    "jnp.square({a})",
    "lax.rsqrt({a} * {a} + 1)",
    "jnp.where({a} > 0, {a}, 0.5 * {a})",
    "jnp.expm1(jnp.tanh({a}))",
    "jax.nn.log_softmax({a}, axis={axis})",
    "jnp.var({a}, axis={axis}, keepdims=True)",
    "lax.erf({a})",
    "{a} ** 2",
    "{a} ** 3",
    "jnp.float32(2) * {a}",
    "{a}.astype(jnp.float32)",
    "{a}.astype(jnp.bfloat16)",
    "lax.stop_gradient({a}) + {a}",
    "jnp.nan_to_num({a})",
    "jax.nn.one_hot(jnp.argmax({a}, {axis}), 5)",
    "jax.checkpoint(jnp.tanh)({a})",
    "jnp.prod(jnp.tanh({a}), axis={axis})",
)
_NEUTRAL = (
    "{a} * 1.0",
    "{a} + 0.0",
    "{a} / 1.0",
    "{a} - 0.0",
    "{a} ** 1",
    "1.0 * {a}",
    "{a} * jnp.ones({shape}, {dtype!r})",
    "{a} + jnp.zeros({shape}, {dtype!r})",
    "{a} * 1.0 * 1.0 + 0.0",
    "{a}.reshape({shape})",
    "jnp.transpose({a}, {same})",
    "jnp.concatenate([{a}], {axis})",
    "jnp.pad({a}, 0)",
    "jnp.where(True, {a}, 0 * {a})",
    "jnp.flip(jnp.flip({a}))",
    "{a}.astype({dtype!r})",
    "jnp.maximum({a}, -jnp.inf)",
    "jnp.exp({a}) * 1.0 - 0.0",
)
_ANY = (
    "{a}.T",
    "jnp.flip({a}, {axis})",
    "jnp.roll({a}, {small}, {axis})",
    "{a}.reshape(-1)",
    "{a}[None]",
    "{a}[..., None]",
    "jnp.concatenate([{a}, {a}], {axis})",
    "jnp.stack([{a}, {a}], {axis})",
    "jnp.repeat({a}, 2, {axis})",
    "jnp.tile({a}, 2)",
    "{a}.max({axis})",
    "{a}.min({axis}, keepdims=True)",
    "{a}.sum({axis})",
    "{a}.sum()",
    "lax.slice_in_dim({a}, 1, {a}.shape[{axis}], axis={axis})",
    "lax.slice_in_dim({a}, 0, {a}.shape[{axis}], 2, {axis})",
    "lax.rev({a}, ({axis},))",
    "jnp.sort({a}, axis={axis})",
    "jnp.take({a}, jnp.array([0, {small}, 1]), axis={axis}, mode='clip')",
    "jnp.take_along_axis({a}, jnp.argsort({a}, {axis}), {axis})",
    "jnp.argmax({a}, {axis})",
    "{a} > {b}",
    "{a} == {a}",
    "jnp.where({a} > {b}, {a}, {b})",
    "jnp.maximum({a}, {b})",
    "jnp.minimum({a}, {b})",
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a}.at[{small} % {a}.shape[0]].set({c})",
    "{a}.at[0].add({c})",
    "{a}.at[jnp.array([0, 0])].max({c})",
    "lax.dynamic_slice_in_dim({a}, {small}, 1, {axis})",
    "lax.dynamic_update_slice({a}, {a}, ({small},) * {a}.ndim)",
    "jnp.broadcast_to({a}, (2, *{a}.shape))",
    "jnp.tril(jnp.atleast_2d({a}))",
    "jnp.moveaxis({a}, {axis}, 0)",
    "jnp.expand_dims({a}, {axis})",
    "lax.top_k({a}, 1)[0]",
    "jnp.diff({a}, axis={axis})",
    "lax.reduce_window({a}, {least}, lax.max, (2,) * {a}.ndim, (1,) * {a}.ndim, 'VALID')",
    "lax.cond({a}.sum() > 0, lambda t: t + t, lambda t: t - t, {a})",
    "lax.fori_loop(0, 3, lambda i, t: t + {a}, {a})",
    "lax.scan(lambda s, t: (s + t, s), jnp.zeros_like({a}[0]), {a})[1]",
    "lax.scan(lambda s, t: (t, s * t), {a}[0], {a})[0]",
    "lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + {a}), (0, {a}))[1]",
    "lax.map(lambda t: t * 2, {a})",
    "lax.fori_loop(0, 4, lambda i, t: jnp.tanh(t @ jnp.swapaxes(t, -1, -2) @ t), {a})",
    "lax.scan(lambda s, t: (jax.nn.softmax(s + t, -1), jnp.sum(s * t, -1)), {a}[0], {a})[1]",
    "lax.scan(lambda s, t: (jnp.maximum(s, t @ jnp.swapaxes(t, -1, -2) @ s), s @ t.T), {a}[0], {a})[0]",
    "lax.fori_loop(0, 3, lambda i, t: t[::-1] - i * jnp.roll(t, 1, -1), {a})",
    "lax.cond({a}.sum() > 0, lambda t: jnp.exp(jnp.tanh(t)), lambda t: t - jnp.max(t, -1, keepdims=True), {a})",
    "lax.while_loop(lambda s: (s[0] < 4) & (jnp.max(s[1]) < 9), lambda s: (s[0] + 1, s[1] * {a}), (0, {a}))[1]",
    "jax.vmap(lambda t: t[::-1])(jnp.atleast_2d({a}))",
    "jnp.split({a}, [1], {axis})[1]",
    "jax.vmap(lambda t: t.sum())({a})",
    "lax.associative_scan(jnp.add, {a}, axis={axis})",
    "lax.select({a} > {b}, {a}, {b})",
)
_PADS = (
    *(f"jnp.pad({{a}}, {{pad}}, mode={mode!r})" for mode in ("constant", "edge", "reflect", "symmetric", "wrap")),
    "lax.pad({a}, jnp.zeros((), {a}.dtype), ((1, -1, 1),) + ((0, 1, 0),) * ({a}.ndim - 1))",
    "jnp.pad({a}, 1, constant_values=1)",
    "jnp.pad({a}, {pad}, mode='linear_ramp')",
    "jnp.pad({a}, {pad}, mode='maximum')",
)
_DERIVED = (
    "jax.grad(lambda t: ({inner}).astype(jnp.float32).sum())({a})",
    "jax.vmap(lambda t: {inner})({a})",
    "jax.jvp(lambda t: {inner}, ({a},), ({a},))[1]",
    "jax.jit(lambda t: {inner})({a})",
    "jax.vjp(lambda t: {inner}, {a})[1]({inner_at})[0]",
    "jax.value_and_grad(lambda t: ({inner}).astype(jnp.float32).sum())({a})[0]",
)
_INTEGER = (
    "{a} // 3",
    "{a} % 3",
    "{a} // jnp.maximum({b}, 1)",
    "lax.div({a}, jnp.full({shape}, 3, {dtype!r}))",
    "{a} << 1",
    "{a} >> 1",
    "{a} & {b}",
    "{a} | {b}",
    "{a} ^ {b}",
    "~{a}",
    "-{a}",
    "jnp.abs({a})",
    "jnp.sign({a})",
    "{a}.astype(jnp.float32)",
    "{a} + 1",
    "{a} * {a}",
    "{a}.astype(jnp.int32)",
    "{a}.astype(jnp.int8)",
    "jnp.clip({a}, 0, 5)",
    "{a}.astype(jnp.uint8)",
    "lax.population_count({a})",
    "lax.clz({a})",
    "lax.rem({a}, jnp.full({shape}, 5, {dtype!r}))",
    "{a} > 0",
    "jnp.cumsum({a}, {axis})",
)
_BOOL = (
    "~{a}",
    "{a} & {b}",
    "{a} ^ {b}",
    "{a}.astype(jnp.float32)",
    "jnp.any({a}, {axis})",
    "jnp.where({a}, 1.0, -2.0)",
)
_PRODUCTS = (
    "jnp.matmul({p}, {q})",
    "jnp.einsum('...i,...i->...', {a}, {b})",
    "jnp.outer({a}.reshape(-1)[:4], {b}.reshape(-1)[:5])",
    "jnp.tensordot({a}, {a}, axes=({a}.ndim, {a}.ndim))",
    "lax.conv_general_dilated({a}.reshape(1, 1, -1), jnp.ones((2, 1, 3), {a}.dtype), (1,), 'SAME')",
)
_LOOSE = (
    "argmax",
    "argsort",
    " > ",
    " == ",
    "sign(",
    "sort",
    "top_k",
    "lax.cond",
    "astype(jnp.int",
    "astype(jnp.uint",
    "//",
    "%",
)
_MOST = 4096  # elements of a value


def program(seed: int) -> FuzzCase:
    """The program of a number."""
    rng = random.Random(f"jax {seed}")
    inputs = tuple(_input(rng, i) for i in range(rng.randint(1, 4)))
    values = list(inputs)
    lines: list[FuzzValue] = []
    for _ in range(rng.randint(3, 14)):
        made = _line(rng, values, len(lines))
        if made is not None:
            lines.append(made)
            values.append(made)
    pool = lines[-4:] or list(inputs)
    outputs = [rng.choice(pool).name for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if lines:
        outputs[0] = lines[-1].name
    if rng.random() < 0.12:
        outputs.append(outputs[0])
    if rng.random() < 0.06:
        outputs.append(rng.choice(inputs).name)
    if rng.random() < 0.06:
        outputs.append(rng.choice(("jnp.arange(3)", "jnp.float32(2.5)", "jnp.zeros((2, 0))")))
    frozen = tuple(i for i in range(len(inputs)) if rng.random() < 0.3)
    mode = rng.choices(MODES, SHARES)[0]
    return used(replace(FuzzCase(seed, inputs, tuple(lines), tuple(outputs)), frozen=frozen, mode=mode))


def _input(rng: random.Random, i: int) -> FuzzValue:
    rank = rng.choice((0, 1, 2, 2, 2, 3, 4))
    shape = tuple(rng.choice((1, 2, 3, 4, 5, 8, 16, 33)) for _ in range(rank))
    while _size(shape) > _MOST:
        shape = shape[1:]
    if rng.random() < 0.03 and shape:
        shape = (0, *shape[1:])
    kind = rng.random()
    dtype = rng.choice(FLOATS if kind < 0.75 else INTEGERS if kind < 0.95 else ("bool",))
    return FuzzValue(f"x{i}", shape, dtype)


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _line(rng: random.Random, values: list[FuzzValue], number: int) -> FuzzValue | None:
    """One more value; None where twenty draws do not fit."""
    for _ in range(20):
        a = rng.choice(values[-2:] if rng.random() < 0.8 else values)
        text = _text(rng, a, values)
        if text is None:
            continue
        read = [x for x in values if x.name in text.replace("(", " ").replace(",", " ").replace(")", " ")]
        found = _typed(text, values)
        if found is None:
            continue
        shape, dtype = found
        if _size(shape) > _MOST or len(shape) > 5 or dtype not in _DTYPES:
            continue
        loose = any(x.loose for x in read) or (
            any(x.dtype in FLOATS for x in read) and any(word in text for word in _LOOSE)
        )
        return FuzzValue(f"v{number}", shape, dtype, text, loose)
    return None


_DTYPES = frozenset({*FLOATS, *INTEGERS, "uint16", "bool"})


def _typed(text: str, values: list[FuzzValue]) -> tuple[tuple[int, ...], str] | None:
    names = [x.name for x in values]
    try:
        made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", dict(SCOPE))
        out: Any = jax.eval_shape(made, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values))
    except Exception:  # JAX refuses this draw
        return None
    return (tuple(out.shape), str(out.dtype)) if hasattr(out, "dtype") else None


def _text(rng: random.Random, a: FuzzValue, values: list[FuzzValue]) -> str | None:
    axis = rng.randrange(len(a.shape)) if a.shape else 0
    alike = [x.name for x in values if x.shape == a.shape and x.dtype == a.dtype]
    pads = [(rng.randint(0, 2), rng.randint(0, 2)) for _ in a.shape]
    left = [
        x.name for x in values if x.dtype == a.dtype and len(x.shape) >= 1 and a.shape and x.shape[-1] == a.shape[0]
    ]
    facts: dict[str, Any] = {
        "a": a.name, "b": rng.choice(alike), "axis": axis, "shape": a.shape, "dtype": a.dtype, "pad": pads,
        "small": rng.randint(0, 3), "same": tuple(range(len(a.shape))), "c": rng.choice(("1", "0", "3")),
        "least": "0" if a.dtype in ("bool", *INTEGERS) else "-jnp.inf", "q": a.name, "inner_at": "",
        "p": rng.choice(left) if left else a.name,
    }  # fmt: skip
    kind = rng.random()
    floats = a.dtype in FLOATS
    if floats and kind < 0.15:
        inner = rng.choice((*_FLOAT[:20], *_NEUTRAL[:6], "{a} * {a}")).format(**{**facts, "a": "t", "axis": -1})
        facts |= {
            "inner": inner,
            "inner_at": inner.replace("t", a.name) if inner in ("-t", "t * t") else f"jnp.tanh({a.name})",
        }
        return rng.choice(_DERIVED).format(**facts)
    if floats and kind < 0.3:
        return rng.choice(_NEUTRAL).format(**facts)
    if floats and kind < 0.55:
        return rng.choice(_FLOAT).format(**facts)
    if kind < 0.65:
        return rng.choice(_PADS).format(**facts)
    if kind < 0.73:
        return rng.choice(_PRODUCTS).format(**facts)
    if a.dtype == "bool" and kind < 0.9:
        return rng.choice(_BOOL).format(**facts)
    if not floats and kind < 0.9:
        return rng.choice(_INTEGER).format(**facts)
    return rng.choice(_ANY).format(**facts)


SCOPE = {"jax": jax, "jnp": jnp, "lax": lax}
"""Names that codes use."""
