"""Type aliases of arrays that cross modules, by the names of their axes; only type checkers read them.

kernels   those priced together.
steps     those of all of these kernels, end to end.
features  counts of a step: `costmodel.features.counts.INDEX`.
wide      features of a kernel as a whole: `costmodel.model.encode.KERNEL_WIDTH` of them.
pooled    numbers of its nodes together: `costmodel.model.encode.POOLED_WIDTH` of them.
inputs    wide, then pooled.
nodes, edges   those of all of these kernels, end to end.
row       numbers of a node: `costmodel.features.node_rows.WIDTH` of them.
members   members of the network, whose mean is its prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int

PerKernel: TypeAlias = "Float[np.ndarray, ' kernels']"
KernelMask: TypeAlias = "Bool[np.ndarray, ' kernels']"
NodesPerKernel: TypeAlias = "Int[np.ndarray, ' kernels']"
KernelFeatures: TypeAlias = "Float[np.ndarray, 'kernels wide']"
KernelMembers: TypeAlias = "Float[np.ndarray, 'kernels members']"
PooledFeatures: TypeAlias = "Float[np.ndarray, 'kernels pooled']"
KernelInputs: TypeAlias = "Float[np.ndarray, 'kernels inputs']"
PerInput: TypeAlias = "Float[np.ndarray, ' inputs']"
PerStep: TypeAlias = "Float[np.ndarray, ' steps']"
StepFeatures: TypeAlias = "Float[np.ndarray, 'steps features']"
StepOwner: TypeAlias = "Int[np.ndarray, ' steps']"
PerFeature: TypeAlias = "Float[np.ndarray, ' features']"
PerNode: TypeAlias = "Int[np.ndarray, ' nodes']"
PerEdge: TypeAlias = "Int[np.ndarray, ' edges']"
NodeRow: TypeAlias = "Float[np.ndarray, ' row']"
