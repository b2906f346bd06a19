"""Private switches for benchmarks and tests; not for users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_KEPT = ContextVar("plain candidates are returned whatever they take", default=False)


@contextmanager
def plain_kept() -> Iterator[None]:
    """Make calls without a search return the plain candidate whatever time it takes, inside the context."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


def keeps_plain() -> bool:
    """Whether this code runs inside of `plain_kept`."""
    return _KEPT.get()
