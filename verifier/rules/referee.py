"""The referee: XLA in a separate process, so that a crash of XLA does not end the verification.

The referee evaluates programs by XLA, which crashes its process on some of them (empty arrays), refuses others and may
never return.  A program is sent as the module that `jax.export` makes of it, arrays as files.  A request without an
answer is a typed error, and the next one gets a new process.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.arrays import bundles
from superopt.machine.jitting import jax_jit  # pyright: ignore[reportUnknownVariableType]
from superopt.workshop.job import Job, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

SECONDS = 30.0
"""Processor time of one evaluation, compilation included."""
_MEMORY_BYTES = 8 << 30
_START_S = 60.0
_SCRATCH_BYTES = 1 << 20


class UnansweredError(Exception):
    """Raised when the referee has no result: XLA refused the program, took too long or crashed."""


@dataclass(frozen=True, slots=True)
class RefereeProgram:
    """A program for the referee.

    Attributes:
        module: StableHLO, as `jax.export` writes it.
        types: shapes and dtypes of arguments and results.
        key: digest of the other fields.
    """

    module: bytes
    types: tuple[tuple[tuple[tuple[int, ...], str], ...], ...]
    key: str


def exported(fn: Callable[..., Sequence[Any]], arguments: Sequence[Any], *, x64: bool) -> RefereeProgram:
    """Export a function of flat arrays as a program for the referee.

    Args:
        fn: function that returns a sequence of arrays.
        arguments: arrays, or objects with their shape and dtype.
        x64: whether JAX has 64-bit types during the export.

    Raises:
        UnansweredError: JAX refuses to export it, or it calls back into this process.
    """
    types = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arguments]
    try:
        with wide_types(x64):
            jitted: Any = jax_jit(lambda *xs: tuple(fn(*xs)), keep_unused=True)  # pyright: ignore
            found = jax.export.export(jitted, platforms=("cpu",))(*types)
    except Exception as error:  # any exception of JAX means that there is no program
        raise UnansweredError(_first(error)) from error
    if found.ordered_effects or found.unordered_effects:
        raise UnansweredError("it has effects: a callback")
    module = bytes(found.mlir_module_serialized)
    shapes = tuple(tuple((x.shape, str(x.dtype)) for x in avals) for avals in (found.in_avals, found.out_avals))
    return RefereeProgram(module, shapes, hashlib.blake2b(module + repr(shapes).encode()).hexdigest())


def wide_types(wanted: bool) -> Any:
    """A context manager in which JAX has 64-bit types if they are wanted or already enabled."""
    read: Callable[[str], bool] = jax.config.read  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return jax.enable_x64(wanted or read("jax_enable_x64"))


class Referee:
    """XLA in a separate process, started at the first request, and again after it ended."""

    def __init__(self) -> None:
        self._worker = Worker(ProcessLimits(_START_S, _MEMORY_BYTES), loads="verifier.rules.referee_jobs:load")
        self._held = ExitStack()
        self._folder = Path(self._held.enter_context(bundles.scratch_folder(_SCRATCH_BYTES)))
        self._turn = threading.RLock()
        self._sent: set[str] = set()

    def run(self, program: RefereeProgram, arrays: Sequence[Any], seconds: float = SECONDS) -> list[np.ndarray]:
        """Run a program on arrays and return its results; see `run_all`."""
        return self.run_all(program, [arrays], seconds)[0]

    def run_all(
        self, program: RefereeProgram, draws: Sequence[Sequence[Any]], seconds: float = SECONDS
    ) -> list[list[np.ndarray]]:
        """Run a program on several draws of its arguments, in one request, and return the results of each.

        Raises:
            UnansweredError: there is no result of one of them, or it takes longer than `seconds`.
        """
        with self._turn:
            try:
                return self._asked(program, draws, seconds)
            except WorkerDiedError as died:
                failure = died.failure
                raise UnansweredError(f"XLA ended its process: {failure.cause}: {failure.detail}") from died

    def _asked(self, program: RefereeProgram, draws: Sequence[Sequence[Any]], seconds: float) -> list[list[np.ndarray]]:
        if not self._worker.alive:
            self._sent.clear()
            self._worker.limits = ProcessLimits(_START_S, _MEMORY_BYTES, processor=True)
            self._worker.ready()
        self._worker.limits = ProcessLimits(seconds, _MEMORY_BYTES, processor=True)
        path = self._folder / "given"
        given = {f"{n} {i}": np.asarray(x) for n, arrays in enumerate(draws) for i, x in enumerate(arrays)}
        if program.key not in self._sent:
            given["module"] = np.frombuffer(program.module, np.uint8)
        bundles.save(path, given)
        data = {"key": program.key, "draws": len(draws), "types": program.types}
        job = Job("validate", "verifier.rules.referee_jobs:run", data, {"given": str(path)})
        *_, event = self._worker.request(job)  # one for each draw, which begins the time of the next
        if event["event"] == "refused":
            raise UnansweredError(event["message"])
        self._sent = set(event["known"])
        answer = bundles.load(Path(event["found"]))
        return [[np.array(answer[f"{n} {i}"]) for i in range(len(program.types[1]))] for n in range(len(draws))]

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        self._held.close()


_SHARED: list[Referee] = []
_STARTING = threading.Lock()


def referee() -> Referee:
    """The referee shared by this process; it ends with the process."""
    with _STARTING:
        if not _SHARED:
            _SHARED.append(Referee())
            atexit.register(_SHARED[0].close)
    return _SHARED[0]


def _first(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


__all__ = ["Referee", "RefereeProgram", "UnansweredError", "exported", "referee", "wide_types"]
