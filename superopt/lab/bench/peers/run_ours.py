"""A model under superopt: `python -m superopt.lab.bench.peers.run_ours MODEL INPUTS BUDGET SEED [--no-search]`."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import numpy as np

from superopt.lab.bench import NO_SEARCH
from superopt.lab.bench.peers.serve import inputs_of, serve
from superopt.pipeline.optimizer import optimize


def main() -> None:
    """Optimise, then answer requests."""
    path, inputs, budget, seed = sys.argv[1:5]
    given = list(inputs_of(inputs).values())
    begin = time.perf_counter()
    made = optimize(path, *given, budget=budget, seed=int(seed), search=NO_SEARCH not in sys.argv, store=False)
    seconds = time.perf_counter() - begin
    arrays = [jax.numpy.asarray(x) for x in given]

    def call() -> Any:
        return jax.block_until_ready(made(*arrays))

    about = {
        "version": jax.__version__,
        "build_s": seconds,
        "verdict": made.report.verdict,
        "stages": {stage.name: round(stage.seconds, 2) for stage in made.report.stages},
    }
    serve(call, lambda: [np.asarray(x) for x in call()], about)


if __name__ == "__main__":
    main()
