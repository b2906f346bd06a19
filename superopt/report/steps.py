"""The waterfall from the original to the returned program, made of candidates that were timed.

A candidate that was timed and has a part of what the returned program has is a step between both.  Parts that no timed
candidate tells apart are one step together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.candidates.evidence import JudgedFinalist
from superopt.machine.speedup import Speedup

PARTS = {
    "ahead": "ahead-of-time work",
    "rewrites": "rewrites",
    "layouts": "layouts",
    "kernels": "our kernels",
    "schedules": "searched schedules",
    "options": "compiler options",
}
"""Part of a returned program -> its name for readers, in the order of the waterfall."""


@dataclass(frozen=True, slots=True)
class GainStep:
    """One step of the waterfall.

    Attributes:
        name: the candidate after the step; the last one is returned.
        adds: keys of `PARTS` that it has and the candidate before has not.
        ratio: the original's time over that of the candidate, paired by round.
        takes_share: time of the candidate as a share of the original's.
        gain_share: share of the time saved by the whole that this step saves; below zero where it loses time.
        certain: its interval and that of the candidate before are apart.
    """

    name: str
    adds: tuple[str, ...]
    ratio: Speedup
    takes_share: float
    gain_share: float
    certain: bool

    @property
    def words(self) -> str:
        """The parts that the step adds, for readers."""
        return listed([PARTS[part] for part in self.adds])


def listed(words: Sequence[str]) -> str:
    """Return words as a list of a sentence."""
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + "".join(words[-1:])


def steps_of(
    finalists: Sequence[JudgedFinalist], name: str, parts: Sequence[str], speedup: Speedup
) -> tuple[GainStep, ...]:
    """Return the longest waterfall from the original to a program that was timed; none where it was not.

    Args:
        finalists: candidates that were timed with the original, or were not.
        name: name of the returned program.
        parts: what it has.
        speedup: what it gains over the original.
    """
    if speedup.basis != "measured" or not parts or speedup.ratio <= 0.0:
        return ()
    fastest: dict[frozenset[str], tuple[str, Speedup]] = {}
    for f in finalists:
        has = frozenset(f.parts)
        if f.name == name or f.ratio is None or f.ratio.ratio <= 0.0 or not has or not has < frozenset(parts):
            continue
        if has not in fastest or fastest[has][1].ratio < f.ratio.ratio:
            fastest[has] = f.name, f.ratio
    best: dict[frozenset[str], tuple[frozenset[str], ...]] = {}
    for has in sorted(fastest, key=lambda has: (len(has), sorted(has))):
        before = [best[other] for other in best if other < has]
        best[has] = (*max(before, key=len, default=()), has)
    chain = max(best.values(), key=lambda chain: (len(chain), fastest[chain[-1]][1].ratio), default=())
    stops = [*((has, *fastest[has]) for has in chain), (frozenset(parts), name, speedup)]
    saved = 1.0 - 1.0 / speedup.ratio
    out: list[GainStep] = []
    known, before = frozenset[str](), Speedup(1.0, 1.0, 1.0)
    for has, label, ratio in stops:
        adds = tuple(part for part in PARTS if part in has - known)
        share = (1.0 / before.ratio - 1.0 / ratio.ratio) / saved if saved else 0.0
        certain = ratio.low > before.high or ratio.high < before.low
        out.append(GainStep(label, adds, ratio, 1.0 / ratio.ratio, share, certain))
        known, before = has, ratio
    return tuple(out)
