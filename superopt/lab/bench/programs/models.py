"""Whole models as their users write them in JAX: batch 1, fp32, random weights of a sane scale.

Transformers are plain `einsum` and softmax; images are NCHW as in torchvision, so that the gain from channels last
shows.  Like the networks of `superopt.lab.bench.programs.nets`, each builder returns `Net(fn, params, inputs)`, takes
its sizes as arguments, and makes weights when it is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.bench.programs.blocks import NamedWeights
from superopt.lab.bench.programs.layers import Init, Net, batch_norm, conv2d, dense, split_heads
from superopt.lab.bench.programs.nets import mobilenet_v2


def _norm(p: NamedWeights, name: str, x: Array, eps: float) -> Array:
    mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + eps) * p[f"{name}.scale"] + p[f"{name}.bias"]


def _attend(q: Array, k: Array, v: Array, mask: np.ndarray | None = None) -> Array:
    """Attention of (batch, heads, length, depth) operands, heads joined: (batch, length, heads * depth)."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    out = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)
    return out.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


def _tokens(seed: int, length: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, (1, length)).astype(np.int32)


def _pixels(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, size, size)).astype(np.float32)


def bert_base(layers: int = 12, size: int = 768, heads: int = 12, length: int = 128, vocabulary: int = 30522) -> Net:
    """BERT: embeddings, post-norm layers, pooler; maps token ids to (hidden states, pooled)."""
    init = Init(31)
    for table, rows in (("token", vocabulary), ("position", 512), ("type", 2)):
        init.weight(table, (rows, size), 2)
    init.norm("norm", size)
    for i in range(layers):
        for kind in "qkvo":
            init.dense(f"{i}.{kind}", size, size)
        init.dense(f"{i}.up", size, 4 * size)
        init.dense(f"{i}.down", 4 * size, size)
        init.norm(f"{i}.norm1", size)
        init.norm(f"{i}.norm2", size)
    init.dense("pooler", size, size)

    def fn(p: NamedWeights, ids: Array) -> tuple[Array, Array]:
        x = p["token"][ids] + p["position"][: ids.shape[1]] + p["type"][0]
        x = _norm(p, "norm", x, 1e-12)
        for i in range(layers):
            q, k, v = (split_heads(dense(p, f"{i}.{kind}", x), heads) for kind in "qkv")
            x = _norm(p, f"{i}.norm1", x + dense(p, f"{i}.o", _attend(q, k, v)), 1e-12)
            h = jax.nn.gelu(dense(p, f"{i}.up", x), approximate=False)
            x = _norm(p, f"{i}.norm2", x + dense(p, f"{i}.down", h), 1e-12)
        return x, jnp.tanh(dense(p, "pooler", x[:, 0]))

    return Net(fn, init.params, (_tokens(32, length, vocabulary),))


def gpt2_prefill(layers: int = 12, size: int = 768, heads: int = 12, length: int = 128, vocabulary: int = 50257) -> Net:
    """GPT-2 over a prompt: maps token ids to (logits of the next token, keys and values of every layer)."""
    init = Init(33)
    init.weight("token", (vocabulary, size), 2 * size)
    init.weight("position", (1024, size), 2 * size)
    for i in range(layers):
        init.norm(f"{i}.norm1", size)
        init.dense(f"{i}.qkv", size, 3 * size)
        init.dense(f"{i}.o", size, size)
        init.norm(f"{i}.norm2", size)
        init.dense(f"{i}.up", size, 4 * size)
        init.dense(f"{i}.down", 4 * size, size)
    init.norm("norm", size)

    def fn(p: NamedWeights, ids: Array) -> tuple[Array, list[tuple[Array, Array]]]:
        length = ids.shape[1]
        causal = np.tril(np.ones((length, length), bool))
        x = p["token"][ids] + p["position"][:length]
        cache: list[tuple[Array, Array]] = []
        for i in range(layers):
            qkv = dense(p, f"{i}.qkv", _norm(p, f"{i}.norm1", x, 1e-5))
            q, k, v = (split_heads(part, heads) for part in jnp.split(qkv, 3, axis=-1))
            cache.append((k, v))
            x = x + dense(p, f"{i}.o", _attend(q, k, v, causal))
            h = jax.nn.gelu(dense(p, f"{i}.up", _norm(p, f"{i}.norm2", x, 1e-5)), approximate=True)
            x = x + dense(p, f"{i}.down", h)
        return _norm(p, "norm", x[:, -1], 1e-5) @ p["token"].T, cache

    return Net(fn, init.params, (_tokens(34, length, vocabulary),))


def vit_b16(
    layers: int = 12, width: int = 768, heads: int = 12, size: int = 224, patch: int = 16, classes: int = 1000
) -> Net:
    """Vision transformer: patches by a convolution, class token, pre-norm layers."""
    init = Init(35)
    init.weight("patch.w", (width, 3, patch, patch), 6 * patch**2)
    init.vector("patch.b", width, -0.1, 0.1)
    init.weight("class", (1, 1, width), 2)
    init.weight("position", (1, (size // patch) ** 2 + 1, width), 2)
    for i in range(layers):
        init.norm(f"{i}.norm1", width)
        init.dense(f"{i}.qkv", width, 3 * width)
        init.dense(f"{i}.o", width, width)
        init.norm(f"{i}.norm2", width)
        init.dense(f"{i}.up", width, 4 * width)
        init.dense(f"{i}.down", 4 * width, width)
    init.norm("norm", width)
    init.dense("head", width, classes)

    def fn(p: NamedWeights, image: Array) -> Array:
        x = conv2d(image, p["patch.w"], patch, pad=(0, 0)) + p["patch.b"][:, None, None]
        x = x.reshape(x.shape[0], width, -1).transpose(0, 2, 1)
        x = jnp.concatenate([p["class"], x], axis=1) + p["position"]
        for i in range(layers):
            qkv = dense(p, f"{i}.qkv", _norm(p, f"{i}.norm1", x, 1e-6))
            q, k, v = (split_heads(part, heads) for part in jnp.split(qkv, 3, axis=-1))
            x = x + dense(p, f"{i}.o", _attend(q, k, v))
            h = jax.nn.gelu(dense(p, f"{i}.up", _norm(p, f"{i}.norm2", x, 1e-6)), approximate=False)
            x = x + dense(p, f"{i}.down", h)
        return dense(p, "head", _norm(p, "norm", x[:, 0], 1e-6))

    return Net(fn, init.params, (_pixels(36, size),))


# expansion, size of the kernel, stride, channels, repeats
EFFICIENT = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def efficientnet_b0(
    config: Sequence[tuple[int, int, int, int, int]] = EFFICIENT, size: int = 224, classes: int = 1000, last: int = 1280
) -> Net:
    """EfficientNet: inverted bottlenecks that scale their channels by squeeze and excitation."""
    init = Init(37)
    init.conv("stem", 3, 32, (3, 3))
    plan: list[tuple[str, int, bool]] = []
    cin = 32
    for stage, (expand, kernel, stride, cout, repeats) in enumerate(config):
        for j in range(repeats):
            name, hidden = f"{stage}.{j}", cin * expand
            if expand != 1:
                init.conv(f"{name}.expand", cin, hidden, (1, 1))
            init.conv(f"{name}.depth", hidden, hidden, (kernel, kernel), groups=hidden)
            init.dense(f"{name}.squeeze", hidden, max(1, cin // 4))
            init.dense(f"{name}.excite", max(1, cin // 4), hidden)
            init.conv(f"{name}.project", hidden, cout, (1, 1))
            plan.append((name, stride if j == 0 else 1, cin == cout))
            cin = cout
    init.conv("last", cin, last, (1, 1))
    init.dense("head", last, classes)

    def unit(p: NamedWeights, name: str, x: Array, stride: int = 1, groups: int = 1) -> Array:
        return batch_norm(p, name, conv2d(x, p[f"{name}.w"], stride, groups))

    def fn(p: NamedWeights, x: Array) -> Array:
        x = jax.nn.silu(unit(p, "stem", x, 2))
        for name, stride, same in plan:
            y = x
            if f"{name}.expand.w" in p:
                y = jax.nn.silu(unit(p, f"{name}.expand", y))
            y = jax.nn.silu(unit(p, f"{name}.depth", y, stride, y.shape[1]))
            scale = jax.nn.silu(dense(p, f"{name}.squeeze", jnp.mean(y, axis=(2, 3))))
            y = y * jax.nn.sigmoid(dense(p, f"{name}.excite", scale))[:, :, None, None]
            y = unit(p, f"{name}.project", y)
            x = x + y if same and stride == 1 else y
        x = jax.nn.silu(unit(p, "last", x))
        return dense(p, "head", jnp.mean(x, axis=(2, 3)))

    return Net(fn, init.params, (_pixels(38, size),))


def convnext_tiny(depths: Sequence[int] = (3, 3, 9, 3), width: int = 96, size: int = 224, classes: int = 1000) -> Net:
    """ConvNeXt: 7x7 depthwise convolutions, layer norm and dense layers over the channels."""
    init = Init(39)

    def biased(name: str, cin: int, cout: int, kernel: int, groups: int = 1) -> None:
        init.weight(f"{name}.w", (cout, cin // groups, kernel, kernel), 2 * cin // groups * kernel**2)
        init.vector(f"{name}.b", cout, -0.1, 0.1)

    biased("stem", 3, width, 4)
    init.norm("stem.norm", width)
    for stage, depth in enumerate(depths):
        w = width * 2**stage
        if stage:
            init.norm(f"{stage}.norm", w // 2)
            biased(f"{stage}.down", w // 2, w, 2)
        for j in range(depth):
            name = f"{stage}.{j}"
            biased(f"{name}.depth", w, w, 7, w)
            init.norm(f"{name}.norm", w)
            init.dense(f"{name}.up", w, 4 * w)
            init.dense(f"{name}.down", 4 * w, w)
            init.vector(f"{name}.layer_scale", w, 0.1, 0.5)
    last = width * 2 ** (len(depths) - 1)
    init.norm("norm", last)
    init.dense("head", last, classes)

    def conv(p: NamedWeights, name: str, x: Array, stride: int = 1, groups: int = 1, pad: int = 0) -> Array:
        return conv2d(x, p[f"{name}.w"], stride, groups, (pad, pad)) + p[f"{name}.b"][:, None, None]

    def norm(p: NamedWeights, name: str, x: Array) -> Array:
        return _norm(p, name, x.transpose(0, 2, 3, 1), 1e-6).transpose(0, 3, 1, 2)

    def fn(p: NamedWeights, x: Array) -> Array:
        x = norm(p, "stem.norm", conv(p, "stem", x, 4))
        for stage, depth in enumerate(depths):
            if stage:
                x = conv(p, f"{stage}.down", norm(p, f"{stage}.norm", x), 2)
            for j in range(depth):
                name = f"{stage}.{j}"
                y = conv(p, f"{name}.depth", x, groups=x.shape[1], pad=3).transpose(0, 2, 3, 1)
                y = jax.nn.gelu(dense(p, f"{name}.up", _norm(p, f"{name}.norm", y, 1e-6)), approximate=False)
                y = dense(p, f"{name}.down", y) * p[f"{name}.layer_scale"]
                x = x + y.transpose(0, 3, 1, 2)
        return dense(p, "head", _norm(p, "norm", jnp.mean(x, axis=(2, 3)), 1e-6))

    return Net(fn, init.params, (_pixels(40, size),))


MODELS: dict[str, Callable[[], Net]] = {
    "bert_base": bert_base,
    "gpt2_prefill": gpt2_prefill,
    "vit_b16": vit_b16,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "convnext_tiny": convnext_tiny,
}
