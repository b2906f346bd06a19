"""Labels of axes: sizes that contradict each other, axes that do not nest, and spaces that are out of date."""

from __future__ import annotations

import pytest

from rewrites.match.labels import Labels
from rewrites.match.space import IRSpace, space_of
from superopt.ir.graph import mk
from superopt.ir.types import TensorType
from tests.support.rules_numeric import egraph, var


@pytest.mark.parametrize(
    ("a", "b", "agree"),
    [
        ([(1, 3)], [(2, 3)], True), ([(1, 3)], [(2, 4)], False), ([(1, 6)], [(2, 2), (3, 3)], False),
        ([(1, 3)], [(2, 1), (3, 3)], True), ([], [(2, 1)], True), ([], [(2, 2)], False),
    ],
)  # fmt: skip
def test_axes_of_one_tensor_have_the_same_sizes(
    a: list[tuple[int, int]], b: list[tuple[int, int]], agree: bool
) -> None:
    assert Labels().unify((tuple(a),), (tuple(b),)) is agree


def test_a_split_fits_the_size_of_its_axis() -> None:
    labels = Labels()
    labels.split[1] = ((2, 2), (3, 3))
    assert labels.axis(((1, 6),)) == ((2, 2), (3, 3))
    assert labels.axis(((1, 8),)) is None


@pytest.mark.parametrize(
    ("atoms", "sizes", "found"),
    [
        ([6], [2, 3], [[2], [3]]), ([2, 3], [6], [[2, 3]]), ([2, 1], [2, 1], [[2], []]),
        ([4, 3], [2, 6], [[2], [2, 3]]),
        ([6], [4, 2], None), ([2], [2, 2], None), ([4], [2], None), ([0], [0], None), ([2], [0], None),
    ],
)  # fmt: skip
def test_axes_are_carved_where_they_nest(atoms: list[int], sizes: list[int], found: list[list[int]] | None) -> None:
    labels = Labels()
    axes = labels.carve([(labels.fresh(), n) for n in atoms], sizes)
    assert (None if axes is None else [[n for _, n in axis] for axis in axes]) == found


def test_opaque_operations_are_not_known_ahead_of_time() -> None:
    w = var("w", 3, frozen=True)
    kept = mk("opaque", w, primitive="p", params_key="k", result_types=(TensorType((3,), "float64"),))
    space = IRSpace()
    assert space.frozen(mk("exp", w))
    assert not space.frozen(kept)
    assert not space.frozen(mk("exp", kept))


def test_a_space_is_made_again_when_classes_have_changed() -> None:
    eg = egraph(mk("exp", var("a", 3)), mk("tanh", var("b", 3)))
    before = space_of(eg)
    assert space_of(eg) is before
    eg.union(*eg.roots)
    assert space_of(eg) is not before
