"""Operators by name, as `superopt kernels tune` takes them.

    dot f32 128x768x3072          x [M, K] times frozen w [K, N], as MxNxK.
    dot s8 128x768x3072           uint8 x times frozen int8 w, summed in int32.
    dot bf16 128x768x3072         stored as bfloat16.
    conv f32 56x56x64 3x3x128     channels-last image HxWxC, frozen window RxSxK; then `stride 2`, `groups 4`, `valid`.
    attention f32 12x512x64       queries, keys and values [heads, rows, depth]; then `causal`, `keys 1024`.
    softmax f32 1536x128          along the last axis; also layer_norm, gelu, tanh, cumsum, sum (of each row),
    transpose.

Every operator is a graph of the op table, made by tracing the JAX function that stands here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from superopt.errors import UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph

_DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "s8": "int8"}
_HINT = (
    "'dot f32 128x768x3072', 'conv f32 56x56x64 3x3x64 stride 2' or 'softmax f32 1536x128' (also layer_norm, gelu,"
    " tanh, cumsum, sum, transpose), 'attention f32 12x512x64 causal'; dtypes f32, f64, bf16, and s8 for dot"
)


def workload(text: str) -> Graph:
    """Return the graph of an operator given by name, dtype and sizes.

    Raises:
        UsageError: not of a form that is understood.
    """
    words = text.split()
    if len(words) < 3 or words[0] not in _FORMS or words[1] not in _DTYPES:
        wrong = next((w for w, known in zip(words, (_FORMS, _DTYPES), strict=False) if w not in known), None)
        why = f"{wrong!r} is not known" if wrong else "it is a kind, a dtype and sizes"
        raise UsageError(f"the operator {text!r} is not understood: {why}", hint=_HINT)
    kind, dtype, sizes, rest = words[0], _DTYPES[words[1]], _sizes(words[2], text), words[3:]
    form = _FORMS[kind]
    if len(sizes) != form.count("x") + 1 or (rest and kind not in ("conv", "attention")):
        raise UsageError(f"the sizes of {text!r} are not {form}", hint=_HINT)
    if kind == "dot":
        return _dot(dtype, *sizes)
    if dtype == "int8":
        raise UsageError(f"there is no {kind} of {words[1]}, only dot", hint=_HINT)
    if kind == "attention":
        return _attention(dtype, sizes, rest, text)
    if kind != "conv":
        return _traced(_ROWS[kind], [(sizes, dtype)], ())
    if not rest:
        raise UsageError(f"the window RxSxK of {text!r} is missing", hint=_HINT)
    return _conv(dtype, sizes, rest, text)


def _sizes(word: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", word) or any(int(n) == 0 for n in word.split("x")):
        raise UsageError(f"{word!r} in {text!r} is no list of positive sizes such as 128x768", hint=_HINT)
    return tuple(int(n) for n in word.split("x"))


def _traced(fn: Callable[..., Any], types: list[tuple[tuple[int, ...], str]], frozen: tuple[int, ...]) -> Graph:
    import jax  # late: `--help` answers at once

    examples = [np.zeros(shape, jax.numpy.dtype(dtype)) for shape, dtype in types]
    with jax.enable_x64(any(dtype == "float64" for _, dtype in types)):
        return import_function(fn, examples, {}, frozen=frozen).graph


def _dot(dtype: str, m: int, n: int, k: int) -> Graph:
    from jax import lax  # late: see above

    left = "uint8" if dtype == "int8" else dtype
    wide = {"int8": "int32", "bfloat16": "float32"}.get(dtype, dtype)

    def fn(x: Any, w: Any) -> Any:
        x, w = (lax.convert_element_type(a, wide) for a in (x, w))
        return lax.dot_general(x, w, (((1,), (0,)), ((), ())))

    return _traced(fn, [((m, k), left), ((k, n), dtype)], (1,))


def _conv(dtype: str, image: tuple[int, ...], rest: list[str], text: str) -> Graph:
    """Return the convolution that a workload's words describe."""
    from jax import lax  # late: see above

    height, width, channels = image
    window = _sizes(rest[0], text)
    options = rest[1:]
    stride, groups, padding = 1, 1, "SAME"
    while options:
        name = options.pop(0)
        if name == "valid":
            padding = "VALID"
        elif name in ("stride", "groups") and options and options[0].isdigit() and int(options[0]) > 0:
            value = int(options.pop(0))
            stride, groups = (value, groups) if name == "stride" else (stride, value)
        else:
            raise UsageError(f"{name!r} in {text!r} is not understood", hint="stride N, groups N or valid")
    if len(window) != 3 or channels % groups or window[2] % groups:
        raise UsageError(f"the window of {text!r} is not RxSxK, or its groups do not divide the channels", hint=_HINT)
    r, s, k = window

    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    return _traced(fn, [((1, height, width, channels), dtype), ((r, s, channels // groups, k), dtype)], (1,))


def _attention(dtype: str, sizes: tuple[int, ...], rest: list[str], text: str) -> Graph:
    heads, rows, depth = sizes
    options, keys, causal = list(rest), rows, False
    while options:
        name = options.pop(0)
        if name == "causal":
            causal = True
        elif name == "keys" and options and options[0].isdigit() and int(options[0]) > 0:
            keys = int(options.pop(0))
        else:
            raise UsageError(f"{name!r} in {text!r} is not understood", hint="causal or keys N")

    def fn(q: Any, k: Any, v: Any) -> Any:
        import jax  # late: see above
        from jax import numpy as jnp

        scores = jnp.einsum("hqd,hkd->hqk", q, k) * depth**-0.5
        if causal:
            seen = jnp.arange(rows)[:, None] + (keys - rows) >= jnp.arange(keys)[None, :]
            scores = jnp.where(seen, scores, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    return _traced(fn, [((heads, n, depth), dtype) for n in (rows, keys, keys)], ())


def _softmax(x: Any) -> Any:
    import jax  # late: see above

    return jax.nn.softmax(x, -1)


def _layer_norm(x: Any) -> Any:
    from jax import lax  # late: see above
    from jax import numpy as jnp

    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)


def _gelu(x: Any) -> Any:
    import jax  # late: see above

    return jax.nn.gelu(x, approximate=False)


def _named(name: str) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        from jax import numpy as jnp  # late: see above

        match name:
            case "tanh":
                return jnp.tanh(x)
            case "cumsum":
                return jnp.cumsum(x, -1)
            case "sum":
                return jnp.sum(x, -1)
            case _:
                return x.T

    return fn


_ROWS: dict[str, Callable[[Any], Any]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    **{name: _named(name) for name in ("tanh", "cumsum", "sum", "transpose")},
}
_FORMS = {"dot": "MxNxK", "conv": "HxWxC", "attention": "HxTxD", **dict.fromkeys(_ROWS, "RxC")}
