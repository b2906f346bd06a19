"""The kernels of programs of the native suite, each with its default schedule, as validation sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from superopt.backends.native import Native
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.lab.bench.programs.programs import build_case
from superopt.make.plain import in_regions, own_form


def kernels_of(case: str) -> Iterator[dict[str, Any]]:
    """Results for each distinct region of a program that can be a kernel: region, status, cause, seconds."""
    net = build_case(case, 0)
    graph = import_function(net.fn, (net.params, *net.inputs), frozen=(0,)).graph
    regions = {r.graph: str(r) for r in in_regions(case, own_form(graph)).regions if Native().can_run(r.graph)}
    for region, name in regions.items():
        try:
            verdict = Native().validate(region)
        except InputError:  # no schedule has code: it is no kernel
            continue
        yield {"region": name, "status": verdict.status, "cause": verdict.cause, "seconds": round(verdict.seconds, 3)}
