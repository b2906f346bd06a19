"""A reading test draws from all functions, and shows no code before it is asked for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from superopt.lab import reading
from superopt.lab.house import modules
from superopt.lab.reading import drawn, functions, main

SOURCE = '''\
class Box:
    def __len__(self): return 0

    def size(self, *, most: int = 3) -> int:
        """The size."""
        def inner(x): return x
        return inner(most)

if True:
    async def other(): pass
'''


def test_functions_are_methods_and_inner_ones_too() -> None:
    found = list(functions("room.box", SOURCE))
    assert [f.head for f in found] == [
        "room.box.Box.size(self, *, most: int=3) -> int",
        "room.box.Box.size.inner(x)",
        "room.box.other()",
    ]
    assert found[1].code == "def inner(x): return x"


def test_code_is_shown_on_demand_for_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    room = {name: path for name, path in modules().items() if name.startswith("superopt.store")}
    monkeypatch.setattr(reading, "modules", lambda: room)
    read = CliRunner().invoke(main, ["--count", "1", "--seed", "1"]).output
    held = CliRunner().invoke(main, ["--count", "1", "--seed", "1", "--code"]).output
    function = drawn(1, 1)[0]
    assert read.splitlines()[1] == held.splitlines()[1] == f"1. {function.head}"
    assert function.code.split("\n")[0] in held
    assert function.code.split("\n")[0] not in read
