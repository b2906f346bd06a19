"""A StableHLO module as a JAX function of its main function's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from superopt.errors import FileLimitError, ModelFileError, SuperoptError
from superopt.files.reading import LIMITS, cause_of, converting, shown
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.frontends.stablehlo.ops import OPS, HloCall, Value, struct
from superopt.frontends.stablehlo.read import HloBlock, HloModule, HloOp, read_module

DEPTH = 50
"""Functions that call functions."""


@dataclass(frozen=True, slots=True, eq=False)
class StableHloModule:
    """A module ready to be traced.

    Attributes:
        name: of the file.
        fn: of the arguments of the main function, gives the tuple of its results; traced under `jax.enable_x64(True)`.
        arguments: types of the arguments.
        results: names of the results.
    """

    name: str
    fn: Callable[..., tuple[Any, ...]]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[str, ...]


def load_module(source: str | Path | bytes) -> StableHloModule:
    """Read a StableHLO module, as text or as jax.export's bytes, and make its main function a function of JAX.

    Raises:
        ModelFileError: the file cannot be read, or has no main function.
        InputError: a type that graphs have not.
    """
    module = read_module(source)
    name = next(iter(module.functions), "") if len(module.functions) == 1 else "main"
    main = module.functions.get(name)
    if main is None:
        raise ModelFileError(f"{module.name} has no function main")
    arguments = tuple(struct(kind, f"argument {i}") for i, (_, kind) in enumerate(main.arguments))

    def fn(*args: Any) -> tuple[Any, ...]:
        return _Walk(module).block(main, args, {}, (name,))

    fn.__name__ = "main"
    names = module.results[name] or [""] * len(main.ops[-1].operands)
    results = tuple(shown(given) or f"result {i}" for i, given in enumerate(names))
    return StableHloModule(module.name, fn, arguments, results)


def import_module(module: StableHloModule) -> Imported:
    """The graph of a module, its constants as the inputs that come with it.

    Raises:
        InputError: an operation that is not known here, or operands that do not fit.
    """
    with converting(module.name), jax.enable_x64(True):
        return import_function(module.fn, module.arguments)


class _Walk:
    """Evaluates blocks on traced arrays."""

    def __init__(self, module: HloModule) -> None:
        self.functions, self.count = module.functions, 0
        self.makers: dict[int, HloOp] = {}

    def block(
        self, block: HloBlock, args: Sequence[Value], outer: Mapping[int, Value], within: tuple[str, ...]
    ) -> tuple[Value, ...]:
        """The operands of a block's last operation."""
        env = {**outer, **{number: x for (number, _), x in zip(block.arguments, args, strict=True)}}
        self.count += len(block.ops)
        if self.count > LIMITS.nodes:
            raise FileLimitError(f"the module has more than {LIMITS.nodes} operations, those that it calls counted")
        for op in block.ops[:-1]:
            self.makers |= {number: op for number, _ in op.results}
            found = self._results(op, env, within)
            env.update({number: value for (number, _), value in zip(op.results, found, strict=True)})
        return tuple(env[x] for x in block.ops[-1].operands)

    def _results(self, op: HloOp, env: Mapping[int, Value], within: tuple[str, ...]) -> Sequence[Value]:
        def run(block: HloBlock, args: Sequence[Value]) -> tuple[Value, ...]:
            return self.block(block, args, env, within)

        def function(call: HloCall, name: str, args: Sequence[Value]) -> tuple[Value, ...]:
            if name in within or len(within) > DEPTH or name not in self.functions:
                raise call.refused(f"calls {name}, which calls itself or is nested too deep")
            return self.block(self.functions[name], args, {}, (*within, name))

        call = HloCall(op, run, function, self.makers)
        entry = OPS.get(op.name)
        if entry is None:
            raise call.refused("is not known here")
        try:
            got = entry(call, *(env[x] for x in op.operands))
        except SuperoptError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
            raise call.refused(f"is not taken: {cause_of(error)}") from error
        found = tuple(got) if isinstance(got, tuple | list) else (got,)
        for value, (_, kind) in zip(found, op.results, strict=True):
            want = struct(kind, op.where)
            if (np.shape(value), str(value.dtype)) != (want.shape, str(want.dtype)):
                raise call.refused(f"gives {value.dtype}{np.shape(value)} here, {want.dtype}{want.shape} in the module")
        return found


__all__ = ["StableHloModule", "import_module", "load_module"]
