"""Exported networks under superopt and under what else people run them with, each framework in a process of its own.

`serve` and the files `run_...` of other frameworks import nothing of superopt: they are run by path, by whichever
Python has the framework.
"""
