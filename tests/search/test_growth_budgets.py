"""Growth of real networks: the whole library saturates, in few e-nodes and without cyclic components.

`test_egraph_sound.py` has the networks written in JAX; these are the ONNX networks of the benchmark, and a ResNeXt
stage, whose grouped convolutions have the most forms.
"""

from __future__ import annotations

import pytest

from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph
from rewrites.grow.growth import GrowthReport, grow
from rewrites.library import load
from superopt.ir.graph import Node, literal, mk
from superopt.machine.deadline import Deadline
from tests.support.rules_numeric import egraph, frozen_conv, spread, var

BUDGETS = {
    "squeezenet": 500,
    "shufflenet": 2_800,
    "inception_v1": 1_300,
    "resnet50": 2_600,
    "densenet121": 10_000,
}


def grown(eg: EGraph) -> GrowthReport:
    report = grow(eg, load(), deadline=Deadline.within(120.0))
    assert report.stop == "saturated"
    assert report.components == 0, "every selection is acyclic"
    assert report.class_caps == 0
    for name, counts in report.rules.items():
        assert not counts.errors, name
        assert not counts.capped, name
    return report


WHOLE = ("shufflenet", "resnet50", "densenet121")  # of the rest the normal suite is content


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in WHOLE else n for n in BUDGETS])
def test_onnx_networks_saturate_within_their_budgets(name: str) -> None:
    from superopt.frontends.onnx.frontend import import_model
    from superopt.frontends.onnx.model import load_model
    from superopt.frontends.onnx.weights import light_model_path

    graph = import_model(load_model(light_model_path(name))).graph
    assert grown(import_graph(graph)).enodes[-1] <= BUDGETS[name]


def test_grouped_convolutions_in_a_row_saturate() -> None:
    """Merged groups are grouped convolutions again: merging must not go on."""
    y: Node = var("x", 1, 128, 6, 6)
    for i in range(3):
        y = frozen_conv(y, f"w{i}", 128, groups=32)
        y = mk("max", y, spread(literal(0.0, "float64"), y.shape))
    eg = egraph(y)
    before = eg.enode_count
    assert grown(eg).enodes[-1] - before <= 3 * 170
