"""JAX functions with small arguments, by name: what the frontend and the backend are tested on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

Case = tuple[Callable[..., Any], tuple[Any, ...]]
CASES: dict[str, Callable[[], Case]] = {}
# primitives that a case keeps verbatim, on purpose
OPAQUE: dict[str, set[str]] = {
    "sort": {"sort"},
    "top_k": {"top_k"},
    "random": {
        "random_seed",
        "random_wrap",
        "random_bits",
        "bitcast_convert_type",
        "random_split",
        "slice",
        "squeeze",
        "unstack",
    },
    "random_legacy": {"random_wrap", "random_bits", "bitcast_convert_type"},
    "fft": {"fft", "real"},
    "cumlogsumexp": {"cumlogsumexp"},
    "grad_max_pool": {"select_and_scatter_add"},
    "bitcast": {"bitcast_convert_type"},
    "general_reduce": {"reduce"},
    "reduce_precision": {"reduce_precision"},
    "scan_random_key": {
        "random_wrap",
        "random_split",
        "random_bits",
        "bitcast_convert_type",
        "slice",
        "squeeze",
        "unstack",
    },
    "factorised_solve": {"lu", "triangular_solve", "lu_pivots_to_permutation"},
}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Add a function that makes one case."""
    CASES[make.__name__.removeprefix("_")] = make
    return make


def rand(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Normal values, fixed by shape and seed."""
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.standard_normal(shape), dtype)


def ints(*shape: int, below: int = 10, seed: int = 0, dtype: str = "int32") -> Any:
    """Integers in [0, below)."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(0, below, shape), dtype)


def _layernorm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    var = jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def _attention(x: Any, p: dict[str, Any], heads: int, causal: bool) -> Any:
    n, d = x.shape
    q, k, v = (jnp.dot(x, p[w]).reshape(n, heads, d // heads).transpose(1, 0, 2) for w in ("q", "k", "v"))
    s = jnp.einsum("hqd,hkd->hqk", q, k) / np.sqrt(d // heads)
    if causal:
        s = jnp.where(jnp.tril(jnp.ones((n, n), bool)), s, -1e9)
    y = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(s, -1), v)
    return y.transpose(1, 0, 2).reshape(n, d) @ p["o"]


@case
def mlp() -> Case:
    def f(layers: list[dict[str, Any]], x: Any) -> Any:
        for layer in layers:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x

    sizes = [5, 7, 6, 3]
    layers = [{"w": rand(m, n), "b": rand(n)} for m, n in itertools.pairwise(sizes)]
    return f, (layers, rand(4, 5))


@case
def attention() -> Case:
    return functools.partial(_attention, heads=2, causal=False), (
        rand(6, 8),
        {w: rand(8, 8, seed=i) for i, w in enumerate("qkvo")},
    )


@case
def attention_causal() -> Case:
    return functools.partial(_attention, heads=4, causal=True), (
        rand(6, 8),
        {w: rand(8, 8, seed=i) for i, w in enumerate("qkvo")},
    )


@case
def transformer_block() -> Case:
    def f(p: dict[str, Any], x: Any) -> Any:
        x = x + _attention(_layernorm(x, p["g"], p["b"]), p, 2, True)
        h = jax.nn.gelu(_layernorm(x, p["g"], p["b"]) @ p["up"], approximate=False)
        return x + h @ p["down"]

    p = {w: rand(8, 8, seed=i) for i, w in enumerate("qkvo")}
    return f, ({**p, "g": rand(8), "b": rand(8, seed=1), "up": rand(8, 16), "down": rand(16, 8)}, rand(5, 8))


@case
def layernorm() -> Case:
    return _layernorm, (rand(3, 4, 8), rand(8), rand(8, seed=1))


@case
def rmsnorm() -> Case:
    return lambda x, g: x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * g, (rand(3, 8), rand(8))


@case
def gelu_tanh() -> Case:
    return lambda x: jax.nn.gelu(x, approximate=True), (rand(5, 6),)


@case
def gelu_erf() -> Case:
    return lambda x: jax.nn.gelu(x, approximate=False), (rand(5, 6),)


@case
def activations() -> Case:
    names = "relu relu6 silu swish elu selu celu softplus soft_sign log_sigmoid hard_tanh leaky_relu mish squareplus"
    return lambda x: [getattr(jax.nn, n)(x) for n in names.split()], (rand(4, 5),)


@case
def logsumexp_variants() -> Case:
    def f(x: Any) -> Any:
        return jax.nn.logsumexp(x, 1), jax.nn.log_softmax(x), jax.nn.softmax(x, axis=0), jax.nn.standardize(x)

    return f, (rand(4, 6),)


@case
def conv_nchw() -> Case:
    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2))

    return f, (rand(2, 4, 8, 9), rand(6, 4, 3, 3))


@case
def conv_nhwc_grouped() -> Case:
    def f(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (1, 2), [(1, 0), (2, 1)], dimension_numbers=dims, feature_group_count=2, precision="highest"
        )

    return f, (rand(2, 7, 8, 4), rand(3, 3, 2, 6))


@case
def conv_depthwise_transposed() -> Case:
    def f(x: Any, w: Any, v: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=4)
        return lax.conv_transpose(y, v, (2, 2), "SAME", dimension_numbers=dims)

    return f, (rand(1, 6, 6, 4), rand(3, 3, 1, 4), rand(3, 3, 4, 5))


@case
def conv_1d_3d() -> Case:
    def f(x: Any, w: Any, y: Any, v: Any) -> Any:
        return lax.conv(x, w, (1,), "VALID"), lax.conv(y, v, (1, 1, 1), "SAME")

    return f, (rand(2, 3, 10), rand(4, 3, 3), rand(1, 2, 4, 4, 4), rand(3, 2, 2, 2, 2))


@case
def conv_batchnorm_pool() -> Case:
    def f(x: Any, w: Any, bn: dict[str, Any]) -> Any:
        dims = ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
        shape = (1, -1, 1, 1)
        y = (y - bn["mean"].reshape(shape)) * lax.rsqrt(bn["var"].reshape(shape) + 1e-5)
        y = jnp.maximum(y * bn["scale"].reshape(shape) + bn["bias"].reshape(shape), 0)
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
        mean = lax.reduce_window(y, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "VALID") / 4
        return mean, lax.reduce_window(y, jnp.inf, lax.min, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), y.mean((2, 3))

    bn = {"mean": rand(4), "var": jnp.abs(rand(4)), "scale": rand(4, seed=2), "bias": rand(4, seed=3)}
    return f, (rand(2, 3, 8, 8), rand(4, 3, 3, 3), bn)


@case
def lstm_step() -> Case:
    def f(p: dict[str, Any], state: tuple[Any, Any], x: Any) -> Any:
        c, h = state
        i, g, j, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
        c = jax.nn.sigmoid(g) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        return c, jax.nn.sigmoid(o) * jnp.tanh(c)

    return f, ({"wx": rand(5, 16), "wh": rand(4, 16), "b": rand(16)}, (rand(2, 4), rand(2, 4, seed=1)), rand(2, 5))


@case
def scan_rnn() -> Case:
    table = rand(4, 4, seed=7)

    def f(p: dict[str, Any], xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ p["wx"] + h @ p["wh"] + h @ table)
            return h, (h.sum(), h * 2)

        return lax.scan(step, jnp.zeros(4), xs), lax.scan(step, jnp.ones(4), xs, reverse=True, unroll=2)[1]

    return f, ({"wx": rand(3, 4), "wh": rand(4, 4)}, rand(6, 3))


@case
def scan_layers() -> Case:
    def f(stacked: Any, x: Any) -> Any:
        return lax.scan(lambda c, w: (jax.nn.relu(c @ w), None), x, stacked)[0]

    return f, (rand(3, 4, 4), rand(2, 4))


@case
def nested_scan() -> Case:
    bias = rand(3, seed=4)

    def f(x: Any) -> Any:
        def inner(c: Any, a: Any) -> Any:
            return c + a * bias, c.sum()

        def outer(c: Any, row: Any) -> Any:
            c, s = lax.scan(inner, c, row)
            return c, s

        return lax.scan(outer, jnp.zeros(3), x)

    return f, (rand(2, 4, 3),)


@case
def while_loop() -> Case:
    limit = rand(3, seed=2) + 20

    def f(x: Any, y: Any) -> Any:
        return lax.while_loop(lambda s: (s[0] < limit).all(), lambda s: (s[0] + jnp.abs(y) + 1, s[1] + 1), (x, 0))

    return f, (rand(3), rand(3, seed=1))


@case
def cond_and_switch() -> Case:
    table = rand(3, 4, seed=3)

    def f(i: Any, x: Any) -> Any:
        a = lax.cond(x.sum() > 0, lambda v: v @ table, lambda v: v.sum() * table[0], x)
        return a, lax.switch(i, [jnp.sin, jnp.cos, lambda v: v + table[:, 0]], x)

    return f, (jnp.asarray(2), rand(3))


@case
def fori_loop() -> Case:
    def f(n: Any, x: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, v: v * 0.5 + i, x), lax.fori_loop(0, n, lambda i, v: v + i * x, x)

    return f, (jnp.asarray(3), rand(4))


@case
def vmapped() -> Case:
    def f(w: Any, xs: Any, i: Any) -> Any:
        return jax.vmap(lambda x, j: jnp.tanh(w @ x) * x[j] + lax.dynamic_slice(x, (j,), (1,)))(xs, i)

    return f, (rand(4, 4), rand(5, 4), ints(5, below=4))


@case
def grad_loss() -> Case:
    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ p["w1"] + p["b"])
        return jnp.mean(-jax.nn.log_softmax(h @ p["w2"])[jnp.arange(4), y])

    p = {"w1": rand(3, 5), "b": rand(5), "w2": rand(5, 6)}
    return lambda p, x, y: loss(p, x, y), (p, rand(4, 3), ints(4, below=6))


@case
def grad_conv() -> Case:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(lax.conv(x, w, (2, 2), "SAME") ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1)), (rand(4, 3, 3, 3), rand(2, 3, 7, 7))


@case
def grad_mlp() -> Case:
    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(jax.nn.gelu(x @ p[0]) @ p[1])

    return jax.grad(loss), ((rand(3, 4), rand(4, 2)), rand(5, 3))


@case
def grad_embedding() -> Case:
    return jax.grad(lambda t, i: jnp.sum(t[i] ** 2)), (rand(7, 3), ints(4, below=7))


@case
def grad_max_pool() -> Case:
    def loss(x: Any) -> Any:
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID") ** 2)

    return jax.grad(loss), (rand(6, 6),)


@case
def jacobian() -> Case:
    return jax.jacfwd(lambda x: jnp.sin(x) * x.sum()), (rand(4),)


@case
def einsums() -> Case:
    def f(a: Any, b: Any, c: Any) -> Any:
        return (
            jnp.einsum("ij,jk->ik", a, b), jnp.einsum("ij,jk->ki", a, b), jnp.einsum("ij->ji", a),
            jnp.einsum("ij->", a), jnp.einsum("ij,jk,kl->il", a, b, b.T),
            jnp.einsum("bij,jk->bki", c, b), jnp.einsum("bij,bkj->bik", c, c),
            jnp.einsum("ij,ij->i", a, a), jnp.einsum("...j,jk->...k", c, b), jnp.einsum("i,j->ij", a[0], b[0]),
            jnp.einsum("bij,bij->b", c, c), jnp.einsum("ii->i", a[:, :3]),
        )  # fmt: skip

    return f, (rand(3, 4), rand(4, 5), rand(2, 3, 4))


@case
def contractions() -> Case:
    def f(a: Any, b: Any) -> Any:
        dims = (((2,), (1,)), ((0,), (0,)))
        y = lax.dot_general(a, b, dims, precision=(lax.Precision.HIGH, lax.Precision.HIGH))
        return y, jnp.tensordot(a, b, ((0, 2), (0, 1))), jnp.matmul(a, b), jnp.vdot(a, a), jnp.outer(a[0, 0], b[0, 0])

    return f, (rand(2, 3, 4), rand(2, 4, 5))


@case
def cumulative() -> Case:
    def f(x: Any) -> Any:
        return jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)

    return f, (rand(3, 5),)


@case
def cumlogsumexp() -> Case:
    return lambda x: lax.cumlogsumexp(x, axis=1), (rand(3, 5),)


@case
def take_forms() -> Case:
    def f(t: Any, i: Any, j: Any) -> Any:
        return (
            t[i], jnp.take(t, i, axis=0), jnp.take(t, j, axis=1), t[:, j], t[1], t[-1, 2], t[i, :2], t[i, i % 3],
            jnp.take(t, i, axis=0, mode="clip"), jnp.take_along_axis(t, j[None, :] % 3, axis=1), 
            t.at[i].get(mode="fill"), t[::2, ::-1], t[None, ..., None], t[i[0]],
        )  # fmt: skip

    return f, (rand(7, 5), ints(4, below=7), ints(3, below=5))


@case
def gather_batched() -> Case:
    return jax.vmap(lambda t, i: t[i]), (rand(3, 7, 2), ints(3, 4, below=7))


@case
def gather_out_of_bounds() -> Case:
    def f(t: Any, k: Any, i: Any) -> Any:
        return [jnp.take(a, i, axis=0, mode=m) for a in (t, k) for m in ("fill", "clip", "wrap")]

    return f, (rand(5, 3), ints(5, 2), jnp.array([0, 4, 5, -1, -6, 100]))


@case
def kv_cache() -> Case:
    def f(cache: Any, new: Any, at: Any) -> Any:
        cache = lax.dynamic_update_slice(cache, new[:, None], (0, at, 0))
        return cache, lax.dynamic_slice_in_dim(cache, at - 1, 3, axis=1), lax.dynamic_index_in_dim(cache, at, 1)

    return f, (rand(2, 6, 4), rand(2, 4, seed=1), jnp.asarray(3))


@case
def dynamic_slice_clamps() -> Case:
    def f(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x, (i,), (3,)), lax.dynamic_slice(x, (i - 20,), (3,)), x.at[i].get(mode="clip")

    return f, (rand(7), jnp.asarray(6))


@case
def argmax_one_hot() -> Case:
    def f(x: Any) -> Any:
        k = jnp.argmax(x, -1)
        return jax.nn.one_hot(k, 5), jnp.argmin(x, 0), jnp.where(x > 0, x, 0.0), lax.argmax(x, 1, jnp.int8)

    return f, (rand(4, 5),)


@case
def join_and_split() -> Case:
    def f(x: Any, y: Any) -> Any:
        a, b, c = jnp.split(jnp.concatenate([x, y], 1), [2, 5], axis=1)
        return (
            jnp.stack([x, x], 1),
            jnp.tile(a, (2, 1, 3)),
            jnp.repeat(b, 2, axis=0),
            c,
            jnp.hstack([x, y]),
            *jnp.unstack(x),
        )

    return f, (rand(3, 4), rand(3, 5))


@case
def movement() -> Case:
    def f(x: Any) -> Any:
        y = jnp.pad(x, ((1, 2), (0, 1)), constant_values=3.0)
        z = lax.pad(x, jnp.float32(2), ((-1, 2, 1), (1, -1, 0)))
        return (
            y, z, jnp.flip(x), jnp.roll(x, 2, axis=1), jnp.rot90(x), x.reshape(2, -1), jnp.moveaxis(x[None], 0, 2),
            jnp.broadcast_to(x[:, None], (3, 2, 4)), jnp.squeeze(x[None]), jnp.expand_dims(x, (0, 3)), x[1:, ::2],
            jnp.swapaxes(x, 0, 1), jnp.pad(x, 1, mode="edge"), jnp.triu(x), jnp.diag(x[0]), jnp.meshgrid(x[0], x[1]),
            lax.reshape(x, (6, 2), dimensions=(1, 0)),
        )  # fmt: skip

    return f, (rand(3, 4),)


@case
def unit_axes() -> Case:
    def f(x: Any, y: Any, s: Any) -> Any:
        a = x + y[:, :1] * y[:1] - x[:1, :1]
        return (
            a,
            x * s,
            jnp.ones((1, 1)) * x,
            (x - x.max(1, keepdims=True)) / x.sum(keepdims=True),
            x[:, None] + y[None],
        )

    return f, (rand(3, 4), rand(3, 4, seed=1), rand())


@case
def elementwise_float() -> Case:
    names = (
        "abs acosh asinh atanh cbrt ceil cos cosh exp exp2 expm1 floor log log1p negative rint round sign sin sinh sqrt"
        " square tan tanh arcsin arccos arctan isfinite isnan isinf reciprocal"
    )

    def f(x: Any, y: Any) -> Any:
        pairs = [
            fn(x, y)
            for fn in (jnp.arctan2, jnp.power, jnp.fmod, jnp.remainder, jnp.hypot, jnp.nextafter, jnp.logaddexp)
        ]
        more = [x**3, x**-2, x**2, lax.rsqrt(x), lax.erf(x), lax.erfc(x), lax.erf_inv(x), lax.lgamma(x), lax.digamma(x)]
        return (
            [getattr(jnp, n)(x) for n in names.split()],
            pairs,
            more,
            lax.logistic(x),
            jnp.clip(x, 0.3, y),
            x ** y.astype(int),
        )

    return f, (jnp.abs(rand(3, 4)) * 0.3 + 0.1, jnp.abs(rand(3, 4, seed=1)) + 0.1)


@case
def elementwise_int() -> Case:
    def f(a: Any, b: Any) -> Any:
        return (
            a + b, a - b, a * b, a // (b + 1), a % (b + 1), lax.div(a, b + 1), lax.rem(-a, b + 1), a & b, a | b, a ^ b,
            ~a, a << 2, a >> 1,
            lax.shift_right_logical(-a, 3), lax.population_count(a), lax.clz(a), a == b, a != b, a < b,
            jnp.maximum(a, b), jnp.abs(-a), jnp.sign(a - b), a**2, jnp.gcd(a, b), (a > 3) & (b < 5) | ~(a == b),
            lax.shift_right_arithmetic(-a, 1), jnp.clip(a, 2, 5), a.astype(bool), jnp.prod(b), jnp.sum(a, 0),
            jnp.max(a),
        )  # fmt: skip

    return f, (ints(3, 4), ints(3, 4, seed=1))


@case
def reductions() -> Case:
    def f(x: Any, b: Any) -> Any:
        return (
            x.sum(), x.sum((0, 2)), x.max(1), x.min(-1, keepdims=True), x.prod(0), b.any(), b.all(1), x.mean(),
            x.std(1), lax.reduce_xor(b, (0,)), jnp.median(x[0, 0]) * 0, jnp.ptp(x, 0), jnp.linalg.norm(x), x.sum(()),
        )  # fmt: skip

    return lambda x, b: f(x, b)[:10] + f(x, b)[11:], (rand(2, 3, 4), ints(3, 4, below=2, dtype="bool"))


@case
def half_precision() -> Case:
    def f(x: Any, w: Any, y: Any) -> Any:
        h = jax.nn.softmax(x @ w)
        return (
            h,
            _layernorm(h, h[0], h[1]),
            jnp.dot(x, w, preferred_element_type=jnp.float32),
            y * 2 + y.astype(x.dtype),
        )

    return f, (rand(4, 6, dtype="bfloat16"), rand(6, 4, dtype="bfloat16"), rand(4, 6, dtype="float16"))


@case
def mixed_precision() -> Case:
    return lambda x, w: (x @ w, x + w[0, 0], 2 * w), (rand(3, 4), rand(4, 5, dtype="bfloat16"))


@case
def int8_accumulate() -> Case:
    return lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.int32), (
        ints(3, 4, dtype="int8"),
        ints(4, 5, dtype="int8"),
    )


@case
def dtypes() -> Case:
    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a.astype("float32") + b, c.astype("int32") + d, (a + 1).astype("uint16"), d > 3, b.astype("int16"), -c

    return f, (ints(4, dtype="uint8"), rand(4), ints(4, dtype="int16"), ints(4, dtype="int8"))


@case
def inner_calls() -> Case:
    table = rand(4, 4, seed=9)

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * 3

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (g,))

    @jax.custom_jvp
    def clipped(x: Any) -> Any:
        return jnp.minimum(x @ table, 1)

    clipped.defjvps(lambda t, ans, x: t @ table)

    @jax.jit
    def inner(x: Any) -> Any:
        return jax.jit(jnp.sin)(x) + table

    def f(x: Any) -> Any:
        y = jax.checkpoint(lambda v: jnp.tanh(inner(v)))(x)
        return (
            scaled(clipped(y)),
            lax.stop_gradient(y),
            jax.named_call(jnp.cos, name="c")(y),
            lax.optimization_barrier(y),
        )

    return f, (rand(4, 4),)


@case
def constants() -> Case:
    weight, small, same, scalar = np.asarray(rand(4, 4)), np.arange(3), np.full((4, 4), 0.25, "float32"), np.float32(2)

    def f(x: Any) -> Any:
        return (
            (x @ weight + jnp.sin(x) @ weight) * same,
            small,
            jnp.zeros(3),
            x * scalar,
            1.5,
            x @ weight.T,
            np.zeros((0, 3), "float32"),
        )

    return f, (rand(2, 4).repeat(2, 0),)


@case
def passthrough() -> Case:
    return lambda x, y, unused: {"same": x, "again": x, "none": None, "pair": (y, 3)}, (rand(2), ints(3), rand(1))


@case
def scalars() -> Case:
    return lambda x, n, flag, a: (x * 2, a * x, a + n, jnp.where(flag, a, 0), jnp.exp(x)), (
        1.5,
        3,
        True,
        rand(3, dtype="bfloat16"),
    )


@case
def sort() -> Case:
    return lambda x: (jnp.sort(x, 1), jnp.argsort(x[0]), jnp.sort(x, 1) * 2), (rand(3, 5),)


@case
def top_k() -> Case:
    return lambda x: lax.top_k(x * 2, 2), (rand(3, 5),)


@case
def random() -> Case:
    def f(x: Any) -> Any:
        a, b = jax.random.split(jax.random.key(3))
        return x + jax.random.normal(a, x.shape), jax.random.uniform(b, (3,))

    return f, (rand(2, 3),)


@case
def random_legacy() -> Case:
    return lambda key, x: x * jax.random.uniform(key, x.shape), (jax.random.PRNGKey(0), rand(2, 3))


@case
def scan_random_key() -> Case:
    def f(key: Any, x: Any) -> Any:
        def step(k: Any, v: Any) -> Any:
            k, now = jax.random.split(k)
            return k, v + jax.random.uniform(now)

        return lax.scan(step, jax.random.wrap_key_data(key), x)[1]

    return f, (jax.random.PRNGKey(0), rand(3))


@case
def fft() -> Case:
    return lambda x: jnp.abs(jnp.fft.rfft(x).real) + 1, (rand(3, 8),)


@case
def scatter_set() -> Case:
    return lambda x: x.at[1].set(3.0) * 2, (rand(4, 2),)


@case
def scatter_blocks() -> Case:
    def f(x: Any, i: Any) -> Any:
        modes, rows = ("drop", "clip", "promise_in_bounds"), jnp.zeros(x.shape[1]) + 9
        inside = tuple([x.at[i].set(rows, mode=mode) for mode in modes])
        outside = tuple([x.at[i + far].set(rows, mode=mode) for far in (-9, 4, 9) for mode in modes[:2]])
        folds = x.at[i, 1].add(2.0), x.at[:, i].mul(x[:, 0]), x.at[i].max(x[0]), x.at[i + 9].min(x[0])
        return *inside, *outside, *folds, x.at[1:3].set(x[:2]), x.at[7].add(1.0), (x > 0).at[1].set(True)

    return f, (rand(4, 3), np.array(1, np.int32))


@case
def bitcast() -> Case:
    return lambda x: lax.bitcast_convert_type(x, jnp.int32) + 1, (rand(3),)


@case
def general_reduce() -> Case:
    return lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a * 0.5 + b, (1,)) + 1, (rand(3, 1),)


@case
def reduce_precision() -> Case:
    return lambda x: (lax.reduce_precision(x, 8, 7), lax.reduce_precision(x, 8, 23)), (rand(3),)


@case
def linear_solve() -> Case:
    return jnp.linalg.solve, (rand(3, 3) + 4 * jnp.eye(3), rand(3))


@case
def factorised_solve() -> Case:
    from jax.scipy.linalg import lu_factor, lu_solve

    return lambda a, y: lu_solve(lu_factor(a), y), (rand(3, 3) + 4 * jnp.eye(3), rand(3))


@case
def empty_shapes() -> Case:
    return lambda x: (x + 1, x.sum(0), x.sum(1), jnp.concatenate([x, x], 1), x.reshape(0, 2)), (rand(0, 4),)
