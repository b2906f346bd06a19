"""The machine code of kernels is validated without being asked: of what is returned, and of what is loaded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.backends import made, native
from superopt.backends.native import Native
from superopt.certify import beside, taking
from superopt.certify.beside import CodeCase, validated_beside
from superopt.certify.kernels import ValidatedCode, code_s, validate_code, was_validated
from superopt.files.seals import sealed
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import KernelSpec, regions_of, specs_of
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import supported
from superopt.lab.bench.faults.results import failing
from superopt.machine.deadline import Deadline
from superopt.machine.facts import fingerprint, own
from superopt.machine.fallback import StageWarning
from superopt.machine.rates import NOMINAL
from superopt.measure import rates
from superopt.pipeline import checking, validating
from tests.support.saved_files import without_native
from verifier.kernels import check
from verifier.kernels.check import KernelVerdict
from verifier.verdict import PROVED, REFUTED, UNKNOWN

pytestmark = [
    pytest.mark.skipif(not supported(), reason="no kernels are made for this processor"),
    pytest.mark.usefixtures("keeps_plain"),
]

RNG = np.random.default_rng(0)
X, W = [RNG.standard_normal(s).astype(np.float32) for s in ((9, 40), (40, 33))]


def network(w: Any, x: Any) -> Any:
    y = jax.nn.relu(x @ w)
    return y - jnp.max(y, -1, keepdims=True)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever said of any kernel, and no clock ends validation: a short call leaves little time for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(validating, "validation_deadline", lambda session: Deadline())


def kernels() -> tuple[Graph, tuple[KernelSpec, ...]]:
    graph = import_function(network, (W, X), frozen=0).graph
    return graph, specs_of(graph, [(r, None) for r in partition(graph)])


def counted(monkeypatch: pytest.MonkeyPatch, says: Sequence[str] = ()) -> list[Graph]:
    """The regions whose code is validated from now on; `says` what, in place of the verdicts."""
    asked: list[Graph] = []
    real, said = Native.validate, iter(says)

    def validate(self: Native, region: Graph, trace: Any = None) -> KernelVerdict:
        asked.append(region)
        status = next(said, "")
        return KernelVerdict(status, "why", 0.0) if status else real(self, region, trace)

    monkeypatch.setattr(Native, "validate", validate)
    return asked


def optimized(store: Any = False) -> Any:
    return superopt.optimize(network, W, X, frozen=0, search=False, store=store)


def test_a_kernel_is_validated_once_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, choices = kernels()
    assert Native().recorded(partition(graph)[0].graph) is None
    assert code_s(graph, choices) > 0.0
    asked = counted(monkeypatch)
    assert validate_code(graph, choices) == validate_code(graph, choices) == ValidatedCode(2)
    assert len(asked) == 2
    assert code_s(graph, choices) == 0.0
    assert validate_code(graph, choices, 0.0) == ValidatedCode(2), "what is on record takes no time"
    monkeypatch.setattr(native, "version", lambda: "another")
    assert validate_code(graph, choices, 0.0) == ValidatedCode(0, {"no time was left for it": 2})


@pytest.fixture
def clocks() -> Iterator[Callable[[float], None]]:
    """Keep rates of a processor whose clock is so many times the nominal one."""

    def keep(times: float) -> None:
        path = jit.cache_folder() / f"{fingerprint(own())}.rates"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = asdict(replace(NOMINAL, hertz=times * NOMINAL.hertz))
        path.write_bytes(sealed(path, json.dumps(known).encode()))
        rates.measured.cache_clear()

    yield keep
    rates.measured.cache_clear()


def test_validation_is_given_as_much_more_time_as_the_processor_is_slower(clocks: Callable[[float], None]) -> None:
    seconds: list[float] = []
    for times in (1.0, 0.5):
        clocks(times)
        seconds.append(code_s(*kernels()))
    assert seconds[1] == pytest.approx(2 * seconds[0])
    assert seconds[0] > 0.0


def test_a_verdict_is_one_on_the_objects_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (region.graph for region in partition(kernels()[0]))
    assert Native().validate(first).proved
    assert Native().recorded(first) == KernelVerdict(PROVED, "", 0.0)
    other = native.compiled(second, native.default_trace(second))
    monkeypatch.setattr(native, "compiled", lambda region, trace: other)
    assert Native().recorded(first) is None


def test_what_is_refuted_or_made_by_changed_sources_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (region, other) = (region.graph for region in partition(kernels()[0]))
    with monkeypatch.context() as changed:
        changed.setattr(native, "validate", lambda *_: KernelVerdict(REFUTED, "why", 0.0))
        assert Native().validate(region).status == REFUTED
    assert Native().recorded(region) is None
    monkeypatch.setattr(check, "as_loaded", lambda files: False)
    assert check.version.__wrapped__() == ""
    monkeypatch.setattr(native, "version", lambda: "")
    assert Native().validate(other).proved
    assert Native().recorded(other) is None


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    made.keep_verdict("k", "1", ["a", "b"], PROVED, "", tmp_path)
    assert made.verdict("k", "1", ["a", "b"], tmp_path) == (PROVED, "")
    assert made.verdict("k", "1", ["a"], tmp_path) is None
    assert made.verdict("k", "2", ["a", "b"], tmp_path) is None
    (file,) = tmp_path.glob("*.verdict")
    for text in ("", "{", "[]", '{"objects": ["a", "b"]}'):
        file.write_text(text)
        assert made.verdict("k", "1", ["a", "b"], tmp_path) is None


def test_limits_of_time_and_memory_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, choices = kernels()
    asked = counted(monkeypatch)
    assert validate_code(graph, choices, 0.0).unknown == {"no time was left for it": 2}
    assert validate_code(graph, choices, halted=lambda: True).unknown == {"no time was left for it": 2}
    assert validate_code(graph, choices, most_elements=10).unknown == {"it would take too much memory": 2}
    assert not asked


def test_the_code_of_what_is_returned_is_validated_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch, [UNKNOWN])
    fast = optimized()
    assert len(asked) == len({*asked}) == 2
    assert fast.report.implementation["code"] == {"validated": 1, "unknown": {"why": 1}, "refuted": 0}
    assert "the machine code of 1 of their 2 kinds validated (1 UNKNOWN: why)" in " ".join(str(fast.report).split())
    assert fast.report.to_json()["implementation"]["code"]["validated"] == 1


def test_what_the_time_does_not_suffice_for_is_returned_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch)
    monkeypatch.setattr(validating, "validation_deadline", lambda session: Deadline(0.0))
    fast = optimized()
    assert fast.kernels
    assert fast.report.implementation["code"]["unknown"] == {"no time was left for it": 2}
    assert not asked


def test_a_kernel_whose_code_is_wrong_is_not_returned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counted(monkeypatch, [REFUTED])
    with pytest.warns(StageWarning, match="DEFECT OF A KERNEL"):
        fast = optimized(tmp_path / "store.sqlite")
    assert len(fast.kernels) == 1
    assert [row.used for row in fast.report.native].count(False) == 1
    assert fast.report.speedup.basis == "untimed"
    assert "machine code is wrong" in fast.report.verdict
    assert any("DEFECT OF A KERNEL" in why for why in fast.report.lost.values())
    assert fast.report.implementation["code"] == {"validated": 1, "unknown": {}, "refuted": 1}
    np.testing.assert_allclose(fast(W, X), network(W, X), rtol=1e-5, atol=1e-6)
    again = optimized(tmp_path / "store.sqlite")
    assert len(again.kernels) == 2, "the result was not kept"


def test_a_kept_result_with_wrong_code_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    assert len(optimized(store).kernels) == 2
    asked = counted(monkeypatch)
    again = optimized(store)
    assert any("from the store" in note for note in again.report.notes)
    assert again.report.implementation["code"]["validated"] == 2
    assert not asked
    monkeypatch.setattr(Native, "recorded", lambda *_: None)
    counted(monkeypatch, [REFUTED])
    other = optimized(store)
    assert not any("from the store" in note for note in other.report.notes)


def test_the_code_of_what_is_loaded_is_looked_up_and_what_is_wrong_left_to_xla(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = without_native(optimized().save(tmp_path / "p.superopt"))
    asked = counted(monkeypatch)
    loaded = superopt.load(path)
    assert loaded.code == ValidatedCode(2)
    assert loaded.refused == {}
    assert not asked, "it is on record"
    monkeypatch.setattr(native, "version", lambda: "another")
    assert superopt.load(path).code == ValidatedCode(2)
    assert len(asked) == 2, "by another version"
    monkeypatch.setattr(Native, "recorded", lambda *_: None)
    counted(monkeypatch, [REFUTED])
    loaded = superopt.load(path)
    assert len(loaded.kernels) == 1
    (why,) = loaded.refused.values()
    assert why.endswith("is wrong: why")
    np.testing.assert_allclose(loaded(W, X), network(W, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "target",
    ["superopt.certify.kernels:validate_code", "superopt.certify.kernels:disagreeing", "superopt.backends.mixed:mixed"],
)
@pytest.mark.parametrize("waits", [False, True])
def test_a_loaded_program_is_not_lost_with_its_kernels(
    target: str, waits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither where they fail while it is loaded, nor at the first call that they wait for."""
    path = without_native(optimized().save(tmp_path / "p.superopt"))
    met: list[str] = []
    fault = failing(target, lambda: OSError(28, "No space left on device"), met)
    if waits:
        monkeypatch.setattr(Native, "recorded", lambda *_: None)
        monkeypatch.setattr(taking, "MOST_SECONDS", 0.0)
        loaded = superopt.load(path)
        assert not loaded.kernels
        with fault:
            got = loaded(W, X)
    else:
        with fault:
            loaded = superopt.load(path)
            got = loaded(W, X)
    np.testing.assert_allclose(got, network(W, X), rtol=1e-5, atol=1e-6)
    assert met
    assert loaded.kernels == ()
    assert all("No space left" in why for why in loaded.refused.values())
    assert len(loaded.refused) == 2


def cases_of(graph: Graph, choices: Sequence[KernelSpec]) -> list[CodeCase]:
    return [(r.graph, c.trace, c.backend) for r, c in zip(regions_of(graph, choices), choices, strict=True)]


def test_a_worker_validates_kernels_beside_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, choices = kernels()
    cases = cases_of(graph, choices)
    with validated_beside(cases) as done:
        end = Deadline.within(120.0)
        while not end.is_over and not all(was_validated(Native(), region, trace) for region, trace, _ in cases):
            time.sleep(0.05)
        assert [done(case) for case in cases] == [True, True]
    asked = counted(monkeypatch)
    assert validate_code(graph, choices) == ValidatedCode(2)
    assert asked == []


def test_kernels_that_take_longer_than_a_load_all_wait_for_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """There they are shared with workers, which are on their way by then."""
    graph, choices = kernels()
    begun: list[bool] = []
    monkeypatch.setattr(taking.forks, "load", lambda: begun.append(True))
    monkeypatch.setattr(taking, "MOST_SECONDS", code_s(graph, choices) * 0.99)
    asked = counted(monkeypatch)
    assert taking.take_kernels(graph, choices, 1, called=False).waiting
    assert (asked, begun) == ([], [True])
    assert taking.take_kernels(graph, choices, 1, called=True).code == ValidatedCode(2)


def test_what_no_worker_has_begun_or_finished_is_left_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_of(*kernels())
    with validated_beside(cases) as done:
        assert not done(cases[1]), "no worker has started"
    monkeypatch.setattr(beside, "_VALIDATE", "superopt.make.making:nothing")
    begun = threading.Event()
    monkeypatch.setattr(beside, "print_graph", lambda graph: begun.set() or print_graph(graph))
    with validated_beside(cases) as done:
        assert begun.wait(120.0)
        assert not done(cases[0]), "its worker has failed"


@pytest.mark.parametrize("kept", [True, False])
def test_a_verdict_of_a_worker_counts_where_it_is_kept(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says it has validated a kernel is not believed without the record."""
    graph, choices = kernels()
    shared: list[CodeCase] = []

    @contextmanager
    def beside_this(cases: Sequence[CodeCase]) -> Iterator[Callable[[CodeCase], bool]]:
        shared.extend(cases)
        for region, trace, _ in cases if kept else ():
            Native().validate(region, trace)
        yield lambda case: True

    monkeypatch.setattr("superopt.certify.kernels.validated_beside", beside_this)
    monkeypatch.setattr("superopt.certify.kernels.MOST_SECONDS", 0.0)
    assert validate_code(graph, choices, 0.0).untried == {0, 1}
    assert shared == [], "only where it is asked for"
    asked = counted(monkeypatch)
    assert validate_code(graph, choices, beside=True) == ValidatedCode(2)
    assert len(shared) == 2
    assert len(asked) == 2, "by the worker or by this process"


def test_a_check_that_is_interrupted_waits_for_no_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def endless(hot: Any, choices: Any, most_s: Any, most: Any, halted: Any) -> ValidatedCode:
        while not halted():
            time.sleep(0.01)
        ended.set()
        return ValidatedCode()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(validating, "validate_code", endless)
    monkeypatch.setattr(checking, "after_check", interrupted)
    fast = optimized()
    assert ended.wait(10.0), "it goes on beside what is returned"
    assert fast.report.original_returned


@pytest.mark.parametrize("error", [MemoryError(), IndexError("odd text")])
def test_a_validation_that_fails_loses_one_kernel_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, choices = kernels()
    real, waiting = Native.validate, [error]

    def validate(self: Native, region: Graph, trace: Any = None) -> KernelVerdict:
        if waiting:
            raise waiting.pop()
        return real(self, region, trace)

    monkeypatch.setattr(Native, "validate", validate)
    found = validate_code(graph, choices)
    assert found.proved == 1
    assert next(iter(found.unknown)) in ("validation failed: IndexError: odd text", "it would take too much memory")


def test_choices_of_a_wrong_program_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, choices = kernels()
    counted(monkeypatch, [REFUTED, REFUTED])
    found = validate_code(graph, choices)
    assert sorted(found.refuted) == [0, 1]
    assert (found.proved, found.count) == (0, 2)
    twice = validate_code(graph, [replace(choices[0])] * 2)
    assert (twice.proved, twice.count) == (1, 1), "equal kernels are validated once"


def test_code_that_nothing_is_known_of_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every region of a program was written twice: when its record was looked up, and before it was validated."""
    graph = import_function(lambda *xs: [jnp.tanh(x) * n for n, x in enumerate(xs)], [X[:, : n + 8] for n in range(6)])
    specs = specs_of(graph.graph, [(region, None) for region in partition(graph.graph)])
    written: list[Graph] = []
    once = native._written.__wrapped__

    def counted(region: Graph, trace: tuple[Any, ...]) -> Any:
        written.append(region)
        return once(region, trace)

    monkeypatch.setattr(native, "_written", lru_cache(maxsize=4)(counted))
    monkeypatch.setattr(native, "default_trace", lambda region: ())
    assert validate_code(graph.graph, specs).count == 6
    assert len(written) == len(set(written)) == 6


def test_a_reduction_behind_a_branch_is_written_for_its_own_row() -> None:
    """Rows of a padded softmax: behind the branch of one row, those of others read in front of the array."""

    def padded(x: jax.Array) -> jax.Array:
        return jax.lax.pad(jax.nn.log_softmax(x, axis=1), jnp.float32(0), ((1, -1, 1), (0, 1, 0)))

    graph = import_function(padded, (jax.ShapeDtypeStruct((33, 4), np.float32),)).graph
    found = validate_code(graph, specs_of(graph, [(region, None) for region in partition(graph)]))
    assert (found.count, found.refuted) == (1, {})
