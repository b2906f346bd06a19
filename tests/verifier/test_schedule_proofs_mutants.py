"""Right schedules with one integer changed: the verdict against a run of every iteration; nothing false is proved."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from superopt.ir.graph import make_input
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.tensorizing import ContractionDecisions, tiled
from superopt.kernels.schedule.trace import apply
from superopt.lab.corpora.schedules.examples import CPU, bytes_, dense, image, rows, scores, stencil
from tests.support.schedule_oracle import faults, mutants
from verifier.schedules import CheckLimits, ScheduleVerdict, check_schedule

QUICK = CheckLimits(solver=False)
MUTANTS = 14


def _cases() -> dict[str, tuple[LoopProgram, LoopProgram]]:
    d, c, r, s = dense(5, 6, 7), image(4, 2, 3), rows(4, 5), stencil(6, 6)
    strided, q, h = image(5, 2, 3, 2), bytes_(3, 6, 9, "uint8", "int8"), scores(2, 3, 4)
    wide = dense(5, 6, 19)

    def traced(program: LoopProgram, *steps: list[object]) -> tuple[LoopProgram, LoopProgram]:
        return program, apply(program, steps)

    def with_tile(program: LoopProgram, decisions: ContractionDecisions) -> tuple[LoopProgram, LoopProgram]:
        return program, tiled(program, "out0", decisions, CPU)

    return {
        "tails": traced(d, ["split", "out0", "o0", [2]], ["split", "out0", "o1", [4]], ["parallel", "out0", "o0_0"]),
        "fused": traced(d, ["fuse", "out0", ["o0", "o1"]], ["split", "out0", "o0_o1", [4]]),
        "padded sum": traced(d, ["pad_reduction", "out0", 0, 0, 4]),
        "parts": traced(d, ["split_reduction", "out0", 0, 0, [4]], ["rfactor", "out0", 0, [0], "part"]),
        "accumulation": traced(
            d, ["materialize", "out0", "reduce:0", "acc"], ["split_reduction", "acc", 0, 0, [4]],
            ["decompose_reduction", "acc", [0], 0],
        ),
        "layout": traced(
            d, ["cache_read", "out0", "w", "p"], ["transform_layout", "p", [["split", 1, 4], ["permute", [1, 0, 2]]]]
        ),
        "image": traced(c, ["cache_read", "out0", 2, "padded"], ["split", "out0", "o2", [3]]),
        "image in place": traced(strided, ["cache_read", "out0", 2, "padded"], ["compute_at", "padded", "out0", 2]),
        "rows": traced(r, ["materialize", "out0", "reduce:0", "peak"], ["compute_at", "peak", "out0", 1]),
        "region": traced(s, ["split", "out0", "o0", [4]], ["compute_at", "s0", "out0", 1]),
        "tile": with_tile(wide, ContractionDecisions(rows=(("o0", 2),), vectors=1, pack_a="phase")),
        "byte tile": with_tile(q, ContractionDecisions("dot_u8s8", rows=(("o0", 2),), vectors=1, pack_a="phase")),
        "batched tile": with_tile(h, ContractionDecisions(rows=(("o1", 2),), vectors=1, pack_a="phase")),
    }  # fmt: skip


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_mutants(name: str) -> None:
    before, after = CASES[name]
    assert faults(before, after, seeds=1) == ""
    assert check_schedule(before, after, QUICK).proved
    seen: Counter[tuple[bool, str]] = Counter()
    for what, mutant in mutants(after, np.random.default_rng(zlib.crc32(name.encode())), MUTANTS):
        verdict = check_schedule(before, mutant, QUICK)
        wrong = faults(before, mutant)
        seen[bool(wrong), verdict.status] += 1
        assert not (wrong and verdict.proved), f"{what}: {wrong}, and it is proved"
        if not wrong and verdict.status == "REFUTED":
            assert _beyond_the_oracle(verdict), f"{what}: it runs, and it is refuted: {verdict}"
    refuted = seen[True, "REFUTED"]
    assert refuted >= 0.8 * (refuted + seen[True, "UNKNOWN"])


def _beyond_the_oracle(verdict: ScheduleVerdict) -> bool:
    """Form, windows of vectors and the order in which stages stand, which a run of single iterations does not see."""
    return any(x in verdict.cause for x in ("well-formed", "next to each other", "whole", "not filled yet"))


def test_whole_vectors_of_a_panel_lie_in_it() -> None:
    before, after = CASES["byte tile"]
    narrow = [replace(b, shape=(2, 15, 4)) if b.name == "out0_b" else b for b in after.buffers]
    cause = check_schedule(before, replace(after, buffers=tuple(narrow)), QUICK).cause
    assert "a vector load reads out0_b[0, 15, 0], outside of [2, 15, 4]" in cause


def test_nothing_is_proved_of_another_program() -> None:
    x = make_input("x", (4, 5))
    from superopt.ir.graph import mk

    programs = [from_graph([mk(fn, x)]) for fn in ("exp", "tanh", "neg", "abs")]
    for a in programs:
        for b in programs:
            assert check_schedule(a, b, QUICK).status == ("PROVED" if a is b else "REFUTED")
