"""`optimize` and `jit`: the stages of an optimisation, in their order."""
