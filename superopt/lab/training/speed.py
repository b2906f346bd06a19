"""Scoring speed where it counts: the kernels that searches on training programs ask for, replayed in their order.

python -m superopt.lab.training.speed
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.calibrate.speed import BATCH, MOST, Speed, fresh_speed
from costmodel.labels import corpus
from costmodel.model import learned_file
from costmodel.model.load import load_roofline
from costmodel.model.objective import Objective
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.explore.exploration import explore
from superopt.ir.graph import Graph
from superopt.lab.training import families
from superopt.machine.budget import SearchBudget

PROGRAMS = (
    ("relative-attention", 3), ("searched-cell", 2), ("vision-transformer", 7), ("separable-conv", 8),
    ("recommender", 1), ("graph-network", 4),
)  # fmt: skip
STEPS = 12_000


class Asked:
    """An objective that keeps what it is asked for, batch by batch."""

    def __init__(self, base: Objective) -> None:
        self.base, self.name, self.version = base, base.name, base.version
        self.batches: list[list[Graph]] = []

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds that each kernel takes inside a program."""
        self.batches.append(list(kernels))
        return self.base.price(kernels)


def asked(family: str, number: int, rules: Sequence[Rule], steps: int = STEPS) -> list[list[Graph]]:
    """What the search on a training program asks its objective for, macros expanded."""
    objective = Asked(load_roofline())
    explore(families.program(family, number).graph(), rules, objective, SearchBudget(None, steps), 0)
    return objective.batches


def report(searches: Sequence[tuple[str, Speed]], whole: Speed) -> str:
    """The figures as a Markdown table."""
    total = Speed(
        *(sum(getattr(s, name) for _, s in searches) for name in ("kernels", "nodes", "batches")),
        *(sum(getattr(s, name) for _, s in searches) for name in ("seconds", "encoding_s")),
    )  # fmt: skip
    lines = [
        "| stream | kernels | nodes each | a batch | kernels/s | us each | of that encoding |",
        "|---|" + "--:|" * 6,
    ]
    for name, s in (*searches, ("all searches", total), (f"corpus, all nodes new, batches of {BATCH}", whole)):
        each = 1e6 / s.kernels
        lines.append(
            f"| {name} | {s.kernels} | {s.nodes / s.kernels:.1f} | {s.kernels / s.batches:.1f} | {s.rate:.0f} "
            f"| {each * s.seconds:.1f} | {each * s.encoding_s:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table for the shipped weights."""
    rules = tuple(load())
    streams = [asked(family, number, rules) for family, number in PROGRAMS]
    labels = list({x.key: x.graph for x in corpus.load().labels}.values())
    some = labels[:: max(1, len(labels) // MOST)][:MOST]
    streams.append([some[i : i + BATCH] for i in range(0, len(some), BATCH)])
    found = fresh_speed(learned_file.read()[0], streams)
    print(report([(f"{f}/{n}", s) for (f, n), s in zip(PROGRAMS, found, strict=False)], found[-1]))


if __name__ == "__main__":
    main()
