"""The ONNX op table, by family; importing this package fills `onnx_eval.TABLE`."""

from superopt.frontends.onnx.ops import (
    activations,
    contrib,
    control,
    conv,
    elementwise,
    index,
    linalg,
    movement,
    norm,
    pool,
    quant,
    reduce,
    resize,
    rnn,
    signal,
    training,
    vision,
)

FAMILIES = (
    activations, contrib, control, conv, elementwise, index, linalg, movement, norm, pool, quant, reduce, resize,
    rnn, signal, training, vision,
)  # fmt: skip
