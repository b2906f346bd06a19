"""An objective that learns from kernels timed on this machine, during the search and in earlier calls.

Kernels that were timed keep their measured seconds.  Others are priced by a line over the base model's price x, times a
factor of their kind (op, layout, grouping):

    seconds = (fixed + rate * x) * factor.

The line goes through all timed kernels: another processor takes longer for a call and for waking threads, whatever the
kernel is, and its rate is another one.  Factors are of the program at hand: the mean of log(measured / line) over the
kernels of a kind that this search has timed, shrunken towards the mean of all kinds.

    own of a kind = sum of its log ratios / (n + 2).
    common        = sum of the own of all kinds / (kinds + 2).
    factor        = exp(own + common * 2 / (n + 2)),  kept within [1/4, 4].

The uncertainty of a price is what timed kernels were off, each left out of its own line, not what members of the model
say of each other.  Off the processor of the labels all of them are wrong alike (`superopt train eval --unseen`).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from costmodel.arrays import KernelMask, PerKernel
from costmodel.model.kept import TimedKernel
from costmodel.model.objective import Objective, outside_of, uncertainty_of
from rewrites.build.expander import Expand, expand_graph
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.ops.table import CONVOLUTIONS, LINEAR, PRODUCTS
from superopt.measure.kernels import MIN_SECONDS

_PRIOR = 2.0  # timings that say nothing: a first kernel may be a disturbed one, and its kind has others
_FIXED_S = 1e-5  # fixed time that is as unlikely as twice the rate: short kernels are off by 2 to 10 us elsewhere
_OUTLIER = 0.5  # relative error from which a timing counts by its size alone: one in twenty is disturbed as much
_PASSES = 12  # of the reweighting; 60 change the error of a line by less than 0.01
_BOUND = math.log(4.0)  # processors without AVX-512 take 1.5 to 2 times as long as the labels (docs/costmodel.md)
_HELD = 0.9  # share of the timed kernels within their intervals: the usual one of such intervals
_HEAVY = ("macro", *sorted(LINEAR), *sorted(CONVOLUTIONS), *sorted(PRODUCTS), "concatenate", "gather")


class Measured:
    """A base objective corrected by timings."""

    def __init__(self, base: Objective, expand: Expand, earlier: Sequence[TimedKernel] = ()) -> None:
        self.base = base
        self.expand = expand
        self.name = f"{base.name}, corrected by timed kernels"
        self.version = base.version
        self.seconds: dict[Node, float] = {}
        self._earlier = tuple(earlier)
        self._timed: dict[Node, TimedKernel] = {}
        self._correction = Correction((), self._earlier)
        self._plain: weakref.WeakKeyDictionary[Node, Graph] = weakref.WeakKeyDictionary()

    def __contains__(self, kernel: Graph) -> bool:
        return kernel.outputs[0] in self.seconds

    def learn(self, kernels: Sequence[Graph], seconds: Sequence[float]) -> None:
        """Record timings of kernels; the last timing of a kernel counts."""
        for kernel, took, guess in zip(kernels, seconds, self._guess(kernels), strict=True):
            output = kernel.outputs[0]
            self.seconds[output] = took
            if guess < np.inf:  # it has a price
                self._timed[output] = TimedKernel(
                    kind(kernel), max(float(guess), MIN_SECONDS), max(float(took), MIN_SECONDS)
                )
        self._correction = Correction(tuple(self._timed.values()), self._earlier)

    def labels(self) -> Iterator[tuple[Graph, TimedKernel]]:
        """Yield the kernels that were timed, in the form that ran."""
        for output, label in self._timed.items():
            yield self._plain[output], label

    def factors(self) -> Mapping[str, float]:
        """Return, by kind, the factor that seconds on the line are multiplied with."""
        return {name: self._correction.factor(name) for name in sorted({x.kind for x in self._timed.values()})}

    def errors(self) -> list[float]:
        """Return the base model's error on each timed kernel, as a factor of at least 1, smallest first."""
        ratios = [x.seconds / x.predicted_s for x in self._timed.values()]
        return sorted(max(ratio, 1.0 / ratio) for ratio in ratios)

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel takes inside a program."""
        guesses = self._correction.seconds(self._guess(kernels), [kind(kernel) for kernel in kernels])
        known = [self.seconds.get(kernel.outputs[0]) for kernel in kernels]
        return np.array([guess if took is None else took for guess, took in zip(guesses, known, strict=True)])

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price: 0 for timed kernels."""
        known = [kernel in self for kernel in kernels]
        if self._correction.deviation is not None:
            return np.where(known, 0.0, self._correction.deviation)
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


class Correction:
    """Seconds of kernels as timed ones say: a line over the predicted seconds, and a factor of each kind.

    Attributes:
        line: line through all timed kernels.
    """

    def __init__(self, timed: Sequence[TimedKernel], earlier: Sequence[TimedKernel]) -> None:
        """Fit the correction to the kernels timed in this call, and to those of earlier ones."""
        self._all = (*timed, *earlier)
        self.line = fitted_line(self._all)
        self._logs: dict[str, list[float]] = defaultdict(list)
        for x in timed:
            self._logs[x.kind].append(math.log(x.seconds / self.line.seconds(x.predicted_s)))
        self._common = _shrunken([_shrunken(logs) for logs in self._logs.values()])

    @functools.cached_property
    def deviation(self) -> float | None:
        """The standard deviation of the logarithm of seconds on the line; None where too few kernels were timed."""
        return deviation(self._all)

    def factor(self, kind: str) -> float:
        """Return the factor of a kind."""
        return _factor(self._logs.get(kind, ()), self._common)

    def seconds(self, predicted_s: PerKernel, kinds: Sequence[str]) -> PerKernel:
        """Return the seconds of kernels of these kinds."""
        factors = {kind: self.factor(kind) for kind in set(kinds)}
        return self.line.seconds(predicted_s) * np.array([factors[kind] for kind in kinds])


class Line(NamedTuple):
    """Seconds of kernels as a line over their predicted seconds."""

    fixed_s: float
    rate: float

    def seconds(self, predicted_s: PerKernel | float) -> PerKernel:
        """Return the seconds of kernels with these predictions."""
        return np.asarray(self.fixed_s + self.rate * predicted_s)


def fitted_line(timed: Sequence[TimedKernel]) -> Line:
    """Return the line of least relative error through timed kernels, by reweighted least squares.

    Errors beyond `_OUTLIER` count by their size alone.  `_PRIOR` timings that agree with the prediction are added.
    """
    x, y = np.array([(k.predicted_s, k.seconds) for k in timed], float).reshape(-1, 2).T
    fixed_s, rate = 0.0, 1.0
    for _ in range(_PASSES if len(x) else 0):
        told = np.maximum(fixed_s + rate * x, MIN_SECONDS)
        weight = np.minimum(1.0, _OUTLIER / np.maximum(np.abs(y / told - 1.0), 1e-9)) / told**2
        xx, xy, one = _PRIOR + weight @ (x * x), _PRIOR + weight @ (x * y), _PRIOR / _FIXED_S**2 + weight.sum()
        fixed_s = max(0.0, (xx * (weight @ y) - xy * (weight @ x)) / (xx * one - (weight @ x) ** 2))
        rate = (xy - fixed_s * (weight @ x)) / xx
        rate = max(math.exp(-_BOUND), min(math.exp(_BOUND), rate))
    return Line(float(fixed_s), float(rate))


def deviation(
    timed: Sequence[TimedKernel], line_of: Callable[[Sequence[TimedKernel]], Line] = fitted_line
) -> float | None:
    """Return the standard deviation of log time about the line through other kernels; None for too few of them.

    A tenth of the kernels at a time is left out.  With one more kernel, nine in ten lie within the interval that it
    stands for (conformal prediction); without leaving any out, 20 kernels hold 0.78 of the times, 60 hold 0.89.
    """
    rank, parts = math.ceil(_HELD * (len(timed) + 1)), round(1.0 / (1.0 - _HELD))
    if rank > len(timed):
        return None
    apart: list[float] = []
    for part in range(parts):
        line = line_of([x for k, x in enumerate(timed) if k % parts != part])
        apart += [abs(math.log(x.seconds / float(line.seconds(x.predicted_s)))) for x in timed[part::parts]]
    return sorted(apart)[rank - 1] / NormalDist().inv_cdf((1.0 + _HELD) / 2.0)


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
