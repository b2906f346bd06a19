"""Figures of models on kinds of processors that they have no labels of."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from costmodel.features import stages
from superopt.commands.main import cli
from superopt.ir.graph import Graph, make_input, mk
from superopt.lab.training import regions, unseen
from superopt.lab.training.corpus import OWN_FORM, KernelLabel
from superopt.lab.training.staged import ScheduleLabels
from superopt.lab.training.tasks import write_lines
from superopt.lab.training.unseen import KindOfProcessor, UnseenPrices
from superopt.machine import facts

FAMILIES, PROGRAMS, EACH = 4, 6, 6


def kind(fixed_s: float = 0.0, rate: float = 1.0) -> tuple[KindOfProcessor, UnseenPrices]:
    """Regions of a kind, and prices that their seconds are a line of, the doubtful ones off by a quarter."""
    rng = np.random.default_rng(0)
    count = FAMILIES * PROGRAMS * EACH
    priced = rng.permutation(np.geomspace(2e-6, 5e-4, count))
    doubtful = np.arange(count) % EACH == 0
    seconds = (fixed_s + rate * priced) * np.where(doubtful, 1.25, 1.0)
    x = make_input("x0", (8,))
    labels = tuple(
        KernelLabel(
            f"family {i // EACH % FAMILIES}", f"program {i // EACH}", str(i), OWN_FORM, key=str(i),
            graph=Graph((x,), (mk("exp", x),)), seconds=float(seconds[i]), stderr=0.0, again_s=None,
        )
        for i in range(count)
    )  # fmt: skip
    rows = ScheduleLabels(
        [np.zeros((1, len(stages.NAMES)), np.float32)] * count, seconds, np.full(count, np.nan), np.arange(count),
        np.array([x.family for x in labels]), np.array([x.program for x in labels]), np.zeros(count, bool),
        np.ones(count, bool), np.zeros(count, bool), header={"fma_s": 1e-10},
    )  # fmt: skip
    made = KindOfProcessor("made up", labels, np.full(count, np.nan), rows, np.ones(count), {})
    return made, UnseenPrices(priced, np.where(doubtful, 0.25, 0.01))


def test_a_line_mends_a_bias_that_no_factor_does() -> None:
    some, priced = kind(fixed_s=1e-5, rate=1.2)
    by_correction = {name: unseen.judged(some, priced, name) for name in unseen.CORRECTIONS}
    line, factor, none = (by_correction[name] for name in ("line", "factor", "none"))
    assert line["error_all"] < 0.1 < 0.15 < factor["error_all"]
    assert none["error"] > 0.2
    assert line["tau"] == none["tau"] > 0.9, "a line keeps the order"
    assert 0.8 <= line["coverage90"] <= 1.0
    assert none["coverage90_spread"] < 0.2


def test_errors_are_found_by_seconds_or_by_doubt() -> None:
    y = np.array([1.0, 2.0, 3.0] * 2)
    p = y + np.array([0.5, 0.0, 0.1] * 2)
    programs = np.array(["a"] * 3 + ["b"] * 3)
    assert unseen.covered(p, y, p, programs) == pytest.approx(0.1 / 0.6)
    assert unseen.covered(p, y, np.abs(p - y), programs) == pytest.approx(0.5 / 0.6)
    scores = unseen.judged(*kind(), "none")
    assert scores["covered_by_seconds"] <= scores["covered_at_most"] <= 1.0
    assert scores["covered_by_spread"] > scores["covered_by_seconds"], "the members know which are off"


def test_a_choice_costs_what_the_other_backend_would_have_saved() -> None:
    some, _ = kind()
    handover_s = unseen.NOMINAL.handover_s
    xla_s = np.full(len(some.labels), np.nan)
    xla_s[:2] = 1e-3, 1e-6
    some = replace(some, xla_s=xla_s, rows=replace(some.rows, seconds=np.full(len(xla_s), 2e-4)))
    told = unseen.pick_regret(some, np.full(len(xla_s), 2e-4), xla_s)
    assert told["pick_regret"] == 0.0, "the predictions are the times"
    assert told["pick_regret_ours"] == pytest.approx(4e-4 / (2e-4 + 1e-6 + handover_s) - 1, abs=1e-4)
    assert unseen.pick_regret(replace(some, xla_s=np.full(len(xla_s), np.nan)), xla_s, xla_s) == {}


def test_whole_programs_are_predicted_by_the_prices_of_their_kernels() -> None:
    some, _ = kind()
    programs, seconds = some.rows.programs, some.rows.seconds
    whole_s = {str(p): 5e-6 + 1.1 * float(seconds[programs == p].sum()) for p in np.unique(programs)}
    some = replace(some, whole_s=whole_s)
    told = unseen.program_error(some, 2 * seconds)
    assert told["program_error_timed"] == pytest.approx(0.0, abs=0.01)
    assert told["program_error"] > 0.5
    assert unseen.program_error(replace(some, whole_s={}), seconds) == {}


def test_timed_kernels_of_a_program_and_kept_ones_correct_the_rest_of_it() -> None:
    told = unseen.replayed(*kind(fixed_s=1e-5, rate=1.5))
    assert told["rest_kept_error"] < told["rest_first_error"] < told["rest_error"]
    assert told["rest_kept_tau"] >= told["rest_tau"] - 0.02


def test_an_evaluation_leaves_each_kind_out_and_has_the_figures_of_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    some, priced = kind()
    every = [some, replace(some, name="another")]
    models = ("estimate", unseen.SEARCHED, unseen.XLA)
    monkeypatch.setattr(unseen, "prices", lambda *_: dict.fromkeys(models, priced))
    result = unseen.evaluate(lambda line: None, every)
    assert result["kinds"].keys() == {"made up", "another"}
    assert {"tau", "error", "coverage90", "estimate_tau"} <= result["summary"].keys()
    assert "| made up, estimate | line |" in result["text"]


def test_labels_of_a_further_kind_come_program_by_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"family": "f", "program": f"f/{k % 3}", "key": str(k), "text": "", "rule": "a rule" if k == 4 else ""}
        for k in range(9)
    ]
    shipped = tmp_path / "regions.jsonl.gz"
    write_lines(shipped, [{"header": {}}, *[row | {"own_s": 1.0} for row in rows]])
    monkeypatch.setattr(regions, "SHIPPED", shipped)
    asked: list[str] = []

    def timed(chunk: list[dict[str, Any]], worker: object) -> list[dict[str, float]]:
        asked.extend(row["key"] for row in chunk)
        return [{"own_s": 1e-5, "xla_s": 2e-5} for _ in chunk]

    monkeypatch.setattr(regions, "timed", timed)
    monkeypatch.setattr(regions.rates, "now", lambda: unseen.NOMINAL)
    out = tmp_path / "regions-other.jsonl.gz"
    regions.collect(out, 60.0, lambda line: None, kind="other")
    order = sorted({row["program"] for row in rows}, key=lambda p: hashlib.sha256(p.encode()).digest())
    programs = [next(row["program"] for row in rows if row["key"] == key) for key in dict.fromkeys(asked)]
    assert "4" not in asked, "forms of rules are no program's own"
    assert programs == sorted(programs, key=order.index)
    header, *made = regions.read_lines(out)
    assert header["header"]["kind"] == "other"
    assert header["header"]["rates"]["fma_s"] == unseen.NOMINAL.fma_s
    assert all("own_s_again" in row for row in made), "the first chunk is visited twice"


def test_code_for_avx2_is_made_in_a_process_that_knows_no_wider_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with regions.avx2():
        assert not any(f.startswith("avx512") for f in facts.describe().features)
        assert "--xla_cpu_max_isa=AVX2" in regions.os.environ["XLA_FLAGS"]
    assert facts.describe() == facts.own()
    told = CliRunner().invoke(cli, ["train", "regions", "--avx2", "--out", "x.jsonl.gz"])
    assert told.exit_code != 0
    assert "--kind" in told.output
