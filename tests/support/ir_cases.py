"""Random applications of every op of the table: operand types, attributes and values, from a seed.

`samples(op, rng)` gives nodes over inputs named a, b, c ...; `values(node, rng)` gives arrays for these inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from superopt.errors import ShapeError
from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.ops import elementwise
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.ops.table import TABLE
from superopt.ir.scalar import DTYPE
from superopt.ir.types import FLOATS
from tests.support import ir_examples

Rng = np.random.Generator
Sampler = Callable[[Rng], Iterator[Node]]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-3, -1e-3, 30.0, -30.0, 200.0]
UNIT = ("asin", "acos", "atanh", "erf_inv")


def shape(rng: Rng, low: int = 0, high: int = 4, zero: bool = True) -> tuple[int, ...]:
    """A random shape: sizes 1 to 5, now and then 0."""
    sizes = rng.integers(1, 6, rng.integers(low, high + 1))
    if zero and len(sizes) and rng.random() < 0.08:
        sizes[rng.integers(len(sizes))] = 0
    return tuple(int(n) for n in sizes)


def inputs(*kinds: tuple[Sequence[int], str]) -> list[Node]:
    """Inputs a, b, c ... of these shapes and dtypes."""
    return [make_input("abcdefgh"[j], tuple(s), d) for j, (s, d) in enumerate(kinds)]


def values(node: Node, rng: Rng) -> dict[str, np.ndarray]:
    """Values for the inputs of a node."""
    return {x["name"]: array(x, rng, node.op) for x in topological([node]) if x.op == "input"}


def array(x: Node, rng: Rng, op: str) -> np.ndarray:
    """Values that suit the op: special ones where it is elementwise, small ones where it sums or multiplies."""
    kind, n = DTYPE[x.dtype], int(np.prod(x.shape))
    if x.dtype == "bool":
        return (rng.random(x.shape) < 0.5).astype(kind)
    if TABLE[op].family == "linear":  # matrices with inverses, not far from these in another precision
        found = rng.standard_normal(x.shape)
        return (found + 6 * np.eye(*x.shape[-2:])).astype(kind)
    if x.dtype in FLOATS:
        found = rng.standard_normal(n) * (1 if op in UNIT else 2)
        if TABLE[op].family == "elementwise" and n > 40:
            found[: len(SPECIAL)] = SPECIAL
            rng.shuffle(found)
        if op in ("pow",) and x["name"] == "a":
            found = np.abs(found)
        return found.reshape(x.shape).astype(kind)
    if TABLE[op].family == "elementwise" and n > 40:
        info = np.iinfo(kind)
        found = rng.integers(-9 if info.min else 0, 10, n).astype(kind)
        found[:6] = [info.min, info.max, 0, 1, info.max, info.min]
        rng.shuffle(found)
        return found.reshape(x.shape)
    low = -3 if kind.kind == "i" else 0
    return rng.integers(low, 9, x.shape).astype(kind)


# ---- elementwise


def _dtypes(op: str) -> list[str]:
    every = ("float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8", "uint32", "int64", "bool")
    return [d for d in every if elementwise.accepts(op, d) and (op != "pow" or d in FLOATS)]


def _elementwise(op: str, rng: Rng) -> Iterator[Node]:
    for d in _dtypes(op):
        for s in ((64,), shape(rng)):
            count = TABLE[op].arity or 2
            if op == "round":
                for method in (0, 1):
                    yield mk(op, *inputs((s, d)), rounding_method=method)
            elif op == "integer_pow":
                for y in (0, 1, 2, 3, 5, 8) + ((-1, -2) if d in FLOATS else ()):
                    yield mk(op, *inputs((s, d)), y=y)
            elif op == "clamp":
                yield mk(op, literal(0, d), *inputs((s, d)), literal(1 if d == "bool" else 3, d))
                yield mk(op, *inputs((s, d), (s, d), (s, d)))
            elif op == "select_n":
                yield mk(op, *inputs((s, "bool"), (s, d), (s, d)))
                yield mk(op, *inputs(((), "bool"), (s, d), (s, d)))
                yield mk(op, *inputs((s, "int32"), (s, d), (s, d), (s, d)))
            elif op == "convert_element_type":
                for target in ("float32", "bfloat16", "int8", "int32", "uint8", "bool", "float64", "float16"):
                    yield mk(op, *inputs((s, d)), new_dtype=target)
            else:
                yield mk(op, *inputs(*[(s, d)] * count))
    if op == "pow":
        yield mk(op, *inputs(((40,), "float32"), ((40,), "int32")))


# ---- movement


def _broadcast_in_dim(rng: Rng) -> Iterator[Node]:
    out = shape(rng, 1)
    dims = sorted(rng.choice(len(out), rng.integers(0, len(out) + 1), replace=False).tolist())
    source = [1 if rng.random() < 0.3 else out[d] for d in dims]
    yield mk("broadcast_in_dim", *inputs((source, "float32")), shape=out, broadcast_dimensions=dims)


def _transpose(rng: Rng) -> Iterator[Node]:
    s = shape(rng)
    yield mk("transpose", *inputs((s, "int8")), permutation=rng.permutation(len(s)))


def _reshape(rng: Rng) -> Iterator[Node]:
    factors = rng.choice([1, 2, 3, 5], rng.integers(0, 5)).tolist()
    s, t = _merged(factors, rng), _merged(rng.permutation(factors).astype(int).tolist(), rng)
    yield mk("reshape", *inputs((s, "float32")), new_sizes=t)


def _merged(factors: list[int], rng: Rng) -> list[int]:
    found: list[int] = []
    for f in factors:
        if found and rng.random() < 0.5:
            found[-1] *= f
        else:
            found.append(f)
    return found


def _regroup(rng: Rng) -> Iterator[Node]:
    groups: list[tuple[list[int], list[int]]] = []
    sizes: dict[int, int] = {}
    count = 0
    for _ in range(rng.integers(1, 4)):
        factors = rng.choice([1, 2, 3], rng.integers(1, 4)).tolist()
        ins = _merged(factors, rng)
        groups.append((list(range(count, count + len(ins))), _merged(factors, rng)))
        sizes |= dict(zip(range(count, count + len(ins)), ins, strict=True))
        count += len(ins)
    order = rng.permutation(count).tolist()  # axis j of the text stands at order[j]
    source = [0] * count
    for j, n in sizes.items():
        source[order[j]] = n
    placed = [([order[j] for j in ins], outs) for ins, outs in groups]
    yield mk("regroup", *inputs((source, "float32")), groups=placed)


def _barrier(rng: Rng) -> Iterator[Node]:
    yield mk("barrier", *inputs((shape(rng), "float32")))


def _rev(rng: Rng) -> Iterator[Node]:
    s = shape(rng)
    dims = rng.choice(len(s), rng.integers(0, len(s) + 1), replace=False) if s else []
    yield mk("rev", *inputs((s, "float32")), dimensions=list(dims))


def _slice(rng: Rng) -> Iterator[Node]:
    s = shape(rng)
    start = [int(rng.integers(0, n + 1)) for n in s]
    limit = [int(rng.integers(a, n + 1)) for a, n in zip(start, s, strict=True)]
    strides = rng.integers(1, 4, len(s)) if rng.random() < 0.7 else None
    yield mk("slice", *inputs((s, "float32")), start_indices=start, limit_indices=limit, strides=strides)


def _pad(rng: Rng) -> Iterator[Node]:
    s = shape(rng)
    config = []
    for n in s:
        low, interior = int(rng.integers(-2, 3)), int(rng.integers(0, 3))
        body = n + max(0, n - 1) * interior
        config.append((low, max(int(rng.integers(-2, 3)), -body - low), interior))
    yield mk("pad", *inputs((s, "float32")), literal(1.5), padding_config=config)


def _concatenate(rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1)
    axis = int(rng.integers(len(s)))
    kinds = [((*s[:axis], int(rng.integers(0, 4)), *s[axis + 1 :]), "int32") for _ in range(rng.integers(1, 5))]
    yield mk("concatenate", *inputs(*kinds), dimension=axis)


def _iota(rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1)
    name = str(rng.choice(["int32", "float32", "uint8", "bfloat16"]))
    yield mk("iota", shape=s, dimension=int(rng.integers(len(s))), dtype=name)


# ---- reductions


def _axes(rng: Rng, rank: int) -> list[int]:
    return rng.choice(rank, rng.integers(0, rank + 1), replace=False).tolist() if rank else []


def _reduce(op: str, rng: Rng) -> Iterator[Node]:
    monoid = op.removeprefix("reduce_")
    kinds = {"and": ["bool", "int32"], "or": ["bool", "int8"], "xor": ["bool", "uint8"]}.get(monoid)
    kinds = kinds or ["float32", "int32", "bfloat16", "float16", "uint8"] + ["bool"] * (monoid in ("max", "min"))
    s = shape(rng)
    yield mk(op, *inputs((s, str(rng.choice(kinds)))), axes=_axes(rng, len(s)))


def _arg(op: str, rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, zero=False)
    d = str(rng.choice(["float32", "int32", "uint8", "bool", "bfloat16"]))
    index = str(rng.choice(["int32", "int8"]))
    yield mk(op, *inputs((s, d)), axes=[int(rng.integers(len(s)))], index_dtype=index)


def _window(op: str, rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, 3, zero=False)
    r = len(s)
    name = str(rng.choice(["float32", "int32", "bfloat16"]))
    yield mk(
        op, *inputs((s, name)), window_dimensions=rng.integers(1, 4, r), window_strides=rng.integers(1, 3, r),
        padding=[(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in s],
        base_dilation=rng.integers(1, 3, r), window_dilation=rng.integers(1, 3, r),
    )  # fmt: skip


def _prefix(op: str, rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, 3)
    name = str(rng.choice(["float32", "int32", "int8"]))
    yield mk(op, *inputs((s, name)), axis=int(rng.integers(len(s))), reverse=bool(rng.random() < 0.5))


# ---- contractions


def _dot_general(rng: Rng) -> Iterator[Node]:
    letters = rng.permutation(list("bcmnkl"))
    roles = {c: str(rng.choice(["batch", "left", "right", "sum"])) for c in letters[: rng.integers(0, 6)]}
    size = {c: int(rng.choice([1, 2, 3, 4, 0], p=[0.2, 0.3, 0.3, 0.17, 0.03])) for c in roles}
    left = rng.permutation([c for c, r in roles.items() if r != "right"]).tolist()
    right = rng.permutation([c for c, r in roles.items() if r != "left"]).tolist()
    of = {r: rng.permutation([c for c in roles if roles[c] == r]).tolist() for r in ("batch", "sum")}
    name = str(rng.choice(["float32", "bfloat16", "int32", "int8", "float16"]))
    wide = {"bfloat16": "float32", "int8": "int32"}.get(name) if rng.random() < 0.5 else None
    yield mk(
        "dot_general", *inputs(([size[c] for c in left], name), ([size[c] for c in right], name)),
        dimension_numbers=(
            ([left.index(c) for c in of["sum"]], [right.index(c) for c in of["sum"]]),
            ([left.index(c) for c in of["batch"]], [right.index(c) for c in of["batch"]]),
        ),
        precision=rng.choice(["highest", None]) if name == "float32" else None, preferred_element_type=wide,
    )  # fmt: skip


def _conv(rng: Rng) -> Iterator[Node]:
    spatial = int(rng.integers(0, 3))
    groups, batches = [(1, 1), (2, 1), (3, 1), (1, 2)][int(rng.integers(4))]
    depth, features = int(rng.integers(1, 4)), int(rng.integers(1, 3)) * groups * batches
    sizes = [int(n) for n in rng.integers(3, 7, spatial)]
    window = [int(n) for n in rng.integers(1, 4, spatial)]
    specs = [rng.permutation(spatial + 2).tolist() for _ in range(3)]
    lhs, rhs = [0] * (spatial + 2), [0] * (spatial + 2)
    for at, n in zip(specs[0], [int(rng.integers(1, 3)) * batches, depth * groups, *sizes], strict=True):
        lhs[at] = n
    for at, n in zip(specs[1], [features, depth, *window], strict=True):
        rhs[at] = n
    name = str(rng.choice(["float32", "float32", "bfloat16"]))
    yield mk(
        "conv_general_dilated", *inputs((lhs, name), (rhs, name)), window_strides=rng.integers(1, 3, spatial),
        padding=[(int(rng.integers(-1, 3)), int(rng.integers(-1, 3))) for _ in sizes],
        lhs_dilation=rng.integers(1, 4, spatial), rhs_dilation=rng.integers(1, 3, spatial), dimension_numbers=specs,
        feature_group_count=groups, batch_group_count=batches,
        preferred_element_type="float32" if rng.random() < 0.3 else None,
    )  # fmt: skip


# ---- indexing


def _dynamic_slice(rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, 3, zero=False)
    sizes = [int(rng.integers(0 if rng.random() < 0.1 else 1, n + 1)) for n in s]
    yield mk("dynamic_slice", *inputs((s, "float32"), *[((), "int32")] * len(s)), slice_sizes=sizes)


def _dynamic_update_slice(rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, 3, zero=False)
    sizes = [int(rng.integers(1, n + 1)) for n in s]
    yield mk("dynamic_update_slice", *inputs((s, "float32"), (sizes, "float32"), *[((), "int32")] * len(s)))


def _gather(rng: Rng) -> Iterator[Node]:
    s = shape(rng, 1, 4, zero=False)
    axes = rng.permutation(len(s)).tolist()
    batch = sorted(axes[: rng.integers(0, 2)])
    others = [d for d in axes if d not in batch]
    mapped = others[: rng.integers(0, len(others) + 1)]
    collapsed = sorted(d for d in others if rng.random() < 0.5)
    sizes = [1 if d in batch or d in collapsed else int(rng.integers(1, n + 1)) for d, n in enumerate(s)]
    rows = list(shape(rng, len(batch), 2, zero=False))
    index_batch = rng.choice(len(rows), len(batch), replace=False).tolist()
    for d, at in zip(batch, index_batch, strict=True):
        rows[at] = s[d]
    kept = len(s) - len(batch) - len(collapsed)
    offset = sorted(rng.choice(kept + len(rows), kept, replace=False).tolist())
    kind, index = str(rng.choice(["float32", "int8", "bool", "uint8"])), str(rng.choice(["int32", "uint8"]))
    yield mk(
        "gather", *inputs((s, kind), ((*rows, len(mapped)), index)), offset_dims=offset, collapsed_slice_dims=collapsed,
        start_index_map=mapped, operand_batching_dims=batch, start_indices_batching_dims=index_batch, slice_sizes=sizes,
        mode=str(rng.choice(["clip", "fill"])),
    )  # fmt: skip


# ---- linear systems


def _linear(op: str, rng: Rng) -> Iterator[Node]:
    batch, n = shape(rng, 0, 2, zero=False), int(rng.integers(1, 5))
    right = [((*batch, n, int(rng.integers(1, 4))), "float32")] if op == "solve" else []
    yield mk(op, *inputs(((*batch, n, n), "float32"), *right))


# ---- sums by segments


def _segment_sum(rng: Rng) -> Iterator[Node]:
    lead, inner = shape(rng, 1, 2), shape(rng, 0, 2)
    kind, index = str(rng.choice(["float32", "int32"])), str(rng.choice(["int32", "uint8"]))
    yield mk("segment_sum", *inputs(((*lead, *inner), kind), (lead, index)), segments=int(rng.integers(0, 4)))


# ---- control


def _scan(rng: Rng) -> Iterator[Node]:
    c, s, x = make_input("c", (3,)), make_input("s", (3,)), make_input("x", (3,))
    new = mk("add", mk("mul", s, c), x)
    body = Graph((c, s, x), (new, mk("sub", new, x)))
    length = int(rng.integers(0, 5))
    yield mk(
        "scan", *inputs(((3,), "float32"), ((3,), "float32"), ((length, 3), "float32")), body=body, num_consts=1,
        num_carry=1, length=length, reverse=bool(rng.random() < 0.5),
    )  # fmt: skip


def _while(rng: Rng) -> Iterator[Node]:
    limit, step, i, x = (make_input(n, (), "int32") for n in ("limit", "step", "i", "x"))
    cond = Graph((limit, i, x), (mk("lt", i, limit),))
    body = Graph((step, i, x), (mk("add", i, literal(1, "int32")), mk("add", x, step)))
    yield mk("while", *inputs(*[((), "int32")] * 4), cond=cond, body=body, cond_nconsts=1, body_nconsts=1)


def _cond(rng: Rng) -> Iterator[Node]:
    x, y = make_input("x", (2,)), make_input("y", (2,))
    branches = [Graph((x, y), (mk(op, x, y), x)) for op in ("add", "mul", "sub")]
    yield mk("cond", *inputs(((), "int32"), ((2,), "float32"), ((2,), "float32")), branches=branches)


def _macro(rng: Rng) -> Iterator[Node]:
    (dot,) = _dot_general(rng)
    yield mk("macro", *dot.inputs, rule="some-rule", op="dot_general", attrs=dot.attrs)
    bounds = {"start_indices": (0,), "limit_indices": (2,)}  # strides are completed
    yield mk("macro", *inputs(((3,), "float32")), rule="some-rule", op="slice", attrs=bounds)


_SAMPLERS: dict[str, Sampler] = {
    "broadcast_in_dim": _broadcast_in_dim, "transpose": _transpose, "reshape": _reshape, "regroup": _regroup,
    "barrier": _barrier, "rev": _rev, "slice": _slice, "pad": _pad, "concatenate": _concatenate, "iota": _iota,
    "dot_general": _dot_general, "conv_general_dilated": _conv, "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice, "gather": _gather, "segment_sum": _segment_sum, "scan": _scan,
    "while": _while, "cond": _cond, "macro": _macro,
}  # fmt: skip


def samples(op: str, rng: Rng, count: int = 10) -> list[Node]:
    """Random applications of an op (for elementwise ops, all their dtypes instead of a number)."""
    if TABLE[op].family == "elementwise":
        return list(_elementwise(op, rng))
    if op == "literal":
        values = ((0.1, "float32"), (1.5, "float32"), (float("nan"), "bfloat16"), (-3, "int8"), (True, "bool"))
        return [literal(value, dtype) for value, dtype in values]
    if op == "input":
        return [make_input("a", (2, 3), "int8"), make_input("a", ())]
    if op == "opaque":
        x = make_input("a", (2,))
        return [mk("opaque", x, primitive="sort", params_key="sort#1", result_types=[((2,), "float32")])]
    if op == "result":
        (scan,) = _scan(rng)
        return [mk("result", scan, index=j) for j in (0, 1)]
    found: list[Node] = []
    for _ in range(count):
        if op in _SAMPLERS:
            found += _SAMPLERS[op](rng)
        elif op.startswith("reduce_window_"):
            found += _window(op, rng)
        elif op.startswith("reduce_"):
            found += _reduce(op, rng)
        elif op.startswith("arg"):
            found += _arg(op, rng)
        elif TABLE[op].family == "linear":
            found += _linear(op, rng)
        elif op in CUMULATIVE:
            found += _prefix(op, rng)
        else:
            found += ir_examples.concrete(op).outputs
    return found


GROWING = (
    "tanh", "add", "mul", "reduce_sum", "transpose", "reshape", "concatenate", "pad", "dot_general", "slice",
    "select_n", "broadcast_in_dim", "scan", "gather",
)  # fmt: skip


def random_graph(rng: Rng, size: int = 8) -> Graph:
    """A random program: ops of every family over a growing pool of float32 tensors and what they give."""
    pool: list[Node] = [make_input("x", (2, 3, 4)), make_input("w", (4, 3), frozen=True), make_input("i", (), "int32")]
    declared = tuple(pool)
    while len(pool) < size + 3:
        op = str(rng.choice(GROWING))
        try:
            node = _grown(op, pool, rng)
        except (ShapeError, IndexError):  # this op does not fit the operands that were drawn
            continue
        if 0 < np.prod(node.shape) <= 2000:
            pool.append(node)
    used = pool[3:]
    return Graph(declared, tuple(used[-2:]))


def _grown(op: str, pool: list[Node], rng: Rng) -> Node:
    def pick() -> Node:
        return pool[int(rng.integers(len(pool)))]

    x: Any = pick()
    rank = len(x.shape)
    match op:
        case "tanh":
            return mk(op, x)
        case "add" | "mul":
            return mk(op, x, pick())
        case "select_n":
            return mk(op, mk("lt", x, x), x, pick())
        case "reduce_sum":
            return mk(op, x, axes=_axes(rng, rank))
        case "transpose":
            return mk(op, x, permutation=rng.permutation(rank))
        case "reshape":
            return mk(op, x, new_sizes=(int(np.prod(x.shape)),))
        case "concatenate":
            return mk(op, x, x, dimension=0)
        case "pad":
            return mk(op, x, literal(0, x.dtype), padding_config=[(1, 0, 1)] * rank)
        case "dot_general":
            return mk(op, x, pick(), dimension_numbers=(((rank - 1,), (0,)), ((), ())))
        case "slice":
            return mk(op, x, start_indices=(0,) * rank, limit_indices=[min(n, 2) for n in x.shape])
        case "broadcast_in_dim":
            return mk(op, x, shape=(2, *x.shape), broadcast_dimensions=range(1, rank + 1))
        case "gather":
            index = mk("convert_element_type", mk("reshape", pick(), new_sizes=(1,)), new_dtype="int32")
            return mk(
                op, x, index, offset_dims=range(rank - 1), collapsed_slice_dims=(0,), start_index_map=(0,),
                slice_sizes=(1, *x.shape[1:]),
            )  # fmt: skip
        case _:
            carry, row = make_input("carry", x.shape[1:], x.dtype), make_input("row", x.shape[1:], x.dtype)
            total = mk("add", carry, row)
            body = Graph((carry, row), (total, mk("neg", total)))
            start = mk("reduce_sum", x, axes=(0,))
            node = mk("scan", start, x, body=body, num_carry=1, length=x.shape[0])
            return mk("result", node, index=int(rng.integers(2)))
