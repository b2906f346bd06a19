"""Two StableHLO modules compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from superopt.compare.verdict import SECONDS, PairVerdict, compare_graphs
from superopt.frontends.stablehlo.module import import_module, load_module
from superopt.ir.inline import inline

if TYPE_CHECKING:
    from superopt.store import Store


def compare_modules(
    first: str | Path | bytes,
    second: str | Path | bytes,
    *,
    numerics: str = "real",
    seconds: float = SECONDS,
    seed: int = 0,
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute that the main functions of two StableHLO modules compute the same, result by result.

    Args:
        first, second: files, as text or as the bytes that jax.export writes, or their contents.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: after which no further piece is tried.
        seed: of the inputs of the refuter.
        store: of certificates.

    Raises:
        InputError: a module cannot be read, holds an operation that is not known, or they take different arguments.
        ProverDefectError: something was proved that evaluation refutes: a defect of the prover.
    """
    modules = [load_module(source) for source in (first, second)]
    one, two = (inline(import_module(module).graph) for module in modules)
    load = ""
    if isinstance(first, str | Path) and isinstance(second, str | Path):
        load = "import jax\nfrom superopt.frontends.stablehlo.module import load_module\n"
        load += 'jax.config.update("jax_enable_x64", True)\n'
        load += f"a, b = load_module({str(first)!r}).fn, load_module({str(second)!r}).fn"
    return compare_graphs(
        one, two, names=list(modules[0].results), numerics=numerics, seconds=seconds, seed=seed, store=store, load=load
    )


__all__ = ["compare_modules"]
