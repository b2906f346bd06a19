"""What tests of several rooms share. Whole versions of slow tests are marked `slow`: `make slow` runs those alone."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from superopt.certify.library import proved_library
from superopt.machine.shared import paused_collector
from superopt.machine.switches import plain_kept
from superopt.make.plain import KernelMaker
from superopt.store import Store


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of cycles off the modules of all tests, which stay: it would look at them again and again."""
    with paused_collector():
        collected = yield
    gc.collect()
    gc.freeze()
    return collected


@pytest.fixture
def proofs(tmp_path: Path) -> Path:
    """A store that holds the library's proofs, as a second run of a user finds it; they are made once per machine."""
    path = tmp_path / "store.sqlite"
    with Store() as known, Store(path) as own:
        proved_library(known)
        own.put_many("certificates", dict(known.items("certificates")))
    return path


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedules are searched, which takes twenty seconds of a budget in steps."""
    monkeypatch.setattr(KernelMaker, "searched", lambda *_: None)


@pytest.fixture
def keeps_plain() -> Iterator[None]:
    """Calls without a search return the plain candidate, however small and slow it is."""
    with plain_kept():
        yield
