"""Recurrent layers as `lax.scan` over time.

Gate order and equations are those of the ONNX pages (LSTM: i, o, f, c; GRU: z, r, h).  The products with the inputs
of all steps are one product before the scan.  With `sequence_lens`, a sequence that has ended keeps its state and
yields zeros; the reverse direction then reads each sequence from its own end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.activations import like, softplus

Activation = Callable[[Any], Any]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    key = name.lower()
    a = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0, "affine": 1.0}
    first = a.get(key, 1.0) if alpha is None else alpha
    second = {"scaledtanh": 1.0, "hardsigmoid": 0.5}.get(key, 0.0) if beta is None else beta
    table: dict[str, Activation] = {
        "sigmoid": lax.logistic,
        "tanh": lax.tanh,
        "relu": lambda x: jnp.maximum(x, like(x, 0)),
        "affine": lambda x: x * like(x, first) + like(x, second),
        "leakyrelu": lambda x: jnp.where(x >= 0, x, x * like(x, first)),
        "thresholdedrelu": lambda x: jnp.where(x > like(x, first), x, like(x, 0)),
        "scaledtanh": lambda x: like(x, first) * lax.tanh(like(x, second) * x),
        "hardsigmoid": lambda x: jnp.clip(x * like(x, first) + like(x, second), like(x, 0), like(x, 1)),
        "elu": lambda x: jnp.where(x > 0, x, like(x, first) * lax.expm1(jnp.minimum(x, like(x, 0)))),
        "softsign": lambda x: x / (like(x, 1) + lax.abs(x)),
        "softplus": softplus,
    }
    if key not in table:
        raise InputError(f"activation {name!r} is not known")
    return table[key]


def _activations(call: Call, default: list[str], directions: int) -> list[list[Activation]]:
    each = len(default)
    # the schema's own default of RNN lists both directions
    given = {a.name for a in call.node.attribute}
    names = call.attrs["activations"] if "activations" in given else default * directions
    if len(names) != each * directions:
        raise InputError(f"{len(names)} activations for {directions} directions of {each}")
    alphas, betas = iter(call.attrs.get("activation_alpha") or []), iter(call.attrs.get("activation_beta") or [])
    takes_alpha = ("leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu", "affine")
    made = [
        _activation(
            name,
            next(alphas, None) if name.lower() in takes_alpha else None,
            next(betas, None) if name.lower() in ("scaledtanh", "hardsigmoid", "affine") else None,
        )
        for name in names
    ]
    return [made[i * each : (i + 1) * each] for i in range(directions)]


Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


def _run(x: Any, lengths: Any, states: tuple[Any, ...], step: Step, reverse: bool) -> tuple[Any, tuple[Any, ...]]:
    """Outputs over time and last states; the first state is the output."""
    steps = x.shape[0]
    if lengths is None:

        def plain(carry: tuple[Any, ...], now: Any) -> tuple[tuple[Any, ...], Any]:
            new = step(now, carry)
            return new, new[0]

        last, outputs = lax.scan(plain, states, x, reverse=reverse)
        return outputs, last

    def masked(carry: tuple[Any, ...], now: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
        value, time = now
        alive = (time < lengths)[:, None]
        new = tuple(jnp.where(alive, n, o) for n, o in zip(step(value, carry), carry, strict=True))
        return new, jnp.where(alive, new[0], jnp.zeros_like(new[0]))

    last, outputs = lax.scan(masked, states, (x, lax.iota(lengths.dtype, steps)), reverse=reverse)
    return outputs, last


def _clipper(call: Call) -> Activation:
    bound = call.attrs.get("clip")
    if bound is None:
        return lambda x: x
    return lambda x: jnp.clip(x, like(x, -bound), like(x, bound))


def _layer(call: Call, x: Any, lengths: Any, direction_step: Callable[[int, Any], tuple[Any, Step]],
           states: list[Any]) -> Any:  # fmt: skip
    """Run every direction and put the results in ONNX's order."""
    if call.attrs.get("layout", 0):
        x = x.swapaxes(0, 1)
        states = [s.swapaxes(0, 1) for s in states]
    direction = call.attrs["direction"]
    count = 2 if direction == "bidirectional" else 1
    outputs, finals = [], []
    for d in range(count):
        gates, step = direction_step(d, x)
        reverse = direction == "reverse" or d == 1
        out, last = _run(gates, lengths, tuple(s[d] for s in states), step, reverse)
        outputs.append(out)
        finals.append(last)
    y = jnp.stack(outputs, 1)
    last_states = [jnp.stack([f[i] for f in finals]) for i in range(len(states))]
    if call.attrs.get("layout", 0):
        y = y.transpose(2, 0, 1, 3)
        last_states = [s.swapaxes(0, 1) for s in last_states]
    return (y, *last_states)


def _directions(call: Call) -> int:
    if call.attrs["direction"] not in ("forward", "reverse", "bidirectional"):
        raise InputError(f"direction {call.attrs['direction']!r} is not known")
    return 2 if call.attrs["direction"] == "bidirectional" else 1


def _initial(call: Call, given: Any, x: Any) -> Any:
    if given is not None:
        return given
    batch = x.shape[0 if call.attrs.get("layout", 0) else 1]
    count, hidden = _directions(call), call.attrs["hidden_size"]
    return jnp.zeros((batch, count, hidden) if call.attrs.get("layout", 0) else (count, batch, hidden), x.dtype)


def _bias(b: Any, d: int, parts: int, hidden: int, dtype: Any) -> tuple[Any, Any]:
    if b is None:
        return np.zeros(parts * hidden, dtype), np.zeros(parts * hidden, dtype)
    return b[d, : parts * hidden], b[d, parts * hidden :]


@op("RNN")
def _rnn(call: Call, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None) -> Any:
    hidden, clip = r.shape[-1], _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Tanh"], _directions(call))

    def make(d: int, data: Any) -> tuple[Any, Step]:
        w_bias, r_bias = _bias(b, d, 1, hidden, x.dtype)
        gates = data @ w[d].T + (w_bias + r_bias)
        return gates, lambda now, s: (functions[d][0](clip(now + s[0] @ r[d].T)),)

    return _layer(call, x, lengths, make, [_initial(call, h0, x)])


@op("GRU")
def _gru(call: Call, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None) -> Any:
    hidden, clip = r.shape[-1], _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Sigmoid", "Tanh"], _directions(call))
    linear = bool(call.attrs.get("linear_before_reset", 0))

    def make(d: int, data: Any) -> tuple[Any, Step]:
        f, g = functions[d]
        w_bias, r_bias = _bias(b, d, 3, hidden, x.dtype)
        gates = data @ w[d].T + w_bias
        r_gates, r_new = r[d][: 2 * hidden], r[d][2 * hidden :]

        def step(now: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
            (h,) = states
            both = f(clip(now[:, : 2 * hidden] + h @ r_gates.T + r_bias[: 2 * hidden]))
            z, reset = both[:, :hidden], both[:, hidden:]
            shift = r_bias[2 * hidden :]
            inner = reset * (h @ r_new.T + shift) if linear else (reset * h) @ r_new.T + shift
            new = g(clip(now[:, 2 * hidden :] + inner))
            return ((like(z, 1) - z) * new + z * h,)

        return gates, step

    return _layer(call, x, lengths, make, [_initial(call, h0, x)])


@op("LSTM")
def _lstm(call: Call, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None, c0: Any = None,
          peepholes: Any = None) -> Any:  # fmt: skip
    hidden, clip = r.shape[-1], _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Sigmoid", "Tanh", "Tanh"], _directions(call))
    coupled = bool(call.attrs.get("input_forget", 0))

    def make(d: int, data: Any) -> tuple[Any, Step]:
        f, g, h_function = functions[d]
        w_bias, r_bias = _bias(b, d, 4, hidden, x.dtype)
        gates = data @ w[d].T + (w_bias + r_bias)
        p = np.zeros(3 * hidden, x.dtype) if peepholes is None else peepholes[d]
        p_i, p_o, p_f = p[:hidden], p[hidden : 2 * hidden], p[2 * hidden :]

        def step(now: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
            h, c = states
            i, o, forget, new = jnp.split(now + h @ r[d].T, 4, 1)
            i = f(clip(i if peepholes is None else i + p_i * c))
            forget = like(i, 1) - i if coupled else f(clip(forget if peepholes is None else forget + p_f * c))
            c_new = forget * c + i * g(clip(new))
            o = f(clip(o if peepholes is None else o + p_o * c_new))
            return o * h_function(c_new), c_new

        return gates, step

    return _layer(call, x, lengths, make, [_initial(call, h0, x), _initial(call, c0, x)])
