"""Builds loop programs from graphs, and checks that they are well-formed.

`from_graph` denotes each output in the free algebra: movement, broadcasts and elementwise producers disappear into the
index and the value of its stage.  The caller decides which values are kept in memory between stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from superopt.errors import InputError
from superopt.ir.denote import denote
from superopt.ir.expr import Expr, Loops, const, load, subexpressions, values_of
from superopt.ir.graph import Node, topological
from superopt.ir.index import Guard, Size, Symbol, iterator, symbols_of
from superopt.ir.ops.table import lookup
from superopt.ir.scalar import DTYPE
from superopt.kernels.loops.ranges import stage_fault
from superopt.kernels.loops.stage import Buffer, BufferScope, Loop, LoopProgram, Stage

SCOPES: tuple[BufferScope, ...] = ("input", "frozen", "output", "scratch", "local")


def from_graph(
    outputs: Sequence[Node],
    stop: Set[Node] = frozenset(),
    frozen: Set[str] | None = None,
    name: str = "kernel",
    scratch: Set[Node] | None = None,
) -> LoopProgram:
    """Return a loop program that computes these nodes, one stage each.

    Inputs keep their names.  Outputs are `out0`, `out1` ..., nodes of `stop` `t0`, `t1` ... and nodes of `scratch`
    `s0`, `s1` ... in topological order (with `_` appended where an input has the name).

    Args:
        outputs: nodes of concrete shapes, one buffer and one stage each.
        stop: nodes that are computed elsewhere and read from buffers; one that is also an output is computed here,
            and read by the outputs and scratch nodes above it instead of being computed again.
        frozen: names of the input buffers that do not change between calls (`t0` ... included); None: the inputs that
            the graph marks as frozen.
        name: name of the program.
        scratch: nodes kept in memory between stages, one stage each; None: those of `between_transforms`.

    Raises:
        InputError: a node without a value at one index, with a symbolic size or a dtype that kernels do not have.
    """
    order = topological(outputs)
    scratch = between_transforms(outputs, order) if scratch is None else scratch
    inputs = [n for n in order if n.op == "input"]
    taken = {n["name"] for n in inputs}
    names: dict[Node, str] = {n: n["name"] for n in inputs}
    results = [_unused(f"out{j}", taken) for j in range(len(outputs))]
    kept = [n for n in order if n in scratch and n not in outputs and n.op != "input"]
    read = [n for n in order if n in stop and n not in outputs and n not in scratch and n.op != "input"]
    names |= {n: _unused(f"t{j}", taken) for j, n in enumerate(read)}
    names |= {n: _unused(f"s{j}", taken) for j, n in enumerate(kept)}
    for j, n in reversed(list(enumerate(outputs))):
        if n in stop or n in scratch:
            names[n] = results[j]
    constant = {n["name"] for n in inputs if n["frozen"]} if frozen is None else frozen
    buffers = [_buffer(n, names[n], "frozen" if names[n] in constant else "input") for n in [*inputs, *read]]
    buffers += [_buffer(n, result, "output") for n, result in zip(outputs, results, strict=True)]
    buffers += [_buffer(n, names[n], "scratch") for n in kept]
    written = [(names[n], n) for n in kept] + list(zip(results, outputs, strict=True))
    written.sort(key=lambda pair: order.index(pair[1]))
    stages = [_stage(node, result, names) for result, node in written]
    return checked(LoopProgram(name, ordered(_reachable(buffers, stages)), tuple(stages)))


def between_transforms(outputs: Sequence[Node], order: Sequence[Node]) -> frozenset[Node]:
    """Return the product between two transforms (Winograd) and its operands; empty where there is none.

    It is the only product, its operands are computed, and one element of the output reads several of its elements. As a
    single expression the product and all its operands would be repeated for each of these.
    """
    products = [n for n in order if lookup(n.op).family == "contraction"]
    if len(products) != 1 or len(outputs) != 1 or products[0] is outputs[0] or 0 in outputs[0].shape:
        return frozenset()
    (product,) = products
    made = [x for x in product.inputs if any(_computes(n) for n in topological((x,)))]
    if not made:
        return frozenset()

    def read(node: Node, index: Sequence[Size]) -> Expr:
        return load("product" if node is product else "other", index, node.dtype)

    indices = [i for _, i in (iterator(f"o{d}", n) for d, n in enumerate(outputs[0].shape))]
    value = denote(outputs[0], Loops(), read, {product, *[n for n in order if n.op == "input"]})(*indices)
    several = sum(e.kind == "load" and e.args[0] == "product" for e in subexpressions(value)) > 1
    return frozenset([product, *made]) if several else frozenset()


def _computes(node: Node) -> bool:
    return lookup(node.op).family == "elementwise" and node.op != "convert_element_type"


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _buffer(node: Node, name: str, scope: BufferScope) -> Buffer:
    shape = [n for n in node.shape if isinstance(n, int)]
    if len(shape) != len(node.shape):
        raise InputError(f"{name} is {node.type}: a kernel needs concrete sizes")
    if node.dtype not in DTYPE:
        raise InputError(f"{name} is {node.type}: kernels have no {node.dtype}, only {', '.join(DTYPE)}")
    return Buffer(name, tuple(shape), node.dtype, scope)


def _stage(node: Node, result: str, names: dict[Node, str]) -> Stage:
    def read(other: Node, index: Sequence[Size]) -> Expr:
        return load(names[other], index, other.dtype)

    pairs = [iterator(f"o{d}", n) for d, n in enumerate(node.shape)]
    index = tuple([i for _, i in pairs])
    if 0 in node.shape:  # no element has a value
        value = const(0, node.dtype)
    elif node.op == "input":
        value = read(node, index)
    else:
        stop = {n for n, name in names.items() if name != result and n is not node}
        value = denote(node, Loops(), read, stop)(*index)
    return Stage(result, tuple([Loop(it) for it, _ in pairs]), index, value)


def _reachable(buffers: Iterable[Buffer], stages: Iterable[Stage]) -> list[Buffer]:
    """Drop the inputs that nothing reads (below a node of `stop`)."""
    used = {e.args[0] for s in stages for e in loads(s)}
    return [b for b in buffers if b.scope not in ("input", "frozen") or b.name in used]


def ordered(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """Sort buffers by scope."""
    return tuple(sorted(buffers, key=lambda b: SCOPES.index(b.scope)))


def loads(stage: Stage) -> list[Expr]:
    """Return the distinct loads of a stage: of its value, and of indices and guards that read tensors."""
    roots = [stage.value, *[e for x in stage.index for e in _read_by(x)]]
    if isinstance(stage.guard, Guard):
        roots += [e for p in stage.guard.ordered for e in _read_by(p)]
    expressions = dict.fromkeys(e for root in roots for e in subexpressions(root) if e.kind == "load")
    return list(expressions)


def _read_by(index: Size) -> list[Expr]:
    return list(values_of(index))


def reads(stage: Stage) -> set[str]:
    """Return the names of the buffers that a stage reads."""
    return {e.args[0] for e in loads(stage)}


def symbols(stage: Stage) -> frozenset[Symbol]:
    """Return the free symbols of index, value and guard."""
    return stage.value.symbols.union(symbols_of(stage.guard), *map(symbols_of, stage.index))


# ---- well-formedness


def checked(program: LoopProgram) -> LoopProgram:
    """Return the program, if it is well-formed.

    Raises:
        InputError: names the fault: names, ranks, dtypes, order of stages, kinds of axes, placement, ranges of knobs.
    """
    names = [b.name for b in program.buffers]
    _require(len(set(names)) == len(names), f"{program.name} has two buffers of one name: {names}")
    _require(program.buffers == ordered(program.buffers), f"the buffers of {program.name} are not in order of scope")
    known = {b.name: b for b in program.buffers}
    written = [s.buffer for s in program.stages]
    wanted = {b.name for b in program.buffers if b.scope not in ("input", "frozen")}
    _require(
        len(set(written)) == len(written) and set(written) == wanted,
        f"the stages of {program.name} write {written}, its buffers to fill are {sorted(wanted)}",
    )
    available = {b.name for b in program.buffers if b.scope in ("input", "frozen")}
    for stage in program.stages:
        _check_stage(stage, known)
        for e in loads(stage):
            buffer = known.get(e.args[0])
            _require(buffer is not None, f"stage {stage.buffer} reads {e.args[0]}, which is no buffer")
            assert buffer is not None
            _require(
                e.args[0] in available, f"stage {stage.buffer} reads {e.args[0]}, which is written later or by itself"
            )
            if e.dtype != buffer.dtype or len(e.args[1]) != len(buffer.shape):  # to print a load may take long
                raise InputError(
                    f"stage {stage.buffer} reads {e} as {e.dtype}; it is {buffer.dtype}{list(buffer.shape)}"
                )
        available.add(stage.buffer)
    for stage in program.stages:
        _check_placement(program, stage)
    return program


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _check_stage(stage: Stage, known: dict[str, Buffer]) -> None:
    axes = [a.symbol for a in stage.axes]
    buffer, name = known[stage.buffer], stage.buffer
    _require(len({a.name for a in axes}) == len(axes), f"stage {name} has two axes of one name: {axes}")
    for a in axes:
        _require(a.low == 0 and isinstance(a.high, int), f"axis {a} of stage {name} has no concrete range from 0")
    free = symbols(stage) - set(axes)
    _require(not free, f"stage {name} uses {sorted(s.name for s in free)}, which are not axes of it")
    _require(
        len(stage.index) == len(buffer.shape),
        f"stage {name} writes at an index of rank {len(stage.index)}; the buffer has rank {len(buffer.shape)}",
    )
    _require(stage.value.dtype == buffer.dtype, f"stage {name} writes {stage.value.dtype} to a {buffer.dtype} buffer")
    kinds = [a.kind for a in stage.axes]
    last = max((j for j, k in enumerate(kinds) if k == "parallel"), default=-1)
    _require(
        all(k == "parallel" for k in kinds[: last + 1]),
        f"the parallel axes of stage {name} are not its outermost: {[*zip(axes, kinds, strict=True)]}",
    )
    _require("vector" not in kinds[:-1], f"the vector axis of stage {name} is not its innermost: {axes}")
    fault = stage_fault(stage)
    _require(not fault, fault)


def _check_placement(program: LoopProgram, stage: Stage) -> None:
    """Raise unless a stage shares the axes it stands under with its host, in a local buffer read there alone."""
    name = stage.buffer
    if stage.at is None:
        _require(program.buffer(name).scope != "local", f"stage {name} fills a local buffer, but is a phase of its own")
        return
    host = program.stage(stage.at[0])
    count = stage.at[1]
    _require(
        0 <= count <= len(host.axes) and stage.axes[:count] == host.axes[:count],
        f"stage {name} stands under {count} axes of {host.buffer}, but does not begin with them: "
        f"{[str(a.symbol) for a in stage.axes]} and {[str(a.symbol) for a in host.axes]}",
    )
    _require(
        host.at is None or count >= host.at[1],
        f"stage {name} stands under {count} axes of {host.buffer}, which itself begins further in",
    )
    _require(
        all(a.kind != "parallel" for a in (*host.axes[count:], *stage.axes[count:])),
        f"stage {name} stands outside parallel axes of {host.buffer}, or has parallel axes of its own",
    )
    _require(program.buffer(name).scope == "local", f"stage {name} is placed inside {host.buffer}, but is not local")
    for other in program.stages:
        if name in reads(other):
            _require(
                under(program, other, host, count),
                f"stage {other.buffer} reads {name}, which is local to {host.buffer} under {count} axes",
            )


def under(program: LoopProgram, stage: Stage, host: Stage, count: int) -> bool:
    """Whether the stage runs within one iteration of the first `count` axes of `host`."""
    while stage is not host:
        if stage.at is None or stage.at[1] < count:
            return False
        stage = program.stage(stage.at[0])
    return True
