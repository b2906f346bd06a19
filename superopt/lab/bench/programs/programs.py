"""The programs of the core, joint and plain suites by name: ONNX networks of the onnx package, and JAX functions.

Cases called small have other sizes than any program on which results are reported.
"""

from __future__ import annotations

from collections.abc import Callable

from superopt.lab.bench.programs import nets
from superopt.lab.bench.programs.blocks import BLOCKS
from superopt.lab.bench.programs.loops import LOOPS
from superopt.lab.bench.programs.models import MODELS, bert_base
from superopt.lab.bench.programs.nets import Net
from superopt.machine.extras import need

_SMALL_MOBILENET = ((1, 16, 1, 1), (4, 24, 2, 2), (6, 40, 2, 2), (4, 72, 3, 2), (6, 112, 2, 1), (6, 144, 2, 2))

_JAX: dict[str, Callable[[], Net]] = {
    "bert_layer": nets.bert_layer,
    "inverted_residual": nets.inverted_residual,
    "linear_attention": nets.linear_attention,
    "low_rank_chain": nets.low_rank_chain,
    "lstm_step": nets.lstm_step,
    "transformer_block": nets.transformer_block,
    "small_encoder": lambda: nets.bert(1, 320, 5, 160),
    "small_mobilenet": lambda: nets.mobilenet_v2(_SMALL_MOBILENET, size=192, classes=400, last=900),
    "small_resnet": lambda: nets.resnet((1, 2, 1, 1), width=48, size=160, classes=200),
    "bert_one_layer": lambda: bert_base(1),
    **MODELS,
    **BLOCKS,
    **LOOPS,
}


def build_case(name: str, seed: int) -> Net:
    """A program with weights and example inputs.

    ONNX networks get random weights of the right scale, since those in the package are constants.

    Raises:
        ArgumentError: there is no such program.
        MissingExtraError: it is a network of the onnx package, which is not installed.
    """
    if name in _JAX:
        return _JAX[name]()
    need("onnx", f"the network {name}")
    from superopt.frontends.onnx import frontend  # late: needs the package of an extra

    model = frontend.randomize_weights(frontend.load_model(frontend.light_model_path(name)), seed)
    return Net(model.fn, dict(model.params), model.example_inputs(seed))
