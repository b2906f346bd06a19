"""The corpus of labels: kernels with their measured times, and splits of it.

A line of the file is one timed form of a task: family, program, task, form, key (of the kernel's text), text, seconds,
relative standard error.  One kernel may occur in several programs; a split keeps it on the test side only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import costmodel
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph

SHIPPED = Path(costmodel.__file__).parent / "data" / "labels.jsonl.gz"
OWN_FORM = "region"  # the form of regions that no rule made
RESOLUTION_S = 2e-7  # least uncertainty of a label, however short the kernel, as dispatch is taken off


class CorpusError(ValueError):
    """A label file that cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class KernelLabel:
    """One timed kernel form; fields as in the file, `again_s` is the time of a later second visit."""

    family: str
    program: str
    task: str
    form: str
    key: str
    graph: Graph
    seconds: float
    stderr: float
    again_s: float | None

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of the time."""
        return float(np.hypot(max(self.stderr, 0.01), RESOLUTION_S / (self.seconds + RESOLUTION_S)))


@dataclass(frozen=True, slots=True)
class Corpus:
    """Labels with the file's header and a digest of its contents."""

    header: dict[str, Any]
    labels: tuple[KernelLabel, ...]
    digest: str


def load(path: Path = SHIPPED) -> Corpus:
    """Read a label file; lines of one kernel in one program and task are merged by their minimum.

    Raises:
        CorpusError: the file is missing or a line is not a label.
    """
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    header: dict[str, Any] = {}
    merged: dict[tuple[str, str, str], KernelLabel] = {}
    graphs: dict[str, Graph] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
            if "header" in record:
                header = record["header"]
                continue
            graph = graphs.get(record["key"])
            if graph is None:
                graph = graphs[record["key"]] = parse_graph(record["text"])
            label = KernelLabel(
                record["family"], record["program"], record["task"], record["form"], key=record["key"], graph=graph,
                seconds=float(record["seconds"]), stderr=float(record["stderr"]), again_s=record.get("again_s"),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorpusError(f"{path.name}, line {number}: {error}") from error
        place = (label.program, label.task, label.key)
        if place not in merged or label.seconds < merged[place].seconds:
            merged[place] = label
    if not merged:
        raise CorpusError(f"{path.name} holds no labels")
    return Corpus(header, tuple(merged.values()), hashlib.sha256(data).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class Split:
    """Indices into the labels; `shared` training labels were removed because the test side has the same kernel."""

    name: str
    train: np.ndarray
    test: np.ndarray
    shared: int


def by_family(labels: Sequence[KernelLabel], family: str) -> Split:
    """All of one family held out."""
    return _split(f"without {family}", labels, np.array([x.family == family for x in labels]))


def by_program(labels: Sequence[KernelLabel], seed: int, share: float = 0.2) -> Split:
    """A random share of the programs held out."""
    programs = sorted({x.program for x in labels})
    rng = np.random.default_rng(seed)
    held = set(rng.permutation(programs)[: max(1, round(share * len(programs)))].tolist())
    return _split(f"programs {seed}", labels, np.array([x.program in held for x in labels]))


def _split(name: str, labels: Sequence[KernelLabel], held: np.ndarray) -> Split:
    keys = {labels[i].key for i in np.flatnonzero(held).tolist()}
    tasks = {(labels[i].task, labels[i].family) for i in np.flatnonzero(held).tolist()}
    clean = np.array([x.key not in keys and (x.task, x.family) not in tasks for x in labels])
    train = np.flatnonzero(~held & clean)
    return Split(name, train, np.flatnonzero(held), int((~held).sum() - len(train)))


def noise_floors(labels: Sequence[KernelLabel]) -> dict[str, float | None]:
    """Mean and median of |second visit - first| / first, where there was a second visit; None without any.

    The mean is comparable with a mean relative error.
    """
    gaps = [abs(x.again_s - x.seconds) / x.seconds for x in labels if x.again_s is not None]
    figures = {"noise_floor_mean": np.mean, "noise_floor_median": np.median}
    return {name: float(of(gaps)) if gaps else None for name, of in figures.items()}
