"""The programs that benchmark suites run: networks, blocks, kernels and rewrites by hand."""
