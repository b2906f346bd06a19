"""Results of `optimize`: the optimised function, its file, its entry in the store, and validation of both."""
