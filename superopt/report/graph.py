"""A program as an SVG drawing: one box per kernel, with the operations fused into it, operands above readers.

Boxes that differ between before and after are outlined and link to their counterpart on the other side.  Operations
that a rewrite introduced carry its name.  Repeated stretches can be folded into one box.  A drawing is cut between
layers into bands, so that a browser lays out only those in view.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import escape

from superopt.ir.ops.table import PRODUCTS, TABLE
from superopt.report.data import DrawnNode
from superopt.report.figures import ms, percent
from superopt.report.layers import GAP_Y, place

WIDTH = 220.0
_HEAD, _ROW, _PAD = 22.0, 15.0, 6.0
_SMALLEST = 0.8  # drawings shrink to this before they scroll
_BAND = 800.0  # height of a band, about that of a screen
_ROWS = 7  # operations listed in a box
_PERIOD = 48  # longest stretch of kernels whose repetition is looked for
_WORTH = 3  # kernels that a fold must save

CLASSES = (
    ("product", "matrix product"),
    ("conv", "convolution"),
    ("reduce", "reduction or window"),
    ("ew", "elementwise"),
    ("move", "movement"),
    ("other", "other"),
    ("input", "input"),
)
_OF_FAMILY = {
    "leaf": "move", "movement": "move", "indexing": "move", "reduction": "reduce", "contraction": "conv",
    "control": "other",
}  # fmt: skip


@dataclass(slots=True)
class DrawnBox:
    """A kernel, an input, or a fold of several kernels.

    Attributes:
        us: microseconds of its kernel, where known; `place` is the index of that figure in the record of the side.
        timed: whether `us` is a timing, else a prediction.
        kernels: number of kernels in it: none for an input, or an operation that is no kernel.
    """

    id: int
    nodes: list[DrawnNode] = field(default_factory=list[DrawnNode])
    reads: list[int] = field(default_factory=list[int])
    us: float = 0.0
    place: int = -1
    timed: bool = False
    kernels: int = 0
    folded: int = 0
    times: int = 0

    @property
    def is_input(self) -> bool:
        """Whether the box shows an argument."""
        return not self.folded and self.nodes[-1].op.startswith("input")

    @property
    def is_ahead(self) -> bool:
        """Whether the box is computed ahead of time on the other side."""
        return not self.folded and self.nodes[-1].change == "ahead"

    @property
    def changed(self) -> bool:
        """Whether the box differs from the other side."""
        return any(node.change != "same" for node in self.nodes)

    @property
    def height(self) -> float:
        """Height in pixels."""
        if self.is_input or self.folded:
            return 30.0
        if len(self.nodes) == 1:
            return 42.0
        rows = min(len(self.nodes), _ROWS + 1) + bool(_main(self).label)
        return _HEAD + _ROW * rows + _PAD + 4


def op_class(op: str) -> str:
    """Colour class of an op."""
    if op.startswith("input"):
        return "input"
    if op in PRODUCTS:
        return "product"
    return _OF_FAMILY.get(TABLE[op].family, "ew") if op in TABLE else "other"


def boxes_of(nodes: Sequence[DrawnNode]) -> list[DrawnBox]:
    """The boxes of the kernels, operands first."""
    boxes: dict[int, DrawnBox] = {}
    for place_of, node in enumerate(nodes):
        box = boxes.setdefault(node.kernel, DrawnBox(node.kernel))
        box.nodes.append(node)
        if node.kernel == node.id:
            box.kernels = int(bool(node.backend))
            box.us, box.place, box.timed = node.us or 0.0, place_of, node.timed
    kernel = {node.id: node.kernel for node in nodes}
    for node in nodes:
        for k in node.reads:
            if k in kernel and kernel[k] != node.kernel and kernel[k] not in boxes[node.kernel].reads:
                boxes[node.kernel].reads.append(kernel[k])
    done: dict[int, DrawnBox] = {}
    read = {k for box in boxes.values() for k in box.reads}
    stack = [(box.id, False) for box in reversed(boxes.values()) if box.id not in read]
    entered: set[int] = set()
    while stack:
        number, ready = stack.pop()
        if ready:
            done.setdefault(number, boxes[number])
        elif number not in entered:
            entered.add(number)
            stack.append((number, True))
            stack.extend((k, False) for k in reversed(boxes[number].reads) if k not in entered)
    return list(done.values())


def fold(boxes: Sequence[DrawnBox]) -> list[DrawnBox]:
    """The boxes with repetitions of a stretch of kernels folded into one box each."""
    names: dict[object, int] = {}
    signs = [
        names.setdefault(tuple((n.op, n.type, n.frozen, n.rule, n.change) for n in box.nodes), len(names))
        for box in boxes
    ]
    out: list[DrawnBox] = []
    moved: dict[int, int] = {}
    i = 0
    while i < len(boxes):
        period, times = _repetition(signs, i)
        out += boxes[i : i + period]
        if times > 1:
            members = boxes[i + period : i + period * times]
            box = DrawnBox(members[0].id, folded=len(members), times=times - 1, us=sum(m.us for m in members))
            box.kernels = sum(m.kernels for m in members)
            box.nodes = [node for m in members for node in m.nodes]
            moved.update(dict.fromkeys((m.id for m in members), box.id))
            box.reads = [k for m in members for k in m.reads]
            out.append(box)
        i += period * times
    for box in out:
        reads = dict.fromkeys(moved.get(k, k) for k in box.reads)
        box.reads = [k for k in reads if k != box.id]
    return out


def _repetition(signs: Sequence[int], i: int) -> tuple[int, int]:
    """Length and number of the repetitions at a place that save most boxes; (1, 1) where none are saved."""
    best, repeated = _WORTH - 1, (1, 1)
    for period in range(1, min(_PERIOD, (len(signs) - i) // 2) + 1):
        times, end = 1, i + period
        while list(signs[end : end + period]) == list(signs[i : i + period]):
            times, end = times + 1, end + period
        saved = period * (times - 1) - 1
        if saved > best:
            best, repeated = saved, (period, times)
    return repeated


def svg(boxes: Sequence[DrawnBox], side: str, other: set[int], label: str) -> str:
    """The drawing; `other` are the boxes that exist on the other side."""
    number = {box.id: i for i, box in enumerate(boxes)}
    edges = [(number[k], i) for i, box in enumerate(boxes) for k in box.reads if k in number and number[k] < i]
    floating = [i for i, box in enumerate(boxes) if box.is_input or box.is_ahead]
    placed = place([(150.0 if box.is_input else WIDTH, box.height) for box in boxes], edges, floating)
    total = sum(box.us for box in boxes) or 1.0
    width, height = placed.width + 16, placed.height + 16
    out = [
        f'<div class="graph" role="group" aria-label="{escape(label)}" style="min-width: {_SMALLEST * width:.0f}px">'
    ]
    cuts = _cuts([y for _, y in placed.boxes])
    bands: list[list[str]] = [[] for _ in range(len(cuts) + 1)]
    limits = list(itertools.pairwise((-8.0, *cuts, height - 8)))
    for points in placed.edges:
        for n in range(bisect(cuts, points[0][1]), bisect(cuts, points[-1][1]) + 1):
            bands[n].append(f'<path class="edge" d="{_curve(points, *limits[n])}"/>')
    for box, (x, y) in zip(boxes, placed.boxes, strict=True):
        bands[bisect(cuts, y)].append(_box(box, side, x, y, total, box.id in other))
    for band, (top, end) in zip(bands, limits, strict=True):
        view = f'width="{width:.0f}" viewBox="-8 {top:.0f} {width:.0f} {end - top:.0f}"'
        rest = f"contain-intrinsic-height: auto {end - top:.0f}px"
        out += [f'<div class="band" style="{rest}"><svg {view}>', *band, "</svg></div>"]
    return "".join(out) + "</div>"


def _cuts(tops: Sequence[float]) -> list[float]:
    """Heights at which a drawing with boxes at these heights is cut, in the gaps above layers."""
    cuts, last = list[float](), 0.0
    for top in sorted(set(tops)):
        if top - last > _BAND:
            last = top
            cuts.append(top - GAP_Y / 2)
    return cuts


def _curve(points: Sequence[tuple[float, float]], top: float, end: float) -> str:
    """The parts of an edge that enter a band, as a path."""
    parts: list[str] = []
    for (x, y), (u, v) in itertools.pairwise(points):
        if v < top or y > end:
            continue
        middle = (y + v) / 2
        straight = abs(u - x) < 0.5
        parts += [] if parts else [f"M{x:.0f} {y:.0f}"]
        parts.append(f"L{u:.0f} {v:.0f}" if straight else f"C{x:.0f} {middle:.0f} {u:.0f} {middle:.0f} {u:.0f} {v:.0f}")
    return "".join(parts)


def _box(box: DrawnBox, side: str, x: float, y: float, total: float, linked: bool) -> str:
    share = box.us / total
    head = _heading(box)
    kind = "fold" if box.folded else "input" if box.is_input else "changed" if box.changed else "kept"
    width = 150.0 if box.is_input else WIDTH
    tip = _tooltip(box, share)
    out = [
        f'<g class="box {kind}" id="{side}-{box.id}" role="img" aria-label="{escape(head)}" '
        f'transform="translate({x:.0f} {y:.0f})"><title>{escape(tip)}</title>'
    ]
    out.append(f'<rect class="frame" width="{width:.0f}" height="{box.height:.0f}" rx="6"/>')
    if box.is_input or box.folded:
        out.append(f'<text x="{width / 2:.0f}" y="19" text-anchor="middle">{escape(_cut(head, width - 12))}</text></g>')
        return "".join(out)
    time, of = f"{box.nodes[-1].backend} {ms(1e-3 * box.us)} · {_percent(share)}".strip() if box.us else "", ""
    if box.us:
        of = f' data-of="drawing/{side.removesuffix("-full")}/{box.place}/us"'
    if box.is_ahead:
        time = "on every call"
    if len(box.nodes) == 1:
        out.append(_swatch(box.nodes[0], 6))
        out.append(f'<text class="head" x="22" y="15">{escape(_cut(head, width - 36 - 6.4 * len(time), 7.0))}</text>')
        node, right = box.nodes[0], f'x="{width - 8:.0f}" y="30" text-anchor="end"'
        dims = _cut(_dims(node.type), 80.0)
        left = width - 38 - 6.2 * len(dims)
        text, kind_of = (_cut(node.rule, left), "op new") if node.rule else (_name(box, left), "more")
        out.append(f'<text class="{kind_of}" x="22" y="30">{escape(text)}</text>')
        out.append(f'<text class="type" {right}>{escape(dims)}</text>')
    else:
        out.append(f'<text class="head" x="8" y="15">{escape(_cut(head, width - 24 - 6.4 * len(time), 7.0))}</text>')
        out += _rows(box, width)
    out.append(f'<text class="time"{of} x="{width - 8:.0f}" y="15" text-anchor="end">{escape(time)}</text>')
    bar = max(0.0, min(1.0, share)) * (width - 16)
    out.append(f'<rect class="bar" x="8" y="{box.height - 6:.0f}" width="{bar:.1f}" height="3" rx="1.5"/></g>')
    drawn = "".join(out)
    if kind == "changed" and linked:
        there = "after" if side.startswith("before") else "before"
        return f'<a href="#{there}{side.removeprefix("before").removeprefix("after")}-{box.id}">{drawn}</a>'
    return drawn


def _rows(box: DrawnBox, width: float) -> list[str]:
    """Lines for the name and the operations of a kernel, only the last ones where there are many."""
    out: list[str] = []
    y, nodes = _HEAD, box.nodes
    if _main(box).label:
        out.append(f'<text class="more" x="8" y="{y + 9:.0f}">{escape(_name(box, width - 16))}</text>')
        y += _ROW
    shown = nodes if len(nodes) <= _ROWS + 1 else nodes[-_ROWS:]
    if len(shown) < len(nodes):
        out.append(f'<text class="more" x="22" y="{y + 11:.0f}">{len(nodes) - len(shown)} more above</text>')
        y += _ROW
    for node in shown:
        dims = _cut(_dims(node.type), 80.0)
        name = _cut(_short(node.op) + (f" · {node.rule}" if node.rule else ""), width - 38 - 6.2 * len(dims))
        out.append(_swatch(node, y + 3))
        out.append(f'<text class="{"op new" if node.rule else "op"}" x="22" y="{y + 11:.0f}">{escape(name)}</text>')
        out.append(f'<text class="type" x="{width - 8:.0f}" y="{y + 11:.0f}" text-anchor="end">{escape(dims)}</text>')
        y += _ROW
    return out


def _swatch(node: DrawnNode, y: float) -> str:
    return f'<rect class="{op_class(node.op)}" x="8" y="{y:.0f}" width="9" height="9" rx="2"/>'


def _short(op: str) -> str:
    return op.replace("_general_dilated", "").replace("_general", "").replace("_in_dim", "")


def _heading(box: DrawnBox) -> str:
    if box.folded:
        return f"{box.times} more times the {box.folded // box.times} above"
    if box.is_input:
        return f"{box.nodes[-1].op.removeprefix('input ')} {_dims(box.nodes[-1].type)}"
    return _short(_main(box).op)


def _main(box: DrawnBox) -> DrawnNode:
    """The heaviest operation of a kernel."""
    order = [name for name, _ in CLASSES]
    return min(box.nodes, key=lambda n: order.index(op_class(n.op)))


def _name(box: DrawnBox, width: float) -> str:
    """The name of a kernel's heaviest operation in the program, without its first letters where it is long."""
    label, most = _main(box).label, max(3, int(width / 6.1))
    return label if len(label) <= most else f"…{label[1 - most :]}"


def _tooltip(box: DrawnBox, share: float) -> str:
    if box.folded:
        return f"{box.folded} kernels of the same structure as those above, {percent(share)} of the time of all kernels"
    by = f"{box.nodes[-1].backend}, " if box.nodes[-1].backend else ""
    basis = "timed alone" if box.timed else "predicted"
    lines = [f"{by}{ms(1e-3 * box.us)} {basis}, {percent(share)} of the time of all kernels"] if box.us else []
    for node in box.nodes:
        line = f"{node.label + ' = ' if node.label else ''}{node.op} : {node.type}"
        if node.frozen:
            line += f"; constant {', '.join(node.frozen[:3])}"
        if node.layout:
            line += f"; {node.layout}"
        if node.rule:
            line += f"; introduced by {node.rule}"
        elif node.change == "other":
            line += "; computed in another way on the other side"
        elif node.change == "ahead":
            line += "; computed ahead of time in the returned program"
        elif node.change == "only":
            line += "; absent on the other side"
        lines.append(line)
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "<1 %" if share < 0.005 else percent(share, 0)


def _dims(text: str) -> str:
    """A type such as f32[1,64,56,56] written as 1x64x56x56."""
    return text[text.index("[") + 1 : -1].replace(",", "x") or "scalar" if text.endswith("]") else text


def _cut(text: str, width: float, letter: float = 6.1) -> str:
    most = max(3, int(width / letter))
    return text if len(text) <= most else text[: most - 1] + "…"
