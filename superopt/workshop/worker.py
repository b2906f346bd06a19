"""The one program of workers: reads jobs, writes events (see `superopt.workshop.process` for the parent).

Start it as `python -m superopt.workshop.worker EVENT_FD MEMORY_BYTES [MODULE:FUNCTION]`; the function is called before
the first job.  Each job names the function that does it, which is imported here, so this room depends on none of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from typing import Any

from superopt.machine.memory import keep_memory
from superopt.workshop.job import Event, resolve


def main(event_fd: str | int, memory_bytes: str, loads: str = "") -> None:
    """Do jobs until the input closes.

    The process keeps freed memory.  Whether a call waits for fresh pages would otherwise depend on what else the
    process has allocated, not on the program.  One program of 80 us took 200 in a process that had built others before.
    """
    events = int(event_fd)
    _limit_memory(int(memory_bytes))
    keep_memory()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    if loads:
        resolve(loads)()
    while True:
        job = jobs.get()
        for event in resolve(job["call"])(job["data"]):
            _send(events, event)
        _send(events, {"event": "done"})


def _send(event_fd: int, event: Event) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(event_fd, data) :]


def _read(jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    os._exit(0)  # the parent is gone: whatever runs here is for nobody


def _limit_memory(memory_bytes: int) -> None:
    try:
        import resource  # late: POSIX only
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


if __name__ == "__main__":
    main(*sys.argv[1:])
