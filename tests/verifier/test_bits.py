"""The tier of bits: its functions against the interpreter, and statements of machine integers, masks and engineers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from superopt.ir.scalar import COMPARISONS, SCALARS, apply, convert
from superopt.ir.types import SIGNED
from superopt.lab.corpora.statements import engineer, integers
from superopt.lab.corpora.statements.hostile import hostile
from tests.support.sampling import one_in, sampled
from verifier.equal import bits
from verifier.equal.poly import const, var
from verifier.equal.solver import Context, z3
from verifier.equal.terms import Apply, Const, Infinity, Read, Reduce, alike
from verifier.statements.statement import check_statement, proved_alone
from verifier.verdict import PROVED

CTX = z3.Context()


def values(dtype: str) -> list[int]:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    some = rng.integers(info.min, int(info.max) + 1, 12, dtype=np.int64)
    edges = {info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, 7, 8, 9, 31}
    return sorted({int(v) for v in (*some, *edges) if info.min <= v <= info.max} | ({-1, -8} if info.min else set()))


def number(x: object, dtype: str) -> int:
    made = z3.simplify(x)
    return made.as_signed_long() if dtype in SIGNED else made.as_long()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", sorted(bits.FUNCTIONS))
def test_functions_mean_what_the_interpreter_computes(name: str, dtype: str) -> None:
    width, arity = bits.width_of(dtype), SCALARS[name].arity
    some = values(dtype)
    pairs = [(a,) for a in some] if arity == 1 else [(a, b) for a in some for b in some]
    for given in pairs:
        terms = [z3.BitVecVal(v, width, CTX) for v in given]
        with np.errstate(all="ignore"):
            wanted = apply(name, dtype, tuple(np.array(v, dtype) for v in given))
        got = number(bits.value_of(name, *terms, signed=dtype in SIGNED), dtype)
        assert got == int(wanted), (name, dtype, given)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_comparisons_mean_what_the_interpreter_computes(name: str, dtype: str) -> None:
    for a in values(dtype):
        for b in values(dtype):
            terms = [z3.BitVecVal(v, 8, CTX) for v in (a, b)]
            found = z3.is_true(z3.simplify(bits.compared(name, *terms, signed=dtype in SIGNED)))
            assert found == bool(apply(name, dtype, (np.array(a, dtype), np.array(b, dtype)))), (name, dtype, a, b)


@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "uint32"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint32"])
def test_conversions_mean_what_the_interpreter_computes(source: str, target: str) -> None:
    for v in values(source):
        made = z3.BitVecVal(v, bits.width_of(source), CTX)
        if source == target:
            continue
        got = bits._converted(made, source in SIGNED, bits.width_of(source), bits.width_of(target))
        assert number(got, target) == int(convert(np.array(v, source), source, target)), v


def test_equal_bits_knows_types_and_refuses_what_it_does_not_know() -> None:
    a = Read("a", (var("i"),))
    ctx, kinds = Context(), {"a": "int8"}
    twice = Apply("not[int8]", (Apply("not[int8]", (a,)),))
    assert bits.equal_bits(ctx, twice, a, "int8", kinds, ())
    wide = Apply("convert[int8,int32]", (a,))
    square = Apply("mul[int32]", (wide, wide))
    never = Apply("ge[int32]", (square, Const(Fraction(0))))
    narrow = Apply("ge[int8]", (Apply("mul[int8]", (a, a)), Const(Fraction(0))))
    yes = Apply("eq[int8]", (a, a))
    assert bits.equal_bits(ctx, never, yes, "bool", kinds, ())
    assert not bits.equal_bits(ctx, narrow, yes, "bool", kinds, ())
    for unknown in (Apply("add[int16]", (a, a)), Apply("exp", (a,)), Reduce("sum", "k", const(3), a), Infinity(1)):
        with pytest.raises(bits.CannotLower):
            bits.equal_bits(ctx, unknown, a, "int8", kinds, ())


def test_terms_are_alike_up_to_names_of_bound_variables() -> None:
    def total(name: str, kind: str = "sum") -> Reduce:
        return Reduce(kind, name, var("n"), Apply("mul", (Read("x", (var(name),)), Read("y", (var("i"),)))))

    assert alike(total("k"), total("j"))
    assert not alike(total("k"), total("j", "max"))
    assert not alike(total("i"), total("j")), "one is bound to what is free in the other"
    assert not alike(total("j"), total("i"))
    assert alike(Apply("mul", (Read("a", ()), Read("b", ()))), Apply("mul", (Read("b", ()), Read("a", ()))))
    assert not alike(Apply("sub", (Read("a", ()), Read("b", ()))), Apply("sub", (Read("b", ()), Read("a", ()))))


TRUE = [*integers.STATEMENTS[::6], *engineer.STATEMENTS[::9]]
OPEN = ("gradient-of-cross-entropy",)


@pytest.mark.parametrize("statement", sampled(TRUE, lambda n, s: n % 6 == 0 or s.name in OPEN), ids=lambda s: s.name)
def test_true_statements_are_proved(statement) -> None:
    found = check_statement(statement)
    assert found.status != "REFUTED"
    assert (found.status == PROVED) == (statement.name not in OPEN), found.cause


@pytest.mark.parametrize(
    "case",
    sampled(hostile(0, 34), one_in(34, lambda case: [case.statement.where])),
    ids=lambda case: case.statement.name,
)
def test_hostile_statements_are_not_proved_even_without_the_refuter(case) -> None:
    found = proved_alone(case.statement)
    assert not found.proved or (case.in_bits and found.domain.exactness != "exact")
