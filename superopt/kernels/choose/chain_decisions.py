"""How a chain of contractions runs: the decisions, the defaults by sizes, and the options that a search tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from superopt.kernels.llvm.cpu import Cpu

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
_LOCAL = 0.75  # of a cache that the buffers of a task may take


@dataclass(frozen=True, slots=True)
class ChainDecisions:
    """How a chain runs.

    Attributes:
        block: rows of a task, whole vectors.
        first: rows of the tile of the first contraction.
        second: rows of the tile of the second one.
        vectors: vectors along the columns of the second tile, where these are its lanes.
        keys: steps of the second sum after which its tile goes on to other rows and comes back; 0: all at once.
        unroll: steps of the sums that are written out.
    """

    block: int
    first: int
    second: int
    vectors: int
    keys: int = 0
    unroll: int = 4


@dataclass(frozen=True, slots=True)
class ChainSizes:
    """What decisions depend on.

    Attributes:
        lanes: of a vector.
        rows: of the chain, in all tasks of one batch element.
        batch: elements that tasks never share.
        columns: of the second contraction.
        keys: steps of its sum; 0 where partial sums cannot wait in the result.
        bytes_a_row: of all buffers of a task.
        across: do the lanes of the second tile run along the rows?
    """

    lanes: int
    rows: int
    batch: int
    columns: int
    keys: int
    bytes_a_row: int
    across: bool


def chosen(sizes: ChainSizes, cpu: Cpu, threads: int) -> ChainDecisions | None:
    """The largest block of rows whose buffers fit the cache and that leaves enough tasks; None where none fits.

    The smallest one may take a thread's share of the last level: long rows are read there three times for thousands of
    multiply-adds an element, which costs less than a second pass over the keys would.
    """
    best: ChainDecisions | None = None
    for count in (4, 2, 1):
        block = count * sizes.lanes
        tasks = sizes.batch * -(-sizes.rows // block)
        if not _fits(sizes, block, cpu, threads) or (count > 1 and block >= 2 * sizes.rows):
            continue
        made = _made(sizes, cpu, block, min(4, -(-sizes.columns // sizes.lanes)))
        if best is None or _short(tasks, threads):
            best = made
        if not _short(tasks, threads):
            break
    return best


def options(sizes: ChainSizes, cpu: Cpu, threads: int) -> dict[str, tuple[Any, ...]]:
    """What decisions may be: rows of a task with those of the first tile, vectors and rows of the second, the rest."""
    blocks = [n * sizes.lanes for n in (1, 2, 3, 4, 6, 8)]
    blocks = [b for b in blocks if _fits(sizes, b, cpu, threads) and (b == sizes.lanes or b < 2 * sizes.rows)]
    wide = min(4, -(-sizes.columns // sizes.lanes))
    return {
        "queries": tuple([(b, n) for b in blocks for n in _ROWS if _held(cpu, n, b // sizes.lanes)]),
        "columns": tuple([
            (v, n) for v in range(1, 2 if sizes.across else wide + 1) for n in _ROWS if _held(cpu, n, v)
        ]),
        "keys": (0, *[n for n in (64, 128, 256, 512) if n < sizes.keys and not sizes.across]),
        "unroll": (1, 2, 4, 8),
    }  # fmt: skip


def taken(
    sizes: ChainSizes, queries: tuple[int, int], columns: tuple[int, int], keys: int, unroll: int
) -> ChainDecisions:
    """The decisions that options are; the rows of the second tile are the most up to the given ones that fit."""
    (block, first), (vectors, second) = queries, columns
    second = second if sizes.across else _dividing(min(second, block), block)
    return ChainDecisions(block, first, second, vectors, keys, unroll)


def _held(cpu: Cpu, rows: int, vectors: int) -> bool:
    """Do the registers hold a tile?"""
    return rows * vectors + vectors + 1 <= cpu.registers


def spread(sizes: ChainSizes, cpu: Cpu) -> Iterator[ChainDecisions]:
    """A few decisions that differ in everything."""
    wide = 1 if sizes.across else min(4, -(-sizes.columns // sizes.lanes))
    for count, vectors in product((4, 2, 3, 1), sorted({min(2, wide), wide})):
        yield _made(sizes, cpu, count * sizes.lanes, vectors)


def _made(sizes: ChainSizes, cpu: Cpu, block: int, vectors: int) -> ChainDecisions:
    along = block // sizes.lanes
    first = _most(cpu, along, block)
    if sizes.across:
        return ChainDecisions(block, first, _dividing(_most(cpu, along, sizes.columns), sizes.columns), 1)
    return ChainDecisions(block, first, _dividing(_most(cpu, vectors, block), block), vectors)


def _most(cpu: Cpu, vectors: int, extent: int) -> int:
    """Rows of a tile that registers hold."""
    return max(1, min((cpu.registers - 2 - vectors) // vectors, 12, extent))


def _dividing(rows: int, extent: int) -> int:
    return max(n for n in range(1, rows + 1) if extent % n == 0)


def _fits(sizes: ChainSizes, block: int, cpu: Cpu, threads: int) -> bool:
    cache = cpu.l2 if block > sizes.lanes else max(cpu.l2, cpu.l3 // max(1, threads))
    return sizes.bytes_a_row * block <= _LOCAL * cache


def _short(tasks: int, threads: int) -> bool:
    """Are tasks too few to keep all threads busy to the end?"""
    return threads > 1 and tasks < 4 * threads
