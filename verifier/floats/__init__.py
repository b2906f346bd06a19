"""Kernels on floats: a kernel is run as machine code and compared with float64, at several scales of its inputs.

A field has no magnitude (`verifier.kernels`): what is lost to rounding, cancellation, overflow or flushing is seen here.
The loop program before any schedule is evaluated in float64, and with each value goes a bound of what rounding in its
own dtype, in any order of its sums, may do to it (`bounds`).  A kernel that is farther off is not proved (`check`).
No proof rests on this room: all that it can do is to take one back.  `machine` alone is used by the proofs as well.
"""
