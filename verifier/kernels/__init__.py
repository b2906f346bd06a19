"""Validation of kernels: LLVM IR that is about to be compiled computes what its loop program says, before any schedule.

The IR is read (`reader`), rewritten so that it computes in a finite field and watches every access of memory
(`rewrite`), and run over all of its tasks (`check`); the loop program is evaluated in the same field (`meaning`).
Control and addresses depend on no data, which the rewriting checks, so what one run does with memory every run does.
Values are compared at random points of the field: two different rational functions agree there by chance alone.
Nothing is shared with the generator but the classes of loop programs; `scalars` alone writes code with it, to compare.
"""
