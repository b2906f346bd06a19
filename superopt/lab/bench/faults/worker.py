"""The process that reads mutated files, and watches itself while it does (see `superopt.lab.bench.faults.suite`).

All modules that the readers need are loaded before the first mutated file, by reading the good ones.  From then on four
actions count as outside: opening a file for writing outside of its folder, reading one that is neither its own nor
Python's, starting a program, or opening a connection.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from superopt.errors import SuperoptError
from superopt.lab.bench.faults.suite import BYTES, FAULTS, MODULES, SECONDS, keep
from superopt.workshop.job import Event

_WARM = 24  # good files that are read before the first mutated one
_LONGEST = 4000  # characters of an error
_ACTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_READABLE = (sys.prefix, sys.base_prefix, "/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/", "/bin/")


class Watch:
    """Records the process's actions outside of its folder while a file is read."""

    def __init__(self, folder: Path) -> None:
        root = Path(__file__).resolve().parents[4]
        self.writable = (str(folder), "/dev/null", "/dev/shm/superopt-")
        self.readable = (*self.writable, *_READABLE, str(root))
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Handle an audit event of Python."""
        if not self.on:
            return
        if event in _ACTS:
            self.seen.append(f"{event} {values[:1]!r}"[:200])
        elif event in _CHANGES and isinstance(values[0], str | bytes | os.PathLike):
            self._path(event, values[0], self.writable)
        elif event == "open" and isinstance(values[0], str | bytes | os.PathLike):
            flags = values[2] if isinstance(values[2], int) else 0
            writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            self._path("write" if writing else "read", values[0], self.writable if writing else self.readable)

    def _path(self, what: str, path: Any, allowed: tuple[str, ...]) -> None:
        place = os.path.abspath(os.fsdecode(path))
        if not place.startswith(allowed):
            self.seen.append(f"{what} {place}"[:200])


def make_corpus(request: Mapping[str, Any]) -> Iterator[Event]:
    """Write the good files of a kind."""
    folder = Path(request["place"])
    _enter(folder)
    import_module(request["module"]).corpus(folder / "good")
    yield {"event": "made"}


def _enter(folder: Path) -> None:
    """Work in a private folder, away from the user's store and cache of kernels."""
    for name in ("good", "in", "in/cache", "outside"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "in/cache")
    os.chdir(folder / "in")


def read_mutated(request: Mapping[str, Any]) -> Iterator[Event]:
    """Read mutated files under watch, after the good ones."""
    kind, folder, seed = request["kind"], Path(request["place"]), int(request["seed"])
    _enter(folder)
    module = import_module(request["module"])
    good = sorted((folder / "good").iterdir())
    for path in good[:: max(1, len(good) // _WARM)]:
        answer = module.read(path, path)
        if answer:
            raise RuntimeError(f"the good file {path.name} is not read as it should be: {answer}")
        yield {"event": "warm"}
    watch = Watch(folder / "in")
    for number in range(int(request["first"]), int(request["last"])):
        path, source = _mutated(module, kind, good, seed, number, folder)
        yield {"event": "begin", "number": number, "file": str(path)}
        told = outcome(module, path, source, watch)
        if any(what in told for what in FAULTS):
            told["kept"] = keep(path, kind, seed, number, Path(request["kept"]))
        yield {"event": "end", "number": number, **told}
        if number % 50 == 49:
            _forget()


def _mutated(module: Any, kind: str, good: list[Path], seed: int, number: int, folder: Path) -> tuple[Path, Path]:
    """The mutated file of this number, and the good one from which it was made."""
    rng = random.Random(f"{kind} {seed} {number}")
    source = rng.choice(good)
    path = folder / "in" / f"mutated{source.suffix}"
    path.write_bytes(module.mutated(source.read_bytes(), rng, folder / "outside"))
    return path, source


def outcome(module: Any, path: Path, source: Path, watch: Watch) -> dict[str, Any]:
    """Read a file under watch; return its result, processor time and memory."""
    result: dict[str, Any] = {"refused": 0}
    before, begin = _reset_peak(), time.process_time()
    watch.seen, watch.on = [], True
    try:
        answer = module.read(path, source)
        if answer:
            result["foreign_answers"] = answer[:300]
    except SuperoptError as error:
        result["refused"] = 1
        if not str(error).split("\n  hint: ")[0].isprintable() or len(str(error)) > _LONGEST:
            result["untyped"] = f"an error that is not one short line: {str(error)!r}"[:300]
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        result["untyped"] = f"{type(error).__name__}: {error} ({where})"[:300]
    watch.on = False
    if watch.seen:
        result["outside"] = "; ".join(dict.fromkeys(watch.seen))[:300]
    seconds, grown = time.process_time() - begin, max(0, _status("VmHWM") - before)
    if seconds > SECONDS or grown > BYTES:
        result["over_limits"] = f"{seconds:.1f} s, {grown / 1e6:.0f} MB"
    return {**result, "seconds": seconds, "bytes": grown}


def _reset_peak() -> int:
    """Reset the peak of the resident size; return its current value in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not allowed: sizes are those since the process began
        return _status("VmHWM")
    return _status("VmRSS")


def _status(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _forget() -> None:
    """Release compiled programs."""
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()
    gc.collect()


def again(kind: str, path: Path) -> str:
    """Read a kept file in this process, letting exceptions through; return the result."""
    folder = Path(tempfile.mkdtemp(prefix="superopt-fault-"))
    here = path.absolute()
    _enter(folder)
    return import_module(MODULES[kind]).read(here, here) or "read"


if __name__ == "__main__":
    print(again(sys.argv[1], Path(sys.argv[2])))
