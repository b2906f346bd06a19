"""Without any entry of any table, for any op with attributes, a named facet fails.

Tables are all dicts of the product whose keys are mostly ops, and the fields of the entries themselves.  Each entry is
deleted in turn and the facets of its op are run (`test_ir_facets`).  The suite takes a sample, `make slow` all.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from superopt.ir.ops.table import TABLE
from tests.ir.test_ir_facets import FACETS

ROOMS = ("superopt", "rewrites", "verifier", "costmodel")
WITH_ATTRIBUTES = [op for op, entry in TABLE.items() if entry.attrs or entry.family == "indexing"]
FIELDS = ("at", "axes", "complete")
"""Fields of an entry that may be None: the denotation, the flow of axes, the defaults that depend on others."""
READ_AT_IMPORT = {"superopt.ir.ops.reduction": ("REDUCE", "ARG", "WINDOW", "CUMULATIVE")}
"""Tables from which entries of the op table are made."""


def tables() -> dict[str, dict[str, Any]]:
    """The tables over ops, each by its first name."""
    for room in ROOMS:
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            if ".lab" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: dict[int, tuple[str, dict[str, Any]]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ROOMS and ".lab" not in name:  # other tests of this process may have loaded it
            for key, value in _dicts(name, module):
                found.setdefault(id(value), (key, value))
    return dict(found.values())


def _dicts(name: str, module: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in vars(module).items():
        if not isinstance(value, dict) or key.startswith("__"):
            continue
        ops = [op for op in value if op in TABLE]
        part = value is not TABLE and all(value[op] is TABLE[op] for op in ops)  # of which the op table is made
        if len(ops) >= 2 and 2 * len(ops) >= len(value) and not part:
            yield f"{name}.{key}", value


def deletions() -> list[tuple[str, str, Callable[[pytest.MonkeyPatch], None]]]:
    """Table, op, and what deletes its entry, for all of them."""
    out: list[tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = []
    made = {id(getattr(sys.modules[m], name)) for m, given in READ_AT_IMPORT.items() for name in given}
    for name, table in tables().items():
        if id(table) not in made:
            out += [
                (name, op, lambda patch, table=table, op=op: patch.delitem(table, op))
                for op in table
                if op in WITH_ATTRIBUTES
            ]
    for field in FIELDS:
        out += [
            (f"field {field}", op, lambda patch, op=op, field=field: patch.setitem(TABLE, op, _without(op, field)))
            for op in WITH_ATTRIBUTES
            if getattr(TABLE[op], field) is not None
        ]
    return out


def _without(op: str, field: str) -> Any:
    return replace(TABLE[op], **{field: None})


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_without_any_entry_a_facet_fails(step: int) -> None:
    green: list[str] = []
    last = FACETS[0]
    for name, op, delete in deletions()[::step]:
        with pytest.MonkeyPatch.context() as patch:
            delete(patch)
            for facet in (last, *FACETS):  # the one that noticed the entry before, first
                try:
                    facet(op)
                except (Exception, pytest.fail.Exception):
                    last = facet
                    break
            else:
                green.append(f"{name}: {op}")
    assert not green, f"{len(green)} entries are missed by no facet: {green}"


def test_every_table_is_found() -> None:
    found = tables()
    assert {"superopt.backends.lower.LOWER", "superopt.frontends.jax.ops.IMPORT"} <= found.keys()
    assert len(deletions()) > 250
