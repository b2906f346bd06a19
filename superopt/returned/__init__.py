"""What `optimize` returns: the function, its file, its entry in the store, and both looked at again."""
