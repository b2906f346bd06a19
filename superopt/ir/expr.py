"""The free algebra: loop expressions, printable, hash-consed, and the source of every other algebra by folding.

    softmax   div(exp(sub(x[o0,o1], max_{r0<128} x[o0,r0])), sum_{r1<128} exp(sub(x[o0,o1], max_{r0<128} x[o0,r0])))
    heads     x[o0,o2,64*o1+o3]                             from transpose(reshape(x)): the reshape disappears.
    take      t[clip(value(ids[o0]),0,999),o1]

An expression is a load, a constant, a scalar function, a conversion, a choice under a guard, a reduction, or an index
as a scalar.  Equal expressions are one object.  The iterators of a reduction are named by its height (1 + the highest
reduction inside), so that equal reductions are one object wherever they occur.  Construction makes only exact
simplifications: choices with a known guard or equal branches, and reductions over extents 1 or 0.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from superopt.errors import InputError
from superopt.ir import denote as _denote
from superopt.ir.graph import Node, topological
from superopt.ir.index import (
    APPLY,
    Atom,
    Form,
    Guard,
    Poly,
    Symbol,
    Truth,
    all_of,
    bounds,
    clip,
    equal,
    evaluate,
    iterator,
    nonnegative,
    of_atom,
    substitute,
)
from superopt.ir.ops.record import identity, is_integer
from superopt.ir.scalar import DTYPE, SCALARS
from superopt.ir.types import Shape, Size, range_of


class Expr:
    """One expression; made through the functions below.

    Attributes:
        kind: load, const, op, convert, where, reduce or index.
        dtype: dtype of the value.
        args: load: buffer name, index; const: value; op: function, operand dtype, operands; convert: source dtype,
            operand; where: guard, then, else; reduce: monoid, iterators, body; index: the index.
        symbols: free symbols.
        height: 1 + the greatest height of a reduction inside; 0 without one.
        content: the cached `key`.
        operands: the expressions directly inside, those in indices excluded.
        indices: the indices directly inside: of a load, of the guard, or the index itself.
        inner: the expressions directly inside, those that indices read included.
    """

    __slots__ = (
        "__weakref__", "args", "content", "dtype", "height", "indices", "inner", "kind", "operands", "symbols"
    )  # fmt: skip

    kind: str
    dtype: str
    args: tuple[Any, ...]
    symbols: frozenset[Symbol]
    height: int
    content: str | None
    operands: tuple[Expr, ...]
    indices: tuple[Size, ...]
    inner: tuple[Expr, ...]

    def __repr__(self) -> str:
        return show(self)

    @property
    def key(self) -> str:
        """A text that identifies the content of the expression, in every process."""
        if self.content is None:
            for e in subexpressions(self):
                if e.content is None:
                    own = [x for x in e.args if isinstance(x, str | bool | int | float)]
                    over = [(s.name, s.high) for s in e.args[1]] if e.kind == "reduce" else []
                    inner = [x if isinstance(x, int) else x.key for x in (*e.operands, *e.indices)]
                    text = repr((e.kind, e.dtype, own, over, inner))
                    e.content = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        assert self.content is not None
        return self.content

    def substitute(self, mapping: Mapping[Symbol, Size]) -> Expr:
        """Return the expression with free symbols replaced."""
        return _substituted(self, mapping)

    def as_index(self) -> Size:
        """Return the expression as an index."""
        if self.kind == "const":
            return int(self.args[0])
        if self.kind == "index" and is_integer(self.dtype):
            (least, most), (low, high) = range_of(self.dtype), bounds(self.args[0])
            if least <= low and high <= most:
                return self.args[0]
        return of_atom(Form("value", (self,)))


_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()
_FRESH = itertools.count()  # names of iterators until they are named by their height


def _make(kind: str, dtype: str, *args: Any) -> Expr:
    """Return the one expression of this content, made now if there is none yet."""
    key = (kind, dtype, repr(args[0]) if kind == "const" else args)  # 0.0 == -0.0 == False
    known = _TABLE.get(key)
    if known is not None:
        return known
    made = Expr()
    made.kind, made.dtype, made.args, made.content = kind, dtype, args, None
    made.operands, made.indices = _parts(kind, args)
    read = [v for index in made.indices for v in values_of(index)]
    made.inner = (*made.operands, *read) if read else made.operands
    free = frozenset[Symbol]().union(*[x.symbols for x in made.operands])
    for index in made.indices:
        if isinstance(index, Poly):
            free |= index.symbols
    height = max([x.height for x in made.inner], default=0)
    if kind == "reduce":
        free -= frozenset(args[1])
        for it in args[1]:
            free |= frozenset() if isinstance(it.high, int) else it.high.symbols
        height += 1
    made.symbols, made.height = free, height
    with _LOCK:  # held for two look-ups: threads that wait for it wait for the interpreter as well
        known = _TABLE.get(key)
        if known is None:
            known = _TABLE[key] = made
    return known


def _parts(kind: str, args: tuple[Any, ...]) -> tuple[tuple[Expr, ...], tuple[Size, ...]]:
    """Return the operands and indices directly inside."""
    match kind:
        case "op" | "reduce":
            return args[2:], ()
        case "convert":
            return args[1:], ()
        case "where":
            return args[1:], tuple(args[0].ordered)
        case "load":
            return (), args[1]
        case "index":
            return (), args
        case _:
            return (), ()


def values_of(index: Size) -> Iterator[Expr]:
    """Yield the scalar expressions that an index reads."""
    for form in index.forms if isinstance(index, Poly) else ():
        if form.op == "value":
            yield form.args[0]
        else:
            for x in form.args:
                yield from values_of(x)


# ---- constructors


def const(value: bool | int | float, dtype: str) -> Expr:
    """A constant."""
    return _make("const", dtype, float(value) if DTYPE[dtype].kind not in "biu" else value)


def load(buffer: str, index: Sequence[Size], dtype: str) -> Expr:
    """An element of a buffer."""
    return _make("load", dtype, buffer, tuple(index))


def op(fn: str, dtype: str, *operands: Expr) -> Expr:
    """A scalar function on operands of this dtype."""
    return _make("op", SCALARS[fn].dtype(dtype), fn, dtype, *operands)


def convert(value: Expr, source: str, target: str) -> Expr:
    """The value in another dtype."""
    return _make("convert", target, source, value)


def where(guard: Truth, then: Callable[[], Expr], orelse: Callable[[], Expr]) -> Expr:
    """A choice; only the chosen branch is built where the guard is known."""
    if not isinstance(guard, Guard):
        return then() if guard else orelse()
    a, b = then(), orelse()
    return a if a is b else _make("where", a.dtype, guard, a, b)


def from_index(index: Size, dtype: str) -> Expr:
    """An index as a scalar."""
    return _make("index", dtype, index)


def reduce(monoid: str, iterators: Sequence[Symbol], body: Expr) -> Expr:
    """A reduction; iterators are renamed by height, those of extent 1 dropped."""
    if any(isinstance(it.high, int) and it.high < 0 for it in iterators):
        return const(identity(monoid, body.dtype), body.dtype)
    single: dict[Symbol, Size] = {it: 0 for it in iterators if isinstance(it.high, int) and it.high == 0}
    body = body.substitute(single)
    kept = [it for it in iterators if it not in single]
    if not kept:
        return body
    taken = {s.name for s in body.symbols if s not in kept}
    names = _names(body.height, len(kept))
    while not taken.isdisjoint(names):  # a free symbol that came in by substitution
        names = _names(int(names[0].split("_")[0][1:]) + 1, len(kept))
    if any(it.name != name for it, name in zip(kept, names, strict=True)):
        renamed = [Symbol(name, 0, it.high) for it, name in zip(kept, names, strict=True)]
        body = body.substitute({it: of_atom(new) for it, new in zip(kept, renamed, strict=True)})
        kept = renamed
    return _make("reduce", body.dtype, monoid, tuple(kept), body)


def _names(height: int, count: int) -> list[str]:
    return [f"r{height}"] if count == 1 else [f"r{height}_{j}" for j in range(count)]


# ---- the algebra


class Loops:
    """The free algebra: scalars are expressions, indices polynomials, guards conjunctions."""

    def const(self, value: bool | int | float, dtype: str) -> Expr:
        return const(value, dtype)

    def op(self, fn: str, dtype: str, *args: Expr) -> Expr:
        return op(fn, dtype, *args)

    def convert(self, value: Expr, source: str, target: str) -> Expr:
        return convert(value, source, target)

    def where(self, guard: Truth, then: Callable[[], Expr], orelse: Callable[[], Expr]) -> Expr:
        return where(guard, then, orelse)

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Expr], dtype: str) -> Expr:
        pairs = [iterator(f"?{next(_FRESH)}", n) for n in extents]
        if any(isinstance(n, int) and n == 0 for n in extents):
            return const(identity(monoid, dtype), dtype)
        return reduce(monoid, [it for it, _ in pairs], body(*[index for _, index in pairs]))

    def inverse(self, rows: Shape, columns: Shape, entry: Callable[..., Expr], at: Sequence[Size], dtype: str) -> Expr:
        raise InputError("no loop computes one entry of the inverse of a matrix", hint="name the node in `stop`")

    def to_index(self, value: Expr) -> Size:
        return value.as_index()

    def from_index(self, index: Size, dtype: str) -> Expr:
        return from_index(index, dtype)

    def clip(self, index: Size, low: Size, high: Size) -> Size:
        return clip(index, low, high)

    def all(self, *guards: Truth) -> Truth:
        return all_of(*guards)

    def eq(self, a: Size, b: Size) -> Truth:
        return equal(a, b)

    def regroup(self, index: Sequence[Size], outer: Shape, inner: Shape) -> Sequence[Size]:
        return _denote.regroup(index, outer, inner)


def block(root: Node, stop: Set[Node] = frozenset(), most: float = math.inf) -> tuple[tuple[Symbol, ...], Expr]:
    """Return output iterators `o0`, `o1` ... and the value of a node there, inlined down to inputs and `stop`.

    Buffers are named after inputs; the nodes of `stop` are `t0`, `t1` ... in topological order (`buffers`).

    Raises:
        TooLarge: more than `most` values of nodes at indices would be computed.
        InputError: a node without a value at one index is not in `stop`.
    """
    names = buffers(root, stop)

    def read(node: Node, index: Sequence[Size]) -> Expr:
        return load(names[node], index, node.dtype)

    pairs = [iterator(f"o{d}", n) for d, n in enumerate(root.shape)]
    value = _denote.denote(root, Loops(), read, stop, most=most)(*[index for _, index in pairs])
    return tuple([it for it, _ in pairs]), value


def buffers(root: Node, stop: Set[Node] = frozenset()) -> dict[Node, str]:
    """Return the buffer names that `block` uses."""
    names: dict[Node, str] = {}
    count = 0
    for node in topological((root,)):
        if node.op == "input":
            names[node] = node["name"]
        elif node in stop:
            names[node] = f"t{count}"
            count += 1
    return names


# ---- walking


def subexpressions(root: Expr) -> list[Expr]:
    """Return every expression in `root`, those that indices read included, each once, inner ones first."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack = [(root, False)]
    while stack:
        e, done = stack.pop()
        if done:
            order.append(e)
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            stack += [(x, False) for x in e.inner]
    return order


def _substituted(root: Expr, mapping: Mapping[Symbol, Size]) -> Expr:
    """Substitute symbols, iteratively but for reductions and indices, which nest only a few levels deep."""
    if root.symbols.isdisjoint(mapping):
        return root
    done: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        e = stack[-1]
        if e in done:
            stack.pop()
            continue
        if e.symbols.isdisjoint(mapping):
            done[e] = e
            continue
        if e.kind == "reduce":
            done[e] = _substituted_reduce(e, mapping)
            continue
        waiting = [x for x in e.operands if x not in done]
        if waiting:
            stack += waiting
            continue
        done[e] = with_parts(e, [done[x] for x in e.operands], lambda x: substitute(x, mapping))
    return done[root]


def with_parts(e: Expr, operands: Sequence[Expr], index: Callable[[Size], Size]) -> Expr:
    """Return the expression over other operands, with its indices and the sides of its guard replaced."""
    match e.kind:
        case "load":
            return load(e.args[0], [index(x) for x in e.args[1]], e.dtype)
        case "const":
            return e
        case "op":
            return op(e.args[0], e.args[1], *operands)
        case "convert":
            return convert(operands[0], e.args[0], e.dtype)
        case "where":
            guard = all_of(*[nonnegative(index(p)) for p in e.args[0].ordered])
            return where(guard, lambda: operands[0], lambda: operands[1])
        case "reduce":
            return reduce(e.args[0], e.args[1], operands[0])
        case _:
            return from_index(index(e.args[0]), e.dtype)


ExprChange = Callable[[Expr], "Expr | None"]


def rewrite(
    root: Expr,
    after: ExprChange | None = None,
    *,
    before: ExprChange | None = None,
    stand_in: Callable[[Expr], Expr] = lambda e: e,
) -> Expr:
    """Return the expression with parts replaced, those that its indices read included.

    Args:
        root: the whole.
        after: maps a part, with its own parts already replaced, to its replacement; None where it stays.
        before: maps an original part to its replacement, which is not searched again; None to continue inside the part.
        stand_in: maps an original part to the one that is searched in its place; itself where there is none.
    """
    done: dict[Expr, Expr] = {}
    stack, seen = [root], set[Expr]()
    while stack:
        e = stack[-1]
        if e in done:
            stack.pop()
            continue
        if before is not None and e not in seen:
            seen.add(e)
            new = before(e)
            if new is not None:
                done[e] = new
                continue
        other = stand_in(e)
        if other is not e:
            if other in done:
                done[e] = done[other]
            else:
                stack.append(other)
            continue
        waiting = [x for x in e.inner if x not in done]
        if waiting:
            stack += waiting
            continue
        same = e
        if any(done[x] is not x for x in e.inner):
            same = with_parts(e, [done[x] for x in e.operands], lambda x: over_values(x, done))
        image = any(same is done[x] for x in e.inner)  # a choice between equal images is one of them: changed already
        new = None if after is None or image else after(same)
        done[e] = same if new is None else new
    return done[root]


def with_loads(root: Expr, read: ExprChange) -> Expr:
    """Replace each load for which `read` returns a value, loads in indices included."""
    return rewrite(root, lambda e: read(e) if e.kind == "load" else None)


def over_values(x: Size, done: Mapping[Expr, Expr]) -> Size:
    """Return the index with the scalars that it reads replaced."""
    if all(done[v] is v for v in values_of(x)):
        return x

    def atom(a: Atom) -> Size:
        if isinstance(a, Symbol):
            return of_atom(a)
        if a.op == "value":
            return done[a.args[0]].as_index()
        return APPLY[a.op](*[over_values(y, done) for y in a.args])

    return evaluate(x, atom)


def reindexed(root: Expr, index: Callable[[Size], Size]) -> Expr:
    """Replace all indices and sides of guards of an expression, except those inside the scalars that indices read."""
    done: dict[Expr, Expr] = {}
    for e in subexpressions(root):
        done[e] = with_parts(e, [done[x] for x in e.operands], index)
    return done[root]


def _substituted_reduce(e: Expr, mapping: Mapping[Symbol, Size]) -> Expr:
    monoid, iterators, body = e.args
    inside: dict[Symbol, Size] = {s: v for s, v in mapping.items() if s not in iterators}
    fresh: list[Symbol] = []
    for it in iterators:  # fresh names: a replacement may mention the name of the iterator
        new, index = iterator(f"?{next(_FRESH)}", substitute(it.high, mapping) + 1)
        fresh.append(new)
        inside[it] = index
    return reduce(monoid, fresh, body.substitute(inside))


# ---- printing


def show(e: Expr) -> str:
    """Print the expression in mathematical notation."""
    match e.kind:
        case "load":
            return f"{e.args[0]}[{','.join(map(str, e.args[1]))}]"
        case "const":
            value = e.args[0]
            return f"{value:g}" if isinstance(value, float) else str(value)
        case "op":
            return f"{e.args[0]}({', '.join(map(show, e.args[2:]))})"
        case "convert":
            return f"{e.dtype}({show(e.args[1])})"
        case "where":
            return f"[{e.args[0]}] ? {show(e.args[1])} : {show(e.args[2])}"
        case "reduce":
            monoid, iterators, body = e.args
            return f"{monoid}_{{{','.join(f'{it}<{it.extent}' for it in iterators)}}} {show(body)}"
        case _:
            return f"({e.args[0]})"
