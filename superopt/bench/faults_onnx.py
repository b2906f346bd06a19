"""Damaged and hostile ONNX files: what becomes of each, in a process of its own.

The files are models of every operator (the node tests of the `onnx` package and a few whole models), changed at random:
bits and pieces of the bytes, or fields of the message (sizes, attributes, names, types, places of external data).  Each
is loaded and imported.  Allowed are a program or a typed error within the limits; counted is everything else.

    counts = check(files=10_000, seed=0)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

MAX_SECONDS = 10.0
PER_PROCESS = 250  # JAX keeps what it traced; the memory of a file is not to be that of all before it
CANARY = b"superopt canary: nobody may read this file\n" * 4
_INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 0.5)
_TEXTS = (
    "",
    "x",
    "y",
    "\x1b[2J",
    "a\nb",
    "\u202e",
    "../canary.bin",
    "x" * 5000,
    "Loop",
    "If",
    "NonZero",
    "com.x",
    "\0",
)


# ---- files


def write_seeds(folder: Path) -> int:
    """Write the models that are to be changed; how many there are."""
    from superopt.bench.onnx_contrib import contrib_cases  # late: generates every case
    from superopt.bench.onnx_nodes import node_cases

    seen: set[bytes] = set()
    models = [case.model for case in node_cases()] + [model for _, _, model, _ in contrib_cases()] + [_external()]
    for model in models:
        data = model.SerializeToString()
        if len(data) < 2**16 and data not in seen:
            (folder / f"{len(seen):05}.onnx").write_bytes(data)
            seen.add(data)
    return len(seen)


def _external() -> onnx.ModelProto:
    from onnx import helper  # late: as above

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "data.bin", "offset": "0", "length": "16"}.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A model with one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _bytes_changed(data, other, rng) if rng.random() < 0.35 else _fields_changed(data, rng)
    return data


def _bytes_changed(data: bytes, other: bytes, rng: random.Random) -> bytes:
    if not data:
        return other
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
    if kind == 4:
        return data[:at]
    return data[:at] + other[rng.randrange(max(len(other), 1)) :]


def _fields_changed(data: bytes, rng: random.Random) -> bytes:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # damaged before
        return data
    places = list(_places(model))
    if not places:
        return data
    message, field = rng.choice(places)
    with contextlib.suppress(ValueError, TypeError, OverflowError, UnicodeError, AttributeError):
        _change(message, field, rng)
    try:
        return model.SerializeToString()
    except Exception:  # a text that cannot be written
        return data


def _places(message: Message) -> Iterator[tuple[Message, Any]]:
    """Every field that is set, in the message and in those within it."""
    todo = [message]
    while todo:
        one = todo.pop()
        for field, value in one.ListFields():
            yield one, field
            if field.type == field.TYPE_MESSAGE:
                todo += list(value) if _repeated(value) else [value]


def _repeated(value: Any) -> bool:
    return not isinstance(value, Message | str | bytes | int | float)


def _change(message: Message, field: Any, rng: random.Random) -> None:
    value = getattr(message, field.name)
    if not _repeated(value):
        if field.type == field.TYPE_MESSAGE or rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, value, rng))
        return
    kind, at = rng.randrange(4), rng.randrange(len(value))
    if kind == 0:
        del value[at]
    elif kind == 1:
        value.extend([value[at]] * rng.choice((1, 2, 100)))
    elif field.type == field.TYPE_MESSAGE:
        value[at].CopyFrom(value[rng.randrange(len(value))])
    else:
        value[at] = _scalar(field, value[at], rng)


def _scalar(field: Any, value: Any, rng: random.Random) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == field.TYPE_STRING:
        return rng.choice((*_TEXTS, value + "_", value[:-1]))
    if field.type == field.TYPE_BYTES:
        return bytes(value[: rng.randrange(len(value) + 1)]) + rng.randbytes(rng.choice((0, 1, 8)))
    return rng.choice((*_INTEGERS, value + 1, value - 1))


# ---- the process that reads them


def _child(seeds: Path, folder: Path, seed: int, start: int, stop: int) -> None:
    """Read files `start` to `stop`: a line before and after each."""
    warnings.simplefilter("ignore")
    import jax  # late: as above

    from superopt.errors import SuperoptError  # late: the parent needs none of it
    from superopt.frontends.onnx import import_model, load_model

    jax.devices()  # looks at the machine, which is not to be taken for the reading of a file
    sources = sorted(seeds.iterdir())
    opened: list[str] = []
    watching = False
    allowed = tuple(
        map(str, (folder, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2], "/proc/self"))
    )

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | bytes):
            name = arguments[0].decode(errors="replace") if isinstance(arguments[0], bytes) else arguments[0]
            if not str(Path(name).resolve() if "\0" not in name else name).startswith(allowed):
                opened.append(name[:200])

    sys.addaudithook(audit)
    path = folder / "model.onnx"
    (folder / "data.bin").write_bytes(bytes(16))
    for number in range(start, stop):
        rng = random.Random(f"{seed}-{number}")
        one, other = (sources[rng.randrange(len(sources))] for _ in range(2))
        path.write_bytes(mutated(one.read_bytes(), other.read_bytes(), rng))
        print(json.dumps({"begin": number}), flush=True)
        opened.clear()
        row: dict[str, Any] = {"file": number, "seed": one.name, "status": "ok"}
        begin, worked, watching = time.perf_counter(), time.process_time(), True
        try:
            model = load_model(path)
            row["outside"] = any(CANARY[:16] in v.tobytes() for v in model.params.values() if v.nbytes)
            import_model(model)
        except SuperoptError as error:
            row["status"] = error.code
            if not str(error).split("\n  hint")[0].isprintable() or len(str(error)) > 4000:
                row |= {"status": "untyped", "cause": f"an error that is not one short line: {str(error)[:300]!r}"}
        except Exception as error:  # what should have been typed
            row |= {"status": "untyped", "cause": f"{type(error).__name__}: {str(error)[:300]}"}
        watching = False
        taken = min(time.perf_counter() - begin, time.process_time() - worked)
        row |= {"seconds": round(taken, 3), "opened": list(opened)}
        row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(row), flush=True)


# ---- counting


def check(
    files: int = 10_000, seed: int = 0, *, first: int = 0, say: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Read so many changed files.

    Args:
        files: how many.
        seed: of the changes.
        first: number of the first file (a number and a seed give one file).
        say: told of progress.

    Returns:
        `files`, `programs` (files that still are one), `typed` (refused by a typed error), `untyped`, `deaths` (of the
        process, or beyond the time), `outside` (files that another file than the model's own was read for),
        `slowest_seconds`, `peak_mb` (of the process), and `faults`: number, seed and cause of each that counts.
    """
    counts: dict[str, Any] = {"files": 0, "programs": 0, "typed": 0, "untyped": 0, "deaths": 0, "outside": 0}
    counts |= {"slowest_seconds": 0.0, "peak_mb": 0, "faults": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        seeds, folder = root / "seeds", root / "model"
        seeds.mkdir()
        folder.mkdir()
        (root / "canary.bin").write_bytes(CANARY)
        write_seeds(seeds)
        at = first
        while at < first + files:
            stop = min(at + PER_PROCESS, first + files)
            at = _watch([sys.executable, "-P", "-m", __name__, str(seeds), str(folder), str(seed)], at, stop, counts)
            if say is not None:
                say(f"{counts['files']} files, {counts['untyped']} untyped, {counts['deaths']} deaths")
    return counts


def _watch(command: Sequence[str], start: int, stop: int, counts: dict[str, Any]) -> int:
    """Follow one process; the number of the file to go on with."""
    with subprocess.Popen(
        [*command, str(start), str(stop)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    ) as process:  # not buffered: a line that was read ahead would never be announced
        assert process.stdout is not None
        at, begun = start, False
        try:
            while True:
                line = _line(process, 3 * MAX_SECONDS if begun else 100.0)
                if not line:
                    break
                row = json.loads(line)
                if "begin" in row:
                    at, begun = row["begin"], True
                    continue
                _count(row, counts)
                at, begun = row["file"] + 1, False
        finally:
            process.kill()
    if begun or at == start:
        _count({"file": at, "status": "death", "cause": "the process ended or took too long"}, counts)
        return at + 1
    return at


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The next line of a process; empty when it has ended or worked for so long without one."""
    assert process.stdout is not None
    begin = _worked(process.pid)
    while True:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        if ready:
            return process.stdout.readline()
        if _worked(process.pid) - begin > seconds:
            return b""


def _worked(number: int) -> float:
    """Processor time of a process in seconds: a machine that does other work makes no file slow."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return time.monotonic()


def _count(row: dict[str, Any], counts: dict[str, Any]) -> None:
    counts["files"] += 1
    status = row["status"]
    counts[
        "programs"
        if status == "ok"
        else "deaths"
        if status == "death"
        else "untyped"
        if status == "untyped"
        else "typed"
    ] += 1
    outside = bool(row.get("outside") or row.get("opened"))
    counts["outside"] += outside
    counts["slowest_seconds"] = max(counts["slowest_seconds"], row.get("seconds", 0.0))
    counts["peak_mb"] = max(counts["peak_mb"], row.get("peak_mb", 0))
    slow = row.get("seconds", 0.0) > MAX_SECONDS
    if status in ("untyped", "death") or outside or slow:
        counts["faults"].append({**row, "slow": slow})


if __name__ == "__main__":
    _child(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]))
