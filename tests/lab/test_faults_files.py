"""A sample of `superopt bench --faults`: mutated files end in one typed error, within bounds, and do nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from jax import numpy as jnp

import superopt
from superopt.commands.main import cli
from superopt.errors import FileLimitError, InputError
from superopt.lab.bench.faults import suite as faults
from superopt.lab.bench.faults import worker as faults_worker
from tests.support import faults_dying
from tests.support.saved_files import edited

NOTHING = dict.fromkeys(("untyped", "deaths", "outside", "foreign_answers", "lost_results", "over_limits"), 0.0)


@pytest.mark.parametrize(
    "kind", ["rules", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("saved", "store"))]
)
def test_mutated_files_end_in_typed_errors(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows, summary, text = faults.run(budget="", cases=[kind], seed=3, say=lambda _: None, count=16)
    assert rows[0]["files"] == 16
    assert rows[0]["refused"] >= 8, "mutations do something"
    assert {name: summary[name] for name in summary if name != "files"} == NOTHING, text


def test_a_watch_hears_what_happens_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    watch = faults_worker.Watch(inside)
    watch.on = True
    (inside / "x").write_text("fine")
    (outside / "x").write_text("not fine")
    (outside / "x").read_text()
    (outside / "x").unlink()
    watch.on = False
    assert [text.split()[0] for text in watch.seen] == ["write", "read", "os.remove"]


def test_outcomes_tell_faults_from_refusals(tmp_path: Path) -> None:
    class Reader:
        def __init__(self, found: str | BaseException) -> None:
            self.found = found

        def read(self, path: Path, good: Path) -> str:
            if isinstance(self.found, BaseException):
                raise self.found
            return self.found

    watch = faults_worker.Watch(tmp_path)
    for found, expected in (
        ("", {"refused": 0}),
        (InputError("no"), {"refused": 1}),
        ("another answer", {"refused": 0, "foreign_answers": "another answer"}),
        (InputError("\x1b[2J"), {"refused": 1}),
        (KeyError("x"), {"refused": 0, "untyped": None}),
    ):
        told = faults_worker.outcome(Reader(found), tmp_path, tmp_path, watch)
        assert {name: told[name] if value else None for name, value in expected.items() if name != "refused"} == {
            name: value for name, value in expected.items() if name != "refused"
        }
        assert told["refused"] == expected["refused"]
        assert ("untyped" in told) == ("untyped" in expected)


def test_the_command_line_counts_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [text for kind in ("rules", "flips") for text in ("--case", kind)]
    said = CliRunner().invoke(cli, ["bench", "--faults", *asked, "--count", "40", "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert {row["kind"]: row["files"] for row in told["rows"]} == {"rules": 40, "flips": 400}
    assert {name: n for name, n in told["summary"].items() if name != "files"} == NOTHING, told["text"]


def test_deaths_are_counted_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = faults._files("dying", "tests.support.faults_dying", 12, 1, lambda _: None)
    fatal = [n for n in range(12) if faults_dying.is_fatal(random.Random(f"dying 1 {n}"))]
    assert (found.files, found.refused, found.deaths) == (12, 12 - len(fatal), len(fatal))
    assert len(fatal) > 1
    assert {p.name for p in (tmp_path / faults.KEPT).iterdir()} == {f"dying-1-{n}.txt" for n in fatal}


def test_validation_of_a_file_is_bounded_by_its_size(tmp_path: Path) -> None:
    """A few words make a program with billions of elements; labelling them would take all memory."""
    w, x = np.ones((8, 8), np.float32), np.ones((4, 8), np.float32)
    options = {"budget": "5steps", "deterministic": True, "store": False, "rules": ()}
    result = superopt.optimize(lambda w, x: jnp.tanh(x @ w), w, x, **options)
    big = (
        b'%900 = iota() dimension=0 dtype="float32" shape=(4000000000,) : f32[4000000000]\n'
        b"%901 = reduce_sum(%900) axes=(0,) : f32[]\n"
        b"%902 = broadcast_in_dim(%901) broadcast_dimensions=() shape=(4, 8) : f32[4,8]\n"
        b"%903 = mul(%3, %902) : f32[4,8]\n"
    )
    path = edited(
        result.save(tmp_path / "small.superopt"),
        tmp_path / "big.superopt",
        hot=lambda text: text.replace(b"return %3", big + b"return %903"),
    )
    with pytest.raises(FileLimitError, match="elements"):
        superopt.load(path).validate(store=None)


def test_every_kind_of_files_has_a_reader() -> None:
    assert set(faults.KINDS) - {"stages"} == set(faults.MODULES)
