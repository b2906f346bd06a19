"""Reads a published set of labels, with NumPy alone.

    train, test = load("kernels.npz", "without mixer")

`superopt train export` writes this file beside the sets.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

SIDES = "train: ", "test: "  # before the name of a split: the numbers of its kernels
Columns = dict[str, np.ndarray]


def load(path: str | Path, split: str) -> tuple[Columns, ...]:
    """Return the kernels to fit to, and those to predict, of a split."""
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    return tuple(part(columns, columns[f"{side}{split}"]) for side in SIDES)


def part(columns: Mapping[str, np.ndarray], at: np.ndarray) -> Columns:
    """Return the columns of some kernels; those of nodes and edges hold them end to end, kernel by kernel."""
    rows = {kind: _within(columns[f"{kind}s"], at) for kind in ("node", "edge")}
    kept = {name: x for name, x in columns.items() if name != "opcodes" and not name.startswith(SIDES)}
    return {name: x[rows.get(name.partition("_")[0], at)] for name, x in kept.items()}


def _within(counts: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the places of the nodes, or edges, of some kernels."""
    starts, ends = (np.cumsum(counts) - counts).tolist(), np.cumsum(counts).tolist()
    return np.concatenate([np.arange(starts[i], ends[i]) for i in at.tolist()])
