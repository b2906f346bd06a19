"""One shared copy of a call's weights: in a file that this process and its measuring processes map.

The original and each candidate, in this process and in measuring processes, read the weights from that mapping
instead of holding copies of their own.  The file is removed when the call ends; existing mappings keep their memory
until they are released.
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

LEAST_BYTES = 8 << 20  # of all weights: copying fewer is faster than mapping a file
_SMALL_BYTES = 4096  # of one array, which is copied: it fits in a page


class Shelf:
    """The file of one call's weights; use it as a context manager, whose end removes the file."""

    def __init__(self) -> None:
        self._files = ExitStack()

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a file that cannot be removed is no reason to lose the result
            self._files.close()

    def model(self, model: OnnxModel) -> OnnxModel:
        """The model with its weights read from the shared file, or in memory; its own files are no longer read."""
        found = {name: x for name, x in model.params.items() if _is_large(x, str(x.dtype))}
        placed: dict[str, np.ndarray] = {}
        if sum(x.nbytes for x in found.values()) >= LEAST_BYTES:
            with suppress(OSError):  # no room for a file
                placed = self._placed(found)
        rest = {name: placing.owned(x) for name, x in model.params.items() if name not in placed}
        return model.with_params({**rest, **placed})

    def imported(self, imported: Imported) -> Imported:
        """The program with frozen arguments and constants that are not in the shared file yet read from there."""
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
    """Whether an array of this dtype kind is large enough to share, is not in the file yet, and can be read."""
    if not isinstance(x, np.ndarray | jax.Array) or str(x.dtype) != kind or kind not in ITEMSIZE_BYTES:
        return False
    if isinstance(x, jax.Array) and (x.is_deleted() or not x.is_fully_addressable):
        return False
    return x.nbytes >= _SMALL_BYTES and placing.place_of(x) is None
