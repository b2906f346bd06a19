"""Search over the selections of an e-graph: which equivalent form, which layout, which kernels.

`search(eg, objective, SearchSettings(Deadline.within(10)))` returns finalists; `SearchResult.program` lowers one.
"""

from superopt.search.pricing import Pricer
from superopt.search.search import Finalist, SearchResult, SearchSettings, Statistics, search
from superopt.search.snapshot import Forms, Snapshot

__all__ = [
    "Finalist", "Forms", "Pricer", "SearchResult", "SearchSettings", "Snapshot", "Statistics", "search",
]  # fmt: skip
