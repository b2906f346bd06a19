"""Writes a package: a folder with all that is needed to call a program without Python, JAX or XLA.

    libNAME.so       the program: its kernels, the walk of its plan, and the threads.
    NAME.h           the functions of the library, and the shapes and dtypes of inputs and outputs.
    NAME.weights     weights and literals, each at a multiple of 64 bytes; mapped, never copied.
    NAME.json        the plan, inputs and outputs, processor, versions, and certificates (`certificates`).
    NAME.py          a loader that needs NumPy alone.
    main.c, CMakeLists.txt  a program that calls it.

All is made in a folder beside it first.  Each file then replaces the earlier one at once, so that processes that run an
earlier package keep what they have mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import PackageError, UsageError
from superopt.kernels.llvm.cpu import host
from superopt.kernels.runtime import rooms, team
from superopt.kernels.runtime.kernel import Kernel, shared_code
from superopt.machine.facts import versions
from superopt.native.package.certificates import certified, files_of
from superopt.native.package.elf import renamed
from superopt.native.package.link import link
from superopt.native.plan import ARGUMENT, OUTPUT, PlanSlot
from superopt.native.planner import ALIGNED_BYTES
from superopt.native.running import NativeProgram, kernel_symbol

_HERE = Path(__file__).parent
_AX, _BX, _CX, _DX = range(4)
_FEATURES = {
    (1, 0, _CX): {"fma": 12, "sse4.2": 20, "movbe": 22, "popcnt": 23, "avx": 28, "f16c": 29},
    (7, 0, _BX): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19, "avx512ifma": 21, "avx512cd": 28,
        "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, _CX): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11,
        "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    (7, 0, _DX): {"avx512vp2intersect": 8, "avx512fp16": 23},
    (7, 1, _AX): {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (7, 1, _DX): {"avxvnniint8": 4, "avxneconvert": 5},
    (0x80000001, 0, _CX): {"lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
"""Leaf, part and word of cpuid -> LLVM's name of a feature -> its bit."""
_KEPT = {"avx512": 0xE6, "": 0x06}
"""Begin of a feature's name -> the registers, by bits of xgetbv, that the system must keep for it."""


@dataclass(frozen=True, slots=True)
class PackageLabels:
    """The names of a package.

    Attributes:
        name: of the library and its functions, as `library_name` gives it.
        program: of the program that it computes.
        inputs, outputs: names in their order.
        record: how the program was checked, as plain data: `rules`, the verdicts on `code`, `exactness` and more.
    """

    name: str
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    record: Mapping[str, Any]


def write_package(program: NativeProgram, folder: Path, labels: PackageLabels) -> Path:
    """Write the package of a program; return its folder, which is made where it does not exist.

    Raises:
        UsageError: the folder cannot be made.
        PackageError: the objects cannot be linked.
        MissingExtraError: there is no C compiler.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be made: {error.strerror}", hint="give another one") from error
    with tempfile.TemporaryDirectory(prefix=".superopt-", dir=folder) as made:
        files = _made(program, Path(made), labels)
        for name in files:
            os.replace(Path(made) / name, folder / name)
    return folder


def _made(program: NativeProgram, folder: Path, labels: PackageLabels) -> list[str]:
    """Write the files into a folder, the object files among them; return the names of those of the package."""
    name, plan = labels.name, program.lowered.plan
    arguments, outputs = plan.of_kind(ARGUMENT), plan.of_kind(OUTPUT)
    weights = [np.asarray(x) for x in program.weights]
    places, digest = _write_weights(weights, folder / f"{name}.weights")
    kernels = (*program.lowered.kernels.values(), program.kernel)
    features = _features()
    values = {
        "name": name,
        "NAME": name.upper(),
        "program": labels.program.replace("*/", "* /"),
        "version": versions()["superopt"],
        "signature": _signature(arguments, outputs, labels),
        "constants": _constants(name.upper(), {"INPUT": arguments, "OUTPUT": outputs}),
        "weights": str(len(weights)),
        "weights_bytes": str((folder / f"{name}.weights").stat().st_size),
        "offsets": "".join([f"{at}, " for at in places]),
        "digest": ", ".join(map(str, digest)),
        "team_bytes": str(team.TEAM_BYTES),
        "reserve_bytes": str(max([kernel.heap_bytes for kernel in kernels])),
        "features": "".join([f'{{"{feature}", {", ".join(map(str, row))}}}, ' for feature, row in features.items()]),
    }
    for template, written in {
        "header.h": f"{name}.h", "library.c": "library.c", "main.c": "main.c", "CMakeLists.txt": "CMakeLists.txt",
        "loader.py": f"{name}.py",
    }.items():  # fmt: skip
        (folder / written).write_text(_filled((_HERE / template).read_text(encoding="utf-8"), values), encoding="utf-8")
    objects = [shared_code().object, *[renamed(kernel.compiled.object, _names(kernel)) for kernel in kernels]]
    link(objects, folder / "library.c", folder / f"lib{name}.so", f"{name}_*")
    facts = {
        "name": name,
        "program": labels.program,
        "inputs": _described(arguments, labels.inputs),
        "outputs": _described(outputs, labels.outputs),
        "processor": {"name": host().name, "features": list(features), "system": platform.machine()},
        "versions": versions(),
        "weights": [{"at": at, "bytes": x.nbytes} for at, x in zip(places, weights, strict=True)],
        "record": dict(labels.record),
    }
    (folder / f"{name}.json").write_text(json.dumps(certified(facts, program, folder)), encoding="utf-8")
    return [*files_of(name), f"{name}.json"]


def _features() -> dict[str, tuple[int, ...]]:
    """Return the features for which code is made -> leaf, part, word and bit of cpuid, and the registers to keep."""
    made_for = {f[1:] for f in host().features if f.startswith("+")} - {f[1:] for f in host().features if f[0] == "-"}
    return {
        name: (*place, bit, next(kept for begin, kept in _KEPT.items() if name.startswith(begin)))
        for place, bits in _FEATURES.items()
        for name, bit in bits.items()
        if name in made_for
    }


def _names(kernel: Kernel) -> dict[str, str]:
    """Return the symbols of a kernel's object by which it is linked: names of its own, and what it calls here."""
    own = {symbol: f"{symbol}.{kernel.digest}" for symbol in ("handler", "kernel.rooms")}
    own["kernel"] = kernel_symbol(kernel.digest)
    calls = {"runtime.handle": "runtime.serial", "runtime.region": "package.region"}  # no XLA; threads of a context
    return {**own, **calls, **rooms.IMPORTS}


def _write_weights(weights: Sequence[np.ndarray], path: Path) -> tuple[list[int], bytes]:
    """Write arrays one after the other; return their offsets, and the digest of the file."""
    digest, places, at = hashlib.blake2b(digest_size=32), list[int](), 0
    with open(path, "wb") as file:
        for x in weights or [np.zeros(0, np.uint8)]:
            content = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            rest = b"\0" * (ALIGNED_BYTES - content.nbytes % ALIGNED_BYTES)
            places.append(at)
            for part in (memoryview(content), rest):  # pyright: ignore[reportArgumentType] (an array is a buffer)
                file.write(part)
                digest.update(part)
            at += content.nbytes + len(rest)
    return places[: len(weights)], digest.digest()


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each `@name@` replaced by its value."""
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def _described(slots: Sequence[PlanSlot], names: Sequence[str]) -> list[dict[str, Any]]:
    if len(slots) != len(names):
        raise PackageError(f"the program has {len(slots)} arrays for {len(names)} names")
    return [
        {"name": name, "shape": list(slot.type.shape), "dtype": slot.type.dtype, "bytes": slot.size_bytes}
        for name, slot in zip(names, slots, strict=True)
    ]


def _signature(arguments: Sequence[PlanSlot], outputs: Sequence[PlanSlot], labels: PackageLabels) -> str:
    """Return the lines of the header's comment on inputs and outputs."""
    rows = [(*x, labels.inputs) for x in enumerate(arguments)] + [(*x, labels.outputs) for x in enumerate(outputs)]
    lines = [f"   {slot.kind} {i}: {slot.type}  {names[i]}" for i, slot, names in rows]
    return "\n".join(lines).replace("*/", "* /")


def _constants(prefix: str, sides: Mapping[str, Sequence[PlanSlot]]) -> str:
    """Return the macros of numbers, sizes and shapes."""
    lines: list[str] = []
    for side, slots in sides.items():
        lines += [f"#define {prefix}_{side}S {len(slots)}"]
        lines += [f"#define {prefix}_{side}_BYTES {', '.join([str(slot.size_bytes) for slot in slots])}".rstrip()]
        for i, slot in enumerate(slots):
            lines += [f'#define {prefix}_{side}{i}_TYPE "{slot.type.dtype}"']
            lines += [f"#define {prefix}_{side}{i}_RANK {len(slot.type.shape)}"]
            lines += [f"#define {prefix}_{side}{i}_SHAPE {', '.join(map(str, slot.type.shape))}".rstrip()]
    return "\n".join(lines)
