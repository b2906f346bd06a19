"""Equality outside a box: what is outside is proved, and the interpreter finds differences only inside."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.lift.generate import at_env, choose_env
from superopt.errors import SuperoptError
from superopt.ir.interp import evaluate
from superopt.lab.discovery.boxes import failing_box
from verifier.rules.instance import IllFormed

SEAM = parse("""
seam: X[*b c s]  Z[*b c s2]  W[o c s3]
  conv(concat(X, Z, s), W, c, s(1, p, q))  ==  concat(conv(X, W, c, s(1, p, q)), conv(Z, W, c, s(1, p, q)), s)
  if s3 == p + q + 1, p >= 0, q >= 0, s >= 1, s2 >= 1
  source PET, OSDI 2021: an image in two halves
""")
SHIFTED = parse("""
shifted: A[*a n]
  rev(pad(A, 0, n(1, 2)), n)  ==  pad(rev(A, n), 0, n(1, 2))
""")


@pytest.mark.parametrize(
    ("rule", "text"), [(SEAM, "s in [-q + s, p + s)"), (SHIFTED, "n in [1, n + 2)")], ids=["seam", "pad"]
)
def test_the_box_is_named(rule: Rule, text: str) -> None:
    assert str(failing_box(rule)) == text


@pytest.mark.parametrize("rule", [SEAM, SHIFTED], ids=lambda r: r.name)
def test_differences_are_inside_the_box(rule: Rule) -> None:
    box, met = failing_box(rule), 0
    (axis,) = [x.axis for x in box.intervals]
    for seed in range(60):
        rng = random.Random(seed)
        env = choose_env(rule, {}, rng, 5, 1)
        if env is None:
            continue
        try:
            made = at_env(rule, env, rng)
        except SuperoptError:
            continue
        values = made.arrays(seed)
        (left,), (right,) = evaluate(made.lhs, values), evaluate(made.rhs, values)
        (layout,) = made.layouts
        labels = [axis_[0][0] if axis_ else None for axis_ in layout]
        place = labels.index(env.labels[axis][0]) if env.labels[axis][0] in labels else None
        sizes = {f"{name}@{rule.owner[name]}": n for (name, _), n in {**env.tok, **env.attr}.items()}
        sizes |= {
            name.partition("@")[0] if "@" in name and name.partition("@")[0] == name.partition("@")[2] else name: n
            for name, n in sizes.items()
        }
        for index in itertools.product(*(range(n) for n in np.shape(left))):
            if not np.isclose(np.asarray(left)[index], np.asarray(right)[index]):
                assert box.contains({axis: 0 if place is None else index[place]}, sizes)
                met += 1
    assert met > 20


def test_a_true_equation_has_no_box_and_a_wrong_one_is_wrong_anywhere() -> None:
    true = failing_box(parse("twice: A[*a n]\n  rev(rev(A, n), n) + 0 == A"))
    assert true.holds
    assert str(true) == "nowhere"
    false = failing_box(parse("double: A[*a n]\n  A + A == A"))
    assert not false.holds
    assert str(false) == "anywhere"
    assert false.contains({"n": 0}, {})


def test_shapes_must_agree() -> None:
    with pytest.raises(IllFormed, match="does not follow"):
        failing_box(parse("longer: A[*a n]\n  pad(A, 0, n(1, 1)) == pad(A, 0, n(1, 2))"))
