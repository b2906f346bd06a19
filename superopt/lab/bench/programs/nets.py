"""Networks in plain JAX for benchmarks and tests: no framework, NCHW images, batch norm at inference.

Each builder returns `Net(fn, params, inputs)`: `fn(params, *inputs)` is a pure function, `params` a dictionary of
arrays (meant to be frozen), `inputs` example arguments.  Weights are random with fixed seeds and scaled so that
activations keep their size through the network.  Sizes are arguments, so that tests can shrink what benchmarks run at
full size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.bench.programs.layers import (
    Init,
    Net,
    avg_pool,
    batch_norm,
    conv2d,
    gelu,
    layer_norm,
    max_pool,
    relu,
    relu6,
    softmax,
)


def _image(seed: int, channels: int, size: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, channels, size, size)).astype(np.float32)


def resnet(
    blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, size: int = 224, classes: int = 1000, batch: int = 1
) -> Net:
    """Bottleneck ResNet: (3, 4, 6, 3) is ResNet-50, (3, 8, 36, 3) is ResNet-152."""
    init = Init(1)
    init.conv("stem", 3, width, (7, 7))
    plan: list[tuple[str, int, bool]] = []
    cin = width
    for stage, count in enumerate(blocks):
        w = width * 2**stage
        for j in range(count):
            name = f"s{stage}b{j}"
            plan.append((name, 2 if j == 0 and stage > 0 else 1, j == 0))
            init.conv(f"{name}.1", cin, w, (1, 1))
            init.conv(f"{name}.2", w, w, (3, 3))
            init.conv(f"{name}.3", w, 4 * w, (1, 1))
            if j == 0:
                init.conv(f"{name}.skip", cin, 4 * w, (1, 1))
            cin = 4 * w
    init.dense("head", cin, classes)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        x = relu(batch_norm(p, "stem", conv2d(x, p["stem.w"], 2)))
        x = max_pool(x, 3, 2, 1)
        for name, stride, project in plan:
            y = relu(batch_norm(p, f"{name}.1", conv2d(x, p[f"{name}.1.w"])))
            y = relu(batch_norm(p, f"{name}.2", conv2d(y, p[f"{name}.2.w"], stride)))
            y = batch_norm(p, f"{name}.3", conv2d(y, p[f"{name}.3.w"]))
            if project:
                x = batch_norm(p, f"{name}.skip", conv2d(x, p[f"{name}.skip.w"], stride))
            x = relu(x + y)
        return jnp.mean(x, axis=(2, 3)) @ p["head.w"] + p["head.b"]

    return Net(fn, init.params, (_image(99, 3, size, batch),))


def resnet50(size: int = 224) -> Net:
    """ResNet-50."""
    return resnet(size=size)


def _inverted(init: Init, name: str, cin: int, cout: int, expand: int) -> None:
    hidden = cin * expand
    if expand != 1:
        init.conv(f"{name}.expand", cin, hidden, (1, 1))
    init.conv(f"{name}.depth", hidden, hidden, (3, 3), groups=hidden)
    init.conv(f"{name}.project", hidden, cout, (1, 1))


def _apply_inverted(p: Mapping[str, Array], name: str, x: Array, stride: int) -> Array:
    y = x
    if f"{name}.expand.w" in p:
        y = relu6(batch_norm(p, f"{name}.expand", conv2d(y, p[f"{name}.expand.w"])))
    depth = conv2d(y, p[f"{name}.depth.w"], stride, groups=y.shape[1])
    y = relu6(batch_norm(p, f"{name}.depth", depth))
    y = batch_norm(p, f"{name}.project", conv2d(y, p[f"{name}.project.w"]))
    return x + y if y.shape == x.shape and stride == 1 else y


def inverted_residual(cin: int = 32, cout: int = 32, expand: int = 6, stride: int = 1, size: int = 28) -> Net:
    """One MobileNet-v2 block: expand, depthwise, project, add."""
    init = Init(2)
    _inverted(init, "block", cin, cout, expand)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        return _apply_inverted(p, "block", x, stride)

    return Net(fn, init.params, (_image(98, cin, size),))


MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(
    config: Sequence[tuple[int, int, int, int]] = MOBILENET, size: int = 224, classes: int = 1000, last: int = 1280
) -> Net:
    """MobileNet-v2; `config` rows are expansion, channels, repeats, stride."""
    init = Init(3)
    init.conv("stem", 3, 32, (3, 3))
    plan: list[tuple[str, int]] = []
    cin = 32
    for i, (expand, cout, repeats, stride) in enumerate(config):
        for j in range(repeats):
            name = f"b{i}.{j}"
            _inverted(init, name, cin, cout, expand)
            plan.append((name, stride if j == 0 else 1))
            cin = cout
    init.conv("last", cin, last, (1, 1))
    init.dense("head", last, classes)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        x = relu6(batch_norm(p, "stem", conv2d(x, p["stem.w"], 2)))
        for name, stride in plan:
            x = _apply_inverted(p, name, x, stride)
        x = relu6(batch_norm(p, "last", conv2d(x, p["last.w"])))
        return jnp.mean(x, axis=(2, 3)) @ p["head.w"] + p["head.b"]

    return Net(fn, init.params, (_image(97, 3, size),))


def bottleneck(cin: int = 64, width: int = 64, size: int = 56) -> Net:
    """The stem and first stage's first block of ResNet-50 without the stem: a bottleneck with projection."""
    init = Init(4)
    init.conv("1", cin, width, (1, 1))
    init.conv("2", width, width, (3, 3))
    init.conv("3", width, 4 * width, (1, 1))
    init.conv("skip", cin, 4 * width, (1, 1))

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        y = relu(batch_norm(p, "1", conv2d(x, p["1.w"])))
        y = relu(batch_norm(p, "2", conv2d(y, p["2.w"])))
        y = batch_norm(p, "3", conv2d(y, p["3.w"]))
        return relu(batch_norm(p, "skip", conv2d(x, p["skip.w"])) + y)

    return Net(fn, init.params, (_image(96, cin, size),))


def fire(cin: int = 64, squeeze: int = 16, expand: int = 64, size: int = 55) -> Net:
    """SqueezeNet's fire module: squeeze, two expansions side by side, concatenation."""
    init = Init(5)
    init.conv("squeeze", cin, squeeze, (1, 1))
    init.conv("one", squeeze, expand, (1, 1))
    init.conv("three", squeeze, expand, (3, 3))

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        def unit(name: str, v: Array) -> Array:
            return relu(conv2d(v, p[f"{name}.w"]) + p[f"{name}.bias"][None, :, None, None])

        s = unit("squeeze", x)
        return jnp.concatenate([unit("one", s), unit("three", s)], 1)

    return Net(fn, init.params, (_image(95, cin, size),))


def inception(modules: int = 3, size: int = 35, channels: int = 192) -> Net:
    """Inception-v3 style modules with four branches and a pooled one."""
    init = Init(6)
    cin = channels
    for m in range(modules):
        rows = (("a", cin, 64, 1), ("b1", cin, 48, 1), ("b2", 48, 64, 5), ("c1", cin, 64, 1), ("c2", 64, 96, 3),
                ("c3", 96, 96, 3), ("d", cin, 64, 1))  # fmt: skip
        for name, i, o, k in rows:
            init.conv(f"m{m}.{name}", i, o, (k, k))
        cin = 64 + 64 + 96 + 64

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        for m in range(modules):

            def unit(name: str, v: Array, m: int = m) -> Array:
                return relu(batch_norm(p, f"m{m}.{name}", conv2d(v, p[f"m{m}.{name}.w"])))

            a = unit("a", x)
            b = unit("b2", unit("b1", x))
            c = unit("c3", unit("c2", unit("c1", x)))
            d = unit("d", avg_pool(x, 3, 1, 1))
            x = jnp.concatenate([a, b, c, d], 1)
        return x

    return Net(fn, init.params, (_image(94, channels, size),))


def _attention(p: Mapping[str, Array], name: str, x: Array, heads: int) -> Array:
    b, s, d = x.shape

    def split(kind: str) -> Array:
        y = x @ p[f"{name}.{kind}.w"] + p[f"{name}.{kind}.b"]
        return y.reshape(b, s, heads, d // heads).transpose(0, 2, 1, 3)

    q, k, v = split("q"), split("k"), split("v")
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 / np.sqrt(d // heads))
    out = jnp.einsum("bhqk,bhkd->bhqd", softmax(scores), v).transpose(0, 2, 1, 3).reshape(b, s, d)
    return out @ p[f"{name}.o.w"] + p[f"{name}.o.b"]


def bert(layers: int = 12, size: int = 768, heads: int = 12, length: int = 128, batch: int = 1) -> Net:
    """BERT encoder layers without embeddings: post-norm attention and gelu feed-forward."""
    init = Init(7)
    for i in range(layers):
        for kind in "qkvo":
            init.dense(f"l{i}.{kind}", size, size)
        init.dense(f"l{i}.up", size, 4 * size)
        init.dense(f"l{i}.down", 4 * size, size)
        init.norm(f"l{i}.norm1", size)
        init.norm(f"l{i}.norm2", size)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        for i in range(layers):
            x = layer_norm(p, f"l{i}.norm1", x + _attention(p, f"l{i}", x, heads))
            h = gelu(x @ p[f"l{i}.up.w"] + p[f"l{i}.up.b"])
            x = layer_norm(p, f"l{i}.norm2", x + (h @ p[f"l{i}.down.w"] + p[f"l{i}.down.b"]))
        return x

    x = np.random.default_rng(93).standard_normal((batch, length, size)).astype(np.float32)
    return Net(fn, init.params, (x,))


def bert_layer(size: int = 768, heads: int = 12, length: int = 128) -> Net:
    """One BERT-base encoder layer."""
    return bert(1, size, heads, length)


def transformer_block(size: int = 256, heads: int = 4, length: int = 64) -> Net:
    """Pre-norm transformer block with a SwiGLU feed-forward."""
    init = Init(8)
    for kind in "qkvo":
        init.dense(f"a.{kind}", size, size)
    for name in ("gate", "up"):
        init.dense(name, size, 3 * size)
    init.dense("down", 3 * size, size)
    init.norm("norm1", size)
    init.norm("norm2", size)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        x = x + _attention(p, "a", layer_norm(p, "norm1", x), heads)
        y = layer_norm(p, "norm2", x)
        gate, up = y @ p["gate.w"] + p["gate.b"], y @ p["up.w"] + p["up.b"]
        return x + ((gate * lax.logistic(gate) * up) @ p["down.w"] + p["down.b"])

    x = np.random.default_rng(92).standard_normal((1, length, size)).astype(np.float32)
    return Net(fn, init.params, (x,))


def linear_attention(length: int = 1024, size: int = 64) -> Net:
    """Attention without softmax, written in the quadratic order (QK')V."""
    init = Init(9)
    for kind in "qkv":
        init.dense(kind, size, size)

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        q, k = (relu(x @ p[f"{n}.w"]) + 1.0 for n in "qk")
        a = q @ k.T
        return (a @ (x @ p["v.w"])) / jnp.sum(a, -1, keepdims=True)

    x = np.random.default_rng(91).standard_normal((length, size)).astype(np.float32)
    return Net(fn, init.params, (x,))


def low_rank_chain(size: int = 1024, rank: int = 16, columns: int = 8) -> Net:
    """((u v) w x): products written from the left, cheap only from the right."""
    rng = np.random.default_rng(90)
    params = {
        "scale": rng.uniform(0.5, 1.5, size).astype(np.float32),
        "bias": rng.uniform(-0.1, 0.1, (size, 1)).astype(np.float32),
    }

    def fn(p: Mapping[str, Array], u: Array, v: Array, x: Array) -> Array:
        return relu((u @ v) @ (p["scale"][:, None] * x) + p["bias"])

    inputs = ((size, rank), (rank, size), (size, columns))
    return Net(fn, params, tuple((rng.standard_normal(s) / 8).astype(np.float32) for s in inputs))


def lstm(steps: int = 1, size: int = 512, batch: int = 1) -> Net:
    """Unrolled LSTM written with one product per gate and operand."""
    init = Init(10)
    for gate in "ifgo":
        init.dense(f"x{gate}", size, size)
        init.weight(f"h{gate}.w", (size, size), 2 * size)

    def fn(p: Mapping[str, Array], xs: Array, h: Array, c: Array) -> tuple[Array, Array]:
        for t in range(steps):
            x = xs[t]
            i, f, g, o = (x @ p[f"x{k}.w"] + h @ p[f"h{k}.w"] + p[f"x{k}.b"] for k in "ifgo")
            c = lax.logistic(f) * c + lax.logistic(i) * jnp.tanh(g)
            h = lax.logistic(o) * jnp.tanh(c)
        return h, c

    rng = np.random.default_rng(89)
    shapes = ((steps, batch, size), (batch, size), (batch, size))
    return Net(fn, init.params, tuple(rng.standard_normal(s).astype(np.float32) for s in shapes))


def lstm_step(size: int = 512) -> Net:
    """One LSTM step at batch 1."""
    return lstm(1, size)


NETS: dict[str, Callable[[], Net]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "bottleneck": bottleneck,
    "inverted_residual": inverted_residual,
    "fire": fire,
    "inception": inception,
    "bert_layer": bert_layer,
    "bert12": bert,
    "transformer_block": transformer_block,
    "linear_attention": linear_attention,
    "low_rank_chain": low_rank_chain,
    "lstm_step": lstm_step,
}
