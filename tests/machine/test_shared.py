"""State that threads share: one call for all, a collector that stays paused, readers of Python's grammar."""

from __future__ import annotations

import ast
import copy
import gc
import threading
import time

import pytest

from superopt.machine.shared import Unique, once, parse_expression, parse_module, paused_collector


def test_threads_that_ask_first_get_the_result_of_one_call() -> None:
    calls: list[object] = []

    def make() -> object:
        time.sleep(0.05)
        calls.append(object())
        return calls[-1]

    made, found = once(make), list[object]()
    threads = [threading.Thread(target=lambda: found.append(made())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert found == [calls[0]] * 4
    assert made() is calls[0]


def test_a_call_that_raises_is_tried_again() -> None:
    tries = iter((ZeroDivisionError, None))

    def make() -> int:
        error = next(tries)
        if error is not None:
            raise error
        return 3

    made = once(make)
    with pytest.raises(ZeroDivisionError):
        made()
    assert (made(), made()) == (3, 3)


def test_the_collector_runs_again_when_the_last_has_left() -> None:
    assert gc.isenabled()
    with paused_collector():
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled(), "who had disabled it enables it"
    finally:
        gc.enable()


def test_expressions_nest_as_deep_as_their_readers_go() -> None:
    def nested(levels: int) -> str:
        return "-" * levels + "x"

    deepest = next(n for n in range(200) if _depth(nested(n)) == 100)
    assert isinstance(parse_expression(nested(deepest)), ast.UnaryOp)
    with pytest.raises(SyntaxError, match="nests more than 100 levels"):
        parse_expression(nested(deepest + 1))
    for text in ("x +", "a\0b", "\ud800", "(" * 5000 + ")" * 5000):
        with pytest.raises(SyntaxError):
            parse_expression(text)
    assert len(parse_module("x = 1\ny = 2").body) == 2


def _depth(text: str) -> int:
    """Levels of an expression's tree, operators and contexts included."""

    def levels(node: ast.AST) -> int:
        return 1 + max(map(levels, ast.iter_child_nodes(node)), default=0)

    return levels(ast.parse(text, mode="eval").body)


def test_a_unique_object_is_its_own_copy() -> None:
    one = Unique()
    assert copy.copy(one) is copy.deepcopy([one])[0] is one
