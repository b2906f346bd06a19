"""Commands of the lab, which `superopt` finds by entry points: benchmarks, demo, discovery, fuzzing, training."""
