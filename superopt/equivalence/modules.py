"""Equivalence of two StableHLO modules."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from superopt.equivalence.symbolic import SizedArguments, compare_symbolic
from superopt.equivalence.verdict import SECONDS, PairVerdict, Spoken, compare_graphs
from superopt.errors import InputError, SuperoptError, UsageError
from superopt.frontends.jax.sizes import FUNCTIONS, NAME, renamed
from superopt.frontends.stablehlo.module import StableHloModule, import_module, load_module
from superopt.frontends.symbolic.known import NO_OVERFLOW
from superopt.ir.inline import inline
from verifier.verdict import PROVED

if TYPE_CHECKING:
    from superopt.store import Store


def compare_modules(
    first: str | Path | bytes,
    second: str | Path | bytes,
    *,
    dims: Mapping[str, int] | None = None,
    numerics: str = "real",
    seconds: float = SECONDS,
    seed: int = 0,
    store: Store | None = None,
) -> PairVerdict:
    """Prove or refute that the main functions of two StableHLO modules compute the same, result by result.

    Where the first module leaves sizes open, the verdict is for all sizes that both modules accept.

    Args:
        first, second: files, as text or as the bytes that jax.export writes, or their contents.
        dims: values of the open sizes, at which results that stay open for all sizes are compared.
        numerics: exact, real or range: the widest class of rules that may be used.
        seconds: processor time after which no further window is tried.
        seed: seed of the refuter's inputs.
        store: the store to look up certificates in.

    Raises:
        InputError: a module cannot be read, holds an operation that is not known, or they take different arguments.
        ProverDefectError: evaluation refutes a proof: a defect of the prover.
    """
    modules = [load_module(source) for source in (first, second)]
    load = ""
    if isinstance(first, str | Path) and isinstance(second, str | Path):
        load = "import jax\nimport numpy as np\nfrom superopt.frontends.stablehlo.module import load_module\n"
        load += 'jax.config.update("jax_enable_x64", True)\n'
        load += f"a, b = load_module({str(first)!r}).fn, load_module({str(second)!r}).fn"
    if any(None in shape for module in modules for shape, _ in module.kinds):
        with jax.enable_x64(True):
            return _for_all_sizes(modules, dims or {}, numerics, store, load)
    if dims:
        raise UsageError(f"--dims gives sizes for {', '.join(dims)}, and the modules leave none open")
    one, two = (inline(import_module(module).graph) for module in modules)
    return compare_graphs(
        one, two, Spoken(modules[0].results, load), numerics=numerics, seconds=seconds, seed=seed, store=store
    )


def _for_all_sizes(
    modules: Sequence[StableHloModule], dims: Mapping[str, int], numerics: str, store: Store | None, load: str
) -> PairVerdict:
    """The verdict on modules that leave sizes open."""
    verdict = compare_symbolic(modules[0].fn, modules[1].fn, arguments_of(modules, load), dims, numerics, store)
    if PROVED in {o.status for o in verdict.outputs}:
        verdict = replace(verdict, assumptions=(*verdict.assumptions, NO_OVERFLOW))
    return verdict


def arguments_of(modules: Sequence[StableHloModule], load: str = "") -> SizedArguments:
    """The arguments and results of two modules that leave sizes open.

    Args:
        modules: both.
        load: code that defines both functions, for the code to paste.

    Raises:
        InputError: they take different arguments.
    """
    first, second = ([[*shape, dtype] for shape, dtype in module.kinds] for module in modules)
    if [[n is None for n in x] for x in first] != [[n is None for n in x] for x in second] or any(
        n != m for a, b in zip(first, second, strict=True) for n, m in zip(a, b, strict=True)
    ):
        raise InputError("two modules of different arguments", hint="both leave the same sizes open, or none")
    specs = [
        f"{dtype}[{', '.join(f'arg{i}_{axis}' if n is None else str(n) for axis, n in enumerate(shape))}]"
        for i, (shape, dtype) in enumerate(modules[0].kinds)
    ]
    constraints: dict[str, None] = {}
    names: dict[str, str] = {}
    for module in modules:
        asserted, own = _facts(module)
        constraints |= dict.fromkeys(asserted)
        names = own | names

    def named(text: str) -> str:
        return renamed(text, lambda name: names.get(name, name))

    open_sizes = {name for text in specs for name in NAME.findall(text)} | FUNCTIONS
    names = {
        k: v for k, v in names.items()
        if NAME.fullmatch(k) and list(names.values()).count(v) == 1 and v not in open_sizes
    }  # fmt: skip
    said = list(map(named, constraints))
    return SizedArguments(list(map(named, specs)), {}, said, modules[0].results, lambda _: load)


def _facts(module: StableHloModule) -> tuple[list[str], dict[str, str]]:
    """Constraints that a module asserts of its open sizes, and its names for them.

    The module is traced with a name for every open size, until the assertions are complete.
    """
    names = [f"arg{i}_{axis}" for i, (shape, _) in enumerate(module.kinds) for axis, n in enumerate(shape) if n is None]
    free = dict(zip(names, export.symbolic_shape(", ".join(names)), strict=True))
    types: list[Any] = []
    for i, (shape, dtype) in enumerate(module.kinds):
        sizes = tuple(free[f"arg{i}_{axis}"] if n is None else n for axis, n in enumerate(shape))
        types.append(jax.ShapeDtypeStruct(sizes, jax.numpy.dtype(dtype)))
    with contextlib.suppress(SuperoptError, TypeError, ValueError):  # sizes that are equal are not known to be
        jax.eval_shape(module.fn, *types)
    facts = module.facts
    asserted = [f"{a} {order} {b}" for a, order, b in facts.asserted if order != "!="]
    return asserted, {str(size): name for size, name in facts.names}


__all__ = ["arguments_of", "compare_modules"]
