"""A model under OpenVINO: `python run_openvino.py MODEL INPUTS`."""

from __future__ import annotations

import sys

import openvino  # pyright: ignore[reportMissingImports]
from serve import inputs_of, serve, threads  # pyright: ignore[reportMissingImports] (beside this file, which runs by path)

_SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", _SETTINGS)
request = compiled.create_infer_request()
for place, value in enumerate(inputs_of(sys.argv[2]).values()):
    request.set_input_tensor(place, openvino.Tensor(value, shared_memory=True))


def results():
    """The results of a run."""
    request.infer()
    return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]


serve(request.infer, results, {"version": openvino.__version__})
