"""Threads of one process: what they share is made once, is the same for all, and is never in their way."""

from __future__ import annotations

import ast
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from rewrites.egraph import perm
from rewrites.language.parse import parse
from superopt.arrays import placing
from superopt.ir.graph import literal, mk
from superopt.machine import shared

THREADS = 16


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    kept = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(kept)


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The results of threads that begin at once."""
    start = threading.Barrier(count)

    def begun(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begun, range(count)))


class _Slow(list[Any]):
    """A list that lets other threads in before it grows."""

    def append(self, x: Any) -> None:
        threading.Event().wait(0.0002)
        super().append(x)


def test_a_name_stands_for_one_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perm, "PERMS", _Slow(perm.PERMS))
    monkeypatch.setattr(perm, "_NAMES", dict(perm._NAMES))
    some = random.Random(0).sample(list(itertools.permutations(range(7))), 150)
    names = together(lambda number: [perm.intern(p) for p in (some if number % 2 else some[::-1])])
    for number, found in enumerate(names):
        for p, name in zip(some if number % 2 else some[::-1], found, strict=True):
            assert perm.perm_of(name, 7) == p
    assert len(set(names[0])) == len(some)
    assert all(set(found) == set(names[0]) for found in names)


def test_equal_nodes_are_one() -> None:
    def made(_: int) -> list[Any]:
        return [mk("add", literal(float(k)), literal(k + 0.5)) for k in range(50)]

    first, *others = together(made)
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_what_is_made_once_is_made_by_one_thread() -> None:
    calls: list[int] = []

    @shared.once
    def table() -> object:
        calls.append(1)
        threading.Event().wait(0.01)
        return object()

    assert len(set(map(id, together(lambda _: table())))) == 1
    assert calls == [1]


def test_parsers_of_other_threads_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, tries = ast.parse, itertools.count()

    def disturbed(text: str, **options: Any) -> ast.AST:
        if next(tries) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=0, after=9)")
        return kept(text, **options)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.unparse(shared.parse_expression("1 + a")) == "1 + a"


def test_arrays_are_placed_in_threads(tmp_path: Path) -> None:
    raw = np.zeros(64, np.uint8)

    def work(number: int) -> None:
        for k in range(200):
            arrays = [placing._view(raw, (f"{number}", "uint8", (8,), 8 * i)) for i in range(4)]
            assert [placing.place_of(x) for x in arrays] == [(f"{number}", "uint8", (8,), 8 * i) for i in range(4)], k
            file = tmp_path / f"{number}"
            file.write_bytes(b"x" * 64)
            placing.release(placing.mapped(file))

    together(work)


def test_programs_are_optimised_in_threads() -> None:
    rule = "twice: A[*a]\n  A + A  ==  A * 2"
    x = np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(4, 6)

    def work(number: int) -> None:
        assert parse(rule).name == "twice"

        def f(w: Any, x: Any) -> Any:
            return jnp.tanh(x @ w.T) * (1.0 + number % 3) + jax.nn.softmax(x @ w.T)

        w = np.full((6, 6), 0.1 * number, np.float32)
        fast = superopt.optimize(
            f, w, x, frozen=0, budget="5steps", deterministic=True, store=False, rules=[], kernels=False
        )
        assert not fast.report.lost
        np.testing.assert_allclose(fast(w, x), f(w, x), rtol=1e-4, atol=1e-5)

    together(work, 6)
