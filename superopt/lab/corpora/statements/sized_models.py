"""Pairs of ONNX models with symbolic dimensions that differ at some size: rewrites that misread operators.

zero copied      A shape with an entry that may be 0, which copies an axis, and the same where it is one.
squeezed         Every axis of size 1 left out, one of them symbolic.
expanded         A size that is 1 spreads, another does not.
sliced           Bounds that are cut off at a size, or count from the end.
divided          Quotients and remainders of sizes that round to different sides.
branched         Nodes that depend on a size: If, Where, Equal, Less.
narrowed         A size in a type that cannot represent it.
windowed         Pools and pads whose windows end differently at odd sizes.
counted          Ranges, cumulative sums and positions that begin elsewhere.
stored           An initializer with one entry that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from superopt.lab.corpora.statements.kinds import in_turn, pick

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Nodes = tuple[list[Any], dict[str, Any]]
"""Nodes from `x` to `y`, and the tensors that they read."""
SizedModels = tuple[Nodes, Nodes, list[Any]]
node = helper.make_node


def false_models(seed: int, count: int) -> Iterator[tuple[str, Any, Any]]:
    """A sequence of `count` named pairs, the kinds in turn."""
    for name, number, make, rng in in_turn(_KINDS, seed, count):
        first, second, shape = make(rng)
        before = int(rng.integers(2))
        yield f"{name} {number}", _model(first, shape, before), _model(second, shape, before)


def _model(made: Nodes, shape: Sequence[Any], before: int) -> Any:
    """A model with the nodes between a part that both models have and something continuous."""
    nodes, stored = made
    begin = [node("Sinh" if before else "Identity", ["in"], ["x"])]
    end = [node("Mul", ["y", "y"], ["square"]), node("Add", ["square", "y"], ["out"])]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()]
    given = helper.make_tensor_value_info("in", FLOAT, shape)
    graph = helper.make_graph(
        [*begin, *nodes, *end], "g", [given], [helper.make_tensor_value_info("out", FLOAT, None)], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _size(axis: int = 0) -> list[Any]:
    """Nodes that output a size as `n` and, as a vector of one entry, as `n1`."""
    return [
        node("Shape", ["x"], ["n1"], start=axis, end=axis + 1), node("Identity", ["n1"], ["n0"]),
        node("Squeeze", ["n0"], ["n"]),
    ]  # fmt: skip


def _scaled(*nodes: Any, axis: int = 0, **stored: Any) -> Nodes:
    """`x` times the integer `k` that nodes compute from a size."""
    return [*_size(axis), *nodes, node("Cast", ["k"], ["f"], to=FLOAT), node("Mul", ["x", "f"], ["y"])], stored


def _reshaped(entries: Sequence[int | str], allow: int = 0) -> Nodes:
    nodes: list[Any] = [node("Shape", ["x"], ["s"])]
    stored: dict[str, Any] = {"last": [-1]}
    for i, entry in enumerate(entries):
        stored[f"i{i}"] = np.asarray([int(entry)])
        made = node("Gather", ["s", f"i{i}"], [f"d{i}"], axis=0)
        nodes.append(made if isinstance(entry, str) else node("Identity", [f"i{i}"], [f"d{i}"]))
    nodes += [
        node("Concat", [f"d{i}" for i in range(len(entries))], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"], allowzero=allow),
        node("ReduceSum", ["r", "last"], ["y"], keepdims=0),
    ]
    return nodes, stored


def _copied(rng: np.random.Generator) -> SizedModels:
    a = int(rng.integers(2, 5))
    return pick(
        rng,
        (_reshaped(["1", a, "2"]), _reshaped(["1", a, "2"], 1), [a, "n", "n"]),
        (_reshaped(["1", a, "2"]), _reshaped(["1", a, "2"], 1), [a, "n", "m"]),
        (_reshaped(["1", "0"]), _transposed([1, 0]), ["n", "m"]),
        (_reshaped(["1", "0", 2]), _transposed([1, 0, 2]), ["n", "m", 2]),
        (_reshaped(["0", -1]), _reshaped(["1", -1]), ["n", "m", a]),
    )


def _transposed(perm: Sequence[int]) -> Nodes:
    nodes = [node("Transpose", ["x"], ["r"], perm=perm), node("ReduceSum", ["r", "last"], ["y"], keepdims=0)]
    return nodes, {"last": [-1]}


def _squeezed(rng: np.random.Generator) -> SizedModels:
    total = node("ReduceSum", ["x"], ["all"], keepdims=0)
    scalar = [total, node("Squeeze", ["x"], ["z"]), node("Shape", ["z"], ["s"]), node("Size", ["s"], ["rank"]),
              node("Cast", ["rank"], ["r"], to=FLOAT), node("Mul", ["all", "r"], ["y"])]  # fmt: skip
    rank = int(rng.integers(1, 3))
    shape = ["n", 1] if rank == 1 else ["n", 1, "m"]
    plain = [total, node("Mul", ["all", "c"], ["y"])]
    return (scalar, {}), (plain, {"c": np.float32(rank)}), shape


def _expanded(rng: np.random.Generator) -> SizedModels:
    first = [node("Shape", ["x"], ["s"]), node("ReduceSum", ["x", "a"], ["r"], keepdims=1),
             node("Expand", ["r", "s"], ["y"])]  # fmt: skip
    tiled = [*_size(1), node("ReduceSum", ["x", "a"], ["r"], keepdims=1),
             node("Concat", ["n1", "one"], ["t"], axis=0), node("Tile", ["r", "t"], ["y"])]  # fmt: skip
    spread = [node("Shape", ["x"], ["s"]), node("Expand", ["x", "s"], ["e"]), node("Sub", ["e", "e"], ["y"])]
    centred = [node("ReduceMean", ["x"], ["r"], axes=[0]), node("Sub", ["x", "r"], ["y"])]
    return pick(
        rng,
        ((first, {"a": [0]}), (tiled, {"a": [0], "one": [1]}), ["n", "m"]),
        ((first, {"a": [0]}), ([node("Identity", ["x"], ["y"])], {}), ["n", 2]),
        ((spread, {}), (centred, {}), ["n", 2]),
    )


def _slice(start: int, end: int, step: int = 1) -> Nodes:
    stored = {"a": np.asarray([start]), "e": np.asarray([end]), "ax": np.asarray([0]), "st": np.asarray([step])}
    nodes = [node("Slice", ["x", "a", "e", "ax", "st"], ["r"]), node("ReduceSum", ["r", "ax"], ["y"], keepdims=0)]
    return nodes, stored


def _sliced(rng: np.random.Generator) -> SizedModels:
    k, far = int(rng.integers(1, 5)), 2**63 - 1
    return pick(
        rng,
        (_slice(-k, far), _slice(0, k), ["n", 2]),
        (_slice(0, -k), _slice(k, far), ["n", 2]),
        (_slice(0, k + 7), _slice(0, far), ["n", 2]),
        (_slice(k, far), _slice(k, -1), ["n", 2]),
        (_slice(far, -far, -1), _slice(far, 0, -1), ["n", 2]),
        (_slice(0, far, 2), _slice(1, far, 2), ["n", 2]),
        (_slice(-k, -k - 1), _slice(-k - 1, -k), ["n", 2]),
        (_slice(-1 - k, far), _slice(-k, far), ["n", 2]),
    )


def _divided(rng: np.random.Generator) -> SizedModels:
    k = int(rng.integers(2, 9))
    less = node("Sub", ["n", "k0"], ["d"])
    half = _scaled(less, node("Div", ["d", "k2"], ["k"]), k0=np.int64(k), k2=np.int64(2))
    floor = _scaled(node("Div", ["n", "k2"], ["h"]), node("Sub", ["h", "k1"], ["k"]), k2=np.int64(2),
                    k1=np.int64((k + 1) // 2))  # fmt: skip
    remainder = _scaled(less, node("Mod", ["d", "k2"], ["k"], fmod=0), k0=np.int64(k), k2=np.int64(3))
    c_remainder = _scaled(less, node("Mod", ["d", "k2"], ["k"], fmod=1), k0=np.int64(k), k2=np.int64(3))
    whole = _scaled(node("Div", ["n", "k2"], ["h"]), node("Mul", ["h", "k2"], ["k"]), k2=np.int64(k))
    same = _scaled(node("Identity", ["n"], ["k"]))
    return pick(
        rng, (half, floor, ["n", 2]), (remainder, c_remainder, ["n", 2]), (whole, same, ["n", 2]),
        (_scaled(node("Mod", ["n", "k2"], ["k"]), k2=np.int64(k + 50)), same, ["n", 2]),
    )  # fmt: skip


def _branched(rng: np.random.Generator) -> SizedModels:
    at = int(rng.integers(2, 300))
    same = ([node("Identity", ["x"], ["y"])], {})

    def branch(op: str, to: str) -> Any:
        result = helper.make_tensor_value_info(to, FLOAT, None)
        return helper.make_graph([node(op, ["x"], [to])], to, [], [result])

    def asked(op: str) -> Nodes:
        branches = {"then_branch": branch("Neg", "t"), "else_branch": branch("Identity", "e")}
        nodes = [*_size(), node(op, ["n", "at"], ["p"]), node("If", ["p"], ["y"], **branches)]
        return nodes, {"at": np.int64(at)}

    chosen = _scaled(
        node("Equal", ["n", "at"], ["p"]), node("Where", ["p", "two", "one"], ["k"]),
        at=np.int64(at), two=np.int64(2), one=np.int64(1),
    )  # fmt: skip
    live = [*_size(), node("Cast", ["n"], ["f"], to=FLOAT), node("Less", ["f", "at"], ["p"]), node("Neg", ["x"], ["m"]),
            node("Where", ["p", "m", "x"], ["y"])]  # fmt: skip
    clipped = _scaled(node("Min", ["n", "at"], ["m"]), node("Div", ["m", "n"], ["k"]), at=np.int64(at))
    first = pick(rng, asked("Equal"), asked("Less"), chosen, (live, {"at": np.float32(at)}), clipped)
    return first, same, ["n", 2]


def _narrowed(rng: np.random.Generator) -> SizedModels:
    kind = pick(rng, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.FLOAT16, TensorProto.BOOL)
    cast = _scaled(node("Cast", ["n"], ["c"], to=kind), node("Cast", ["c"], ["k"], to=INT64))
    return cast, _scaled(node("Identity", ["n"], ["k"])), ["n", 2]


def _windowed(rng: np.random.Generator) -> SizedModels:
    def pool(op: str, **attributes: Any) -> Nodes:
        nodes = [node(op, ["x"], ["r"], **attributes), node("ReduceSum", ["r", "ax"], ["y"], keepdims=0)]
        return nodes, {"ax": [2]}

    two = {"kernel_shape": [2], "strides": [2]}
    three, low = {"kernel_shape": [3]}, {"auto_pad": "SAME_LOWER"}
    first, second = pick(
        rng,
        (pool("MaxPool", **two, ceil_mode=1), pool("MaxPool", **two, ceil_mode=0)),
        (pool("AveragePool", **two, pads=[0, 1], count_include_pad=1), pool("AveragePool", **two, pads=[0, 1])),
        (pool("MaxPool", **three, pads=[1, 1]), pool("MaxPool", **three, auto_pad="VALID")),
        (pool("MaxPool", **two, auto_pad="SAME_UPPER"), pool("MaxPool", **two, **low)),
        (pool("AveragePool", **two, pads=[1, 0]), pool("AveragePool", **two, pads=[0, 1])),
    )
    return first, second, ["b", 1, "n"]


def _counted(rng: np.random.Generator) -> SizedModels:
    k = int(rng.integers(1, 4))

    def positions(start: int, step: int) -> Nodes:
        nodes = [
            *_size(), node("Mul", ["n", "st"], ["l"]), node("Add", ["l", "a"], ["end"]),
            node("Range", ["a", "end", "st"], ["r"]), node("Cast", ["r"], ["f"], to=FLOAT),
            node("Mul", ["x", "f"], ["y"]),
        ]  # fmt: skip
        return nodes, {"a": np.int64(start), "st": np.int64(step)}

    def sums(**attributes: Any) -> Nodes:
        return [node("CumSum", ["x", "ax"], ["y"], **attributes)], {"ax": np.int64(0)}

    def from_end(place: int) -> Nodes:
        nodes = [*_size(), node("Sub", ["n", "d"], ["i"]), node("Gather", ["x", "i"], ["r"], axis=0)]
        return [*nodes, node("Add", ["x", "r"], ["y"])], {"d": np.int64(place)}

    first, second = pick(
        rng,
        (positions(0, k), positions(1, k)),
        (positions(0, k), positions(0, k + 1)),
        (sums(), sums(exclusive=1)),
        (sums(), sums(reverse=1)),
        (sums(exclusive=1, reverse=1), sums(exclusive=1)),
        (from_end(k), from_end(k + 1)),
    )
    return first, second, ["n"]


def _stored(rng: np.random.Generator) -> SizedModels:
    width = int(pick(rng, 3, 9, 40))
    one = rng.standard_normal((width, 5)).astype(np.float32)
    scale = rng.uniform(0.5, 2, 5).astype(np.float32)
    other = one.copy()
    other[int(rng.integers(width)), int(rng.integers(5))] += np.float32(0.02)

    def product(w: np.ndarray, *more: Any, **stored: Any) -> Nodes:
        last = "r" if more else "y"
        return [node("MatMul", ["x", "w"], [last]), *more], {"w": w, **stored}

    scaled = product(one, node("Mul", ["r", "s"], ["y"]), s=scale)

    def table(w: np.ndarray) -> Nodes:
        nodes = [*_size(), node("Mod", ["n", "m"], ["i"]), node("Gather", ["w", "i"], ["r"], axis=1)]
        return [*nodes, node("Add", ["x", "r"], ["y"])], {"w": w, "m": np.int64(5)}

    first, second = pick(
        rng, (product(one), product(other)), (scaled, product(other * scale)), (table(one), table(other))
    )
    return first, second, ["n", width]


_KINDS: Mapping[str, Callable[[np.random.Generator], SizedModels]] = {
    "zero-copied": _copied, "squeezed": _squeezed, "expanded": _expanded, "sliced": _sliced, "divided": _divided,
    "branched": _branched, "narrowed": _narrowed, "windowed": _windowed, "counted": _counted, "stored": _stored,
}  # fmt: skip
