"""Jobs of a worker that compare programs, call one, and time kernels.

Backends are named by the job (`module:function`) and imported here, so this package depends on none.  Programs that
are slow to build are kept for the comparisons that follow in the same process.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays import bundles as arrays
from superopt.arrays import placing
from superopt.ir.graph import Graph
from superopt.ir.program import Program
from superopt.ir.text import parse_graph
from superopt.measure import kernels, session
from superopt.measure.conditioning import Exact
from superopt.measure.exact import exact_results_of
from superopt.measure.numerics import Tolerance
from superopt.workshop.job import FILES, Event, resolve

SLOW_S = 0.5  # programs that took longer to build are kept for later comparisons
_MOST_KEPT, _MOST_BYTES = 12, 1 << 30  # of these, and of their weights: a contest has five, the best with options
_KEPT: dict[str, session.Kept] = {}


def compare_programs(request: Mapping[str, Any]) -> Iterator[Event]:
    """Build, check and time programs beside a reference."""
    made = _Request(request)
    fields = dict(request["settings"])
    settings = session.ComparisonSettings(**{**fields, "tolerance": Tolerance(**fields["tolerance"])})
    candidates = {int(i): made.maker(spec) for i, spec in request["candidates"].items()}
    inputs = made.values(request["inputs"])
    reference = request["reference"]
    exact = made.exact(reference, inputs)
    yield from session.compare_events(made.maker(reference), candidates, inputs, settings, exact)
    made.release()


def call_program(request: Mapping[str, Any]) -> Iterator[Event]:
    """Build a program once, call it on several lists of inputs, and leave the results in the folder."""
    made = _Request(request)
    inputs = [made.values(keys) for keys in request["inputs"]]
    for number, event in enumerate(session.run_events(made.maker(request["reference"]), inputs)):
        if "outputs" in event:
            name = f"results{number}"
            arrays.save(Path(request["folder"]) / name, {str(i): x for i, x in enumerate(event.pop("outputs"))})
            event[FILES] = [name, f"{name}.json"]
        yield event
    made.release()


class _Request:
    """Programs and arrays of a request."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._backend, self._placed = request["backend"], request["placed"]
        placed = {key: placing.placed((request[file], *at)) for key, (file, *at) in self._placed.items()}
        self._bundle = arrays.load(Path(request["arrays"])) | placed
        self._frozen = {name: self._bundle[key] for name, key in request["frozen"].items()}
        self._digest = functools.cache(lambda: _digest(self._frozen))

    def values(self, keys: Sequence[str]) -> list[Any]:
        return [self._bundle[key] for key in keys]

    def maker(self, spec: Mapping[str, Any]) -> session.Make:
        if "target" in spec:
            return lambda: resolve(spec["target"], spec["path"])(self._frozen)
        return lambda: _kept(spec, self._frozen, self._bundle, self._backend, self._digest)

    def exact(self, spec: Mapping[str, Any], inputs: Sequence[Any]) -> Exact:
        """Return a program over float64 on these inputs, as a function of a change of its values."""
        if "target" in spec:
            return lambda change: None
        program = functools.cache(lambda: _parsed(spec, self._bundle))
        return lambda change: exact_results_of(program(), inputs, self._frozen, change)

    def release(self) -> None:
        """Release the memory of arrays that lie in a file."""
        for key in self._placed:
            placing.release(self._bundle[key])


def _kept(
    spec: Mapping[str, Any],
    frozen: Mapping[str, Any],
    bundle: Mapping[str, Any],
    backend: str,
    digest: Callable[[], str],
) -> session.Kept:
    """The program as an earlier comparison built it, if that took long; else built now."""
    constants = _digest({name: bundle[key] for name, key in spec["constants"].items()})
    text = json.dumps([spec["hot"], spec["prepare"], spec["given"], spec["backend"] or backend, constants, digest()])
    key = hashlib.blake2b(text.encode()).hexdigest()
    for known in [k for k, x in _KEPT.items() if x.build_s < SLOW_S]:
        del _KEPT[known]
    kept = _KEPT.pop(key, None)
    if kept is None:
        kept = session.Kept(_program(spec, frozen, bundle, backend))
    _KEPT[key] = kept
    while len(_KEPT) > 1 and (len(_KEPT) > _MOST_KEPT or sum(map(_bytes, _KEPT.values())) > _MOST_BYTES):
        del _KEPT[next(iter(_KEPT))]  # the one that was not called for longest
    return kept


def _digest(values: Mapping[str, Any]) -> str:
    """Digest of arrays; for one that lies in a file, of its place instead of its values."""
    hasher = hashlib.blake2b()
    for name in sorted(values):
        array, place = np.ascontiguousarray(values[name]), placing.place_of(values[name])
        hasher.update(f"{name} {array.dtype} {array.shape} {place} ".encode())
        if place is None:
            hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _bytes(kept: session.Kept) -> int:
    return getattr(kept.call, "frozen_bytes", 0) + getattr(kept.call, "added_bytes", 0)


def _program(
    spec: Mapping[str, Any], frozen: Mapping[str, Any], bundle: Mapping[str, Any], backend: str
) -> session.ProgramCall:
    if spec["modules"]:
        from superopt.foreign.modules import restore  # late: loads jax, and few programs need it

        restore(spec["modules"])
    return resolve(spec["backend"] or backend)(_parsed(spec, bundle), frozen, **spec["given"])


def _parsed(spec: Mapping[str, Any], bundle: Mapping[str, Any]) -> Program:
    prepare = None
    if spec["prepare"] is not None:
        bare = parse_graph(spec["prepare"])
        prepare = Graph(bare.inputs, bare.outputs, {name: bundle[key] for name, key in spec["constants"].items()})
    return Program(prepare, parse_graph(spec["hot"]))


def time_texts(request: Mapping[str, Any]) -> Iterator[Event]:
    """Time kernels that are given as texts."""
    texts = json.loads(Path(request["texts"]).read_text(encoding="utf-8"))
    yield from kernels.kernel_events(texts, resolve, request["settings"])
