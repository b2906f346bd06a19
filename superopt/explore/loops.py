"""Loops of a program before its search: what a trip does not need from the trip before it is taken out of the loop.

    counted     a loop's own counter is a sequence, so that what is read at it is a row.
    entered     what is the same each trip, and larger than what it is made of, is made in the body.
    split       a product of parts, joined along the axis that it sums over, is the sum of their products.
    hoisted     products of rows are one product of all rows; what is the same each trip is computed once.
    folded      two matrices that stay the same, one times the other times what is carried, are one matrix.
    gathered    scaled values of a carry, and products of it with matrices that stay the same, are one product.
    mapped      what trips do to a carry alone, linear with known numbers, is a product with one matrix.
    sunk        products that only results need, not the next trip, are products of all trips behind the loop.
    summed      rows that a loop only adds up, and scales by a number each trip, are a sum.
    powered     products with one matrix, trip by trip, are one with a power of it.
    projected   a matrix that trips multiply on one side, and results read through a product on the other, is carried
                as that product.
    unrolled    a few trips, each a product with weights of its own (a stack of layers), are a program without a loop.

Every step is proved at its place before it is taken (`superopt.certify.loops`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import jax

from superopt.backends.xla import needs_x64, to_jax
from superopt.certify.loops import LoopStepError, prove_step
from superopt.errors import SuperoptError
from superopt.explore.linear import is_plain, linear_form
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.build import dot
from superopt.ir.counters import node_cost
from superopt.ir.graph import Graph, Node, bodies_of, mk, topological, with_inputs
from superopt.ir.inline import STEPS
from superopt.ir.loop_steps import LoopStep
from superopt.ir.loops import (
    CARRIED,
    FIXED,
    ROW,
    LoopParts,
    adds_row,
    counters,
    fixed_side,
    is_closed,
    is_spread,
    is_stuck,
    loops_of,
    powers,
    projections,
    sums,
    tail_of,
    value_bytes,
    with_results,
)
from superopt.ir.ops.table import CONTRACTIONS, PRODUCTS, VIEWS, lookup
from superopt.ir.program import replace
from superopt.ir.types import FLOATS
from superopt.machine.deadline import Deadline
from superopt.machine.facts import beyond_caches
from superopt.machine.jitting import enabled_x64

_proved = functools.lru_cache(maxsize=256)(prove_step)  # the plain candidate and the search take the same steps


def opened(
    graph: Graph, deadline: Deadline, *, products: bool = True, prove: Callable[[LoopStep], object] = _proved
) -> tuple[Graph, tuple[LoopStep, ...]]:
    """The graph with work taken out of its loops as far as there is time, and the steps that led there.

    Args:
        graph: the program.
        deadline: no further step is begun after it.
        products: whether products that are the same each trip are taken out; bodies may have better ones before that.
        prove: raises where a step is not proved; it is left out then.
    """
    taken: list[LoopStep] = []
    refused: set[LoopStep] = set()
    while True:
        step = next((s for s in _steps(graph, products) if s not in refused), None)
        begun = bool(taken) and taken[-1].kind == "body"  # what it leaves the same each trip is taken out next
        if step is None or (deadline.is_over and not begun):
            return graph, tuple(taken)
        try:
            prove(step)
        except LoopStepError:
            refused.add(step)
        else:
            graph = with_results(graph, step.loop, step.results())
            taken.append(step)


def _steps(graph: Graph, products: bool) -> Iterator[LoopStep]:
    """The steps that a graph's loops allow, in the order in which they are to be tried."""
    for loop in loops_of(graph):
        for number in counters(loop):
            yield LoopStep("counted", graph.inputs, loop, number=number)
        for number, operand in enumerate(LoopParts(loop).split(loop.inputs)[0]):
            if is_spread(operand):
                yield LoopStep("entered", graph.inputs, loop, number=number)
        yield from _splits(graph, loop)
        if products:
            yield from _folds(graph, loop)
            yield from _gathers(graph, loop)
            yield from _maps(graph, loop)
        yield from _hoists(graph, loop, products)
        if products:
            yield from _projections(graph, loop)
        for number in _sinks(loop):
            yield LoopStep("sunk", graph.inputs, loop, number=number)
        for number in sums(loop):
            if adds_row(loop, number):
                yield LoopStep("summed", graph.inputs, loop, number=number)
        for number in powers(loop):
            if products and _is_power_cheaper(loop["body"].outputs[number], LoopParts(loop).length):
                yield LoopStep("powered", graph.inputs, loop, number=number)
        if _is_layers(loop):
            yield LoopStep("unrolled", graph.inputs, loop)


def _is_product(node: Node) -> bool:
    return node.op in CONTRACTIONS


def _is_costly(node: Node) -> bool:
    """Whether a value is worth computing once though it is larger than what it is made of."""
    return _is_product(node) or node.op in ("inverse", "solve")


def _splits(graph: Graph, loop: Node) -> Iterator[LoopStep]:
    """Products with a concatenation of parts, some of which depend on a carry and others do not."""
    depends = LoopParts(loop).depends()
    for node in loop["body"].nodes():
        if node.op not in PRODUCTS or depends[node] != CARRIED:
            continue
        for side in (0, 1):
            joined, other = node.inputs[side], node.inputs[1 - side]
            if joined.op != "concatenate" or len({depends[x] == CARRIED for x in joined.inputs}) == 1:
                continue
            contracted = [tuple(map(int, axes)) for axes in node["dimension_numbers"][0]]
            if joined["dimension"] in contracted[side]:
                axis = contracted[1 - side][contracted[side].index(joined["dimension"])]
                yield LoopStep("body", graph.inputs, loop, (node,), (_parted(node, joined, other, side, axis),))


def _parted(node: Node, joined: Node, other: Node, side: int, axis: int) -> Node:
    """A product with a concatenation as the sum of products with its parts, neighbours of one kind together."""
    total, begin = None, 0
    for part in joined.inputs:
        end = begin + int(part.shape[joined["dimension"]])  # pyright: ignore[reportArgumentType] -- a number
        start, limit = [0] * len(other.shape), list(other.shape)
        start[axis], limit[axis] = begin, end
        piece = mk("slice", other, start_indices=start, limit_indices=limit)
        operands = (part, piece) if side == 0 else (piece, part)
        product = mk(node.op, *operands, **dict(node.attrs))
        total, begin = product if total is None else mk("add", total, product), end
    assert total is not None
    return total


def _folds(graph: Graph, loop: Node) -> Iterator[LoopStep]:
    """Products of two matrices, the same each trip, with what is carried: their product with it, where that pays."""
    parts = LoopParts(loop)
    depends = parts.depends()
    for node in parts.body.nodes():
        if depends[node] != CARRIED or not is_plain(node):
            continue
        for side in (0, 1):
            matrix, inner = node.inputs[side], node.inputs[1 - side]
            if depends[matrix] != FIXED or matrix.type.rank != 2:
                continue
            inner, shift = _shifted(inner, depends)
            if not is_plain(inner) or depends[inner.inputs[side]] != FIXED or inner.inputs[side].type.rank != 2:
                continue
            made = _folded(node, inner, side)
            if made is None or not _saves(node, inner, made, parts.length):
                continue
            if shift is not None:
                other = [shift, matrix] if side else [matrix, shift]
                operands = [made, with_inputs(node, other)]
                if node.inputs[1 - side].inputs[0] is shift:
                    operands.reverse()
                made = mk(node.inputs[1 - side].op, *operands)
            yield LoopStep("body", graph.inputs, loop, (node,), (made,))


def _shifted(node: Node, depends: dict[Node, int]) -> tuple[Node, Node | None]:
    """A carried value, and what is added to it or it is subtracted from, where that is the same each trip."""
    if node.op in ("add", "sub"):
        for value, shift in (node.inputs, node.inputs[::-1]):
            if depends[value] == CARRIED and depends[shift] == FIXED and shift.type == node.type:
                return value, shift
    return node, None


def _folded(outer: Node, inner: Node, side: int) -> Node | None:
    """`F (G x)` as `(F G) x`, or `(x G) F` as `x (G F)` where the matrices are on the right (`side` 1)."""
    rounding = [[dict(x.attrs)[name] for name in ("precision", "preferred_element_type")] for x in (outer, inner)]
    if rounding[0] != rounding[1]:
        return None
    matrix, within = outer.inputs[side], inner.inputs[side]
    ((of_matrix,), (of_inner,)) = outer["dimension_numbers"][0][:: -1 if side else 1]
    ((of_within,), (of_carried,)) = inner["dimension_numbers"][0][:: -1 if side else 1]
    if of_inner != (inner.type.rank - 1 if side else 0):  # the axis that is summed over is not one of the inner matrix
        return None
    pair = ((1 - of_within,), (of_matrix,)) if side else ((of_matrix,), (1 - of_within,))
    attrs = dict(outer.attrs)
    both = (within, matrix) if side else (matrix, within)
    product = mk(outer.op, *both, **{**attrs, "dimension_numbers": (pair, ((), ()))})
    carried = inner.inputs[1 - side]
    last = ((of_carried,), (0,)) if side else ((1,), (of_carried,))
    operands = (carried, product) if side else (product, carried)
    return mk(outer.op, *operands, **{**attrs, "dimension_numbers": (last, ((), ()))})


def _saves(outer: Node, inner: Node, made: Node, trips: int) -> bool:
    """Whether one product with the matrices' product does less work in all trips, that product included."""
    product = next(x for x in made.inputs if x not in inner.inputs)
    before = node_cost(outer).flops + node_cost(inner).flops
    return trips * (before - node_cost(made).flops) > node_cost(product).flops


def _hoists(graph: Graph, loop: Node, products: bool) -> Iterator[LoopStep]:
    """Values of a body without carries that are worth computing for all trips at once."""
    parts = LoopParts(loop)
    depends = parts.depends()
    outputs = parts.body.outputs[loop["num_carry"] :]
    frontier: dict[Node, None] = {}
    for node in parts.body.nodes():
        if depends[node] == CARRIED:
            frontier |= dict.fromkeys(x for x in node.inputs if depends[x] != CARRIED)
    frontier |= dict.fromkeys(x for x in outputs if depends[x] == ROW)
    added = {x for i in sums(loop) for x in parts.body.outputs[i].inputs}
    values: dict[Node, None] = {}
    for node in frontier:
        root = node
        while depends[root] == ROW and root.op in VIEWS and root not in outputs:
            root = max(root.inputs, key=lambda x: depends[x])
        # a body may do without an inverse that is computed each trip, not without one of a diagonal or the like
        postponed = not products and (root.op != "inverse" or is_spread(root.inputs[0]))
        if depends[root] == FIXED and postponed and any(map(_is_costly, topological((root,)))):
            continue
        if root.op not in ("input", "literal") and _pays(root, depends, parts.length, root in outputs, node in added):
            values[root] = None
    if values and (stacks := _stacked(loop, tuple(values), depends)) is not None:
        yield LoopStep("hoisted", graph.inputs, loop, tuple(values), stacks)


def _pays(root: Node, depends: dict[Node, int], length: int, is_output: bool, is_added: bool) -> bool:
    """Whether a value is worth computing outside.

    What is the same each trip is, unless it is larger than what it is made of.  Of rows, products are, outputs, and
    what is only added up.  What lies in memory for all trips must fit into the last cache; a sum of elementwise values
    never lies there.
    """
    inside = [n for n in topological((root,)) if n.op not in ("input", "literal")]
    if depends[root] == FIXED:
        leaves = [n for n in topological((root,)) if n.op == "input"]
        return value_bytes([root]) <= value_bytes(leaves) or any(map(_is_costly, inside))
    made = [n for n in inside if n.op not in VIEWS and depends[n] == ROW]
    products = any(map(_is_product, made))
    if is_added and not products and all(lookup(n.op).family == "elementwise" for n in made):
        return True
    return (products or is_added or (is_output and bool(made))) and not beyond_caches(length * value_bytes(made))


def _is_power_cheaper(step: Node, length: int) -> bool:
    """Whether the power of a matrix, by squares, takes less work than a product each trip.

    The squares of a matrix that depends on no input are computed ahead of time.
    """
    size = max(int(n) for x in step.inputs for n in x.shape if isinstance(n, int))
    squares = 0.0 if any(map(is_closed, step.inputs)) else 2.0 * size**3 * (length.bit_length() - 1)
    return squares + length.bit_count() * node_cost(step).flops < length * node_cost(step).flops


def _sinks(loop: Node) -> Iterator[int]:
    """The results whose ends read weights each trip that are larger than what the loop keeps for these ends."""
    parts = LoopParts(loop)
    depends = parts.depends()
    for number in range(loop["num_carry"], len(parts.body.outputs)):
        tail, read = tail_of(loop, number)
        weights = {x for n in tail if _is_product(n) for x in n.inputs if depends[x] == FIXED}
        if any(map(is_stuck, tail)) or value_bytes(list(weights)) < value_bytes(read):
            continue
        if weights and not beyond_caches(parts.length * value_bytes([*tail, *read])):
            yield number


def _gathers(graph: Graph, loop: Node) -> Iterator[LoopStep]:
    """Carries that are linear in themselves, by one matrix, where its power takes less work than the trips."""
    parts = LoopParts(loop)
    depends, (_, carries, _) = parts.depends(), parts.split(parts.body.inputs)
    outputs = parts.body.outputs
    for number, carry in enumerate(carries):
        result, others = outputs[number], topological((*outputs[:number], *outputs[number + 1 :]))
        if result.op not in ("add", "sub", "mul", "div") or carry in others or result in others:
            continue
        form = linear_form(result, carry, {x for x, kind in depends.items() if kind == FIXED})
        made = None if form is None else form.as_product(carry)
        if made is not None and _is_power_cheaper(made, parts.length):
            yield LoopStep("body", graph.inputs, loop, (result,), (made,))


def _maps(graph: Graph, loop: Node) -> Iterator[LoopStep]:
    """Carries that trips change linearly along one axis, with known numbers: products with the matrix of that map.

    Its power is computed ahead of time and lies in the last cache.
    """
    parts, products = LoopParts(loop), powers(loop)
    _, carries, _ = parts.split(parts.body.inputs)
    outputs = parts.body.outputs
    for number, carry in enumerate(carries):
        result, others = outputs[number], topological((*outputs[:number], *outputs[number + 1 :]))
        below = topological((result,))
        alone = [x for x in below if x.op == "input"] == [carry] and carry not in others
        if number in products or not alone or result in others or carry.dtype not in FLOATS:
            continue
        work = parts.length * sum(node_cost(x).flops for x in below)
        for axis in dict.fromkeys((carry.type.rank - 1, 0) if carry.shape else ()):
            if 2 * _sizes(carry)[axis] * prod(_sizes(carry)) >= work:
                continue
            product = _as_product(carry, result, axis)
            if product is not None and not beyond_caches(max(value_bytes([x]) for x in product.inputs)):
                yield LoopStep("body", graph.inputs, loop, (result,), (product,))


def _as_product(carry: Node, result: Node, axis: int) -> Node | None:
    """The product of a carry with the images of the unit vectors along an axis; None where they cannot be made."""
    shape, last = _sizes(carry), axis == carry.type.rank - 1
    fn = to_jax(Graph((carry,), (result,)))

    def image(unit: jax.Array) -> jax.Array:
        (moved,) = fn(jax.lax.broadcast_in_dim(unit, shape, (axis,)))
        return moved[tuple([slice(None) if d == axis else 0 for d in range(len(shape))])]

    def matrix() -> jax.Array:
        return jax.vmap(image, out_axes=0 if last else 1)(jax.numpy.eye(shape[axis], dtype=carry.dtype))

    made = _traced(matrix, (), Graph((carry,), (result,)))
    if made is None:
        return None
    (images,) = made.outputs
    return dot(carry, images, ((axis,), (0,))) if last else dot(images, carry, ((1,), (0,)))


def _projections(graph: Graph, loop: Node) -> Iterator[LoopStep]:
    """Carried matrices that nothing but results reads, each through a thinner product; `(C P) B` as `C (P B)` first."""
    parts, read = LoopParts(loop), {n["index"] for n in graph.nodes() if n.op == "result" and n.inputs[0] is loop}
    depends, (_, carries, _) = parts.depends(), parts.split(parts.body.inputs)
    nodes, thin = parts.body.nodes(), projections(loop)
    for number, carry in enumerate(carries):
        if number in read or len(loop.types) == 1:
            continue
        seen = thin.get(number)
        if seen is not None and value_bytes([seen]) < value_bytes([carry]):
            yield LoopStep("projected", graph.inputs, loop, number=number)
        after = parts.body.outputs[number]
        others = [n for n in nodes if carry in n.inputs and n is not after]
        if fixed_side(after, carry, depends) != 0 or len(others) != 1 or fixed_side(others[0], carry, depends) != 0:
            continue
        outer = [n for n in nodes if others[0] in n.inputs]
        made = _right_first(outer[0], others[0], carry, depends) if len(outer) == 1 else None
        if made is not None and others[0] not in parts.body.outputs:
            yield LoopStep("body", graph.inputs, loop, (outer[0],), (made,))


def _right_first(outer: Node, inner: Node, carry: Node, depends: Mapping[Node, int]) -> Node | None:
    """`(C P) B` as `C (P B)`, where B is thinner than P; None where the products are no such chain."""
    if not is_plain(outer) or outer.inputs[0] is not inner or depends[outer.inputs[1]] != FIXED:
        return None
    (of_inner,), (of_other,) = outer["dimension_numbers"][0]
    other = outer.inputs[1]
    if of_inner != inner.type.rank - 1 or other.type.rank > 2 or value_bytes([other]) >= value_bytes([carry]):
        return None
    pair = {"dimension_numbers": (((1,), (of_other,)), ((), ()))}
    return mk(
        inner.op, inner.inputs[0], mk(outer.op, carry, other, **{**dict(outer.attrs), **pair}), **dict(inner.attrs)
    )


def _is_layers(loop: Node) -> bool:
    """Whether a loop is a few trips with weights of their own: a product of what is carried with a row."""
    parts = LoopParts(loop)
    nodes, depends = parts.body.nodes(), parts.depends()
    if parts.length > STEPS or any(bodies_of(n) or n.op == "opaque" for n in nodes):
        return False

    def kinds(node: Node) -> set[int]:
        return {depends[x] for x in node.inputs}

    return parts.length == 1 or any(_is_product(n) and kinds(n) == {ROW, CARRIED} for n in nodes)


def _stacked(loop: Node, values: Sequence[Node], depends: dict[Node, int]) -> tuple[Node, ...] | None:
    """Values of a body for all trips at once, over the loop's operands; None where they cannot be made."""
    parts = LoopParts(loop)
    operands, (_, _, rows) = parts.operands(), parts.split(parts.body.inputs)
    same = [x for x in values if depends[x] == FIXED]
    images = dict(zip(same, replace(same, operands), strict=True))
    varying = tuple(x for x in values if depends[x] == ROW)
    if varying:
        read = tuple(dict.fromkeys(x for x in topological(varying) if x.op == "input"))
        axes = tuple(0 if x in rows else None for x in read)
        graph = Graph(read, varying)
        batched = _traced(jax.vmap(to_jax(graph), in_axes=axes), [operands[x] for x in read], graph)
        if batched is None:
            return None
        given = dict(zip(batched.inputs, (operands[x] for x in read), strict=True))
        images |= dict(zip(varying, replace(batched.outputs, given), strict=True))
    return tuple([images[x] for x in values])


def _traced(fn: Callable[..., Any], operands: Sequence[Node], of: Graph) -> Graph | None:
    """The graph of a function of such operands, made of this graph; None where JAX computes a part of it alone."""
    try:
        with enabled_x64(needs_x64(of)):
            specs = [jax.ShapeDtypeStruct(_sizes(x), x.dtype) for x in operands]
            made = import_function(fn, specs).graph
    except SuperoptError:
        return None
    return None if made.constants or any(n.op == "opaque" for n in made.nodes()) else made


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple([n for n in node.shape if isinstance(n, int)])  # a loop's operands have no symbolic sizes here
