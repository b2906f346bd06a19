"""Compiles LLVM text to machine code, with a cache on disk.

`compile(text)` verifies, runs a pass pipeline, and emits one relocatable object.  `load` maps it for the life of the
process (code that XLA may still call is never unmapped) and gives the addresses of its functions.

The pipeline is a decision: `none`, `lite` (instruction combining and control-flow simplification), `O2`, `O3`.  Which
is best for a register tile depends on the tile.  `auto` tries none, lite, O2 in this order and keeps the first that
hardly spills vectors in innermost loops, else the one with the fewest spills (an epilogue outside of them may spill
harmlessly).  O2 comes before lite where hundreds of vectors are spilt without passes, which lite does not mend.

The object is stored under a digest of text, pipeline and LLVM's version; the text names processor and features.  Files
are written to a temporary name and renamed, carry a digest of their content, and are rebuilt when it does not match.
Beyond 256 MiB the least recently used objects are deleted, together with the facts recorded about them.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import hashlib
import itertools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from superopt.errors import SuperoptError
from superopt.machine.deadline import Stopwatch
from superopt.machine.shared import once

if TYPE_CHECKING:
    import llvmlite.binding

Pipeline = Literal["auto", "none", "lite", "O2", "O3"]
PIPELINES: tuple[Pipeline, ...] = ("none", "lite", "O2", "O3")
_AUTO: tuple[Pipeline, ...] = ("none", "lite", "O2")
_HOPELESS = 128  # spills that instruction combining alone does not mend
_SELDOM = 100  # lines for each spill: six loops of thousands of lines with 0.1 to 0.7 in 100 take as long as with none
_FORMAT = 4
MOST_BYTES = 256 << 20  # bytes of all files in a cache folder
_ENDINGS = (".object", ".kernel", ".agrees", ".verdict")  # endings of the files in a cache folder
_UNFINISHED, _UNFINISHED_S = ".part", 600.0  # ending of a file that is being written, and how long that takes at most
_PRUNED = "pruned"  # an empty file, written when a cache folder is pruned
_PRUNED_S = 600.0  # a folder of 63,000 files takes 0.2 s, which every worker paid at its first kernel
_CPU = re.compile(r'"target-cpu"="([^"]*)" "target-features"="([^"]*)"')


class CompileError(SuperoptError):
    """LLVM rejects the text: an error of the code generator."""

    code = "SO500"


@dataclass(frozen=True, slots=True)
class Compiled:
    """One relocatable object.

    Attributes:
        digest: identifies text, requested pipeline, and version of LLVM.
        object: the object file: ELF, Mach-O or COFF.
        pipeline: the pipeline chosen.
        spills: moves of vector registers to and from the stack in innermost loops.
        seconds: time of parsing, passes and code generation; 0 when read from disk.
    """

    digest: str
    object: bytes
    pipeline: Pipeline
    spills: int
    seconds: float


class Library:
    """Code mapped into this process; the `address` of a function stays valid until the process ends."""

    def __init__(self, jit: llvmlite.binding.LLJIT, name: str, tracker: llvmlite.binding.ResourceTracker) -> None:
        self._jit, self._name = jit, name
        self._trackers = [tracker]  # the code is unmapped with the last of them

    def address(self, symbol: str) -> int:
        """Return the address of a function that is not internal.

        Raises:
            CompileError: there is none of this name, or the object calls something that this process does not have.
        """
        try:
            tracker = self._jit.lookup(self._name, symbol)
        except RuntimeError as error:
            raise CompileError(f"function {symbol!r} cannot be linked: {error}") from error
        self._trackers.append(tracker)
        return tracker[symbol]


_LOADED: dict[str, Library] = {}  # never emptied: XLA may call what is mapped
_LOCK = threading.RLock()


def compile(text: str, pipeline: Pipeline = "auto", cache: Path | None = None) -> Compiled:
    """Compile a module to object code.

    Args:
        text: a module that names its processor, as `Module.text` writes it.
        pipeline: the pass pipeline; see the module docstring.
        cache: folder of objects; the user's cache folder when None.

    Raises:
        CompileError: LLVM's parser or verifier refuses the text.
    """
    digest = hashlib.sha256(
        json.dumps([_FORMAT, text, pipeline, list(_binding().llvm_version_info)]).encode()
    ).hexdigest()[:32]
    path = (cache or cache_folder()) / object_name(digest)
    compiled = _read(path, digest)
    if compiled is not None:
        return compiled
    with _LOCK:  # LLVM's global context is not for several threads
        made = _build(text, pipeline, digest)
    _write(path, made)
    return made


def find(digest: str, cache: Path | None = None) -> Compiled | None:
    """Return the cached object with this digest; None if it is missing or damaged."""
    return _read((cache or cache_folder()) / object_name(digest), digest)


def object_name(digest: str) -> str:
    """Return the name of the file of an object."""
    return f"{digest}.object"


def load(compiled: Compiled, imports: Mapping[str, int] | None = None) -> Library:
    """Map the object; once per process.

    Args:
        compiled: the object.
        imports: addresses of functions that it calls, besides those of the process.
    """
    with _LOCK:
        known = _LOADED.get(compiled.digest)
        if known is None:
            builder = _binding().JITLibraryBuilder().add_object_img(compiled.object).add_current_process()
            for symbol, address in (imports or {}).items():
                builder.import_symbol(symbol, address)
            tracker = builder.link(_linker(), compiled.digest)
            known = _LOADED[compiled.digest] = Library(_linker(), compiled.digest, tracker)
        return known


def assembly(text: str, pipeline: Pipeline = "none") -> str:
    """Return the assembly of a module, for tests and for counting."""
    with _LOCK:
        return _listing(text, pipeline)


def cache_folder() -> Path:
    """Return the folder in which objects are cached."""
    import platformdirs  # late: not needed when a folder is given

    return Path(platformdirs.user_cache_dir("superopt", appauthor=False)) / "kernels"


# ---- LLVM


@once
def _binding() -> Any:
    import llvmlite.binding as llvm  # late: loads LLVM

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@once
def _linker() -> Any:
    """Return the in-process linker: one mapping per object, so that code and constants are near each other."""
    ctypes.CDLL(ctypes.util.find_library("m"), ctypes.RTLD_GLOBAL)  # functions that generated code may call
    return _binding().create_lljit_compiler(_machine("", ""), use_jit_link=True, suppress_errors=True)


def _machine(cpu: str, features: str) -> Any:
    llvm = _binding()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        # constants beside the code, read relative to the instruction: half the registers of absolute addresses
        cpu=cpu,
        features=features,
        opt=3,
        jit=True,
        reloc="pic",
        codemodel="small",
    )


def _build(text: str, pipeline: Pipeline, digest: str) -> Compiled:
    watch = Stopwatch()
    best: tuple[int, Pipeline, str] | None = None
    left = list(_AUTO if pipeline == "auto" else (pipeline,))
    while left:
        candidate = left.pop(0)
        listing = _listing(text, candidate)
        spills, lines = inner_spills(listing)
        if best is None or spills < best[0]:
            best = spills, candidate, listing
        if spills * _SELDOM <= lines:
            break
        if spills > _HOPELESS:
            left.reverse()
    assert best is not None
    return Compiled(digest, _assembled(best[2], text), best[1], best[0], watch.elapsed_s)


def _listing(text: str, pipeline: Pipeline) -> str:
    """Return the assembly of a module, with comments."""
    llvm = _binding()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the module: {error}") from error
    module.triple = llvm.get_process_triple()
    machine = _machine(*_named(text))
    machine.set_asm_verbosity(True)
    _optimise(llvm, module, machine, pipeline)
    return machine.emit_assembly(module)


def _assembled(listing: str, text: str) -> bytes:
    """Assemble a listing to an object: an order of magnitude faster than generating the code again."""
    llvm = _binding()
    code = "".join([f"{re.sub(_QUOTED, _escape, line)}\\0A" for line in listing.splitlines()])
    module = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"\nmodule asm "{code}"\n')
    return _machine(*_named(text)).emit_object(module)


_QUOTED = re.compile(r'[^ -~]|["\\]')


def _escape(found: re.Match[str]) -> str:
    return "".join([f"\\{b:02X}" for b in found[0].encode()])


def _named(text: str) -> tuple[str, str]:
    """Return the processor and the features that the text names."""
    match = _CPU.search(text)
    return (match[1], match[2]) if match else ("", "")


def _optimise(llvm: Any, module: Any, machine: Any, pipeline: Pipeline) -> None:
    level = {"O2": 2, "O3": 3}.get(pipeline, 0)
    options = llvm.create_pipeline_tuning_options(speed_level=level or 2)
    builder = llvm.create_pass_builder(machine, options)
    inline = llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.run(module, builder)
    if level:
        builder.getModulePassManager().run(module, builder)
    elif pipeline == "lite":
        passes = llvm.create_new_function_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)


_LABEL = re.compile(r"^(\.L\w+|[A-Za-z_]\w*):")
_JUMP = re.compile(r"^\s+j\w+\s+(\.L\w+)")
_SPILL = re.compile(r"%[xyz]mm\d+.*(?:Spill|Reload)")


def inner_spills(listing: str) -> tuple[int, int]:
    """Count spills and reloads of vectors in innermost loops of an x86 assembly with comments, and these lines."""
    lines = listing.splitlines()
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = number
        jump = _JUMP.match(line)
        if jump and jump[1] in labels:
            loops.append((labels[jump[1]], number))
    inner, first_end = set[tuple[int, int]](), len(lines)
    for a, b in sorted(set(loops), key=lambda loop: (-loop[0], loop[1])):
        if b < first_end:  # no loop begins at or after it and ends at or before
            inner.add((a, b))
        first_end = min(first_end, b)
    spills = [0, *itertools.accumulate(bool(_SPILL.search(line)) for line in lines)]  # of the lines before each
    return sum([spills[b + 1] - spills[a] for a, b in inner]), sum([b + 1 - a for a, b in inner])


# ---- disk


def _read(path: Path, digest: str) -> Compiled | None:
    try:
        stored, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if stored.decode("ascii", "replace") != hashlib.sha256(content).hexdigest():
        return None
    used(path)
    head, _, body = content.partition(b"\n")
    facts = json.loads(head)
    return Compiled(digest, body, facts["pipeline"], facts["spills"], 0.0)


def used(path: Path) -> None:
    """Mark a cache file as recently used by updating its modification time."""
    with contextlib.suppress(OSError):  # a folder that cannot be written
        os.utime(path)


def _write(path: Path, made: Compiled) -> None:
    content = json.dumps({"pipeline": made.pipeline, "spills": made.spills}).encode() + b"\n" + made.object
    write_beside(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def write_beside(path: Path, content: bytes) -> None:
    """Write a cache file under a temporary name and rename it; on failure the file is absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _prune_seldom(path.parent)
    except OSError:
        return  # a cache that cannot be written is only slower


@functools.cache
def _prune_seldom(folder: Path) -> None:
    """Prune a folder, unless this process has, or another one in the last minutes."""
    mark = folder / _PRUNED
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - mark.stat().st_mtime) < _PRUNED_S:
            return
    mark.touch()
    prune(folder)


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> int:
    """Delete the least recently used files until the rest has half the size limit; nothing if all fits.

    Files that differ in their endings alone go together: a kernel, and the facts recorded about it.  Temporary files of
    killed processes are deleted in any case.

    Returns:
        Number of files deleted.
    """
    groups: dict[str, list[os.DirEntry[str]]] = {}
    for entry in list(os.scandir(folder)):
        if entry.name.endswith(_UNFINISHED):
            if entry.stat().st_mtime < time.time() - _UNFINISHED_S:
                Path(entry.path).unlink(missing_ok=True)
        elif entry.name.endswith(_ENDINGS):
            groups.setdefault(entry.name.partition(".")[0], []).append(entry)
    sizes = {stem: sum(file.stat().st_size for file in files) for stem, files in groups.items()}
    size, deleted = sum(sizes.values()), 0
    if size > most_bytes:
        for stem, files in sorted(groups.items(), key=lambda group: max(file.stat().st_mtime_ns for file in group[1])):
            if size <= most_bytes // 2:
                break
            for file in files:
                Path(file.path).unlink(missing_ok=True)
            size, deleted = size - sizes[stem], deleted + len(files)
    return deleted
