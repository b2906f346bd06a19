"""Disk cache of the kernels of regions, keyed by region and schedule, so that their code is not generated again.

Generating the code of a region takes ten times as long as reading its object.  Several processes of one call need every
region: the one that tries it, the one that times whole programs, the user's.  The rest of a kernel is therefore stored
beside its object (`kernels/jit`): its phases, its buffers and the name of its object.  The key covers everything that
the code depends on: region, schedule, processor, versions, and the sources of the generator.  Verdicts on a kernel are
stored there, too, and hold only for the exact bytes of its objects.  All files are sealed (`files.seals`): a damaged or
foreign file is a miss.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from superopt.files.seals import sealed, unsealed
from superopt.ir import as_loaded
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import host
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Kernel, Phase
from superopt.machine.facts import usable_cores

_SEALED = (".kernel", ".verdict")  # endings of the sealed files that `take_over` stores
_SOURCES = ("kernels", "ir", "backends")  # folders of the package that generate code and hand it over for validation
KernelParts = tuple[Kernel, Kernel | None]  # the kernel, and the one that packs its frozen operands


def key_of(graph: Graph, trace: tuple[Any, ...] | None) -> str:
    """Return the cache key of a region's code with a schedule on this machine, as this package generates it.

    Empty where the sources have changed since the process began: it may generate the old code.
    """
    around = surroundings()
    return _digest(graph, trace, json.dumps(around)) if around else ""


@functools.lru_cache(maxsize=1024)
def _digest(graph: Graph, trace: tuple[Any, ...] | None, around: str) -> str:
    return hashlib.blake2b(f"{json.dumps([print_graph(graph), trace])}{around}".encode(), digest_size=16).hexdigest()


def find(key: str, cache: Path | None = None) -> KernelParts | None:
    """Return the kernels under a key; None where there are none, or an object of theirs is gone."""
    try:
        rows = _rows(_path(key, cache))
        codes = [None if row is None else (code_of(row), str(row["object"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):  # no file, or one that `keep` did not write
        return None
    objects = [None if code is None else jit.find(code[1], cache) for code in codes]
    if (
        len(codes) != 2
        or codes[0] is None
        or any((c is None) != (o is None) for c, o in zip(codes, objects, strict=True))
    ):
        return None
    made = [Kernel(c[0], o) if c is not None and o is not None else None for c, o in zip(codes, objects, strict=True)]
    assert made[0] is not None
    jit.used(_path(key, cache))
    return made[0], made[1]


def keep(key: str, parts: KernelParts, cache: Path | None = None) -> None:
    """Store kernels under a key."""
    rows = [None if kernel is None else row_of(kernel) for kernel in parts]
    _write(_path(key, cache), rows)


def hand_over(key: str, folder: Path, cache: Path | None = None) -> list[str]:
    """Write all that is stored under a key into a folder, for `take_over` elsewhere; return the names of the files.

    Seals are left out: their key does not leave this machine.
    """
    path = _path(key, cache)
    stored = {file.name: unsealed(file) for file in (path, _verdict(key, cache))}
    for row in _rows(path) or ():
        if row is not None:
            name = jit.object_name(str(row["object"]))
            with suppress(OSError):  # it was deleted since: whoever needs the kernel makes it again
                stored[name] = (path.parent / name).read_bytes()
    written = {name: content for name, content in stored.items() if content is not None}
    for name, content in written.items():
        (folder / name).write_bytes(content)
    return list(written)


def take_over(files: Mapping[str, bytes], cache: Path | None = None) -> None:
    """Store files that `hand_over` wrote on another machine, by name, under the seals of this one."""
    for name, content in files.items():
        path = (cache or jit.cache_folder()) / Path(name).name
        if path.name == jit.object_name(path.stem):
            if jit.find(path.stem, cache) is None:
                jit.write_beside(path, content)
        elif path.suffix in _SEALED and unsealed(path) != content:
            jit.write_beside(path, sealed(path, content))


def objects(*kernels: object) -> list[str]:
    """Return digests that identify the object bytes of kernels; calls that are no native kernel are skipped."""
    own = [k for k in kernels if isinstance(k, Kernel)]
    return [f"{k.digest} {hashlib.sha256(k.compiled.object).hexdigest()}" for k in own]


def agrees(key: str, of: Sequence[str] | None = None, cache: Path | None = None) -> bool:
    """Whether these objects of the kernel under a key are on record as giving XLA's values; any objects, where None."""
    try:
        row = _rows(_path(key, cache).with_suffix(".agrees"))
        return row["objects"] == list(of) if of is not None else "objects" in row
    except (ValueError, KeyError, TypeError):  # as in `find`
        return False


def agree(key: str, of: Sequence[str], cache: Path | None = None) -> None:
    """Record that these objects of the kernel under a key give XLA's values."""
    _write(_path(key, cache).with_suffix(".agrees"), {"objects": list(of)})


def verdict(key: str, by: str, of: Sequence[str], cache: Path | None = None) -> tuple[str, str] | None:
    """Return the recorded verdict on the code of a kernel, and its cause; None where there is none for these objects.

    Args:
        by: the validator that gave it, with its version.
        of: the objects that run (`objects`).
    """
    row = _said(key, by, cache)
    return (str(row["status"]), str(row["cause"])) if row and row["objects"] == list(of) else None


def keep_verdict(key: str, by: str, of: Sequence[str], status: str, cause: str, cache: Path | None = None) -> None:
    """Record a verdict on the code of the kernel under a key, replacing that of another validator version."""
    _write(_verdict(key, cache), {"by": by, "objects": list(of), "status": status, "cause": cause})


def has_verdict(key: str, by: str, status: str = "", cache: Path | None = None) -> bool:
    """Whether a verdict on the code of the kernel under a key is recorded, with this status if one is given."""
    said = _said(key, by, cache)
    return said is not None and status in ("", said["status"])


def _said(key: str, by: str, cache: Path | None) -> dict[str, Any] | None:
    try:
        row = _rows(_verdict(key, cache))
        return row if row["by"] == by and {"objects", "status", "cause"} <= row.keys() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # as in `find`
        return None


def _verdict(key: str, cache: Path | None) -> Path:
    return _path(key, cache).with_suffix(".verdict")


def _path(key: str, cache: Path | None) -> Path:
    return (cache or jit.cache_folder()) / f"{key}.kernel"


def _rows(path: Path) -> Any:
    """Return the content of a sealed file; None where there is none, or the seal does not fit."""
    content = unsealed(path)
    return None if content is None else json.loads(content)


def _write(path: Path, rows: Any) -> None:
    jit.write_beside(path, sealed(path, json.dumps(rows).encode()))


def row_of(kernel: Kernel) -> dict[str, Any]:
    """Return all of a kernel but its object, as plain data."""
    return {
        "name": kernel.name,
        "object": kernel.digest,
        "phases": [[p.symbol, p.tasks, p.microseconds] for p in kernel.phases],
        "pointers": [[b.name, list(b.shape), b.dtype, b.scope] for b in kernel.pointers],
    }


def code_of(row: Mapping[str, Any]) -> Code:
    """Return the code of a kernel, without its module, from plain data."""
    phases = tuple(Phase(*x) for x in row["phases"])
    pointers = tuple(Buffer(name, tuple(shape), dtype, scope) for name, shape, dtype, scope in row["pointers"])
    return Code(Module(), phases, pointers, row["name"])


@functools.cache
def surroundings() -> list[Any]:
    """Return the dependencies of code besides region and schedule; empty where the sources changed after loading."""
    from importlib.metadata import version  # late: reads files

    import llvmlite.binding as llvm  # late: loads LLVM

    root = Path(__file__).resolve().parents[1]
    paths = sorted(p for part in _SOURCES for p in (root / part).rglob("*.py"))
    if not as_loaded(paths):
        return []
    sources = hashlib.blake2b(digest_size=16)
    for path in paths:
        sources.update(path.read_bytes())
    return [sources.hexdigest(), repr(host()), list(llvm.llvm_version_info), version("jaxlib"), usable_cores()]
