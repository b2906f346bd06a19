"""Ordinary statements about JAX functions: name, two functions, specifications, constraints, and the verdict.

What people write when they rearrange a model by hand, and the mistakes that they make at it.  P: proved, R: refuted.
"""

import jax
import jax.numpy as jnp
from jax import lax, nn


def layer_norm(x, g, b):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def rms_norm(x, g):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def attend(q, k, v):
    return nn.softmax(q @ k.T, axis=-1) @ v


def split_sum(a, b):
    m = a.shape[1] // 2
    halves = a.reshape(a.shape[0], 2, m), b.reshape(2, m, b.shape[1])
    return jnp.einsum("isk,skj->ij", *halves)


def dense(x, w, b):
    return x @ w + b


def slice_cols(y, start, stop):
    return lax.slice_in_dim(y, start, stop, axis=1)


def two_tower(x, w, v):
    y = x @ jnp.concatenate([w, v], 1)
    return slice_cols(y, 0, w.shape[1]), slice_cols(y, w.shape[1], y.shape[1])


def online(x, y):
    m = jnp.maximum(x.max(-1), y.max(-1))
    return jnp.log(jnp.exp(x - m[:, None]).sum(-1) + jnp.exp(y - m[:, None]).sum(-1)) + m


def quarters(a):
    m, n = a.shape[0] // 2, a.shape[1] // 2
    return a[:m, :n], a[:m, n:], a[m:, :n], a[m:, n:]


def strassen(x, y):
    (a, b, c, d), (e, f, g, h) = quarters(x), quarters(y)
    p, q, r, s = a @ (f - h), (a + b) @ h, (c + d) @ e, d @ (g - e)
    t, u, v = (a + d) @ (e + h), (b - d) @ (g + h), (a - c) @ (e + f)
    return jnp.block([[t + s - q + u, p + q], [r + s, p + t - r - v]])


def winograd(x, w):
    data = jnp.array([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]) @ x
    kernel = jnp.array([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]) @ w
    return jnp.array([[1.0, 1, 1, 0], [0, 1, -1, -1]]) @ (kernel * data)


def two_blocks(q, k, v, y, u):
    s, t = q @ k.T, q @ y.T
    m = jnp.maximum(s.max(1, keepdims=True), t.max(1, keepdims=True))
    a, b = jnp.exp(s - m), jnp.exp(t - m)
    return (a @ v + b @ u) / (a.sum(1, keepdims=True) + b.sum(1, keepdims=True))


def heads(y):
    return y.reshape(y.shape[0], 2, y.shape[1] // 2).transpose(1, 0, 2)


def attend_heads(q, k, v):
    out = nn.softmax(heads(q) @ heads(k).transpose(0, 2, 1) * 0.5) @ heads(v)
    return out.transpose(1, 0, 2).reshape(q.shape)


def block(x, g, q, k, v, o):
    y = layer_norm(x, g, 0.0)
    return x + attend_heads(y @ q, y @ k, y @ v) @ o


def fused_block(x, g, q, k, v, o):
    y = layer_norm(x, 1.0, 0.0) @ (g[:, None] * jnp.concatenate([q, k, v], 1))
    n = q.shape[1]
    return x + attend_heads(y[:, :n], y[:, n : 2 * n], y[:, 2 * n :]) @ o


def lstm(z, c):
    i, f, g, o = jnp.split(z, 4, axis=1)
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
    return nn.sigmoid(o) * jnp.tanh(c), c


def gated(x, w, v):
    y = x @ jnp.concatenate([w, v], 1)
    return nn.silu(y[:, : w.shape[1]]) * y[:, w.shape[1] :]


def shifted(x, w):
    wide = jnp.pad(x, ((0, 0), (0, 0), (1, 1)))
    return sum(wide[:, :, i : i + x.shape[2]] * w[None, :, 0, i, None] for i in range(3))


def groups(q, k):
    return q.reshape(q.shape[0], k.shape[1], q.shape[1] // k.shape[1], q.shape[2], q.shape[3])


P, R = "PROVED", "REFUTED"
CASES = [
    # ---- products
    ("matmul-associates", lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c), ("m k", "k l", "l n"), (), P),
    ("matmul-commutes", lambda a, b: a @ b, lambda a, b: b @ a, ("n n", "n n"), (), R),
    ("matmul-distributes", lambda a, b, c: a @ (b + c), lambda a, b, c: a @ b + a @ c, ("m k", "k n", "k n"), (), P),
    ("transposed-product", lambda a, b: (a @ b).T, lambda a, b: b.T @ a.T, ("m k", "k n"), (), P),
    ("transposed-product-unswapped", lambda a, b: (a @ b).T, lambda a, b: a.T @ b.T, ("n n", "n n"), (), R),
    ("einsum-reassociates", lambda x, y, z: jnp.einsum("ij,jk,kl->il", x, y, z),
     lambda x, y, z: jnp.einsum("ij,jl->il", x, jnp.einsum("jk,kl->jl", y, z)), ("i j", "j k", "k l"), (), P),
    ("batched-einsum-is-matmul", lambda x, y: jnp.einsum("bik,bkj->bij", x, y), lambda x, y: x @ y,
     ("b i k", "b k j"), (), P),
    ("split-k", lambda a, b: a @ b, split_sum, ("m k", "k n"), ("k % 2 == 0",), P),
    ("block-columns", lambda x, w, v: (x @ w, x @ v), two_tower, ("m k", "k n", "k p"), (), P),
    ("lora-fold", lambda x, w, a, b: x @ w + (x @ a) @ b, lambda x, w, a, b: x @ (w + a @ b),
     ("m k", "k n", "k r", "r n"), (), P),
    ("scale-through-product", lambda a, b, s: (a * s[:, None]) @ b, lambda a, b, s: (a @ b) * s[:, None],
     ("m k", "k n", "m"), (), P),
    ("scale-along-contracted-axis", lambda a, b, s: (a * s[None, :]) @ b, lambda a, b, s: (a @ b) * s[:, None],
     ("n n", "n n", "n"), (), R),
    ("bias-through-product", lambda x, w, b, v: dense(x, w, b) @ v, lambda x, w, b, v: dense(x, w @ v, b @ v),
     ("m k", "k n", "n", "n p"), (), P),
    ("outer-product-as-matmul", lambda a, b: a[:, None] * b[None, :], lambda a, b: a[:, None] @ b[None, :],
     ("m", "n"), (), P),
    ("trace-of-product-rotates", lambda a, b: jnp.sum((a @ b) * jnp.eye(a.shape[0])),
     lambda a, b: jnp.sum((b @ a) * jnp.eye(b.shape[0])), ("m n", "n m"), (), P),
    ("frobenius", lambda a, b: (a * b).sum(), lambda a, b: jnp.einsum("ij,ij->", a, b), ("m n", "m n"), (), P),
    ("product-of-sums", lambda a, b: a.sum() * b.sum(), lambda a, b: (a * b).sum(), ("n", "n"), (), R),
    # ---- attention and normalisation
    ("softmax-shift", lambda x, c: nn.softmax(x - c[:, None]), lambda x, c: nn.softmax(x), ("m k", "m"), (), P),
    ("softmax-shift-along-axis", lambda x, c: nn.softmax(x - c), lambda x, c: nn.softmax(x), ("m k", "k"), (), R),
    ("softmax-by-hand", lambda x: nn.softmax(x, axis=0), lambda x: jnp.exp(x) / jnp.exp(x).sum(0), ("m k",), (), P),
    ("softmax-scale", lambda x: nn.softmax(2 * x), lambda x: nn.softmax(x) ** 2, ("m k",), (), R),
    ("log-softmax", lambda x: nn.log_softmax(x), lambda x: x - nn.logsumexp(x, axis=-1, keepdims=True),
     ("m k",), (), P),
    ("logsumexp-shift", lambda x, c: nn.logsumexp(x + c[:, None], axis=1), lambda x, c: nn.logsumexp(x, axis=1) + c,
     ("m k", "m"), (), P),
    ("logsumexp-of-two-blocks", lambda x, y: nn.logsumexp(jnp.concatenate([x, y], 1), axis=1), online,
     ("m k", "m n"), ("k >= 1", "n >= 1"), P),
    ("scale-across-scores", lambda q, k, s: (q * s) @ k.T, lambda q, k, s: q @ (k * s).T, ("s d", "t d", "d"), (), P),
    ("attention-permutes-keys", attend, lambda q, k, v: attend(q, k[::-1], v[::-1]), ("s d", "t d", "t e"), (), P),
    ("attention-permutes-keys-only", attend, lambda q, k, v: attend(q, k[::-1], v), ("s d", "t d", "t e"), (), R),
    ("merge-heads", lambda x, w: jnp.einsum("bhsd,hdo->bso", x, w),
     lambda x, w: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])
     @ w.reshape(w.shape[0] * w.shape[1], w.shape[2]), ("b h s d", "h d o"), (), P),
    ("merge-heads-in-the-wrong-order", lambda x, w: jnp.einsum("bhsd,hdo->bso", x, w),
     lambda x, w: x.transpose(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])
     @ w.reshape(w.shape[0] * w.shape[1], w.shape[2]), ("b h s d", "h d o"), (), R),
    ("layer-norm-fold", lambda x, g, b, w: layer_norm(x, g, b) @ w,
     lambda x, g, b, w: layer_norm(x, jnp.ones_like(g), jnp.zeros_like(b)) @ (g[:, None] * w) + b @ w,
     ("m k", "k", "k", "k n"), (), P),
    ("layer-norm-shift", lambda x, g, b, c: layer_norm(x + c[:, None], g, b), lambda x, g, b, c: layer_norm(x, g, b),
     ("m k", "k", "k", "m"), (), P),
    ("rms-norm-fold", lambda x, g, w: rms_norm(x, g) @ w,
     lambda x, g, w: ((x * g) @ w) * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6), ("m k", "k", "k n"), (), P),
    ("rms-norm-shift", lambda x, g: rms_norm(x + 1, g), rms_norm, ("m k", "k"), (), R),
    # ---- statistics
    ("variance", lambda x: jnp.var(x, axis=1), lambda x: (x * x).mean(1) - x.mean(1) ** 2, ("m n",), (), P),
    ("variance-shift", lambda x, c: jnp.var(x + c, axis=0), lambda x, c: jnp.var(x, axis=0), ("n", ""), (), P),
    ("variance-scale", lambda x: jnp.var(3 * x), lambda x: 3 * jnp.var(x), ("n",), (), R),
    ("mean-of-means", lambda x: x.mean(0).mean(), lambda x: x.mean(), ("m n",), (), P),
    ("mean-of-means-of-unequal-blocks", lambda x, y: jnp.concatenate([x, y]).mean(),
     lambda x, y: (x.mean() + y.mean()) / 2, ("m", "n"), (), R),
    ("mean-as-product", lambda x: x.mean(1), lambda x: x @ jnp.full((x.shape[1],), 1.0) / x.shape[1], ("m n",), (), P),
    ("centred-sum-is-zero", lambda x: (x - x.mean(0)).sum(0), lambda x: jnp.zeros(x.shape[1]), ("m n",), (), P),
    # ---- movement
    ("transpose-twice", lambda x: x.T.T, lambda x: x, ("m n",), (), P),
    ("reverse-twice", lambda x: jnp.flip(jnp.flip(x, 0), 0), lambda x: x, ("m n",), (), P),
    ("reverse-by-index", lambda x: x[::-1], lambda x: lax.rev(x, (0,)), ("m n",), (), P),
    ("reshape-round-trip", lambda x: x.reshape(x.shape[0] * x.shape[1]).reshape(x.shape), lambda x: x,
     ("m n",), (), P),
    ("reshape-is-transpose", lambda x: x.reshape(x.shape[1], x.shape[0]), lambda x: x.T, ("m n",), (), R),
    ("reshape-merges-a-sum", lambda x: x.reshape(x.shape[0] * x.shape[1], x.shape[2]).sum(0),
     lambda x: x.sum((0, 1)), ("a b c",), (), P),
    ("pad-then-crop", lambda x: jnp.pad(x, (2, 3))[2:-3], lambda x: x, ("n",), (), P),
    ("pad-of-sum", lambda x, y: jnp.pad(x + y, 1), lambda x, y: jnp.pad(x, 1) + jnp.pad(y, 1), ("m n", "m n"), (), P),
    ("pad-with-one-of-sum", lambda x, y: jnp.pad(x + y, 1, constant_values=1),
     lambda x, y: jnp.pad(x, 1, constant_values=1) + jnp.pad(y, 1, constant_values=1), ("m", "m"), (), R),
    ("concat-of-products", lambda x, y, w: jnp.concatenate([x @ w, y @ w]),
     lambda x, y, w: jnp.concatenate([x, y]) @ w, ("m k", "n k", "k p"), (), P),
    ("slice-of-concat", lambda x, y: lax.slice_in_dim(jnp.concatenate([x, y]), x.shape[0], x.shape[0] + y.shape[0]),
     lambda x, y: y, ("m", "n"), (), P),
    ("slice-at-half", lambda x, y: (lambda z: lax.slice_in_dim(z, z.shape[0] // 2, z.shape[0]))(
        jnp.concatenate([x, y]))[: 1], lambda x, y: y[:1], ("m", "n"), ("m >= 1", "n >= 1"), R),
    ("stack-sums", lambda x, y: jnp.stack([x, y]).sum(0), lambda x, y: x + y, ("m n", "m n"), (), P),
    ("tile-is-broadcast", lambda x: jnp.tile(x, (3, 1)), lambda x: jnp.broadcast_to(x, (3, *x.shape)).reshape(
        3 * x.shape[0], x.shape[1]), ("m n",), (), P),
    ("repeat-then-sum", lambda x: jnp.repeat(x, 4).sum(), lambda x: 4 * x.sum(), ("n",), (), P),
    ("roll-back", lambda x: jnp.roll(jnp.roll(x, 1), -1), lambda x: x, ("n",), (), P),
    ("even-and-odd", lambda x: x[::2].sum() + x[1::2].sum(), lambda x: x.sum(), ("n",), ("n >= 2",), P),
    ("dynamic-slice-of-sum", lambda x, y, i: lax.dynamic_slice(x + y, (i,), (2,)),
     lambda x, y, i: lax.dynamic_slice(x, (i,), (2,)) + lax.dynamic_slice(y, (i,), (2,)),
     ("n", "n", "int32[]"), ("n >= 2",), P),
    ("dynamic-slices-compose", lambda x, i, j: lax.dynamic_slice(lax.dynamic_slice(x, (i,), (3,)), (j,), (2,)),
     lambda x, i, j: lax.dynamic_slice(x, (i + j,), (2,)), ("n", "int32[]", "int32[]"), ("n >= 4",), R),
    ("take-of-product", lambda t, w, i: jnp.take(t @ w, i, axis=0, mode="clip"),
     lambda t, w, i: jnp.take(t, i, axis=0, mode="clip") @ w, ("v d", "d e", "int32[n]"), (), P),
    ("take-as-one-hot", lambda t, i: nn.one_hot(i, t.shape[0]) @ t, lambda t, i: jnp.take(t, i, axis=0, mode="clip"),
     ("v d", "int32[n]"), (), R),
    ("one-hot-of-valid-index", lambda t, i: nn.one_hot(jnp.clip(i, 0, t.shape[0] - 1), t.shape[0]) @ t,
     lambda t, i: jnp.take(t, i, axis=0, mode="clip"), ("v d", "int32[n]"), (), P),
    # ---- elementwise
    ("where-commutes-with-exp", lambda p, x, y: jnp.exp(jnp.where(p, x, y)),
     lambda p, x, y: jnp.where(p, jnp.exp(x), jnp.exp(y)), ("bool[n]", "n", "n"), (), P),
    ("where-of-not", lambda p, x, y: jnp.where(~p, x, y), lambda p, x, y: jnp.where(p, y, x),
     ("bool[n]", "n", "n"), (), P),
    ("where-same", lambda p, x: jnp.where(p, x, x), lambda p, x: x, ("bool[n]", "n"), (), P),
    ("clip-idempotent", lambda x: jnp.clip(jnp.clip(x, 0, 6), 0, 6), lambda x: jnp.clip(x, 0, 6), ("n",), (), P),
    ("clip-order", lambda x, a, b: jnp.minimum(jnp.maximum(x, a), b), lambda x, a, b: jnp.maximum(
        jnp.minimum(x, b), a), ("n", "n", "n"), (), R),
    ("relu-by-mask", lambda x: nn.relu(x), lambda x: x * (x > 0), ("n",), (), P),
    ("relu-of-sum", lambda x, y: nn.relu(x + y), lambda x, y: nn.relu(x) + nn.relu(y), ("n", "n"), (), R),
    ("leaky-relu-as-max", lambda x: nn.leaky_relu(x, 0.25), lambda x: jnp.maximum(x, 0.25 * x), ("n",), (), P),
    ("relu-squared", lambda x: nn.relu(x) ** 2, lambda x: nn.relu(x) * x, ("n",), (), P),
    ("sigmoid-symmetry", lambda x: nn.sigmoid(-x), lambda x: 1 - nn.sigmoid(x), ("n",), (), P),
    ("tanh-by-sigmoid", lambda x: jnp.tanh(x), lambda x: 2 * nn.sigmoid(2 * x) - 1, ("n",), (), P),
    ("silu-forms", lambda x: nn.silu(x), lambda x: x / (1 + jnp.exp(-x)), ("n",), (), P),
    ("silu-is-x-exp", lambda x: nn.silu(x), lambda x: x * jnp.exp(x), ("n",), (), R),
    ("gelu-forms", lambda x: nn.gelu(x, approximate=False), lambda x: x * (1 + lax.erf(x * 0.7071067811865476)) / 2,
     ("n",), (), P),
    ("gelu-tanh-is-erf", lambda x: nn.gelu(x, approximate=True), lambda x: nn.gelu(x, approximate=False),
     ("n",), (), R),
    ("softplus-symmetry", lambda x: nn.softplus(x) - nn.softplus(-x), lambda x: x, ("n",), (), P),
    ("square-of-sum", lambda x, y: (x + y) ** 2, lambda x, y: x * x + 2 * x * y + y * y, ("n", "n"), (), P),
    ("sqrt-of-product", lambda x, y: jnp.sqrt(x * x * y * y), lambda x, y: x * y, ("n", "n"), (), R),
    ("abs-as-max", lambda x: jnp.abs(x), lambda x: jnp.maximum(x, -x), ("n",), (), P),
    ("max-by-abs", lambda x, y: jnp.maximum(x, y), lambda x, y: (x + y + jnp.abs(x - y)) / 2, ("n", "n"), (), P),
    ("exp-of-sum", lambda x, y: jnp.exp(x + y), lambda x, y: jnp.exp(x) * jnp.exp(y), ("n", "n"), (), P),
    ("log-of-product", lambda x, y: jnp.log(jnp.exp(x) * jnp.exp(y)), lambda x, y: x + y, ("n", "n"), (), P),
    ("division-by-reciprocal", lambda x, y: x / y, lambda x, y: x * (1 / y), ("n", "n"), (), P),
    ("cancelled-division", lambda x, y: x * y / y, lambda x, y: x, ("n", "n"), (), P),
    # ---- integers
    ("quotient-and-remainder", lambda x: (x // 2) * 2 + x % 2, lambda x: x, ("int32[n]",), (), P),
    ("halves", lambda x: x // 2 + x // 2, lambda x: x, ("int32[n]",), (), R),
    ("double-then-halve", lambda x: (2 * x) // 2, lambda x: x, ("int32[n]",), (), R),
    ("integer-square", lambda x, y: (x + y) * (x - y), lambda x, y: x * x - y * y, ("int32[n]", "int32[n]"), (), P),
    ("integer-product-associates", lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c),
     ("int32[m k]", "int32[k l]", "int32[l n]"), (), P),
    ("xor-twice", lambda x, y: (x ^ y) ^ y, lambda x, y: x, ("bool[n]", "bool[n]"), (), P),
    ("de-morgan", lambda x, y: ~(x & y), lambda x, y: ~x | ~y, ("bool[n]", "bool[n]"), (), P),
    # ---- scans and order
    ("cumsum-last", lambda x: jnp.cumsum(x)[-1], lambda x: x.sum(), ("n",), ("n >= 1",), P),
    ("cumsum-linear", lambda x, y: jnp.cumsum(x + y), lambda x, y: jnp.cumsum(x) + jnp.cumsum(y), ("n", "n"), (), P),
    ("cumsum-as-product", lambda x: jnp.cumsum(x), lambda x: jnp.tril(jnp.ones((x.shape[0],) * 2)) @ x, ("n",), (), P),
    ("cumsum-reversed", lambda x: jnp.cumsum(x[::-1])[::-1], lambda x: x.sum() - jnp.cumsum(x) + x, ("n",), (), P),
    ("cumsum-of-reverse", lambda x: jnp.cumsum(x[::-1]), lambda x: jnp.cumsum(x)[::-1], ("n",), (), R),
    ("max-of-concat", lambda x, y: jnp.concatenate([x, y]).max(), lambda x, y: jnp.maximum(x.max(), y.max()),
     ("m", "n"), (), P),
    ("max-of-negated", lambda x: (-x).max(0), lambda x: -x.min(0), ("m n",), (), P),
    ("max-shift", lambda x, c: (x + c).max(), lambda x, c: x.max() + c, ("n", ""), (), P),
    ("max-pull-through-relu", lambda x: nn.relu(x).max(0), lambda x: nn.relu(x.max(0)), ("m n",), (), P),
    ("sum-of-max", lambda x: x.max(0).sum(), lambda x: x.sum(0).max(), ("m n",), (), R),
    ("argmax-of-scores", lambda x, w: jnp.argmax(x @ w, 1), lambda x, w: jnp.argmax(w.T @ x.T, 0), ("m k", "k n"),
     (), P),
    ("argmax-of-negated", lambda x: jnp.argmax(-x), lambda x: jnp.argmin(x), ("n",), (), P),
    ("causal-mask-forms", lambda x: jnp.where(jnp.tril(jnp.ones(x.shape)) > 0, x, 0.0), lambda x: jnp.tril(x),
     ("n n",), (), P),
    ("triangles-partition", lambda x: jnp.tril(x) + jnp.triu(x, 1), lambda x: x, ("n n",), (), P),
    ("causal-is-full-attention", lambda x: nn.softmax(jnp.where(jnp.tril(jnp.ones(x.shape)) > 0, x, -jnp.inf)),
     lambda x: nn.softmax(x), ("n n",), (), R),
    # ---- convolution and windows
    ("pointwise-convolution", lambda x, w: lax.conv_general_dilated(x, w[:, :, None], (1,), [(0, 0)]),
     lambda x, w: jnp.einsum("bcs,oc->bos", x, w), ("b c s", "o c"), (), P),
    ("batch-norm-fold", lambda x, w, s: lax.conv_general_dilated(x, w, (1,), [(1, 1)]) * s[None, :, None],
     lambda x, w, s: lax.conv_general_dilated(x, w * s[:, None, None], (1,), [(1, 1)]),
     ("b c s", "o c 3", "o"), ("s >= 1",), P),
    ("mean-pool-by-reshape", lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (2,), "VALID"),
     lambda x: x.reshape(x.shape[0] // 2, 2).sum(1), ("n",), ("n % 2 == 0",), P),
    # ---- whole parts of models
    ("strassen", lambda a, b: a @ b, strassen, ("m k", "k n"), ("m % 2 == 0", "k % 2 == 0", "n % 2 == 0"), P),
    ("winograd", lambda x, w: jnp.stack([x[0] * w[0] + x[1] * w[1] + x[2] * w[2],
                                         x[1] * w[0] + x[2] * w[1] + x[3] * w[2]]), winograd, ("4 n", "3 n"), (), P),
    ("flash-attention-merge", lambda q, k, v, y, u: attend(q, jnp.concatenate([k, y]), jnp.concatenate([v, u])),
     two_blocks, ("t d", "s d", "s e", "r d", "r e"), ("s >= 1", "r >= 1"), P),
    ("attention-block", block, fused_block, ("t d", "d", "d n", "d n", "d n", "n d"), ("n % 2 == 0",), P),
    ("attention-block-with-swapped-weights", block, lambda x, g, q, k, v, o: fused_block(x, g, k, q, v, o),
     ("t d", "d", "d n", "d n", "d n", "n d"), ("n % 2 == 0",), R),
    ("lstm-step", lambda x, h, c, w, u, b: lstm(x @ w + h @ u + b, c),
     lambda x, h, c, w, u, b: lstm(jnp.concatenate([x, h], 1) @ jnp.concatenate([w, u], 0) + b, c),
     ("b d", "b n", "b n", "d 4*n", "n 4*n", "4*n"), (), P),
    ("gated-unit", lambda x, w, v: nn.silu(x @ w) * (x @ v), gated, ("m k", "k n", "k n"), (), P),
    ("gradient-of-squares", lambda x, w: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), lambda x, w: 2 * x.T @ (x @ w),
     ("m k", "k n"), (), P),
    ("gradient-of-softmax", lambda x, g: jax.vjp(nn.softmax, x)[1](g)[0],
     lambda x, g: (lambda s: s * (g - (s * g).sum(-1, keepdims=True)))(nn.softmax(x)), ("m n", "m n"), (), P),
    ("pairwise-distances", lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1),
     lambda x, y: (x * x).sum(-1)[:, None] + (y * y).sum(-1)[None] - 2 * x @ y.T, ("m d", "n d"), (), P),
    ("depthwise-by-shifts", lambda x, w: lax.conv_general_dilated(x, w, (1,), [(1, 1)], feature_group_count=x.shape[1]),
     shifted, ("b c s", "c 1 3"), ("s >= 1",), P),
    ("mean-pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4,
     lambda x: x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, x.shape[3]).mean((2, 4)),
     ("n h w c",), ("h % 2 == 0", "w % 2 == 0"), P),
    ("shared-heads", lambda q, k: jnp.einsum("bgrtd,bgsd->bgrts", groups(q, k), k),
     lambda q, k: groups(jnp.einsum("bhtd,bhsd->bhts", q, jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)), k),
     ("b h t d", "b 2 s d"), ("h % 2 == 0",), P),
    ("cosine-similarity", lambda x, y: (x @ y) / (jnp.linalg.norm(x) * jnp.linalg.norm(y)),
     lambda x, y: (x / jnp.linalg.norm(x)) @ (y / jnp.linalg.norm(y)), ("n", "n"), (), P),
    ("entropy-forms", lambda p: -(p * jnp.log(p)).sum(), lambda p: (p * jnp.log(1 / p)).sum(), ("n",), (), P),
    ("last-by-negative-index", lambda x: x[-1], lambda x: lax.rev(x, (0,))[0], ("n",), ("n >= 1",), P),
    ("rows-by-index", lambda x, i: (2 * x)[i], lambda x, i: 2 * x[i], ("n k", "int32[m]"), (), P),
    ("index-modes", lambda x, i: x[i], lambda x, i: jnp.take(x, i, axis=0), ("n k", "int32[m]"), (), R),
    # ---- types and trees
    ("dtype-differs", lambda x: x.astype(jnp.bfloat16), lambda x: x, ("n",), (), R),
    ("keepdims-differs", lambda x: x.sum(0, keepdims=True), lambda x: x.sum(0), ("m n",), (), R),
    ("trees-of-results", lambda p: {"y": p["x"] @ p["w"], "n": p["x"].sum()},
     lambda p: {"y": (p["w"].T @ p["x"].T).T, "n": p["x"].sum(0).sum()}, ({"x": "m k", "w": "k n"},), (), P),
    ("half-precision-product", lambda x, w: x @ w, lambda x, w: (w.T @ x.T).T,
     (("m k", "bfloat16"), ("k n", "bfloat16")), (), P),
    ("half-precision-sum", lambda x, y: (x + y) + x, lambda x, y: x + (y + x), (("n", "bfloat16"),) * 2, (), P),
]  # fmt: skip
