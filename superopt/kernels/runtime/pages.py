"""Large pages for tensors that every call reads, for fewer TLB misses.

A product with one row streams its weights once, 4 kB after 4 kB; on 2 MB pages the same stream is a quarter faster
where it comes from memory.  The pages of an array are exchanged in place (Linux 6.1 and later; elsewhere nothing
happens); contents and addresses stay.  Files in shared memory are mapped where their pages can be large.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

PAGE = 1 << 21  # bytes
LEAST = 2 * PAGE  # bytes from which an array holds whole pages
_COLLAPSE = 25  # MADV_COLLAPSE
_FIXED = 0x10  # MAP_FIXED


def enlarge(array: Any) -> bool:
    """Move the whole 2 MB pages inside a JAX array on the CPU into large pages; False where that is impossible."""
    advise = _advise()
    if advise is None or array.nbytes < LEAST or {d.platform for d in array.devices()} != {"cpu"}:
        return False
    parts = array.addressable_shards
    if len(parts) != 1:
        return False
    start = parts[0].data.unsafe_buffer_pointer()
    first, last = -(-start // PAGE) * PAGE, (start + array.nbytes) // PAGE * PAGE
    return last > first and advise(first, last - first, _COLLAPSE) == 0


@functools.cache
def _advise() -> Any:
    """Return the C library's `madvise`; None where it has none."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


def large_bytes(size: int) -> np.ndarray:
    """Allocate zeros at a multiple of 2 MB, in large pages if available: equal offsets share cache sets."""
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % PAGE
    return whole[start : start + size]


def map_file(path: Path) -> np.ndarray | None:
    """Map the bytes of a file, read-only, at a multiple of 2 MB; None where that is impossible.

    The file may be removed meanwhile; its memory is released with the array.
    """
    functions = _mapping()
    if functions is None:
        return None
    reserve, give_back = functions
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        size = os.fstat(handle).st_size
        if not size:
            return None
        whole = size + PAGE
        start = reserve(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if start in (None, _FAILED):
            return None
        at = -(-start // PAGE) * PAGE
        if reserve(at, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, handle, 0) != at:
            give_back(start, whole)
            return None
    finally:
        os.close(handle)
    memory: Any = (ctypes.c_ubyte * size).from_address(at)
    weakref.finalize(memory, give_back, start, whole).atexit = False
    array = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _mapping() -> Any:
    """Return the C library's `mmap` and `munmap`; None where pages are not those of Linux on 64 bits."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mmap") or not hasattr(mmap, "MAP_ANONYMOUS") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library.mmap, library.munmap
