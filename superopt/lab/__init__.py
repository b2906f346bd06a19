"""Development of superopt, which no product code imports: benchmarks, discovery of rules, training, fuzzing."""
