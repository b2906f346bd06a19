"""Random loop programs and random schedule steps, from a generator of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from superopt.errors import ShapeError
from superopt.ir.expr import Expr
from superopt.ir.graph import Node, literal, make_input, mk
from superopt.ir.prefix import direction
from superopt.kernels.loops.program import from_graph, reads
from superopt.kernels.loops.stage import LoopProgram, Stage
from superopt.kernels.schedule import PRIMITIVES
from superopt.kernels.schedule.edit import parts, reductions

Rng = np.random.Generator
Step = tuple[Any, ...]
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
DTYPES = ("float32", "float32", "float64", "bfloat16", "int32", "int8", "uint8")


def pick(rng: Rng, items: Any) -> Any:
    """One of several."""
    return list(items)[int(rng.integers(len(items)))]


def size(rng: Rng) -> int:
    """1, primes, powers of two; seldom 0."""
    return 0 if rng.random() < 0.02 else int(pick(rng, SIZES))


def program(rng: Rng) -> LoopProgram:
    """A few ops over matrices of one dtype, some kept in memory."""
    dtype = pick(rng, DTYPES)
    m, n, k = size(rng), size(rng), size(rng)
    x = make_input("x", (m, n), dtype)
    w = make_input("w", (n, k), dtype, frozen=True)
    pool: list[Node] = [x, w, make_input("b", (n,), dtype, frozen=bool(rng.random() < 0.5))]
    made: list[Node] = []
    while len(made) < int(rng.integers(2, 6)):
        try:
            node = _grown(rng, pool, dtype)
        except (ShapeError, IndexError, ValueError):  # this op does not fit the operands that were drawn
            continue
        if node not in pool and int(np.prod(node.shape)) <= 600:
            pool.append(node)
            made.append(node)
    outputs = made[-1:] if rng.random() < 0.8 else made[-2:]
    kept = {node for node in made[:-1] if rng.random() < 0.5}
    return from_graph(outputs, scratch=kept, stop=set(outputs) if rng.random() < 0.3 else frozenset())


def _grown(rng: Rng, pool: list[Node], dtype: str) -> Node:
    a, b = pick(rng, pool), pick(rng, pool[-2:])
    floating = dtype in ("float32", "float64", "bfloat16")
    rank = len(a.shape)
    kinds: dict[str, Callable[[], Node]] = {
        "unary": lambda: mk("tanh" if floating else "neg", a),
        "binary": lambda: mk(str(pick(rng, ("add", "mul", "sub", "max"))), a, pick(rng, _like(pool, a))),
        "reduce": lambda: mk(str(pick(rng, ("reduce_sum", "reduce_max"))), a, axes=(int(rng.integers(rank)),)),
        "row": lambda: mk("broadcast_in_dim", b, shape=(int(pick(rng, SIZES)), *b.shape),
                          broadcast_dimensions=tuple(range(1, 1 + len(b.shape)))),
        "transpose": lambda: mk("transpose", a, permutation=tuple(rng.permutation(rank).tolist())),
        "reshape": lambda: mk("reshape", a, new_sizes=(int(np.prod(a.shape)),)),
        "rev": lambda: mk("rev", a, dimensions=(int(rng.integers(rank)),)),
        "slice": lambda: _sliced(rng, a),
        "pad": lambda: mk("pad", a, literal(1, dtype), padding_config=tuple(
            (int(rng.integers(-1, 3)), int(rng.integers(0, 3)), int(rng.integers(0, 2))) for _ in a.shape)),
        "concatenate": lambda: mk("concatenate", a, pick(rng, _like(pool, a)), dimension=int(rng.integers(rank))),
        "dot": lambda: mk("dot_general", a, b, dimension_numbers=(((rank - 1,), (0,)), ((), ()))),
        "window": lambda: mk(
            "reduce_window_sum", a, window_dimensions=(2,) * rank, window_strides=(1,) * rank,
            padding=((1, 0),) * rank),
        "cumulative": lambda: mk("cumsum", a, axis=int(rng.integers(rank))),
    }  # fmt: skip
    return kinds[str(pick(rng, kinds))]()


def _like(pool: list[Node], a: Node) -> list[Node]:
    return [node for node in pool if node.shape == a.shape]


def _sliced(rng: Rng, a: Node) -> Node:
    start = [int(rng.integers(0, max(1, n))) for n in a.shape]
    limit = [int(rng.integers(s, n + 1)) for s, n in zip(start, a.shape, strict=True)]
    return mk("slice", a, start_indices=start, limit_indices=limit, strides=None)


def step(rng: Rng, of: LoopProgram, primitive: str | None = None) -> Step:
    """A schedule step over what the program has; many are legal."""
    stage: Stage = pick(rng, of.stages)
    name = primitive or str(pick(rng, PRIMITIVES))
    if "reduction" in name or name == "rfactor":
        stage = pick(rng, [t for t in of.stages if reductions(t)] or of.stages)
    if name == "split_prefix":
        stage = pick(rng, [t for t in of.stages if any(map(_is_prefix, reductions(t)))] or of.stages)
    if name == "tensorize":
        stage = pick(rng, [t for t in of.stages if reductions(t) and t.axes] or of.stages)
    if name in ("inline", "compute_at", "transform_layout", "reverse_compute_at"):
        stage = pick(rng, [t for t in of.stages if of.buffer(t.buffer).scope != "output"] or of.stages)
    s, axes = stage.buffer, [a.symbol.name for a in stage.axes]
    sums = reductions(stage)
    number = int(rng.integers(max(1, len(sums))))
    if name in ("rfactor", "reorder_reduction") and any(len(e.args[1]) > 1 for e in sums):
        number = pick(rng, [j for j, e in enumerate(sums) if len(e.args[1]) > 1])
    if name == "split_prefix" and any(map(_is_prefix, sums)):
        number = pick(rng, [j for j, e in enumerate(sums) if _is_prefix(e)])
    rank = len(sums[number].args[1]) if sums else 1
    factors = [int(pick(rng, (1, 2, 3, 4, 5, 8, 16))) for _ in range(int(rng.integers(1, 3)))]
    at = int(rng.integers(rank))
    chosen = sorted(rng.choice(rank, int(rng.integers(1, max(2, rank))), replace=False).tolist())
    count = int(rng.integers(0, len(axes) + 1))
    axis = pick(rng, axes) if axes else "o0"
    first = int(rng.integers(max(1, len(axes))))
    shape = of.buffer(s).shape
    later = of.stages[of.stages.index(stage) + 1 :]
    readers = [r for r in later if s in reads(r)] or [stage]
    host = pick(rng, readers)
    options: dict[str, Callable[[], Step]] = {
        "split": lambda: (s, axis, factors),
        "fuse": lambda: (s, axes[first : first + int(rng.integers(2, 4))] if rng.random() < 0.5 else axes[:2]),
        "reorder": lambda: (s, [axes[j] for j in rng.permutation(len(axes))]),
        "parallel": lambda: (s, axes[0] if axes else "o0"),
        "vectorize": lambda: (s, axes[-1] if axes else "o0"),
        "unroll": lambda: (s, axis),
        "pad": lambda: (s, axis, int(pick(rng, (1, 3, 4, 8)))),
        "set_knob": lambda: (s, "accumulators", int(rng.integers(1, 5))),
        "inline": lambda: (s,),
        "materialize": lambda: (s, int(rng.integers(len(parts(stage))))),
        "cache_read": lambda: (s, pick(rng, sorted(reads(stage)) or [0])
                               if rng.random() < 0.3 else int(rng.integers(len(parts(stage))))),
        "cache_write": lambda: (s,),
        "compute_at": lambda: (s, host.buffer, int(rng.integers(0, len(host.axes) + 1))),
        "reverse_compute_at": lambda: (host.buffer,),
        "blockize": lambda: (s, count),
        "split_reduction": lambda: (s, number, at, factors),
        "pad_reduction": lambda: (s, number, at, int(pick(rng, (1, 3, 4, 8)))),
        "reorder_reduction": lambda: (s, number, rng.permutation(rank).tolist()),
        "rfactor": lambda: (s, number, chosen),
        "decompose_reduction": lambda: (s, chosen, count),
        "transform_layout": lambda: (s, layout(rng, shape), str(pick(rng, ("keep", "new", "fill")))),
        "tensorize": lambda: (s, tile(rng, axes)),
        "choose": lambda: (s,),
        "share": lambda: (s, int(rng.integers(len(parts(stage))))),
        "factor_out": lambda: (s, number),
        "skip": lambda: (s, int(rng.integers(0, max(1, len(shape))))),
        "widen": lambda: (s,),
        "split_prefix": lambda: (s, number, factors[0]),
    }  # fmt: skip
    return (name, *options[name]())


def _is_prefix(e: Expr) -> bool:
    return any(direction(e, s) for s in e.symbols)


def tile(rng: Rng, axes: list[str]) -> list[list[Any]]:
    """Decisions of a register tile."""
    return [
        ["intrinsic", str(pick(rng, ("fma_f32", "fma_f64")))],
        ["rows", [[name, int(pick(rng, (1, 2, 3, 4)))] for name in axes[:1]]],
        ["vectors", int(pick(rng, (1, 2)))],
        ["pack_a", str(pick(rng, ("none", "phase", "task")))],
        ["pack_b", str(pick(rng, ("none", "panels", "coordinates")))],
        ["unroll", int(pick(rng, (1, 2, 4)))],
        ["tasks", [[name, int(pick(rng, (1, 2, 8)))] for name in axes[:1]]],
        ["columns_first", int(rng.integers(2))],
    ]


def layout(rng: Rng, shape: tuple[int, ...]) -> list[list[Any]]:
    """A layout of a buffer: up to three steps."""
    steps: list[list[Any]] = []
    now = list(shape)
    for _ in range(int(rng.integers(1, 4))):
        rank = len(now)
        d = int(rng.integers(max(1, rank)))
        match int(rng.integers(4)):
            case 0 if rank:
                f = int(pick(rng, (1, 2, 4, 8)))
                steps.append(["split", d, f])
                now[d : d + 1] = [-(-now[d] // f), f]
            case 1 if rank > 1:
                d = int(rng.integers(rank - 1))
                steps.append(["fuse", d])
                now[d : d + 2] = [now[d] * now[d + 1]]
            case 2 if rank:
                order = rng.permutation(rank).tolist()
                steps.append(["permute", order])
                now = [now[j] for j in order]
            case 3 if rank:
                now[d] += int(rng.integers(3))
                steps.append(["pad", d, now[d]])
            case _:
                pass
    return steps
