"""An optimised function: called like the original, with its measured speed-up and its report.

`save` writes a zip file with the program as text, the prepared tensors, the report, the original program and the plan
from it to the returned one.  `load` makes the program callable again without the original function.  Derivatives then
go through the optimised program itself; a function that defines or stops derivatives itself (`jax.custom_vjp`,
`stop_gradient`) has none after `load`, and one with its own rule for `vmap` has none of these.  `validate` checks it
from these files alone.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from superopt.backends import mixed
from superopt.backends.options import jit_with
from superopt.backends.xla import XlaExecutable, build, to_jax
from superopt.certify.kernels import ValidatedCode
from superopt.certify.taking import left_out, take_kernels
from superopt.errors import ArgumentError, InputError
from superopt.files.reading import typed
from superopt.files.trees import STATIC, bound, held_back, misfit, places_of, read_tree, tree_data
from superopt.frontends.jax.arguments import as_taken, as_weak, check_leaf, is_weak, widened_in_trace
from superopt.frontends.jax.boundary import ADAPTED, FUNCTIONS, enter, leave, outside, user_function
from superopt.frontends.jax.call import (
    REFUSED,
    Convention,
    OtherTypesError,
    Usual,
    calls_of_import,
    direct_call,
    usual_call,
    with_derivative,
)
from superopt.frontends.jax.jit_settings import JitSettings, is_jitted, wrap_static
from superopt.frontends.jax.placed import is_placed
from superopt.ir.program import Program, original_program
from superopt.ir.types import TensorType
from superopt.machine.fallback import in_one_line
from superopt.machine.shared import Unique, once
from superopt.machine.speedup import Speedup, read_speedup
from superopt.measure.compare import serialisable
from superopt.report.data import Report, read_report
from superopt.returned import saved
from superopt.returned.packaged import package
from superopt.returned.saved import digest_of, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superopt.certify.plan import Plan
    from superopt.certify.validate import Validation
    from superopt.frontends.jax.jaxpr import Imported
    from superopt.ir.graph import Graph, Node
    from superopt.kernels.choose.specs import KernelSpec
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
        self._call = general if self.direct is None else _first(self.direct, general)
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
        return _validation().validate_optimized(self, original, store)

    def save(self, path: str | Path) -> Path:
        """Write program, prepared tensors, report, original and plan to a `.superopt` file.

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
            frozen=tuple((i, kind, saved.digest_of(self.imported.examples[i], kind)) for i, kind in kinds.items()),
            constants={name: saved.digest_of(value) for name, value in graph.constants.items()},
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
            return saved.write(path, content, source, graph)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"{path} cannot be written: {error.strerror}", hint="make the folder first") from error

    def build(self, folder: str | Path, name: str = "") -> Path:
        """Write a C library, its weights and a loader into a folder (see `superopt.native.package.write`).

        Args:
            folder: is made where it does not exist.
            name: of the library and its functions; the folder's where it is empty.

        Raises:
            PackageError: an op is left to XLA or to the host, or the compiler fails.
            UsageError: the folder cannot be made, or the name cannot be that of a library.
            MissingExtraError: there is no C compiler.
        """
        return package(self.imported, self.executable, self.report, Path(folder), name)

    def _plain_prepared(self) -> tuple[Any, ...]:
        """The prepared tensors of the program without kernels, which every machine can read."""
        if not self.kernels:
            return self.executable.prepared

        return build(self.program, self.imported.frozen_values).prepared


def _validation():
    from superopt.returned import revalidate  # late: the prover takes a while to load

    return revalidate


def _positions(flags: Sequence[bool]) -> frozenset[int]:
    return frozenset(i for i, flag in enumerate(flags) if flag)


def _weak_of(leaves: Sequence[Any]) -> frozenset[int]:
    """Positions of flat arguments that are weakly typed."""
    return _positions([is_weak(x) for x in leaves])


def _first(direct: Callable[..., Any], general: Callable[..., Any]) -> Callable[..., Any]:
    """A call that tries `direct` first and falls back to `general` for arguments that it refuses."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            results = direct(*args, **kwargs)
        except TypeError:  # for arguments that are no arrays; `general` names them
            return general(*args, **kwargs)
        return general(*args, **kwargs) if results is REFUSED else results

    return call


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


def _as_input(name: str, leaf: Any, node: Node, widened: bool) -> Any:
    """An argument converted to the type of an input.

    Raises:
        ArgumentError: it has another type.
    """
    leaf = as_taken(leaf, node.dtype, widened)
    try:
        got: Any = jax.api_util.shaped_abstractify(leaf)
    except TypeError as error:
        raise ArgumentError(f"argument {name} is a {type(leaf).__name__}, not an array") from error
    if got.shape != node.shape or str(got.dtype) != node.dtype:
        kind = TensorType(got.shape, str(got.dtype))
        raise ArgumentError(f"argument {name} is {kind}, the program was made for {node.type}")
    return leaf


def _of_all_arguments(read: Callable[[], Graph]) -> tuple[Graph, Callable[..., Sequence[Any]]]:
    """A program read now, and a callable that runs it on all of its arguments."""
    graph = read()
    run, constants = (
        to_jax(graph),
        [graph.constants[node["name"]] for node in graph.inputs if node["name"] in graph.constants],
    )
    return graph, lambda *arguments: run(*arguments, *constants)


_WITHOUT_VALUES = (Tracer, jax.ShapeDtypeStruct)
_CALLED = "call with the same pytrees as the program was made for"


class Loaded(Unique):
    """A saved program: callable like the original, with the report of its optimisation.

    Attributes:
        code: verdicts on the machine code of its kernels on this machine, except for those that wait for a call.
        direct: the call as one jitted call (see `superopt.frontends.jax.call`), where there is one; where arguments are
            frozen, from the first call on.
    """

    direct: Callable[..., Any] | None
    _usual: Callable[..., Any] | None  # the direct call, where arguments by position need nothing else

    def __init__(self, path: str | Path) -> None:
        files = ExitStack()  # the file stays open, as derivatives read parts of it that kernels do not need
        weakref.finalize(self, files.close)
        held = read(path, files)
        self.graph, self.live, self.widened, self.kernels = held.hot, held.live, held.widened, held.kernels
        self._parameters = held.parameters
        self._every, self.names = held.names, tuple(held.names[i] for i in held.live)
        self._frozen = [(i, held.names[i], kind, digest) for i, kind, digest in held.frozen]
        self._report_data = dict(held.report)
        self._foreign, self._options = held.foreign, held.options
        self._original = None if held.original is None else once(functools.partial(_of_all_arguments, held.original))
        self._chosen, self._waiting, self._lock = held.kernels, False, threading.Lock()
        self._left: Mapping[str, str] = {}
        self._head, self._tail, self._own_derivatives = held.head, held.tail, held.own_derivatives
        self.in_tree, self.out_tree = held.in_tree, held.out_tree
        places, keywords = places_of(held.in_tree.data, STATIC)
        self._static = JitSettings(tuple(places), (*keywords, *(held.parameters[i] for i in places)))
        self._adapted = any(name in ADAPTED for name in (*held.in_tree.types, *held.out_tree.types))
        self._weak = {frozenset[int](): frozenset[int](), **dict(held.weak)}
        self._known: list[Any] = []  # frozen arguments that were found to be those of the file
        self.prepared, self.code = held.prepared, ValidatedCode()
        with typed(f"{path} cannot be built here: it is damaged, or made for another machine"):
            if self.kernels:
                self._take_kernels(called=False)
            self._build()
        self.path = Path(path).absolute()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the file, which is then read again."""
        return load, (str(self.path),)

    def __repr__(self) -> str:
        return f"<superopt program of {self.path.name}: {self.speedup}>"

    def _repr_html_(self) -> str:
        """The report as HTML, for a notebook."""
        return self.report._repr_html_()

    @functools.cached_property
    def report(self) -> Report:
        """The report of the optimisation.

        Raises:
            InputError: the report is not one of this version.
        """
        with typed(f"the report in {self.path} cannot be read", "save the program again with this version"):
            return read_report(self._report_data)

    def validate(self, original: Any = None, *, store: Store | None = None, limited: bool = True) -> Validation:
        """Validate from the file alone that the program equals the original (see `superopt.returned.revalidate`).

        Args:
            original: the function or model to compare with as well; None for the one in the file.
            store: the store to look up certificates in.
            limited: refuse a program whose values have many more elements than its file has bytes.

        Raises:
            FileLimitError: the file exceeds a limit.
        """
        return _validation().validate_file(self.path, original, store, limited=limited)

    def _take_kernels(self, *, called: bool) -> None:
        """Use the kernels of the file that pass validation here; those whose validation is too long wait for a call."""
        taken = take_kernels(self.graph, self._chosen, len(self.live), called=called)
        self.kernels, self.code, self._left, self._waiting = taken.kernels, taken.code, taken.left, taken.waiting

    def _take_waiting(self) -> None:
        """Compare the kernels that waited for a call, and build the program with those that agree."""
        with self._lock:
            if not self._waiting:
                return
            self._take_kernels(called=True)
            self._build()

    def _build(self) -> None:
        """Build the program with the kernels in use, and the function that calls it."""
        program = original_program(self.graph)
        try:
            self._executable = mixed.build(program, self.prepared, options=self._options, kernels=self.kernels)
        except InputError:
            raise
        except Exception as error:  # whatever it is: XLA computes the program without kernels
            self._left, self.kernels = {**self._left, **left_out(self.kernels, error)}, ()
            self._executable = build(program, self.prepared, options=self._options)
        slow = self._underived if self._own_derivatives else self._plain if self.kernels else None
        self._run = self._hot if slow is None else with_derivative(self._hot, slow)
        self.direct, self._call, self._usual = None, self._general, None
        self._xla = once(lambda: build(original_program(self.graph), self.prepared))
        if self._waiting:
            return
        convention = Convention(
            self._flatten,
            self._unflatten,
            slow,
            adapted=self._adapted,
            functions=FUNCTIONS in self.in_tree.types,
            returns_static=FUNCTIONS in self.out_tree.types,
            settings=self._static,
        )
        direct = direct_call(convention, self._executable).call
        if not self._frozen:
            self.direct = direct
            self._call = _first(direct, self._general)
            return
        self._by_name = direct
        self._call = self._with_frozen(None)

    def _with_frozen(self, usual: Callable[..., Any] | None) -> Callable[..., Any]:
        """A call for programs with frozen arguments: by name without them, or with the same ones as before."""
        by_name, general, frozen = self._by_name, self._general, {self._every[i] for i, *_ in self._frozen}
        frozen = frozenset(name.partition(".")[0] for name in frozen)
        fits = True

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal fits
            alone = kwargs and not args and fits and frozen.isdisjoint(kwargs)
            direct = by_name if alone else usual
            try:
                results = REFUSED if direct is None else direct(*args, **kwargs)
            except TypeError:  # for arguments that are no arrays; `general` names them
                results = REFUSED
            if results is REFUSED:
                results = general(*args, **kwargs)
                fits = fits and not alone
            return results

        return call

    def _learn(self, tree: Any) -> None:
        """Call by position as one jitted call from now on, for arguments of this structure."""
        usual = usual_call(
            Usual(
                tree,
                self._parameters if all(self._parameters) else (),
                frozenset(i for i, *_ in self._frozen),
                self._types,
                lambda: (self._known, self._executable.prepared),
                functools.partial(self._finish, tree),
            ),
            self._executable,
        )
        if usual is None:
            return
        static, adapted = self._static, self._adapted

        def entered(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = wrap_static(args, kwargs, static)
            results = usual(*(enter(args) if adapted else args), **(enter(kwargs) if adapted else kwargs))
            return leave(results) if adapted else results

        self.direct = entered if static.static or adapted else usual
        self._call = self._with_frozen(self.direct)
        self._usual = self.direct if self._head is None and self._tail is None else None

    def _finish(self, tree: Any, live: list[Any]) -> Callable[[Sequence[Any]], Any]:
        leaves = [None] * len(self._every)
        for i, x in zip((*self.live, *(i for i, *_ in self._frozen)), (*live, *self._known), strict=True):
            leaves[i] = x
        weak = self._weak.get(_weak_of(leaves), frozenset[int]())
        return lambda outputs: self._unflatten(list(outputs), (tree, weak))

    @property
    def compiler_options(self) -> dict[str, bool | str]:
        """Compiler options in use: those of the saved program that the running compiler accepts."""
        return dict(self._executable.options)

    @property
    def refused(self) -> dict[str, str]:
        """Compiler options and kernels that are not used on this machine, with the reason."""
        return {**self._foreign, **self._left, **self._executable.refused}

    @property
    def speedup(self) -> Speedup:
        """The speed-up measured when the program was made."""
        return read_speedup(self._report_data["speedup"])

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call with the pytrees of the original function; frozen arguments keep their saved values.

        Frozen arguments may be left out where the arguments behind them are given by name, or given as
        `jax.ShapeDtypeStruct`; arrays are compared with the saved ones when they are first seen.  Traced ones have no
        values to compare: then the original program computes with those that are given.

        Raises:
            ArgumentError: another structure, shape or dtype, or other values of a frozen argument.
        """
        usual = self._usual
        if usual is not None and not kwargs:
            try:
                results = usual(*args)
            except TypeError:  # for arguments that are no arrays; `_general` names them
                results = REFUSED
            return self._general(*args) if results is REFUSED else results
        results = self._call(*(args if self._head is None else self._head(args)), **kwargs)
        return results if self._tail is None else self._tail([*results, *args])

    def _general(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call with every check, each of which raises a specific error."""
        taken, kwargs = self._in_place(*wrap_static(args, kwargs, self._static))
        if self._adapted:
            taken, kwargs = enter((taken, kwargs))
        leaves, tree = jax.tree_util.tree_flatten((taken, kwargs))
        if not self.in_tree.matches(tree):
            raise ArgumentError(misfit(self.in_tree.data, self._parameters, taken, kwargs), hint=self._hint)
        weak = self._weak.get(_weak_of(leaves), frozenset[int]())
        if any(isinstance(leaves[i], Tracer) for i, *_ in self._frozen):
            found = self._with_traced(leaves)
        else:
            self._check_frozen(leaves)
            live = self._taken(leaves)
            if self._waiting and not any(isinstance(x, _WITHOUT_VALUES) for x in live):
                self._take_waiting()
            if is_placed(live):  # XLA knows how its own operations are sharded
                found = self._plain(live)
            else:
                traced = any(isinstance(x, Tracer) for x in live)  # derivatives arrive as traced arguments
                found = self._run(live) if traced else self._hot(live)
            if self._frozen and self.direct is None and not (self._waiting or self.widened or kwargs):
                self._learn(tree)
        results = self._unflatten(list(found), (tree, weak))
        return leave(results) if self._adapted else results

    def _taken(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments that are not frozen, converted to the types of the program's inputs.

        Raises:
            ArgumentError: one has another type.
        """
        inputs = zip(self.names, self.live, self.graph.inputs, strict=False)
        return [_as_input(name, leaves[i], node, i in self.widened) for name, i, node in inputs]

    def _with_traced(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Results of the original program, for frozen arguments that are traced.

        Raises:
            ArgumentError: one has another type, or no value.
        """
        assert self._original is not None
        graph, run = self._original()
        for i, name, *_ in self._frozen:
            if isinstance(leaves[i], jax.ShapeDtypeStruct):
                raise ArgumentError(
                    f"frozen argument {name} is left out, and others are traced",
                    hint="give all frozen arguments, or none of them inside of jit, vmap and grad",
                )
        inputs = enumerate(zip(self._every, leaves, graph.inputs, strict=False))
        values = [_as_input(name, leaf, node, i in self.widened) for i, (name, leaf, node) in inputs]
        if self._own_derivatives:
            return with_derivative(lambda values: list(run(*values)), self._underived)(values)
        return run(*values)

    def _in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with those given by name moved to their positions in the file."""
        if not kwargs or self._head is not None:
            return args, kwargs
        return bound(self.in_tree.data, self._parameters, args, {**self._left_out(args, kwargs), **kwargs})

    def _left_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Frozen arguments that a call by name leaves out, by name and without values."""
        kept: dict[str, Any] = {}
        places = frozenset(i for i, *_ in self._frozen)
        for name, structure in held_back(self.in_tree.data, self._parameters, len(args), kwargs, places):
            leaves = [jax.ShapeDtypeStruct((), np.float32)] * structure.num_leaves
            try:
                if any(kind in ADAPTED for kind in structure.types):
                    raise InputError("it holds functions or typed keys")
                kept[name] = jax.tree_util.tree_unflatten(structure.tree(), leaves)
            except Exception as error:  # that of the class of a node, which may look at its leaves
                why = error.args[0] if isinstance(error, InputError) else in_one_line(error)
                raise ArgumentError(
                    f"frozen argument {name} cannot be left out: {why}",
                    hint="pass it, with jax.ShapeDtypeStruct in place of its arrays if they are not at hand",
                ) from error
        return kept

    @property
    def _hint(self) -> str:
        return (
            f"{_CALLED}; frozen arguments may be left out where others are given by name" if self._frozen else _CALLED
        )

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tuple[Any, frozenset[int]]]:
        """Traced arguments flat, their structure, and which results are weakly typed.

        Raises:
            OtherTypesError: the arguments are not of the types of the file.
        """
        leaves, tree = jax.tree_util.tree_flatten(self._in_place(args, kwargs))
        weak = self._weak.get(_weak_of(leaves), frozenset[int]())
        if not self.in_tree.matches(tree):
            raise OtherTypesError
        widened = [place for place, i in enumerate(self.live) if i in self.widened]
        live = widened_in_trace([leaves[i] for i in self.live], [kind for _, kind in self._types], widened)
        left_out = all(isinstance(leaves[i], jax.ShapeDtypeStruct) for i, *_ in self._frozen)
        if not left_out or [(x.shape, str(x.dtype)) for x in live] != self._types:
            raise OtherTypesError
        return live, (tree, weak)

    @property
    def _types(self) -> list[tuple[Any, str]]:
        return [(node.shape, node.dtype) for node in self.graph.inputs[: len(self.live)]]

    def _unflatten(self, outputs: list[Any], called: tuple[Any, frozenset[int]]) -> Any:
        """The results of a call of this structure, with these weakly typed."""
        tree, weak = called
        outputs = [as_weak(x) if i in weak else x for i, x in enumerate(outputs)]
        return jax.tree_util.tree_unflatten(self.out_tree.tree(tree), outputs)

    def _check_frozen(self, leaves: list[Any]) -> None:
        given = [leaves[i] for i, *_ in self._frozen]
        if len(given) == len(self._known) and all(map(operator.is_, given, self._known)):
            return
        for leaf, (_, name, kind, digest) in zip(given, self._frozen, strict=True):
            if not isinstance(leaf, _WITHOUT_VALUES):
                check_leaf(name, leaf)
            if not isinstance(leaf, _WITHOUT_VALUES) and digest_of(leaf, kind) != digest:
                raise ArgumentError(
                    f"argument {name} is frozen, and is not what the program was saved with",
                    hint="pass the arrays of then, or jax.ShapeDtypeStruct in their place; or optimise again",
                )
        self._known = given

    def _hot(self, live: list[Any]) -> list[Any]:
        return list(self._executable.hot(live, self._executable.prepared))

    def _plain(self, live: list[Any]) -> list[Any]:
        """Results of the same program without kernels, which have no derivatives."""
        executable = self._xla()
        return list(executable.hot(live, executable.prepared))

    def _underived(self, live: list[Any]) -> list[Any]:
        """Refuse derivatives: those of the program's operations are not those of the function.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"{self.path.name} has no derivatives: the function has its own ({', '.join(self._own_derivatives)}),"
            " which are not in the file",
            hint="differentiate the function itself, or the result of superopt.optimize",
        )


def load(path: str | Path) -> Loaded:
    """A program saved by `Optimized.save`.

    Raises:
        InputError: the file is not a saved program, or has another format.
    """
    return Loaded(path)
