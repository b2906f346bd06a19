"""What makes and judges superopt, not what uses it: benchmarks, discovery, training, fuzzing."""
