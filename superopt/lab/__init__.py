"""What is used to make and judge superopt, not to use it: benchmarks, discovery of rules, training, fuzzing."""
