"""Relayout of a program's images to channels last, the layout kernels prefer: vectors lie along channels.

    before   y = conv(x, w)                 with axes batch, channels, height, width
    after    t = transpose(y, b h w c)      in memory
             y = transpose(t, b c h w)      an index map of every reader.

A transpose and its inverse are put around every value that a convolution or a pool leaves in memory, and around
elementwise functions of such values.  Only the outer transpose is kept; the inner one disappears into the kernels that
read it.  Inputs and outputs of the program keep their order.  Weights of grouped convolutions, which no kernel packs,
are prepared with their output channels last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.ops.table import lookup
from superopt.ir.program import Program, map_nodes
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region

_CONVOLUTION = "conv_general_dilated"


def channels_last(program: Program) -> tuple[Program, frozenset[Node]] | None:
    """Return the program with images channels last, and the nodes to keep in memory; None where nothing moves.

    A program whose images already lie channels last comes back as it is.
    """
    order = _order(program.hot)
    if order is None or order == tuple(range(len(order))):
        return None
    moved = _images(program.hot, order)
    if not moved:
        return None
    back = _inverse(order)
    prepared = _weights(program)
    done: dict[Node, Node] = {}
    kept: set[Node] = set()
    inputs: list[Node] = []
    for node in program.hot.inputs:
        change = prepared.get(node)
        if change is None:
            done[node] = node
            inputs.append(node)
        else:
            lies = make_input(node["name"], tuple(node.shape[d] for d in change), node.dtype, frozen=True)
            done[node] = mk("transpose", lies, permutation=_inverse(change))
            inputs.append(lies)

    def laid(node: Node, value: Node) -> Node:
        if node not in moved:  # a transpose that undoes an inserted one is left out: the value has that layout already
            lies = value.inputs[0].inputs[0] if _is_turn(value, order) and _is_turn(value.inputs[0], back) else None
            return lies if lies is not None and lies in kept else value
        lies = mk("transpose", value, permutation=order)
        kept.add(lies)
        return mk("transpose", lies, permutation=back)

    done = map_nodes(program.hot.outputs, laid, done)
    hot = Graph(tuple(inputs), tuple(done[x] for x in program.hot.outputs))
    return Program(_prepare(program, prepared), hot), frozenset(kept)


def _order(graph: Graph) -> tuple[int, ...] | None:
    """Return the order (batch, spatial axes, channels) of most convolutions' results; None without convolutions."""
    orders = Counter(_order_of(node) for node in graph.nodes() if node.op == _CONVOLUTION)
    return max(orders, key=lambda order: orders[order]) if orders else None


def _order_of(node: Node) -> tuple[int, ...]:
    batch, channels, *spatial = node["dimension_numbers"][2]
    return (batch, *spatial, channels)


def _images(graph: Graph, order: tuple[int, ...]) -> set[Node]:
    """Return the values in memory that are images: of convolutions, of pools, and computed of images at the same index.

    Convolutions that lie in another order, perhaps channels last already, stay as they are.
    """
    outputs = set(graph.outputs)
    images: set[Node] = set()
    for region in partition(graph):
        ops = {n.op for n in region.nodes}
        windows = _CONVOLUTION in ops or any(op.startswith("reduce_window") for op in ops)
        follows = _follows(region, images, len(order))
        if any(n.op == _CONVOLUTION and _order_of(n) != order for n in region.nodes):
            continue
        if len(region.root.shape) == len(order) and region.root not in outputs and (windows or follows):
            images.add(region.root)
    return images


def _follows(region: Region, images: Set[Node], rank: int) -> bool:
    """Whether the region's values that depend on images are computed of them at the same index, or of parts of them.

    The origin of a map's other operands (a scale for each channel) does not matter.
    """
    decided = {x for x in region.reads if x in images}
    for node in region.nodes:
        if decided.isdisjoint(node.inputs):
            continue
        if len(node.shape) != rank or lookup(node.op).family not in ("elementwise", "movement") or not _kept(node):
            return False
        decided.add(node)
    return region.root in decided and not images.isdisjoint(region.reads)


def _kept(node: Node) -> bool:
    """Whether axis i of the result is axis i of every operand that has axes."""
    rule = lookup(node.op).axes
    if rule is None:
        return False
    flow = rule.flow(dict(node.attrs), [x.shape for x in node.inputs], node.shape)
    return not flow.regroups and all(own in ((), flow.axes) for own in flow.operands)


def _weights(program: Program) -> dict[Node, tuple[int, ...]]:
    """Return the prepared weights of grouped convolutions, with the axis order that each is to get."""
    own = set(program.prepared_inputs)
    orders: dict[Node, tuple[int, ...]] = {}
    for node in program.hot.nodes():
        if node.op == _CONVOLUTION and node["feature_group_count"] != 1 and node.inputs[1] in own:
            features, depth, *spatial = node["dimension_numbers"][1]
            order = (*spatial, depth, features)
            if order != tuple(range(len(order))):
                orders[node.inputs[1]] = order
    return orders


def _prepare(program: Program, moved: dict[Node, tuple[int, ...]]) -> Graph | None:
    if program.prepare is None or not moved:
        return program.prepare
    outputs: list[Node] = []
    for node, source in zip(program.prepared_inputs, program.prepare.outputs, strict=True):
        change = moved.get(node)
        outputs.append(source if change is None else mk("transpose", source, permutation=change))
    return Graph(program.prepare.inputs, tuple(outputs), program.prepare.constants)


def _is_turn(node: Node, order: tuple[int, ...]) -> bool:
    return node.op == "transpose" and node["permutation"] == order


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(d) for d in range(len(order)))
