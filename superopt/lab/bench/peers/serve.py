"""One program in a process, which is timed, or writes its results, on request by a line on the standard input.

    {"seconds": 0.3}        Time calls for so long, after untimed ones for half as long.
    {"outputs": "x.npz"}    Write the results to a file.

Each line is answered by one line of JSON.  An answer comes when the process is at rest: threads of libraries poll for
work for up to 45 ms after a call, and would take the processors from the program timed next.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_SLEEP_S, _IDLE, _REST_S = 0.012, 0.2, 10.0  # at rest: fewer threads ran meanwhile


def threads() -> int:
    """Processors that this process may use, each of which gets a thread."""
    return len(os.sched_getaffinity(0))


def inputs_of(path: str) -> dict[str, np.ndarray]:
    """The inputs in a file, by name in their order."""
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def serve(call: Callable[[], Any], results: Callable[[], Sequence[np.ndarray]], about: Mapping[str, Any]) -> None:
    """Answer requests until the standard input ends.

    Args:
        call: one run that waits for its results.
        results: returns the results of a run as arrays.
        about: the first answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    call()
    _rest()
    say({"ready": True, **about})
    for line in sys.stdin:
        asked = json.loads(line)
        if "outputs" in asked:
            np.savez(asked["outputs"], *results())
            say({})
        else:
            seconds = _timed(call, float(asked["seconds"]))
            _rest()
            say({"seconds": seconds})


def _timed(call: Callable[[], Any], seconds: float) -> float:
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds / 2:
        call()
    calls, begin = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        if (spent := time.perf_counter() - begin) >= seconds:
            return spent / calls


def _rest() -> None:
    end = time.perf_counter() + _REST_S
    while time.perf_counter() < end:
        begin, used = time.perf_counter(), time.process_time()
        time.sleep(_SLEEP_S)
        if time.process_time() - used < _IDLE * (time.perf_counter() - begin):
            return
