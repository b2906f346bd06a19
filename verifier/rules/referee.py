"""The referee: XLA in a process of its own, which may end without taking the verdict with it.

What two programs give is asked of XLA, which ends its process on some of them (empty arrays), refuses others and may
never come back.  A program goes there as the module that `jax.export` makes of it, arrays as files; what the process
does not answer is a typed error, and the next question gets a new process.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.arrays import bundles
from superopt.machine.jitting import jax_jit  # pyright: ignore[reportUnknownVariableType]
from superopt.measure.process import ProcessLimits, Worker, WorkerDiedError

SECONDS = 30.0
"""Processor time of one evaluation, compilation included."""
_MEMORY_BYTES = 8 << 30
_START_S = 60.0
_SCRATCH_BYTES = 1 << 20


class UnansweredError(Exception):
    """The referee has no value: the program was refused, took too long, or ended the process; the message says how."""


@dataclass(frozen=True, slots=True)
class RefereeProgram:
    """A program for the referee.

    Attributes:
        module: StableHLO, as `jax.export` writes it.
        types: shapes and dtypes of arguments and results.
        key: digest of all.
        options: of XLA.
    """

    module: bytes
    types: tuple[tuple[tuple[tuple[int, ...], str], ...], ...]
    key: str
    options: tuple[tuple[str, int], ...] = ()


def exported(
    fn: Callable[..., Sequence[Any]], arguments: Sequence[Any], *, x64: bool, options: Mapping[str, int] | None = None
) -> RefereeProgram:
    """A function of flat arrays as a program for the referee.

    Args:
        fn: gives a sequence of arrays.
        arguments: arrays, or what has their shape and dtype.
        x64: JAX has types of 64 bits meanwhile.
        options: of XLA.

    Raises:
        UnansweredError: it has no module, since it is refused or calls into this process.
    """
    types = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arguments]
    try:
        with wide_types(x64):
            jitted: Any = jax_jit(lambda *xs: tuple(fn(*xs)), keep_unused=True)  # pyright: ignore
            found = jax.export.export(jitted, platforms=("cpu",))(*types)
    except Exception as error:  # whatever JAX raises is why there is no program
        raise UnansweredError(_first(error)) from error
    if found.ordered_effects or found.unordered_effects:
        raise UnansweredError("it has effects: a callback")
    module, chosen = bytes(found.mlir_module_serialized), tuple(sorted((options or {}).items()))
    shapes = tuple(tuple((x.shape, str(x.dtype)) for x in avals) for avals in (found.in_avals, found.out_avals))
    return RefereeProgram(module, shapes, hashlib.blake2b(module + repr((shapes, chosen)).encode()).hexdigest(), chosen)


def wide_types(wanted: bool) -> Any:
    """A context in which JAX has types of 64 bits where it has them anyway, or they are wanted."""
    read: Callable[[str], bool] = jax.config.read  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return jax.enable_x64(wanted or read("jax_enable_x64"))


class Referee:
    """XLA in a process of its own, started when it is first asked, and again after it ended."""

    def __init__(self) -> None:
        self._worker = Worker(ProcessLimits(_START_S, _MEMORY_BYTES), module="verifier.rules.referee_worker")
        self._held = ExitStack()
        self._folder = Path(self._held.enter_context(bundles.scratch_folder(_SCRATCH_BYTES)))
        self._turn = threading.RLock()
        self._sent: set[str] = set()

    def run(self, program: RefereeProgram, arrays: Sequence[Any], seconds: float = SECONDS) -> list[np.ndarray]:
        """What a program gives.

        Raises:
            UnansweredError: it gives nothing.
        """
        with self._turn:
            try:
                return self._asked(program, arrays, seconds)
            except WorkerDiedError as died:
                failure = died.failure
                raise UnansweredError(f"XLA ended its process: {failure.cause}: {failure.detail}") from died

    def _asked(self, program: RefereeProgram, arrays: Sequence[Any], seconds: float) -> list[np.ndarray]:
        if not self._worker.alive:
            self._sent.clear()
            self._worker.limits = ProcessLimits(_START_S, _MEMORY_BYTES, processor=True)
            self._worker.ready()
        self._worker.limits = ProcessLimits(seconds, _MEMORY_BYTES, processor=True)
        path, given = self._folder / "given", {str(i): np.asarray(x) for i, x in enumerate(arrays)}
        if program.key not in self._sent:
            given["module"] = np.frombuffer(program.module, np.uint8)
        bundles.save(path, given)
        request = {"request": "run", "key": program.key, "count": len(arrays), "given": str(path)}
        (event,) = self._worker.request({**request, "types": program.types, "options": dict(program.options)})
        if event["event"] == "refused":
            raise UnansweredError(event["message"])
        self._sent = set(event["known"])
        found = bundles.load(Path(event["found"]))
        return [np.array(found[str(i)]) for i in range(len(found))]

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        self._held.close()


_SHARED: list[Referee] = []
_STARTING = threading.Lock()


def referee() -> Referee:
    """The referee of this process, which ends with it."""
    with _STARTING:
        if not _SHARED:
            _SHARED.append(Referee())
            atexit.register(_SHARED[0].close)
    return _SHARED[0]


def _first(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


__all__ = ["Referee", "RefereeProgram", "UnansweredError", "exported", "referee", "wide_types"]
