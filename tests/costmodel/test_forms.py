"""Forms of one operation: those of a task compute the same, whatever the layout of their operands."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from costmodel.labels import forms
from costmodel.labels.microsuite import shuffled, suite
from superopt.ir.build import kernel, tensor
from superopt.ir.graph import Node
from superopt.ir.interp import evaluate

RNG = np.random.default_rng(0)
N, C, O, SIZE = 2, 4, 3, 7
IMAGE = RNG.standard_normal((N, SIZE, SIZE, C)).astype(np.float32)  # NHWC


def value(node: Node, **given: np.ndarray) -> np.ndarray:
    return np.asarray(evaluate(kernel(node), given)[0])


def laid(array: np.ndarray, have: str, want: str) -> np.ndarray:
    """An array with its axes in another order, each axis named by a letter; the two spatial ones are H and W."""
    return array.transpose([have.index(axis) for axis in want])


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("k", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (5, 1)])
def test_forms_of_a_convolution(k: int, stride: int) -> None:
    w = RNG.standard_normal((k, k, C, O)).astype(np.float32)  # HWIO
    wanted = value(forms.conv_plain("NHWC,HWIO,NHWC", N, C, O, SIZE, k, stride), x=IMAGE, w=w)
    assert wanted.shape[1] == forms.out_size(SIZE, k, stride, k // 2)
    other = value(
        forms.conv_plain("NCHW,OIHW,NCHW", N, C, O, SIZE, k, stride),
        x=laid(IMAGE, "NHWC", "NCHW"),
        w=laid(w, "HWIO", "OIHW"),
    )
    close(laid(other, "NCHW", "NHWC"), wanted)
    close(
        value(forms.conv_patches(N, C, O, SIZE, k, stride, stacked=False), x=IMAGE, w=w.reshape(k * k * C, O)), wanted
    )
    close(value(forms.conv_patches(N, C, O, SIZE, k, stride, stacked=True), x=IMAGE, w=w.reshape(k * k, C, O)), wanted)
    close(value(forms.conv_shifted_dots(N, C, O, SIZE, k, stride), x=IMAGE, w=w), wanted)
    if k == 1:
        (point,) = w[0]
        close(value(forms.conv_as_dot("NHWC", N, C, O, SIZE, stride), x=IMAGE, w=point), wanted)
        first = value(forms.conv_as_dot("NCHW", N, C, O, SIZE, stride), x=laid(IMAGE, "NHWC", "NCHW"), w=point.T)
        close(laid(first, "CNHW", "NHWC"), wanted)


@pytest.mark.parametrize("stride", [1, 2])
def test_forms_of_a_depthwise_convolution(stride: int) -> None:
    w = RNG.standard_normal((3, 3, C)).astype(np.float32)
    plain = forms.conv_plain("NHWC,HWIO,NHWC", N, C, C, SIZE, 3, stride, groups=C)
    wanted = value(plain, x=IMAGE, w=w[:, :, None])
    close(value(forms.depthwise_shifts("NHWC", N, C, SIZE, 3, stride), x=IMAGE, w=w), wanted)
    first = value(forms.depthwise_shifts("NCHW", N, C, SIZE, 3, stride), x=laid(IMAGE, "NHWC", "NCHW"), w=w)
    close(laid(first, "NCHW", "NHWC"), wanted)


@pytest.mark.parametrize("op", ["max", "sum"])
@pytest.mark.parametrize(("k", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (2, 2, 0), (5, 1, 2)])
def test_forms_of_a_pool(op: str, k: int, stride: int, pad: int) -> None:
    wanted = value(forms.pool_window(op, "NHWC", N, C, SIZE, k, stride, pad), x=IMAGE)
    corner = IMAGE[:, : k - pad, : k - pad].max((1, 2)) if op == "max" else IMAGE[:, : k - pad, : k - pad].sum((1, 2))
    close(wanted[:, 0, 0], corner)
    assert wanted.shape[1] == forms.out_size(SIZE, k, stride, pad)
    close(value(forms.pool_shifts(op, "NHWC", N, C, SIZE, k, stride, pad), x=IMAGE), wanted)
    turned = laid(IMAGE, "NHWC", "NCHW")
    for form in (forms.pool_window, forms.pool_shifts):
        close(laid(value(form(op, "NCHW", N, C, SIZE, k, stride, pad), x=turned), "NCHW", "NHWC"), wanted)
    if stride == 1:
        close(value(forms.pool_separable(op, "NHWC", N, C, SIZE, k, pad), x=IMAGE), wanted)
        separable = value(forms.pool_separable(op, "NCHW", N, C, SIZE, k, pad), x=turned)
        close(laid(separable, "NCHW", "NHWC"), wanted)


def test_layers_are_what_their_names_say() -> None:
    x = RNG.standard_normal((3, 5, 8)).astype(np.float32)
    e = np.exp(x - x.max(-1, keepdims=True))
    close(value(forms.softmax(tensor("x", 3, 5, 8)), x=x), e / e.sum(-1, keepdims=True))
    gain, shift = RNG.standard_normal((2, 8)).astype(np.float32)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(value(forms.layer_norm(tensor("x", 3, 5, 8)), x=x, gain=gain, shift=shift), normal * gain + shift)
    by_erf, by_tanh = (value(forms.gelu(tensor("x", 3, 5, 8), by_tanh=b), x=x) for b in (False, True))
    np.testing.assert_allclose(by_tanh, by_erf, atol=2e-3)
    np.testing.assert_allclose(by_erf[x > 3], x[x > 3], rtol=1e-2)


def test_forms_of_a_task_have_as_many_results_and_stay_together() -> None:
    cases = suite()
    sizes: dict[str, set[int]] = defaultdict(set)
    kinds: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        sizes[case.task].add(sum(int(np.prod(node.shape)) for node in case.graph.outputs))
        kinds[case.task].add(case.kind)
    assert {task for task, found in sizes.items() if len(found) > 1} == set()
    assert {task for task, found in kinds.items() if len(found) > 1} == set()
    order = [case.task for case in shuffled(cases)]
    assert sorted(order) == sorted(case.task for case in cases)
    assert sum(a != b for a, b in itertools.pairwise(order)) == len(sizes) - 1
    assert order != [case.task for case in cases]
