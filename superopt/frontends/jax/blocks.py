"""Block-diagonal matrices, as `jax.scipy.linalg.block_diag` writes them: rows of blocks, each between zeros.

Equal blocks are one tensor under a mask, `where(g == h, blocks[g], 0)` with axes (g, rows, h, columns).  A product
with it is a batch of products with the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from superopt.frontends.jax.builders import broadcast, concatenate, full, reshape
from superopt.ir.graph import Node, mk


def block_diagonal(xs: Sequence[Node], axis: int) -> Node | None:
    """A concatenation as equal blocks on a diagonal; None for others."""
    inner = [_block(x) for x in xs]
    blocks = [x for x in inner if x is not None]
    count = len(xs)
    if count < 2 or axis != 0 or len(blocks) < count or len({x.shape for x in blocks}) > 1:
        return None
    rows, columns = (n for n in blocks[0].shape if isinstance(n, int))
    for n, x in enumerate(xs):
        low, high = n * columns, (count - 1 - n) * columns
        if x.shape != (rows, count * columns) or x["padding_config"] != ((0, 0, 0), (low, high, 0)):
            return None
    shape, dtype = (count, rows, count, columns), blocks[0].dtype
    down, right = (mk("iota", dtype="int32", shape=shape, dimension=d) for d in (0, 2))
    spread = broadcast(_stacked(blocks), shape, (0, 1, 3))
    chosen = mk("select_n", mk("eq", down, right), full(shape, 0, dtype), spread)
    return reshape(chosen, (count * rows, count * columns))


def _block(x: Node) -> Node | None:
    """The matrix that a row of blocks holds between zeros; None for other values."""
    if x.op != "pad" or len(x.shape) != 2 or not all(isinstance(n, int) for n in x.shape):
        return None
    inner, value = x.inputs
    zero = value.op == "literal" and value["value"] == 0 and math.copysign(1.0, value["value"]) > 0
    return inner if zero and all(isinstance(n, int) for n in inner.shape) else None


def _stacked(blocks: Sequence[Node]) -> Node:
    """The blocks as one tensor: the one of which they are all entries, in order, or a new one."""
    sources = [x.inputs[0] if x.op == "reshape" else x for x in blocks]
    places = [x["start_indices"] for x in sources if x.op == "slice"]
    whole = sources[0].inputs[0] if sources[0].op == "slice" else None
    one = (1, *blocks[0].shape)
    counted = len(places) == len(blocks) and all(b == (a[0] + 1, *a[1:]) for a, b in pairwise(places))
    every = whole is not None and whole.shape == (len(blocks), *blocks[0].shape)
    if whole is not None and every and counted and all(x.inputs[0] is whole and x.shape == one for x in sources):
        return whole
    return concatenate([reshape(x, one) for x in blocks], 0)
