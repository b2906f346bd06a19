"""Search for schedules of one operator: spaces made by rules, a learned model, candidates timed in worker processes.

`tune` is the entry; `superopt kernels tune` its command line.
"""
