"""Results of `optimize`: the function, its file, its entry in the store, and both looked at again."""
