"""The zoo: snippets of many fields as people write them at first, each with the best form that is known.

One file per field; `written_well` holds snippets with nothing to gain.  A third of the snippets is frozen: drawn by a
hash of the name (`is_frozen`), these stand in files of their own (`frozen_*`), and nobody looks at them while rules are
written.  They say whether rules that were written for the open ones serve programs that nobody had in mind.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from pkgutil import iter_modules

from superopt.lab.corpora.zoo.snippet import Snippet

OPEN, FROZEN = "open", "frozen"
_SALT, _ONE_OF = "zoo 9", 3
_PREFIX = f"{FROZEN}_"


def is_frozen(name: str) -> bool:
    """Whether the hash of a name draws this snippet into the frozen third."""
    digest = hashlib.sha256(f"{_SALT}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _ONE_OF == 0


def load() -> dict[str, Snippet]:
    """All snippets by case: `open` or `frozen` as their file says, the field, and the name, separated by colons."""
    snippets: dict[str, Snippet] = {}
    for module in sorted((m.name for m in iter_modules(__path__)), key=lambda n: (n.startswith(_PREFIX), n)):
        part = FROZEN if module.startswith(_PREFIX) else OPEN
        for made in vars(import_module(f"{__name__}.{module}")).values():
            if isinstance(made, Snippet):
                snippets[f"{part}:{module.removeprefix(_PREFIX)}:{made.name}"] = made
    return snippets
