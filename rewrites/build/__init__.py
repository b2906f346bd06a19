"""Building right sides: terms to physical tensors, in an e-graph or as IR."""
