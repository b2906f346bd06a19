"""Forms of attention as users write them: our one kernel, our kernels without the join, XLA, PyTorch.

python -m superopt.lab.bench.attention [--threads N] [--rounds N] [FORM ...]

Nothing is tuned: default schedules.  Times are medians of interleaved rounds in microseconds.  Ours and XLA's are calls
of a jitted function; PyTorch's is `scaled_dot_product_attention` on operands in the layouts of the form.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import is_chained
from superopt.kernels.loops.program import from_graph
from superopt.lab.bench.timing import interleaved, median
from superopt.measure.loop import Thunk
from superopt.schedules.native import kernel_calls


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """One way to write attention.

    Attributes:
        fn: function of queries, keys and values.
        shapes: shapes of the three.
        dtype: dtype of the three.
        heads: axis of the heads.
        causal: whether the mask is causal.
    """

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"
    heads: int = 2
    causal: bool = False


def _library(causal: bool) -> Callable[..., Any]:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    return fn


def _einsum(out: str) -> Callable[..., Any]:
    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k) * (q.shape[-1] ** -0.5)
        return jnp.einsum(out, jax.nn.softmax(scores, -1), v)

    return fn


def _all(*shape: int) -> tuple[tuple[int, ...], ...]:
    return (shape, shape, shape)


FORMS: dict[str, AttentionForm] = {
    "heads last, 384": AttentionForm(_library(False), _all(1, 384, 12, 64)),
    "heads last, causal, 384": AttentionForm(_library(True), _all(1, 384, 12, 64), causal=True),
    "keys of 4 heads, 384": AttentionForm(_library(False), ((1, 384, 12, 64), (1, 384, 4, 64), (1, 384, 4, 64))),
    "bfloat16, 384": AttentionForm(_library(False), _all(1, 384, 12, 64), "bfloat16"),
    "bfloat16, causal, 768": AttentionForm(_library(True), _all(1, 768, 8, 64), "bfloat16", causal=True),
    "float64, 384": AttentionForm(_einsum("bhts,bhsd->bhtd"), _all(1, 12, 384, 64), "float64", 1),
    "result transposed, 384": AttentionForm(_einsum("bhts,bhsd->bhdt"), _all(1, 12, 384, 64), heads=1),
}


def measure(form: AttentionForm, threads: int, rounds: int, seed: int = 0) -> dict[str, float]:
    """Medians in microseconds by name, and the largest error relative to the largest value.

    Raises:
        AssertionError: the form is not one region.
    """
    rng = np.random.default_rng(seed)
    with jax.enable_x64(form.dtype == "float64"):
        given = [np.asarray(rng.standard_normal(s), jax.numpy.dtype(form.dtype)) for s in form.shapes]
        imported = import_function(form.fn, given, {})
        (region,) = partition(imported.graph)
        assert is_chained(region)
        jitted = jax.jit(form.fn)
        device = [jax.numpy.asarray(x) for x in given]
        expected = np.asarray(jitted(*device), np.float64)
        arrays = dict(zip(imported.names, given, strict=True))
        ours, direct = kernel_calls(default(from_graph(imported.graph.outputs), threads=threads), arrays, threads)
        error = float(np.abs(np.asarray(ours()[0], np.float64) - expected).max() / np.abs(expected).max())
        calls: dict[str, Thunk] = {
            "ours": ours,
            "direct": direct,
            "XLA": lambda: jax.block_until_ready(jitted(*device)),
            "PyTorch": _torch(form, given, threads),
        }
        samples = interleaved(list(calls.values()), rounds=rounds, sample_s=0.02, seed=seed, settle=threads > 1)
    return {name: 1e6 * median(x) for name, x in zip(calls, samples, strict=True)} | {"error": error}


def _torch(form: AttentionForm, given: Sequence[np.ndarray], threads: int) -> Thunk:
    import torch  # late: an optional peer  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    made = [torch.tensor(x.astype(np.float64)).to(getattr(torch, form.dtype)) for x in given]
    q, k, v = (x.transpose(1, form.heads) if form.heads != 1 else x for x in made)
    shared = q.shape[1] != k.shape[1]
    attention = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        with torch.no_grad():
            return attention(q, k, v, is_causal=form.causal, enable_gqa=shared)

    return call


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m superopt.lab.bench.attention")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("forms", nargs="*", help="all when none is named")
    options = parser.parse_args(argv)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])  # before jax makes its pool
    print("| form | threads | one kernel | called directly | XLA | PyTorch | error against XLA |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.forms or FORMS:
        figures = measure(FORMS[name], options.threads, options.rounds)
        times = " | ".join(f"{figures[k]:.0f}" for k in ("ours", "direct", "XLA", "PyTorch"))
        print(f"| {name} | {options.threads} | {times} | {figures['error']:.1e} |", flush=True)


if __name__ == "__main__":
    main()
