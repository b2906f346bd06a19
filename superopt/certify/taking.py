"""Selects the kernels of a saved program that may be called here: code validated here, or agreeing with XLA.

A file's own claims about its kernels count for nothing.  Loading looks up the verdicts recorded under the seal of this
machine's cache, and validates and compares the rest where a few seconds allow it.  Else kernels wait for the first
call: they are checked then, however long it takes, before any of them runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.certify.kernels import (
    MOST_ELEMENTS,
    MOST_SECONDS,
    ValidatedCode,
    code_s,
    disagreeing,
    too_large,
    validate_code,
)
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.kernels.choose.specs import KernelSpec
from superopt.machine.fallback import in_one_line
from superopt.workshop import forks

_NO_TIME = "no time was left for its validation"


@dataclass(frozen=True, slots=True)
class TakenKernels:
    """Kernels that may be called, and the verdicts on the others.

    Attributes:
        kernels: those in use.
        code: verdicts of validation on those that do not wait.
        left: kernel -> the reason why it is not in use.
        waiting: whether some wait for the first call.
    """

    kernels: tuple[KernelSpec, ...]
    code: ValidatedCode
    left: Mapping[str, str]
    waiting: bool


def take_kernels(hot: Graph, chosen: Sequence[KernelSpec], live: int, *, called: bool) -> TakenKernels:
    """Judge the kernels of a program that came from a file.

    Args:
        hot: the program.
        chosen: its kernels.
        live: how many of its inputs are arguments (`too_large`).
        called: whether this is the first call, when nothing may wait any longer.

    Raises:
        InputError: the kernels do not fit the program.
    """
    try:
        return _judged(hot, chosen, live, called=called)
    except InputError:
        raise
    except Exception as error:  # whatever it is: XLA computes the program without kernels
        return TakenKernels((), ValidatedCode(), left_out(chosen, error), False)


def left_out(chosen: Sequence[KernelSpec], error: Exception) -> dict[str, str]:
    """Return why no kernel of a program is in use, where an error came before anything is known of one of them."""
    return {_name(kernel): f"it cannot be made or judged here: {in_one_line(error)}" for kernel in chosen}


def _judged(hot: Graph, chosen: Sequence[KernelSpec], live: int, *, called: bool) -> TakenKernels:
    if not called and code_s(hot, chosen) > MOST_SECONDS:  # the call does it at once, with workers
        forks.load()
        late = dict.fromkeys(range(len(chosen)), _NO_TIME)
    else:
        late = {} if called else too_large(hot, chosen, live)
    asked = [i for i in range(len(chosen)) if i not in late]
    most_s = math.inf if called else MOST_SECONDS
    code = validate_code(hot, [chosen[i] for i in asked], most_s, MOST_ELEMENTS, beside=called)
    left = {asked[j]: str(why) for j, why in code.refuted.items()}
    late |= {asked[j]: _NO_TIME for j in code.untried}
    run = [i for i in asked if i not in late and i not in left]
    left |= {run[j]: why for j, why in disagreeing(hot, [chosen[i] for i in run]).items()}
    kernels = tuple([chosen[i] for i in run if i not in left])
    left |= {i: f"it is compared with XLA's values at the first call: {why}" for i, why in late.items()}
    told = {_name(chosen[i]): why for i, why in sorted(left.items())}
    return TakenKernels(kernels, code, told, bool(late))


def _name(kernel: KernelSpec) -> str:
    return f"kernel of value {kernel.root}"
