"""False pairs of programs over symbolic sizes, given to the sweep alone: nothing is evaluated, all nodes are tried.

The pairs are functions of JAX, the same as StableHLO modules that leave sizes open, and ONNX models with symbolic
dimensions; and the false statements for the prover (`superopt.lab.corpora.statements.hostile`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import export

from superopt.equivalence.models import as_functions
from superopt.equivalence.modules import arguments_of
from superopt.equivalence.symbolic import SizedArguments, proved_alone
from superopt.errors import SuperoptError
from superopt.frontends.onnx.frontend import load_symbolic
from superopt.frontends.stablehlo.module import load_module
from superopt.lab.corpora.statements.hostile import hostile
from superopt.lab.corpora.statements.sized import ANYWHERE, BITS, EMPTY, FalsePair, false_pairs
from superopt.lab.corpora.statements.sized_models import false_models
from verifier.rules.process import shared
from verifier.statements.statement import make_statement
from verifier.verdict import PROVED, UNKNOWN

SweepPair = tuple[Callable[..., Any], Callable[..., Any], SizedArguments]
SHARES = {"functions": 0.35, "modules": 0.2, "models": 0.3, "statements": 0.15}
"""Shares of the pairs by the form in which they are given."""
PAIR_S, QUESTION_S = 10.0, 3.0  # processor time; proofs take less, and there are hundreds of false questions


def compared(count: int, seed: int, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each pair, and the summary."""
    prover = shared()
    before, prover.seconds = prover.seconds, QUESTION_S
    rows: list[dict[str, Any]] = []
    try:
        for pair in _pairs(count, seed):
            rows.append(_row(*pair))
            if len(rows) % 50 == 0:
                say(f"{len(rows)} pairs over symbolic sizes")
    finally:
        prover.seconds = before
    return rows, {
        "sweeps": len(rows),
        "sweeps_refused": sum("refused" in row for row in rows),
        "sweep_false_proofs": sum(row.get("false", False) for row in rows),
    }


def _row(name: str, differs: str, ask: Callable[[], SweepPair]) -> dict[str, Any]:
    """The verdict on a pair, as a row."""
    start = time.perf_counter()
    row: dict[str, Any] = {"part": "sweeps", "name": name, "differs": differs}
    try:
        with jax.enable_x64(name.startswith(("modules", "models"))):
            verdict = proved_alone(*ask(), "real", PAIR_S)
    except SuperoptError as error:
        row |= {"status": UNKNOWN, "refused": str(error)[:200]}
    else:
        row["status"] = PROVED if verdict.proved else UNKNOWN
        if verdict.proved:
            row |= {"exactness": verdict.exactness, "lowest": verdict.lowest, "assumptions": list(verdict.assumptions)}
            row["false"] = differs == ANYWHERE or (
                not verdict.lowest if differs == EMPTY else verdict.exactness == "exact"
            )
        elif verdict.stuck is not None:
            row["cause"] = f"{verdict.stuck[0].op}: {verdict.stuck[1]}"
    return row | {"ms": 1e3 * (time.perf_counter() - start)}


def _pairs(count: int, seed: int) -> Iterator[tuple[str, str, Callable[[], SweepPair]]]:
    """Name of each pair, where it differs, and the two functions with their arguments."""
    many = {kind: round(count * share) for kind, share in SHARES.items()}
    for pair in false_pairs(seed, many["functions"]):
        yield f"functions {pair.name}", pair.differs, lambda pair=pair: _functions(pair)
    for pair in false_pairs(seed + 1, many["modules"]):
        yield f"modules {pair.name}", pair.differs, lambda pair=pair: _modules(pair)
    for name, first, second in false_models(seed, many["models"]):
        yield f"models {name}", ANYWHERE, lambda one=first, two=second: _models(one, two)
    for case in hostile(seed + 1, many["statements"]):
        of = case.statement
        arguments = SizedArguments(*of.given, of.constraints)
        yield (
            f"statements {of.name}", BITS if case.in_bits else ANYWHERE,
            lambda of=of, arguments=arguments: (of.left, of.right, arguments),
        )  # fmt: skip


def _functions(pair: FalsePair) -> SweepPair:
    return pair.first, pair.second, SizedArguments(pair.specs)


def _modules(pair: FalsePair) -> SweepPair:
    """Both functions exported at symbolic sizes, which the text leaves open.

    Raises:
        SuperoptError: JAX does not export one of them.
    """
    specs = make_statement("both", pair.first, pair.second, pair.specs, {}, ()).specs
    scope = export.SymbolicScope()
    taken = [
        jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(map(str, t.shape)), scope=scope), t.dtype)
        for t in specs.types
    ]
    try:
        with jax.enable_x64(False):
            texts = [
                export.export(jax.jit(fn), platforms=["cpu"])(*taken).mlir_module() for fn in (pair.first, pair.second)
            ]
    except Exception as error:  # of whatever JAX or the function raises: there is no module then
        raise SuperoptError(f"not exported: {error}") from error
    modules = [load_module(text.encode()) for text in texts]
    return modules[0].fn, modules[1].fn, arguments_of(modules)


def _models(first: Any, second: Any) -> SweepPair:
    return as_functions([load_symbolic(x) for x in (first, second)])


__all__ = ["compared"]
