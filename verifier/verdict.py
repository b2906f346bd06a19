"""Verdicts on rules and statements: PROVED, REFUTED, UNKNOWN or UNSUPPORTED, each with its evidence.

PROVED carries its domain: ranks per role, dtypes, exactness class and assumptions.  REFUTED carries arrays and the
first place where the two sides differ.  UNKNOWN and UNSUPPORTED carry a cause.  Only PROVED rules enter the search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, cast

PROVED, REFUTED, UNKNOWN, UNSUPPORTED = "PROVED", "REFUTED", "UNKNOWN", "UNSUPPORTED"
EXACTNESS = ("exact", "real", "range")
LEFT, RIGHT = "left", "right"
_TEST_LINES = 40  # a longer test is not printed


@dataclass(frozen=True, slots=True)
class ValidityDomain:
    """The domain in which a proved rule holds.

    Attributes:
        exactness: exact (bit-identical), real (equal over the reals) or range (real, and range may be lost).
        ranks: many-axis role -> "any" or the highest rank proved.
        dtypes: "float", and "int" where the rule also holds in wrap-around integers.
        assumptions: assumptions of the proof, one line each.
        sizes: a concrete witness that the premises can hold.
    """

    exactness: str
    ranks: tuple[tuple[str, str], ...]
    dtypes: tuple[str, ...]
    assumptions: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Input arrays on which the two sides differ.

    Attributes:
        inputs: name -> nested lists.
        shapes: name -> shape.
        choices: values of meta-variables, parameters and attributes.
        root: which equation of the rule.
        index: first index at which the results differ, None when a whole side failed.
        left, right: the two results as text; of a side that failed, the way it did.
        failed: the side that failed as a whole: left or right; empty where both have results.
        graphs: the two sides as IR text.
        seed: seed of the instance, to run it again.
        undefined: whether the right side is NaN there (it divides by zero, or leaves a function's domain).
        results: both results as nested lists; None for a side that failed.
        code: a test to paste: both sides in `jax.lax`, the arrays, and the assertion that fails.
    """

    inputs: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    choices: dict[str, str]
    root: int
    index: tuple[int, ...] | None
    left: str
    right: str
    graphs: tuple[str, str]
    seed: int
    undefined: bool = False
    results: tuple[Any, Any] = (None, None)
    code: str = ""
    failed: str = ""

    @property
    def elements(self) -> int:
        """Number of input elements, the size of the counterexample."""
        return sum(math.prod(sizes) for sizes in self.shapes.values())

    def __str__(self) -> str:
        lines = [f"  {name}{list(self.shapes[name])} = {value}" for name, value in self.inputs.items()]
        if self.choices:
            lines.append("  with " + ", ".join(f"{k} = {v}" for k, v in self.choices.items()))
        which = f" of equation {self.root + 1}" if self.root else ""
        if self.failed:
            cause = self.left if self.failed == LEFT else self.right
            return "\n".join([*lines, f"  the {self.failed} side{which} {cause}"])
        lines += [f"  left  = {self.results[0]}", f"  right = {self.results[1]}"]
        return "\n".join([*lines, f"  they differ{which} at {list(self.index or ())}: {self.left} and {self.right}"])


@dataclass(frozen=True, slots=True)
class Query:
    """A query to the solver: its SMT-LIB text, and the answer: yes (satisfiable), no or unknown."""

    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one direction of a rule, with its evidence.

    `asked` holds the solver queries behind a fresh proof, `sums` both sides of the equalities proved by normal forms
    (`verifier.equal.written`).  `proved_when` is a condition under which a rule that is not proved holds, where one was
    looked for and found.
    """

    rule: str
    key: str
    where: str
    direction: str
    status: str
    domain: ValidityDomain | None = None
    counterexample: Counterexample | None = None
    cause: str = ""
    tiers: tuple[str, ...] = ()
    obligations: int = 0
    queries: int = 0
    seconds: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)
    proved_when: str = ""
    asked: tuple[Query, ...] = field(default=(), compare=False, repr=False)
    sums: str = field(default="", compare=False, repr=False)

    @property
    def proved(self) -> bool:
        """Whether the rule may be used by the search."""
        return self.status == PROVED

    def __str__(self) -> str:
        head = f"{self.status} {self.rule} ({self.direction})"
        if self.domain is not None:
            ranks = ", ".join(f"{r}: {n}" for r, n in self.domain.ranks) or "none"
            said = f"{head} {self.domain.exactness}; ranks {ranks}; {', '.join(self.domain.dtypes)}"
            return "\n".join([said, *(f"  assuming: {text}" for text in self.domain.assumptions)])
        if self.counterexample is not None:
            remedy = f"\n  it is proved when {self.proved_when}" if self.proved_when else ""
            return f"{head} at {self.where}\n{self.counterexample}{remedy}"
        remedy = f"\n  it is proved when {self.proved_when}" if self.proved_when else ""
        return f"{head} at {self.where}: {self.cause}{remedy}"

    def told(self) -> str:
        """The verdict as text, with the test of a refutation to paste; of a long test only where to find it."""
        example = self.counterexample
        if example is None or not example.code:
            return str(self)
        lines = [line for line in example.code.splitlines() if line]
        if len(lines) > _TEST_LINES:
            return f"{self}\n  as a test to paste ({len(lines)} lines): counterexample.code of --json"
        return "\n".join([str(self), "  as a test to paste:", *(f"    {line}" for line in lines)])


# ---- JSON form of verdicts, for exchange between processes; it keeps tuples and special floats

_RECORDS: dict[str, Any] = {c.__name__: c for c in (ValidityDomain, Counterexample, Query, Verdict)}


def encode(x: Any) -> Any:
    """The JSON value of plain data, tuples, and the records of this module.

    Raises:
        TypeError: the value contains anything else.
    """
    if x is None or isinstance(x, bool | str) or type(x) is int:
        return x
    if type(x) is float:
        return x if math.isfinite(x) else {"float": repr(x)}
    if isinstance(x, list):
        return [encode(v) for v in cast(list[Any], x)]
    if isinstance(x, tuple):
        return {"tuple": [encode(v) for v in cast(tuple[Any, ...], x)]}
    if isinstance(x, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in cast(dict[Any, Any], x).items()]}
    if type(x) in _RECORDS.values():
        return {"record": type(x).__name__, "of": {f.name: encode(getattr(x, f.name)) for f in fields(x)}}
    item = getattr(x, "item", None)  # a NumPy scalar
    if item is not None and getattr(x, "shape", None) == ():
        return encode(item())
    raise TypeError(f"a {type(x).__name__} in a verdict")


def decode(x: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(x, list):
        return [decode(v) for v in cast(list[Any], x)]
    if not isinstance(x, dict):
        return x
    tagged = cast(dict[str, Any], x)
    if "float" in tagged:
        return float(tagged["float"])
    if "tuple" in tagged:
        return tuple([decode(v) for v in tagged["tuple"]])
    if "dict" in tagged:
        return {decode(k): decode(v) for k, v in tagged["dict"]}
    return _RECORDS[tagged["record"]](**{name: decode(v) for name, v in tagged["of"].items()})
