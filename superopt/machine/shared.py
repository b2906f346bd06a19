"""What threads of one process share: functions whose result is made once, and Python's parser behind a lock.

Up to CPython 3.11 `ast.parse` counts its depth in a place that all threads share, and fails with SystemError where
another thread parses at the same time; parsers of others cannot be locked out, so it is tried again.
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PARSING = threading.RLock()
_TRIES = 20  # another thread is in its parser for less than a millisecond


def once(function: Callable[[], T]) -> Callable[[], T]:
    """A function without arguments that is called once, by one thread; others wait for its result.

    `functools.cache` calls a function several times when several threads ask first, and gives them different results.
    A call that raises is no result.
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


def parse_module(text: str) -> ast.Module:
    """The syntax tree of a module.

    Raises:
        SyntaxError, ValueError: it is none.
    """
    return _tried(lambda: ast.parse(text))


def parse_expression(text: str) -> ast.expr:
    """The syntax tree of one expression.

    Raises:
        SyntaxError, ValueError: it is none.
    """
    return _tried(lambda: ast.parse(text, mode="eval")).body


def _tried(parse: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            with _PARSING:
                return parse()
        except SystemError:  # "AST constructor recursion depth mismatch": see the module
            continue
    return parse()
