"""Registry of opaque operations: maps the key that an opaque node carries to the function that it stands for.

An opaque node is kept verbatim: the graph knows its name, its operands and its result types, and nothing else.  The
node holds a printable key.  The function, which belongs to the library that the program came from, is registered here
under that key.

An operation may have a module, a text of its own that other processes can run (`superopt.foreign.modules`).  It is then
named by the digest of that text (`sort@9f0c...`): equal keys mean equal operations, in every process and in every file,
and `carry` returns the modules that go with a graph.  Other operations get a key that is valid in this process only
(`pure_callback#1f3a9c02`): equal primitives with equal parameters share it, parameters that cannot be compared get one
of their own.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import InputError
from superopt.ir.graph import Graph, Node, every_node

OpaqueCall = Callable[..., Sequence[Any]]
_DIGITS = 40  # 160 bits of the digest: nobody finds two modules with one key
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """One registered operation: its name, the function from operands to a sequence of results, and its module."""

    primitive: str
    identity: Hashable
    call: OpaqueCall
    module: bytes = b""


_BY_KEY: dict[str, Opaque] = {}
_PARAMS: dict[str, dict[str, bool | int | str]] = {}
_KEY_OF: dict[Hashable, str] = {}
_LOCK = threading.Lock()


def register(primitive: str, identity: Hashable, call: OpaqueCall) -> str:
    """Return the key of an operation; the same primitive and identity give the same key and keep the first function.

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


def register_module(primitive: str, module: bytes, call: OpaqueCall) -> str:
    """Return the key of an operation that its module defines; the first function registered for it is kept."""
    key = key_of_module(primitive, module)
    with _LOCK:
        _BY_KEY.setdefault(key, Opaque(primitive, key, call, module))
    return key


def state(key: str, params: Mapping[str, Any]) -> None:
    """Keep the parameters of an operation that are truth values, numbers or words."""
    plain = {name: value for name, value in params.items() if isinstance(value, bool | int | str)}
    if plain:
        with _LOCK:
            _PARAMS.setdefault(key, plain)


def params_of(key: str) -> dict[str, bool | int | str]:
    """Return the parameters of an operation that were stated in this process; empty where none were."""
    return _PARAMS.get(key, {})


def key_of_module(primitive: str, module: bytes) -> str:
    """Return the key of a module: its name and its digest."""
    return f"{primitive}@{hashlib.sha256(module).hexdigest()[:_DIGITS]}"


def module_of(key: str) -> bytes:
    """Return the module of an operation; empty where it is unknown or has none."""
    known = _BY_KEY.get(key)
    return b"" if known is None else known.module


def nodes_of(graphs: Iterable[Graph]) -> Iterator[Node]:
    """Yield the opaque nodes of graphs and of bodies in them."""
    return (node for node in every_node(graphs) if node.op == "opaque")


def carry(graphs: Iterable[Graph], known: Container[str] = ()) -> dict[str, bytes] | None:
    """Return the modules of the opaque nodes of these graphs and their bodies by key.

    None where one has no module, unless it is one of the `known`, which are left out.
    """
    modules: dict[str, bytes] = {}
    for node in nodes_of(graphs):
        key = node["params_key"]
        if key not in modules:
            module = module_of(key)
            if module:
                modules[key] = module
            elif key not in known:
                return None
    return modules


def resolve(key: str) -> Opaque:
    """Return the operation registered under a key.

    Raises:
        InputError: the key is unknown in this process.
    """
    operation = _BY_KEY.get(key)
    if operation is None:
        raise InputError(
            f"the opaque operation {key!r} is not known in this process",
            hint="import the program again from its function or model",
        )
    return operation
