"""Features of kernels and of scheduled stages as they were when the weights that ship were fitted to them.

python -m tests.support.golden_features    # written anew only together with weights that were fitted to other ones
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from costmodel.features.stages import stage_rows
from costmodel.model import weights_file
from costmodel.model.catalogue import tabulate
from costmodel.model.encode import KernelEncoder, join, kernel_features, pooled_features
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.lab.training import corpus, regions, schedules
from superopt.lab.training.tasks import read_lines
from superopt.machine.facts import taken
from tests.support.machines import AVX512, FOUR_CORES, WIDE

RECORD = Path(__file__).with_name("golden_features.npz")
_REGIONS_APART, _POINTS_APART = 40, 7  # of the labels of schedules: 60 regions with three or four schedules each
_WEIGHTS_BYTES = (0.0, 0.0, float(1 << 30))  # read between two calls; the last do not fit into any cache


@functools.cache
def labelled() -> list[Graph]:
    """Each sixteenth kernel of the corpus."""
    texts: dict[str, str] = {}
    for record in read_lines(corpus.SHIPPED)[1:]:
        texts.setdefault(record["key"], record["text"])
    return [parse_graph(text) for text in list(texts.values())[::16]]


def of_steps() -> np.ndarray:
    """Per kernel, sums over its steps, each times its place: of features, spread, repetitions and one.

    Kernels of the corpus alone: those of the microsuite follow the rules of the library.
    """
    with taken(FOUR_CORES):
        table = tabulate(labelled())
    steps = np.column_stack([_sums(table.counts), table.spread, table.repeat, np.ones(len(table.owner))])
    first = np.searchsorted(table.owner, table.owner)
    found = np.zeros((table.kernels, steps.shape[1]))
    np.add.at(found, table.owner, steps * (1 + np.arange(len(first)) - first)[:, None])
    return found


def of_kernels() -> np.ndarray:
    """Per kernel, sums over the inputs of the network: features of the whole, and of its nodes together."""
    encoder = KernelEncoder()
    with taken(FOUR_CORES):
        table, structures = encoder.encode(labelled())
        whole = kernel_features(table, weights_file.uncalibrated(), structures)
    pooled = pooled_features(join(structures, encoder.rows), encoder.rows)
    return _sums(np.hstack([whole, pooled]).astype(np.float64))


def of_stages() -> np.ndarray:
    """Per schedule of a sample of its labels, sums over its stages, each times its place, on one thread and on two."""
    texts = {row["key"]: row["text"] for row in read_lines(regions.SHIPPED)[1:]}
    found: list[np.ndarray] = []
    with taken(AVX512):
        for record in read_lines(schedules.SHIPPED)[1::_REGIONS_APART]:
            program = from_graph(parse_graph(texts[record["key"]]).outputs, name="kernel")
            for trace, *_ in record["points"][::_POINTS_APART]:
                weights = _WEIGHTS_BYTES[len(found) % len(_WEIGHTS_BYTES)]
                rows = stage_rows(apply(program, trace), 1 + len(found) % 2, WIDE, weights)
                found.append(np.arange(1.0, len(rows) + 1) @ _sums(rows.astype(np.float64)))
    return np.array(found)


def _sums(rows: np.ndarray) -> np.ndarray:
    """Two sums of each row, in which no two numbers have the same weight."""
    number = np.arange(1, rows.shape[1] + 1)
    return np.column_stack([rows @ number, rows @ (1.0 / number)])


MAKERS: dict[str, Callable[[], np.ndarray]] = {"steps": of_steps, "kernels": of_kernels, "stages": of_stages}


if __name__ == "__main__":
    np.savez_compressed(RECORD, **{name: make() for name, make in MAKERS.items()})  # pyright: ignore[reportArgumentType]
