"""What a prover must survive: functions that a worker process is asked to run."""

from __future__ import annotations

import time

from verifier.equal.solver import z3


def stubborn() -> str:
    """A question that runs for minutes and is given no limit of its own."""
    solver = z3.Solver(ctx=z3.Context())
    x, y, w, v = (z3.Int(name, solver.ctx) for name in "xywv")
    solver.add(x > 1, y > 1, w > 1, v > 1)
    solver.add(x * x * x + y * y * y == w * w * w + 7 * v * v * v + 1000003, x * y * w * v == 10**23 + 117)
    while True:
        solver.check()


def deaf(seconds: float) -> None:
    """Neither answers nor listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def hungry(megabytes: int) -> int:
    """Takes memory."""
    return len(bytearray(megabytes << 20))
