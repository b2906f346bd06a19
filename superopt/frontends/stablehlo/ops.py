"""Table of the operations of StableHLO and CHLO in `jax.lax`: name -> function(call, operands).

Most have a primitive of the same meaning; where the definitions differ (indices below zero, branches out of range,
the order of broadcast axes) the difference is written out.  An operation without entry is refused by name and place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.errors import InputError
from superopt.files.reading import shown
from superopt.frontends.stablehlo.read import DIALECTS, HloBlock, HloOp, HloType, read_module
from superopt.frontends.stablehlo.sizes import SizeFacts, is_known
from superopt.frontends.symbolic.known import equal_shapes, integers, number
from superopt.ir.scalar import SCALARS
from superopt.machine.jitting import jax_jit

HloValue = Any
"""A traced array, or a NumPy array of a constant."""
RunBlock = Callable[[HloBlock, Sequence[HloValue]], tuple[HloValue, ...]]


@dataclass(frozen=True, slots=True)
class HloCall:
    """One operation being evaluated.

    Attributes:
        op: the operation of the module.
        run: computes the results of a block on arguments; values that it reads from outside are known.
        function: computes the results of a function of the module by name.
        makers: number of a value -> the operation that makes it.
        values: number of a value -> the value.
        facts: assertions of the module on sizes.
    """

    op: HloOp
    run: RunBlock
    function: Callable[[HloCall, str, Sequence[HloValue]], tuple[HloValue, ...]]
    makers: Mapping[int, HloOp]
    values: Mapping[int, HloValue]
    facts: SizeFacts

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default where it is absent."""
        return self.op.attributes.get(name, default)

    def padding(self, rank: int) -> list[tuple[int, int]]:
        """The pairs of an attribute that is a table of padding pairs."""
        table = self.get("padding")
        return [(0, 0)] * rank if table is None else [(int(a), int(b)) for a, b in table.reshape(rank, 2)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        shape = self.op.results[0][1][0]
        if None in shape:
            raise self.refused("leaves sizes open")
        return tuple(n for n in shape if n is not None)

    @property
    def dtype(self) -> str:
        """Dtype of the first result."""
        return self.op.results[0][1][1]

    def refused(self, why: str) -> InputError:
        """The error that gives the reason why the operation is not accepted."""
        return InputError(f"{self.op.where} {shown(why, 200)}")


Entry = Callable[..., Any]
_PRECISION = {"DEFAULT": lax.Precision.DEFAULT, "HIGH": lax.Precision.HIGH, "HIGHEST": lax.Precision.HIGHEST}


def _compare(call: HloCall, x: HloValue, y: HloValue) -> HloValue:
    if call.get("compare_type") == "TOTALORDER":
        raise call.refused("compares by the total order of floats")
    return getattr(lax, call.get("comparison_direction").lower())(x, y)


def _select(call: HloCall, which: HloValue, then: HloValue, orelse: HloValue) -> HloValue:
    return lax.select_n(which, orelse, then)


def _convert(call: HloCall, x: HloValue) -> HloValue:
    return lax.convert_element_type(x, call.dtype)


def _broadcast_in_dim(call: HloCall, x: HloValue) -> HloValue:
    return _broadcast_to(x, call.shape, call.get("broadcast_dimensions"))


def _broadcast_to(x: HloValue, shape: tuple[Any, ...], dims: tuple[int, ...]) -> HloValue:
    if equal_shapes(np.shape(x), shape) and dims == tuple(range(len(dims))):
        return x  # a constant stays one
    order = sorted(range(len(dims)), key=dims.__getitem__)
    if order != list(range(len(dims))):
        x, dims = lax.transpose(x, order), tuple(dims[i] for i in order)
    return lax.broadcast_in_dim(x, shape, dims)


def _dot_general(call: HloCall, x: HloValue, y: HloValue) -> HloValue:
    if call.get("algorithm") is not None:
        raise call.refused(f"names an algorithm: {call.get('algorithm')}")
    d = call.get("dot_dimension_numbers")
    contract = d.lhs_contracting_dimensions, d.rhs_contracting_dimensions
    batch = d.lhs_batching_dimensions, d.rhs_batching_dimensions
    return lax.dot_general(
        x, y, (contract, batch), precision=_precision(call), preferred_element_type=jnp.dtype(call.dtype)
    )


def _dot(call: HloCall, x: HloValue, y: HloValue) -> HloValue:
    contract = ((np.ndim(x) - 1,), (0,))
    return lax.dot_general(
        x, y, (contract, ((), ())), precision=_precision(call), preferred_element_type=jnp.dtype(call.dtype)
    )


def _precision(call: HloCall) -> Any:
    precision = tuple(_PRECISION[x] for x in call.get("precision_config", ()))
    return None if set(precision) <= {lax.Precision.DEFAULT} else precision


def _convolution(call: HloCall, x: HloValue, w: HloValue) -> HloValue:
    return _convolved(call, x, w, call.padding(np.ndim(x) - 2))


def _convolved(call: HloCall, x: HloValue, w: HloValue, padding: Any) -> HloValue:
    d = call.get("dimension_numbers")
    spatial = list(d.kernel_spatial_dimensions)
    ones = [1] * len(spatial)
    flips = call.get("window_reversal", [False] * len(spatial))
    reversal = [axis for axis, flip in zip(spatial, flips, strict=True) if flip]
    numbers = lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *spatial),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )
    return lax.conv_general_dilated(
        x,
        lax.rev(w, reversal) if reversal else w,
        window_strides=call.get("window_strides", ones),
        padding=padding,
        lhs_dilation=call.get("lhs_dilation", ones),
        rhs_dilation=call.get("rhs_dilation", ones),
        dimension_numbers=numbers,
        feature_group_count=call.get("feature_group_count", 1),
        batch_group_count=call.get("batch_group_count", 1),
        precision=_precision(call),
        preferred_element_type=jnp.dtype(call.dtype),
    )


# ---- reductions

_REDUCE: dict[str, tuple[Any, Any]] = {
    "stablehlo.add": (lax.add, lax.reduce_sum),
    "stablehlo.multiply": (lax.mul, lax.reduce_prod),
    "stablehlo.maximum": (lax.max, lax.reduce_max),
    "stablehlo.minimum": (lax.min, lax.reduce_min),
    "stablehlo.and": (lax.bitwise_and, lax.reduce_and),
    "stablehlo.or": (lax.bitwise_or, lax.reduce_or),
    "stablehlo.xor": (lax.bitwise_xor, lax.reduce_xor),
}


_CUMULATIVE: dict[str, Any] = {
    "stablehlo.add": lax.cumsum, "stablehlo.multiply": lax.cumprod,
    "stablehlo.maximum": lax.cummax, "stablehlo.minimum": lax.cummin,
}  # fmt: skip


def _identity_of(name: str, dtype: str) -> Any:
    """The identity element of the function of this name, in this dtype."""
    kind = jnp.dtype(dtype)
    if name in ("stablehlo.add", "stablehlo.or", "stablehlo.xor"):
        return np.zeros((), kind)
    if name == "stablehlo.multiply":
        return np.ones((), kind)
    if name == "stablehlo.and":
        return np.asarray(True) if dtype == "bool" else ~np.zeros((), kind)
    least = name == "stablehlo.maximum"
    if dtype == "bool":
        return np.asarray(not least)
    if jnp.issubdtype(kind, jnp.floating):
        return np.asarray(-np.inf if least else np.inf, kind)
    return np.asarray(jnp.iinfo(kind).min if least else jnp.iinfo(kind).max, kind)


def _monoid(call: HloCall) -> str:
    """The name of the function of two arguments that the body computes."""
    (block,) = call.op.blocks
    arguments, ops = [i for i, _ in block.arguments], block.ops
    if len(ops) == 2 and len(arguments) == 2 and ops[0].name in _REDUCE:
        made, last = ops[0], ops[1]
        if set(made.operands) == set(arguments) and last.operands == (made.results[0][0],):
            return made.name
    raise call.refused(
        "reduces by a function that is not one of " + ", ".join(x.removeprefix("stablehlo.") for x in _REDUCE)
    )


def _is(value: HloValue, number: Any) -> bool:
    return isinstance(value, np.ndarray) and bool(value == number)


def _reduce(call: HloCall, *xs: HloValue) -> Any:
    if len(xs) == 4:
        return _argument(call, *xs)
    if len(xs) != 2:
        raise call.refused(f"reduces {len(xs) // 2} tensors at once")
    name, (x, start) = _monoid(call), xs
    fn, over = _REDUCE[name]
    y = over(x, call.get("dimensions"))
    if _is(start, _identity_of(name, call.dtype)):
        return y
    return fn(y, lax.broadcast_in_dim(start, np.shape(y), ()))


# the bodies of argmax and argmin as JAX writes them: (a0, a1) is the element with its index, (a2, a3) the best so far
_CHOSEN = "or(compare {0}(a0,a2),compare NE(a0,a0))"
_INDEX = "select(or({0},and(compare EQ(a0,a2),compare LT(a1,a3))),a1,a3)"


def _argument(
    call: HloCall, x: HloValue, places: HloValue, start: HloValue, first: HloValue
) -> tuple[HloValue, HloValue]:
    """The extremum and its position, where the body is that of an argmax or argmin."""
    told, axes = _told(call.op.blocks[0], call.makers), call.get("dimensions")
    for direction, arg, over, name in (
        ("GT", lax.argmax, lax.reduce_max, "stablehlo.maximum"),
        ("LT", lax.argmin, lax.reduce_min, "stablehlo.minimum"),
    ):  # fmt: skip
        chosen = _CHOSEN.format(direction)
        if told != [f"select({chosen},a0,a2)", _INDEX.format(chosen)] or len(axes) != 1:
            continue
        counted = _counts(call, call.op.operands[1], np.shape(x), axes[0])
        if counted and _is(start, _identity_of(name, call.dtype)) and _is(first, 0):
            return over(x, axes), arg(x, axes[0], jnp.dtype(call.op.results[1][1][1]))
    raise call.refused("reduces two tensors at once, and is no argmax or argmin as JAX writes them")


def _told(block: HloBlock, makers: Mapping[int, HloOp], most: int = 10_000) -> list[str]:
    """The results of a block as expressions of its arguments; a question mark where one is too long or unknown.

    Numbers may be constants outside of the block, which `makers` finds.
    """
    known = {value: f"a{i}" for i, (value, _) in enumerate(block.arguments)}
    read = dict.fromkeys(v for op in block.ops for v in op.operands)
    outside = [makers[v] for v in read if v in makers and makers[v].name == "stablehlo.constant"]
    for op in (*outside, *block.ops[:-1]):
        kind = " ".join(
            [op.name.removeprefix("stablehlo."), *filter(None, [op.attributes.get("comparison_direction")])]
        )
        if "value" in op.attributes:
            kind += f" {op.attributes['value'].tobytes().hex()}"
        text = f"{kind}({','.join(known.get(v, '?') for v in op.operands)})"
        known |= {r: text if len(text) < most and len(op.results) == 1 else "?" for r, _ in op.results}
    return [known.get(v, "?") for v in block.ops[-1].operands]


def _sort(call: HloCall, *xs: HloValue) -> Any:
    """A sort by the first operands in ascending order, floats in JAX's total order; or a sort by one operand."""
    axis, stable = call.get("dimension", -1) % np.ndim(xs[0]), bool(call.get("is_stable", False))
    dtypes = tuple(str(x.dtype) for x in xs)
    told = _told(call.op.blocks[0], call.makers)
    match = _COMPARED.fullmatch(told[0])
    if match is not None:
        return _sort_by(call, xs, axis, match[1] == "GT", int(match[2]), int(match[3]))
    for keys in range(1, len(xs) + 1):
        if told == _comparator(dtypes, keys):
            return lax.sort(xs, dimension=axis, is_stable=stable, num_keys=keys)
    raise call.refused("sorts by a comparison that JAX does not write")


_COMPARED = re.compile(r"compare (LT|GT)\(a(\d+),a(\d+)\)")


def _sort_by(call: HloCall, xs: Sequence[HloValue], axis: int, down: bool, one: int, two: int) -> Any:
    """A sort by one operand, up or down; where NaN makes a comparison of floats no order, as JAX sorts."""
    key = min(one, two) // 2
    if {one, two} != {2 * key, 2 * key + 1} or call.op.blocks[0].ops[0].attributes.get("compare_type") == "TOTALORDER":
        raise call.refused("sorts by a comparison that is none of two elements, or of the bits of floats")
    down ^= one > two
    order = [key, *(i for i in range(len(xs)) if i != key)]
    taken = [lax.rev(xs[i], (axis,)) if down else xs[i] for i in order]  # elements that are equal keep their order
    columns = lax.sort(taken, dimension=axis, is_stable=bool(call.get("is_stable", False)), num_keys=1)
    back = [lax.rev(x, (axis,)) if down else x for x in columns]
    return tuple(back[order.index(i)] for i in range(len(xs)))


@functools.lru_cache(maxsize=64)
def _comparator(dtypes: tuple[str, ...], keys: int) -> list[str] | None:
    """JAX's comparison for a sort by the first operands, as expressions."""
    types = [jax.ShapeDtypeStruct((2,), jnp.dtype(t)) for t in dtypes]
    with jax.enable_x64(True):
        text = jax_jit(lambda *xs: lax.sort(xs, num_keys=keys)).lower(*types).as_text()
    ops = (op for block in read_module(text.encode()).functions.values() for op in block.ops)
    return next((_told(op.blocks[0], {}) for op in ops if op.name == "stablehlo.sort"), None)


def _counts(call: HloCall, value: int, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a value contains the index along an axis."""
    op = call.makers.get(value)
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        dims, source = op.attributes["broadcast_dimensions"], call.makers.get(op.operands[0])
        if axis not in dims or source is None or source.results[0][1][0][dims.index(axis)] != shape[axis]:
            return False
        axis, op = dims.index(axis), source
        shape = tuple(n or 0 for n in op.results[0][1][0])
    return op is not None and op.name == "stablehlo.iota" and op.attributes["iota_dimension"] == axis


def _reduce_window(call: HloCall, *xs: HloValue) -> HloValue:
    if len(xs) != 2:
        raise call.refused(f"reduces {len(xs) // 2} tensors at once")
    name, (x, start) = _monoid(call), xs
    neutral, ones = _identity_of(name, call.dtype), [1] * np.ndim(x)
    if not _is(start, neutral):
        raise call.refused("begins at a value that is not neutral")
    window, padding = call.get("window_dimensions"), call.padding(len(ones))
    steps = [call.get(n, tuple(ones)) for n in ("window_strides", "base_dilations", "window_dilations")]
    wide = [i for i, n in enumerate(window) if n != 1]
    if name in _CUMULATIVE and len(wide) == 1 and all(set(n) == {1} for n in steps):
        (axis,), n = wide, window[wide[0]]
        for reverse, edge in ((False, (n - 1, 0)), (True, (0, n - 1))):
            if n == np.shape(x)[axis] and padding == [edge if i == axis else (0, 0) for i in range(len(ones))]:
                return _CUMULATIVE[name](x, axis=axis, reverse=reverse)
    if name not in ("stablehlo.add", "stablehlo.maximum", "stablehlo.minimum"):
        raise call.refused(f"reduces windows by {name}")
    return lax.reduce_window(
        x,
        neutral,
        _REDUCE[name][0],
        window_dimensions=window,
        window_strides=steps[0],
        padding=padding,
        base_dilation=steps[1],
        window_dilation=steps[2],
    )


# ---- movement


def _slice(call: HloCall, x: HloValue) -> HloValue:
    return lax.slice(x, call.get("start_indices"), call.get("limit_indices"), call.get("strides"))


def _dynamic_slice(call: HloCall, x: HloValue, *starts: HloValue) -> HloValue:
    return lax.dynamic_slice(x, starts, call.get("slice_sizes"), allow_negative_indices=False)


def _dynamic_update_slice(call: HloCall, x: HloValue, update: HloValue, *starts: HloValue) -> HloValue:
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


def _pad(call: HloCall, x: HloValue, value: HloValue) -> HloValue:
    edges = zip(call.get("edge_padding_low"), call.get("edge_padding_high"), call.get("interior_padding"), strict=True)
    return lax.pad(x, value, list(edges))


def _vectors_last(where: HloValue, at: int) -> HloValue:
    """Indices with the axis of their components moved behind the others."""
    if at == np.ndim(where):
        return lax.expand_dims(where, (at,))
    if at == np.ndim(where) - 1:
        return where
    return lax.transpose(where, [i for i in range(np.ndim(where)) if i != at] + [at])


def _gather(call: HloCall, x: HloValue, where: HloValue) -> HloValue:
    return _gathered(call, x, where, call.get("slice_sizes"))


def _gathered(call: HloCall, x: HloValue, where: HloValue, taken: tuple[Any, ...]) -> HloValue:
    d = call.get("dimension_numbers")
    where = _vectors_last(where, d.index_vector_dim)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d.offset_dims),
        collapsed_slice_dims=tuple(d.collapsed_slice_dims),
        start_index_map=tuple(d.start_index_map),
        operand_batching_dims=tuple(d.operand_batching_dims),
        start_indices_batching_dims=tuple(d.start_indices_batching_dims),
    )
    return lax.gather(x, where, numbers, taken, mode=lax.GatherScatterMode.CLIP)


_SCATTER: dict[str, Any] = {
    "a1": lax.scatter, "add": lax.scatter_add, "multiply": lax.scatter_mul, "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
}  # fmt: skip


def _scatter(call: HloCall, *xs: HloValue) -> HloValue:
    """Updates at indices; indices out of range are dropped."""
    if len(xs) != 3:
        raise call.refused(f"scatters into {len(xs) // 3} tensors at once")
    x, where, updates = xs
    (told,) = _told(call.op.blocks[0], call.makers)
    name = told if told == "a1" else told.partition("(")[0] if told.endswith(("(a0,a1)", "(a1,a0)")) else ""
    if name not in _SCATTER:
        raise call.refused("combines updates by a function that is not one of add, multiply, minimum, maximum")
    d = call.get("scatter_dimension_numbers")
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d.update_window_dims),
        inserted_window_dims=tuple(d.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(d.scattered_dims_to_operand_dims),
        operand_batching_dims=tuple(d.input_batching_dims),
        scatter_indices_batching_dims=tuple(d.scatter_indices_batching_dims),
    )
    return _SCATTER[name](
        x,
        _vectors_last(where, d.index_vector_dim),
        updates,
        numbers,
        indices_are_sorted=bool(call.get("indices_are_sorted", False)),
        unique_indices=bool(call.get("unique_indices", False)),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


def _select_and_scatter(call: HloCall, x: HloValue, source: HloValue, start: HloValue) -> HloValue:
    """The derivative of a maximum or minimum over windows: each value goes to its window's extremum."""
    chosen, added = (_told(block, call.makers) for block in call.op.blocks)
    extremes = {
        "compare GE(a0,a1)": (lax.max, "stablehlo.maximum"),
        "compare LE(a0,a1)": (lax.min, "stablehlo.minimum"),
    }
    if chosen[0] not in extremes or added[0] not in ("add(a0,a1)", "add(a1,a0)") or not _is(start, 0):
        raise call.refused("is no derivative of a maximum or minimum over windows")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise call.refused("selects among integers")
    fn, name = extremes[chosen[0]]
    ones, rank = (1,) * np.ndim(x), np.ndim(x)

    def windows(y: HloValue) -> HloValue:
        neutral = _identity_of(name, str(x.dtype))
        steps = call.get("window_strides", ones)
        return lax.reduce_window(y, neutral, fn, call.get("window_dimensions", ones), steps, call.padding(rank))

    return jax.vjp(windows, x)[1](source)[0]


def _constant(call: HloCall) -> HloValue:
    value: np.ndarray = call.get("value")
    if value.shape and value.size and not any(value.strides):  # the same everywhere
        if is_known(value):
            return np.array(value)
        return lax.broadcast(np.asarray(value.flat[0]), value.shape)
    return value


def _iota(call: HloCall) -> HloValue:
    return lax.broadcasted_iota(jnp.dtype(call.dtype), call.shape, call.get("iota_dimension"))


# ---- control


def _while(call: HloCall, *state: HloValue) -> tuple[HloValue, ...]:
    cond, body = call.op.blocks
    return lax.while_loop(lambda s: call.run(cond, s)[0], lambda s: call.run(body, s), tuple(state))


def _if(call: HloCall, which: HloValue) -> tuple[HloValue, ...]:
    then, orelse = call.op.blocks
    return lax.cond(which, lambda: call.run(then, ()), lambda: call.run(orelse, ()))


def _case(call: HloCall, which: HloValue) -> tuple[HloValue, ...]:
    last = len(call.op.blocks) - 1
    inside = lax.bitwise_and(lax.ge(which, np.int32(0)), lax.le(which, np.int32(last)))
    branches = [functools.partial(call.run, block, ()) for block in call.op.blocks]
    return lax.switch(lax.select_n(inside, np.int32(last), which), branches)


def _call(call: HloCall, *xs: HloValue) -> tuple[HloValue, ...]:
    name = "decomposition" if call.op.name == "stablehlo.composite" else "callee"
    return call.function(call, call.get(name), xs)


def _custom_call(call: HloCall, *xs: HloValue) -> Any:
    target = call.get("call_target_name")
    if target == "Sharding" and len(xs) == 1:
        return xs[0]
    if target == "shape_assertion":
        return _asserted(call)
    raise call.refused(f"calls {target!r}")


def _asserted(call: HloCall) -> tuple[()]:
    """Handle an assertion of the module on its sizes: it holds, it fails, or it is recorded."""
    holds = call.values[call.op.operands[0]]
    question = call.facts.questions.get(call.op.operands[0])
    if question is not None and call.facts.depth:
        raise call.refused("asserts within a branch or a loop what is open for sizes")
    if question is not None:
        call.facts.asserted.append(question)
    elif not isinstance(holds, np.ndarray):
        raise call.refused("asserts what depends on data")
    elif not holds:
        raise call.refused(f"does not hold: {call.get('error_message')}")
    return ()


# ---- sizes that the module computes


def _sizes(call: HloCall, place: int, what: str) -> tuple[Any, ...]:
    """The values of an operand that is a shape or a similar list of integers."""
    value = call.values[call.op.operands[place]]
    if not isinstance(value, np.ndarray):
        raise call.refused(f"has {what} that depend on data")
    return tuple(map(number, value.flat))


def _get_dimension_size(call: HloCall, x: HloValue) -> HloValue:
    return integers(np.shape(x)[call.get("dimension")], call.dtype)


def _dynamic_broadcast_in_dim(call: HloCall, x: HloValue, _: HloValue) -> HloValue:
    return _broadcast_to(x, _sizes(call, 1, "sizes"), call.get("broadcast_dimensions"))


def _dynamic_reshape(call: HloCall, x: HloValue, _: HloValue) -> HloValue:
    return lax.reshape(x, _sizes(call, 1, "sizes"))


def _dynamic_iota(call: HloCall, _: HloValue) -> HloValue:
    return lax.broadcasted_iota(jnp.dtype(call.dtype), _sizes(call, 0, "sizes"), call.get("iota_dimension"))


def _dynamic_pad(call: HloCall, x: HloValue, value: HloValue, *_: HloValue) -> HloValue:
    return lax.pad(x, value, list(zip(*(_sizes(call, i, "edges") for i in (2, 3, 4)), strict=True)))


def _real_dynamic_slice(call: HloCall, x: HloValue, start: HloValue, *_: HloValue) -> HloValue:
    """A slice between known positions, or of known sizes from a position that the program computes."""
    limit = call.makers.get(call.op.operands[2])
    steps = _sizes(call, 3, "steps")
    if isinstance(call.values[call.op.operands[1]], np.ndarray):
        return lax.slice(x, _sizes(call, 1, "places"), _sizes(call, 2, "places"), steps)
    if limit is None or limit.name != "stablehlo.add" or limit.operands[0] != call.op.operands[1] or set(steps) != {1}:
        raise call.refused("has a size that depends on data")
    taken = call.values.get(limit.operands[1])
    if not isinstance(taken, np.ndarray):
        raise call.refused("has a size that depends on data")
    starts = [lax.index_in_dim(start, i, keepdims=False) for i in range(np.ndim(x))]
    return lax.dynamic_slice(x, starts, tuple(map(number, taken.flat)), allow_negative_indices=False)


def _dynamic_gather(call: HloCall, x: HloValue, where: HloValue, _: HloValue) -> HloValue:
    return _gathered(call, x, where, _sizes(call, 2, "sizes"))


def _dynamic_conv(call: HloCall, x: HloValue, w: HloValue, _: HloValue) -> HloValue:
    edges = _sizes(call, 2, "edges")
    return _convolved(call, x, w, list(zip(edges[::2], edges[1::2], strict=True)))


def _batch_norm_inference(
    call: HloCall, x: HloValue, scale: HloValue, offset: HloValue, mean: HloValue, variance: HloValue
) -> HloValue:
    axis = (call.get("feature_index"),)
    shape = np.shape(x)
    scale, offset, mean, variance = (lax.broadcast_in_dim(v, shape, axis) for v in (scale, offset, mean, variance))
    epsilon = lax.broadcast(np.asarray(call.get("epsilon"), jnp.dtype(call.dtype)), shape)
    return lax.add(lax.mul(scale, lax.div(lax.sub(x, mean), lax.sqrt(lax.add(variance, epsilon)))), offset)


def _reduce_precision(call: HloCall, x: HloValue) -> HloValue:
    return lax.reduce_precision(x, call.get("exponent_bits"), call.get("mantissa_bits"))


_NAMES = {
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "not", "cos": "cosine",
    "sin": "sine", "clz": "count_leading_zeros", "div": "divide", "exp": "exponential",
    "expm1": "exponential_minus_one", "log1p": "log_plus_one", "max": "maximum", "min": "minimum", "mul": "multiply",
    "neg": "negate", "population_count": "popcnt", "pow": "power", "rem": "remainder", "sub": "subtract",
    "nextafter": "next_after",
}  # fmt: skip
"""Elementwise functions whose name differs from that in lax."""


def _function(name: str) -> Entry:
    fn = getattr(lax, name)
    return lambda call, *xs: fn(*xs)


def _table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name in (*SCALARS, *_NAMES, "clamp", "digamma", "square", "zeta", "bessel_i1e"):
        for dialect in ("stablehlo", "chlo"):
            own = f"{dialect}.{_NAMES.get(name, name)}"
            if own in DIALECTS and hasattr(lax, name):
                table[own] = _function(name)
    names = (
        _compare, _select, _convert, _broadcast_in_dim, _dot_general, _dot, _convolution, _reduce,
        _reduce_window, _slice, _dynamic_slice, _dynamic_update_slice, _pad, _gather, _iota, _while, _if, _case,
        _custom_call, _batch_norm_inference, _reduce_precision, _sort, _get_dimension_size,
        _dynamic_broadcast_in_dim, _scatter, _select_and_scatter, _dynamic_reshape, _dynamic_iota, _dynamic_pad,
        _real_dynamic_slice, _dynamic_gather, _dynamic_conv,
    )  # fmt: skip
    table |= {f"stablehlo.{fn.__name__[1:]}": fn for fn in names}
    rounding = lax.RoundingMethod
    return table | {
        "stablehlo.constant": _constant,
        "stablehlo.reshape": lambda call, x: lax.reshape(x, call.shape),
        "stablehlo.transpose": lambda call, x: lax.transpose(x, call.get("permutation")),
        "stablehlo.reverse": lambda call, x: lax.rev(x, call.get("dimensions")),
        "stablehlo.broadcast": lambda call, x: lax.broadcast(x, call.get("broadcast_sizes")),
        "stablehlo.concatenate": lambda call, *xs: lax.concatenate(xs, call.get("dimension")),
        "stablehlo.bitcast_convert": lambda call, x: lax.bitcast_convert_type(x, jnp.dtype(call.dtype)),
        "stablehlo.round_nearest_afz": lambda call, x: lax.round(x, rounding.AWAY_FROM_ZERO),
        "stablehlo.round_nearest_even": lambda call, x: lax.round(x, rounding.TO_NEAREST_EVEN),
        "stablehlo.optimization_barrier": lambda call, *xs: xs,
        "stablehlo.composite": _call,
        "func.call": _call,
        "chlo.top_k": lambda call, x: lax.top_k(x, call.get("k")),
        "chlo.is_inf": lambda call, x: lax.eq(lax.abs(x), lax.full_like(x, np.inf)),
    }


OPS: dict[str, Entry] = _table()


def struct(kind: HloType, where: str) -> jax.ShapeDtypeStruct:
    """A type of a module as a JAX type.

    Raises:
        InputError: it leaves sizes open.
    """
    shape, dtype = kind
    if None in shape:
        raise InputError(f"{where} leaves sizes open", hint="export it for given sizes")
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))  # pyright: ignore[reportArgumentType]


__all__ = ["OPS", "HloCall", "HloValue", "struct"]
