"""Development of superopt, which no product code imports: benchmarks, discovery of rules, training, fuzzing."""

from collections.abc import Callable

Say = Callable[[str], None]
"""Prints a line of progress."""
