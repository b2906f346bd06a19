"""Proving for users: rules, statements about JAX functions, files of either, and the library as a whole.

`verify` takes the text of a rule, a rule, a statement, or two JAX functions with the shapes of their arguments.

    superopt.verify(lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c), "m k", "k l", "l n")

`statement` and `rule` take the same.  They also decorate a function that returns both sides.  `rule` proves the
statement, lifts it to a rule over named axes and returns that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, overload

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from superopt.errors import RuleError, UsageError, VerificationError
from verifier.record.ledger import verify_rules
from verifier.rules.preconditions import explained
from verifier.verdict import Verdict

if TYPE_CHECKING:
    from superopt.certify.validate import Validation
    from verifier.statements.statement import Statement

StatementSide = Callable[..., Any]
_MADE: ContextVar[list[tuple[Any, bool]] | None] = ContextVar("made by a file under verification", default=None)


class ReturnedProgram(Protocol):
    """An optimised program, as returned or as loaded."""

    def validate(self, original: Any = None) -> Validation:
        """Check that it computes the same function as the original."""
        ...


@overload
def verify(first: Any, second: ReturnedProgram, /) -> Validation: ...
@overload
def verify(
    first: Any, second: Any = None, /, *specs: Any, constraints: Sequence[str] = (), name: str = "", **named: Any
) -> Verdict: ...
def verify(
    first: Any, second: Any = None, /, *specs: Any, constraints: Sequence[str] = (), name: str = "", **named: Any
) -> Any:
    """Prove or refute a rule, a statement about two functions, or that two programs compute the same.

    Args:
        first: the text of one rule, a rule, a statement, a JAX function, or an original program.
        second: the other function, or the optimised program.
        specs: shapes of the functions' arguments, by position: `"m k"`, `"int32[n]"`, `("m k", "bfloat16")`.
        constraints: comparisons of sizes: `("m >= 2", "n % 4 == 0")`.
        name: name of the statement, for reports.
        named: shapes by the name of the argument.

    Returns:
        A verdict whose `status` is PROVED (with its domain), REFUTED (with arrays), UNKNOWN (with a cause) or
        UNSUPPORTED (with the op); for programs the result of `validate` of the optimised one.

    Raises:
        RuleError: the text is not a rule.
        InputError: a shape or a constraint cannot be read.
        UsageError: something else was given.
    """
    validate = getattr(second, "validate", None)
    if validate is not None:
        return validate(first)
    if callable(first) and callable(second):
        return statements().check_statement(_statement(first, second, specs, constraints, name, named))
    if second is not None:
        raise UsageError(
            f"cannot compare a {type(first).__name__} with a {type(second).__name__}",
            hint="give two functions and the shapes of their arguments",
        )
    if isinstance(first, str):
        first = parse(first, where="<text>")
    if isinstance(first, Rule):
        return explained(first, verify_rules([first])[0])
    if _is_statement(first):
        return statements().check_statement(first)
    raise UsageError(
        f"cannot verify a {type(first).__name__}",
        hint="give the text of a rule, a rule or statement, or two functions and the shapes of their arguments",
    )


def _is_statement(x: Any) -> bool:
    return type(x).__module__ == "verifier.statements.statement" and hasattr(x, "specs")  # without loading jax


def statements() -> Any:
    """Import the prover of statements, a module."""
    from verifier.statements import statement  # late: loads jax, which rules do not need

    return statement


def statement(*given: Any, constraints: Sequence[str] = (), name: str = "", **named: Any) -> Any:
    """Make a statement, not yet proved: two functions and the shapes of their arguments.

    As a decorator, `@superopt.statement("m k", "k n")` on a function that returns both sides.

    Raises:
        InputError: a shape or a constraint cannot be read.
    """

    def make(left: StatementSide, right: StatementSide, specs: Sequence[Any]) -> Statement:
        made = _statement(left, right, specs, constraints, name, named)
        _record(made)
        return made

    return _given(given, make)


def rule(*given: Any, constraints: Sequence[str] = (), name: str = "", **named: Any) -> Any:
    """Make a proved rule from its text, or from two JAX functions and the shapes of their arguments.

        superopt.rule("dot-assoc: A[*m *k] B[*k *l] C[*l *n]\\n  dot(dot(A, B, k), C, l) == dot(A, dot(B, C, l), k)")
        superopt.rule(lambda a, b: (a @ b).T, lambda a, b: b.T @ a.T, "m k", "k n", name="transposed-product")

        @superopt.rule(x="m k", w="k n", a="k r", b="r n")
        def lora_fold(x, w, a, b):
            return x @ w + (x @ a) @ b, x @ (w + a @ b)

    Functions are proved equal for all sizes, then lifted to a rule over named axes whose roles stand for as many axes
    as the prover covers.

    Raises:
        RuleError: the text is not a rule, or no rule text speaks of the functions.
        VerificationError: it is not proved; the message holds the counterexample or the cause.
        InputError: a shape or a constraint cannot be read.
    """
    if len(given) == 1 and isinstance(given[0], str) and ":" in given[0]:
        made = parse(given[0], where="<text>")
        if not _record(made):
            verdict = verify(made)
            if verdict.status != "PROVED":
                raise VerificationError(f"the rule {made.name} is {verdict.status}:\n{verdict}")
        return made

    def make(left: StatementSide, right: StatementSide, specs: Sequence[Any]) -> Any:
        said = _statement(left, right, specs, constraints, name, named)
        return said if _record(said, lift=True) else _lifted(said)

    return _given(given, make)


def _lifted(said: Statement) -> Rule:
    """Prove a statement and lift it to a rule.

    Raises:
        VerificationError: the statement is not proved.
        RuleError: there is no such rule, or it is not proved over named axes.
    """
    made, verdict = statements().as_rule(said)
    if made is not None:
        return made
    if verdict.status == "PROVED":
        raise RuleError(
            f"{said.name} is proved, but it is no rule over named axes: {verdict.cause}",
            hint="keep it as a superopt.statement",
        )
    raise VerificationError(f"the statement {said.name} is {verdict.status}:\n{verdict}")


def _statement(
    left: StatementSide,
    right: StatementSide,
    specs: Sequence[Any],
    constraints: Sequence[str],
    name: str,
    named: dict[str, Any],
) -> Statement:
    source = getattr(inspect.unwrap(left), "__code__", None)
    where = f"{source.co_filename}:{source.co_firstlineno}" if source is not None else ""
    title = name or getattr(left, "__name__", "").strip("<>").replace("_", "-") or "statement"
    return statements().make_statement(title, left, right, specs, named, constraints, where)


def _given(given: Sequence[Any], make: Callable[[StatementSide, StatementSide, Sequence[Any]], Any]) -> Any:
    """Apply `make` to two functions and specifications, or return a decorator for a function with both sides."""
    if len(given) >= 2 and callable(given[0]) and callable(given[1]):
        return make(given[0], given[1], given[2:])
    if any(map(callable, given)):
        raise UsageError("one function is no statement", hint="give both sides, or decorate a function of both")

    def decorate(both: StatementSide) -> Any:
        if not inspect.isfunction(both):
            raise UsageError(f"cannot decorate a {type(both).__name__}", hint="decorate a function of both sides")
        return make(_side(both, 0), _side(both, 1), given)

    return decorate


def _side(both: StatementSide, which: int) -> StatementSide:
    @functools.wraps(both)
    def side(*args: Any, **kwargs: Any) -> Any:
        sides = both(*args, **kwargs)
        if not isinstance(sides, tuple) or len(sides) != 2:
            raise ValueError(f"{both.__name__} must return its two sides")
        return sides[which]

    return side


@contextmanager
def collected() -> Iterator[list[tuple[Any, bool]]]:
    """Collect the statements and rules made inside the context, each with whether it is to be a rule, unproved."""
    made: list[tuple[Any, bool]] = []
    token = _MADE.set(made)
    try:
        yield made
    finally:
        _MADE.reset(token)


def _record(made: Any, *, lift: bool = False) -> bool:
    known = _MADE.get()
    if known is not None:
        known.append((made, lift))
    return known is not None
