"""The picture of the architecture: stages of an optimisation in their order, with the rooms that each one uses.

`python -m superopt.lab.house --write` writes it to `docs/architecture.svg`, which README and documentation show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from textwrap import shorten

FLOW: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("import", "function or model to a typed graph", ("superopt.frontends", "superopt.ir")),
    ("plain candidate", "every region a kernel: the fallback", ("superopt.make", "superopt.kernels")),
    ("prove", "certificates of the rewrite rules", ("superopt.certify", "verifier")),
    ("explore", "equivalent programs, priced", ("superopt.explore", "rewrites", "superopt.search", "costmodel")),
    ("build", "the best in kernels, schedules tuned", ("superopt.schedules", "superopt.backends")),
    ("contest", "all of them and the original, timed", ("superopt.contest", "superopt.measure")),
    ("return", "winner or original, with a report", ("superopt.returned", "superopt.report")),
)
"""Stages in order: name, result in a few words, rooms."""

_LEFT, _WIDTH, _LINE, _GAP = 250, 1080, 22, 22
_CLAUSE = 96
_STYLE = (
    "text { font: 13px sans-serif; fill: #1b1f24 } .name { font-weight: bold } .room { font-family: monospace } "
    ".idea { fill: #57606a } .stage { fill: #ddf4ff; stroke: #54aeff } .rooms { fill: #f6f8fa; stroke: #d0d7de }"
)


def svg(idea: Callable[[str], str]) -> str:
    """Draw the stages below each other.

    Args:
        idea: text of a room, of which the first clause is shown.
    """
    body = list(_rows(idea))
    height = _GAP // 2 + sum(_height(rooms) + _GAP for _, _, rooms in FLOW) - _GAP // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
            "<title>Stages of an optimisation and the rooms that each one uses</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def _rows(idea: Callable[[str], str]) -> Iterator[str]:
    top = _GAP // 2
    for i, (name, result, rooms) in enumerate(FLOW):
        height = _height(rooms)
        middle = top + height // 2
        yield f'<rect class="stage" x="10" y="{top}" width="{_LEFT}" height="{height}" rx="6"/>'
        yield f'<text class="name" x="22" y="{middle - 4}">{i + 1}. {escape(name)}</text>'
        yield f'<text x="22" y="{middle + 14}">{escape(result)}</text>'
        left = _LEFT + 22
        yield f'<rect class="rooms" x="{left}" y="{top}" width="{_WIDTH - left - 10}" height="{height}" rx="6"/>'
        for k, room in enumerate(rooms):
            y = middle + _LINE * k - _LINE * (len(rooms) - 1) // 2 + 5
            yield f'<text class="room" x="{left + 12}" y="{y}">{escape(room)}</text>'
            yield f'<text class="idea" x="{left + 172}" y="{y}">{escape(_clause(idea(room)))}</text>'
        top += height
        if i + 1 < len(FLOW):
            x = 10 + _LEFT // 2
            yield f'<path d="M{x} {top} v{_GAP - 8} m-5 0 l5 7 l5 -7 z" fill="#54aeff" stroke="#54aeff"/>'
        top += _GAP


def _height(rooms: tuple[str, ...]) -> int:
    return max(_LINE * len(rooms) + 14, 50)


def _clause(text: str) -> str:
    """Return the first clause of a sentence, or the text behind a colon that at most three words introduce."""
    head, _, rest = text.partition(": ")
    clause = rest if rest and len(head.split()) <= 3 else head
    clause = re.sub(r" \([^)]*\)|`", "", clause.partition(";")[0].partition(". ")[0].rstrip("."))
    return shorten(clause[:1].upper() + clause[1:], _CLAUSE, placeholder=" ...")
