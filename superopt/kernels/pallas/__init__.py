"""Loop programs as Pallas kernels for GPUs, compiled by Triton.

A schedule decides the shape of a kernel: parallel axes are the grid, serial ones loops inside a program of the grid.
Vector and unrolled axes are the block that a program holds in registers.  `lower` evaluates the value of a stage over
such a block by folding its loop expression through `jax.lax`.  It knows loads, guards, reductions and scalar functions,
never an op.

    scalars      scalar functions and monoids on blocks.
    frame        coordinates of a block, indices, and the masks that keep loads in bounds.
    chunks       loops over blocks of an iterator.
    evaluate     expressions over a block, reductions inside a block or chunk by chunk.
    contraction  sums of products as `dot` on tensor cores.
    online       sums over exp(s - max s) in one pass over the keys.
    lower        programs to JAX callables.
    space        search spaces of schedules, as traces of schedule primitives.

The backend `pallas` (`superopt.backends.pallas`) offers them to the pipeline; the benchmark `pallas` tunes them.

This package's modules import jax when they are imported; the package itself does not.
"""
