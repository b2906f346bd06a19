"""The decisions of a register tile, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ContractionDecisions:
    """How a contraction runs; axes are those of the normal form (`contract.analyse`), by name.

    Attributes:
        intrinsic: key in the table of intrinsics.
        rows: registers along each axis that is not the lane; 1 where an axis is not named.
        vectors: vectors along the lane.
        depth: iterators of the sum, outermost first, each whole (`r0_0`) or in two parts (`r0_0/16`, `r0_0%16`); as
            they stand when empty.
        unroll: steps of the innermost one that are written out.
        block: steps of the outermost one after which the tile goes on to other rows and columns and comes back; 0: all
            steps at once.
        pack_a: none: A is read where it is; phase: copied on its coordinates before; task: each task copies its part.
        pack_b: panels; coordinates; or none: B is read where it is.
        order_a: order of A's coordinates in its copy.
        pad_a: elements between rows of the copy.
        tasks: iterations of each axis in one task, the lane's in panels; all where an axis is not named.
        columns_first: the panels of a task are its outer loop (B stays in the cache), else the rows are.
        split: parts of the sum that are formed in parallel and added afterwards.
        prefetch: steps ahead for which B is prefetched; 0: none.
        streams: neighbouring panels that a tile reads at once, each a stream in memory; they divide the lane.
        merge_columns: treat all axes of B as one, copying B (a convolution with channels first and a small image).
        lane: the axis along vectors (`contract.analyse`); the innermost one when empty.
    """

    intrinsic: str = "fma_f32"
    rows: tuple[tuple[str, int], ...] = ()
    vectors: int = 2
    depth: tuple[str, ...] = ()
    unroll: int = 4
    block: int = 0
    pack_a: Literal["none", "phase", "task"] = "none"
    pack_b: Literal["none", "panels", "coordinates"] = "panels"
    order_a: tuple[str, ...] = ()
    pad_a: int = 0
    tasks: tuple[tuple[str, int], ...] = ()
    columns_first: bool = True
    split: int = 1
    prefetch: int = 0
    streams: int = 1
    merge_columns: bool = False
    lane: str = ""
