"""Exported networks under superopt and under other runtimes, each framework in a process of its own.

`serve` and the files `run_...` of other frameworks import nothing of superopt: they are run by path, by the Python that
has the framework.
"""
