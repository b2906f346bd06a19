"""Our own kernels: loop nests over the free algebra, schedules, tensor intrinsics; LLVM and Pallas code inside of XLA.

A `LoopProgram` is a list of loop nests; each defines the value of a buffer at one index.  A schedule is a trace of
functions from loop program to loop program.  The code generator knows loads, guards, reductions and scalar functions,
never an op.
"""
