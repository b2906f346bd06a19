"""Tasks and forms: the units that are timed, identified by a canonical text.

A *task* is one function of its operands; its *forms* are kernels that compute it: other ops, other layouts of operands
and result, other stored weights.  The text of a form is the kernel as it runs (macros expanded), with inputs numbered
in the order of first use, so equal kernels of different programs have one key.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt.ir.graph import Graph, Node, make_input, topological
from superopt.ir.program import replace
from superopt.ir.text import print_graph
from superopt.machine.shared import paused_collector

MOST_FORMS = 6


@dataclass(frozen=True, slots=True)
class KernelForm:
    """One kernel: a short kind, key, text, and the seconds that the roofline predicts."""

    kind: str
    key: str
    text: str
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """Kernels of one program that compute the same function."""

    family: str
    program: str
    name: str
    forms: tuple[KernelForm, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def task_of(data: dict[str, Any]) -> Task:
    """The reverse of `Task.as_dict`."""
    return Task(data["family"], data["program"], data["name"], tuple(KernelForm(**form) for form in data["forms"]))


def canonical(kernel: Graph) -> Graph:
    """The kernel with its inputs named x0, x1, ... (frozen ones w0, w1, ...) in the order of first use."""
    names: dict[Node, Node] = {}
    counts = {False: 0, True: 0}
    for node in topological(kernel.outputs):
        if node.op == "input":
            frozen = bool(node["frozen"])
            name = f"{'w' if frozen else 'x'}{counts[frozen]}"
            names[node] = make_input(name, node.shape, node.dtype, frozen=frozen)
            counts[frozen] += 1
    return Graph(tuple(names.values()), replace(kernel.outputs, names))


def make_form(kind: str, kernel: Graph, predicted_s: float = 0.0) -> KernelForm:
    """A form of a canonical kernel."""
    text = print_graph(kernel)
    return KernelForm(kind, key_of(text), text, predicted_s)


def key_of(text: str) -> str:
    """Identity of a kernel's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace a file of compressed JSON lines in one step."""
    data = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(gzip.compress(data, mtime=0))
    os.replace(fresh, path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of compressed JSON lines; none if there is no file."""
    if not path.exists():
        return []
    with paused_collector():  # it would look at the growing list again and again
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
