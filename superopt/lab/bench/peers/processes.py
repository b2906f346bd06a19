"""Programs in separate processes, timed in shuffled rounds while the load of other processes is watched.

A round in which others used more than a tenth of the processors is timed again.  After several attempts it counts all
the same, and the row states the load of others.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import ProgramError
from superopt.measure.stats import paired_ratio

FOREIGN = 0.1  # share of all processors used by others above which a round is timed again
_ATTEMPTS = 3  # factor over the wanted rounds at which timing again ends
SAMPLE_S = 0.3
_HERE = Path(__file__).parent


class Served:
    """A program in a process that answers requests (`superopt.lab.bench.peers.serve`).

    Args:
        name: name for messages.
        command: the command that starts it.
        timeout_s: limit for its first answer, and for every other.
    """

    def __init__(self, name: str, command: Sequence[str], timeout_s: float) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors)
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Served:
        try:
            self.about = self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def seconds(self) -> float:
        """Seconds of a call."""
        return float(self._ask({"seconds": SAMPLE_S})["seconds"])

    def outputs(self) -> list[np.ndarray]:
        """The results of a call."""
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
            path = os.path.join(folder, "outputs.npz")
            self._ask({"outputs": path})
            with np.load(path) as stored:
                return [stored[name] for name in stored.files]

    def used_s(self) -> float:
        """Processor time of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: its last words are in the answer
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout_s):
                raise ProgramError(f"{self.name}: no answer within {self._timeout_s:.0f} s")
        line = self._process.stdout.readline()
        while line and not line.startswith(b"{"):  # output of libraries when they are loaded
            line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise ProgramError(f"{self.name}: {said[-1][:300] if said else 'it ended without a word'}")
        return json.loads(line)


def framework(name: str, python: str, model: Path, inputs: Path, timeout_s: float) -> Served:
    """A model under another framework, in a process of the Python that has it."""
    return Served(name, [python, str(_HERE / f"run_{name}.py"), str(model), str(inputs)], timeout_s)


def busy_s() -> float:
    """Busy seconds of all processors together that this process may use, since the machine started."""
    mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
        name, *numbers = line.split()
        if name in mine:
            user, nice, system, _, _, irq, softirq, *_ = map(int, numbers)
            ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK")


def rounds(served: Sequence[Served], count: int, seed: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of a call of each program in every round, in random order; and the load of others in these rounds."""
    rng, cores = random.Random(seed), len(os.sched_getaffinity(0))
    found: dict[str, list[float]] = {one.name: [] for one in served}
    loads: list[float] = []
    left = _ATTEMPTS * count
    while len(loads) < count:
        times: dict[str, float] = {}
        begin, busy, used = time.perf_counter(), busy_s(), sum(one.used_s() for one in served)
        for one in rng.sample(list(served), len(served)):
            times[one.name] = one.seconds()
        spent = time.perf_counter() - begin
        others = busy_s() - busy - (sum(one.used_s() for one in served) - used)
        load, left = max(0.0, others / (spent * cores)), left - 1
        if load <= FOREIGN or left < count - len(loads):
            loads.append(load)
            for name, seconds in times.items():
                found[name].append(seconds)
    return found, float(np.median(loads))


def compared(
    served: Sequence[Served], ours: str, count: int, most: int, seed: int
) -> tuple[dict[str, list[float]], dict[str, Any], float]:
    """Time rounds until ours and the fastest of the others are distinguished, or there are `most` rounds.

    Returns:
        Seconds by name, the ratio of each other program's time to ours by name, and the load of others.
    """
    samples: dict[str, list[float]] = {one.name: [] for one in served}
    loads: list[float] = []
    while True:
        block, load = rounds(served, count, seed + len(samples[ours]))
        samples = {name: samples[name] + new for name, new in block.items()}
        loads.append(load)
        ratios = {name: paired_ratio(x, samples[ours], seed=seed) for name, x in samples.items() if name != ours}
        nearest = min(ratios.values(), key=lambda r: r.ratio, default=None)
        if nearest is None or not nearest.low < 1.0 <= nearest.high or len(samples[ours]) >= most:
            return samples, ratios, max(loads)
