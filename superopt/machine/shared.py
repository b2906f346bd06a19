"""Helpers for state that threads share: functions evaluated once, a paused collector, Python's parser behind a lock.

Up to CPython 3.11 `ast.parse` counts its depth in a place that all threads share, and fails with SystemError where
another thread parses at the same time.  Parsers of others cannot be locked out, so it is tried again.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
_PARSING = threading.RLock()
_DEEPEST = 100  # levels of an expression: readers take up to five calls for one, of the thousand that there are
_TRIES = 20  # another thread is in its parser for less than a millisecond


class Unique:
    """Base class of objects that `copy` and `copy.deepcopy` return unchanged, as they do with functions."""

    def __copy__(self: T) -> T:
        """Return the object itself."""
        return self

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        """Return the object itself."""
        return self


def once(function: Callable[[], T]) -> Callable[[], T]:
    """Wrap a function without arguments so that one thread calls it once and others wait for its result.

    `functools.cache` calls a function several times when several threads ask first, and gives them different results. A
    call that raises is tried again by the next caller.
    """
    lock, results = threading.RLock(), list[T]()

    @functools.wraps(function)
    def result() -> T:
        if not results:
            with lock:
                if not results:
                    results.append(function())
        return results[0]

    return result


class _Collector:
    """Python's collector of cycles, as it was before the first of several threads paused it."""

    def __init__(self) -> None:
        self.lock, self.pauses, self.ran = threading.Lock(), 0, True


_COLLECTOR = _Collector()


@contextlib.contextmanager
def paused_collector() -> Generator[None]:
    """Disable the collection of cycles inside the block, also with several threads inside at once."""
    with _COLLECTOR.lock:
        if not _COLLECTOR.pauses:
            _COLLECTOR.ran = gc.isenabled()
            gc.disable()
        _COLLECTOR.pauses += 1
    try:
        yield
    finally:
        with _COLLECTOR.lock:
            _COLLECTOR.pauses -= 1
            if not _COLLECTOR.pauses and _COLLECTOR.ran:
                gc.enable()


def parse_module(text: str) -> ast.Module:
    """Parse a module to its syntax tree.

    Raises:
        SyntaxError: it is none, or nests deeper than the parser goes.
    """
    return _tried(lambda: ast.parse(text))


def parse_expression(text: str) -> ast.expr:
    """Parse one expression to its syntax tree.

    Raises:
        SyntaxError: it is none, or nests deeper than its recursive readers may go.
    """
    tree = _tried(lambda: ast.parse(text, mode="eval")).body
    below: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        below = [inner for node in below for inner in ast.iter_child_nodes(node)]
    if below:
        raise SyntaxError(f"it nests more than {_DEEPEST} levels deep")
    return tree


def _tried(parse: Callable[[], T]) -> T:
    try:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(SystemError), _PARSING:  # "AST constructor recursion depth mismatch"
                return parse()
        return parse()
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("it nests too deeply") from error
    except ValueError as error:  # a null byte, half of a surrogate pair
        raise SyntaxError(f"it is no text: {error}") from error
