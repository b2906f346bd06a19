"""Options of the XLA:CPU compiler that change speed but not meaning, as choices of a plan.

A choice is a few options with the reason why it may pay; `options_of` joins several choices.  Which options are fast
depends on the program, so choices are tried on whole programs and timed (`superopt.contest.contest`).

Options that change NaN, infinities or denormals are left out on purpose: `xla_cpu_enable_fast_math`,
`xla_cpu_enable_fast_min_max`, `xla_cpu_ftz`, and a list of YNN fusion types without reductions (whose maxima treat NaN
differently).  Options that the survey found without effect are left out too (`superopt bench --suite options`).

An option that the running XLA does not know, or that the user has set in `XLA_FLAGS`, is refused with a reason and left
out; nothing fails because of it.  JAX takes options of the compiler at the top level only: inside another
transformation the function is compiled as part of the surrounding program, without them.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from superopt.files.reading import shown
from superopt.machine import facts as machine
from superopt.machine.jitting import jax_jit

_NESTED = "compiler_options"  # the option that JAX's refusal below the top level names

OptionValue = bool | str
Options = Mapping[str, OptionValue]

LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_LIBRARY_DEFAULT = ("INDIVIDUAL_DOT", "REDUCE", "INDIVIDUAL_CONVOLUTION")


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """Options that are switched together.

    Attributes:
        name: name for reports.
        reason: the reason why it may be faster.
        options: names and values.
        library_drops: kinds of fusions to keep from the YNN library.
        ops: the program must hold one of these; empty for any program.
        features: the processor must have these vector extensions.
    """

    name: str
    reason: str
    options: tuple[tuple[str, OptionValue], ...] = ()
    library_drops: tuple[str, ...] = ()
    ops: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()


CHOICES = (
    OptionChoice(
        "wide vectors",
        "512-bit vectors where XLA stops at 256: 1.2 to 1.5 times faster on elementwise chains in the caches",
        options=(("xla_cpu_prefer_vector_width", "512"),),
        features=frozenset({"avx512f"}),
    ),
    OptionChoice(
        "own convolutions",
        "Eigen's convolutions for those of YNN: 1.2 to 1.5 times faster on many 3x3 and 1x1 shapes, slower on others",
        library_drops=("INDIVIDUAL_CONVOLUTION",),
        ops=frozenset({"conv_general_dilated"}),
    ),
    OptionChoice(
        "loop emitters",
        "the older code generator: window reductions twice as fast, some other fusions 0.8 times; compiles faster, too",
        options=(("xla_cpu_use_fusion_emitters", False),),
    ),
)


def options_of(choices: Iterable[OptionChoice]) -> dict[str, OptionValue]:
    """Return the options of several choices together."""
    values: dict[str, OptionValue] = {}
    drops: set[str] = set()
    for choice in choices:
        values.update(choice.options)
        drops.update(choice.library_drops)
    if drops:
        kinds = [kind for kind in _LIBRARY_DEFAULT if kind not in drops]
        values[LIBRARY] = ",".join(f"LIBRARY_FUSION_TYPE_{kind}" for kind in kinds)
    return values


@functools.cache
def _own_values() -> frozenset[tuple[str, OptionValue]]:
    """Return every option value that some set of choices has."""
    sets = (c for size in range(len(CHOICES) + 1) for c in itertools.combinations(CHOICES, size))
    return frozenset(option for choices in sets for option in options_of(choices).items())


def own(options: Mapping[str, Any]) -> tuple[dict[str, OptionValue], dict[str, str]]:
    """Split options into those that are choices of this project, and reasons why the others are left out.

    For options that come from a file: XLA has some that write files, change results or end the process.
    """
    kept: dict[str, OptionValue] = {}
    foreign: dict[str, str] = {}
    for name, value in options.items():
        if any(name == n and type(value) is type(v) and value == v for n, v in _own_values()):
            kept[name] = value
        else:
            foreign[shown(name)] = "not a choice of this project, and not taken from a file"
    return kept, foreign


def choices_for(
    ops: Iterable[str], choices: Iterable[OptionChoice] = CHOICES
) -> tuple[list[OptionChoice], dict[str, str]]:
    """Return the choices that may matter for a program of these ops, and the reasons why others are out, by name."""
    present = set(ops)
    features = set(machine.describe().features)
    usable: list[OptionChoice] = []
    out: dict[str, str] = {}
    for choice in choices:
        _, refused = accepted(options_of([choice]))
        if refused:
            out[choice.name] = "; ".join(refused.values())
        elif lacking := choice.features - features:
            out[choice.name] = f"the processor has no {', '.join(sorted(lacking))}"
        elif not choice.ops or choice.ops & present:
            usable.append(choice)
    return usable, out


def accepted(options: Options) -> tuple[dict[str, OptionValue], dict[str, str]]:
    """Return the options that the running compiler takes, and the reason for each that it does not."""
    kept: dict[str, OptionValue] = {}
    refused: dict[str, str] = {}
    flags = {flag.split("=")[0].lstrip("-") for flag in os.environ.get("XLA_FLAGS", "").split()}
    for name, value in options.items():
        reason = f"{name} is set by XLA_FLAGS" if name in flags else _refusal(name, value)
        if reason:
            refused[name] = reason
        else:
            kept[name] = value
    return kept, refused


@functools.cache
def _refusal(name: str, value: OptionValue) -> str:
    """Return the reason why the compiler refuses an option; an empty string when it takes it."""
    if jax.default_backend() != "cpu":
        return f"{name} is an option of XLA:CPU"
    try:
        _probe().compile(compiler_options={name: value})
    except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:
        return f"XLA refuses {name}={value}: {str(error).splitlines()[0][:120]}"
    return ""


@functools.cache
def _probe() -> jax.stages.Lowered:
    return jax_jit(lambda x: x + 1.0).lower(jax.ShapeDtypeStruct((), "float32"))


def jit_with(fn: Callable[..., Any], options: Options, **arguments: Any) -> Callable[..., Any]:
    """Apply `jax.jit` with options of the compiler, usable inside other transformations too (there without them).

    Args:
        fn: the function.
        options: options of the compiler.
        arguments: arguments of `jax.jit` (`static_argnums`, `donate_argnums` and their like).
    """
    plain = jax_jit(fn, **arguments)
    if not options:
        return plain
    tuned = jax_jit(fn, compiler_options=dict(options), **arguments)

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function with the options, or without them inside of a transformation, which refuses them."""
        try:
            return tuned(*args, **kwargs)
        except ValueError as error:
            if _NESTED not in str(error):
                raise
            return plain(*args, **kwargs)

    return call
