"""A model under ONNX Runtime: `python run_onnxruntime.py MODEL INPUTS`."""

from __future__ import annotations

import sys

import onnxruntime  # pyright: ignore[reportMissingImports]
from serve import inputs_of, serve, threads  # pyright: ignore[reportMissingImports] (beside this file, which runs by path)

options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = threads(), 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given = inputs_of(sys.argv[2])
binding = session.io_binding()
for put, value in zip(session.get_inputs(), given.values(), strict=True):
    binding.bind_cpu_input(put.name, value)
for out in session.get_outputs():
    binding.bind_output(out.name, "cpu")


def call() -> None:
    """One run with inputs and results in memory of the caller's."""
    session.run_with_iobinding(binding)


def results():
    """The results of a run."""
    call()
    return binding.copy_outputs_to_cpu()


serve(call, results, {"version": onnxruntime.__version__})
