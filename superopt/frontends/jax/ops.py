"""Import table of `jax.lax` primitives to ops of the IR: name -> function(params, operands, result types).

An entry returns the node (or nodes) of the equation, or None when these parameters have no form in the IR; the
equation is then kept verbatim.  Elementwise primitives broadcast scalars and size-1 axes silently in JAX; the import
makes that explicit.  Primitives that differ from an op of the table only in form (`squeeze`, `split`, `stack`, `tile`,
`add_any`) are written with the table's ops; identities (`copy`, `stop_gradient`, `name` ...) vanish.  An op without an
entry takes the primitive's parameters of the names of its attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export, lax

from superopt.frontends.jax import known_gathers
from superopt.frontends.jax.blocks import block_diagonal
from superopt.frontends.jax.builders import (
    broadcast,
    concatenate,
    convert,
    full,
    reshape,
    scalar,
    stretch,
    transpose,
    window,
)
from superopt.frontends.jax.sizes import has_symbols, is_zero, size, sizes
from superopt.ir.graph import Node, mk
from superopt.ir.ops.reduction import ARG, REDUCE
from superopt.ir.ops.table import CONTRACTIONS, TABLE
from superopt.ir.types import FLOATS, Size, TensorType

OpParams = Mapping[str, Any]
Results = Node | Sequence[Node] | None
OpImporter = Callable[[OpParams, Sequence[Node], Sequence[TensorType]], Results]

_IDENTITY = ("copy", "copy_p", "stop_gradient", "name", "pvary")
_MODE = {
    lax.GatherScatterMode.CLIP: "clip",
    lax.GatherScatterMode.FILL_OR_DROP: "fill",
    lax.GatherScatterMode.PROMISE_IN_BOUNDS: "promise_in_bounds",
}
_PRECISION = {lax.Precision.DEFAULT: "default", lax.Precision.HIGH: "high", lax.Precision.HIGHEST: "highest"}
_HALF_ALGORITHMS = {"BF16_BF16_F32": "bfloat16", "F16_F16_F32": "float16"}
_BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}


def _elementwise(op: str, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    if p.get("accuracy") is not None or p.get("out_dtype") is not None:
        return None
    return mk(op, *[stretch(x, out[0].shape) for x in xs])  # pyright: ignore[reportArgumentType]


def _by_name(op: str, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return mk(op, *xs, **{attr.name: _value(p[attr.name]) for attr in TABLE[op].attrs})


def _value(given: Any) -> Any:
    """A parameter of a primitive as an attribute: with JAX's sizes converted to those of the IR."""
    if isinstance(given, tuple | list):
        return tuple(map(_value, given))
    return size(given) if export.is_symbolic_dim(given) else given


def _identity(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return xs


def _add_any(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return _elementwise("add", {}, xs, out)


def _one_minus_square(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    (x,) = xs
    one = full(x.shape, 1, x.dtype)
    return mk("mul", mk("add", one, x), mk("sub", one, x))


def _pow(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    base, exponent = xs
    return _elementwise("pow", p, (base, convert(exponent, base.dtype)), out)


def _round(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return mk("round", xs[0], rounding_method=int(p["rounding_method"]))


def _convert(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return convert(xs[0], out[0].dtype)


def _reduce_precision(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    kept = _BITS.get(out[0].dtype, (99, 99))
    return xs[0] if (p["exponent_bits"], p["mantissa_bits"]) == kept else None


def _device_put(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return xs if all(d is None for d in p.get("devices", ())) else None


def _broadcast_in_dim(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return broadcast(xs[0], sizes(p["shape"]), sizes(p["broadcast_dimensions"]))


def _reshape(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    (x,) = xs
    if p.get("dimensions") is not None:
        x = transpose(x, p["dimensions"])
    return reshape(x, out[0].shape)


def _to_result_shape(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return reshape(xs[0], out[0].shape)


def _transpose(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return transpose(xs[0], p["permutation"])


def _rev(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    dims = sizes(p["dimensions"])
    return mk("rev", xs[0], dimensions=dims) if dims else xs[0]


def _slice(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return window(xs[0], p["start_indices"], p["limit_indices"], p["strides"])


def _split(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    (x,), axis = xs, int(p["axis"])
    at: Size = 0
    parts: list[Node] = []
    for n in sizes(p["sizes"]):
        start: list[Size] = [0] * len(x.shape)
        limit = list(x.shape)
        start[axis], limit[axis] = at, at + n
        parts.append(window(x, start, limit))
        at = at + n
    return parts


def _stack(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    axis = int(p["axis"])
    one = [*xs[0].shape[:axis], 1, *xs[0].shape[axis:]]
    return concatenate([reshape(x, one) for x in xs], axis)


def _unstack(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    (x,), axis = xs, int(p["axis"])
    parts = _split({"axis": axis, "sizes": [1] * int(x.shape[axis])}, xs, ())  # pyright: ignore[reportArgumentType]
    return [reshape(part, t.shape) for part, t in zip(parts, out, strict=True)]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]


def _tile(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    (x,), reps = xs, sizes(p["reps"])
    shape = (1,) * (len(reps) - len(x.shape)) + tuple(x.shape)
    wide: list[Size] = []
    for count, n in zip(reps, shape, strict=True):
        wide += [count, n]
    kept = range(2 * (len(reps) - len(x.shape)) + 1, 2 * len(reps), 2)
    return reshape(broadcast(x, wide, kept), out[0].shape)


def _pad(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    config = tuple(sizes(c) for c in p["padding_config"])
    idle = all(is_zero(n) for entry in config for n in entry)
    return xs[0] if idle else mk("pad", *xs, padding_config=config)


def _concatenate(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return block_diagonal(xs, int(p["dimension"])) or concatenate(xs, int(p["dimension"]))


def _dynamic_slice(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    parts = sizes(p["slice_sizes"])
    return mk("dynamic_slice", *xs[: 1 + len(parts)], slice_sizes=parts)


def _gather(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    mode = _MODE.get(p["mode"])
    dims = p["dimension_numbers"]
    if mode is None or (mode == "fill" and not _default_fill(p.get("fill_value"), out[0].dtype)):
        return None
    if (known := _known_gather(p, xs, out[0])) is not None:
        return known
    (x, where), mapped, down = xs, tuple(map(int, dims.start_index_map)), list[int]()
    if len(mapped) == 1 and mapped == sizes(dims.collapsed_slice_dims) and not dims.operand_batching_dims:
        x, where, down = known_gathers.sum_of_counts(x, mapped[0], where) or (x, where, down)
    made = mk(
        "gather",
        x,
        where,
        offset_dims=sizes(dims.offset_dims),
        collapsed_slice_dims=sizes(dims.collapsed_slice_dims),
        start_index_map=mapped,
        operand_batching_dims=sizes(dims.operand_batching_dims),
        start_indices_batching_dims=sizes(dims.start_indices_batching_dims),
        slice_sizes=sizes(p["slice_sizes"]),
        mode=mode,
    )
    rows = [d for d in range(len(made.shape)) if d not in dims.offset_dims]
    return mk("rev", made, dimensions=tuple([rows[a] for a in down])) if down else made


def _known_gather(p: OpParams, xs: Sequence[Node], out: TensorType) -> Node | None:
    """A gather at positions that are known now, as slices and diagonals."""
    dims, (x, where), taken = p["dimension_numbers"], xs, sizes(p["slice_sizes"])
    mapped, collapsed, offset = (
        tuple(map(int, axes)) for axes in (dims.start_index_map, dims.collapsed_slice_dims, dims.offset_dims)
    )
    if dims.operand_batching_dims:
        return None
    if has_symbols(x.shape):
        fixed = _MODE[p["mode"]] == "promise_in_bounds"
        return known_gathers.block(x, where, mapped, collapsed, taken) if fixed else None
    if set(mapped) != set(collapsed) or any(n != x.shape[d] for d, n in enumerate(taken) if d not in mapped):
        return None
    return known_gathers.elements(x, where, mapped, offset, out.shape)


def _scatter(op: str | None, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    """A scatter of one block as an update of a slice; a block that leaves the operand is dropped, or clipped."""
    x, where, update = xs
    dims, mode = p["dimension_numbers"], _MODE.get(p["mode"])
    if op == "add" and (summed := _segments(p, xs)) is not None:
        return summed
    if len(where.shape) != 1 or mode is None or where.dtype not in ("int32", "int64") or p.get("update_consts"):
        return None
    if dims.operand_batching_dims or (x.dtype == "bool" if op else p["update_jaxpr"] is not None):
        return None
    window_sizes = iter(update.shape)
    block = [1 if d in dims.inserted_window_dims else next(window_sizes) for d in range(len(x.shape))]
    if any(isinstance(n, int) and isinstance(m, int) and m > n for n, m in zip(x.shape, block, strict=True)):
        return None
    starts, inside = [scalar(0, where.dtype)] * len(x.shape), list[Node]()
    for j, d in enumerate(map(int, dims.scatter_dims_to_operand_dims)):
        starts[d] = reshape(window(where, (j,), (j + 1,)), ())
        last, at = x.shape[d] - block[d], starts[d]["value"] if starts[d].op == "literal" else None
        if mode == "clip" or (at is not None and isinstance(last, int) and 0 <= at <= last):
            continue
        inside += [mk("ge", starts[d], scalar(0, where.dtype)), mk("le", starts[d], _number(last, where.dtype))]
    old = mk("dynamic_slice", x, *starts, slice_sizes=tuple(block))
    new = reshape(update, block)
    new = mk(op, old, new) if op else new
    if inside:
        within = functools.reduce(functools.partial(mk, "and"), inside)
        new = mk("select_n", broadcast(within, block, ()), old, new)
    return mk("dynamic_update_slice", x, new, *starts)


def _segments(p: OpParams, xs: Sequence[Node]) -> Node | None:
    """A scatter that adds rows up, each at one position along one axis, from zeros: a sum by segments."""
    dims, (x, where, update) = p["dimension_numbers"], xs
    along, gone, kept = (
        tuple(map(int, axes))
        for axes in (dims.scatter_dims_to_operand_dims, dims.inserted_window_dims, dims.update_window_dims)
    )
    zero = x
    while zero.op == "broadcast_in_dim":
        (zero,) = zero.inputs
    if zero.op != "literal" or zero["value"] != 0 or len(where.shape) < 2 or len(along) != 1 or along != gone:
        return None
    if dims.operand_batching_dims or _MODE.get(p["mode"]) in (None, "clip") or p.get("update_consts"):
        return None
    (axis,) = along
    inner = [n for d, n in enumerate(x.shape) if d != axis]
    if [update.shape[d] for d in kept] != inner:
        return None
    lead = [d for d in range(len(update.shape)) if d not in kept]
    rows = transpose(update, [*lead, *kept])
    summed = mk("segment_sum", rows, reshape(where, where.shape[:-1]), segments=x.shape[axis])
    return transpose(summed, [*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))])


def _number(n: Size, dtype: str) -> Node:
    """A size as a scalar of an integer type: of a symbolic one, the last entry of 0 .. n."""
    if isinstance(n, int):
        return scalar(n, dtype)
    count = mk("iota", dtype=dtype, shape=(n + 1,), dimension=0)
    return reshape(window(count, (n,), (n + 1,)), ())


def _platform_index(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    """The number of the platforms among which this one is (`lax.platform_dependent`), or of those that are left."""
    here, others = jax.default_backend(), [i for i, names in enumerate(p["platforms"]) if names is None]
    known = [i for i, names in enumerate(p["platforms"]) if names is not None and here in names]
    if here == "gpu" or not (known or others):  # the makers of cards are told apart
        return None
    return scalar((known or others)[0], "int32")


def _dim_as_value(p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return _number(size(p["dim"]), out[0].dtype)


def _default_fill(value: Any, dtype: str) -> bool:
    """Whether this is the default fill value of lax: NaN, the least signed, the largest unsigned integer, or True."""
    if value is None:
        return True
    if dtype in FLOATS:
        return bool(np.isnan(value))
    if dtype == "bool":
        return bool(value)
    return int(value) == (np.iinfo(dtype).min if dtype[0] == "i" else np.iinfo(dtype).max)


def _reduce(op: str, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    axes = tuple(sorted(sizes(p["axes"])))
    return mk(op, xs[0], axes=axes) if axes else xs[0]


def _arg(op: str, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    return mk(op, xs[0], axes=sizes(p["axes"]), index_dtype=out[0].dtype)


def precision_name(value: Any) -> tuple[str | None] | None:
    """The precision of a product as one name in a 1-tuple; None when the operands differ or it is an algorithm."""
    sides = value if isinstance(value, tuple) else (value,)
    if any(side is not None and side not in _PRECISION for side in sides) or len(set(sides)) != 1:
        return None
    return (None if sides[0] is None else _PRECISION[sides[0]],)


def _as_algorithm(value: Any, xs: Sequence[Node], wanted: str | None) -> tuple[str | None] | None:
    """The precision of a product given as an algorithm, where that fits its dtypes: 16-bit floats summed in float32."""
    algorithm = getattr(value, "name", "")
    if algorithm not in _HALF_ALGORITHMS or wanted != "float32":
        return None
    return (None,) if {x.dtype for x in xs} == {_HALF_ALGORITHMS[algorithm]} else None


def _accumulation(p: OpParams, xs: Sequence[Node]) -> tuple[Sequence[Node], str | None]:
    """Operands of one dtype, and the accumulation dtype where it differs from theirs.

    Operands of two dtypes are first converted to that of the result, as lax does on CPUs.
    """
    wanted = p.get("preferred_element_type")
    wanted = None if wanted is None else np.dtype(wanted).name
    dtypes = {x.dtype for x in xs}
    if len(dtypes) == 2 and wanted is not None:
        xs = [convert(x, wanted) for x in xs]
    return xs, None if wanted == xs[0].dtype else wanted


def _contraction(op: str, p: OpParams, xs: Sequence[Node], out: Sequence[TensorType]) -> Results:
    xs, wanted = _accumulation(p, xs)
    precision = precision_name(p["precision"]) or _as_algorithm(p["precision"], xs, wanted)
    if precision is None or len({x.dtype for x in xs}) != 1:
        return None
    return _by_name(op, {**p, "precision": precision[0], "preferred_element_type": wanted}, xs, out)


def _table() -> dict[str, OpImporter]:
    plain = [entry.name for entry in TABLE.values() if entry.family == "elementwise" and not entry.attrs]
    table: dict[str, OpImporter] = {}
    made = ("leaf", "control", "macro")
    others = [op for op, entry in TABLE.items() if entry.family not in made and hasattr(lax, f"{op}_p")]
    groups = (
        (others, _by_name), (plain, _elementwise), (REDUCE, _reduce), (ARG, _arg),
        (CONTRACTIONS, _contraction),
    )  # fmt: skip
    for names, importer in groups:
        table |= {name: functools.partial(importer, name) for name in names}
    table |= dict.fromkeys(_IDENTITY, _identity)
    return table | {
        "clamp": functools.partial(_by_name, "clamp"),
        "round": _round,
        "add_any": _add_any,
        "one_minus_square": _one_minus_square,
        "optimization_barrier": _identity,
        "pow": _pow,
        "convert_element_type": _convert,
        "reduce_precision": _reduce_precision,
        "device_put": _device_put,
        "broadcast_in_dim": _broadcast_in_dim,
        "reshape": _reshape,
        "squeeze": _to_result_shape,
        "expand_dims": _to_result_shape,
        "transpose": _transpose,
        "rev": _rev,
        "slice": _slice,
        "split": _split,
        "stack": _stack,
        "unstack": _unstack,
        "tile": _tile,
        "pad": _pad,
        "concatenate": _concatenate,
        "dynamic_slice": _dynamic_slice,
        "gather": _gather,
        "dim_as_value": _dim_as_value,
        "platform_index": _platform_index,
        "scatter": functools.partial(_scatter, None),
        **{f"scatter-{op}": functools.partial(_scatter, op) for op in ("add", "mul", "min", "max")},
    }


IMPORT: dict[str, OpImporter] = _table()
