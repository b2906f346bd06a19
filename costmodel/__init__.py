"""The cost model: features and labels of kernels, the objective of the search, weights that ship."""
