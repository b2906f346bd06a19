"""Validation of kernels: LLVM IR that is about to be compiled computes the loop program from before any schedule.

The IR is read (`reader`), rewritten so that it computes in a finite field and checks every access of memory
(`rewrite`), and run over all of its tasks (`check`); the loop program is evaluated in the same field (`meaning`).
The rewriting checks that control and addresses depend on no data, so every run accesses the same memory as this one.
Values are compared at random points of the field: two different rational functions agree there only by chance.
The validation shares nothing with the code generator except the classes of loop programs; only `scalars` generates code
with it, for comparison.
"""
