"""Keeps freed memory in the process from call to call, so that results need no fresh pages.

XLA takes the memory of results and intermediate values from the C library.  That gives large pieces back to the
operating system at once or after a few calls, depending on what else was freed.  Fresh memory is cleared page by page
at the first write, which takes longer than most kernels that write it (docs/kernels.md).
"""

from __future__ import annotations

import ctypes
import sys

from superopt.errors import UsageError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_INT_MAX = 2**31 - 1


def keep_memory(most_bytes: int = 256 << 20) -> bool:
    """Make the process keep memory that calls free, so that later calls do not wait for fresh pages.

    It holds for the whole process (XLA, NumPy, every user of the C library's allocator) and until it ends.  The memory
    that the process keeps may grow by `most_bytes` for every thread that allocates.  Results are the same.

    Args:
        most_bytes: pieces up to this size are kept, and so much free memory; below 2 GiB.

    Returns:
        Whether the C library supports that (glibc does).

    Raises:
        UsageError: `most_bytes` is not positive, or too large.
    """
    if not 0 < most_bytes <= _INT_MAX:
        raise UsageError(f"most_bytes is {most_bytes}, not between 1 and {_INT_MAX}")
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is None:
        return False
    settings = {_MMAP_THRESHOLD: most_bytes, _TRIM_THRESHOLD: most_bytes}
    taken = [change(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings.items()]
    return all(taken)
