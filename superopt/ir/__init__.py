"""The intermediate representation: typed graphs, the op table, and what follows from the denotations."""

from time import time

BEGAN_S = (
    time()
)  # before any module is loaded that writes code: sources changed later may not be what this process runs
