"""The network: a bounded, gated correction of the roofline by members of two kinds, whose mean is the prediction.

Nodes start from an opcode embedding and their row.  Three layers pass messages along edges both ways (GraphSAGE:
own state, messages of operands by position, messages of readers; Hamilton et al., 2017).  The nodes of a kernel are
pooled by sum, mean and maximum, joined with its kernel features, and a shared trunk feeds as many heads.

The other half of the members is a perceptron over the kernel features and the nodes' rows pooled without their edges.
Where few programs are known it generalises as well as messages do, and its errors differ.  Member h predicts

    log T_h = log T_prior + gate * R * tanh(r_h / R),

so no prediction is further than a factor exp(R) from the roofline.  Outside the training domain (gate 0) it is the
roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from costmodel.features.node_rows import OPCODES
from costmodel.model.encode import KERNEL_WIDTH, PackedBatch
from costmodel.model.model import NetworkShape, Params, shapes

if TYPE_CHECKING:
    from jaxtyping import Float


def initial(shape: NetworkShape, key: jax.Array) -> Params:
    """Return random parameters; the heads start at zero, which is the roofline."""
    params: Params = {}
    for name, size in sorted(shapes(shape).items()):
        key, own = jax.random.split(key)
        if name.startswith("position"):
            params[name] = jnp.ones(size, jnp.float32)
        elif len(size) == 1 or name in ("heads", "flat_heads"):
            params[name] = jnp.zeros(size, jnp.float32)
        else:
            params[name] = jax.random.normal(own, size, jnp.float32) * (1.0 if name == "op" else 1.4) / size[0] ** 0.5
    params["op"] = params["op"] * len(OPCODES) ** 0.5 * 0.3
    return params


def as_arrays(batch: PackedBatch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch, without the rows of its nodes."""
    return {
        "ops": batch.ops, "owner": batch.owner, "sources": batch.sources, "readers": batch.readers,
        "positions": batch.positions,
    }  # fmt: skip


def embed(
    params: Params, batch: Mapping[str, jax.Array], kernel: Float[jax.Array, "kernels inputs"]
) -> tuple[Float[jax.Array, "kernels trunk"], Float[jax.Array, "kernels trunk"]]:
    """Return the state of the trunk, and of the perceptron, for every kernel; `kernel` holds standardised inputs."""
    rooms = batch["ops"].shape[0]
    size = kernel.shape[0]
    h = jax.nn.relu(params["op"][batch["ops"]] + batch["rows"] @ params["row"] + params["row_bias"])
    owner, sources, readers = batch["owner"], batch["sources"], batch["readers"]
    ones = jnp.ones_like(sources, jnp.float32)
    fan_in = 1.0 / jnp.maximum(jax.ops.segment_sum(ones, readers, rooms, indices_are_sorted=True), 1.0)
    fan_out = 1.0 / jnp.maximum(jax.ops.segment_sum(ones, sources, rooms), 1.0)
    layers = sum(name.startswith("own") for name in params)
    for k in range(layers):
        said = (h @ params[f"operand{k}"]).at[sources].get(mode="fill", fill_value=0.0)
        said = said * params[f"position{k}"][batch["positions"]]
        asked = (h @ params[f"reader{k}"]).at[readers].get(mode="fill", fill_value=0.0)
        below = jax.ops.segment_sum(said, readers, rooms, indices_are_sorted=True) * fan_in[:, None]
        above = jax.ops.segment_sum(asked, sources, rooms) * fan_out[:, None]
        h = h + jax.nn.relu(h @ params[f"own{k}"] + below + above + params[f"bias{k}"])
        h = h / jnp.sqrt(1.0 + jnp.mean(h * h, axis=1, keepdims=True))
    total = jax.ops.segment_sum(h, owner, size, indices_are_sorted=True)
    nodes = jax.ops.segment_sum(jnp.ones(rooms), owner, size, indices_are_sorted=True)
    top = jnp.maximum(jax.ops.segment_max(h, owner, size, indices_are_sorted=True), -1e3)  # empty kernels: -inf
    pooled = jnp.concatenate([total / 8.0, total / jnp.maximum(nodes, 1.0)[:, None], top], axis=1)
    wide = kernel[:, :KERNEL_WIDTH]
    trunk = jax.nn.relu(pooled @ params["pool"] + wide @ params["kernel"] + params["trunk_bias"])
    return trunk, jax.nn.relu(kernel @ params["flat"] + params["flat_bias"])


def heads(
    params: Params, trunk: Float[jax.Array, "kernels trunk"], flat: Float[jax.Array, "kernels trunk"]
) -> Float[jax.Array, "kernels members"]:
    """Return the unbounded correction of log time, kernels by members."""
    hidden = trunk + jax.nn.relu(trunk @ params["hidden"] + params["hidden_bias"])
    other = flat + jax.nn.relu(flat @ params["flat_hidden"] + params["flat_hidden_bias"])
    said = hidden @ params["heads"] + params["heads_bias"], other @ params["flat_heads"] + params["flat_heads_bias"]
    return jnp.concatenate(said, axis=1)


def correction(
    params: Params, batch: Mapping[str, jax.Array], kernel: Float[jax.Array, "kernels inputs"],
    gate: Float[jax.Array, " kernels"], bound: float,
) -> Float[jax.Array, "kernels members"]:  # fmt: skip
    """Return the bounded, gated correction added to log T_prior, kernels by members."""
    raw = heads(params, *embed(params, batch, kernel))
    return gate[:, None] * bound * jnp.tanh(raw / bound)
