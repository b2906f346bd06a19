"""Two ONNX models compared (needs the onnx package, an extra)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.compare.verdict import SECONDS, PairVerdict, compare_graphs
from superopt.errors import InputError
from superopt.frontends.onnx.frontend import import_model, load_model

if TYPE_CHECKING:
    from superopt.store import Store


def compare_models(
    first: Any,
    second: Any,
    *,
    dims: Mapping[str, int] | None = None,
    numerics: str = "real",
    seconds: float = SECONDS,
    seed: int = 0,
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute that two ONNX models compute the same, output by output.

    Args:
        first, second: files, bytes or messages.
        dims: sizes of symbolic dimensions; the verdict holds for these.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: after which no further piece is tried.
        seed: of the inputs of the refuter.
        store: of certificates.

    Raises:
        InputError: a model cannot be read, computes a part on the host, or they take different arguments.
        ProverDefectError: something was proved that evaluation refutes: a defect of the prover.
    """
    models = [load_model(source, dims=dims) for source in (first, second)]
    for model in models:
        if model.head is not None or model.tail is not None:
            raise InputError(
                f"{model.name} computes a part on the host (strings, or results without a fixed shape)",
                hint="only what is computed in the program can be compared",
            )
    graphs = [import_model(model).graph for model in models]
    names = [o.name for o in models[0].outputs]
    paths = [str(x) if isinstance(x, str | Path) else None for x in (first, second)]
    found = compare_graphs(
        graphs[0], graphs[1], names=names, numerics=numerics, seconds=seconds, seed=seed, store=store,
        load=_loading(paths, dims),
    )  # fmt: skip
    if not dims:
        return found
    given = ", ".join(f"{name} = {n}" for name, n in dims.items())
    return replace(found, sizes=f"{found.sizes} ({given}; nothing is said of others)")


def _loading(paths: list[str | None], dims: Mapping[str, int] | None) -> str:
    if None in paths:
        return ""
    sizes = f", dims={dict(dims)!r}" if dims else ""
    loads = ", ".join(f"load_model({path!r}{sizes})" for path in paths)
    return f"from superopt.frontends.onnx.frontend import load_model\na, b = {loads}"


__all__ = ["compare_models"]
