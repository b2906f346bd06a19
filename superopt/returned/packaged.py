"""The package of an optimised function: its native program, or the ops that stand in the way, and its names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from jax import tree_util

from superopt.backends.mixed import MixedExecutable
from superopt.backends.xla import XlaExecutable
from superopt.certify.kernels import ValidatedCode
from superopt.certify.taking import TakenKernels
from superopt.errors import PackageError
from superopt.frontends.jax.jaxpr import Imported
from superopt.native.lowering import LeftToXla, lower
from superopt.native.package.link import library_name
from superopt.native.package.write import PackageLabels, write_package
from superopt.native.running import NativeProgram
from superopt.report.data import Report
from verifier.kernels.check import version


def package(
    imported: Imported, native: NativeProgram, taken: TakenKernels, report: Report, folder: Path, name: str
) -> Path:
    """Write the package of a function; return its folder.

    Args:
        imported: the function.
        native: the program.
        taken: its kernels, judged.
        report: of its optimisation.
        folder: is made where it does not exist.
        name: of the library; the folder's where it is empty.

    Raises:
        PackageError: a kernel cannot be used, or the compiler fails.
        UsageError: the folder cannot be made, or the name cannot be that of a library.
        MissingExtraError: there is no C compiler.
    """
    for kernel, why in taken.left.items():
        raise PackageError(f"{report.program}: {kernel}: {why}")
    labels = PackageLabels(
        name=library_name(name, folder),
        program=report.program,
        inputs=tuple(imported.names[i] for i in imported.live),
        outputs=imported.titles or _names_of_results(imported.out_tree),
        record=_record(report, taken.code),
    )
    return write_package(native, folder, labels)


def native_of(imported: Imported, executable: XlaExecutable, report: Report) -> NativeProgram:
    """Return the program without XLA.

    Raises:
        PackageError: an op is left to XLA or to the host.
    """
    on_host = Counter[str]()
    for part in (imported.head, imported.tail):
        on_host.update({} if part is None else part.ops)
    on_host.update(effect.primitive.name for effect in imported.effects)
    if on_host:
        raise PackageError(f"{report.program} has ops of the host, which no package holds: {LeftToXla(on_host)}")
    if isinstance(executable, MixedExecutable):
        native = executable.native
    else:
        lowered = lower(executable.program, ())
        native = (
            lowered if isinstance(lowered, LeftToXla) else NativeProgram(lowered, executable.prepared, executable.run)
        )
    if isinstance(native, NativeProgram):
        return native
    raise PackageError(
        f"{report.program} leaves ops to XLA, which no package holds: {native}",
        hint="without a search (--no-search) every region that can be is a kernel"
        if report.original_returned and report.search
        else "",
    )


def _names_of_results(tree: Any) -> tuple[str, ...]:
    """Return a name for each result: its path in the structure, or `output` and its number."""
    paths, _ = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(tree, list(range(tree.num_leaves))))
    names = [tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return tuple([f"output{name or 0}" if name.isdigit() or not name else name for name in names])


def _record(report: Report, code: ValidatedCode) -> dict[str, Any]:
    """Return how the program was checked, in short."""
    return {
        "verdict": report.verdict,
        "speedup": report.speedup.to_json(),
        "baseline": report.baseline,
        "exactness": report.exactness,
        "implementation": {name: x for name, x in report.implementation.items() if name != "code"},
        "rules": {used.rule: used.certificate for used in report.rewrites},
        "code": {**code.figures(), "by": version()},
        "max_rel_error": None if report.numerics is None else report.numerics.max_rel_error,
        "made": report.made,
    }
