"""Facts about the machine and the software, as keys for everything that was measured.

A measurement holds for one processor, one number of usable cores and one set of library versions.  `describe` collects
them from `/proc` and `importlib.metadata` without importing any of the libraries; `fingerprint` is a short digest of
the hardware side, `environment_key` of both sides.  Usable cores come from the scheduler affinity, which containers
restrict, not from the number of processors in the machine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

LIBRARIES = ("jax", "jaxlib", "numpy", "z3-solver", "superopt")
# vector extensions that change generated code; the rest of the flags says nothing about speed
_FEATURES = frozenset({
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "sve", "sve2",
    "bf16", "i8mm",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware as this process may use it.

    Attributes:
        cpu: model name.
        features: vector extensions, sorted.
        cores: processors in the affinity mask of this process.
        memory_bytes: physical memory, or the container's limit when lower.
        caches_bytes: size per level of the data or unified caches seen by the first core, `(("L1", n), ...)`.
        system: operating system and architecture.
    """

    cpu: str
    features: tuple[str, ...]
    cores: int
    memory_bytes: int
    caches_bytes: tuple[tuple[str, int], ...]
    system: str


_TAKEN: list[Machine] = []


def describe() -> Machine:
    """Return the machine this process runs on, or the one that `taken` substitutes for it."""
    return _TAKEN[-1] if _TAKEN else own()


@contextmanager
def taken(machine: Machine | None) -> Generator[None]:
    """Target another machine inside the context (the one of labels): its features, default schedules and tiles.

    None changes nothing.
    """
    if machine is None:
        yield
        return
    _TAKEN.append(machine)
    try:
        yield
    finally:
        _TAKEN.remove(machine)


def from_dict(facts: Mapping[str, Any] | None) -> Machine | None:
    """Return the machine that `as_dict` wrote; None where facts are missing."""
    if facts is None or any(f.name not in facts for f in fields(Machine)):
        return None
    values = {f.name: facts[f.name] for f in fields(Machine)}
    values |= {"features": tuple(facts["features"]), "caches_bytes": tuple(dict(facts["caches_bytes"]).items())}
    return Machine(**values)


@functools.cache
def own() -> Machine:
    """Return the machine this process runs on."""
    cpu, flags = _cpuinfo()
    return Machine(
        cpu=cpu,
        features=tuple(sorted(_FEATURES & flags)),
        cores=usable_cores(),
        memory_bytes=_memory_bytes(),
        caches_bytes=_caches_bytes(),
        system=f"{platform.system()}-{platform.machine()}",
    )


def beyond_caches(size_bytes: int) -> bool:
    """Whether this size exceeds the last cache."""
    return size_bytes > last_cache_bytes()


def last_cache_bytes() -> int:
    """Return the size of the last cache; 0 where none is known."""
    return max(dict(describe().caches_bytes).values(), default=0)


def usable_cores() -> int:
    """Return the number of processors that the scheduler may give to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of libraries that affect a measurement; a missing one reads "absent"."""
    from importlib import metadata  # late: 10 ms that `import superopt` does not have

    known = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            known[name] = "absent"
    return known


def fingerprint(machine: Machine | None = None) -> str:
    """Return a digest of the hardware facts that decide how fast code runs (16 hex digits)."""
    m = machine or describe()
    return _digest([m.cpu, m.features, m.cores, m.caches_bytes, m.system])


def environment_key(machine: Machine | None = None) -> str:
    """Return a digest of the hardware and of all library versions (16 hex digits)."""
    return _digest([fingerprint(machine), sorted(versions().items())])


def as_dict(machine: Machine | None = None) -> dict[str, object]:
    """Return the machine as plain data for reports and `--json`, with its fingerprint."""
    m = machine or describe()
    return {**asdict(m), "caches_bytes": dict(m.caches_bytes), "fingerprint": fingerprint(m)}


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo() -> tuple[str, frozenset[str]]:
    model, flags = "", frozenset[str]()
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        name = name.strip().lower()
        if name == "model name" and not model:
            model = value.strip()
        elif name in ("flags", "features") and not flags:
            flags = frozenset(value.split())
        if model and flags:
            break
    return model or platform.processor() or platform.machine(), flags


def _memory_bytes() -> int:
    total = 0
    if sys.platform != "win32":
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            total = 0
    limit = _read("/sys/fs/cgroup/memory.max") or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min(total, int(limit)) if limit.isdigit() and total else total


def _caches_bytes() -> tuple[tuple[str, int], ...]:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes: dict[str, int] = {}
    for index in range(8):
        base = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = _read(f"{base}/level"), _read(f"{base}/type"), _read(f"{base}/size")
        if level and size and kind in ("Data", "Unified"):
            scale = units.get(size[-1], 1)
            digits = size[:-1] if size[-1] in units else size
            sizes[f"L{level}"] = int(digits) * scale
    return tuple(sorted(sizes.items()))
