"""Physical layout of values under construction: rearranging, splitting merged axes, broadcasting.

A value is (node, layout); a layout lists, per physical axis, the labels it holds: none for an axis of size 1, several
for a merged axis.  Transposes and reshapes appear only where two layouts differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

from rewrites.build.target import Target
from rewrites.match.labels import Axis, Layout
from superopt.errors import SuperoptError

Built: TypeAlias = tuple[Any, Layout]
"""A value of the target and the layout of its axes."""


class BuildError(SuperoptError):
    """Raised when a right side cannot be built at a site: a fault of the builder, or a rule without a proof."""

    code = "SO430"


def labels_in(lay: Iterable[Axis]) -> list[int]:
    """All labels of a layout in physical order."""
    return [label for axis in lay for label, _ in axis]


def sizes_in(lay: Iterable[Axis]) -> dict[int, int]:
    """Map every label of a layout to its size."""
    return {label: n for axis in lay for label, n in axis}


def extent(axis: Axis) -> int:
    """Size of a physical axis."""
    return math.prod([n for _, n in axis])


def axis_of(lay: Sequence[Axis], label: int) -> int:
    """Physical axis that holds a label."""
    for i, axis in enumerate(lay):
        for held, _ in axis:
            if held == label:
                return i
    raise BuildError(f"no axis holds the label {label} in {lay}")


def reshape(target: Target, value: Any, shape: tuple[int, ...]) -> Any:
    """Reshape unless the shape is the same."""
    return value if target.shape(value) == shape else target.mk("reshape", value, new_sizes=shape)


def transpose(target: Target, value: Any, perm: Sequence[int]) -> Any:
    """Transpose unless the order is the same."""
    return value if list(perm) == list(range(len(perm))) else target.transpose(value, tuple(perm))


def arrange(target: Target, built: Built, want: Iterable[Axis]) -> Built:
    """The same tensor in another layout: at most reshape, transpose, reshape.

    Raises:
        BuildError: the layouts hold different labels (labels of size 1 may be missing).
    """
    value, lay = built
    goal = tuple(want)
    if _names(lay) == _names(goal):
        return value, goal
    # axes of size 1 can stand anywhere: a reshape moves them
    size = {label: n for label, n in sizes_in(lay).items() if n != 1}
    order = [label for label in labels_in(goal) if label in size]
    lay = tuple(tuple(e for e in axis if e[1] != 1) for axis in lay)
    have = labels_in(lay)
    if sorted(have) != sorted(order):
        raise BuildError(f"cannot arrange {lay} as {goal}")
    if have != order:
        position = {label: i for i, label in enumerate(order)}
        blocks = [tuple(label for label, _ in axis) for axis in lay if axis]
        # merged axes stay merged where they move as a block
        if not all(position[b] - position[a] == 1 for block in blocks for a, b in itertools.pairwise(block)):
            blocks = [(label,) for label in have]
        value = reshape(target, value, tuple(math.prod([size[x] for x in block]) for block in blocks))
        value = transpose(target, value, sorted(range(len(blocks)), key=lambda i: position[blocks[i][0]]))
    return reshape(target, value, tuple(map(extent, goal))), goal


def _names(lay: Iterable[Axis]) -> list[tuple[int, ...]]:
    return [tuple(label for label, _ in axis) for axis in lay]


def atomic(target: Target, built: Built, only: Collection[int], *, squeeze: bool) -> Built:
    """Split merged axes that hold a label of `only`; `squeeze` drops axes without a label."""
    want: list[Axis] = []
    for axis in built[1]:
        if len(axis) > 1 and any(label in only for label, _ in axis):
            want += [(entry,) for entry in axis]
        elif axis or not squeeze:
            want.append(axis)
    return arrange(target, built, want)


def place_beside(lay: Layout, labels: Collection[int]) -> int | None:
    """Index of the axis that holds one of the labels, else of the last axis without a label; None if there is neither.

    An axis without a label has size 1, so it may stand for labels of size 1 that a reshape dropped.
    """
    held = [i for i, axis in enumerate(lay) if any(label in labels for label, _ in axis)]
    empty = [i for i, axis in enumerate(lay) if not axis]
    return held[0] if held else empty[-1] if empty else None


def with_axes(target: Target, built: Built, labels: Iterable[int]) -> Built:
    """The tensor with a size-1 axis for every label that it lacks."""
    value, lay = built
    have = set(labels_in(lay))
    new: Layout = tuple(((label, 1),) for label in labels if label not in have)
    if not new:
        return built
    lay = (*lay, *new)
    return reshape(target, value, tuple(map(extent, lay))), lay


def without(built: Built, labels: Collection[int]) -> Built:
    """The tensor with these labels, all of size 1, removed from its layout."""
    value, lay = built
    if not any(label in labels for label in labels_in(lay)):
        return built
    return value, tuple(tuple(e for e in axis if e[0] not in labels) for axis in lay)


def broadcast(target: Target, built: Built, lay: Sequence[Axis]) -> Any:
    """The tensor broadcast to a layout that holds all its labels."""
    value, own = built
    size = sizes_in(own)
    own_axes = set(own)
    target_axes: list[Axis] = list(lay)
    if any(_mixed(axis, size, own_axes) for axis in lay):
        target_axes = [(entry,) for axis in lay for entry in axis]
    mine = [i for i, axis in enumerate(target_axes) if axis and all(label in size for label, _ in axis)]
    value, _ = arrange(target, built, [tuple((label, size[label]) for label, _ in target_axes[i]) for i in mine])
    shape = tuple(map(extent, target_axes))
    if target.shape(value) != shape or len(mine) != len(shape):
        value = target.mk("broadcast_in_dim", value, shape=shape, broadcast_dimensions=tuple(mine))
    return reshape(target, value, tuple(map(extent, lay)))


def _mixed(axis: Axis, size: dict[int, int], own: set[Axis]) -> bool:
    """Whether a merged axis has to be split for a broadcast: partly new, or held in another grouping."""
    if len(axis) < 2:
        return False
    held = sum(label in size for label, _ in axis)
    return 0 < held < len(axis) or (held == len(axis) and axis not in own)


def ordered(sizes: dict[int, int], hint: Sequence[Axis] | None) -> Layout:
    """A layout for these labels, in the order of the hint as far as it goes."""
    lead: list[Axis] = []
    if hint is not None:
        lead = [tuple((x, sizes[x]) for x, _ in axis) for axis in hint if all(x in sizes for x, _ in axis)]
    have = set(labels_in(lead))
    return (*lead, *[((label, n),) for label, n in sizes.items() if label not in have])
