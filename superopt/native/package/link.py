"""The C compiler, and what it makes: a library that exports nothing but the functions of its header."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from superopt.errors import PackageError, UsageError
from superopt.machine.extras import need

_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-pthread")
_ENDS = ("-lm", "-Wl,-z,noexecstack")
_STAYS = "-Wl,-z,nodelete"  # helper threads sleep in its code as long as the process lives
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = {"main", "numpy", *sys.stdlib_module_names}  # a loader of one of these names would be imported in its place


def library_name(given: str, folder: Path) -> str:
    """Return the name of a library and its functions: the given one, or that of the folder with `_` for other signs.

    Raises:
        UsageError: the name cannot begin the names of C functions and of a Python module.
    """
    name = given or re.sub(r"\W", "_", folder.absolute().name, flags=re.ASCII).strip("_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _TAKEN:
        raise UsageError(f"{name!r} cannot be the name of a library", hint="letters, digits and _: --name my_model")
    return name


def compiler() -> list[str]:
    """Return the command of the system's C compiler: `$CC`, or `cc`; else that of the package ziglang.

    Raises:
        MissingExtraError: there is neither.
    """
    own = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(own[0]):
        return own
    need("ziglang", "a package, where there is no C compiler `cc`,")
    return [sys.executable, "-P", "-m", "ziglang", "cc"]


def link(objects: Sequence[bytes], source: Path, library: Path, exported: str) -> None:
    """Compile a C file and link it with objects to a library.

    Args:
        objects: relocatable objects.
        source: the C file; its folder has the header, and gets the objects.
        library: the file to write.
        exported: pattern of the names that the library exports.

    Raises:
        PackageError: the compiler fails.
        MissingExtraError: there is none.
    """
    folder = source.parent
    files = [folder / f"{number}.o" for number in range(len(objects))]
    for path, content in zip(files, objects, strict=True):
        path.write_bytes(content)
    script = folder / "exported"
    script.write_text(f"{{ global: {exported}; local: *; }};\n")
    flags = [*_FLAGS, _STAYS, f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}"]
    command = [*compiler(), *flags, "-o", str(library), str(source), *map(str, files), *_ENDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise PackageError(f"{' '.join(compiler())} fails: {' '.join(said[-12:])}")
