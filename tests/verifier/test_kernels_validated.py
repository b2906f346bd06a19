"""Emitted kernels against their loop programs: right ones are proved, changed ones are not."""

from __future__ import annotations

import ctypes
import functools
import re

import numpy as np
import pytest

from superopt.kernels.math.table import ERROR_ULPS
from superopt.lab.corpora.kernels import mutants
from verifier.kernels import watched
from verifier.kernels.check import KernelPart, compiled, validate
from verifier.kernels.field import Field, P
from verifier.kernels.meaning import Unread
from verifier.kernels.reader import canonical, functions, instruction
from verifier.kernels.rewrite import rewritten
from verifier.kernels.scalars import BLOCK, NAMES, compare, digest, known
from verifier.verdict import PROVED, REFUTED, UNKNOWN

U, F32 = np.uint64, np.float32


@functools.cache
def made(name: str) -> mutants.MadeKernel:
    return mutants.kernel(name)


def verdict(name: str, change: tuple[str, str] | None = None) -> tuple[str, str]:
    """Status and cause of a kernel, with the first match of a pattern in its last part replaced."""
    kernel = made(name)
    parts = list(kernel.parts)
    if change is not None:
        text, count = re.subn(change[0], change[1], parts[-1].text, count=1)
        assert count
        assert text != parts[-1].text
        parts[-1] = parts[-1]._replace(text=text)
    found = validate(kernel.before, parts, known())
    return found.status, found.cause


@pytest.mark.parametrize("name", ["chain", "product", "reversal"])
def test_right_kernels_are_proved(name: str) -> None:
    assert verdict(name) == (PROVED, "")


@pytest.mark.parametrize(
    ("name", "pattern", "by", "status", "says"),
    [
        ("chain", r"icmp slt i64 (%\S+), 7", r"icmp slt i64 \1, 8", REFUTED, "outside"),
        ("chain", r"fdiv", "fmul", UNKNOWN, "not shown to be equal"),
        ("reversal", r"fsub (.*) (%\w+), (%\w+)", r"fsub \1 \3, \2", UNKNOWN, "not shown to be equal"),
        ("product", r"nsw i64 (%\S+), 1\b", r"nsw i64 \1, 0", REFUTED, "does not end"),
        ("product", r"(void @phase0\([^{]*\{\nentry:\n)", r"\1  %odd = freeze i64 %task\n", UNKNOWN, "freeze"),
    ],
)  # fmt: skip
def test_changed_kernels_are_not(name: str, pattern: str, by: str, status: str, says: str) -> None:
    found, cause = verdict(name, (pattern, by))
    assert found == status
    assert says in cause


@pytest.mark.parametrize(("op", "ways"), [("sitofp", ("sext", "srem")), ("uitofp", ("zext", "urem"))])
def test_numbers_without_signs_are_not_read_with_one(op: str, ways: tuple[str, str]) -> None:
    lines = ["%s = trunc i64 %task to i32", f"%x = {op} i32 %s to float", "ret void"]
    text = "define internal void @phase0(ptr %bufs, i64 %task) #0 {\nentry:\n  " + "\n  ".join(lines) + "\n}\n"
    made = rewritten(functions(text, known()), [("phase0", 1)], Field(0), "")
    body = made[made.index("@phase0(") :]
    assert f"{ways[0]} i32 %s to i64" in body
    assert f"{ways[1]} i64" in body


def test_tasks_that_meet_are_found() -> None:
    kernel = made("product")
    (*early, hot) = kernel.parts
    twice = [(name, tasks) for name, tasks in hot.phases]
    text = re.sub(r"(define internal void @phase0\()ptr %bufs, i64 %task(.*\n)", r"\1ptr %bufs, i64 %other\2", hot.text)
    text = re.sub(r"(@phase0\(.*\n)entry:\n", r"\1entry:\n  %task = mul i64 %other, 0\n", text, count=1)
    found = validate(kernel.before, [*early, KernelPart(text, [(n, t + 1) for n, t in twice], hot.pointers)], known())
    assert found.status == REFUTED
    assert "two tasks meet" in found.cause


def test_the_field_in_llvm_is_the_field_in_numpy() -> None:
    """Every function of the library on random elements and on the ends of their range."""
    field = Field(3)
    calls = {
        "mul": field.mul, "maximum": field.maximum, "choose": field.choose, "inverse": field.inverse,
        "equal": field.equal,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    columns = [np.append(rng.integers(0, P, 60), [0, 1, P - 1, 5]).astype(U) for _ in range(3)]
    columns[0][:8] = field.less(columns[1], columns[2])[:8]
    text = watched.library({8}, field) + "define i64 @run() {\n  ret i64 0\n}\n"
    for name in calls:
        count = {"inverse": 1, "choose": 3}.get(name, 2)
        loads = [f"  %p{j} = getelementptr i64, ptr %x, i64 {8 * j}\n  %v{j} = load <8 x i64>, ptr %p{j}, align 8"
                 for j in range(count)]  # fmt: skip
        args = ", ".join(f"<8 x i64> %v{j}" for j in range(count))
        text += f"define void @{name}.test(ptr %x, ptr %y) {{\n" + "\n".join(loads)
        text += f"\n  %r = call <8 x i64> @{name}.8({args})\n  store <8 x i64> %r, ptr %y, align 8\n  ret void\n}}\n"
    with compiled(text) as engine:
        for name, fn in calls.items():
            count = {"inverse": 1, "choose": 3}.get(name, 2)
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(f"{name}.test"))
            for at in range(0, 64, 8):
                xs = np.ascontiguousarray([c[at : at + 8] for c in columns[:count]])
                y = np.empty(8, U)
                call(xs.ctypes.data, y.ctypes.data)
                assert (y % U(P) == fn(*xs)).all(), name


def test_laws_of_the_field() -> None:
    field = Field(7, [3.0])
    a, b, c = [field.random(name, 100) for name in "abc"]
    assert (field.mul(a, field.inverse(a)) == 1).all()
    assert (field.maximum(a, field.maximum(b, c)) == field.maximum(field.maximum(c, a), b)).all()
    low = np.full(100, field.constant(float("-inf")), U)
    assert (field.maximum(a, low) == a).all()
    assert (field.choose(field.less(b, a), a, b) == field.maximum(a, b)).all()
    assert (field.choose(field.no(field.less(b, a)), a, b) == field.minimum(a, b)).all()
    assert field.constant(float(np.float32(1) / np.float32(3))) * 3 % P == 1
    assert field.constant(0.75) * 4 % P == 3


@pytest.mark.parametrize("divisors", [{1.0, -1.0}, {0.5, 2.0}, {3.0, float(F32(1) / F32(3))}, {3.0}])
def test_reciprocals_of_divisors_stand_for_quotients_and_end(divisors: set[float]) -> None:
    field = Field(0, divisors)
    for c in divisors:
        assert field.constant(c) * field.constant(float(F32(1) / F32(c))) % P == 1


@pytest.mark.parametrize(
    "line",
    ["%x = load atomic i64, ptr %p", "store float %x, ptr %p, align 4, !noalias !3", "%y = fadd fast float %x, %x"],
)
def test_unknown_lines_are_refused(line: str) -> None:
    with pytest.raises(Unread):
        instruction(line)


def test_promises_of_functions_are_refused() -> None:
    with pytest.raises(Unread):
        functions(
            "define internal void @phase0(ptr %bufs, i64 %task) nounwind memory(none) #0 {\nentry:\n  ret void\n}", {}
        )


def test_code_of_scalar_functions_is_the_same_for_any_lanes() -> None:
    wide = ["%v3 = fmul <16 x float> %v1, splat (float 0x4000000000000000)",
            "%v4 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v3, <16 x float> %v1, <16 x float> %v1)",
            ]  # fmt: skip
    narrow = ["%a = fmul <4 x float> %x, splat (float 0x4000000000000000)",
              "%b = call <4 x float> @llvm.fma.v4f32(<4 x float> %a, <4 x float> %x, <4 x float> %x)"]  # fmt: skip
    assert digest(wide, ["%v1"], "%v4") == digest(narrow, ["%x"], "%b")
    assert digest(wide, ["%v1"], "%v3") != digest(wide, ["%v1"], "%v4")
    with pytest.raises(Unread):
        canonical(wide, ["%v0"], "%v4")


def test_compared_code_is_what_is_generated() -> None:
    """One block of a thousandth of all floats; the whole is the mark slow."""
    code, worst = compare("exp", 0x3F800000, BLOCK)
    assert worst <= ERROR_ULPS["exp"][0]
    assert known().get(code, "exp") == "exp"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scalar_functions_on_every_float(name: str) -> None:
    _, worst = compare(name)
    assert worst <= ERROR_ULPS[name][0]


def test_mutants() -> None:
    rows = list(mutants.draw(12, seed=1))
    assert not [row for row in rows if row["missed"]]
    assert sum(row["wrong"] for row in rows) == 12
