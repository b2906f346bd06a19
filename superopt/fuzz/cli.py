"""`superopt fuzz`: programs and kernels, counted together."""

from __future__ import annotations

from collections.abc import Callable

from superopt.fuzz.drive import Found, fuzz

KERNELS_S = 0.25
"""Share of the time that random kernels get where their number is not given."""


def run(
    seconds: float, seed: int, programs: int | None, kernels: int | None, store: str | None, say: Callable[[str], None]
) -> Found:
    """Whole programs, then kernels.

    Args:
        seconds: time of both.
        seed: number of the first program and of the first kernel.
        programs: how many at most.
        kernels: how many at most; 0 for none.
        store: where proofs are kept between runs.
        say: called with a line per failure.
    """
    from superopt.fuzz.corpus import corpus

    given = seconds if kernels == 0 else seconds * (1 - KERNELS_S)
    found = fuzz(given, seed, programs, corpus=corpus(), store=store, say=say)
    if kernels != 0:
        _kernels(found, seconds - found.seconds, seed, kernels, say)
    return found


def _kernels(found: Found, seconds: float, seed: int, most: int | None, say: Callable[[str], None]) -> None:
    import time

    from superopt.kernels import cpu
    from superopt.kernels.fuzz import run as run_kernels

    if not cpu.supported():
        return
    begin = time.monotonic()
    statuses = {"wrong": "wrong", "error": "crash", "died": "crash", "slow": "hang"}
    for number, result in run_kernels(seed, most if most is not None else 1 << 30):
        kind = statuses.get(result.partition(":")[0], "ok")
        if result != "skipped":
            found.kernels[kind] = found.kernels.get(kind, 0) + 1
        if kind != "ok":
            say(f"kernel {number}: {result}")
        if time.monotonic() - begin > seconds:
            break
    found.seconds += time.monotonic() - begin
