"""Comparisons of symbolic sizes that a function makes while JAX traces it.

JAX answers `n == 300` for a dimension variable n with False, and takes every size for true, where it cannot know: the
trace is then the function for all sizes but some.  Here these answers are put on record when the code that asked is
not JAX's own, whose meaning does not depend on them.  What asks for the text or the hash of a size (a dictionary of
sizes) can branch on it in ways that are not seen; that is on record without the size.

JAX's class of dimensions is extended once; nothing is recorded outside `recorded`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jax import export

from superopt.frontends.jax.sizes import size
from superopt.ir.types import Size

_KNOWN: ContextVar[list[SizeComparison] | None] = ContextVar("comparisons of the trace that runs", default=None)
_OWN = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum"})
"""Packages whose comparisons of dimensions keep to JAX's contract for symbolic shapes."""


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """A question about sizes that the trace answered for all sizes at once.

    Attributes:
        where: file and line that asked.
        zero: a size; where it is 0 the answer is another one.  None: not known where it is.
        words: what was asked, where no size says it.
    """

    where: str
    zero: Size | None
    words: str = ""

    def __str__(self) -> str:
        return f"{self.words or f'{self.zero} == 0'} ({self.where})"


@contextmanager
def recorded() -> Generator[list[SizeComparison]]:
    """The comparisons that functions make inside."""
    _extend()
    made: list[SizeComparison] = []
    token = _KNOWN.set(made)
    try:
        yield made
    finally:
        _KNOWN.reset(token)


def _asker() -> FrameType | None:
    """The frame of the code that compares, None where it is JAX's own."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        root = name.partition(".")[0]
        if root in _OWN:
            return None
        if root not in sys.stdlib_module_names and name != __name__:
            return frame
        frame = frame.f_back
    return None


def _record(zero: Any, words: Callable[[], str] = str) -> None:
    known = _KNOWN.get()
    if known is None:
        return
    frame = _asker()
    if frame is None:
        return
    token = _KNOWN.set(None)  # the words ask for texts of sizes
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
        found = equal(self, other)
        if not found and _KNOWN.get() is not None:
            gap = _gap(self, other)
            if gap is None or isinstance(gap, kind):
                _record(gap, lambda: f"{text(self)} == {other}")
        return found

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
            except Exception:  # no answer for all sizes: what the function makes of that is not seen
                _record(None, lambda: f"the order of {text(self)} and {other}")
                raise

        return compared

    kind.__eq__, kind.__ne__, kind.__bool__ = same, different, true
    kind.__hash__, kind.__str__, kind.__repr__ = hashed, shown, shown
    for name in ("__lt__", "__le__", "__gt__", "__ge__"):
        setattr(kind, name, ordered(name))


def _gap(a: Any, b: Any) -> Any:
    """The difference of two sizes; None where one of them is none."""
    if isinstance(b, float) and b.is_integer():
        b = int(b)
    try:
        return a - b
    except Exception:  # another scope, or no number at all
        return None
