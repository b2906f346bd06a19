"""Code of a scheduled loop program: phases, nests, register tiles, values, index arithmetic, guards.

    generate     a program: one function per phase, its parallel loops cut into tasks
    options      what may be inexact, and decisions about how a stage is written
    agreement    what must be computed in one way in two places
    plan         the loops of a stage: their order, tasks, lane, points
    nest         a planned stage as loops
    microkernel  a stage with a register tile
    reduce       reductions as loops, prefixes carried along
    rowcache     values that a later phase of a row needs again
    values       expressions, each written once where it belongs
    index        index arithmetic and guards
    memory       loads and stores
    registers    how values are held, what is computed of them, moves between lanes

It knows loads, guards, reductions and scalar functions, never an op.
"""
