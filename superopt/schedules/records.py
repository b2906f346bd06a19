"""Records of every timing that a schedule search makes: features, trace and seconds, by operator and machine.

A record belongs to a processor, a number of threads and a version of the features; searches on the same processor with
as many threads learn from each other's records.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.llvm.cpu import host
from superopt.schedules.features import NAMES
from superopt.schedules.model import Rows
from superopt.schedules.space import Steps
from superopt.store import Store, content_key

if TYPE_CHECKING:
    from jaxtyping import Float

_MOST_SEARCHES, _MOST_OTHERS, _EACH = 64, 8, 40
"""Searches in the store that are looked at, those of them that are read, and records of each.

The model is conditioned on 320 of these beside at most 400 of the search itself, so those of its operator prevail.
"""
_MOST_ROWS = 1000  # records of an operator


@dataclass(frozen=True, slots=True)
class MeasuredSchedule:
    """A measured schedule.

    Attributes:
        point: its point in the space.
        x: its features.
        seconds: the median of its samples.
    """

    trace: Steps
    point: dict[str, Any]
    x: Float[np.ndarray, " features"]
    digest: str
    seconds: float
    spills: int = 0


class Records:
    """The records of one operator's search in a store; without a store nothing is kept."""

    def __init__(self, store: Store | None, graph: Graph, threads: int) -> None:
        self.store = store
        version = zlib.crc32(json.dumps(NAMES).encode())
        self.machine = content_key(host().name, threads, version)
        self.graph = print_graph(graph)
        self.key = content_key(self.machine, self.graph)

    def rows(self) -> Rows:
        """Return measurements of other searches on this machine: of the newest, the fastest and some others."""
        rows = Rows.empty()
        for _, value in reversed(self._others()[:_MOST_OTHERS]):
            ranked = sorted(value["rows"], key=lambda r: r["seconds"])
            rest = ranked[_EACH // 2 :]
            kept = ranked[: _EACH // 2] + rest[:: max(1, 2 * len(rest) // _EACH)]
            x = np.asarray([r["features"] for r in kept], np.float32).reshape(-1, len(NAMES))
            y = np.log2([r["seconds"] for r in kept]).astype(np.float32)
            rows = rows.join(Rows(x, y, np.zeros(len(y), np.int32)))
        return rows

    def _others(self) -> list[tuple[str, dict[str, Any]]]:
        if self.store is None:
            return []
        kept = self.store.items("schedules", limit=_MOST_SEARCHES)
        return [(k, v) for k, v in kept if v["machine"] == self.machine and k != self.key and v["rows"]]

    def add(self, measured: Sequence[MeasuredSchedule]) -> None:
        """Store new measurements together with earlier ones of this operator."""
        if self.store is None or not measured:
            return
        rows = [
            {"features": [round(float(v), 5) for v in c.x], "seconds": c.seconds, "trace": c.trace} for c in measured
        ]
        before = self.store.get("schedules", self.key)
        best = min(measured, key=lambda c: c.seconds)
        value = {
            "machine": self.machine,
            "graph": self.graph,
            "best": {"trace": best.trace, "seconds": best.seconds},
            "rows": [*(before["rows"] if before else []), *rows][-_MOST_ROWS:],
        }
        self.store.put("schedules", self.key, value)
