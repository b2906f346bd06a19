"""The frozen third of `signals`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("circulant matrices are diagonal in the Fourier basis")
def circulant_product(draw: SnippetDraw) -> TwoForms:
    """Product of a circulant matrix, built from its first column, with a vector."""

    def fn(c: Array, x: Array) -> Array:
        i = jnp.arange(c.shape[0])
        return c[(i[:, None] - i[None, :]) % c.shape[0]] @ x

    return TwoForms(
        fn, lambda c, x: jnp.fft.irfft(jnp.fft.rfft(c) * jnp.fft.rfft(x), c.shape[0]), (draw(1024), draw(1024))
    )


@snippet("a separable kernel: convolution with an outer product is two sums of shifted images", frozen=(1,))
def separable_blur(draw: SnippetDraw) -> TwoForms:
    """An image blurred by a Gaussian window."""

    def fn(image: Array, g: Array) -> Array:
        return lax.conv(image[None, None], jnp.outer(g, g)[None, None], (1, 1), "SAME")[0, 0]

    def hand(image: Array, g: Array) -> Array:
        n = image.shape[0]
        wide = jnp.pad(image, 7)
        rows = sum((g[k] * wide[k : k + n] for k in range(15)), jnp.zeros(()))
        return sum((g[k] * rows[:, k : k + n] for k in range(15)), jnp.zeros(()))

    g = np.exp(-(np.linspace(-2, 2, 15) ** 2)).astype(np.float32)
    return TwoForms(fn, hand, (draw(192, 192), g / g.sum()))


@snippet("linearity: a sum of filtered signals is one filtered by the sum", frozen=(1,))
def equaliser(draw: SnippetDraw) -> TwoForms:
    """A signal through a bank of filters, added up with gains."""

    def fn(x: Array, bank: Array, gain: Array) -> Array:
        bands = jax.vmap(lambda h: jnp.convolve(x, h, mode="same"))(bank)
        return jnp.sum(gain[:, None] * bands, axis=0)

    def hand(x: Array, bank: Array, gain: Array) -> Array:
        return jnp.convolve(x, gain @ bank, mode="same")

    return TwoForms(fn, hand, (draw(8192), draw(8, 63, scale=0.1), draw.uniform(0.5, 2, 8)))


@snippet("associativity of convolution")
def cascade_of_filters(draw: SnippetDraw) -> TwoForms:
    """A signal through four short filters, one after the other."""

    def fn(x: Array, h: Array) -> Array:
        for k in range(4):
            x = jnp.convolve(x, h[k])
        return x

    def hand(x: Array, h: Array) -> Array:
        both = jnp.convolve(jnp.convolve(h[0], h[1]), jnp.convolve(h[2], h[3]))
        return jnp.convolve(x, both)

    return TwoForms(fn, hand, (draw(32768), draw(4, 9, scale=0.3)))


@snippet("a sum of outer products is a product of matrices")
def image_of_components(draw: SnippetDraw) -> TwoForms:
    """An image from its leading singular vectors."""

    def fn(u: Array, s: Array, v: Array) -> Array:
        return sum(s[k] * jnp.outer(u[:, k], v[:, k]) for k in range(32))  # pyright: ignore[reportReturnType]

    return TwoForms(fn, lambda u, s, v: (u * s) @ v.T, (draw(384, 32), draw.uniform(0, 1, 32), draw(384, 32)))


@snippet("a Hadamard matrix is a Kronecker product: H x = vec(H1 X H1')")
def walsh_hadamard(draw: SnippetDraw) -> TwoForms:
    """Walsh-Hadamard transform by its matrix."""
    two = np.array([[1.0, 1.0], [1.0, -1.0]], np.float32)

    def matrix(k: int) -> Array:
        h = jnp.ones((1, 1))
        for _ in range(k):
            h = jnp.kron(h, two)
        return h

    def hand(x: Array) -> Array:
        h = matrix(5)
        return (h @ x.reshape(32, 32) @ h.T).ravel()

    return TwoForms(lambda x: matrix(10) @ x, hand, (draw(1024),))
