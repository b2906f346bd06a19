"""Jobs that sleep: their workers load nothing else, which would take processors from the workshop that is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from superopt.workshop.job import Event


def sleep(data: Mapping[str, Any]) -> Iterator[Event]:
    """Sleep, and yield the number of the job."""
    time.sleep(data["seconds"])
    yield {"event": "slept", "number": data["number"]}
