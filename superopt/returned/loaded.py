"""A saved program: called like the function that it was made from, without that function.

A file that this store wrote holds the native program, validated (`superopt.backends.stored`).  Then nothing is made:
objects are linked, weights mapped, the plan is checked, and the first call runs without XLA.  Later calls are one
jitted call.  Programs of any other file are read and built here, and their kernels validated
(`superopt.returned.rebuilt`), which is also done where `vmap` or derivatives need the program itself.

Derivatives go through the optimised program; a function that defines or stops derivatives itself (`jax.custom_vjp`,
`stop_gradient`) has none after `load`, and one with its own rule for `vmap` has none of these.

The file of a loaded program stays as it is as long as that is used, since its weights are mapped: `save` replaces a
file by another, and does not write over it.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from superopt.backends import stored
from superopt.backends.stored import StoredExecutable
from superopt.errors import ArgumentError, InputError
from superopt.files.reading import shown, typed
from superopt.files.trees import STATIC, bound, held_back, misfit, places_of
from superopt.frontends.jax.arguments import as_taken, as_weak, check_leaf, is_weak, widened_in_trace
from superopt.frontends.jax.boundary import ADAPTED, FUNCTIONS, enter, leave
from superopt.frontends.jax.call import (
    REFUSED,
    Convention,
    OtherTypesError,
    Usual,
    direct_call,
    first_of,
    usual_call,
    with_derivative,
)
from superopt.frontends.jax.jit_settings import JitSettings, wrap_static
from superopt.frontends.jax.placed import is_placed
from superopt.ir.types import TensorType
from superopt.machine.fallback import in_one_line
from superopt.machine.shared import Unique, once
from superopt.machine.speedup import Speedup, read_speedup
from superopt.returned import later
from superopt.returned.facts import HINT, digest_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superopt.backends.xla import XlaExecutable
    from superopt.certify.kernels import ValidatedCode
    from superopt.certify.validate import Validation
    from superopt.ir.graph import Graph
    from superopt.kernels.choose.specs import KernelSpec
    from superopt.report.data import Report
    from superopt.store import Store


def _as_input(name: str, leaf: Any, kind: tuple[Any, str], widened: bool) -> Any:
    """An argument converted to the shape and dtype of an input.

    Raises:
        ArgumentError: it has another type.
    """
    leaf = as_taken(leaf, kind[1], widened)
    try:
        got: Any = jax.api_util.shaped_abstractify(leaf)
    except TypeError as error:
        raise ArgumentError(f"argument {name} is a {type(leaf).__name__}, not an array") from error
    if (got.shape, str(got.dtype)) != kind:
        given, wanted = TensorType(got.shape, str(got.dtype)), TensorType(*kind)
        raise ArgumentError(f"argument {name} is {given}, the program was made for {wanted}")
    return leaf


def _positions(flags: Sequence[bool]) -> frozenset[int]:
    return frozenset(i for i, flag in enumerate(flags) if flag)


def _weak_of(leaves: Sequence[Any]) -> frozenset[int]:
    """Positions of flat arguments that are weakly typed."""
    return _positions([is_weak(x) for x in leaves])


_WITHOUT_VALUES = (Tracer, jax.ShapeDtypeStruct)
_CALLED = "call with the same pytrees as the program was made for"


class Loaded(Unique):
    """A saved program: callable like the original, with the report of its optimisation."""

    _direct: Callable[..., Any] | None
    _usual: Callable[..., Any] | None  # the direct call, where arguments by position need nothing else

    def __init__(self, path: str | Path) -> None:
        files = ExitStack()  # the file stays open, as derivatives read parts of it that kernels do not need
        weakref.finalize(self, files.close)
        archive, facts = opened(path, files)
        self.live, self.widened, self._facts = facts.live, facts.widened, facts
        self._parameters = facts.parameters
        self._every, self.names = facts.names, tuple(facts.names[i] for i in facts.live)
        self._frozen = [(i, facts.names[i], kind, digest) for i, kind, digest in facts.frozen]
        self._lock, self._taken = threading.Lock(), None
        self._head, self._tail, self._own_derivatives = facts.head, facts.tail, facts.own_derivatives
        self.in_tree, self.out_tree = facts.in_tree, facts.out_tree
        places, keywords = places_of(facts.in_tree.data, STATIC)
        self._static = JitSettings(tuple(places), (*keywords, *(facts.parameters[i] for i in places)))
        self._adapted = any(name in ADAPTED for name in (*facts.in_tree.types, *facts.out_tree.types))
        self._weak = {frozenset[int](): frozenset[int](), **dict(facts.weak)}
        self._known: list[Any] = []  # frozen arguments that were found to be those of the file
        self._saved = saved = once(lambda: later.rebuilding().read(path, archive, facts))
        self._xla = xla = once(lambda: later.rebuilding().plain(saved()))
        self._original = once(lambda: later.rebuilding().of_all_arguments(saved()))

        def batches(*arrays: Any) -> tuple[Any, ...]:
            return xla().run(*arrays[: len(facts.live)], *xla().prepared)

        with typed(f"{shown(path, 200)} is not a saved program", HINT):
            native = stored.read(archive, batches)
        with typed(f"{path} cannot be built here: it is damaged, or made for another machine"):
            if native is None:
                self._build(called=False)
            else:
                self._types = [(slot.type.shape, slot.type.dtype) for slot in native.arguments]
                self._use(native)
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
            return later.rebuilding().read_report(self._facts.report)

    def validate(self, original: Any = None, *, store: Store | None = None, limited: bool = True) -> Validation:
        """Validate from the file alone that the program equals the original (see `superopt.returned.revalidate`).

        Args:
            original: the function or model to compare with as well; None for the one in the file.
            store: the store to look up certificates in.
            limited: refuse a program whose values have many more elements than its file has bytes.

        Raises:
            FileLimitError: the file exceeds a limit.
        """
        return later.validation().validate_file(self.path, original, store, limited=limited)

    @property
    def graph(self) -> Graph:
        """The program, over the live arguments and the prepared tensors."""
        return self._saved().hot

    @property
    def prepared(self) -> tuple[Any, ...]:
        """The prepared tensors, each of which may be one that is read `Later`."""
        return self._saved().prepared

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """The kernels in use."""
        return self._saved().kernels if self._taken is None else self._taken.kernels

    @property
    def code(self) -> ValidatedCode:
        """Verdicts on the machine code of its kernels on this machine, except for those that wait for a call."""
        if isinstance(self._executable, StoredExecutable):
            return later.rebuilding().verdicts(self._executable.verdicts)
        assert self._taken is not None
        return self._taken.code

    @property
    def direct(self) -> Callable[..., Any] | None:
        """The call as one jitted call (see `superopt.frontends.jax.call`), where there is one.

        Where arguments are frozen, it is there from the first call on.
        """
        if not (self._settled or self._waiting):
            self._settle()
        return self._direct

    @property
    def _waiting(self) -> bool:
        """Whether kernels wait for the first call."""
        return self._taken is not None and self._taken.waiting

    def _take_waiting(self) -> None:
        """Compare the kernels that waited for a call, and build the program with those that agree."""
        with self._lock:
            if self._waiting:
                self._build(called=True)

    def _build(self, *, called: bool) -> None:
        """Build the program with the kernels that pass validation; those for which that is too long wait for a call."""
        self._types = [(node.shape, node.dtype) for node in self.graph.inputs[: len(self.live)]]
        self._taken, executable = later.rebuilding().with_kernels(self._saved(), called=called)
        self._use(executable)

    def _use(self, executable: XlaExecutable | StoredExecutable) -> None:
        """Call this executable, in the general way until `_settle`."""
        self._executable = executable
        kernels = self._taken is None or self._taken.kernels
        self._slow = self._underived if self._own_derivatives else self._plain if kernels else None
        self._run = self._hot if self._slow is None else with_derivative(self._hot, self._slow)
        self._direct, self._call, self._usual, self._settled = None, self._general, None, False
        if not (self._waiting or isinstance(executable, StoredExecutable)):
            self._settle()

    def _settle(self) -> None:
        """Call the executable as one jitted call, where there is one."""
        convention = Convention(
            self._flatten,
            self._unflatten,
            self._slow,
            adapted=self._adapted,
            functions=FUNCTIONS in self.in_tree.types,
            returns_static=FUNCTIONS in self.out_tree.types,
            settings=self._static,
        )
        direct = direct_call(convention, self._executable).call
        if not self._frozen:
            self._direct = direct
            self._call = first_of(direct, self._general)
        else:
            self._by_name = direct
            self._call = self._with_frozen(None)
        self._settled = True

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

        self._direct = entered if static.static or adapted else usual
        self._call = self._with_frozen(self._direct)
        self._usual = self._direct if self._head is None and self._tail is None else None

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
        left = {} if self._taken is None else self._taken.left
        return {**self._facts.foreign, **left, **self._executable.refused}

    @property
    def speedup(self) -> Speedup:
        """The speed-up measured when the program was made."""
        return read_speedup(self._facts.report["speedup"])

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
            live = self._inputs(leaves)
            if self._waiting and not any(isinstance(x, _WITHOUT_VALUES) for x in live):
                self._take_waiting()
            if is_placed(live):  # XLA knows how its own operations are sharded
                found = self._plain(live)
            else:
                traced = any(isinstance(x, Tracer) for x in live)  # derivatives arrive as traced arguments
                found = self._run(live) if traced else self._hot(live)
                if not (self._settled or self._waiting or traced):
                    self._settle()
            if self._frozen and self._settled and self._direct is None and not (self.widened or kwargs):
                self._learn(tree)
        results = self._unflatten(list(found), (tree, weak))
        return leave(results) if self._adapted else results

    def _inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments that are not frozen, converted to the types of the program's inputs.

        Raises:
            ArgumentError: one has another type.
        """
        inputs = zip(self.names, self.live, self._types, strict=True)
        return [_as_input(name, leaves[i], kind, i in self.widened) for name, i, kind in inputs]

    def _with_traced(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Results of the original program, for frozen arguments that are traced.

        Raises:
            ArgumentError: one has another type, or no value.
        """
        graph, run = self._original()
        for i, name, *_ in self._frozen:
            if isinstance(leaves[i], jax.ShapeDtypeStruct):
                raise ArgumentError(
                    f"frozen argument {name} is left out, and others are traced",
                    hint="give all frozen arguments, or none of them inside of jit, vmap and grad",
                )
        inputs = enumerate(zip(self._every, leaves, graph.inputs, strict=False))
        values = [
            _as_input(name, leaf, (node.shape, node.dtype), i in self.widened) for i, (name, leaf, node) in inputs
        ]
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
