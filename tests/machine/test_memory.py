"""Memory that the process keeps: fresh pages are counted in a process of its own, since the setting stays."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

import superopt
from superopt.errors import UsageError

COUNT = """
import ctypes, resource, sys
import superopt
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "kept":
    assert superopt.keep_memory()
def use():
    p = c.malloc(48 << 20)  # more than the C library ever keeps by itself
    ctypes.memset(p, 1, 48 << 20)
    c.free(p)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_memory_is_kept_between_calls() -> None:
    usual, kept = fresh_pages("usual"), fresh_pages("kept")
    assert kept < usual / 10


@pytest.mark.parametrize("most_bytes", [0, -1, 2**31])
def test_sizes_that_cannot_be_are_refused(most_bytes: int) -> None:
    with pytest.raises(UsageError, match=str(most_bytes)):
        superopt.keep_memory(most_bytes)
