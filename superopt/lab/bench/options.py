"""The survey of compiler options: kernels and small networks under every option that might change their speed.

Each program is compiled once with the default options and once with each set; all are timed interleaved.  `changed`
counts the programs whose optimised HLO differs from the default's; a set that changes none acts on machine code or not
at all.  The sets that `superopt.backends.options` offers come first; the others show why it offers no more.

    superopt bench --suite options [--json]
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.backends.options import CHOICES, LIBRARY, Options, accepted, options_of
from superopt.lab.bench import Result, Say, geomean, table, wanted
from superopt.machine.budget import parse_budget
from superopt.measure import loop
from superopt.measure.stats import paired_ratio

_AGAIN = "default again"
_ROUNDS = 15
_SAMPLE_S = 0.004
_MOST_CALLS = 300
OptionProgram = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


def _library(*kinds: str) -> dict[str, bool | str]:
    return {LIBRARY: ",".join(f"LIBRARY_FUSION_TYPE_{kind}" for kind in kinds)}


SETS: dict[str, Options] = {
    **{choice.name: options_of([choice]) for choice in CHOICES},
    "all of these": options_of(CHOICES),
    _AGAIN: {},
    "narrow vectors": {"xla_cpu_prefer_vector_width": "128"},
    "no YNN": {LIBRARY: ""},
    "YNN for products alone": _library("INDIVIDUAL_DOT"),
    "YNN for elementwise work, too": _library("INDIVIDUAL_DOT", "REDUCE", "INDIVIDUAL_CONVOLUTION", "ELTWISE"),
    "fused products": _library("DOT", "REDUCE", "INDIVIDUAL_CONVOLUTION"),
    "scheduled for concurrency": {"xla_cpu_enable_concurrency_optimized_scheduler": True},
    "scheduled for memory": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
    "preset of fast running": {"xla_cpu_opt_preset": "CPU_OPT_PRESET_FAST_RUNTIME"},
    "one unit of code": {"xla_cpu_parallel_codegen_split_count": "1"},
    "oneDNN": {"xla_cpu_use_onednn": True, "xla_cpu_experimental_onednn_custom_call": True},
    "XNNPACK": {"xla_cpu_use_xnnpack": True},
    "XNNPACK graphs": {"xla_cpu_experimental_xnn_graph_fusion_mode": "XNN_GRAPH_FUSION_MODE_GREEDY"},
    "Eigen on one thread": {"xla_cpu_multi_thread_eigen": False},
    "tiling propagated": {"xla_cpu_experimental_enable_tiling_propagation": True},
    "no expensive passes": {"xla_llvm_disable_expensive_passes": True},
    "LLVM at level 2": {"xla_backend_optimization_level": "2"},
    "no alias scopes": {"xla_llvm_enable_alias_scope_metadata": False},
    "portable mathematics": {"xla_cpu_enable_platform_dependent_math": False},
    "copies by region analysis": {"xla_cpu_copy_insertion_use_region_analysis": True},
}


def _conv(x: jax.Array, k: jax.Array, stride: int = 1, layout: str = "NHWC") -> jax.Array:
    kernel = "HWIO" if layout == "NHWC" else "OIHW"
    return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=(layout, kernel, layout))


def _pool(x: jax.Array, layout: str = "NHWC") -> jax.Array:
    window, stride = ((1, 3, 3, 1), (1, 2, 2, 1)) if layout == "NHWC" else ((1, 1, 3, 3), (1, 1, 2, 2))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "SAME")


def _normalised(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _shifted(x: jax.Array, w: jax.Array) -> jax.Array:
    """A depthwise 3x3 convolution as nine shifted products."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, height, width, _ = x.shape
    total = jnp.zeros_like(x)
    for i in range(3):
        for j in range(3):
            total += padded[:, i : i + height, j : j + width] * w[i, j]
    return total


def _mlp(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return jax.nn.relu(jax.nn.relu(x @ a) @ b) @ c


def _net(layout: str) -> Callable[..., jax.Array]:
    space = (1, 2) if layout == "NHWC" else (2, 3)

    def run(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, w: jax.Array) -> jax.Array:
        x = _pool(jax.nn.relu(_conv(x, a, 2, layout)), layout)
        x = jax.nn.relu(_conv(x, b, 1, layout))
        x = x + jax.nn.relu(_conv(x, c, 1, layout))
        return jax.nn.softmax(x.mean(space) @ w)

    return run


def _attention(x: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array, wo: jax.Array) -> jax.Array:
    rows, width = x.shape
    q, k, v = ((0.05 * x @ w).reshape(rows, 6, width // 6).transpose(1, 0, 2) for w in (wq, wk, wv))
    mixed = jax.nn.softmax(q @ k.transpose(0, 2, 1)) @ v
    return _normalised(x + mixed.transpose(1, 0, 2).reshape(rows, width) @ wo)


PROGRAMS: dict[str, OptionProgram] = {
    "elementwise chain": (lambda x, y: jnp.tanh(x * y + 1) * jax.nn.sigmoid(y) - x, ((512, 1024), (512, 1024))),
    "scaled sum": (lambda x, y: 2 * x + jnp.maximum(y, 0), ((1024, 1024), (1024, 1024))),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), ((96, 2048),)),
    "softmax": (jax.nn.softmax, ((8, 96, 96),)),
    "layer norm": (_normalised, ((96, 640),)),
    "nine shifted products": (_shifted, ((1, 56, 56, 48), (3, 3, 48))),
    "max pool": (_pool, ((1, 80, 80, 48),)),
    "average pool": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9,
        ((1, 80, 80, 48),),
    ),
    "concatenation and relu": (
        lambda x, y: jax.nn.relu(jnp.concatenate([2 * x, y + 1], -1)),
        ((1, 40, 40, 64), (1, 40, 40, 64)),
    ),
    "transposed sum": (lambda x, y: x.transpose(0, 3, 1, 2) + y, ((1, 40, 40, 64), (1, 64, 40, 40))),
    "sums of rows": (lambda x: x.sum(1), ((1024, 700),)),
    "sums of products": (lambda x, y: (x * y).sum(-1), ((600, 800), (600, 800))),
    "means of channels": (lambda x: x.mean((1, 2)), ((1, 40, 40, 160),)),
    "product 96x640x640": (jnp.matmul, ((96, 640), (640, 640))),
    "product 700^3": (jnp.matmul, ((700, 700), (700, 700))),
    "product, bias, relu": (lambda a, b, c: jax.nn.relu(a @ b + c), ((784, 160), (160, 96), (96,))),
    "row times matrix": (jnp.matmul, ((1, 900), (900, 900))),
    "recurrent step": (lambda x, h, w, u: jnp.tanh(x @ w + h @ u), ((1, 256), (1, 256), (256, 256), (256, 256))),
    "3x3 NHWC, 40x40x48": (_conv, ((1, 40, 40, 48), (3, 3, 48, 48))),
    "3x3 NHWC, 14x14x192": (_conv, ((1, 14, 14, 192), (3, 3, 192, 192))),
    "3x3 NCHW, 40x40x48": (lambda x, k: _conv(x, k, 1, "NCHW"), ((1, 48, 40, 40), (48, 48, 3, 3))),
    "7x7/2 NCHW, 160x160x3": (lambda x, k: _conv(x, k, 2, "NCHW"), ((1, 3, 160, 160), (48, 3, 7, 7))),
    "1x1 NHWC, 40x40x96": (_conv, ((1, 40, 40, 96), (1, 1, 96, 160))),
    "MLP, 1 row": (_mlp, ((1, 512), (512, 1024), (1024, 1024), (1024, 96))),
    "MLP, 64 rows": (_mlp, ((64, 512), (512, 1024), (1024, 1024), (1024, 96))),
    "small network NHWC": (_net("NHWC"), ((1, 96, 96, 3), (5, 5, 3, 40), (3, 3, 40, 40), (3, 3, 40, 40), (40, 100))),
    "small network NCHW": (_net("NCHW"), ((1, 3, 96, 96), (40, 3, 5, 5), (40, 40, 3, 3), (40, 40, 3, 3), (40, 100))),
    "attention, 96 rows": (_attention, ((96, 384), (384, 384), (384, 384), (384, 384), (384, 384))),
}


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Time every set of options on every program; `cases` selects programs, the budget bounds each of them."""
    seconds = parse_budget(budget).seconds or math.inf
    known = {name: accepted(options) for name, options in SETS.items()}
    for name, (_, refused) in known.items():
        if refused:
            say(f"{name}: {'; '.join(refused.values())}")
    usable: dict[str, Options] = {name: options for name, (options, refused) in known.items() if not refused}
    rows: list[dict[str, Any]] = []
    for program, (fn, shapes) in PROGRAMS.items():
        if not wanted(program, cases):
            continue
        rows.append({"program": program, **_measured(fn, shapes, usable, seconds, seed)})
        say(f"{program}: {rows[-1]['default_us']:.0f} us")
    offered = [name for name in list(SETS)[: len(CHOICES) + 1] if name in usable]
    by_program = [
        {"program": row["program"], "default_us": row["default_us"], **{n: row["sets"][n]["ratio"] for n in offered}}
        for row in rows
    ]
    by_set = [_over_programs(name, rows) for name in usable] if rows else []
    columns = [("program", "program", ""), ("default_us", "default us", ".0f"), *((n, n, ".2f") for n in offered)]
    text = table(by_program, columns) + "\n\n" + table(by_set, _SET_COLUMNS)
    summary = {"programs": float(len(rows)), "sets": float(len(usable))}
    summary |= {f"geomean {row['set']}": row["geomean"] for row in by_set if row["set"] in offered}
    return rows, summary, text


_SET_COLUMNS = (
    ("set", "options", ""),
    ("changed", "HLO changed", "d"),
    ("geomean", "geometric mean", ".3f"),
    ("best", "best", ".2f"),
    ("best_program", "on", ""),
    ("worst", "worst", ".2f"),
    ("worst_program", "on", ""),
    ("difference", "largest difference", ".0e"),
    ("compile", "compile time", ".2f"),
)


def _measured(
    fn: Callable[..., Any], shapes: Sequence[tuple[int, ...]], sets: dict[str, Options], seconds: float, seed: int
) -> dict[str, Any]:
    """One program under every set: ratios over the default options, differences of the results, compile times."""
    rng = np.random.default_rng(seed)
    args = [jnp.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]
    lowered = jax.jit(fn).lower(*args)
    calls: dict[str, Any] = {}
    compile_s: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, options in {"": {}, **sets}.items():
        begin = time.perf_counter()
        calls[name] = lowered.compile(dict(options) or None)
        compile_s[name] = time.perf_counter() - begin
        texts[name] = calls[name].as_text().partition("\n")[2]
    want = np.asarray(calls[""](*args), np.float64)
    thunks = {name: _thunk(call, args) for name, call in calls.items()}
    count = min(_MOST_CALLS, loop.calls_for(thunks[""], _SAMPLE_S))
    samples: dict[str, list[float]] = {name: [] for name in thunks}
    order, begin, shuffle = list(thunks), time.perf_counter(), random.Random(seed)
    for _ in range(_ROUNDS):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(loop.seconds_of(thunks[name], count))
        if time.perf_counter() - begin > seconds:
            break
    figures: dict[str, dict[str, Any]] = {}
    for name in sets:
        ratio = paired_ratio(samples[""], samples[name], seed=seed)
        got = np.asarray(calls[name](*args), np.float64)
        figures[name] = {
            "ratio": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "difference": float(np.abs(got - want).max() / np.abs(want).max()),
            "compile": compile_s[name] / compile_s[""],
            "changed": texts[name] != texts[""],
        }
    return {"default_us": 1e6 * float(np.median(samples[""])), "compile_s": compile_s[""], "sets": figures}


def _thunk(call: Any, args: Sequence[Any]) -> loop.Thunk:
    return lambda: jax.block_until_ready(call(*args))


def _over_programs(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    figures = {row["program"]: row["sets"][name] for row in rows}
    ratios = {program: f["ratio"] for program, f in figures.items()}
    best, worst = max(ratios, key=lambda p: ratios[p]), min(ratios, key=lambda p: ratios[p])
    return {
        "set": name,
        "changed": sum(f["changed"] for f in figures.values()),
        "geomean": geomean(list(ratios.values())),
        "best": ratios[best],
        "best_program": best,
        "worst": ratios[worst],
        "worst_program": worst,
        "difference": max(f["difference"] for f in figures.values()),
        "compile": math.exp(sum(math.log(f["compile"]) for f in figures.values()) / len(figures))
        if SETS[name]
        else None,
    }
