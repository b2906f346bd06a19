"""Attempts to have wrong kernels proved: text that LLVM reads otherwise than the reader, promises that are broken,
memory that nobody wrote, buffers that are not what they are said to be."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest

from superopt.lab.corpora.kernels import mutants
from verifier.kernels.check import KernelPart, validate
from verifier.kernels.field import Field, Unread
from verifier.kernels.reader import functions
from verifier.kernels.rewrite import rewritten
from verifier.kernels.scalars import known
from verifier.verdict import PROVED, UNKNOWN


@functools.cache
def made(name: str) -> mutants.MadeKernel:
    return mutants.kernel(name)


def changed(name: str, *changes: tuple[str, str]) -> list[KernelPart]:
    """The parts of a kernel, with the first match of each pattern in the last one replaced."""
    *early, part = made(name).parts
    text = part.text
    for pattern, by in changes:
        text, count = re.subn(pattern, by, text, count=1, flags=re.MULTILINE)
        assert count, pattern
    return [*early, part._replace(text=text)]


def status(name: str, parts: list[KernelPart]) -> str:
    return validate(made(name).before, parts, known()).status


ENTRY = r"(void @phase0\([^{]*\{\nentry:\n)"
STORE = r"^(  store <16 x float> .*)$"
LOAD = r"^(  %\w+ = load <16 x float>, ptr %\w+, align 4)$"
BUFFER = r"^(  %v5 = load ptr, ptr %v4, align 8)$"  # the output of `chain`


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        # what LLVM does not read, and the reader would
        (STORE, "  ; of LLVM this is one comment \x0c\\1"),
        (STORE, "  ; and this \x1e\\1"),
        # what LLVM reads, and the reader would not
        (STORE, "\\1\n; begin exp %x\n  store float 0x0000000000000000, ptr %v5, align 4"),
        (r"^!0 = distinct", "!9 = !{} define float @sinf(float %x) { ret float %x }\n!0 = distinct"),
        (r"^declare", "declare void @a() define float @sinf(float %x) { ret float %x } declare void @b()\ndeclare"),
        (r"^declare", "declare float @sinf(float returned) nounwind\ndeclare"),
        (LOAD, "\\1, !llvm.loop !0, !noalias !1"),
        (r"^(next8):", "\\1 , odd:"),
        # of vectors without an alignment LLVM takes that of the whole vector
        (LOAD.replace(", align 4)$", ")(, align 4)$"), "\\1"),
        (r"^(  store <16 x float> %\w+, ptr %\w+), align 4$", "\\1"),
        # promises
        (r"add i64 (%i10), 1", "add nsw i64 \\1, 1"),
        (r"mul i64 (%i10), 37", "mul nuw i64 \\1, 37"),
        (r"(icmp slt i64 %i10, 7\n)", "\\1  %odd = trunc nsw i64 8589934592 to i32\n"),
        (r"= getelementptr float", "= getelementptr inbounds float"),
        (r"= fdiv <", "= fdiv nnan <"),
        (r"= fmul <", "= fmul reassoc <"),
        # what may be anything
        (r"^(  br i1) %v11,", "\\1 poison,"),
        (r"icmp slt i64 %i10, 7", "icmp slt i64 %i10, poison"),
        (r"(icmp slt i64 %i10, 7\n)", "\\1  %odd = extractelement <16 x float> zeroinitializer, i64 %i10\n"),
        (STORE, "  %odd = insertelement <16 x i1> poison, i1 true, i64 0\n"
                "  call void @llvm.masked.store.v16f32.p0(<16 x float> %v24, ptr align 4 %v26, <16 x i1> %odd)"),
        (r"(define internal void @phase0\(ptr %bufs, i64 %task\)) nounwind", "\\1 nounwind willreturn"),
        (STORE, "  %odd = insertelement <16 x float> %odd, float 0x0000000000000000, i64 0\n\\1"),
        # memory of others is freed
        (r"^  ret void", "  call void @free(ptr %v5)\n  ret void"),
    ],
)  # fmt: skip
def test_texts_that_say_another_thing_to_llvm(pattern: str, by: str) -> None:
    assert status("chain", made("chain").parts) == PROVED
    assert status("chain", changed("chain", (pattern, by))) != PROVED


def test_a_mark_does_not_begin_within_another() -> None:
    mark = r"^(; begin exp .*|  ; begin exp .*)$"
    assert status("softmax", made("softmax").parts) == PROVED
    parts = changed("softmax", (mark, "; begin exp %x\n  store float 0x0000000000000000, ptr %v3, align 4\n\\1"))
    assert status("softmax", parts) == UNKNOWN


def _called(returns: str, value: str, use: str) -> str:
    return (
        f"define internal {returns} @odd() nounwind #0 {{\nentry:\n  ret {returns} {value}\n}}\n"
        f"define internal void @phase0(ptr %bufs, i64 %task) nounwind #0 {{\nentry:\n  %x = call {returns} @odd()\n"
        f"  {use}\n  ret void\n}}\n"
    )


@pytest.mark.parametrize("value", ["-1", "1099511627776"])
def test_integers_that_functions_return_are_not_taken_for_elements(value: str) -> None:
    with pytest.raises(Unread):
        rewritten(functions(_called("i64", value, "%y = and i64 %x, 1"), {}), [("phase0", 1)], Field(0), "")


def test_buffers_are_what_the_program_says() -> None:
    kernel = made("chain")
    (part,) = kernel.parts
    x, y, out = part.pointers
    for pointers in ([x, y, replace(out, scope="input")], [x, y, out, out], [replace(x, scope="output"), y, out]):
        assert status("chain", [part._replace(pointers=pointers)]) != PROVED


def test_a_buffer_of_another_type_is_not_the_same_buffer() -> None:
    of = mutants.kernel("half")
    (part,) = of.parts
    before = replace(of.before, buffers=tuple([replace(b, dtype="float32") for b in of.before.buffers]))
    assert validate(before, [part], known()).status != PROVED


def test_no_result_depends_on_memory_that_nobody_wrote() -> None:
    """Zero times anything is zero in the field; of what a machine finds there it may be no number."""
    add = r"^(  %v24 = fdiv .*)$"
    old = "  %old = load <16 x float>, ptr %v26, align 4\n  %none = fmul <16 x float> %old, zeroinitializer\n"
    parts = changed("chain", (add, old + "\\1"), (STORE, "  %s = fadd <16 x float> %v24, %none\n\\1"))
    parts = [parts[0]._replace(text=parts[0].text.replace("store <16 x float> %v24", "store <16 x float> %s"))]
    assert status("chain", parts) != PROVED


def test_no_result_depends_on_arrays_of_a_function_that_nobody_wrote() -> None:
    use = r"^(  %v24 = fdiv .*)$"
    old = "  %old = load float, ptr %room, align 4\n  %none = fmul float %old, 0x0000000000000000\n"
    old += "  %first = insertelement <16 x float> zeroinitializer, float %none, i64 0\n"
    parts = changed("chain", (ENTRY, "\\1  %room = alloca [4 x float], align 64\n"), (use, old + "\\1"))
    stored = "  %s = fadd <16 x float> %v24, %first\n  store <16 x float> %s"
    text = parts[0].text.replace("  store <16 x float> %v24", stored)
    assert status("chain", [parts[0]._replace(text=text)]) != PROVED


def test_an_address_that_integers_in_memory_move_is_one_wherever_it_is_read() -> None:
    """A pointer of the next iteration is used above the line that makes it."""
    assert status("rows", made("rows").parts) == PROVED
    held = (r"^(  %i10 = phi .*)$", "\\1\n  %p = phi ptr [ %v5, %entry ], [ %q, %next8 ]")
    moved = (r"^(  %v22 = .*)$", "\\1\n  %q = getelementptr float, ptr %p, i64 %v21")
    stored = (r"(%v26 = getelementptr float, ptr) %v5", "\\1 %p")
    assert status("rows", changed("rows", held, moved, stored)) != PROVED


@pytest.mark.parametrize("use", ["fsub <16 x float> %e5, %e5", "fadd <16 x float> zeroinitializer, zeroinitializer"])
def test_no_place_is_made_of_memory_that_nobody_wrote(use: str) -> None:
    """LLVM may take another number at each use, also between the one that is compared and the one that is read at."""
    room = (ENTRY, "\\1  %r = call ptr @aligned_alloc(i64 64, i64 64)\n")
    lines = f"""  %u = load i32, ptr %r, align 4
  %e1 = icmp slt i32 %u, 0
  %e2 = select i1 %e1, i32 0, i32 %u
  %e3 = icmp slt i32 %e2, 39
  %e4 = select i1 %e3, i32 %e2, i32 39
  %at = getelementptr float, ptr %v3, i32 %e4
  %e5 = load <16 x float>, ptr %at, align 4
  %e6 = {use}
  %e7 = fadd <16 x float> %v24, %e6
"""
    stored = (r"^  store <16 x float> %v24,", lines + "  store <16 x float> %e7,")
    freed = (r"^  ret void", "  call void @free(ptr %r)\n  ret void")
    assert status("rows", changed("rows", room, stored, freed)) != PROVED


@pytest.mark.parametrize("line", ["%c = freeze i8 %b", "%c = or i1 %x, -1", "store i8 2, ptr %p, align 1"])
def test_conditions_are_zero_or_one(line: str) -> None:
    text = f"""define internal void @phase0(ptr %bufs, i64 %task) nounwind #0 {{
entry:
  %p = load ptr, ptr %bufs, align 8
  %b = load i8, ptr %p, align 1
  %x = icmp ne i8 %b, 0
  {line}
  ret void
}}
"""
    with pytest.raises(Unread):
        rewritten(functions(text, {}), [("phase0", 1)], Field(0), "")


def test_a_shuffle_without_places_is_no_mask() -> None:
    text = """define internal void @phase0(ptr %bufs, i64 %task) nounwind #0 {
entry:
  %p = load ptr, ptr %bufs, align 8
  %m = shufflevector <4 x i1> splat (i1 true), <4 x i1> zeroinitializer, <4 x i32> poison
  call void @llvm.masked.store.v4f32.p0(<4 x float> zeroinitializer, ptr align 4 %p, <4 x i1> %m)
  ret void
}
"""
    with pytest.raises(Unread):
        rewritten(functions(text, {}), [("phase0", 1)], Field(0), "")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("free", "  call void @free(ptr %a)\n  call void @free(ptr %a)"),
        ("align", "  call void @free(ptr %a)"),
        ("stack", ""),
    ],
)  # fmt: skip
def test_memory_of_a_function(kind: str, line: str) -> None:
    room = {"align": "call ptr @aligned_alloc(i64 60, i64 64)", "stack": "alloca [4 x float], align 1"}
    text = f"""define internal void @phase0(ptr %bufs, i64 %task) nounwind #0 {{
entry:
  %a = {room.get(kind, "call ptr @aligned_alloc(i64 64, i64 64)")}
{line}
  ret void
}}
"""
    with pytest.raises(Unread):
        rewritten(functions(text, {}), [("phase0", 1)], Field(0), "")
