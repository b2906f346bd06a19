"""Make the prior that guides a search before it has measured anything (`prior.json`).

    python -m superopt.lab.training.schedules collect timings.jsonl [SECONDS]     searches every training operator
    python -m superopt.lab.training.schedules check timings.jsonl                 each operator by the others' prior
    python -m superopt.lab.training.schedules fit timings.jsonl                   writes prior.json

The training operators share no shape with the suites `kernels` and `schedules`, which compare what searches find.
`collect` appends a line per candidate: operator, features, seconds.  The prior maximises the marginal likelihood of the
timings, summed over operators, each with a constant of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from superopt.schedules.features import NAMES
from superopt.schedules.model import PRIOR, Prior, Rows, forecast
from superopt.schedules.tune import ScheduleSearch, tune
from superopt.schedules.workload import workload

OPERATORS = (
    "dot f32 72x200x312",
    "dot f32 150x450x900",
    "dot f32 500x330x160",
    "dot f32 40x1300x700",
    "dot f32 1x900x1700",
    "dot f32 7x600x1100",
    "dot f32 260x96x1500",
    "dot s8 90x300x700",
    "dot s8 330x200x260",
    "dot bf16 110x380x420",
    "conv f32 22x22x80 3x3x112",
    "conv f32 34x34x40 3x3x72 stride 2",
    "conv f32 11x11x200 3x3x176",
    "conv f32 48x48x24 1x1x136",
    "conv f32 26x26x36 5x5x44",
    "conv f32 60x60x5 7x7x40 stride 2",
    "conv f32 44x44x72 3x3x72 groups 72",
    "conv f32 18x18x240 5x5x240 groups 240",
    "softmax f32 410x730",
    "softmax f32 90x2100",
    "layer_norm f32 520x410",
    "gelu f32 230x810",
    "sum f32 600x450",
    "transpose f32 440x520",
)
HIDDEN, STEPS, RATE, MOST = 16, 400, 0.02, 64
_FIRST_LENGTH = 4.0
_WORDS = ("operator", "correlation")


def collect(path: Path, seconds: float) -> None:
    """Append the candidates of a search of every training operator."""
    for number, operator in enumerate(OPERATORS):
        found = tune(workload(operator), ScheduleSearch(seconds, seed=number, strategy="evolutionary"))
        with path.open("a", encoding="utf-8") as out:
            for c in found.history:
                x = [round(float(v), 5) for v in c.x]
                out.write(json.dumps({"operator": operator, "x": x, "seconds": c.seconds}) + "\n")
        print(f"{operator}: {found.candidates} candidates, {found.candidates_per_s:.1f} a second", flush=True)


def timings(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features and log2 seconds by operator."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["operator"], []).append(row)
    return {
        name: (np.asarray([r["x"] for r in rows]), np.log2([r["seconds"] for r in rows]))
        for name, rows in found.items()
        if len(rows) > 1
    }


def plain(x: np.ndarray) -> Prior:
    """A prior that knows nothing but the spread of the features."""
    n = x.shape[1]
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((n, HIDDEN)) / np.sqrt(n), np.zeros(HIDDEN), np.zeros(HIDDEN))
    scale = np.maximum(x.std(0), 0.05)
    return Prior(x.mean(0), scale, np.full(n, _FIRST_LENGTH), 0.5, 0.05, 0.3, weights)


def fitted(operators: Sequence[tuple[np.ndarray, np.ndarray]]) -> Prior:
    """The prior of most marginal likelihood for the timings of some operators."""
    first = plain(np.concatenate([x for x, _ in operators]))
    rng = np.random.default_rng(0)
    shape = (len(operators), MOST)
    xs, ys, there = np.zeros((*shape, len(NAMES))), np.zeros(shape), np.zeros(shape)
    for k, (x, y) in enumerate(operators):
        kept = rng.permutation(len(y))[:MOST]
        xs[k, : len(kept)] = (x[kept] - first.centre) / first.scale
        ys[k, : len(kept)] = y[kept] - y[kept].mean()
        there[k, : len(kept)] = 1

    def loss(values: Any) -> Any:
        lengths, amplitude, noise = jnp.exp(values["lengths"]), jnp.exp(values["amplitude"]), jnp.exp(values["noise"])

        def one(x: Any, y: Any, here: Any) -> Any:
            mean = jnp.tanh(x @ values["w"] + values["b"]) @ values["v"]
            a = x / lengths
            squares = (a * a).sum(1)[:, None] + (a * a).sum(1)[None] - 2 * a @ a.T
            r = jnp.sqrt(5 * jnp.maximum(squares, 0) + 1e-9)
            k = amplitude**2 * (1 + r + r * r / 3) * jnp.exp(-r) + 4.0  # 4: the operator's own constant
            k = k * here[:, None] * here[None] + jnp.diag(jnp.where(here > 0, noise**2, 1.0))
            factor = jnp.linalg.cholesky(k)
            rest = jax.scipy.linalg.solve_triangular(factor, (y - mean) * here, lower=True)
            return 0.5 * (rest * rest).sum() + jnp.log(jnp.diagonal(factor)).sum()

        total = jax.vmap(one)(xs, ys, there).sum()
        away = ((values["lengths"] - np.log(_FIRST_LENGTH)) ** 2).sum()
        return total + 0.5 * away + 2.0 * (values["w"] ** 2).sum() + 2.0 * (values["v"] ** 2).sum()

    w, b, v = first.weights
    start = {"w": w, "b": b, "v": v, "lengths": np.log(first.lengths), "amplitude": np.log(0.5), "noise": np.log(0.05)}
    with jax.enable_x64(True):
        optimiser = optax.adam(RATE)

        def step(state: Any, _: Any) -> tuple[Any, Any]:
            values, moments = state
            cost, gradient = jax.value_and_grad(loss)(values)
            updates, moments = optimiser.update(gradient, moments)
            return (optax.apply_updates(values, updates), moments), cost

        start = jax.tree.map(jnp.asarray, start)
        run = jax.jit(lambda s: jax.lax.scan(step, (s, optimiser.init(s)), None, length=STEPS))
        (values, _), _ = run(start)
    found = {name: np.asarray(value) for name, value in values.items()}
    return replace(
        first, lengths=np.exp(found["lengths"]), amplitude=float(np.exp(found["amplitude"])),
        noise=float(np.exp(found["noise"])), weights=(found["w"], found["b"], found["v"]),
    )  # fmt: skip


def check(operators: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    """Every operator by the prior of all others.

    Returns:
        Per operator the correlation of the network with the log times, and how many candidates it takes, out of those
        that were timed, four at a time and beginning with a middling one, to come to one within five percent of the
        fastest: by the prior of the others, by that without its network, by both with some of the others' timings, by
        a plain prior, and by chance.
    """
    rows: list[dict[str, Any]] = []
    for name, (x, y) in operators.items():
        others = {k: v for k, v in operators.items() if k != name}
        known, nothing = fitted(list(others.values())), plain(np.concatenate([v[0] for v in others.values()]))
        flat = replace(known, weights=(*known.weights[:2], 0 * known.weights[2]))
        alike = [k for k in others if k.split()[0] == name.split()[0]]
        earlier, none = Rows.empty(), Rows.empty()
        for k in (alike or list(others))[:8]:
            a, b = others[k]
            kept = np.argsort(b)[:20].tolist() + np.argsort(b)[20::3][:20].tolist()
            earlier = earlier.join(Rows(a[kept], b[kept], np.zeros(len(kept), np.int32)))
        good = int((y <= y.min() + np.log2(1.05)).sum())
        rows.append(
            {
                "operator": name,
                "correlation": float(np.corrcoef(known.mean(x), y)[0, 1]),
                "prior": _until(x, y, known, none),
                "prior_stored": _until(x, y, known, earlier),
                "flat": _until(x, y, flat, none),
                "flat_stored": _until(x, y, flat, earlier),
                "plain": _until(x, y, nothing, none),
                "chance": (len(y) + 1) / (good + 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _until(x: np.ndarray, y: np.ndarray, known: Prior, earlier: Rows, spread: float = 0.5) -> float:
    """Candidates measured until one is within five percent of the fastest of a list, geometric mean of four starts."""
    counts: list[int] = []
    for start in np.argsort(y)[[len(y) // 2, 3 * len(y) // 5, 7 * len(y) // 10, 4 * len(y) // 5]]:
        measured, left = [int(start)], [i for i in range(len(y)) if i != start]
        while min(y[measured]) > y.min() + np.log2(1.05):
            own = Rows(x[measured], y[measured], np.zeros(len(measured), np.int32))
            for i in sorted(forecast(x[left], own, earlier, known).batch(4, spread), reverse=True):
                measured.append(left.pop(i))
        counts.append(next(k for k, i in enumerate(measured) if y[i] <= y.min() + np.log2(1.05)))
    return float(np.exp(np.mean(np.log(np.maximum(counts, 1)))))


def main(arguments: Sequence[str]) -> None:
    """Run a command of the module."""
    command, path = arguments[0], Path(arguments[1])
    if command == "collect":
        collect(path, float(arguments[2]) if len(arguments) > 2 else 7.0)
    elif command == "check":
        rows = check(timings(path))
        counts = {
            key: round(float(np.exp(np.mean([np.log(row[key]) for row in rows]))), 2)
            for key in rows[0]
            if key not in _WORDS
        }
        print({"correlation": round(float(np.mean([row["correlation"] for row in rows])), 2), **counts})
    else:
        assert command == "fit", f"no command {command!r}: collect, check or fit"
        known = fitted(list(timings(path).values()))
        PRIOR.write_text(json.dumps(known.to_json()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
