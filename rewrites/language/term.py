"""Terms and rules: equations between tensors whose axes have names and no order.

A *role* names what axes are for: `*b` stands for any number of axes, `n` for exactly one.  A *size token* (`n`, `n2`)
is a role with digits: the same role at another length.  A tensor is a function from one index per axis label to a
scalar; a missing label means size 1; every op is defined on labels.  A `Term` is pattern and template alike, interned,
so that equal terms are one object and a shared subterm is shared by construction.

    op      args            at
    var                     name
    lit                     value: Expr (("n", number or truth value), ("prod", token) for the number of elements along
                            a role, or an integer expression, as a scalar)
    iota                    over: (role,), size: (token,): the index along a single-axis role
    ew      operands        f: lax op name or meta-variable, params: ((name, value), ...)
    dot     two tensors     over: contracted roles; other shared roles are batch roles
    conv    image, kernel   over: feature roles, win: ((role, (step, lo, hi, base, dil)), ...)
    red     tensor          kind: sum max min prod or a meta-variable, over
    win     tensor          kind: sum max min, win: ((role, (size, step, lo, hi)), ...)
    cum     tensor          kind: sum prod max min, over: one single-axis role, reverse
    concat  tensors         over: (role,), a single-axis role
    slice   tensor          win: ((role, (start, stop or None, step)), ...)
    pad     tensor, scalar  win: ((role, (lo, hi, interior)), ...)
    at      tensor          win: ((role, (index,)), ...); the role disappears
    rev     tensor          over
    inverse tensor          over: (i, ..., k, ...), single-axis roles of its rows, then of as many columns: its
                            inverse as a matrix, with rows k, ... and columns i, ...
    solve   two tensors     over: (i, ..., k, ...): the sum over i, ... of the first one's inverse times the second
    take    table, indices  over: (role,): the table's rows along the role, index clipped into range; other shared
                            roles are batch roles
    segsum  rows, segments  over: (roles of the segments, n), size: (token of n,): sums of the rows of each segment,
                            along the new role n
    split   tensor          over: (n, o, i), win: ((n, (q,)),): axis n becomes o and i, index n = o * q + i, size i = q;
                            o may be n itself, the role at another size
    merge   tensor          over: (o, i, n): axes o and i become n, index n = o * size(i) + i
    bcast   tensor          over, size: a token per role, like: terms that imply it (empty when explicit)
    expand  tensor          win: ((role, (size,)), ...): a broadcast along new roles to sizes given by expressions
    dynslice tensor         win: ((role, (start, size)), ...): the start is known at run time only, clipped into range
    dynupdate two tensors   win: ((role, (start,)), ...): the second written over the first, its start clipped
    view    tensor          the identity; demands a reshape or transpose on the left
    lay     tensor          order: the physical order of the roles (right side only)
    ren     tensor          over: (s, u): role s is called u from here on
    unit    tensor          over: a new role, of size 1
    diag    tensor          over: (i, j): a new role j as long as i; zero where the two indices differ
    fold    tensor          kind: sum or max, idx, bound: unrolled when built, a binder when proved
    stack   tensor          idx, bound, over: (u,): the values for idx = 0 .. bound - 1 along the new role u;
                            beside: the role whose physical axis u is laid out with, if any
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from rewrites.language.names import ELEMENTWISE

TokenExpr: TypeAlias = tuple[Any, ...]
"""("n", 3) | ("v", "lo") | ("prod", token) | (op, a, b) with op in + - * // % min max and comparisons;
in `prefer` also ("and", a, b), ("or", a, b), ("not", a), ("frozen", var), ("live", var), ("single", Term)."""

_T = TypeVar("_T")
Windows: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]
MODES = ("saturate", "near", "merge", "macro", "proof")
REDUCERS = ("sum", "max", "min", "prod")
UNMATCHABLE = frozenset(
    {"fold", "stack", "lay", "at", "split", "merge", "ren", "unit", "diag", "expand", "dynslice", "dynupdate"}
)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True, repr=False)
class Term:
    """An op applied to terms; made only through `term`, so identity is equality."""

    op: str
    args: tuple[Term, ...]
    at: tuple[tuple[str, Any], ...]

    def __getitem__(self, name: str) -> Any:
        """Value of an attribute."""
        for key, value in self.at:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        """Value of an attribute, or the default."""
        for key, value in self.at:
            if key == name:
                return value
        return default

    def __repr__(self) -> str:
        inside = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.at)]
        return f"{self.op}({', '.join(inside)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.op, self.args, self.at)


_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Term] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def term(op: str, *args: Term, **at: Any) -> Term:
    """The interned term `op(args){at}`."""
    return _intern(op, args, tuple(sorted(at.items())))


def _intern(op: str, args: tuple[Term, ...], at: tuple[tuple[str, Any], ...]) -> Term:
    # 1 == 1.0 == True in Python: literals are keyed by their printed value
    key = (op, args, at if op != "lit" else repr(at))
    known = _TABLE.get(key)
    if known is None:
        made = Term(op, args, at)
        with _LOCK:  # held for two look-ups: threads that wait for it wait for the interpreter as well
            known = _TABLE.get(key)
            if known is None:
                known = _TABLE[key] = made
    return known


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Rule:
    """One equation with its declarations.

    Attributes:
        name: unique name.
        where: `file:line` of the text.
        source: paper or compiler pass it comes from, or empty.
        vars: tensor -> its size tokens.
        roles: all roles in order of declaration.
        many: roles that stand for any number of axes.
        owner: size token, attribute or fold index -> the role it belongs to.
        sizes: the size tokens among `owner`.
        indices: the fold indices among `owner`.
        metas: elementwise meta-variable -> arity, reducer meta-variable -> admissible reducers.
        params: free integer parameter -> the values that the engine tries; proved for every value >= 1.  A constant
            of the program (`c in int`) has no values here and is proved for all integers.
        extras: roles that no variable has.
        derived: role made by `split` or `merge` on the right -> the role with as many axes.
        kinds: tensor -> `float`, `bool` (used as a predicate) or `int` (used as an index).
        lhs, rhs: one term per root.
        cond: premises, proved with the rule and checked again at every site.
        prefer: steers the engine; no part of the proof.
        mode: how the engine applies it, one of `MODES`; `proof`: not at all, the equation is only proved.
        given: premises about values: Boolean terms, true at every index.
        dtype: `int` for a rule about integers alone, else empty.
        numerics: `range` for a rule that may lose digits where terms cancel, else empty.
    """

    name: str
    where: str
    source: str
    vars: Mapping[str, tuple[str, ...]]
    roles: tuple[str, ...]
    many: frozenset[str]
    owner: Mapping[str, str]
    sizes: frozenset[str]
    indices: frozenset[str]
    metas: Mapping[str, int | tuple[str, ...]]
    params: Mapping[str, tuple[int, ...]]
    extras: tuple[str, ...]
    derived: Mapping[str, str]
    kinds: Mapping[str, str]
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    cond: tuple[TokenExpr, ...]
    prefer: tuple[TokenExpr, ...]
    mode: str = "saturate"
    given: tuple[Term, ...] = ()
    dtype: str = ""
    numerics: str = ""
    cache: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Facts computed once per rule (what matching asks of it); never part of its meaning."""

    def fact(self, of: Callable[[Rule], _T]) -> _T:
        """The result of a function of the rule, computed once and cached with it."""
        known = self.cache.get(of)
        if known is None:
            known = self.cache[of] = of(self)
        return known

    @property
    def heads(self) -> frozenset[str]:
        """Physical ops that the first root can match: the index of rules by op."""
        return physical(self.lhs[0], self.metas)

    def __repr__(self) -> str:
        return f"<rule {self.name} at {self.where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, name) for name in self.__slots__ if name != "cache"]
        return Rule, tuple(values)


def stem(token: str) -> str:
    """Role of a size token."""
    return token.rstrip("0123456789")


def walk(t: Term) -> Iterator[Term]:
    """All distinct subterms, the term itself first."""
    seen: set[Term] = set()
    todo = [t]
    while todo:
        t = todo.pop()
        if t not in seen:
            seen.add(t)
            yield t
            todo += t.args[::-1]


def subterms(roots: tuple[Term, ...]) -> list[Term]:
    """All distinct subterms of several roots."""
    return list(dict.fromkeys(t for root in roots for t in walk(root)))


def windows(t: Term) -> Windows:
    """Per-axis attributes of a term, or none."""
    return t.get("win", ())


def names_in(e: TokenExpr) -> frozenset[str]:
    """Names of integers in an expression."""
    if e[0] in ("v", "prod"):
        return frozenset({e[1]})
    if e[0] in ("n", "frozen", "live", "single"):
        return frozenset()
    return frozenset[str]().union(*[names_in(x) for x in e[1:]])


def per_axis_names(e: TokenExpr) -> frozenset[str]:
    """Names that an expression reads per axis (a product over a role is one number)."""
    if e[0] == "prod":
        return frozenset()
    if e[0] in ("n", "v"):
        return names_in(e)
    return frozenset[str]().union(*[per_axis_names(x) for x in e[1:]])


def roles_of(rule_vars: Mapping[str, tuple[str, ...]], t: Term) -> tuple[str, ...]:
    """Roles of a term's axes, in order of first occurrence (the order carries no meaning)."""
    known: dict[int, tuple[str, ...]] = {}

    def of(t: Term) -> tuple[str, ...]:
        found = known.get(id(t))
        if found is None:
            found = known[id(t)] = _roles(rule_vars, t, of)
        return found

    return of(t)


def _roles(rule_vars: Mapping[str, tuple[str, ...]], t: Term, of: Callable[[Term], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the roles of a term's result in the order of its axes; `of` gives those of operands."""
    op = t.op
    if op == "var":
        return tuple(stem(x) for x in rule_vars[t["name"]])
    if op == "lit":
        return ()
    if op == "iota":
        return tuple(t["over"])
    inner = [of(a) for a in t.args]
    if op in ("dot", "red", "conv", "solve"):
        gone = halves(t)[0] if op == "solve" else t["over"]
        return tuple(r for r in dict.fromkeys(r for rs in inner for r in rs) if r not in gone)
    first = inner[0]
    if op in ("bcast", "stack", "unit"):
        return first + tuple(r for r in t["over"] if r not in first)
    if op == "expand":
        return first + tuple(r for r, _ in t["win"] if r not in first)
    if op == "ren":
        old, new = t["over"]
        return tuple(new if r == old else r for r in first)
    if op == "diag":
        return (*first, t["over"][1])
    if op == "at":
        gone = {r for r, _ in t["win"]}
        return tuple(r for r in first if r not in gone)
    if op == "concat":
        return tuple(dict.fromkeys(first + t["over"]))
    if op == "take":
        return tuple(dict.fromkeys([r for r in first if r not in t["over"]] + list(inner[1])))
    if op == "segsum":
        *gone, n = t["over"]
        return (n, *[r for r in first if r not in gone])
    if op == "split":
        n, o, i = t["over"]
        return tuple(x for r in first for x in ((o, i) if r == n else (r,)))
    if op == "merge":
        o, i, n = t["over"]
        return (*(r for r in first if r not in (o, i)), n)
    return first


def halves(t: Term) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The roles of the rows and of the columns of a matrix that is inverted."""
    over: tuple[str, ...] = t["over"]
    return over[: len(over) // 2], over[len(over) // 2 :]


PHYSICAL = {
    "dot": "dot_general",
    "conv": "conv_general_dilated",
    "concat": "concatenate",
    "slice": "slice",
    "pad": "pad",
    "rev": "rev",
    "bcast": "broadcast_in_dim",
    "take": "gather",
    "segsum": "segment_sum",
    "iota": "iota",
    "inverse": "inverse",
    "solve": "solve",
}


def physical(t: Term, metas: Mapping[str, int | tuple[str, ...]]) -> frozenset[str]:
    """Physical ops that the root of a pattern can match."""
    op = t.op
    if op == "ew":
        arity = metas.get(t["f"])
        return frozenset({t["f"]} if arity is None else {f for f, n in ELEMENTWISE.items() if n == arity})
    if op == "red":
        kinds = metas.get(t["kind"], (t["kind"],))
        return frozenset(f"reduce_{kind}" for kind in kinds) if isinstance(kinds, tuple) else frozenset()
    if op == "win":
        return frozenset({f"reduce_window_{t['kind']}"})
    if op == "cum":
        return frozenset({f"cum{t['kind']}"})
    if op == "view":
        return frozenset({"regroup", "reshape"})
    return frozenset({PHYSICAL[op]} if op in PHYSICAL else ())


def touched(t: Term) -> frozenset[str]:
    """Roles that a term's op acts on."""
    return frozenset(t.get("over", ())) | {r for r, _ in windows(t)}
