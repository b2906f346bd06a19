"""Validation of machine code in worker processes, beside this one.

Workers take the kernels that last longest, this process those that are shortest, until they meet.  A worker leaves its
verdict beside the kernel's object, under the seal of this machine, where this process reads it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from superopt.arrays.bundles import scratch_folder
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.machine.facts import usable_cores
from superopt.workshop.job import Job, WorkerDiedError
from superopt.workshop.process import MOST_PROCESSES, ONE_KERNEL, Worker

_VALIDATE = "superopt.make.making:validate"

CodeCase = tuple[Graph, tuple[Any, ...] | None, str]
"""A region, its schedule, the name of its backend: equal cases have equal code."""


@contextmanager
def validated_beside(cases: Sequence[CodeCase]) -> Iterator[Callable[[CodeCase], bool]]:
    """Workers validate kernels inside the block; its value is the test of whether one of them has done a kernel.

    The test waits for a kernel that a worker has begun.  One that none has begun is left to the caller from then
    on, as are those whose worker fails.

    Args:
        cases: the kernels, those first that the workers take first.
    """
    count = min(MOST_PROCESSES, usable_cores()) - 1
    if not count or not cases:
        yield lambda case: False
        return
    with ExitStack() as stack:
        folder, mine = Path(stack.enter_context(scratch_folder(0))), threading.local()
        workers = [Worker(ONE_KERNEL, inline=True) for _ in range(count)]
        free = list(workers)

        def start() -> None:
            mine.worker = free.pop()
            with suppress(WorkerDiedError, OSError):  # each of its kernels says so again
                mine.worker.ready()

        def validate(number: int, case: CodeCase) -> None:
            graph, trace, backend = case
            path = folder / f"{number}.json"
            path.write_text(json.dumps([print_graph(graph), trace]), encoding="utf-8")
            list(mine.worker.request(Job("validate", _VALIDATE, {"backend": backend}, {"path": str(path)})))

        pool = stack.enter_context(ThreadPoolExecutor(count, initializer=start))
        for worker in workers:
            stack.callback(worker.end)  # ends the threads that wait for it
        futures = {case: pool.submit(validate, number, case) for number, case in enumerate(cases)}
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)

        def done(case: CodeCase) -> bool:
            future = futures.get(case)
            return future is not None and not future.cancel() and future.exception() is None

        yield done
