"""Control flow of code while it is traced; a path that differs between symbolic sizes and numbers is a branch on kind.

`type(n) is int` asks nothing of a size that could be recorded, and an exception that JAX raises for symbolic sizes
alone may be caught.  So where code has branches at all, the instructions of its frames are recorded both ways.  The
first instruction that only one way has is a question about sizes whose answer is not known.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from superopt.frontends.jax.comparisons import SizeComparison, is_own_name
from superopt.machine.shared import paused_collector

_BRANCHES = ("POP_JUMP", "JUMP_IF", "CHECK_EXC_MATCH")
"""Names of instructions that branch."""
_ANSWERS = frozenset({"type", "hasattr", "getattr", "issubclass", "callable", "vars", "dir", "get"})
"""Names of functions by which code selects other code without a branch."""
_MOST = 400
"""Limit on the pieces of code that are examined; code with more is assumed to have branches."""


@dataclass(slots=True)
class Path:
    """Executed instructions by code object: how often each, and how often the code was entered.

    Attributes:
        steps: code -> offset of an instruction -> times.
        calls: code -> times.
    """

    steps: dict[CodeType, Counter[int]] = field(default_factory=dict[CodeType, Counter[int]])
    calls: Counter[CodeType] = field(default_factory=Counter[CodeType])

    def differs(self, other: Path) -> str:
        """File and line of the first instruction that only one of two paths has; empty where there is none."""
        for code, steps in reversed(self.steps.items()):  # code entered last is called by the others
            others = other.steps.get(code)
            if others is None:
                continue  # JAX may have cached its result
            if self.calls[code] == other.calls[code]:
                apart = sorted(k for k in steps | others if steps[k] != others[k])
            else:
                apart = sorted(steps.keys() ^ others.keys())
            if apart:
                return _place(code, max((k for k in steps.keys() & others.keys() if k <= apart[0]), default=apart[0]))
        return next((_place(code, 0) for code in other.steps if code not in self.steps), "")


def _place(code: CodeType, offset: int) -> str:
    line = next((n for a, b, n in code.co_lines() if n is not None and a <= offset < b), code.co_firstlineno)
    return f"{code.co_filename}:{line}"


@contextmanager
def followed(fn: Callable[..., Any] | None = None) -> Generator[Path | None]:
    """Record the path of user code that runs inside; None where it is that of a function without branches."""
    if fn is not None and not has_branches(fn):
        yield None
        return
    path, before = Path(), sys.gettrace()

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            path.steps[frame.f_code][frame.f_lasti] += 1
        return step

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or is_own_name(str(frame.f_globals.get("__name__", ""))):
            return None
        path.steps.setdefault(frame.f_code, Counter())
        path.calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    with paused_collector():  # its callbacks and finalizers run at any instruction, outside of the program
        sys.settrace(enter)
        try:
            yield path
        finally:
            sys.settrace(before)


def question(symbolic: Path, numbers: Path | None) -> SizeComparison | None:
    """The question that code answered otherwise at symbolic sizes than at numbers."""
    where = "" if numbers is None else symbolic.differs(numbers)
    return SizeComparison(where, None, "the kind of a size, or an exception that it makes") if where else None


def has_branches(fn: Callable[..., Any]) -> bool:
    """Whether a function, or user code that it names, has more than one path."""
    seen = set[int]()
    todo: list[Any] = [fn]
    while todo:
        x = todo.pop()
        own = is_own_name(getattr(x, "__module__", None) or "") and not isinstance(x, functools.partial)
        if own or id(x) in seen:
            continue
        seen.add(id(x))
        if len(seen) > _MOST:
            return True
        if isinstance(x, FunctionType):
            codes = list(_nested(x.__code__))
            if any(map(_branching, codes)):
                return True
            todo += _named(x, {name for code in codes for name in code.co_names})
        elif isinstance(x, functools.partial):
            todo += [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, type):
            todo += vars(x).values()
        elif isinstance(x, MethodType | property | classmethod | staticmethod):
            todo += [getattr(x, name, None) for name in ("__func__", "fget", "__self__")]
        elif hasattr(x, "__wrapped__"):
            todo.append(x.__wrapped__)
        elif callable(x):
            todo.append(type(x))
    return False


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@functools.cache
def _branching(code: CodeType) -> bool:
    """Whether code has more than one path, caught exceptions included."""
    if not _ANSWERS.isdisjoint(code.co_names):
        return True
    return any(i.opname.startswith(_BRANCHES) for i in dis.get_instructions(code))


def _named(fn: FunctionType, names: set[str]) -> Iterator[Any]:
    """Values that a function closes over, has as defaults, or names as globals and as members of these."""
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    known = [fn.__globals__[name] for name in names if name in fn.__globals__]
    yield from known
    for module in known:
        if isinstance(module, ModuleType) and not is_own_name(module.__name__):
            yield from (vars(module)[name] for name in names if name in vars(module))


__all__ = ["Path", "followed", "has_branches", "question"]
