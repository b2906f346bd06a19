"""A kernel as the steps that XLA:CPU runs it in.

XLA calls a routine for each heavy op (product, convolution, window reduction, prefix reduction) and compiles
everything else into loops: one per materialised value, elementwise producers and views fused into it.  A value is
materialised when it is a result, a heavy op reads or makes it, a reduction makes it, or it is expensive and several
steps read it.

Inside a loop a node is *evaluated* once per element that its readers ask for (broadcasts repeat, slices leave out),
and a leaf is *touched* in as many distinct elements as the loop sees of it.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

from superopt.ir.graph import Graph, Node

REDUCE = frozenset(f"reduce_{r}" for r in ("sum", "max", "min", "prod", "and", "or", "xor")) | {"argmax", "argmin"}
WINDOW = frozenset(f"reduce_window_{r}" for r in ("sum", "max", "min"))
PREFIX = frozenset(("cumsum", "cumprod", "cummax", "cummin"))
CONTROL = frozenset(("while", "cond", "scan", "opaque"))
HEAVY = WINDOW | PREFIX | CONTROL | {"dot_general", "conv_general_dilated", "dynamic_update_slice"}
VIEW = frozenset((
    "broadcast_in_dim", "reshape", "regroup", "transpose", "rev", "slice", "pad", "concatenate", "iota",
    "dynamic_slice", "gather",
))  # fmt: skip
CHEAP = frozenset((
    "neg", "abs", "square", "add", "sub", "mul", "max", "min", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt",
    "ge", "select_n", "clamp", "convert_element_type", "floor", "ceil", "round", "sign", "is_finite", "shift_left",
    "shift_right_logical", "shift_right_arithmetic", "integer_pow",
))  # fmt: skip
LEAF = frozenset(("input", "literal", "result"))  # a result of an op with several is read like an input


@dataclass(slots=True)
class Step:
    """One routine call or one loop.

    Attributes:
        root: the value that the step materialises.
        evaluations: node fused into the step -> how many elements of it are computed.
        touched: leaf -> distinct elements read.
        loads: leaf -> element reads.
        strided: leaf -> the part of `loads` whose neighbours in the loop are not neighbours in memory.
    """

    root: Node
    evaluations: dict[Node, float]
    touched: dict[Node, float]
    loads: dict[Node, float]
    strided: dict[Node, float]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the walk over a kernel asks of a node again and again; made once per node.

    Attributes:
        size: elements of the (first) result.
        heavy: see `is_heavy`.
        turns: whether reading through the node leaves the order of memory.
        free: whether the node is its operand in other words, without cost.
        view, fused: whether elements are asked for at other indices; whether repeating the node is cheap.
    """

    size: int
    heavy: bool
    turns: bool
    free: bool
    view: bool
    fused: bool


_FACTS: weakref.WeakKeyDictionary[Node, Facts] = weakref.WeakKeyDictionary()


def facts(node: Node) -> Facts:
    """Facts of a node, remembered."""
    found = _FACTS.get(node)
    if found is None:
        size = math.prod(int(n) for n in node.types[0].shape)  # pyright: ignore[reportArgumentType] (concrete sizes)
        free = node.op == "reshape" or (node.op == "broadcast_in_dim" and size == elements(node.inputs[0]))
        view = node.op in VIEW
        found = Facts(size, _heavy(node), _turns(node), free, view, view or node.op in CHEAP)
        _FACTS[node] = found
    return found


def is_heavy(node: Node) -> bool:
    """Whether XLA calls a routine for the op; it multiplies elementwise where a product sums over one element only."""
    return facts(node).heavy


def _heavy(node: Node) -> bool:
    if node.op != "dot_general":
        return node.op in HEAVY
    contracted = node["dimension_numbers"][0][0]
    shape = node.inputs[0].shape
    return any(shape[axis] != 1 for axis in contracted)


def elements(node: Node) -> int:
    """Number of elements of a tensor."""
    return facts(node).size


def steps(graph: Graph) -> list[Step]:
    """The steps of a kernel in execution order."""
    order = graph.nodes()
    if len(graph.outputs) == 1 and len(order) == 1 + len(graph.outputs[0].inputs) and is_heavy(order[-1]):
        return [_step(order[-1], set(order[-1:]), order)]  # one routine on what is given
    kept = _materialised(graph, order)
    return [_step(node, kept, order) for node in order if node in kept]


def operand(node: Node) -> Node:
    """The value behind free reshapes: a reshape of a row-major tensor is the same memory."""
    while facts(node).free:
        node = node.inputs[0]
    return node


def _materialised(graph: Graph, order: list[Node]) -> set[Node]:
    kept: set[Node] = set()

    def keep(node: Node) -> None:
        source = operand(node)
        if source.op == "result":
            kept.add(source.inputs[0])
        elif source.op not in LEAF:
            kept.add(source)

    for output in graph.outputs:
        keep(output)
    for node in order:
        op = node.op
        if facts(node).heavy:
            kept.add(node)
            for x in node.inputs:
                keep(folded(node, x))
        elif op in REDUCE:
            kept.add(node)
        elif op == "broadcast_in_dim" and not facts(node).free:
            source = operand(node.inputs[0])
            if not facts(source).fused and source.op not in LEAF:  # would be computed once per copy
                kept.add(source)
    # an expensive value that several steps would compute again is stored instead
    if len(kept) == 1 and kept == set(graph.outputs):
        return kept
    readers: dict[Node, set[Node]] = {}
    for node in reversed(order):
        if node in kept or node.op in LEAF:
            into = {node} if node in kept else set[Node]()
        else:
            into = readers.get(node, set())
            if len(into) > 1 and not facts(node).fused:
                kept.add(node)
                into = {node}
        for x in node.inputs:
            readers.setdefault(x, set()).update(into)
    return kept


def folded(node: Node, x: Node) -> Node:
    """The operand that a heavy op reads: products and convolutions take transposes into their dimension numbers."""
    if node.op in ("dot_general", "conv_general_dilated") and is_heavy(node):
        while x.op == "transpose":
            x = x.inputs[0]
    return x


def _step(root: Node, kept: set[Node], order: list[Node]) -> Step:
    step = Step(root, {}, {}, {}, {})
    if is_heavy(root):
        for x in root.inputs:
            _read(step, operand(folded(root, x)), elements(x), elements(x), strided=False)
        return step
    # nodes from the root down to what is materialised or given, readers before operands
    inside = [n for n in reversed(_closure(root, kept, order)) if n.op not in LEAF]
    same: dict[Node, float] = {}  # asked for by elementwise readers: at one index, computed once
    moved: dict[Node, float] = {}  # asked for through views: at other indices, computed again
    seen: dict[Node, float] = {root: float(elements(root))}
    turned: dict[Node, bool] = {root: False}
    same[root] = float(elements(root))
    for node in inside:
        count = same.get(node, 0.0) + moved.get(node, 0.0)
        step.evaluations[node] = count
        for k, x in enumerate(node.inputs):
            asked, visible, view = _asked(node, k, x, count, seen[node])
            stride = turned[node] or facts(node).turns
            if x in kept or x.op in ("input", "result"):
                _read(step, x, asked, visible, strided=stride)
                continue
            if x.op == "literal":
                continue
            if view:
                moved[x] = moved.get(x, 0.0) + asked
            else:
                same[x] = max(same.get(x, 0.0), asked)
            seen[x] = min(seen.get(x, 0.0) + visible, float(elements(x)))
            turned[x] = turned.get(x, False) or stride
    return step


def _closure(root: Node, kept: set[Node], order: list[Node]) -> list[Node]:
    inside: set[Node] = set()
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if node in inside:
            continue
        inside.add(node)
        stack.extend(x for x in node.inputs if x not in kept)
    return [n for n in order if n in inside]


def _asked(node: Node, k: int, x: Node, count: float, visible: float) -> tuple[float, float, bool]:
    """Evaluations and distinct elements of operand `k` that `node` asks for; whether they are at other indices."""
    size = float(elements(x))
    if node.op in REDUCE:
        return size, size, True
    if node.op in ("broadcast_in_dim", "dot_general"):
        return count, size, True
    if node.op == "concatenate":
        share = size / max(1.0, float(elements(node)))
        return count * share, visible * share, True
    if node.op == "pad":
        return (
            (min(count, size * math.ceil(count / max(1.0, float(elements(node))))), size, True)
            if k == 0
            else (0.0, 0.0, True)
        )
    if node.op in ("gather", "dynamic_slice"):
        return (count, visible, True) if k == 0 else (size, size, True)
    return count, min(visible, size), facts(node).view


def _turns(node: Node) -> bool:
    """Whether reading through this node leaves the order of memory."""
    if node.op == "transpose":
        order = [int(axis) for axis in node["permutation"] if node.inputs[0].shape[axis] != 1]
        return bool(order) and order[-1] != max(order)
    if node.op == "slice":
        return int(node["strides"][-1]) > 1 if node["strides"] else False
    if node.op == "rev":
        return bool(node["dimensions"]) and max(node["dimensions"]) == node.type.rank - 1
    return False


def _read(step: Step, leaf: Node, loads: float, touched: float, *, strided: bool) -> None:
    step.loads[leaf] = step.loads.get(leaf, 0.0) + loads
    step.touched[leaf] = min(step.touched.get(leaf, 0.0) + touched, float(elements(leaf)))
    if strided:
        step.strided[leaf] = step.strided.get(leaf, 0.0) + loads
