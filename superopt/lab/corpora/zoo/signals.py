"""Snippets of signals and images: long filters, structured matrices, transforms, windows, filter banks."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from superopt.lab.corpora.zoo.snippet import SnippetDraw, TwoForms, snippet


@snippet("convolution theorem")
def long_filter(draw: SnippetDraw) -> TwoForms:
    """A signal through a long impulse response."""

    def hand(x: Array, h: Array) -> Array:
        n = x.shape[0] + h.shape[0] - 1
        return jnp.fft.irfft(jnp.fft.rfft(x, n) * jnp.fft.rfft(h, n), n)

    return TwoForms(lambda x, h: jnp.convolve(x, h), hand, (draw(8192), draw(1025, scale=0.05)))


@snippet("a Toeplitz matrix is a block of a circulant one")
def toeplitz_product(draw: SnippetDraw) -> TwoForms:
    """Product of a Toeplitz matrix, built from its diagonals, with a vector."""

    def fn(t: Array, x: Array) -> Array:
        i = jnp.arange(x.shape[0])
        return t[i[:, None] - i[None, :] + x.shape[0] - 1] @ x

    def hand(t: Array, x: Array) -> Array:
        n = x.shape[0]
        y = jnp.fft.irfft(jnp.fft.rfft(t, 4 * n) * jnp.fft.rfft(x, 4 * n), 4 * n)
        return y[n - 1 : 2 * n - 1]

    return TwoForms(fn, hand, (draw(2047), draw(1024)))


@snippet("Cooley and Tukey 1965: a product with the Fourier matrix is a fast transform")
def spectrum_by_matrix(draw: SnippetDraw) -> TwoForms:
    """Power spectra by sums with sines and cosines."""

    def fn(x: Array) -> Array:
        n = x.shape[1]
        angle = 2 * jnp.pi * ((jnp.arange(n)[:, None] * jnp.arange(n // 2 + 1)[None, :]) % n) / n
        return (x @ jnp.cos(angle)) ** 2 + (x @ jnp.sin(angle)) ** 2

    def hand(x: Array) -> Array:
        y = jnp.fft.rfft(x)
        return y.real**2 + y.imag**2

    return TwoForms(fn, hand, (draw(64, 512),))


@snippet("Wiener-Khinchin theorem")
def autocorrelation(draw: SnippetDraw) -> TwoForms:
    """Correlations of a signal with itself at all lags."""

    def hand(x: Array) -> Array:
        n = x.shape[0]
        y = jnp.fft.irfft(jnp.abs(jnp.fft.rfft(x, 2 * n)) ** 2, 2 * n)
        return jnp.concatenate([y[n + 1 :], y[:n]])

    return TwoForms(lambda x: jnp.correlate(x, x, mode="full"), hand, (draw(1024),))


@snippet("a sum of a window is a difference of running sums", cancellation=True)
def moving_average(draw: SnippetDraw) -> TwoForms:
    """Means of all windows of a signal."""

    def fn(x: Array) -> Array:
        at = jnp.arange(x.shape[0] - 127)[:, None] + jnp.arange(128)[None, :]
        return jnp.mean(x[at], axis=1)

    def hand(x: Array) -> Array:
        total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(x)])
        return (total[128:] - total[:-128]) / 128

    return TwoForms(fn, hand, (1 + draw(16384, scale=0.1),))


@snippet("a stride: results that are not read are not computed")
def decimation(draw: SnippetDraw) -> TwoForms:
    """Every eighth sample of filtered channels."""

    def fn(x: Array, h: Array) -> Array:
        return lax.conv(x[:, None], h[None, None], (1,), "VALID")[:, 0, ::8]

    def hand(x: Array, h: Array) -> Array:
        return lax.conv(x[:, None], h[None, None], (8,), "VALID")[:, 0]

    return TwoForms(fn, hand, (draw(8, 16384), draw(64, scale=0.1)))


@snippet("a sum of outer products is a product of matrices")
def snapshot_covariance(draw: SnippetDraw) -> TwoForms:
    """Covariance of an array of sensors over many snapshots."""
    return TwoForms(
        lambda x: jnp.mean(x[:, :, None] * x[:, None, :], axis=0), lambda x: x.T @ x / x.shape[0], (draw(4000, 96),)
    )


@snippet("geometric weights: a triangular product is a recurrence (Brown 1956)")
def smoothing_by_matrix(draw: SnippetDraw) -> TwoForms:
    """Exponential smoothing of channels by a matrix of weights."""

    def fn(x: Array) -> Array:
        i = jnp.arange(x.shape[0])
        lag = i[:, None] - i[None, :]
        return jnp.where(lag >= 0, 0.1 * 0.9 ** jnp.maximum(lag, 0), 0.0) @ x

    def hand(x: Array) -> Array:
        def joined(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
            return a[0] * b[0], b[0] * a[1] + b[1]

        return lax.associative_scan(joined, (jnp.full((x.shape[0], 1), 0.9), 0.1 * x))[1]

    return TwoForms(fn, hand, (draw(1024, 8),))
