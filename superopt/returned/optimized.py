"""An optimised function: called like the original, with its measured speed-up and its report.

`save` writes a zip file with the program as text, the prepared tensors, the report, the original program and the plan
from it to the returned one, and the native program where there is one (`superopt.returned.loaded` reads them).
`validate` checks it from these files alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

from superopt.backends.mixed import MixedExecutable
from superopt.backends.options import jit_with
from superopt.backends.xla import XlaExecutable, build
from superopt.certify.taking import TakenKernels, take_kernels
from superopt.errors import InputError
from superopt.files.trees import read_tree, tree_data
from superopt.frontends.jax.boundary import outside, user_function
from superopt.frontends.jax.call import (
    calls_of_import,
    first_of,
)
from superopt.frontends.jax.jit_settings import is_jitted
from superopt.ir.program import Program
from superopt.machine.shared import Unique
from superopt.machine.speedup import Speedup
from superopt.measure.compare import serialisable
from superopt.native.lowering import LeftToXla
from superopt.report.data import Report
from superopt.returned import later, saved
from superopt.returned.facts import digest_of
from superopt.returned.packaged import native_of, package
from superopt.returned.profiled import profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superopt.certify.plan import Plan
    from superopt.certify.validate import Validation
    from superopt.frontends.jax.jaxpr import Imported
    from superopt.kernels.choose.specs import KernelSpec
    from superopt.native.running import NativeProgram
    from superopt.native.timeline import Timeline
    from superopt.store import Store


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Optimized(Unique, Generic[P, R]):
    """The result of `optimize`: a callable with `.speedup`, `.report` and `.save`.

    Attributes:
        direct: the call as one jitted call (see `superopt.frontends.jax.call`), where there is one.
        inside: the same for use within a function that is being traced.
    """

    def __init__(
        self,
        imported: Imported,
        program: Program,
        executable: XlaExecutable,
        report: Report,
        plan: Plan | None = None,
        kernels: tuple[KernelSpec, ...] = (),
    ) -> None:
        self.imported = imported if not imported.placed else replace(imported, placed={})
        self.program = program
        self.executable = executable
        self.report = report
        self.plan = plan
        self.kernels = kernels
        original = _jit_original(imported, executable.options) if report.original_returned else None
        direct, general = (None, original) if original else calls_of_import(imported, executable)
        general = original or outside(imported.fn, general)
        self.direct, self.inside = (None, None) if direct is None else (direct.call, direct.inside)
        self._call = general if self.direct is None else first_of(self.direct, general)
        self.__wrapped__ = user_function(imported.fn)
        self.__name__ = getattr(imported.fn, "__name__", "optimized")

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call with the pytrees of the original function."""
        head, tail = self.imported.head, self.imported.tail
        results: Any = self._call(*args, **kwargs) if head is None else self._call(*head(args), **kwargs)
        return results if tail is None else tail([*results, *args])  # pyright: ignore[reportReturnType]

    def __repr__(self) -> str:
        return f"<superopt program {self.__name__}: {self.report.verdict}, {self.speedup}>"

    def _repr_html_(self) -> str:
        """The report as HTML, for a notebook."""
        return self.report._repr_html_()

    def without_examples(self) -> Optimized[P, R]:
        """The same without the example arguments that are not frozen, which it would keep in memory."""
        imported = self.imported.without_examples()
        return Optimized(imported, self.program, self.executable, self.report, self.plan, self.kernels)

    @property
    def speedup(self) -> Speedup:
        """Ratio original over optimised with its 95 % interval; its `basis` says whether it was measured."""
        return self.report.speedup

    def validate(self, original: Any = None, *, store: Store | None = None) -> Validation:
        """Validate, without the search, that the program equals the original (see `superopt.returned.revalidate`).

        Args:
            original: the function or model to compare with; None for the one that was optimised.
            store: the store to look up certificates in.
        """
        return later.validation().validate_optimized(self, original, store)

    def save(self, path: str | Path) -> Path:
        """Write program, prepared tensors, report, original and plan to a `.superopt` file.

        The native program goes with them where there is one.  Its kernels without a record are validated first, as the
        first call of a loaded program would do.

        Raises:
            InputError: the program holds operations that exist only in this process (callbacks into Python, effects),
                or the folder of the file does not exist.
            OSError: the file cannot be written.
        """
        if not serialisable(self.program):
            kept = ", ".join(sorted(self.imported.opaque_ops))
            raise InputError(
                f"{self.report.program} holds operations of this process alone and cannot be saved; opaque: {kept}",
                hint="callbacks into Python and effects cannot be saved; the report can be saved as it is",
            )
        if self.imported.effects:
            raise InputError(
                f"{self.report.program} has effects (jax.debug), which exist only in this process, and cannot be saved",
                hint="optimise the function without them to save it",
            )
        arguments, results = (read_tree(tree_data(t)) for t in (self.imported.in_tree, self.imported.out_tree))
        results.tree(self.imported.in_tree)  # raises for types that no file can hold
        graph = self.imported.graph
        kinds = {i: graph.inputs[i].dtype for i in self.imported.frozen}
        content = saved.Saved(
            hot=self.program.hot,
            prepared=tuple(map(np.asarray, self._plain_prepared())),
            names=tuple(self.imported.names),
            parameters=tuple(self.imported.parameters),
            live=tuple(self.imported.live),
            widened=frozenset(self.imported.widened),
            frozen=tuple((i, kind, digest_of(self.imported.examples[i], kind)) for i, kind in kinds.items()),
            constants={name: digest_of(value) for name, value in graph.constants.items()},
            report=self.report.to_json(),
            options={},
            foreign={},
            kernels=self.kernels,
            in_tree=arguments,
            out_tree=results,
            head=self.imported.head,
            tail=self.imported.tail,
            weak=tuple(
                (_positions(arguments), _positions(weak))
                for arguments, weak in (self.imported.weakness or {}).items()
                if weak is not None
            ),
            own_derivatives=self.imported.own_derivatives,
        )
        source = None if self.plan is None else saved.ValidationSource(graph, self.program, self.plan)
        try:
            return saved.write(path, content, source, graph, self._validated_native())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"{path} cannot be written: {error.strerror}", hint="make the folder first") from error

    def build(self, folder: str | Path, name: str = "") -> Path:
        """Write a C library, its weights and a loader into a folder (see `superopt.native.package.write`).

        Kernels without a record are validated first, as by `save`; `superopt verify FOLDER` reads the certificates.

        Args:
            folder: is made where it does not exist.
            name: of the library and its functions; the folder's where it is empty.

        Raises:
            PackageError: an op is left to XLA or to the host, a kernel cannot be used, or the compiler fails.
            UsageError: the folder cannot be made, or the name cannot be that of a library.
            MissingExtraError: there is no C compiler.
        """
        native = native_of(self.imported, self.executable, self.report)
        return package(self.imported, native, self._judged_kernels(), self.report, Path(folder), name)

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Timeline:
        """Time the steps of the native program in calls with these arguments: a table, and a trace for Perfetto.

        Raises:
            InputError: the function has no native program.
            ArgumentError: the arguments are not those of the function.
        """
        return profile(self.imported, self.executable, self.report, args, kwargs)

    def _validated_native(self) -> tuple[NativeProgram, Mapping[str, Any]] | None:
        """The native program with the verdicts on its code; None where there is none, or a kernel is in doubt."""
        made = self.executable
        if not isinstance(made, MixedExecutable) or made.options or made.refused or isinstance(made.native, LeftToXla):
            return None
        taken = self._judged_kernels()
        return (made.native, taken.code.figures()) if taken.kernels == self.kernels else None

    def _judged_kernels(self) -> TakenKernels:
        """The kernels, judged as at the first call of a loaded program."""
        return take_kernels(self.program.hot, self.kernels, len(self.imported.live), called=True)

    def _plain_prepared(self) -> tuple[Any, ...]:
        """The prepared tensors of the program without kernels, which every machine can read."""
        if not self.kernels:
            return self.executable.prepared

        return build(self.program, self.imported.frozen_values).prepared


def _positions(flags: Sequence[bool]) -> frozenset[int]:
    return frozenset(i for i, flag in enumerate(flags) if flag)


def _jit_original(imported: Imported, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function itself under `jax.jit`, as the user would write it: arrays that it closes over stay constant.

    None for a model: its weights are no part of its function, and it may have types that the process has not enabled.
    """
    if imported.weakness is None:
        return None
    fn, settings = user_function(imported.fn), imported.settings
    if not imported.functions:
        return fn if is_jitted(fn) and not options else jit_with(fn, options, **settings.arguments)
    return outside(imported.fn, jit_with(imported.fn, options, **settings.given_away))
