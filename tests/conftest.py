"""What tests of several rooms share. Whole versions of slow tests are marked `slow`: `make slow` runs those alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jax._src import compiler

from superopt.certify.library import proved_library
from superopt.contest import rounds
from superopt.machine.jitting import QUICKLY
from superopt.machine.shared import paused_collector
from superopt.machine.switches import plain_kept
from superopt.make.plain import KernelMaker
from superopt.measure.result import ENOUGH_ROUNDS
from superopt.store import Store

RESULTS = frozenset(
    [
        "certify", "commands", "costmodel", "equivalence", "explore", "foreign", "frontends", "kernels", "lab",
        "pipeline", "report", "returned", "search",
    ]
)  # fmt: skip
PROOFS = frozenset(["equivalence", "project", "verifier"])
"""Rooms whose tests ask for proofs of statements, and not for the figures of the watch over them."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the collector of cycles off the modules of all tests, which stay: it would look at them again and again.

    Each worker of pytest-xdist begins at another room: else all of them rewrite the asserts of the same modules at the
    same time, which takes 13 s of a processor in a fresh clone.
    """
    config = session.config
    if config.args_source is config.ArgsSource.TESTPATHS:
        rooms = sorted(str(room) for room in Path(__file__).parent.iterdir() if any(room.glob("test_*.py")))
        worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{x}", "1") for x in ("", "_COUNT"))
        first = int(worker.removeprefix("gw")) * len(rooms) // int(count) % len(rooms)
        config.args = [*rooms[first:], *rooms[:first]]
    with paused_collector():
        collected = yield
    gc.collect()
    gc.freeze()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the rooms in one order, at whichever the collection began."""
    if config.args_source is config.ArgsSource.TESTPATHS:
        items.sort(key=lambda item: item.path.parent)


@pytest.fixture
def proofs(tmp_path: Path) -> Path:
    """A store that holds the library's proofs, as a second run of a user finds it; they are made once per machine."""
    path = tmp_path / "store.sqlite"
    with Store() as known, Store(path) as own:
        proved_library(known)
        own.put_many("certificates", dict(known.items("certificates")))
    return path


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA compiles in an eighth of the time in this process, where tests read results alone; workers are as always."""
    usual = compiler.get_compile_options

    def options(*given: Any, env_options_overrides: Mapping[str, Any] | None = None, **more: Any) -> Any:
        return usual(*given, env_options_overrides={**QUICKLY, **(env_options_overrides or {})}, **more)

    monkeypatch.setattr(compiler, "get_compile_options", options)


@pytest.fixture
def workers_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA compiles as quickly in processes that begin now; another one forks them, which the first such test starts."""
    monkeypatch.setenv("XLA_FLAGS", " ".join(f"--{name}={value}".lower() for name, value in QUICKLY.items()))


@pytest.fixture(autouse=True)
def quickly_where_results_are_read(request: pytest.FixtureRequest) -> None:
    """Tests of these rooms compare results of XLA with others, and ask neither for time nor for bits of it."""
    room = request.path.parent.name
    if room in RESULTS:
        request.getfixturevalue("quickly")
        request.getfixturevalue("briefly")
    if room in PROOFS and request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("at_one_size_by_xla")


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedules are searched, which takes twenty seconds of a budget in steps."""
    monkeypatch.setattr(KernelMaker, "searched", lambda *_: None)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contests of few short rounds, where tests ask not for the times: a batch takes the builds and 0.01 s, not 0.7."""
    monkeypatch.setattr(rounds, "ROUNDS", ENOUGH_ROUNDS)
    monkeypatch.setattr(rounds, "SAMPLE_S", 5e-4)


@pytest.fixture
def at_one_size_by_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA compiles functions that are proved equal at one size, not at three, where tests ask for the proof."""
    monkeypatch.setattr("verifier.statements.watch.XLA_SIZES", 1)


@pytest.fixture
def keeps_plain() -> Iterator[None]:
    """Calls without a search return the plain candidate, however small and slow it is."""
    with plain_kept():
        yield
