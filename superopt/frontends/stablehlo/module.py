"""A StableHLO module as a JAX function of its main function's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.errors import InconclusiveDimensionOperation

from superopt.errors import FileLimitError, ModelFileError, SuperoptError
from superopt.files.reading import LIMITS, cause_of, converting, shown
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.frontends.stablehlo.ops import OPS, HloCall, HloValue, struct
from superopt.frontends.stablehlo.read import HloBlock, HloModule, HloOp, HloType, read_module
from superopt.frontends.stablehlo.sizes import SizeFacts, dtype_of, evaluate
from superopt.frontends.symbolic.known import SizeArray, has_symbolic, live

DEPTH = 50
"""Limit on the nesting of calls between a module's functions."""


@dataclass(frozen=True, slots=True, eq=False)
class StableHloModule:
    """A module ready to be traced.

    Attributes:
        name: name of the file.
        fn: function of the main function's arguments that returns its results; traced under `jax.enable_x64(True)`.
        kinds: shapes and dtypes of the arguments, None for sizes that are open.
        results: names of the results.
        facts: assertions on sizes that the module made when it was last traced.
    """

    name: str
    fn: Callable[..., tuple[Any, ...]]
    kinds: tuple[HloType, ...]
    results: tuple[str, ...]
    facts: SizeFacts

    @property
    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Types of the arguments.

        Raises:
            InputError: the module leaves sizes open.
        """
        return tuple(struct(kind, f"argument {i}") for i, kind in enumerate(self.kinds))


def load_module(source: str | Path | bytes) -> StableHloModule:
    """Read a StableHLO module, as text or as jax.export's bytes, and convert its main function to a JAX function.

    Raises:
        ModelFileError: the file cannot be read, or has no main function.
        InputError: it has a type that graphs lack.
    """
    module = read_module(source)
    name = next(iter(module.functions), "") if len(module.functions) == 1 else "main"
    main = module.functions.get(name)
    if main is None:
        raise ModelFileError(f"{module.name} has no function main")
    facts = SizeFacts()

    def fn(*args: Any) -> tuple[Any, ...]:
        facts.forget()
        return tuple(map(_live, _SizeWalk(module, facts).block(main, args, {}, (name,))))

    fn.__name__ = "main"
    names = module.results[name] or [""] * len(main.ops[-1].operands)
    results = tuple(shown(given) or f"result {i}" for i, given in enumerate(names))
    return StableHloModule(module.name, fn, tuple(kind for _, kind in main.arguments), results, facts)


def import_module(module: StableHloModule) -> Imported:
    """The graph of a module, with its constants as frozen inputs.

    Raises:
        InputError: an operation is not known here, or operands do not fit.
    """
    with converting(module.name), jax.enable_x64(True):
        return import_function(module.fn, module.arguments)


class _SizeWalk:
    """Evaluates blocks on traced arrays."""

    def __init__(self, module: HloModule, facts: SizeFacts) -> None:
        self.functions, self.names, self.facts, self.count = module.functions, module.names, facts, 0
        self.makers: dict[int, HloOp] = {}

    def block(
        self, block: HloBlock, args: Sequence[HloValue], outer: Mapping[int, HloValue], within: tuple[str, ...]
    ) -> tuple[HloValue, ...]:
        """The operands of a block's last operation."""
        env = {**outer, **{number: x for (number, _), x in zip(block.arguments, args, strict=True)}}
        self.count += len(block.ops)
        if self.count > LIMITS.nodes:
            raise FileLimitError(f"the module has more than {LIMITS.nodes} operations, those that it calls counted")
        for op in block.ops[:-1]:
            self.makers |= {number: op for number, _ in op.results}
            results = self._results(op, env, within)
            env.update({number: value for (number, _), value in zip(op.results, results, strict=True)})
        return tuple(env[x] for x in block.ops[-1].operands)

    def _results(self, op: HloOp, env: Mapping[int, HloValue], within: tuple[str, ...]) -> Sequence[HloValue]:
        def run(block: HloBlock, args: Sequence[HloValue]) -> tuple[HloValue, ...]:
            self.facts.depth += 1
            try:
                return self.block(block, args, env, within)
            finally:
                self.facts.depth -= 1

        def function(call: HloCall, name: str, args: Sequence[HloValue]) -> tuple[HloValue, ...]:
            if name in within or len(within) > DEPTH or name not in self.functions:
                raise call.refused(f"calls {name}, which calls itself or is nested too deep")
            for given, value in zip(self.names[name], args, strict=False):
                if given and isinstance(value, SizeArray) and not value.ndim:
                    self.facts.names.append((value.item(), given))
            return self.block(self.functions[name], args, {}, (*within, name))

        xs = tuple(env[x] for x in op.operands)
        known = evaluate(op, xs, self.facts)
        if known is not None:
            return (known,)
        call = HloCall(op, run, function, self.makers, env, self.facts)
        entry = OPS.get(op.name)
        if entry is None:
            raise call.refused("is not known here")
        try:
            got = entry(call, *(xs if op.name in _PASS_ON else map(_live, xs)))
        except SuperoptError:
            raise
        except _REFUSALS as error:
            raise call.refused(f"is not taken: {cause_of(error)}") from error
        results = tuple(got) if isinstance(got, tuple | list) else (got,)
        for value, (_, kind) in zip(results, op.results, strict=True):
            shape, dtype = np.shape(value), dtype_of(value)
            fits = len(shape) == len(kind[0]) and all(
                m is None or has_symbolic([n]) or n == m for n, m in zip(shape, kind[0], strict=True)
            )
            if not fits or dtype != kind[1]:
                raise call.refused(f"gives {dtype}{shape} here, {kind[1]}{kind[0]} in the module")
        return results


def _live(x: HloValue) -> HloValue:
    return live(x) if isinstance(x, SizeArray) else x


_PASS_ON = frozenset({"func.call", "stablehlo.composite", "stablehlo.optimization_barrier"})
_REFUSALS = (
    TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError, InconclusiveDimensionOperation,
)  # fmt: skip


__all__ = ["StableHloModule", "import_module", "load_module"]
