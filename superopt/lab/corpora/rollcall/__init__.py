"""The roll call: rewrites that compilers trust, as texts that the verifier proves.

One module per family of XLA's algebraic simplifier, as TensorRight (POPL 2025) lists it: 118 rules and the swap of a
convolution's operands.  Further modules have rules that its language cannot express, and identities that whole kernels
rest on.  The `source` of a rule is its place: `XLA family/n` with the rule as XLA has it, `XLA beyond`, or `kernel`.
Where one XLA rule needs two texts (padding at either end), both carry its number.  `wrong` holds one false variant per
family at least.

The texts are proved, not applied: what the search uses is `rewrites.library`.
"""

from __future__ import annotations

import functools

from rewrites.language import texts
from rewrites.language.term import Rule

FAMILIES = {
    "add": 4, "broadcast": 8, "clamp": 3, "compare": 6, "concat": 7, "conv": 4, "divmod": 8, "dot": 6, "dynamic": 9,
    "iota": 1, "logical": 11, "max": 2, "mul": 10, "negation": 2, "pad": 4, "reduce": 8, "relabel": 2, "reverse": 4,
    "select": 4, "slice": 13, "sub": 3,
}  # fmt: skip
"""Family -> number of XLA rules in it (the operand swap included)."""


@functools.cache
def load() -> dict[str, tuple[Rule, ...]]:
    """The true rules, by module.

    Raises:
        RuleError: a text is no well-formed rule, or two rules share a name.
    """
    out = {name: texts.read(__name__, name) for name in texts.modules(__name__) if name != "wrong"}
    texts.distinct((rule for rules in out.values() for rule in rules), "rules of the roll call")
    return out


@functools.cache
def wrong() -> tuple[Rule, ...]:
    """False variants, which must be refuted."""
    return texts.read(__name__, "wrong")
