"""Terms and expressions of a rule text: Python's expression trees resolved against the declarations.

Integer names are bound by the left side where they stand alone in a per-axis attribute; on the right side and in
conditions only bound names may occur.  An elementwise operand that lacks a role of the others is broadcast, as in
mathematics: the reader inserts the `bcast` term and remembers which operands imply it.

A role that only a term makes (split, merge, ren, unit, diag) is declared `extra`; it is *derived*: it has as many axes
as the role it comes from.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from rewrites.language.names import ALIASES, ELEMENTWISE, IN_TEXT, REQUIRED, WINDOW_DEFAULTS
from rewrites.language.term import REDUCERS, Term, TokenExpr, per_axis_names, roles_of, stem, subterms, term
from superopt.errors import RuleError
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.scalar import LOGICAL, PREDICATES

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.LtE: "<=",
    ast.Lt: "<",
    ast.Eq: "==",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.NotEq: "!=",
}
_ELEMENTWISE: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_WINDOWED = {
    "slice": "slice", "pad": "pad", "at": "at", "wsum": "win", "wmax": "win", "wmin": "win",
    "dynslice": "dynslice", "dynupdate": "dynupdate",
}  # fmt: skip
_ROLE_MAKERS = {"merge": ("merge(A, o, i, n)", 2), "ren": ("ren(A, old, new)", 1), "unit": ("unit(A, role)", 0),
                "diag": ("diag(A, i, j)", 1)}  # fmt: skip
"""How terms that make a role are written, and how many of their roles the operand has."""


def fail(context: str, message: str) -> NoReturn:
    """Raise a `RuleError` that names the rule and the place."""
    raise RuleError(f"{context}: {message}")


@dataclass
class Declared:
    """Contents of a rule's declaration line; the fields are those of `Rule`."""

    vars: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    roles: dict[str, None] = field(default_factory=dict[str, None])
    many: set[str] = field(default_factory=set[str])
    owner: dict[str, str] = field(default_factory=dict[str, str])
    metas: dict[str, int | tuple[str, ...]] = field(default_factory=dict[str, int | tuple[str, ...]])
    params: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    extras: list[str] = field(default_factory=list[str])


class TermReader:
    """Reads the terms of one rule; the left side first, then `left_done`, then everything else."""

    def __init__(self, context: str, declared: Declared) -> None:
        self.context = context
        self.d = declared
        self.sizes = set(declared.owner)
        self.indices: set[str] = set()
        self.derived: dict[str, str] = {}
        self.lets: dict[str, Term] = {}
        self.left = True
        self.left_vars: set[str] = set()
        self.left_roles: set[str] = set()

    def fail(self, message: str) -> NoReturn:
        """Raise a `RuleError` at the present place."""
        fail(self.context, message)

    def left_done(self, lhs: Sequence[Term]) -> None:
        """End the left side: from here on only names bound by it may be used."""
        self.left = False
        terms = subterms(tuple(lhs))
        self.left_vars = {t["name"] for t in terms if t.op == "var"}
        self.left_roles = {r for t in terms if t.op == "iota" for r in t["over"]}

    def let(self, name: str, tree: ast.expr) -> None:
        """Bind a shared subterm of the right side."""
        if not name.isidentifier() or name in self.d.vars or name in self.lets:
            self.fail(f"with {name}: not a new name")
        self.lets[name] = self.term(tree)

    # -- integer expressions

    def expr(self, e: ast.expr, role: str | None) -> TokenExpr:
        """An integer expression; on the left side a new name becomes an attribute of `role`."""
        if isinstance(e, ast.Constant) and isinstance(e.value, int):
            return ("n", e.value)
        if isinstance(e, ast.Name):
            if e.id not in self.d.owner and e.id not in self.d.params:
                if role is None or not self.left:
                    self.fail(f"{e.id} is not bound on the left side")
                self.d.owner[e.id] = role
            return ("v", e.id)
        if isinstance(e, ast.BinOp) and type(e.op) in _ARITHMETIC:
            return (_ARITHMETIC[type(e.op)], self.expr(e.left, role), self.expr(e.right, role))
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            inner = self.expr(e.operand, role)
            return ("n", -inner[1]) if inner[0] == "n" else ("-", ("n", 0), inner)
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name):
            if e.func.id in ("min", "max") and len(e.args) == 2:
                return (e.func.id, self.expr(e.args[0], role), self.expr(e.args[1], role))
            if e.func.id == "prod" and len(e.args) == 1 and isinstance(e.args[0], ast.Name):
                return ("prod", self._integer(e.args[0].id))
        self.fail(f"{ast.unparse(e)} is no integer expression")

    def _integer(self, name: str) -> str:
        if name not in self.d.owner:
            self.fail(f"{name} is neither a size nor an attribute bound on the left side")
        return name

    def condition(self, e: ast.expr) -> TokenExpr:
        """A comparison of integer expressions over at most one many-axis role."""
        if not (isinstance(e, ast.Compare) and len(e.ops) == 1):
            self.fail(f"{ast.unparse(e)} is no condition; expected one comparison")
        kind = _COMPARISONS.get(type(e.ops[0]))
        if kind is None:
            self.fail(f"{ast.unparse(e)}: not a comparison of integers")
        out: TokenExpr = (kind, self.expr(e.left, None), self.expr(e.comparators[0], None))
        roles = {self.d.owner[n] for n in per_axis_names(out) if n in self.d.owner}
        if len(roles & self.d.many) > 1:
            self.fail(f"{ast.unparse(e)} mixes the axes of {' and '.join(sorted(roles))}")
        return out

    def preference(self, e: ast.expr) -> TokenExpr:
        """A condition, `frozen(A)`, `live(A)`, `single(term)`, or `and`, `or`, `not` of these."""
        if isinstance(e, ast.BoolOp):
            word = "and" if isinstance(e.op, ast.And) else "or"
            out = self.preference(e.values[0])
            for x in e.values[1:]:
                out = (word, out, self.preference(x))
            return out
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Not):
            return ("not", self.preference(e.operand))
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in ("frozen", "live", "single"):
            if len(e.args) != 1:
                self.fail(f"{ast.unparse(e)}: one operand expected")
            inner = self.term(e.args[0])
            if e.func.id == "single":
                return ("single", inner)
            if inner.op != "var":
                self.fail(f"{ast.unparse(e)}: expected a tensor of the rule")
            return (e.func.id, inner["name"])
        return self.condition(e)

    # -- terms

    def term(self, e: ast.expr) -> Term:
        """A tensor term."""
        number = e.value if isinstance(e, ast.Constant) and isinstance(e.value, bool) else _number(e)
        if number is not None:
            return term("lit", value=("n", number))
        if isinstance(e, ast.Name):
            return self._name(e.id)
        if isinstance(e, ast.BinOp):
            if isinstance(e.op, ast.Pow):
                return self.elementwise("integer_pow", [self.term(e.left)], (("y", self._constant(e.right)),))
            if type(e.op) in _ELEMENTWISE:
                return self.elementwise(_ELEMENTWISE[type(e.op)], [self.term(e.left), self.term(e.right)])
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return self.elementwise("neg", [self.term(e.operand)])
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and not e.keywords:
            return self._call(e.func.id, e.args)
        self.fail(f"{ast.unparse(e)} is no term")

    def _name(self, name: str) -> Term:
        if name in self.lets:
            return self.lets[name]
        if self.d.params.get(name) == ():
            return term("lit", value=("v", name))
        if name not in self.d.vars:
            self.fail(f"unknown name {name}")
        if not self.left and name not in self.left_vars:
            self.fail(f"{name} is not bound on the left side")
        return term("var", name=name)

    def _call(self, f: str, args: list[ast.expr]) -> Term:
        """Return the term of a call by name."""
        if f == "where":
            p, x, y = self._tensors(f, args, 3)
            return self.elementwise("select_n", [p, y, x])
        if f == "count":
            return term("lit", value=("prod", self._integer(self._token(f, args))))
        if f == "num" and len(args) == 1:
            return term("lit", value=self.expr(args[0], None))
        if f == "iota":
            return self._iota(args)
        if f in ("sigma", "maxi", "stack"):
            return self._fold(f, args)
        if f == "integer_pow":
            if len(args) != 2:
                self.fail(f"{f} takes a tensor and an integer constant")
            (x,) = self._tensors(f, args[:1], 1)
            return self.elementwise(f, [x], (("y", self._constant(args[1])),))
        at = next((i for i, a in enumerate(args) if self._is_role(a)), len(args))
        xs, rest = [self.term(a) for a in args[:at]], args[at:]
        if f in IN_TEXT or isinstance(self.d.metas.get(f), int):
            arity = self.d.metas[f] if f in self.d.metas else ELEMENTWISE[ALIASES.get(f, f)]
            if rest or len(xs) != arity:
                self.fail(f"{f} takes {arity} operands")
            return self.elementwise(f if f in self.d.metas else ALIASES.get(f, f), xs)
        if not xs:
            self.fail(f"{f} needs a tensor operand" if rest else f"unknown op {f}")
        return self._structural(f, xs, rest)

    def _structural(self, f: str, xs: list[Term], rest: list[ast.expr]) -> Term:
        """Return the term of an op that is not elementwise, with its roles and attributes."""

        def arity(n: int) -> None:
            if len(xs) != n:
                self.fail(f"{f} takes {n} tensor operands, got {len(xs)}")

        if f == "dot":
            arity(2)
            return self._contraction("dot", xs, self.words(f, rest))
        if f == "conv":
            arity(2)
            plain = [r for r in rest if isinstance(r, ast.Name)]
            win = self.windows("conv", [r for r in rest if not isinstance(r, ast.Name)])
            return self._contraction("conv", xs, self.words(f, plain), win=win)
        if f == "concat":
            return self._concat(xs, self.words(f, rest))
        if f == "take":
            arity(2)
            return self._one_axis("take", xs, self.words(f, rest))
        if f == "segsum":
            arity(2)
            return self._segmented(xs, rest)
        arity(2 if f in ("pad", "dynupdate", "solve") else 1)
        if f in ("view", "lay"):
            return term("view", *xs) if f == "view" else term("lay", *xs, order=self.words(f, rest))
        if f in _WINDOWED:
            kind = {"kind": f[1:]} if _WINDOWED[f] == "win" else {}
            win = self.windows(_WINDOWED[f], rest)
            self.have(f, xs[0], [r for r, _ in win])
            if f == "pad" and roles_of(self.d.vars, xs[1]):
                self.fail("pad needs a scalar value")
            if f == "dynupdate" and set(roles_of(self.d.vars, xs[0])) != set(roles_of(self.d.vars, xs[1])):
                self.fail("dynupdate needs an update with the roles of the operand")
            return term(_WINDOWED[f], *xs, win=win, **kind)
        if f == "split":
            return self._split(xs[0], rest)
        if f == "bcast":
            return self._broadcast(xs[0], rest)
        roles = self.words(f, rest)
        if f in ("inverse", "solve"):
            return self._linear(f, xs, roles)
        if f in _ROLE_MAKERS:
            return self._made(f, xs[0], roles)
        if not roles:
            self.fail(f"unknown op {f}" if f not in REDUCERS else f"{f} needs roles")
        if f in CUMULATIVE:
            return self._one_axis("cum", xs, roles, kind=CUMULATIVE[f], reverse=False)
        self.have(f, xs[0], roles)
        if f == "rev":
            return term("rev", *xs, over=roles)
        if f in REDUCERS or isinstance(self.d.metas.get(f), tuple):
            return term("red", *xs, kind=f, over=roles)
        self.fail(f"unknown op {f}")

    def elementwise(self, f: str, xs: list[Term], params: tuple[tuple[str, int], ...] = ()) -> Term:
        """An elementwise op; operands that lack a role are broadcast."""
        have = [roles_of(self.d.vars, x) for x in xs]
        union = tuple(dict.fromkeys(r for rs in have for r in rs))
        out: list[Term] = []
        for x, rs in zip(xs, have, strict=True):
            miss = tuple(r for r in union if r not in rs)
            like = tuple(y for y, other in zip(xs, have, strict=True) if set(other) & set(miss))
            out.append(term("bcast", x, over=miss, like=like, size=()) if miss else x)
        return term("ew", *out, f=f, params=params)

    def _fold(self, f: str, args: list[ast.expr]) -> Term:
        head = args[0] if args else None
        form, counts = ("stack(r < w, term, role)", (3, 4)) if f == "stack" else (f"{f}(r < w, term)", (2,))
        if not (isinstance(head, ast.Compare) and isinstance(head.left, ast.Name) and len(args) in counts):
            self.fail(f"{f} is written {form}")
        bound = head.comparators[0]
        if not isinstance(bound, ast.Name) or not isinstance(head.ops[0], ast.Lt):
            self.fail(f"{f} is written {form}")
        index, limit = head.left.id, self._integer(bound.id)
        if index in self.d.owner and index not in self.indices:
            self.fail(f"{index} already names something else")
        self.d.owner[index] = self.d.owner[limit]
        self.indices.add(index)
        body = self.term(args[1])
        if f == "stack":
            role, *beside = self.words(f, args[2:])
            self.have(f, body, beside)
            self._new_role(f, body, role, self.d.owner[limit])
            return term("stack", body, idx=index, bound=limit, over=(role,), beside=tuple(beside))
        return term("fold", body, kind="sum" if f == "sigma" else "max", idx=index, bound=limit)

    def _contraction(self, op: str, xs: list[Term], over: tuple[str, ...], **at: object) -> Term:
        for x in xs:
            self.have(op, x, over)
        return term(op, *xs, over=over, **at)

    def _concat(self, xs: list[Term], over: tuple[str, ...]) -> Term:
        if len(over) != 1 or over[0] in self.d.many or len(xs) < 2:
            self.fail("concat takes two or more tensors and one single-axis role")
        sets = {frozenset(roles_of(self.d.vars, x)) | {over[0]} for x in xs}
        if len(sets) != 1:
            self.fail(f"concat of tensors with different roles: {[sorted(s) for s in sets]}")
        return term("concat", *xs, over=over)

    def _one_axis(self, op: str, xs: list[Term], over: tuple[str, ...], **at: object) -> Term:
        if len(over) != 1 or over[0] in self.d.many:
            self.fail(f"{op} takes one single-axis role")
        self.have(op, xs[0], over)
        if op == "take" and over[0] in roles_of(self.d.vars, xs[1]):
            self.fail(f"take: the indices have the role {over[0]} along which they index")
        return term(op, *xs, over=over, **at)

    def _linear(self, op: str, xs: list[Term], over: tuple[str, ...]) -> Term:
        if len(over) < 2 or len(over) % 2 or len(set(over)) < len(over) or set(over) & self.d.many:
            self.fail(f"{op} takes single-axis roles: those of rows, then as many of columns")
        self.have(op, xs[0], over)
        if op == "solve":
            rows, columns = over[: len(over) // 2], over[len(over) // 2 :]
            self.have(op, xs[1], rows)
            if shared := set(columns) & set(roles_of(self.d.vars, xs[1])):
                self.fail(f"solve: the right side has {sorted(shared)}, which are roles of the solution")
        return term(op, *xs, over=over)

    def _segmented(self, xs: list[Term], rest: list[ast.expr]) -> Term:
        """The term `segsum(U, I, n)`."""
        token, roles = self._token("segsum", rest), roles_of(self.d.vars, xs[1])
        self.have("segsum", xs[0], roles)
        if stem(token) in (*self.d.many, *roles_of(self.d.vars, xs[0])):
            self.fail(f"segsum({token}): expected a size token of a single-axis role that the rows lack")
        return term("segsum", *xs, over=(*roles, stem(token)), size=(token,))

    def premise(self, e: ast.expr) -> Term:
        """A premise about values: a comparison or a combination of comparisons."""
        t = self.term(e)
        if t.op != "ew" or t["f"] not in PREDICATES | LOGICAL:
            self.fail(f"{ast.unparse(e)}: expected a comparison of terms, such as le(A, B)")
        return t

    # -- terms that make and rename roles

    def _split(self, x: Term, rest: list[ast.expr]) -> Term:
        """The term `split(A, n, o, i(q))`."""
        if len(rest) != 3 or not isinstance(rest[2], ast.Call) or len(rest[2].args) != 1:
            self.fail("split is written split(A, n, o, i(q)), or split(A, n, n, i(q))")
        n, o, i = self.words("split", [rest[0], rest[1], rest[2].func])
        self.have("split", x, (n,))
        size = self.expr(rest[2].args[0], None)
        for r in (o, i):
            if r != n:  # the outer part may keep the name of the whole
                self._derive(r, n)
        return term("split", x, over=(n, o, i), win=((n, (size,)),))

    def _iota(self, args: list[ast.expr]) -> Term:
        """The term `iota(n)`: the index along a single-axis role."""
        token = self._token("iota", args)
        if token not in self.sizes or stem(token) in self.d.many:
            self.fail(f"iota({token}): expected a size token of a single-axis role")
        return term("iota", over=(stem(token),), size=(token,))

    def _broadcast(self, x: Term, rest: list[ast.expr]) -> Term:
        """`bcast(A, m, n(e))`: a role by name has the size of its token, `n(e)` is the role n at the size e."""
        tokens = self.words("bcast", [r for r in rest if isinstance(r, ast.Name)], tokens=True)
        win = self.windows("expand", [r for r in rest if not isinstance(r, ast.Name)])
        clash = {stem(t) for t in tokens} | {r for r, _ in win}
        if clash & set(roles_of(self.d.vars, x)):
            self.fail(f"bcast over {' '.join(sorted(clash))}: the operand has that role")
        for t in tokens:
            if t not in self.sizes:
                self.fail(f"bcast over {t}: no size token of that name")
        if tokens or not win:
            x = term("bcast", x, over=tuple(map(stem, tokens)), like=(), size=tokens)
        return term("expand", x, win=win) if win else x

    def _made(self, f: str, x: Term, roles: tuple[str, ...]) -> Term:
        """Read a `merge`, `ren`, `unit` or `diag`; the last of its roles is the new one."""
        form, held = _ROLE_MAKERS[f]
        if len(roles) != form.count(","):
            self.fail(f"{f} is written {form}")
        self.have(f, x, roles[:held])
        new, of = roles[-1], roles[0]
        if f == "merge":
            if new in self.d.extras and new not in self.derived:
                self._derive(new, of)
            return term(f, x, over=roles)
        if f == "unit":  # as many axes as any other single-axis role has
            of = next((r for r in self.d.roles if r not in self.d.many and r not in self.d.extras), new)
        self._new_role(f, x, new, of)
        return term(f, x, over=roles)

    def _new_role(self, f: str, x: Term, role: str, of: str) -> None:
        """Fail unless the term can get the role; a new role has as many axes as `of`."""
        if role in roles_of(self.d.vars, x):
            self.fail(f"{f}: the operand already has the role {role}")
        if role in self.d.extras and role != of and role not in self.left_roles:
            self._derive(role, of)
        elif (role in self.d.many) != (of in self.d.many):
            self.fail(f"{role} and {of} must both be single-axis or both many-axis roles")

    def _derive(self, role: str, of: str) -> None:
        if role not in self.d.extras:
            self.fail(f"{role} is a new role: declare it as extra")
        if (role in self.d.many) != (of in self.d.many):
            self.fail(f"{role} and {of} must both be single-axis or both many-axis roles")
        self.derived.setdefault(role, of)

    # -- parts

    def _is_role(self, e: ast.expr) -> bool:
        head = e.func if isinstance(e, ast.Call) else e
        if not isinstance(head, ast.Name) or head.id in self.d.vars or head.id in self.lets:
            return False
        return head.id in self.d.roles or (isinstance(e, ast.Name) and head.id in self.sizes)

    def words(self, f: str, args: Sequence[ast.expr], *, tokens: bool = False) -> tuple[str, ...]:
        """Roles given as bare names; with `tokens` also size tokens."""
        out: list[str] = []
        for a in args:
            if not isinstance(a, ast.Name):
                self.fail(f"{f}: {ast.unparse(a)} is no role")
            if a.id not in self.d.roles and not (tokens and a.id in self.d.owner):
                self.fail(f"{f}: {a.id} is not a role")
            out.append(a.id)
        return tuple(out)

    def _token(self, f: str, args: Sequence[ast.expr]) -> str:
        if len(args) != 1:
            self.fail(f"{f} takes one size token, got {len(args)}")
        return self.words(f, args, tokens=True)[0]

    def _tensors(self, f: str, args: Sequence[ast.expr], n: int) -> list[Term]:
        if len(args) != n:
            self.fail(f"{f} takes {n} operands, got {len(args)}")
        return [self.term(a) for a in args]

    def _constant(self, e: ast.expr) -> int:
        value = _number(e)
        if not isinstance(value, int):
            self.fail(f"{ast.unparse(e)}: an integer constant expected")
        return value

    def have(self, op: str, x: Term, roles: Sequence[str]) -> None:
        """Fail unless a term has the roles."""
        have = roles_of(self.d.vars, x)
        for r in roles:
            if r not in have:
                self.fail(f"{op} over {r}: the operand has the roles {' '.join(have) or '(none)'}")

    def windows(self, op: str, calls: Sequence[ast.expr]) -> tuple[tuple[str, tuple[TokenExpr | None, ...]], ...]:
        """Per-axis integers, written `role(e, ...)`."""
        out: list[tuple[str, tuple[TokenExpr | None, ...]]] = []
        for c in calls:
            head = c.func if isinstance(c, ast.Call) else c
            (role,) = self.words(op, [head])
            given = c.args if isinstance(c, ast.Call) else []
            defaults = WINDOW_DEFAULTS.get(op, (None,) * REQUIRED.get(op, 0))
            if len(given) > len(defaults) or len(given) < REQUIRED.get(op, 0):
                self.fail(f"{op}: {role} takes at most {len(defaults)} integers")
            values: list[TokenExpr | None] = [None if v is None else ("n", v) for v in defaults]
            for i, x in enumerate(given):
                values[i] = self.expr(x, role)
            out.append((role, tuple(values)))
        return tuple(out)


def _number(e: ast.expr) -> int | float | None:
    if isinstance(e, ast.Constant) and isinstance(e.value, int | float) and not isinstance(e.value, bool):
        return e.value
    if isinstance(e, ast.Name) and e.id == "inf":
        return math.inf
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        value = _number(e.operand)
        return None if value is None else -value
    return None
