"""Makes Ctrl-C reach the main thread even where Python would drop it.

Python raises KeyboardInterrupt wherever the main thread is, and drops it where that is a callback of the garbage
collector or a finaliser.  Inside of `heard`, a Ctrl-C that meets one of these is raised again a moment later.
"""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN_S = 0.02
HEARD = threading.Event()
"""Set by a Ctrl-C inside of the last `heard`: work that goes on is of no use any more."""
_DEAF = {weakref.WeakSet.__init__.__code__.co_filename, weakref.WeakKeyDictionary.__init__.__code__.co_filename}
"""Files whose code runs while entries are removed from weak tables."""


@contextmanager
def heard() -> Iterator[None]:
    """Keep Ctrl-C from being lost inside the context.

    Nothing changes on other threads, or where the user handles the signal.
    """
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _raise)
    HEARD.clear()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise(number: int, frame: FrameType | None) -> Any:
    """Handle SIGINT as the default handler does, except in places from which no exception can propagate."""
    deaf = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    at = frame
    while at is not None:
        code = at.f_code
        if code in deaf or code.co_name == "__del__" or code.co_filename in _DEAF:
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(_AGAIN_S, signal.pthread_kill, (main, number)).start()  # it may wait by then
            return
        at = at.f_back
    HEARD.set()
    raise KeyboardInterrupt
