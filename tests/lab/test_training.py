"""Labels for the cost model: families, what is visited, forms that agree, the corpus file, resuming."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rewrites import library
from rewrites.build.expander import expand_macros, library_expander
from rewrites.egraph import perm
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.interp import evaluate
from superopt.ir.text import print_graph
from superopt.lab.bench.programs.programs import _JAX
from superopt.lab.training import collect, families, regions, schedules
from superopt.lab.training.collect import LabelFile, distinct, label_of, measure, summary
from superopt.lab.training.families import layers as L
from superopt.lab.training.program import Described, describe, spec
from superopt.lab.training.tasks import KernelForm, Task, canonical, key_of, make_form, read_lines, task_of, write_lines
from superopt.lab.training.visit import Effort, Visited, explored, leaf_classes, states, visit
from superopt.measure import KernelTiming
from superopt.measure.kernels import KernelSettings
from superopt.schedules.workload import workload
from superopt.search.emit import ClassEmitter
from superopt.search.snapshot import Selection
from superopt.search.state import State
from superopt.workshop.job import Failure
from superopt.workshop.scheduler import ONE_WORKER
from tests.support.search_table import TableObjective

QUICK = Effort(enodes=400, guided_enodes=200, steps=300, states=3, variations=6, tasks=8)


@functools.cache
def rules() -> tuple[Any, ...]:
    return tuple(library.load())


# ---- families


def test_every_family_describes_its_programs() -> None:
    assert len(families.FAMILIES) >= 14
    for family in families.FAMILIES:
        for number in (0, families.LARGE):
            graph = families.program(family, number).graph()
            assert {"opaque", "scan", "while", "cond"}.isdisjoint(node.op for node in graph.nodes())
            assert sum(node.op not in ("input", "literal") for node in graph.nodes()) >= 8


def test_programs_are_seeded_and_differ() -> None:
    once, again = families.program("mixer", 1), families.program("mixer", 1)
    assert [w.tobytes() for w in once.weights] == [w.tobytes() for w in again.weights]
    assert once.graph() == again.graph()
    shapes = {tuple(s.shape for s in families.program("mixer", n).inputs) for n in range(families.VARIANTS)}
    assert len(shapes) > 1


def test_no_family_is_a_program_of_the_core_suite() -> None:
    suite = {"squeezenet", "resnet50", "shufflenet", "inception_v1", "densenet121", *_JAX}
    assert suite.isdisjoint(name.replace("-", "_") for name in families.FAMILIES)


# ---- visiting


def _block(rng: random.Random) -> Described:
    """No weights, so that every operand of a kernel is a class."""

    def fn(w: Any, x: Any, k: Any, a: Any, b: Any) -> Any:
        y = L.relu(jnp.einsum("bchv,oc->bohv", x, k) * 0.5)
        z = L.softmax((a + b) @ b.T) @ b
        return y.sum((2, 3)), jnp.transpose(y, (0, 2, 3, 1)), z + a @ (b.T @ b), jnp.cumsum(a, 0)

    return Described(fn, (spec(2, 3, 5, 4), spec(6, 3), spec(5, 7), spec(5, 7)))


class _Evaluated(Visited):
    """Evaluates every kernel on the values that its leaf classes have in the program."""

    def prepare(self) -> None:
        self.compared, self.values, self.results = 0, {}, {}  # pyright: ignore
        self.expand = library_expander(rules())

    def _emit(self, state: State, c: int, layouts: Sequence[int], in_memory: Sequence[bool]) -> np.ndarray:
        """Class `c` in natural order, by a kernel that reads the classes in memory."""
        env: dict[str, np.ndarray] = {}

        def order(k: int) -> tuple[int, ...]:
            return perm.perm_of(layouts[k], len(state.snapshot.shapes[k]))

        def leaf(k: int) -> Node:
            env[f"c{k}"] = np.ascontiguousarray(self._value(state, k).transpose(order(k)))
            return make_input(f"c{k}", env[f"c{k}"].shape, state.snapshot.dtypes[k])

        def stored(*_: Any) -> Node:
            raise AssertionError("the block has no weights")

        selection = Selection(state.selection, layouts, state.bits, in_memory)
        emitter = ClassEmitter(state.problem.wants, selection, leaf, stored)
        (value,) = evaluate(expand_macros([emitter.kernel(c)], self.expand), env)
        return value.transpose(np.argsort(order(c)))

    def _value(self, state: State, k: int) -> np.ndarray:
        if k not in self.values:
            inputs = [row[0].form.op == "input" for row in state.options]
            if inputs[k]:
                rng = np.random.default_rng(k)
                self.values[k] = rng.uniform(0.25, 1.0, state.snapshot.shapes[k]).astype(np.float32)
            else:
                self.values[k] = self._emit(state, k, [0] * len(inputs), inputs)
        return self.values[k]

    def _add(self, name: str, state: State, c: int) -> None:
        before = sum(map(len, self.kernels.values()))
        super()._add(name, state, c)
        if sum(map(len, self.kernels.values())) == before:
            return
        natural = self._emit(state, c, state.layouts, state.materialised)
        first = self.results.setdefault((c, frozenset(leaf_classes(state, c))), natural)
        np.testing.assert_allclose(natural, first, rtol=2e-4, atol=2e-5)
        self.compared += natural is not first


def test_forms_of_a_task_compute_the_same_function() -> None:
    program = describe("block", 0, _block)
    result = explored(program.graph(), rules(), TableObjective(), QUICK)
    rng = random.Random(0)
    seen = _Evaluated(rng, QUICK)
    seen.prepare()
    for name, state in states(result, QUICK, rng):
        seen.take(name, state)
    assert seen.compared > 20
    assert len({op for forms in seen.kernels.values() if len(forms) > 1 for op in forms.values()}) > 5


def test_visit_gives_tasks_with_several_forms() -> None:
    tasks = visit(families.program("small-batches", 0), rules(), TableObjective(), QUICK)
    assert len(tasks) == QUICK.tasks
    assert any(len(task.forms) > 1 for task in tasks)
    for task in tasks:
        assert len({form.key for form in task.forms}) == len(task.forms)
        assert all(form.key == key_of(form.text) and "macro" not in form.text for form in task.forms)
    assert visit(families.program("small-batches", 0), rules(), TableObjective(), QUICK) == tasks


def test_names_of_inputs_do_not_matter() -> None:
    def product(a: str, b: str) -> Graph:
        x, w = make_input(a, (3, 4)), make_input(b, (4, 2), frozen=True)
        return Graph((w, x), (mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ()))),))

    one, two = make_form("", canonical(product("a", "b"))), make_form("", canonical(product("p", "q")))
    assert one == two
    assert "x0" in one.text
    assert "w0" in one.text


# ---- the corpus


def _tasks() -> list[Task]:
    texts = [
        f"%0 = input x0 : f32[{n},{n}]\n%1 = {op}(%0) : f32[{n},{n}]\nreturn %1\n"
        for n in (8, 40)
        for op in ("tanh", "sqrt")
    ]
    forms = [KernelForm(f"k{i}", key_of(text), text, 1e-6) for i, text in enumerate(texts)]
    return [Task("a", "a/0", "a/0/0", tuple(forms[:2])), Task("b", "b/0", "b/0/0", (*forms[1:], forms[3]))]


def test_files_read_back(tmp_path: Path) -> None:
    tasks = _tasks()
    write_lines(tmp_path / "t.gz", [task.as_dict() for task in tasks])
    assert [task_of(row) for row in read_lines(tmp_path / "t.gz")] == tasks
    before = (tmp_path / "t.gz").read_bytes()
    write_lines(tmp_path / "t.gz", [task.as_dict() for task in tasks])
    assert (tmp_path / "t.gz").read_bytes() == before
    assert read_lines(tmp_path / "absent.gz") == []


def test_each_kernel_is_timed_in_one_task() -> None:
    keys = [form.key for task in distinct(_tasks()) for form in task.forms]
    assert len(keys) == len(set(keys)) == 4
    assert distinct(_tasks()) == distinct(_tasks()[::-1])


def test_labels_of_disturbed_rounds() -> None:
    quiet = KernelTiming(0.0, (1e-4, 1.01e-4, 1.02e-4, 1.0e-4, 1.3e-4, 1.1e-4, 9e-4, 1.0e-4), 1e-5)
    seconds, stderr = label_of(quiet)
    assert seconds == pytest.approx(9e-5)
    assert stderr < 0.01
    assert label_of(KernelTiming(0.0, (1e-4, 3e-4, 2e-4, 6e-4), 1e-5))[1] > 0.2
    assert label_of(KernelTiming(0.0, (1e-4,), 1e-5))[1] == 1.0


def test_a_second_slice_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl.gz"
    tasks = distinct(_tasks())
    settings = KernelSettings(chunk=100, rounds=3, sample_s=1e-4, max_calls=3)
    say: list[str] = []
    measure(tasks[:1], LabelFile.read(path), 60.0, settings=settings, say=say.append)
    first = LabelFile.read(path)
    assert {row["task"] for row in first.rows} == {tasks[0].name}
    fields = {"family", "program", "task", "form", "key", "text", "seconds", "stderr", "rounds_s", "dispatch_s"}
    assert all(row.keys() >= {*fields, "again_s", "session"} for row in first.rows)
    assert {"machine", "versions", "date", "settings"} <= first.header.keys()
    measure(tasks, LabelFile.read(path), 60.0, settings=settings, again_share=1.0, say=say.append)
    second = LabelFile.read(path)
    assert len(second.rows) == 4
    assert {row["session"] for row in second.rows} == {1, 2}
    assert [row["again_s"] is not None for row in second.rows] == [row["session"] == 1 for row in second.rows]
    assert [{**row, "again_s": None} for row in second.rows[: len(first.rows)]] == first.rows
    figures = summary(second, tasks)
    assert (figures["labels"], figures["tasks"], figures["left"]) == (4, 2, 0)
    assert figures["noise_floor_mean"] is not None
    assert len(say) == 2


def test_failures_are_kept_and_not_tried_again(tmp_path: Path, monkeypatch) -> None:
    asked: list[int] = []

    def timed(graphs: Sequence[Graph], **_: Any) -> list[Any]:
        asked.append(len(graphs))
        good = KernelTiming(1e-5, (1.6e-5, 1.5e-5, 1.5e-5), 5e-6)
        return [good] * (len(graphs) - 1) + [Failure("build", "no such thing")]

    monkeypatch.setattr(collect, "time_kernels", timed)
    tasks, path = distinct(_tasks()), tmp_path / "labels.jsonl.gz"
    for _ in range(2):
        measure(tasks, LabelFile.read(path), 60.0, again_share=0.0, say=len)
    labels = LabelFile.read(path)
    assert asked == [5]
    assert len(labels.rows) == 3
    assert summary(labels, tasks)["failed"] == {"build": 1}


def test_programs_are_visited_by_workers_and_failures_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "names", lambda: [("no-family", 1)])
    path, said = tmp_path / "visited.jsonl.gz", list[str]()
    tasks = collect.visited(path, ONE_WORKER, 600.0, said.append)
    header = read_lines(path)[0]["header"]
    assert header["programs"] == ["micro/0"]
    assert list(header["failed"]) == ["no-family/1"]
    assert "KeyError" in header["failed"]["no-family/1"]
    assert {task.family for task in tasks} == {"micro"}
    assert collect.visited(path, ONE_WORKER, 600.0, said.append) == tasks
    assert len(said) == 1, "nothing is visited twice"


REGIONS = [
    {"family": "a", "program": "a/0", "rule": "", "key": str(n), "own_s": 1e-5, "text": print_graph(graph)}
    for n, graph in enumerate(workload(text) for text in ("dot f32 16x32x16", "softmax f32 8x64"))
]


def test_regions_are_timed_by_both_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "regions.jsonl.gz"
    monkeypatch.setattr(regions, "listed", lambda *_: REGIONS)
    monkeypatch.setattr(regions, "SETTINGS", KernelSettings(chunk=100, rounds=2, sample_s=1e-4, max_calls=3))
    assert regions.collect(path, 60.0, len)["labels"] == 2
    rows = LabelFile.read(path).rows
    assert sorted(row["key"] for row in rows) == ["0", "1"]
    assert all(row[f"{backend}_s{when}"] > 0 for row in rows for backend in ("own", "xla") for when in ("", "_again"))


def test_schedules_are_built_by_workers_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schedules.jsonl.gz"
    monkeypatch.setattr(schedules, "order", lambda: REGIONS)
    for name, value in {"DISTINCT": 3, "TRIES": 6, "EXHAUSTIVE": 4, "SMALL": 0}.items():
        monkeypatch.setattr(schedules, name, value)
    figures = schedules.collect(path, 60.0, 1, len)
    rows = LabelFile.read(path).rows
    assert (figures["regions"], figures["failed"], figures["exhaustive"]) == (2, 0, 1)
    assert all(point[1] > 0 for row in rows for point in row["points"])
    assert all(row["peak_s"] > 0 for row in rows)
    assert schedules.collect(path, 60.0, 1, len)["labels"] == figures["labels"], "nothing is timed twice"


def test_the_command_goes_on_where_the_file_ends(tmp_path: Path, monkeypatch, capsys) -> None:
    from superopt.commands.main import main_with

    out = tmp_path / "labels.jsonl.gz"
    header = {"header": {"programs": [f"{f}/{n}" for f, n in (("micro", 0), *families.names())], "failed": {}}}
    write_lines(collect.tasks_path(out), [header, *(task.as_dict() for task in _tasks())])
    monkeypatch.setattr(collect, "SETTINGS", KernelSettings(chunk=100, rounds=2, sample_s=1e-4, max_calls=3))
    with pytest.raises(SystemExit) as stop:
        main_with(["train", "collect", "--out", str(out), "--budget", "20s", "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["labels"] == 4
