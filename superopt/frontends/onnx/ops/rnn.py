"""Recurrent layers as `lax.scan` over time.

Gate order and equations are those of the ONNX pages (LSTM: i, o, f, c; GRU: z, r, h).  The products with the inputs
of all steps are one product before the scan.  With `sequence_lens`, a sequence that has ended keeps its state and
yields zeros; the reverse direction then reads each sequence from its own end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, op
from superopt.frontends.onnx.ops.activations import CURVES, like

Activation = Callable[[Any], Any]
_CURVES = {name.lower(): curve for name, curve in CURVES.items()}  # names are written in any case


def _activations(call: Call, default: list[str], directions: int) -> list[list[Activation]]:
    each = len(default)
    # the schema's own default of RNN lists both directions
    given = {a.name for a in call.node.attribute}
    names = call.attrs["activations"] if "activations" in given else default * directions
    if len(names) != each * directions:
        raise InputError(f"{len(names)} activations for {directions} directions of {each}")
    given_values = [iter(call.attrs.get(name) or []) for name in ("activation_alpha", "activation_beta")]
    made: list[Activation] = []
    for name in names:
        if name.lower() not in _CURVES:
            raise InputError(f"activation {name!r} is not known")
        compute, defaults = _CURVES[name.lower()]
        values = [next(left, default) for left, default in zip(given_values, defaults, strict=False)]
        made.append(functools.partial(_bent, compute, values))
    return [made[i * each : (i + 1) * each] for i in range(directions)]


def _bent(compute: Callable[..., Any], values: Sequence[float], x: Any) -> Any:
    return compute(x, *values)


CellStep = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


def _run(x: Any, lengths: Any, states: tuple[Any, ...], step: CellStep, reverse: bool) -> tuple[Any, tuple[Any, ...]]:
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


def _layer(call: Call, x: Any, lengths: Any, direction_step: Callable[[int, Any], tuple[Any, CellStep]],
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


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Of a layer, by direction: `w` `[gates, inputs]`, `r` `[gates, hidden]`, `b` `[2 gates]` or None for zeros."""

    w: Any
    r: Any
    b: Any

    def biases(self, d: int, dtype: Any) -> tuple[Any, Any]:
        """Those that belong to `w` and to `r`."""
        gates = self.r.shape[1]
        if self.b is None:
            return np.zeros(gates, dtype), np.zeros(gates, dtype)
        return self.b[d, :gates], self.b[d, gates:]


_OPERANDS = (0, (Recurrence, 1, 2, 3), 4, 5)  # sequences, weights, lengths, first state


@op("RNN", operands=_OPERANDS, wide=True)
def _rnn(call: Call, x: Any, weights: Recurrence, lengths: Any = None, h0: Any = None) -> Any:
    w, r = weights.w, weights.r
    hidden, clip = r.shape[-1], _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Tanh"], _directions(call))

    def make(d: int, data: Any) -> tuple[Any, CellStep]:
        w_bias, r_bias = weights.biases(d, x.dtype)
        gates = data @ w[d].T + (w_bias + r_bias)
        return gates, lambda now, s: (functions[d][0](clip(now + s[0] @ r[d].T)),)

    return _layer(call, x, lengths, make, [_initial(call, h0, x)])


@op("GRU", operands=_OPERANDS, wide=True)
def _gru(call: Call, x: Any, weights: Recurrence, lengths: Any = None, h0: Any = None) -> Any:
    w, r = weights.w, weights.r
    hidden, clip = r.shape[-1], _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Sigmoid", "Tanh"], _directions(call))
    linear = bool(call.attrs.get("linear_before_reset", 0))

    def make(d: int, data: Any) -> tuple[Any, CellStep]:
        f, g = functions[d]
        w_bias, r_bias = weights.biases(d, x.dtype)
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


@dataclass(frozen=True, slots=True)
class LstmProducts:
    """Products of an LSTM with its weights, gates last.

    Attributes:
        hidden: size of the state.
        of_inputs: of a direction and `[steps, batch, inputs]`, biases added.
        of_state: of a direction and `[batch, hidden]`.
    """

    hidden: int
    of_inputs: Callable[[int, Any], Any]
    of_state: Callable[[int, Any], Any]


@op("LSTM", operands=(*_OPERANDS, 6, 7), wide=True)
def _lstm(call: Call, x: Any, weights: Recurrence, *rest: Any) -> Any:
    w, r = weights.w, weights.r

    def of_inputs(d: int, data: Any) -> Any:
        w_bias, r_bias = weights.biases(d, x.dtype)
        return data @ w[d].T + (w_bias + r_bias)

    return lstm(call, x, LstmProducts(r.shape[-1], of_inputs, lambda d, h: h @ r[d].T), *rest)


def lstm(
    call: Call,
    x: Any,
    products: LstmProducts,
    lengths: Any = None,
    h0: Any = None,
    c0: Any = None,
    peepholes: Any = None,
) -> Any:
    """Outputs over time and the last states of an LSTM, in ONNX's order."""
    hidden, clip = products.hidden, _clipper(call)
    call.attrs.setdefault("hidden_size", hidden)
    functions = _activations(call, ["Sigmoid", "Tanh", "Tanh"], _directions(call))
    coupled = bool(call.attrs.get("input_forget", 0))

    def make(d: int, data: Any) -> tuple[Any, CellStep]:
        f, g, h_function = functions[d]
        p = np.zeros(3 * hidden, x.dtype) if peepholes is None else peepholes[d]
        p_i, p_o, p_f = p[:hidden], p[hidden : 2 * hidden], p[2 * hidden :]

        def step(now: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
            h, c = states
            i, o, forget, new = jnp.split(now + products.of_state(d, h), 4, 1)
            i = f(clip(i if peepholes is None else i + p_i * c))
            forget = like(i, 1) - i if coupled else f(clip(forget if peepholes is None else forget + p_f * c))
            c_new = forget * c + i * g(clip(new))
            o = f(clip(o if peepholes is None else o + p_o * c_new))
            return o * h_function(c_new), c_new

        return products.of_inputs(d, data), step

    return _layer(call, x, lengths, make, [_initial(call, h0, x), _initial(call, c0, x)])
