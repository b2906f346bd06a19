"""Loops as programs: the parts of a `scan`, and the same results with less work in its body.

    hoisted     Values of the body that do not depend on its carries come from outside: of all trips at once.
    sunk        What only a result of all trips needs is computed behind the loop, from the values that it reads.
    counted     A carry that grows by a literal each trip is a row of a sequence.
    summed      A carry that only adds a row each trip, scaled or not, is a sum over the rows.
    powered     A carry that each trip multiplies by one matrix is multiplied by a power of it.
    projected   A carry that each trip multiplies on one side, and that is read through one product on its other side,
                is carried as that product.
    unrolled    A loop of few trips is the trips, one after the other (`superopt.ir.inline`).

Each function maps a loop to nodes for its results, in their order.  That `hoisted` keeps the values rests on the
equality of the values with their stacks, which is proved elsewhere; the others hold by the meaning of a scan alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.index import Size
from superopt.ir.inline import steps
from superopt.ir.ops.table import PRODUCTS, VIEWS, lookup
from superopt.ir.program import replace, type_bytes
from superopt.ir.types import FLOATS

_COUNTERS = ("int32", "int64", "uint32", "uint64")  # a number of trips fits these
_Given = list[tuple[Node, Node]]  # inputs of a body with their operands

FIXED, ROW, CARRIED = range(3)
"""Kinds of inputs that a value of a body depends on: the same each trip, the row of the trip, or a carry."""


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The operands of a scan and the inputs of its body, by role."""

    loop: Node

    @property
    def body(self) -> Graph:
        """The body."""
        return self.loop["body"]

    @property
    def length(self) -> int:
        """The number of trips."""
        return int(self.loop["length"])

    def split(self, values: Sequence[Node]) -> tuple[list[Node], list[Node], list[Node]]:
        """Operands, or inputs of the body, as those that stay the same, carries and rows."""
        fixed, carries = self.loop["num_consts"], self.loop["num_consts"] + self.loop["num_carry"]
        return list(values[:fixed]), list(values[fixed:carries]), list(values[carries:])

    def depends(self) -> dict[Node, int]:
        """Return the kind of input that each value depends on.

        Control flow and unknown ops over rows count as carried: they are not computed for all trips at once.
        """
        kinds: dict[Node, int] = {}
        for kind, inputs in enumerate(map(list, self._inputs())):
            kinds |= dict.fromkeys(inputs, kind)
        for node in self.body.nodes():
            if node not in kinds:
                kind = max((kinds[x] for x in node.inputs), default=FIXED)
                kinds[node] = CARRIED if kind == ROW and is_stuck(node) else kind
        return kinds

    def _inputs(self) -> tuple[list[Node], list[Node], list[Node]]:
        fixed, carries, rows = self.split(self.body.inputs)
        return fixed, rows, carries

    @property
    def given(self) -> tuple[_Given, _Given, _Given]:
        """Inputs of the body with their operands, by role."""
        fixed, carries, rows = (
            list(zip(inputs, operands, strict=True))
            for inputs, operands in zip(self.split(self.body.inputs), self.split(self.loop.inputs), strict=True)
        )
        return fixed, carries, rows

    def operands(self) -> dict[Node, Node]:
        """Input of the body -> the operand that it stands for, whole where it is a row."""
        return dict(zip(self.body.inputs, self.loop.inputs, strict=True))


def is_stuck(node: Node) -> bool:
    """Whether a node is control flow or unknown, so that it is not computed for all trips at once."""
    return node.op in ("scan", "while", "cond", "opaque", "result", "macro")


def is_closed(value: Node) -> bool:
    """Whether a value is computed from no input."""
    return all(x.op != "input" for x in topological((value,)))


def results_of(loop: Node) -> tuple[Node, ...]:
    """The nodes of a loop's results."""
    return (loop,) if len(loop.types) == 1 else tuple([mk("result", loop, index=i) for i in range(len(loop.types))])


def hoisted(loop: Node, values: Sequence[Node], stacks: Sequence[Node]) -> tuple[Node, ...]:
    """The results of a loop whose body reads these values of it in place of computing them.

    Args:
        loop: a scan.
        values: values of its body that depend on no carry.
        stacks: the same for all trips, trips first; or for any, where a value is the same each trip.
    """
    parts, depends = LoopParts(loop), LoopParts(loop).depends()
    fixed, carries, rows = parts.given
    fresh: dict[Node, Node] = {}
    for value, name, stack in zip(values, _free_names(parts.body, len(values)), stacks, strict=True):
        known = all(x["frozen"] for x in topological((value,)) if x.op == "input")
        fresh[value] = make_input(name, value.shape, value.dtype, frozen=known and depends[value] == FIXED)
        (rows if depends[value] == ROW else fixed).append((fresh[value], stack))
    return _loop(loop, replace(parts.body.outputs, fresh), fixed, carries, rows)


def sources(value: Node) -> tuple[Node, ...]:
    """Values of which elementwise ops, views and positions make a value; the value itself where they do not."""
    below: dict[Node, None] = {}
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if node.op in ("literal", "iota"):
            continue
        if node.op in VIEWS or lookup(node.op).family == "elementwise":
            waiting += node.inputs
        else:
            below[node] = None
    return tuple(below)


def is_spread(value: Node) -> bool:
    """Whether a value is larger than what elementwise ops, views and positions make it of."""
    return value_bytes([value]) > value_bytes(sources(value))


def entered(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop whose body makes a value that is the same each trip of what it is made of outside."""
    parts = LoopParts(loop)
    fixed, carries, rows = parts.given
    inside, value = fixed.pop(number)
    given = sources(value)
    fresh: dict[Node, Node] = {}
    for source, name in zip(given, _free_names(parts.body, len(given)), strict=True):
        known = source.op == "input" and source["frozen"]
        fresh[source] = make_input(name, source.shape, source.dtype, frozen=known)
        fixed.append((fresh[source], source))
    return _loop(loop, replace(parts.body.outputs, {inside: replace((value,), fresh)[0]}), fixed, carries, rows)


def _free_names(body: Graph, count: int) -> list[str]:
    """Names that no input of a body has."""
    taken = {str(x["name"]) for x in body.inputs}
    return [name for k in range(len(taken) + count) if (name := f"h{k}") not in taken][:count]


def tail_of(loop: Node, number: int) -> tuple[list[Node], list[Node]]:
    """The end of a result of all trips that a loop does not need, and the carried values that it reads.

    The end begins with products of carried values and what is the same each trip.  It is empty where other results or
    the carries need it.
    """
    parts = LoopParts(loop)
    depends, outputs = parts.depends(), parts.body.outputs
    if not loop["num_carry"] <= number < len(outputs):
        return [], []
    needed = set(topological((*outputs[:number], *outputs[number + 1 :])))
    tail: dict[Node, None] = {}
    for node in topological((outputs[number],)):
        if node in needed or depends[node] != CARRIED:
            continue
        if any(x in tail for x in node.inputs) or (
            node.op in PRODUCTS and any(depends[x] == FIXED for x in node.inputs)
        ):
            tail[node] = None
    read = dict.fromkeys(x for node in tail for x in node.inputs if x not in tail and depends[x] == CARRIED)
    return list(tail), list(read)


def sunk(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop in which the end of the result of this number is computed by a loop without carries."""
    parts = LoopParts(loop)
    fixed, carries, rows = parts.given
    outputs = parts.body.outputs
    _, read = tail_of(loop, number)
    kept = (*outputs[:number], *outputs[number + 1 :])
    made = _loop(loop, (*kept, *read), fixed, carries, rows)
    names = _free_names(parts.body, len(read))
    fresh = {x: make_input(name, x.shape, x.dtype) for x, name in zip(read, names, strict=True)}
    stacks = zip(fresh.values(), made[len(kept) :], strict=True)
    (result,) = _loop(loop, replace((outputs[number],), fresh), fixed, [], [*rows, *stacks])
    return (*made[:number], result, *made[number : len(kept)])


def _loop(loop: Node, outputs: Sequence[Node], fixed: _Given, carries: _Given, rows: _Given) -> tuple[Node, ...]:
    """The results of a loop with this body; what needs no loop is taken out of it."""
    count, length = len(carries), loop["length"]
    kept = [i for i, (x, _) in enumerate(carries) if outputs[i] is not x]
    fixed = [*fixed, *(pair for i, pair in enumerate(carries) if i not in kept)]
    outside: dict[int, Node] = {i: carries[i][1] for i in range(count) if i not in kept}
    stacks = dict(rows)
    for i, y in enumerate(outputs[count:], count):
        if y in stacks:
            outside[i] = stacks[y]
        elif y in (same := dict(fixed)):
            shape = (length, *y.shape)
            outside[i] = mk("broadcast_in_dim", same[y], shape=shape, broadcast_dimensions=range(1, len(shape)))
    inside = [i for i in range(len(outputs)) if i not in outside]
    if inside:
        body_outputs = tuple([outputs[i] for i in inside])
        read = {node for node in topological(body_outputs) if node.op == "input"}
        fixed, rows = [p for p in fixed if p[0] in read], [p for p in rows if p[0] in read]
        given = [*fixed, *(carries[i] for i in kept), *rows]
        body = Graph(tuple([x for x, _ in given]), body_outputs)
        made = mk(
            "scan", *(operand for _, operand in given), body=body, num_consts=len(fixed), num_carry=len(kept),
            length=length, reverse=loop["reverse"], unroll=loop["unroll"],
        )  # fmt: skip
        outside |= dict(zip(inside, results_of(made), strict=True))
    return tuple([outside[i] for i in range(len(outputs))])


def _without_carry(
    loop: Node, number: int, result: Node, fixed: _Given, carries: _Given, rows: _Given
) -> tuple[Node, ...]:
    """The results of a loop in which one carry is not computed; its result is given, the other carries are as here."""
    outputs = loop["body"].outputs
    others = _loop(loop, (*outputs[:number], *outputs[number + 1 :]), fixed, carries, rows)
    return (*others[:number], result, *others[number:])


def counters(loop: Node) -> tuple[int, ...]:
    """The carries of a loop that grow by an integer literal each trip."""
    parts = LoopParts(loop)
    _, carries, _ = parts.split(parts.body.inputs)
    return tuple([i for i, x in enumerate(carries) if _growth(parts.body.outputs[i], x) is not None])


def _growth(result: Node, carry: Node) -> int | None:
    """The integer that a carry of a body grows by; None where it is anything else."""
    if carry.shape or carry.dtype not in _COUNTERS or result.op != "add" or carry not in result.inputs:
        return None
    other = result.inputs[1] if result.inputs[0] is carry else result.inputs[0]
    return int(other["value"]) if other.op == "literal" else None


def counted(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop in which the carry of this number, which grows by a literal, is a row."""
    parts = LoopParts(loop)
    fixed, carries, rows = parts.given
    carry, first = carries.pop(number)
    growth = _growth(parts.body.outputs[number], carry)
    assert growth is not None
    length, dtype = loop["length"], carry.dtype
    trips = mk("iota", shape=(length,), dtype=dtype, dimension=0)
    if loop["reverse"]:
        trips = mk("sub", _filled(literal(length - 1, dtype), length), trips)
    sequence = mk("add", _filled(first, length), mk("mul", _filled(literal(growth, dtype), length), trips))
    rows.append((carry, sequence))
    last = mk("add", first, literal(_wrapped(growth * length, dtype), dtype))
    return _without_carry(loop, number, last, fixed, carries, rows)


def _wrapped(value: int, dtype: str) -> int:
    """An integer as its type keeps it."""
    width = int(dtype.strip("uint"))
    value %= 1 << width
    return value - (1 << width) if not dtype.startswith("u") and value >> (width - 1) else value


def _filled(x: Node, length: int) -> Node:
    return mk("broadcast_in_dim", x, shape=(length,), broadcast_dimensions=())


def sums(loop: Node) -> tuple[int, ...]:
    """The carries of a loop to which each trip adds what depends on no carry, and which nothing else reads.

    The carry may be scaled before that, by a literal that lets it decay.
    """
    parts = LoopParts(loop)
    depends, (_, carries, _) = parts.depends(), parts.split(parts.body.inputs)
    readers: dict[Node, int] = {}
    for node in parts.body.nodes():
        for x in node.inputs:
            readers[x] = readers.get(x, 0) + 1
    outputs = parts.body.outputs
    return tuple(
        i
        for i, carry in enumerate(carries)
        if outputs[i].op == "add"
        and (decayed := _decayed(outputs[i], carry)) is not None
        and any(depends[x] == ROW for x in outputs[i].inputs)
        and readers[carry] == readers[decayed] == 1
        and readers.get(outputs[i], 0) == 0
        and sum(x in (carry, decayed, outputs[i]) for x in outputs) == 1
    )


def _decayed(total: Node, carry: Node) -> Node | None:
    """The summand that is a carry, or its product with a literal that lets it decay."""
    for x in total.inputs:
        if x is carry or (carry in x.inputs and _decay(x) is not None):
            return x
    return None


def _decay(product: Node) -> Node | None:
    """The literal of at most 1 by which a product scales floats; None where it is anything else."""
    if product.op != "mul" or product.dtype not in FLOATS:
        return None
    for x in map(_source, product.inputs):
        if x.op == "literal" and abs(x["value"]) <= 1:  # powers of more may be infinite where rows are zero
            return x
    return None


def _source(x: Node) -> Node:
    """The value of which a node is the broadcast, or the node."""
    while x.op == "broadcast_in_dim":
        (x,) = x.inputs
    return x


def adds_row(loop: Node, number: int) -> bool:
    """Whether what is added to this carry of `sums` is a row itself."""
    parts = LoopParts(loop)
    return any(x in parts.split(parts.body.inputs)[2] for x in parts.body.outputs[number].inputs)


def summed(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop in which the carry of this number, to which a row is added, is a sum outside of it."""
    parts = LoopParts(loop)
    fixed, carries, rows = parts.given
    carry, first = carries.pop(number)
    result = parts.body.outputs[number]
    decayed = _decayed(result, carry)
    stack = dict(rows)[next(x for x in result.inputs if x is not decayed)]
    factor = None if decayed is None or decayed is carry else _decay(decayed)
    if factor is not None:
        first, stack = _weighted(first, stack, factor, bool(loop["reverse"]))
    total = mk("add", first, mk("reduce_sum", stack, axes=(0,)))
    return _without_carry(loop, number, total, fixed, carries, rows)


def _weighted(first: Node, stack: Node, factor: Node, reverse: bool) -> tuple[Node, Node]:
    """The first value of a carry and the rows that are added to it, each with the factors of the trips behind it."""
    length, *rest = (int(n) for n in stack.shape)  # pyright: ignore[reportArgumentType] -- a known number of trips
    ends = [_filled(factor, length), _filled(literal(1.0, factor.dtype), 1)]
    ones = mk("concatenate", *(ends[::-1] if reverse else ends), dimension=0)
    powers_of = mk("cumprod", ones, axis=0, reverse=not reverse)
    begin = 0 if reverse else 1
    weights = mk("slice", powers_of, start_indices=(begin,), limit_indices=(begin + length,))
    rows = mk("mul", stack, mk("broadcast_in_dim", weights, shape=stack.shape, broadcast_dimensions=(0,)))
    source, last = _source(first), length if reverse else 0
    if source.op == "literal" and source["value"] == 0:  # stays so, since no factor is more than 1
        return first, rows
    whole = mk("reshape", mk("slice", powers_of, start_indices=(last,), limit_indices=(last + 1,)), new_sizes=())
    return mk("mul", first, mk("broadcast_in_dim", whole, shape=rest, broadcast_dimensions=())), rows


def powers(loop: Node) -> tuple[int, ...]:
    """The carries of a loop that each trip multiplies by one and the same matrix, and which nothing else reads.

    The matrix is an operand of the loop, or computed from none of them.
    """
    parts = LoopParts(loop)
    fixed, carries, _ = parts.split(parts.body.inputs)
    outputs, nodes = parts.body.outputs, parts.body.nodes()

    def is_same(value: Node) -> bool:
        return value in fixed or is_closed(value)

    def is_power(carry: Node, result: Node) -> bool:
        if result.op not in PRODUCTS:
            return False
        left, right = result.inputs
        if carry is right and is_same(left):
            contracted = ((1,), (0,))
        elif carry is left and is_same(right):
            contracted = ((carry.type.rank - 1,), (0,))
        else:
            return False
        matrix = left if carry is right else right
        plain = result["dimension_numbers"] == (contracted, ((), ())) and result.type == carry.type
        alone = sum(carry in n.inputs for n in nodes) == 1 and not any(result in n.inputs for n in nodes)
        return plain and alone and matrix.type.rank == 2 and sum(x in (carry, result) for x in outputs) == 1

    return tuple([i for i, carry in enumerate(carries) if is_power(carry, outputs[i])])


def powered(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop in which the carry of this number is multiplied by a power of its matrix outside of it."""
    parts = LoopParts(loop)
    fixed, carries, rows = parts.given
    carry, first = carries.pop(number)
    outputs = parts.body.outputs
    step = outputs[number]
    matrix, left = next((dict(fixed).get(x, x), i == 0) for i, x in enumerate(step.inputs) if x is not carry)
    square = {**dict(step.attrs), "dimension_numbers": (((1,), (0,)), ((), ()))}
    result, power, trips = first, matrix, parts.length
    if first is matrix:
        result, trips = None, trips + 1
    while trips:
        if trips % 2:
            if result is None:
                result = power
            else:
                result = mk(step.op, *((power, result) if left else (result, power)), **dict(step.attrs))
        trips //= 2
        if trips:
            power = mk(step.op, power, power, **square)
    assert result is not None
    return _without_carry(loop, number, result, fixed, carries, rows)


def projections(loop: Node) -> dict[int, Node]:
    """The carries of a loop that are matrices and can be carried as a product with another, and that product.

    Each trip multiplies such a carry by a matrix that stays the same.  All else that reads it is one product, on its
    other side, with what stays the same too.
    """
    parts = LoopParts(loop)
    depends, (_, carries, _) = parts.depends(), parts.split(parts.body.inputs)
    nodes, outputs = parts.body.nodes(), parts.body.outputs
    products: dict[int, Node] = {}
    for number, carry in enumerate(carries):
        step = outputs[number]
        side = fixed_side(step, carry, depends)
        others = [n for n in nodes if carry in n.inputs and n is not step]
        if side is None or len(others) != 1 or sum(x in (carry, step) for x in outputs) > 1:
            continue
        seen = others[0]
        if fixed_side(seen, carry, depends) == 1 - side and not any(step in n.inputs for n in nodes):
            products[number] = seen
    return products


def fixed_side(product: Node, carry: Node, depends: Mapping[Node, int]) -> int | None:
    """The operand of a product of a carried matrix, 0 or 1, that stays the same; None where it is no such product."""
    if product.op not in PRODUCTS or carry.type.rank != 2 or product.inputs.count(carry) != 1:
        return None
    side = 1 - product.inputs.index(carry)
    (contracted, batch), other = product["dimension_numbers"], product.inputs[side]
    inner = contracted[1 - side] == (side,) and not batch[0]  # the axis of the carry next to the other operand
    last = (0,) if side else (other.type.rank - 1,)
    return side if inner and contracted[side] == last and depends[other] == FIXED and other.type.rank < 3 else None


def next_product(step: Node, carry: Node, instead: Node) -> Node:
    """The product by which a trip multiplies a carried matrix, of its product with another matrix or vector."""
    operands = [instead if x is carry else x for x in step.inputs]
    contracted = ((instead.type.rank - 1,), (0,)) if operands[0] is instead else step["dimension_numbers"][0]
    return mk(step.op, *operands, **{**dict(step.attrs), "dimension_numbers": (contracted, ((), ()))})


def projected(loop: Node, number: int) -> tuple[Node, ...]:
    """The results of a loop in which the carry of this number is carried as its product with another matrix.

    Only the result of that carry itself still needs the loop as it was.
    """
    parts, seen = LoopParts(loop), projections(loop)[number]
    fixed, carries, rows = parts.given
    carry, first = carries[number]
    outputs, step = parts.body.outputs, parts.body.outputs[number]
    start = replace((seen,), {**dict(fixed), carry: first})[0]
    (name,) = _free_names(parts.body, 1)
    fresh = make_input(name, seen.shape, seen.dtype)
    carries[number] = (fresh, start)
    others = replace((*outputs[:number], *outputs[number + 1 :]), {seen: fresh})
    made = _loop(loop, (*others[:number], next_product(step, carry, fresh), *others[number:]), fixed, carries, rows)
    return (*made[:number], results_of(loop)[number], *made[number + 1 :])


def unrolled(loop: Node) -> tuple[Node, ...]:
    """The results of a loop as its trips, one after the other."""
    return steps(loop, loop.inputs)


def row_of(stack: Node, trip: Size) -> Node:
    """The row of a stack at a symbolic trip."""
    rest = stack.shape[1:]
    start, limit = (trip, *[0] * len(rest)), (trip + 1, *rest)
    return mk("reshape", mk("slice", stack, start_indices=start, limit_indices=limit), new_sizes=rest)


def value_bytes(nodes: Sequence[Node]) -> int:
    """Bytes of these values together."""
    return sum(type_bytes(node.type) for node in nodes)


def loops_of(graph: Graph) -> list[Node]:
    """The scans of a graph with a known number of trips, operands first; those in bodies are not looked for."""
    return [n for n in graph.nodes() if n.op == "scan" and isinstance(n["length"], int)]


def with_results(graph: Graph, loop: Node, results: Sequence[Node]) -> Graph:
    """The graph with the results of a loop replaced."""
    mapping = {old: new for old, new in zip(results_of(loop), results, strict=True) if old is not new}
    return Graph(graph.inputs, replace(graph.outputs, mapping), graph.constants)
