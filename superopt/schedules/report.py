"""Report of a schedule search: speed, share of the machine's peak, and XLA's time for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.backends.xla import needs_x64, to_jax
from superopt.errors import InputError, UsageError
from superopt.ir.counters import graph_cost
from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.llvm.cpu import host
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.measure import loop
from superopt.measure.rates import measured
from superopt.measure.stats import paired_ratio
from superopt.schedules.candidates import example_arrays
from superopt.schedules.native import kernel_calls
from superopt.schedules.tune import ScheduleSearch, builders, tune
from superopt.schedules.workload import workload
from superopt.store import Store
from superopt.workshop.scheduler import LOCAL, Executor, Workers

_ROUNDS, _SAMPLE_S = 15, 5e-3  # each kernel is timed for 75 ms in all, the median of which is told


def tune_and_compare(
    operator: str,
    how: ScheduleSearch,
    *,
    keep: bool,
    say: Callable[[str], None],
    executor: Executor = LOCAL,
) -> dict[str, Any]:
    """Tune an operator given by name and time the winner against XLA, interleaved, in fresh rounds.

    Args:
        operator: name of the operator, as `workload` takes it.
        how: settings of the search; with 0 workers, as many as there are cores, at most 4.
        keep: learn from earlier searches and keep this one's timings.
        say: called with a line per round.
        executor: source of the workers.

    Raises:
        UsageError: the operator is not understood, or more threads are asked for than there are cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= how.threads <= len(cores):
        raise UsageError(f"{how.threads} threads on {len(cores)} cores")
    graph = workload(operator)
    how = replace(how, workers=how.workers or min(4, len(cores)))
    with ExitStack() as stack:
        processes = [stack.enter_context(worker) for worker in builders(Workers(how.workers, executor))]
        tuned = tune(graph, how, processes=processes, store=Store() if keep else None, say=say)
    return {
        "operator": operator,
        "threads": how.threads,
        **_against_xla(graph, tuned.trace, how.threads, how.seed),
        "over_default": tuned.default_seconds / tuned.seconds,
        "candidates": tuned.candidates,
        "candidates_per_s": tuned.candidates_per_s,
        "compile_ms": tuned.compile_ms,
        "space": float(tuned.space_size),
        "trace": tuned.trace,
        "refused": tuned.refused,
    }


def _against_xla(graph: Graph, trace: Any, threads: int, seed: int) -> dict[str, Any]:
    """Time against XLA in a fresh process with as many cores as threads.

    XLA takes all cores that it finds when it starts.
    """
    request = {"graph": print_graph(graph), "trace": trace, "threads": threads, "seed": seed}
    command = [sys.executable, "-P", "-m", "superopt.schedules.report"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"the comparison with XLA ended: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-request["threads"] :])
    print(json.dumps(_compared(parse_graph(request["graph"]), request["trace"], request["threads"], request["seed"])))


def _compared(graph: Graph, trace: Any, threads: int, seed: int) -> dict[str, Any]:
    """Time a schedule beside XLA in interleaved rounds; return both with ratio and share of the peak."""
    import jax  # late: after the affinity is set

    arrays = example_arrays(graph, seed)
    with jax.enable_x64(needs_x64(graph)):
        ours, _ = kernel_calls(apply(from_graph(graph.outputs, name="kernel"), trace), arrays, threads)
        jitted = jax.jit(to_jax(graph))
        operands = [jax.numpy.asarray(arrays[node["name"]]) for node in graph.inputs]
        calls = [ours, lambda: jax.block_until_ready(jitted(*operands))]
        samples = loop.samples(calls, _SAMPLE_S, _ROUNDS, seed)
        peak = 2e-9 * host().lanes("float32") / measured().fma_s
    ratio = paired_ratio(samples[1], samples[0], seed=seed)
    seconds = float(np.median(samples[0]))
    cost = graph_cost(graph)
    gflops = cost.flops / seconds / 1e9
    return {
        "us": 1e6 * seconds,
        "gflops": gflops,
        "peak_gflops": threads * peak,
        "peak_fraction": gflops / (threads * peak),
        "gb_per_s": (cost.read_bytes + cost.write_bytes) / seconds / 1e9,
        "over_xla": ratio.ratio,
        "over_xla_low": ratio.low,
        "over_xla_high": ratio.high,
    }


def tuning_text(result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    compile_ms = f", {result['compile_ms']:.0f} ms to compile one" if result["compile_ms"] else ""
    refused = sorted(result["refused"], key=lambda reason: -result["refused"][reason])
    lines = [
        f"{result['operator']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}",
        f"  time        {result['us']:.4g} us",
        f"  speed       {result['gflops']:.1f} GF/s, {result['peak_fraction']:.0%} of the measured peak"
        f" ({result['peak_gflops']:.0f}); {result['gb_per_s']:.1f} GB/s",
        f"  over XLA    {result['over_xla']:.2f} [{result['over_xla_low']:.2f}, {result['over_xla_high']:.2f}]",
        f"  over the default schedule  {result['over_default']:.2f} (in the search, called directly)",
        f"  searched    {result['candidates']} of {result['space']:.2g} schedules, {result['candidates_per_s']:.1f} a"
        f" second and process{compile_ms}",
        *([f"  refused     {sum(result['refused'].values())}, most often: {refused[0]}"] if refused else []),
        "  schedule",
        *(f"    {step}" for step in result["trace"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
