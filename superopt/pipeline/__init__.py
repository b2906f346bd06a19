"""`optimize` and `jit`: the stages in their order."""
