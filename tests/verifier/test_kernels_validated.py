"""Emitted kernels against their loop programs: right ones are proved, changed ones are not."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.nn import logsumexp, softmax

from superopt.backends.native import parts_of
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.scalar import DTYPE
from superopt.kernels.llvm.cpu import host
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import vector
from superopt.kernels.loops.program import from_graph
from superopt.kernels.math import ops
from superopt.kernels.math.table import ERROR_ULPS
from superopt.lab.corpora.kernels import mutants
from verifier.kernels import meaning, watched
from verifier.kernels.check import KernelPart, validate
from verifier.kernels.engine import compiled, matmul
from verifier.kernels.field import FUNCTIONS, Field, P, Unread
from verifier.kernels.meaning import evaluate
from verifier.kernels.reader import canonical, digest, functions, instruction, texts
from verifier.kernels.rewrite import rewritten
from verifier.kernels.scalars import BLOCK, NAMES, compare, known
from verifier.verdict import PROVED, REFUTED, UNKNOWN

U, F32 = np.uint64, np.float32
Array = Any


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
        ("product", r"add i64 (%i\S+), 1\b", r"add i64 \1, 0", REFUTED, "does not end"),
        ("product", r"(void @phase0\([^{]*\{\nentry:\n)", r"\1  %odd = freeze i64 %task\n", UNKNOWN, "freeze"),
    ],
)  # fmt: skip
def test_changed_kernels_are_not(name: str, pattern: str, by: str, status: str, says: str) -> None:
    found, cause = verdict(name, (pattern, by))
    assert found == status
    assert says in cause


def _of(*shape: int, dtype: str = "float32") -> Array:
    return np.ones(shape, DTYPE[dtype])


def attention(q: Array, k: Array, v: Array) -> Array:
    """Its vectors of a partial tile read lanes that nobody wrote, and leave them out in the end."""
    return jnp.einsum("hqk,khd->hqd", softmax(jnp.einsum("qhd,khd->hqk", q, k), -1), v)


KINDS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "chosen": (lambda m, x: jnp.where(m, x * 2.0, -1e9), (_of(7, 37, dtype="bool"), _of(7, 37))),
    "compared": (lambda x, y, m: (x < y) | ~m, (_of(5, 33), _of(5, 33), _of(33, dtype="bool"))),
    "numbers": (lambda m: m.T.astype(np.float32) * 3.0, (_of(35, 22, dtype="bool"),)),
    "not zero": (lambda x: x.astype(np.bool_), (_of(5, 33),)),
    "float16": (lambda x, y: jnp.exp(x * y) + 0.1, (_of(7, 37, dtype="float16"), _of(37, dtype="float16"))),
    "bfloat16": (lambda x, y: x * y + 0.1, (_of(7, 37, dtype="bfloat16"), _of(37, dtype="bfloat16"))),
    "bfloat16 product": (lambda x, y: x @ y, (_of(7, 37, dtype="bfloat16"), _of(37, 40, dtype="bfloat16"))),
    "to bfloat16": (lambda x: x.astype("bfloat16"), (_of(7, 37),)),
    "any": (lambda m: jnp.any(m, -1), (_of(7, 37, dtype="bool"),)),
    "all": (lambda x: jnp.all(x > 0, -1), (_of(7, 37),)),
    "product of rows": (lambda x: jnp.prod(x, -1), (_of(7, 37),)),
    "finite": (lambda x: jnp.where(jnp.isfinite(x), x, 0.0), (_of(7, 37),)),
    "log of sums": (lambda x: logsumexp(x, -1), (_of(7, 37),)),
    "sign": (jnp.sign, (_of(7, 37),)),
    "circular": (lambda x: jnp.sin(x) + jnp.cos(x) * jnp.tan(x), (_of(7, 37),)),
    "twice": (lambda x: x * 2.0, (_of(7, 37),)),
    "remainder": (lax.rem, (_of(7, 37), _of(7, 37))),
    "greatest so far": (lambda x: lax.cummax(x, axis=1), (_of(7, 37),)),
    "least from here": (lambda x: lax.cummin(x * 2.0, axis=0, reverse=True), (_of(37, 40),)),
    "partial tiles": (attention, (_of(40, 2, 16), _of(40, 2, 16), _of(40, 2, 16))),
    "integers": (lambda x: x + 1, (_of(7, 37, dtype="int32"),)),
    "rows": (lambda x, i: x[i], (_of(40, 37), _of(9, dtype="int32"))),
    "rows as they are": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (_of(40, 37), _of(9, dtype="int32"))),
    "sum of rows": (lambda x, y, i, j: x[i] + y[j] * 2.0, (_of(40, 37), _of(8, 37), *[_of(9, dtype="int32")] * 2)),
    "row and place": (lambda x, y, i: jnp.tanh(x[i] + y[:9]), (_of(40, 37), _of(12, 37), _of(9, dtype="int32"))),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (3, 20)), (_of(50, 20), _of(dtype="int32"))),
    "conditions of rows": (
        lambda m, x, i: jnp.where(m[i], x, 0.0),
        (_of(40, 37, dtype="bool"), _of(9, 37), _of(9, dtype="int32")),
    ),
    "rows that are missing": (lambda x, i: jnp.take(x, i, axis=0), (_of(40, 37), _of(9, dtype="int32"))),
    "row of a row": (lambda x, i, j: x[i[j]], (_of(40, 37), _of(30, dtype="int32"), _of(9, dtype="int32"))),
    "row of a product": (lambda x, i, j: x[i * j], (_of(40, 37), _of(9, dtype="int32"), _of(9, dtype="int32"))),
    "row of a sum": (lambda x, i: (x + 1.0)[i], (_of(40, 37), _of(9, dtype="int32"))),
}


def kind(name: str, change: tuple[str, str] | None = None) -> tuple[str, str]:
    fn, arrays = KINDS[name]
    graph = import_function(fn, arrays, frozen=()).graph
    (part,) = parts_of(graph)
    text, count = re.subn(*change, part.text, count=1) if change else (part.text, 1)
    assert count
    scalar = known() | (circular() if name == "circular" else {})
    found = validate(from_graph(graph.outputs), [part._replace(text=text)], scalar)
    return found.status, found.cause


@functools.cache
def circular() -> dict[str, str]:
    """Code that stands in functions of its own, taken for right: its comparison is a matter of minutes."""
    return {code: name for name in ("sin", "cos", "tan") for code in compare(name, count=0)}


OPEN = ("integers", "rows that are missing", "row of a row", "row of a product")


@pytest.mark.parametrize("name", [x for x in KINDS if x not in OPEN])
def test_conditions_and_floats_of_16_bits_in_memory_and_functions(name: str) -> None:
    assert kind(name) == (PROVED, "")


@pytest.mark.parametrize("name", OPEN)
def test_integers_in_memory_are_read_as_places_of_inputs_alone(name: str) -> None:
    status, cause = kind(name)
    assert status == UNKNOWN
    assert "integers in memory" in cause


@pytest.mark.parametrize(
    ("name", "pattern", "by", "says"),
    [
        ("chosen", r"icmp ne <(\d+) x i8>", r"icmp eq <\1 x i8>", "integers that are data"),
        ("chosen", r"(icmp ne <\d+ x i8> %\w+, splat \(i8 )0", r"\g<1>1", "integers that are data"),
        ("chosen", r"load <(\d+) x i8>, ptr (%\w+), align 1", r"load <\1 x float>, ptr \2, align 4", "type"),
        ("circular", r"0x41E0000000000000", "0x41F0000000000000", "that was not compared"),
        ("circular", r"(call float) @sinf", r"\1 @cosf", "that was not compared"),
        ("twice", r"0x4000000000000000", "0x41F0000000000000", "not shown to be equal"),  # 2^31 is 1 in the field
        ("compared", r"fcmp olt", "fcmp ogt", "not shown to be equal"),
        ("compared", r"= or <(\d+) x i1>", r"= and <\1 x i1>", "not shown to be equal"),
        ("any", r"(call i1 @llvm.vector.reduce.)or(\S+\()", r"\1and\2", "not shown to be equal"),
        ("all", r"= and <(\d+) x i1>", r"= or <\1 x i1>", "not shown to be equal"),
        ("finite", r"fcmp olt", "fcmp ole", "not shown to be equal"),
        ("finite", r"0x7FF0000000000000", "0x47EFFFFFE0000000", "not shown to be equal"),
        ("sign", r"fcmp olt", "fcmp ogt", "not shown to be equal"),
        ("sign", r"float 0x3FF0000000000000", "float 0xBFF0000000000000", "not shown to be equal"),
        ("remainder", r"(frem <\d+ x float>) (%\w+), (%\w+)", r"\1 \3, \2", "not shown to be equal"),
        ("float16", r"(load <\d+ x) half", r"\1 i16", "type"),
        ("bfloat16", r"(shl <\d+ x i32> %\w+, splat \(i32) 16", r"\1 15", "widened that was not compared"),
        ("bfloat16", r"i32 32767", "i32 32768", "narrowed that was not compared"),
        ("bfloat16", r"i32 4194304", "i32 4194305", "narrowed that was not compared"),
        ("bfloat16", r"(lshr <\d+ x i32> %\w+, splat \(i32) 16(?=\)\n.*trunc)", r"\1 15", "that was not compared"),
        ("bfloat16", r"(= bitcast <\d+ x float>) (%\w+) to", r"\1 zeroinitializer to", "that was not compared"),
        ("bfloat16", r"; begin narrowed .*", "", "did not begin"),
        ("bfloat16", r"; begin narrowed", "; begin rounded", "rounded that was not compared"),
    ],
)  # fmt: skip
def test_changed_conversions_are_not_proved(name: str, pattern: str, by: str, says: str) -> None:
    status, cause = kind(name, (pattern, by))
    assert status == UNKNOWN
    assert says in cause


def test_bits_of_one_kind_are_not_read_as_the_other() -> None:
    fn, arrays = KINDS["float16"]
    graph = import_function(fn, arrays, frozen=()).graph
    (part,) = parts_of(graph)
    before = from_graph(graph.outputs)
    others = [[replace(b, dtype="bfloat16") for b in buffers] for buffers in (before.buffers, part.pointers)]
    before = replace(before, buffers=tuple(others[0]))
    assert validate(before, [part._replace(pointers=others[1])], known()).status == REFUTED


# ---- places that are made of integers in memory


@pytest.mark.parametrize(
    ("fn", "arrays"),
    [
        (lambda i: i.astype(np.float32), (_of(16, dtype="int32"),)),
        (lambda i: i < 3, (_of(16, dtype="int32"),)),
        (lambda i: (i < 3).astype(np.float32), (_of(16, dtype="int32"),)),
        (lambda i: jnp.any(i < 3), (_of(16, dtype="int32"),)),
        (lambda i, x: jnp.where(i < 3, x, 0.0), (_of(16, dtype="int32"), _of(16))),
        (lambda x, i: x[i % 7], (_of(40, 37), _of(9, dtype="int32"))),
        (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)), (_of(9, 20), _of(3, 20), _of(dtype="int32"))),
        (lambda x, i: x[i], (_of(40, 37), _of(9, dtype="int16"))),
    ],
)
def test_integers_in_memory_that_are_more_than_places_are_open(
    fn: Callable[..., Any], arrays: tuple[Array, ...]
) -> None:
    graph = import_function(fn, arrays, frozen=()).graph
    before = from_graph(graph.outputs)
    assert validate(before, parts_of(graph), known()).status == UNKNOWN
    with pytest.raises(Unread):  # of the program alone, too
        evaluate(before, {b.name: Field(0).random(b.name, int(np.prod(b.shape))) for b in before.buffers}, Field(0))


def test_products_of_few_factors_have_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(count: int) -> dict[str, Array]:
        before = from_graph(import_function(jnp.prod, (_of(count),), frozen=()).graph.outputs)
        return evaluate(before, {before.buffers[0].name: Field(0).random("x", count)}, Field(0))

    monkeypatch.setattr(meaning, "_MOST_FACTORS", 4)
    assert product(4)
    with pytest.raises(Unread, match="a product of 5 factors"):
        product(5)


@pytest.mark.parametrize(
    ("name", "pattern", "by"),
    [
        ("rows", r"(mul i64 %\w+), 37", r"\1, 36"),  # stride
        ("rows", r"(mul i64 %\w+), 37", r"\1, 4294967333"),
        ("rows", r"(mul i64 %\w+), 37", r"\1, -37"),
        ("rows", r"(select i1 %\w+, i64) 0, i64 %(\w+)", r"\1 %\2, i64 %\2"),  # no clamp
        ("rows", r"(select i1 %\w+, i64) 0,", r"\1 1,"),
        ("rows", r"(select i1 %\w+, i64 %\w+, i64) 39", r"\1 38"),  # bounds
        ("rows", r"(select i1 %\w+, i64 %\w+, i64) 39", r"\1 40"),
        ("rows", r"(icmp slt i64 %\w+), 39", r"\1, 40"),
        ("rows", r"(icmp slt i64 %\w+), 39", r"\1, 38"),
        ("rows", r"(icmp slt i32 %\w+), 0", r"\1, 1"),  # negative ones count from the end
        ("rows", r"(add i32 %\w+), 40", r"\1, 39"),
        ("rows", r"(add i32 %\w+), 40", r"\1, 4294967336"),
        ("rows", r"add i32 (%\w+), 40", r"sub i32 \1, 40"),
        ("rows", r"(select i1 %\w+), i32 (%\w+), i32 (%\w+)", r"\1, i32 \3, i32 \2"),
        ("rows", r"sext i32", "zext i32"),  # signs
        ("rows as they are", r"sext i32", "zext i32"),
        ("rows as they are", r"icmp slt i64 (%\w+), 0", r"icmp ult i64 \1, 0"),
        ("rows as they are", r"getelementptr i32, ptr (%\w+), i64 %i(\w+)", r"getelementptr i32, ptr \1, i64 8"),
        ("rows as they are", r"(%\w+) = load i32, ptr (%\w+), align 4",
         r"%odd = load i32, ptr \2, align 4\n  \1 = add i32 %odd, 4294967295\n"),
        ("rows as they are", r"(%\w+) = load i32, ptr (%\w+), align 4",
         r"%odd = load i32, ptr \2, align 4\n  \1 = add i32 %odd, -1\n"),
        ("rows as they are", r"(getelementptr float, ptr %\w+, i64) 16", r"\1 17"),
        ("slice", r"(select i1 %\w+, i64 %\w+, i64) 47", r"\1 49"),
        ("slice", r"mul i64 (%\w+), 20", r"add i64 \1, 20"),
        ("row of a sum", r"fadd", "fsub"),
    ],
)  # fmt: skip
def test_places_that_are_others_are_not_proved(name: str, pattern: str, by: str) -> None:
    assert kind(name, (pattern, by))[0] != PROVED


def test_a_row_of_another_table_or_by_another_integer_is_not_proved() -> None:
    fn, arrays = KINDS["sum of rows"]
    shapes = (arrays[0], arrays[0], *arrays[2:])  # tables of one shape
    graph = import_function(fn, shapes, frozen=()).graph
    (part,) = parts_of(graph)
    before = from_graph(graph.outputs)
    assert validate(before, [part], known()).status == PROVED
    for dtype in ("float32", "int32"):
        one, other, *_ = [k for k, b in enumerate(part.pointers) if (b.dtype, b.scope) == (dtype, "input")]
        pointers = list(part.pointers)
        pointers[one], pointers[other] = pointers[other], pointers[one]
        assert validate(before, [part._replace(pointers=pointers)], known()).status != PROVED


def test_integers_in_memory_are_no_numbers_where_a_position_chooses() -> None:
    """What is a word in the field would be a row behind the last one, which is clamped to that."""
    tables = _of(6, dtype="int32"), _of(40, 37)
    before = from_graph(import_function(lambda i, x: x[jnp.pad(i, 1)], tables, frozen=()).graph.outputs)
    wrong = import_function(lambda i, x: jnp.concatenate([x[:1], *[x[39:]] * 6, x[:1]]), tables, frozen=()).graph
    assert validate(before, parts_of(wrong), known()).status != PROVED


def test_an_array_that_is_written_is_no_table() -> None:
    """What a place that is made of integers holds, is a function of the place in inputs alone."""
    fn, arrays = KINDS["rows as they are"]
    graph = import_function(fn, arrays, frozen=()).graph
    (part,) = parts_of(graph)
    before = from_graph(graph.outputs)
    table = next(b for b in part.pointers if b.shape == (40, 37))
    for scope in ("output", "scratch"):
        pointers = [replace(b, scope=scope) if b is table else b for b in part.pointers]
        assert validate(before, [part._replace(pointers=pointers)], known()).status != PROVED
    pointers = [replace(b, name="packed") if b is table else b for b in part.pointers]
    copied = KernelPart(_COPY, [("phase0", 1)], [table, replace(table, name="packed", scope="scratch")])
    assert validate(before, [copied, part._replace(pointers=pointers)], known()).status != PROVED


_COPY = """define internal void @phase0(ptr %bufs, i64 %task) nounwind #0 {
entry:
  %x = load ptr, ptr %bufs, align 8
  %at = getelementptr ptr, ptr %bufs, i64 1
  %y = load ptr, ptr %at, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %n, %next ]
  %more = icmp slt i64 %i, 1480
  br i1 %more, label %body, label %done
body:
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %from, align 4
  store float %v, ptr %to, align 4
  br label %next
next:
  %n = add i64 %i, 1
  br label %head
done:
  ret void
}
"""


@pytest.mark.parametrize(
    "text", ["add i32 %x, 4294967295", "add i64 %x, 18446744073709551615", "icmp slt i32 %x, 2147483648"]
)
def test_numbers_that_llvm_would_wrap_are_refused(text: str) -> None:
    with pytest.raises(Unread):
        instruction(f"%y = {text}")


# ---- floats of 16 bits


def _conversion(name: str, lanes: int) -> tuple[str, str]:
    """The digest of the code of a conversion, and a module that makes it of 2^16 elements."""
    source, target = {"widened": ("bfloat", "float"), "narrowed": ("float", "bfloat")}.get(name, ("float", "float"))
    write = {"widened": ops.from_memory, "narrowed": ops.to_memory, "rounded": ops.rounded}[name]
    module = Module(host())
    f = module.function("all", [("ptr", "to"), ("ptr", "from")], internal=False)
    found: list[str] = []

    def body(at: Any, _: list[Any]) -> None:
        x = f.load(vector(source, lanes), f.element("%from", at, source))
        begin = len(f.lines)
        y = write(f, x, "bfloat16", lanes)
        lines = [str(line).strip() for line in f.lines[begin:]]
        assert (lines[0], lines[-1]) == (f"; begin {name} {x}", f"; end {y}")
        found.append(digest(lines[1:-1], [x], y, {}))
        f.store(vector(target, lanes), y, f.element("%to", at, target))

    f.for_(0, 1 << 16, max(lanes, 1), body)
    f.ret()
    return found[0], module.text()


@pytest.mark.parametrize("name", ["widened", "narrowed", "rounded"])
def test_what_is_taken_for_a_conversion_converts(name: str) -> None:
    near = DTYPE["bfloat16"]
    source, target = {"widened": (near, F32), "narrowed": (F32, near)}.get(name, (F32, F32))
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16).astype(np.uint32)
    bits[:4] = [0x3F808000, 0x3F818000, 0x7F800001, 0x7F7FFFFF]
    x = np.arange(1 << 16, dtype=np.uint16).view(near) if name == "widened" else bits.view(F32)
    for lanes in (0, 2, 4, 8, 16):
        code, text = _conversion(name, lanes)
        assert known()[code] == name
        y = np.empty(1 << 16, target)
        with compiled(text) as engine:
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("all"))
            call(y.ctypes.data, np.ascontiguousarray(x, source).ctypes.data)
        with np.errstate(all="ignore"):
            right = x.astype(near).astype(F32)
        assert np.array_equal(y.astype(F32), right, equal_nan=True)


@pytest.mark.parametrize(("op", "ways"), [("sitofp", ("sext", "srem")), ("uitofp", ("zext", "urem"))])
def test_numbers_without_signs_are_not_read_with_one(op: str, ways: tuple[str, str]) -> None:
    lines = ["%s = trunc i64 %task to i32", f"%x = {op} i32 %s to float", "ret void"]
    text = "define internal void @phase0(ptr %bufs, i64 %task) #0 {\nentry:\n  " + "\n  ".join(lines) + "\n}\n"
    made = rewritten(functions(text, known()), [("phase0", 1)], Field(0), "")
    body = made[made.index("@kernel.phase0(") :]
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
    calls: dict[str, Any] = {
        name: functools.partial(field.call, name) for name in FUNCTIONS if FUNCTIONS[name][0][0] != "k"
    }
    calls["inverse"] = field.inverse
    rng = np.random.default_rng(0)
    columns = [np.append(rng.integers(0, P, 60), [0, 1, P - 1, 5]).astype(U) for _ in range(3)]
    columns[0][:8] = field.call("less", columns[1], columns[2])[:8]
    text = "define i64 @run() {\n  ret i64 0\n}\n"
    for name in calls:
        count = len(FUNCTIONS[name][0])
        loads = [f"  %p{j} = getelementptr i64, ptr %x, i64 {8 * j}\n  %v{j} = load <8 x i64>, ptr %p{j}, align 8"
                 for j in range(count)]  # fmt: skip
        args = ", ".join(f"<8 x i64> %v{j}" for j in range(count))
        text += f"define void @{name}.test(ptr %x, ptr %y) {{\n" + "\n".join(loads)
        text += f"\n  %r = call <8 x i64> @{name}.8({args})\n  store <8 x i64> %r, ptr %y, align 8\n  ret void\n}}\n"
    with compiled(watched.library(text, field) + text) as engine:
        for name, fn in calls.items():
            count = len(FUNCTIONS[name][0])
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(f"{name}.test"))
            for at in range(0, 64, 8):
                xs = np.ascontiguousarray([c[at : at + 8] for c in columns[:count]])
                y = np.empty(8, U)
                call(xs.ctypes.data, y.ctypes.data)
                assert (y % U(P) == fn(*xs)).all(), name


def test_laws_of_the_field() -> None:
    field = Field(7, [3.0])
    a, b, c = [field.random(name, 100) for name in "abc"]
    greatest, least, less = [functools.partial(field.call, name) for name in ("maximum", "minimum", "less")]
    assert (field.call("mul", a, field.inverse(a)) == 1).all()
    assert (greatest(a, greatest(b, c)) == greatest(greatest(c, a), b)).all()
    low = np.full(100, field.constant(float("-inf")), U)
    assert (greatest(a, low) == a).all()
    assert (field.call("choose", less(b, a), a, b) == greatest(a, b)).all()
    assert (field.call("choose", field.no(less(b, a)), a, b) == least(a, b)).all()
    assert (field.call("choose", less(c, a), a, b) != greatest(a, b)).all()
    assert len({int(x) for f in (greatest, least, less) for x in f(a, b)}) == 300
    assert field.constant(float(np.float32(1) / np.float32(3))) * 3 % P == 1
    assert field.constant(0.75) * 4 % P == 3
    assert field.constant(float(F32(1e-30))) == P - field.constant(float(F32(-1e-30)))
    assert len({field.constant(c * 2.0**k) for k in (-62, -31, 0, 31, 62) for c in (1.0, 3.0, -0.5)}) == 15


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("define void @phase0(ptr %bufs, i64 %task) #0 {\n  br label %entry\nentry:\n  ret void\n}", "first label"),
        ("define ptr @aligned_alloc(i64 %a, i64 %b) #0 {\nentry:\n  ret ptr poison\n}", "a second"),
        ("  define void @phase0(ptr %bufs, i64 %task) #0 {\nentry:\n  ret void\n}", "the line"),
        ("define void @phase0(i64 %task, ptr %bufs) #0 {\nentry:\n  ret void\n}", "of other parameters"),
        ("define void @phase1(ptr %bufs, i64 %task) #0 {\nentry:\n  ret void\n}", "without a function"),
    ],
)
def test_code_that_would_not_be_seen_is_refused(text: str, says: str) -> None:
    with pytest.raises(Unread, match=says):
        rewritten(functions(text, {}), [("phase0", 1)], Field(0), "")


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
    assert digest(wide, ["%v1"], "%v4", {}) == digest(narrow, ["%x"], "%b", {})
    assert digest(wide, ["%v1"], "%v3", {}) != digest(wide, ["%v1"], "%v4", {})
    with pytest.raises(Unread):
        canonical(wide, ["%v0"], "%v4", {})


def test_code_of_scalar_functions_holds_the_functions_that_it_calls() -> None:
    call = ["%v4 = call <16 x float> @vector.cos.v16f32(<16 x float> %v1)"]
    with pytest.raises(Unread):  # what the other function does is not in this text
        canonical(call, ["%v1"], "%v4", {})
    module = """define internal <16 x float> @vector.cos.v16f32(<16 x float> %x) nounwind noinline #0 {
entry:
  %y = call <16 x float> @lanes.cos.v16f32(<16 x float> %x)
  ret <16 x float> %y
}
define internal <16 x float> @lanes.cos.v16f32(<16 x float> %x) nounwind noinline #0 {
entry:
  ret <16 x float> %x
}
define internal void @other(ptr %p) nounwind #0 {
entry:
  ret void
}
"""
    whole = digest(call, ["%v1"], "%v4", texts(module))
    assert whole == digest(call, ["%v1"], "%v4", texts(module.replace("@other", "@another")))
    looped = module.replace("  ret <16 x float> %y", "  br label %z, !llvm.loop !0\nz:\n  ret <16 x float> %y")
    assert len({digest(call, ["%v1"], "%v4", texts(looped.replace("!0", x))) for x in ("!0", "!3")}) == 1
    for old, new in (("ret <16 x float> %x", "ret <16 x float> zeroinitializer"), ("%y\n", "%x\n"), ("<16 x", "<8 x")):
        assert whole != digest(call, ["%v1"], "%v4", texts(module.replace(old, new)))


@pytest.mark.parametrize(("name", "texts"), [("exp", 2), ("pow(x, 0.75)", 2), ("sin", 5)])
def test_compared_code_is_what_is_generated(name: str, texts: int) -> None:
    """One block of a thousandth of all floats; the whole is the mark slow."""
    found = compare(name, 0x3F800000, BLOCK)
    assert max(found.values()) <= ERROR_ULPS[name.partition("(")[0]][0]
    assert [known().get(code, name) for code in found] == [name] * texts


def test_a_power_is_known_by_its_exponent() -> None:
    marks = ["; begin pow %x splat (float {})", "; begin pow %x %y", "; begin pow splat (float {}) %x"]
    line = "%p = fmul <4 x float> %x, splat (float {})"
    low, high = "0x3FE8000000000000", "0x3FF8000000000000"
    code = digest([line.format(low)], ["%x", "1"], "%p", {})

    def read(mark: str, exponent: str, at: str) -> None:
        lines = [mark.format(exponent), line.format(at), "; end %p", "ret void"]
        text = "define internal void @phase0(ptr %bufs, <4 x float> %x) #0 {\nentry:\n" + "\n".join(lines) + "\n}\n"
        functions(text, {code: "pow(x, 0.75)"})

    read(marks[0], low, low)
    for mark, exponent, at in ((0, high, low), (0, low, high), (1, low, low), (2, low, low)):
        with pytest.raises(Unread):
            read(marks[mark], exponent, at)


@pytest.mark.parametrize(("m", "k", "n"), [(5, 7, 9), (40, 3, 2), (1, 300, 33), (2, 0, 3)])
def test_products_of_matrices_are_exact(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(0)
    a, b = [rng.integers(P - 9, P, s).astype(U) for s in ((3, m, k), (3, k, n))]
    exact = (a.astype(object) @ b.astype(object)) % P if k else np.zeros((3, m, n))
    assert (matmul(a, b) == exact.astype(U)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scalar_functions_on_every_float(name: str) -> None:
    assert max(compare(name).values()) <= ERROR_ULPS[name.partition("(")[0]][0]


def test_mutants() -> None:
    rows = list(mutants.draw(12, seed=1))
    assert not [row for row in rows if row["missed"]]
    assert sum(row["wrong"] for row in rows) == 12
