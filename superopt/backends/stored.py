"""Native programs in files: plan, objects and weights, as this store made and validated them.

A file may hold these members besides the program itself, from which they can be made anew.

    native/program.json  The plan, the description of each kernel with the size of its object, the members of the
                         weights, verdicts on the code.  Processor, versions and sources with which that was made.
    native/objects       The relocatable objects, one after the other.
    native/weights/0 ... Weights that are no prepared tensors of the file as well: packed ones, literals.
    native/signature     That of the digests of all other members, by the key of this store's folder of kernels.

Nothing of them is used before the signature is checked: it says that all members were written here, after validation.
Weights are then mapped, so that processes share them.  A file without a valid signature, or one made with other
sources, versions or for another processor, has no native program.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

import verifier
from superopt.arrays.placing import bytes_view, mapped
from superopt.backends import made
from superopt.backends.options import jit_with
from superopt.errors import InputError, UnsupportedKernel, VerificationError
from superopt.files.reading import Archive, ArchiveWriter
from superopt.files.seals import is_signed, signature
from superopt.ir import as_loaded
from superopt.ir.scalar import numpy_dtype
from superopt.kernels.llvm.jit import Compiled, CompileError, cache_folder
from superopt.kernels.runtime.kernel import Kernel
from superopt.machine.jitting import enabled_x64
from superopt.native.lowered import Lowered
from superopt.native.plan import ARGUMENT, WEIGHT, PlanSlot, from_json
from superopt.native.planner import ALIGNED_BYTES
from superopt.native.running import NativeProgram

MEMBERS = r"native/(program\.json|objects|signature|weights/(0|[1-9][0-9]{0,5}))"
"""Pattern of the members' names."""
_PROGRAM, _OBJECTS, _SIGNATURE, _WEIGHTS = (f"native/{x}" for x in ("program.json", "objects", "signature", "weights/"))
_PURPOSE = "native program of a file"
_CHECKS = ("kernels", "floats", "memory")  # folders of the verifier that validate code and plans


class StoredExecutable:
    """A native program from a file, called from NumPy or inside XLA.

    Attributes:
        program: the native program.
        verdicts: status -> the verdicts of validation on its code: `ValidatedCode.figures`.
        arguments: the slots of its live inputs.
        options, refused: none: XLA compiles nothing of it.
    """

    def __init__(self, program: NativeProgram, prepared: int, verdicts: Mapping[str, Any]) -> None:
        self.program, self.verdicts = program, verdicts
        self.options: dict[str, bool | str] = {}
        self.refused: dict[str, str] = {}
        self._count = prepared
        self.arguments = program.lowered.plan.of_kind(ARGUMENT)
        self._dtypes = [numpy_dtype(slot.type.dtype) for slot in self.arguments]
        self._inside = jit_with(program.inside, {})

    @functools.cached_property
    def prepared(self) -> tuple[Any, ...]:
        """The prepared tensors as arrays of JAX, in the memory where they are mapped."""
        with enabled_x64(self.wide), jax.ensure_compile_time_eval():
            return tuple([jax.device_put(x) for x in self.program.weights[: self._count]])

    @property
    def packed(self) -> tuple[Any, ...]:
        """The prepared tensors in the form that calls pass."""
        return self.prepared

    def pack(self, prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Return prepared tensors as calls pass them: unchanged."""
        return tuple(prepared)

    @property
    def wide(self) -> bool:
        """Whether it runs with 64-bit types whatever the process has enabled."""
        return self.program.wide

    def hot(self, live: Sequence[Any], prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results for these live inputs: without XLA where they have values."""
        with enabled_x64(self.wide):
            if any(isinstance(x, Tracer) for x in live):
                return self._inside(*live, *prepared)
            given = [np.asarray(x, kind) for x, kind in zip(live, self._dtypes, strict=True)]
            return tuple([jax.device_put(x) for x in self.program(*given)])

    def run_packed(self, *arrays: Any) -> tuple[Any, ...]:
        """Evaluate the program as a JAX function of the live inputs and the prepared tensors."""
        return self.program.inside(*arrays)

    def jit(self, fn: Callable[..., Any], **given_away: Any) -> Callable[..., Any]:
        """Compile a function around `run_packed`; donated arguments are named as in `jax.jit`."""
        jitted = jit_with(fn, {}, **given_away)

        def call(*args: Any, **kwargs: Any) -> Any:
            with enabled_x64(True):
                return jitted(*args, **kwargs)

        return call if self.wide else jitted


def write(
    out: ArchiveWriter, program: NativeProgram, held: Mapping[str, np.ndarray], verdicts: Mapping[str, Any]
) -> None:
    """Write a validated program as the last members of a file.

    Args:
        out: the file.
        program: the native program.
        held: member -> array, of those that the file holds already.
        verdicts: the verdicts of validation on its code.
    """
    made_with = _made_with()
    if not made_with:
        return
    known = {_content(x): member for member, x in held.items()}
    members: list[str] = []
    for x in map(np.asarray, program.weights):
        content = _content(x)
        if content not in known:
            known[content] = f"{_WEIGHTS}{len(known) - len(held)}"
            out.aligned(known[content], bytes_view(x))
        members.append(known[content])
    kernels = [*program.lowered.kernels.values(), program.kernel]
    objects = [kernel.compiled.object for kernel in kernels]
    out.text(_OBJECTS, b"".join(objects))
    rows = [{**made.row_of(kernel), "bytes": len(kernel.compiled.object)} for kernel in kernels]
    literals = len(program.lowered.literals)
    data = {
        "made_with": made_with, "plan": program.lowered.plan.to_json(), "kernels": rows, "weights": members,
        "literals": literals, "verdicts": dict(verdicts),
    }  # fmt: skip
    out.json(_PROGRAM, data)
    out.text(_SIGNATURE, signature(cache_folder(), _PURPOSE, _signed(out.digests)))


def read(archive: Archive, hosted: Callable[..., tuple[Any, ...]]) -> StoredExecutable | None:
    """Return the native program of a file; None where it has none that was made and validated here.

    Args:
        archive: the file.
        hosted: computes the program for arrays of `vmap`, from its live inputs and prepared tensors.

    Raises:
        InputError: a member is not what its digest says.
    """
    if _SIGNATURE not in archive or jax.default_backend() != "cpu":
        return None
    if not is_signed(cache_folder(), _PURPOSE, _signed(archive.digests), archive.text(_SIGNATURE)):
        return None
    data = archive.json(_PROGRAM)
    if data["made_with"] != _made_with():
        return None
    plan, objects, kernels, at = from_json(data["plan"]), archive.read(_OBJECTS), list[tuple[Any, Compiled]](), 0
    for row in data["kernels"]:
        content = objects[at : at + row["bytes"]]
        kernels.append((row, Compiled(row["object"], content, "none", 0, 0.0)))
        at += row["bytes"]
    raw = mapped(archive.handle.fileno())
    slots = plan.of_kind(WEIGHT)
    weights = [_mapped(archive, raw, member, slot) for member, slot in zip(data["weights"], slots, strict=True)]
    *called, (_, whole) = kernels
    count = len(weights) - data["literals"]
    try:
        called_by = {x.digest: Kernel(made.code_of(row), x) for row, x in called}
        lowered = Lowered(plan, called_by, tuple(weights[count:]), ())
        program = NativeProgram(lowered, weights[:count], hosted, compiled=whole)
    except (CompileError, UnsupportedKernel, VerificationError):  # as good as absent: it cannot run here
        return None
    return StoredExecutable(program, count, data["verdicts"])


def _mapped(archive: Archive, raw: np.ndarray, member: str, slot: PlanSlot) -> np.ndarray:
    """Return the weight in a member where it is mapped, compared with its digest."""
    begin, size = archive.place(member)
    shape = tuple([int(n) for n in slot.type.shape])  # pyright: ignore[reportArgumentType] (concrete)
    array = raw[begin : begin + size].view(numpy_dtype(slot.type.dtype)).reshape(shape)
    archive.check(member, bytes_view(array))
    if array.ctypes.data % ALIGNED_BYTES:
        raise InputError(f"its {member!r} is not aligned")
    return array


def _content(x: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """Return a key that equal arrays share."""
    return str(x.dtype), x.shape, hashlib.sha256(bytes_view(x)).digest()


def _signed(digests: Mapping[str, Any]) -> bytes:
    """Return the text under the signature: the digests of all other members."""
    return json.dumps({member: x for member, x in sorted(digests.items()) if member != _SIGNATURE}).encode()


def _made_with() -> list[Any]:
    """Return the dependencies of native programs and of their validation; empty where sources changed after loading."""
    root = Path(verifier.__file__).parent
    files = sorted([file for room in _CHECKS for file in (root / room).iterdir() if file.suffix in (".py", ".json")])
    around = made.surroundings()
    if not around or not as_loaded(files):
        return []
    return [*around, hashlib.sha256(b"\0".join([file.read_bytes() for file in files])).hexdigest()]
