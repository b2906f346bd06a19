"""Kernels on floats: a kernel runs as machine code and is compared with float64, at several scales of its inputs.

A field has no magnitude (`verifier.kernels`), so losses by rounding, cancellation or overflow are detected here.
The loop program before any schedule is evaluated in float64.  Each value comes with a bound on its error by rounding in
its own dtype, in any order of its sums (`bounds`).  A kernel with a larger error is not proved (`check`).
No proof depends on this package, which can only withdraw one; only `machine` is used by the proofs as well.
"""
