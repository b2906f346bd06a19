"""Whole models and blocks of the benchmarks: published numbers of weights; they import as what they compute."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

from superopt.backends.xla import to_jax
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench.programs import blocks, layers, models
from superopt.lab.bench.programs.layers import Net
from tests.support.sampling import sampled

# what transformers and torchvision count as parameters
PUBLISHED = {
    "bert_base": 109_482_240,
    "gpt2_prefill": 124_439_808,
    "vit_b16": 86_567_656,
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "convnext_tiny": 28_589_128,
}
SMALL: dict[str, Callable[[], Net]] = {
    "bert_base": lambda: models.bert_base(2, 16, 4, 6, 50),
    "gpt2_prefill": lambda: models.gpt2_prefill(2, 16, 4, 6, 50),
    "vit_b16": lambda: models.vit_b16(2, 16, 4, 8, 4, 7),
    "mobilenet_v2": lambda: models.mobilenet_v2(((1, 8, 1, 1), (6, 8, 2, 2)), 16, 5, 12),
    "efficientnet_b0": lambda: models.efficientnet_b0(((1, 3, 1, 8, 1), (6, 5, 2, 8, 2)), 16, 5, 12),
    "convnext_tiny": lambda: models.convnext_tiny((1, 2), 8, 32, 5),
    "inception_block": lambda: blocks.inception_block(6, 4, (3, 5), (2, 4), 3, 7),
    "llama_decode": lambda: blocks.llama_decode(2, 16, 4, 2, 24, 8, 50),
    "linear_attention_encoder": lambda: blocks.linear_attention_encoder(2, 16, 4, 6, 24),
    "unet_block": lambda: blocks.unet_block(8, 6, 4, 8),
}


@pytest.mark.parametrize("name", models.MODELS)
def test_numbers_of_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def weight(self: layers.Init, name: str, shape: tuple[int, ...], fan_in: int) -> None:
        del fan_in
        self.params[name] = np.broadcast_to(np.float32(0.0), shape)

    monkeypatch.setattr(layers.Init, "weight", weight)
    params = models.MODELS[name]().params
    statistics = (".mean", ".var")  # of batch norms: not trained
    assert sum(v.size for key, v in params.items() if not key.endswith(statistics)) == PUBLISHED[name]


@pytest.mark.parametrize("name", sampled([*models.MODELS, *blocks.BLOCKS], lambda n, _: n % 2 == 0))
def test_imported_models_compute_the_same(name: str) -> None:
    net = SMALL[name]()
    imported = import_function(net.fn, (net.params, *net.inputs), {}, frozen=0)
    assert not imported.opaque_ops
    expected = jax.tree.leaves(jax.jit(net.fn)(net.params, *net.inputs))
    values = [*imported.examples, *imported.graph.constants.values()]
    for got, want in zip(jax.jit(to_jax(imported.graph))(*values), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert np.isfinite(want).all()
        assert np.std(want) > 0


def test_a_token_does_not_see_later_ones() -> None:
    net = models.gpt2_prefill(2, 16, 4, 6, 50)
    ids = net.inputs[0]
    changed = np.concatenate([ids[:, :-1], (ids[:, -1:] + 1) % 50], axis=1)
    fn = jax.jit(net.fn)
    (logits, cache), (other, other_cache) = fn(net.params, ids), fn(net.params, changed)
    assert not np.allclose(logits, other)
    for pair, other_pair in zip(cache, other_cache, strict=True):
        for x, y in zip(pair, other_pair, strict=True):
            np.testing.assert_allclose(x[:, :, :-1], y[:, :, :-1], rtol=1e-6)


def test_a_decoded_token_enters_the_cache_and_sees_what_is_before_it() -> None:
    net = blocks.llama_decode(2, 16, 4, 2, 24, 8, 50)
    token, position, cache = net.inputs
    fn = jax.jit(net.fn)
    logits, updated = fn(net.params, token, position, cache)
    for pair, new in zip(cache, updated, strict=True):
        for x, y in zip(pair, new, strict=True):
            changed = np.flatnonzero((np.asarray(x) != np.asarray(y)).any(axis=(0, 1, 3)))
            assert changed.tolist() == [position]
    for place, same in ((position + 1, True), (position - 1, False)):
        other = [tuple(x + (np.arange(8) == place)[:, None] for x in pair) for pair in cache]
        assert np.allclose(fn(net.params, token, position, other)[0], logits) == same
