"""Functions of jobs for tests of the workshop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from superopt.workshop.job import Event


def square(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield a square; negative numbers end the process."""
    if data["number"] < 0:
        os._exit(3)
    yield {"event": "square", "square": data["number"] ** 2}


def content(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the size of a file and where it lies, after a while."""
    time.sleep(data.get("seconds", 0.0))
    path = Path(data["path"])
    yield {"event": "content", "bytes": len(path.read_bytes()), "path": str(path)}


def span(data: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the instants at which a sleep begins and ends."""
    begin = time.monotonic()
    time.sleep(data["seconds"])
    yield {"event": "span", "begin": begin, "end": time.monotonic()}
