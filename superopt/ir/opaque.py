"""What opaque nodes do: a table from a key, which the node carries, to the function that it stands for.

An opaque node is kept verbatim: the graph knows its name, its operands and its result types, and nothing else.  The
node holds a printable key (`sort#1f3a9c02`); the function, which belongs to the library that the program came from,
is registered here under that key.  Equal primitives with equal parameters get the same key, so that opaque nodes are
shared like any other; parameters that cannot be compared get a key of their own.

Keys of another process are unknown here: a backend ships what they stand for and registers it again with `restore`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError

Call = Callable[..., Sequence[Any]]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """One registered operation: its name and the function from operands to a sequence of results."""

    primitive: str
    identity: Hashable
    call: Call


_BY_KEY: dict[str, Opaque] = {}
_KEY_OF: dict[Hashable, str] = {}
_LOCK = threading.Lock()


def register(primitive: str, identity: Hashable, call: Call) -> str:
    """Key of an operation; the same primitive and identity give the same key and keep the first function.

    Args:
        primitive: name that reports show.
        identity: parameters of the operation; kept alive, so that identity by address stays unique.
        call: maps the operands to the results, in order.
    """
    with _LOCK:
        known = _KEY_OF.get((primitive, identity))
        if known is not None:
            return known
        text = _ADDRESS.sub("", f"{primitive}{identity!r}")
        stem = key = f"{primitive}#{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        copies = 1
        while key in _BY_KEY:  # the same text, yet not equal: a jaxpr prints its constants by name only
            copies += 1
            key = f"{stem}.{copies}"
        _BY_KEY[key] = Opaque(primitive, identity, call)
        _KEY_OF[(primitive, identity)] = key
        return key


def restore(key: str, primitive: str, call: Call) -> None:
    """Register an operation of another process under its own key (a key that is known is left as it is)."""
    with _LOCK:
        _BY_KEY.setdefault(key, Opaque(primitive, key, call))


def resolve(key: str) -> Opaque:
    """The operation registered under a key.

    Raises:
        InputError: the key is unknown in this process.
    """
    found = _BY_KEY.get(key)
    if found is None:
        raise InputError(
            f"the opaque operation {key!r} is not known in this process",
            hint="import the program again from its function or model",
        )
    return found
