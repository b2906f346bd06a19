"""Facts about the machine as `/proc` and `/sys` state them, and what goes into the keys of measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from superopt.machine import facts
from superopt.machine.facts import Machine, beyond_caches, taken

KNOWN = Machine("a cpu", ("avx2", "fma"), 2, 1 << 30, (("L1", 32 << 10), ("L2", 1 << 20)), "Linux-x86_64")
CPUINFO = "processor : 0\nmodel name : One 9000\nflags : avx2 fma sse4_2 unknown\n\nmodel name : Other\nflags : sve\n"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Lets files have these contents, and all others be absent."""
    return lambda contents: monkeypatch.setattr(facts, "_read", lambda path: contents.get(path, ""))


def test_the_first_processor_tells_its_name_and_extensions(files: Callable[[dict[str, str]], None]) -> None:
    files({"/proc/cpuinfo": CPUINFO})
    assert facts._cpuinfo() == ("One 9000", frozenset({"avx2", "fma", "sse4_2", "unknown"}))
    files({"/proc/cpuinfo": "Features : asimd sve\n"})
    name, features = facts._cpuinfo()
    assert features == {"asimd", "sve"}
    assert name, "of the system, where no file tells it"


def test_caches_of_data_count_with_their_units(files: Callable[[dict[str, str]], None]) -> None:
    rows = [("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"), ("3", "Unified", "1G"),
            ("4", "Unified", "4096"), ("5", "Unified", "")]  # fmt: skip
    base = "/sys/devices/system/cpu/cpu0/cache/index"
    files({f"{base}{i}/{name}": value for i, row in enumerate(rows)
           for name, value in zip(("level", "type", "size"), row, strict=True)})  # fmt: skip
    assert facts._caches_bytes() == (("L1", 32 << 10), ("L2", 2 << 20), ("L3", 1 << 30), ("L4", 4096))


def test_the_limit_of_a_container_counts_where_it_is_lower(
    files: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    for limit, memory in (("", 4096_000), ("max", 4096_000), ("1000000", 1_000_000), ("9000000", 4096_000)):
        for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            files({path: limit})
            assert facts._memory_bytes() == memory
    pages["SC_PHYS_PAGES"] = 0
    files({"/sys/fs/cgroup/memory.max": "1000000"})
    assert facts._memory_bytes() == 0, "it is not known"


def test_a_size_is_beyond_the_caches_where_the_last_does_not_hold_it() -> None:
    with taken(KNOWN):
        assert facts.last_cache_bytes() == 1 << 20
        assert not beyond_caches(1 << 20)
        assert beyond_caches((1 << 20) + 1)
    with taken(replace(KNOWN, caches_bytes=())):
        assert facts.last_cache_bytes() == 0


def test_a_key_depends_on_what_decides_how_fast_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        replace(KNOWN, cpu="another"),
        replace(KNOWN, features=("avx2",)),
        replace(KNOWN, cores=3),
        replace(KNOWN, caches_bytes=KNOWN.caches_bytes[:1]),
        replace(KNOWN, system="Linux-aarch64"),
    ]
    for key in (facts.fingerprint, facts.environment_key):
        assert len({key(machine) for machine in (KNOWN, *others)}) == 1 + len(others)
        assert key(replace(KNOWN, memory_bytes=1)) == key(KNOWN)
    before = facts.environment_key(KNOWN)
    monkeypatch.setattr(facts, "versions", lambda: {"jax": "another"})
    assert facts.environment_key(KNOWN) != before


def test_a_machine_is_read_back_from_its_facts_or_not_at_all() -> None:
    told = facts.as_dict(KNOWN)
    assert facts.from_dict(told) == KNOWN
    assert facts.from_dict(None) is None
    assert facts.from_dict({name: value for name, value in told.items() if name != "cores"}) is None
