"""The intermediate representation: typed graphs, the op table, and what follows from the denotations."""

from collections.abc import Iterable
from pathlib import Path
from time import time

_BEGAN_S = time()  # before any module is loaded that computes or proves


def as_loaded(files: Iterable[Path]) -> bool:
    """Whether these source files are unchanged since the process began; else its code may not match their digest."""
    return max((file.stat().st_mtime for file in files), default=0.0) < _BEGAN_S
