"""Kernels that earlier calls timed on this machine, kept as labels: they correct the models of later calls.

A row of the store is one kernel as it ran: its text, the price that its base model had for it, and the seconds that it
took.  It holds for this processor, these versions and that model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from superopt.errors import InputError
from superopt.files.reading import field
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.machine import facts as machine
from superopt.store import Store, content_key

_TABLE = "measurements"
_MOST = 500  # newest kernels of all models: a call of a minute times 50 to 300, and 20 make most of the difference


class TimedKernel(NamedTuple):
    """A kernel that was timed.

    Attributes:
        kind: its kind (`costmodel.model.measured.kind`).
        predicted_s: price of the base model.
        seconds: what it took.
    """

    kind: str
    predicted_s: float
    seconds: float


EarlierKernels = Mapping[str, tuple[TimedKernel, ...]]  # by version of the model that predicted
NONE_EARLIER: EarlierKernels = {}


def recall(store: Store) -> EarlierKernels:
    """Return the kernels that were timed on this machine before, the newest ones."""
    here, by_model = machine.environment_key(), dict[str, tuple[TimedKernel, ...]]()
    for _, row in store.items(_TABLE, limit=_MOST):
        try:
            model = field(row, "model", str)
            label = TimedKernel(
                field(row, "kind", str),
                field(row, "predicted_s", float, 1e-8, 1e3),
                field(row, "seconds", float, 1e-8, 1e3),
            )
            if field(row, "machine", str) == here:
                by_model[model] = (*by_model.get(model, ()), label)
        except InputError:
            continue  # a miss
    return by_model


def keep(store: Store, timed: Mapping[str, Iterable[tuple[Graph, TimedKernel]]]) -> None:
    """Store kernels that were timed on this machine, by model; the last time of a kernel replaces an earlier one."""
    here, rows = machine.environment_key(), dict[str, dict[str, object]]()
    for model, labels in timed.items():
        for graph, label in labels:
            text = print_graph(graph)
            rows[content_key(here, model, text)] = {"machine": here, "model": model, "text": text, **label._asdict()}
    store.put_many(_TABLE, rows)
