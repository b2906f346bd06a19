"""Times of the forms that single rules make of a program: as predicted, their kernels alone, and whole.

python -m superopt.lab.training.between resnet50 conv-winograd-four conv-winograd-square    milliseconds, own form first

Kernels are timed with weights as cold as in the program; `boundary` is their predicted time together in a program.
Nothing is searched, and the timings correct no prediction.
"""

from __future__ import annotations

import argparse

from costmodel.model.joint import Joint
from costmodel.model.load import load_objective
from rewrites.build.expander import library_expander
from superopt.backends.native import Native
from superopt.candidates.candidate import Candidate, original_candidate
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.counters import boundary_bytes
from superopt.ir.program import frozen_bytes
from superopt.kernels.choose.specs import NATIVE, regions_of
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.training.rewritten import forms
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import TrialPool
from superopt.measure import ComparisonSettings, KernelTiming, Timing, compare, time_kernels
from superopt.measure.kernels import KernelSettings
from superopt.workshop.process import Worker

_SETTINGS = ComparisonSettings(rounds=15, min_time_s=0.05)


def main() -> None:
    """Print one line for each form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("rules", nargs="+")
    asked = parser.parse_args()
    net, rules = build_case(asked.case, 0), proved_library(None).rules
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    graph, weights = imported.graph, frozen_bytes(imported.graph)
    made = {"own form": in_regions("own form", own_form(graph))}
    made |= {rule: form for rule, form in forms(graph, rules) if rule in asked.rules}
    native = Native()
    model = Joint(load_objective(), library_expander(rules), native, weights)
    with TrialPool(backend=native) as pool, Worker() as worker:
        maker = KernelMaker(pool)
        made = {name: maker.make(form) for name, form in made.items()}
        comparison = compare(
            original_candidate(graph, closed=imported.closes_over),
            list(made.values()),
            imported.live_values, imported.frozen_values, _SETTINGS, worker=worker,
        )  # fmt: skip
        every = list(dict.fromkeys(region.graph for form in made.values() for region in form.regions))
        timings = time_kernels(
            every, settings=KernelSettings(footprint=weights), worker=worker, backends=[NATIVE] * len(every)
        )
    alone = {g: t.seconds for g, t in zip(every, timings, strict=True) if isinstance(t, KernelTiming)}
    for (name, form), whole in zip(made.items(), comparison.candidates, strict=True):
        regions = [region.graph for region in regions_of(form.program.hot, form.kernels)]
        if not isinstance(whole, Timing) or not alone.keys() >= set(regions):
            print(f"{name}: not all of it was timed", flush=True)
            continue
        kernels_s, moved = sum(alone[g] for g in regions), sum(sum(boundary_bytes(g)) for g in regions)
        samples, told_s = sorted(whole.samples_s), float(native.boundary.seconds(kernels_s, moved))
        print(
            f"{name}: {len(regions)} kernels, {1e-6 * moved:.0f} MB read and written, "
            f"predicted {_ms(_predicted_s(model, form))}, kernels alone {_ms(kernels_s)}, "
            f"boundary {_ms(told_s)}, whole {_ms(samples[len(samples) // 4])} ms",
            flush=True,
        )


def _predicted_s(model: Joint, form: Candidate) -> float:
    return model.program_s(form.runs, set(form.runs))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


if __name__ == "__main__":
    main()
