"""Optimisations in threads of one process: `python -m superopt.lab.bench.threads [THREADS] [PROGRAMS] [BUDGET]`.

Each thread optimises its own programs, all at once, and calls the results.  One JSON object is printed with the number
of errors: exceptions, wrong results, and lost stages (`report.lost`).  A budget in steps measures nothing; one in
seconds measures and makes kernels.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import superopt
from superopt.machine.fallback import in_one_line


def run(threads: int = 16, programs: int = 10, budget: str = "30steps") -> dict[str, Any]:
    """Optimise `programs` programs in each of `threads` threads."""
    errors: list[str] = []
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait()
        for k in range(programs):
            try:
                errors.extend(_tried(number * programs + k, budget))
            except Exception as error:  # whatever it is, it is counted
                errors.append(in_one_line(error))

    begin = time.monotonic()
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    seconds = round(time.monotonic() - begin, 1)
    return {
        "threads": threads,
        "programs": threads * programs,
        "errors": len(errors),
        "told": errors,
        "seconds": seconds,
    }


def _tried(number: int, budget: str) -> list[str]:
    """Errors of one program."""
    fn, args = _program(number)
    fast = superopt.optimize(
        fn, *args, frozen=0, budget=budget, deterministic=budget.endswith("steps"), store=False, seed=number
    )
    lost = [f"program {number}: {stage} {cause}" for stage, cause in fast.report.lost.items()]
    same = np.allclose(fast(*args), fn(*args), rtol=1e-3, atol=1e-3)
    return lost if same else [*lost, f"program {number} computes something else"]


def _program(number: int) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    size = 8 + number % 7

    def fn(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ w) * (1.0 + number % 3)
        if number % 2:
            y = jax.nn.softmax(y @ w.T)
        if number % 3 == 0:
            y = jax.lax.scan(lambda c, _: (c * 0.5 + y, c.sum()), y, None, length=3)[0]
        return y + number

    rng = np.random.default_rng(number)
    shapes = ((size, size), (4, size))
    return fn, tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


if __name__ == "__main__":
    given = [*sys.argv[1:], *("16", "10", "30steps")[len(sys.argv) - 1 :]]
    print(json.dumps(run(int(given[0]), int(given[1]), given[2])))
