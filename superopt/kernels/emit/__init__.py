"""Code generation for a scheduled loop program: phases, nests, register tiles, values, index arithmetic, guards.

The modules are:

    generate             a program: one function per phase, its parallel loops cut into tasks.
    options              which inexact steps are allowed, and decisions about how a stage is written.
    bitwise_consistency  values that must be rounded alike in two places.
    plan                 the loops of a stage: their order, tasks, lane, points.
    nest                 a planned stage as loops.
    microkernel          a stage with a register tile.
    lower                reductions as loops with accumulators, prefixes as accumulators of loops, before any code.
    reduce               those loops and accumulators as code.
    rowcache             values that a later phase of a row needs again.
    values               expressions, each written once at the loop level where it belongs.
    scope                facts about one place in the loops.
    index                index arithmetic and guards.
    memory               loads and stores.
    registers            representation of values in registers, arithmetic on them, moves between lanes.

The generator knows loads, guards, reductions and scalar functions, never an op.
"""
