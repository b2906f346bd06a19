"""Our own kernels: loop nests over the free algebra, schedules, tensor intrinsics; LLVM and Pallas code inside of XLA.

A `LoopProgram` is a list of loop nests, each the value of a buffer at one index; a schedule is a trace of functions
from loop program to loop program; the generator knows loads, guards, reductions and scalar functions, never an op.
"""
