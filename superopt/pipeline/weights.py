"""Weights of one call, once: in a file that this process and its measuring processes map.

Everything that builds a program (the original, each candidate, here or in a measuring process) reads them where they
lie, instead of holding copies of its own.  The file is removed when the call ends; what still reads it keeps its
memory until it is done.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from superopt.arrays import bundles as arrays
from superopt.arrays import placing
from superopt.ir.graph import Graph
from superopt.ir.types import ITEMSIZE_BYTES

if TYPE_CHECKING:
    from superopt.frontends.jax.jaxpr import Imported
    from superopt.frontends.onnx.frontend import OnnxModel

LEAST_BYTES = 8 << 20  # of all weights: fewer are copied sooner than a file is mapped
_SMALL_BYTES = 4096  # of one: the copy is a page


class Shelf:
    """Where the weights of one call lie; use it as a context manager, whose end removes the file."""

    def __init__(self) -> None:
        self._files = ExitStack()

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a file that cannot be removed is no reason to lose the result
            self._files.close()

    def model(self, model: OnnxModel) -> OnnxModel:
        """The model with its weights from the file, or in memory: no longer from the model's own files."""
        found = {name: x for name, x in model.params.items() if _is_large(x, str(x.dtype))}
        placed: dict[str, np.ndarray] = {}
        if sum(x.nbytes for x in found.values()) >= LEAST_BYTES:
            with suppress(OSError):  # no room for a file
                placed = self._placed(found)
        rest = {name: placing.owned(x) for name, x in model.params.items() if name not in placed}
        return model.with_params({**rest, **placed})

    def imported(self, imported: Imported) -> Imported:
        """The program with the frozen arguments and constants that are not in the file yet read from there."""
        graph, examples = imported.graph, imported.examples
        rest = [i for i in imported.frozen if i not in imported.placed]
        found = {i: examples[i] for i in rest if _is_large(examples[i], graph.inputs[i].dtype)}
        constants = {name: x for name, x in graph.constants.items() if _is_large(x, str(x.dtype))}
        if sum(x.nbytes for x in (*found.values(), *constants.values())) < LEAST_BYTES:
            return imported
        placed = self._placed({**{f"argument {i}": x for i, x in found.items()}, **constants})
        kept = {name: placed[name] if name in constants else x for name, x in graph.constants.items()}
        return replace(
            imported,
            graph=Graph(graph.inputs, graph.outputs, kept),
            placed={**imported.placed, **{i: placed[f"argument {i}"] for i in found}},
        )

    def _placed(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        folder = self._files.enter_context(arrays.weights_folder(sum(x.nbytes for x in values.values())))
        return placing.place(folder, values)


def _is_large(x: object, kind: str) -> bool:
    """Whether an array is worth a place: it has none, has this dtype, and can be read."""
    if not isinstance(x, np.ndarray | jax.Array) or str(x.dtype) != kind or kind not in ITEMSIZE_BYTES:
        return False
    if isinstance(x, jax.Array) and (x.is_deleted() or not x.is_fully_addressable):
        return False
    return x.nbytes >= _SMALL_BYTES and placing.place_of(x) is None
