"""Private switches: what benches and tests look at, and users do not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_KEPT = ContextVar("plain candidates are returned whatever they take", default=False)


@contextmanager
def plain_kept() -> Iterator[None]:
    """Inside, calls without a search return the plain candidate whatever it takes."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


def keeps_plain() -> bool:
    """Whether this is inside of `plain_kept`."""
    return _KEPT.get()
