"""The job of the referee's process: runs modules on arrays (see `verifier.rules.referee`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.arrays import bundles
from superopt.machine.jitting import jax_jit, jit_quickly  # pyright: ignore[reportUnknownVariableType]
from superopt.workshop.job import Event

_MOST = 64
"""Most compiled programs that are kept."""
_KNOWN: dict[str, Any] = {}
_JIT: Any = jax_jit  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _exported(module: bytes, *types: Sequence[tuple[Sequence[int], str]]) -> Any:
    """The `jax.export.Exported` of a module: that of a dummy function of the same types, with the module put in."""
    frame = _dummy(*(tuple([(tuple(shape), kind) for shape, kind in x]) for x in types))
    kept = tuple(range(len(types[0])))
    return dataclasses.replace(frame, mlir_module_serialized=module, module_kept_var_idx=kept)


@functools.lru_cache(maxsize=_MOST)
def _dummy(*types: tuple[tuple[tuple[int, ...], str], ...]) -> Any:
    """The `jax.export.Exported` of a function of these types; both sides of a statement have the same."""
    given, outputs = ([jax.ShapeDtypeStruct(shape, bundles.dtype(kind)) for shape, kind in x] for x in types)

    def like(*_: Any) -> tuple[Any, ...]:
        return tuple(jax.lax.full(x.shape, 0, x.dtype) for x in outputs)

    return jax.export.export(_JIT(like, keep_unused=True), platforms=("cpu",))(*given)


def run(request: Mapping[str, Any]) -> Iterator[Event]:
    """Run a module, compiled once, on each draw of its arguments in a file: an event each, and one of all results."""
    path, key = Path(request["given"]), request["key"]
    given = bundles.load(path)
    try:
        with jax.enable_x64(True):
            if key not in _KNOWN:
                module = _exported(given["module"].tobytes(), *request["types"])
                _KNOWN[key] = jit_quickly(module.call)
            count, results = len(request["types"][0]), dict[str, np.ndarray]()
            for n in range(request["draws"]):
                outputs = _KNOWN[key](*(np.array(given[f"{n} {i}"]) for i in range(count)))
                results |= {f"{n} {i}": np.asarray(x) for i, x in enumerate(outputs)}
                yield {"event": "ran"}
    except Exception as error:  # any exception of XLA means that there is no result
        _KNOWN.pop(key, None)
        yield {"event": "refused", "message": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
        return
    while len(_KNOWN) > _MOST:
        del _KNOWN[next(iter(_KNOWN))]
    out = path.with_name("found")
    bundles.save(out, results)
    yield {"event": "found", "found": str(out), "known": list(_KNOWN)}


def load() -> None:
    """Load XLA."""
    _JIT(lambda: 0)()
