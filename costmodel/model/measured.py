"""An objective that learns from kernels measured during the search.

Kernels that were timed keep their measured seconds.  Others are priced by the base model times a factor of their kind
(op, layout, grouping).  The factor is the mean of log(measured / predicted) over the timed kernels of that kind.  It is
shrunken towards the mean of all kinds, which is how the machine differs from that of the labels.

    own of a kind = sum of its log ratios / (n + 2).
    common        = sum of the own of all kinds / (kinds + 2).
    factor        = exp(own + common * 2 / (n + 2)),  kept within [1/4, 4].

So a handful of timings corrects the base model's errors on this program and machine.  A kernel that the model
underrates is chosen, timed and corrected, which is how a search with few measurements explores.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from costmodel.arrays import KernelMask, PerKernel
from costmodel.model.objective import Objective, outside_of, uncertainty_of
from rewrites.build.expander import Expand, expand_graph
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS

_PRIOR = 2.0  # timings that say nothing: a first kernel may be a disturbed one, and its kind has others
_BOUND = math.log(4.0)  # processors without AVX-512 take 1.5 to 2 times as long as the labels (docs/costmodel.md)
_HEAVY = ("macro", *sorted(CONVOLUTIONS), *sorted(PRODUCTS), "concatenate", "gather")


class Measured:
    """A base objective corrected by timings."""

    def __init__(self, base: Objective, expand: Expand) -> None:
        self.base = base
        self.expand = expand
        self.name = f"{base.name}, corrected by timed kernels"
        self.version = base.version
        self.seconds: dict[Node, float] = {}
        self._logs: dict[str, dict[Node, float]] = defaultdict(dict)
        self._plain: weakref.WeakKeyDictionary[Node, Graph] = weakref.WeakKeyDictionary()

    def __contains__(self, kernel: Graph) -> bool:
        return kernel.outputs[0] in self.seconds

    def learn(self, kernels: Sequence[Graph], seconds: Sequence[float]) -> None:
        """Record timings of kernels; the last timing of a kernel counts."""
        predicted = self._guess(kernels)
        for kernel, took, guess in zip(kernels, seconds, predicted, strict=True):
            output = kernel.outputs[0]
            self.seconds[output] = took
            self._logs[kind(kernel)][output] = math.log(max(took, 1e-7) / max(float(guess), 1e-7))

    def factors(self) -> Mapping[str, float]:
        """Return, by kind, the factor that predictions of that kind are multiplied with."""
        common = self._common()
        return {name: _factor(logs.values(), common) for name, logs in sorted(self._logs.items())}

    def _common(self) -> float:
        return _shrunken([_shrunken(logs.values()) for logs in self._logs.values()])

    def errors(self) -> list[float]:
        """Return the base model's error on each timed kernel, as a factor of at least 1, smallest first."""
        return sorted(math.exp(abs(x)) for logs in self._logs.values() for x in logs.values())

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel takes inside a program."""
        guesses = self._guess(kernels)
        common = self._common()
        for i, kernel in enumerate(kernels):
            known = self.seconds.get(kernel.outputs[0])
            logs = self._logs.get(kind(kernel), {}).values()
            guesses[i] = guesses[i] * _factor(logs, common) if known is None else known
        return guesses

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price: 0 for timed kernels."""
        known = [kernel in self for kernel in kernels]
        return np.where(known, 0.0, uncertainty_of(self.base, [self._expanded(kernel) for kernel in kernels]))

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Return whether each kernel is outside the training domain of the base."""
        return outside_of(self.base, [self._expanded(kernel) for kernel in kernels])

    def predicted(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the predicted seconds of each kernel; for a timed one, the base model's prediction."""
        return np.where([kernel in self for kernel in kernels], self._guess(kernels), self.price(kernels))

    def _guess(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the prices of the base model; macros are priced as their expansion, since that is what runs."""
        return np.array(self.base.price([self._expanded(kernel) for kernel in kernels]), dtype=np.float64)

    def _expanded(self, kernel: Graph) -> Graph:
        output = kernel.outputs[0]
        expanded = self._plain.get(output)
        if expanded is None:
            expanded = self._plain[output] = expand_graph(kernel, self.expand)
        return expanded


def _shrunken(logs: Collection[float]) -> float:
    return sum(logs) / (len(logs) + _PRIOR)


def _factor(logs: Collection[float], common: float) -> float:
    mean = _shrunken(logs) + common * _PRIOR / (len(logs) + _PRIOR)
    return math.exp(max(-_BOUND, min(_BOUND, mean)))


def kind(kernel: Graph) -> str:
    """Return the kind of a kernel for a common correction: its heaviest op, layout and grouping."""
    nodes = topological(kernel.outputs)
    by_op = {node.op: node for node in nodes}
    for op in _HEAVY:
        node = by_op.get(op)
        if node is None:
            continue
        if op == "macro":
            return f"macro {node['rule']}"
        if op in CONVOLUTIONS:
            return _conv_kind(node)
        if op in PRODUCTS:
            _, (batch, _) = node["dimension_numbers"]
            return "dot batched" if batch else "dot"
        return op
    windows = sorted(op for op in by_op if op.startswith("reduce_window"))
    reductions = sorted(op for op in by_op if op.startswith("reduce_") and op not in windows)
    cumulative = sorted(op for op in by_op if op.startswith("cum"))
    for name in (*windows, *cumulative, *reductions):
        return name
    return "transpose" if "transpose" in by_op else "loop"


def _conv_kind(node: Node) -> str:
    _, _, out = node["dimension_numbers"]
    last = "channels last" if out[1] == len(out) - 1 else "channels first"
    return f"conv {last}{' grouped' if node['feature_group_count'] > 1 else ''}"
