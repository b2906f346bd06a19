"""Records the comparisons of symbolic sizes that a function makes while JAX traces it.

Where JAX cannot know, it answers `n == 300` for a dimension variable n with False, and takes every size for true.  The
trace is then the function for all sizes but some.  Such answers are recorded here if the code that asked is not JAX's
own, whose meaning does not depend on them.  Code that asks for the text or the hash of a size (a dictionary of sizes)
can branch on it in ways that are not seen; that is recorded without the size.  So are questions about the kind of a
size (`isinstance(n, int)`, `is_constant_dim(n)`, an attribute that numbers have), whose answer is another for a number.

JAX's classes of dimensions and of types of arrays are extended once; nothing is recorded outside `recorded`.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jax import export
from jax.core import ShapedArray

from superopt.frontends.jax.sizes import size
from superopt.ir.types import Size

_KNOWN: ContextVar[list[SizeComparison] | None] = ContextVar("comparisons of the trace that runs", default=None)
_OWN = frozenset({"jax", "jaxlib", "ml_dtypes", "opt_einsum"})
"""Packages whose comparisons of dimensions keep to JAX's contract for symbolic shapes."""
_BETWEEN = frozenset({"numpy"})
"""Packages that compare on behalf of their callers."""
_ASKED = frozenset({"array_equal", "array_equiv"})
"""Functions of JAX whose answer is a comparison of shapes."""
_KINDS = frozenset(
    ["is_symbolic_dim", "is_constant_dim", "is_dim", "is_constant_shape", "concrete_dim_or_error", "<genexpr>",
     "is_special_dim_size", "is_empty_shape", "definitely_equal", "definitely_equal_shape",
     "definitely_equal_one_of_dim", "same_shape_sharding"]
)  # fmt: skip
"""Functions of JAX whose answer is the kind of a size, or depends on it."""
_TRUSTED = ("superopt.frontends.", "superopt.ir.", "superopt.foreign.", "superopt.errors")
"""Importers and their dependencies; they ask whether a size is symbolic only to compute the same for either kind."""


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """A question about sizes that the trace answered for all sizes at once.

    Attributes:
        where: file and line that asked.
        zero: a size; the recorded answer is wrong where it is 0.  None: it is not known where it is wrong.
        words: the question in words, where no size expresses it.
    """

    where: str
    zero: Size | None
    words: str = ""

    def __str__(self) -> str:
        return f"{self.words or f'{self.zero} == 0'} ({self.where})"


@contextmanager
def recorded() -> Generator[list[SizeComparison]]:
    """Record the comparisons that functions make inside the block."""
    _extend()
    made: list[SizeComparison] = []
    token = _KNOWN.set(made)
    try:
        yield made
    finally:
        _KNOWN.reset(token)


def _asker() -> FrameType | None:
    """The frame of the code that compares; None where it is JAX's own.

    Where types of JAX are compared (`jax.typeof(x) == ...`), or JAX is asked whether arrays are equal, it is the frame
    of the code that does so.
    """
    frame: FrameType | None = sys._getframe(2)
    own = list[str]()  # functions of JAX between the comparison and its caller
    while frame is not None:
        root = _package(frame)
        if root in _OWN:
            own.append(frame.f_code.co_name)
        elif root not in (sys.stdlib_module_names | _BETWEEN) and frame.f_globals.get("__name__") != __name__:
            return frame if not own or own[-1] in ("__eq__", "__ne__") or not _ASKED.isdisjoint(own) else None
        frame = frame.f_back
    return None


def is_own_name(module: str) -> bool:
    """Whether a module belongs to JAX, the library or an importer, which treat sizes of both kinds alike."""
    root = module.partition(".")[0]
    if root.startswith("namedtuple_"):  # the module of a constructor that `collections` makes
        return True
    return root in _OWN or root in _BETWEEN or root in sys.stdlib_module_names - {"__main__"} or _trusted(module)


def _trusted(module: str) -> bool:
    return module.startswith(_TRUSTED)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _asker_of_kind() -> FrameType | None:
    """The frame of the code that asks for the kind of a size; None where that is JAX or an importer."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        root = _package(frame)
        if root in _OWN:
            if frame.f_code.co_name not in _KINDS:
                return None
        elif root not in (sys.stdlib_module_names | _BETWEEN):
            return None if _trusted(_module(frame)) else frame
        frame = frame.f_back
    return None


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _record(zero: Any, words: Callable[[], str] = str) -> None:
    known = _KNOWN.get()
    if known is None:
        return
    frame = _asker()
    if frame is not None:
        _note(known, frame, zero, words)


def _record_kind(words: Callable[[], str]) -> None:
    known = _KNOWN.get()
    if known is None:
        return
    frame = _asker_of_kind()
    if frame is not None:
        _note(known, frame, None, words)


def _note(known: list[SizeComparison], frame: FrameType, zero: Any, words: Callable[[], str]) -> None:
    token = _KNOWN.set(None)  # formatting the question must not be recorded as one
    try:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        made = SizeComparison(where, None, words()) if zero is None else SizeComparison(where, size(zero))
    finally:
        _KNOWN.reset(token)
    if made not in known:
        known.append(made)


@functools.cache
def _extend() -> None:
    kind: Any = type(export.symbolic_shape("n")[0])
    equal, digest, text = kind.__eq__, kind.__hash__, kind.__str__

    def same(self: Any, other: Any) -> bool:
        equals = equal(self, other)
        if not equals and _KNOWN.get() is not None:
            gap = _gap(self, other)
            if gap is None or isinstance(gap, kind):
                _record(gap, lambda: f"{text(self)} == {other}")
        return equals

    def different(self: Any, other: Any) -> bool:
        return not same(self, other)

    def true(self: Any) -> bool:
        _record(self)
        return True

    def hashed(self: Any) -> int:
        _record(None, lambda: f"the hash of {text(self)}")
        return digest(self)

    def shown(self: Any) -> str:
        _record(None, lambda: f"the text of {text(self)}")
        return text(self)

    def ordered(name: str) -> Callable[[Any, Any], bool]:
        plain = getattr(kind, name)

        def compared(self: Any, other: Any) -> bool:
            try:
                return plain(self, other)
            except Exception:  # no answer for all sizes; the function's handling of the error is not seen
                _record(None, lambda: f"the order of {text(self)} and {other}")
                raise

        return compared

    kind.__eq__, kind.__ne__, kind.__bool__ = same, different, true
    kind.__hash__, kind.__str__, kind.__repr__ = hashed, shown, shown

    def number(name: str) -> Callable[[Any], Any]:
        plain = getattr(kind, name)

        def made(self: Any) -> Any:
            try:
                return plain(self)
            except Exception:  # see above
                _record(None, lambda: f"{text(self)} as a number")
                raise

        return made

    def class_of(self: Any) -> type:
        _record_kind(lambda: f"the kind of {text(self)}")
        return kind

    def missing(self: Any, name: str) -> Any:
        _record_kind(lambda: f"{name} of {text(self)}")
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def as_value(self: Any) -> Any:
        """Return JAX's conversion of a size; record that code asks of what kind the size is."""
        _record_kind(lambda: f"the kind of {text(self)}")
        return functools.partial(value, self)

    value = kind.dimension_as_value
    # assigned, `__class__` would be that of the class itself; the assignments behind it make the class known as changed
    (members,) = (x for x in gc.get_referents(kind.__dict__) if isinstance(x, dict))
    members["__class__"] = property(class_of)
    kind.__getattr__, kind.dimension_as_value = missing, property(as_value)
    _tell(export.is_symbolic_dim)

    def same_type(self: Any, other: Any) -> Any:
        """Types are made once for each content: two with different dimensions are never one, whatever the sizes."""
        equals = self is other or equal_types(self, other)
        if equals is not True and _KNOWN.get() is not None and isinstance(other, ShapedArray):
            gap = _gap_of_types(self, other)
            if isinstance(gap, kind):
                _record(gap)
        return equals

    equal_types = ShapedArray.__eq__
    types: Any = ShapedArray
    types.__eq__ = same_type
    for name in ("__lt__", "__le__", "__gt__", "__ge__"):
        setattr(kind, name, ordered(name))
    for name in ("__int__", "__index__", "__float__"):
        if hasattr(kind, name):
            setattr(kind, name, number(name))


def _tell(asked: Any) -> None:
    """Make `jax.export.is_symbolic_dim` query the size itself, as `isinstance` with its own class does not."""

    def is_symbolic_dim(p: Any) -> bool:
        return isinstance(p, _DimExpr) and p.dimension_as_value is not None  # pyright: ignore  # noqa: F821

    asked.__code__ = is_symbolic_dim.__code__


def _gap_of_types(a: ShapedArray, b: ShapedArray) -> Any:
    """A difference of sizes that is 0 if two types are equal; None where they differ whatever the sizes."""
    if a.dtype != b.dtype or len(a.shape) != len(b.shape):
        return None
    token = _KNOWN.set(None)
    try:
        gaps = [_gap(m, n) for m, n in zip(a.shape, b.shape, strict=True) if m is not n]
    finally:
        _KNOWN.reset(token)
    if any(gap is None or (isinstance(gap, int) and gap) for gap in gaps):
        return None
    return next((gap for gap in gaps if not isinstance(gap, int)), None)


def _gap(a: Any, b: Any) -> Any:
    """The difference of two sizes; None where one of them is no size."""
    if isinstance(b, float) and b.is_integer():
        b = int(b)
    try:
        return a - b
    except Exception:  # another scope, or no number at all
        return None
