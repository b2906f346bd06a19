"""Fuzzing: random whole programs and kernels checked against oracles (`superopt fuzz`).

`jax_programs` and `onnx_programs` draw programs as text and as node lists, which are their own reproducers.  `child`
runs one after the other in a process that stays warm.  `drive` watches it, counts, and reduces failing programs.
"""
