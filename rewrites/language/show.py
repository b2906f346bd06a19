"""Printing rules: canonical text, hash key, and index notation.

`show(rule)` prints text that parses back to the same rule; shared subterms of the right side become `with` clauses.
`rule_key(rule)` hashes what a proof depends on: declarations, both sides, premises.  Names, `prefer`, mode, source and
the candidate values of free parameters are no part of it.  `equation(rule)` is what a reader checks:

    dot-scale    Σ_k (A[b,c,m,p,k] · S[b,m]) · B[b,c,k,n]   =   (Σ_k A[b,c,m,p,k] · B[b,c,k,n]) · S[b,m]
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable

from rewrites.language.names import OPERATORS, TEXT_NAME, WINDOW_DEFAULTS
from rewrites.language.term import Rule, Term, TokenExpr, halves, stem, walk, windows
from superopt.ir.ops.reduction import CUMULATIVE

_PRECEDENCE = {"add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}
_BINARY = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_PREFIX = {monoid: name for name, monoid in CUMULATIVE.items()}


def show(rule: Rule) -> str:
    """The rule as text; `parse(show(rule))` is the same rule."""
    return "\n".join([f"{rule.name}: {_declarations(rule, values=True)}", *_body(rule), *_steering(rule)])


def statement(rule: Rule) -> str:
    """The equation and its conditions as rule text, without declarations and steering."""
    return "\n".join(line.strip() for line in _body(rule))


@functools.cache
def unmet(rule: Rule, e: TokenExpr) -> str:
    """The message for a site where this condition of the rule does not hold."""
    if e in rule.cond:
        return f"needs {expr(e)}"
    text = preference(rule, e)
    return f"not preferred: needs {text[1:-1] if e[0] in ('and', 'or') else text}"


def proved_text(rule: Rule) -> str:
    """Everything that a proof of the rule depends on, as text."""
    return rule.fact(_proved_text)


def rule_key(rule: Rule) -> str:
    """Hash of everything that a proof of the rule depends on."""
    return rule.fact(_rule_key)


def _proved_text(rule: Rule) -> str:
    return "\n".join([_declarations(rule, values=False), *_body(rule)])


def _rule_key(rule: Rule) -> str:
    return hashlib.sha256(proved_text(rule).encode()).hexdigest()[:32]


def _declarations(rule: Rule, *, values: bool) -> str:
    def token(t: str) -> str:
        return f"*{t}" if stem(t) in rule.many else t

    parts: list[str] = []
    for name, meta in rule.metas.items():
        parts.append(f"{name}/{meta}" if isinstance(meta, int) else f"{name} in {'|'.join(meta)}")
    for name, choices in rule.params.items():
        told = "int" if not choices else "|".join(map(str, choices)) if values else "1"
        parts.append(f"{name} in {told}")
    parts += [f"{name}[{' '.join(map(token, tokens))}]" for name, tokens in rule.vars.items()]
    in_vars = {t for tokens in rule.vars.values() for t in tokens}
    extras = [t for t in rule.owner if t in rule.sizes and t not in in_vars]
    if extras:
        parts.append(f"extra {' '.join(map(token, extras))}")
    return "  ".join(parts)


def _body(rule: Rule) -> list[str]:
    lets = _shared(rule)
    names: dict[Term, str] = {}
    for t in lets:
        names[t] = f"T{len(names) + 1}"
    left = ", ".join(text(rule, t) for t in rule.lhs)
    out = [f"  {left}  ==  {', '.join(text(rule, t, names) for t in rule.rhs)}"]
    done: dict[Term, str] = {}
    for t, name in names.items():
        out.append(f"  with {name} = {text(rule, t, done)}")
        done[t] = name
    if rule.cond:
        out.append(f"  if {', '.join(map(expr, rule.cond))}")
    if rule.given:
        out.append(f"  given {', '.join(text(rule, t) for t in rule.given)}")
    if rule.dtype:
        out.append(f"  dtype {rule.dtype}")
    if rule.numerics:
        out.append(f"  numerics {rule.numerics}")
    return out


def _steering(rule: Rule) -> list[str]:
    out: list[str] = []
    if rule.prefer:
        out.append(f"  prefer {', '.join(preference(rule, e) for e in rule.prefer)}")
    if rule.mode != "saturate":
        out.append(f"  mode {rule.mode}")
    if rule.source:
        out.append(f"  source {rule.source}")
    return out


def _shared(rule: Rule) -> list[Term]:
    """Right-side subterms used several times, inner before outer; those under a fold's binder are left out."""
    uses: Counter[Term] = Counter(rule.rhs)
    bound: set[Term] = set()
    for t in {x: None for root in rule.rhs for x in walk(root)}:
        uses.update(t.args)
        if t.op in ("fold", "stack"):
            bound |= {x for x in walk(t.args[0]) if _mentions(x, t["idx"])}
    order: list[Term] = []
    seen: set[Term] = set()

    def visit(t: Term) -> None:
        if t in seen:
            return
        seen.add(t)
        for a in t.args:
            visit(a)
        if uses[t] > 1 and t.op not in ("var", "lit", "bcast") and t not in bound:
            order.append(t)

    for root in rule.rhs:
        visit(root)
    taken = {f"T{i + 1}" for i in range(len(order))} & set(rule.vars)
    return [] if taken else order


def _mentions(t: Term, index: str) -> bool:
    return any(f"'{index}'" in repr(windows(x)) for x in walk(t))


def number(value: float) -> str:
    """A literal as rule text."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _literal(value: TokenExpr) -> str:
    if value[0] == "prod":
        return f"count({value[1]})"
    return number(value[1]) if value[0] == "n" else f"num({expr(value)})"


def expr(e: TokenExpr, outer: int = 0, sizes: frozenset[str] = frozenset()) -> str:
    """An integer expression or condition as rule text; names in `sizes` print as |n|."""
    op = e[0]
    if op == "n":
        return number(e[1])
    if op == "v":
        return f"|{e[1]}|" if e[1] in sizes else str(e[1])
    if op == "prod":
        return f"prod({e[1]})"
    if op in ("min", "max"):
        return f"{op}({expr(e[1], 0, sizes)}, {expr(e[2], 0, sizes)})"
    level = _BINARY.get(op, 0)
    out = f"{expr(e[1], level, sizes)} {op} {expr(e[2], level + 1, sizes)}"
    return f"({out})" if level < outer else out


def preference(rule: Rule, e: TokenExpr) -> str:
    """A `prefer` condition as rule text."""
    if e[0] in ("and", "or"):
        return f"({preference(rule, e[1])} {e[0]} {preference(rule, e[2])})"
    if e[0] == "not":
        return f"(not {preference(rule, e[1])})"
    if e[0] in ("frozen", "live"):
        return f"{e[0]}({e[1]})"
    if e[0] == "single":
        return f"single({text(rule, e[1])})"
    return expr(e)


def text(rule: Rule, t: Term, names: dict[Term, str] | None = None, outer: int = 0) -> str:
    """A term as rule text; terms in `names` print as their name."""
    if names and t in names:
        return names[t]

    def sub(a: Term, level: int = 0) -> str:
        return text(rule, a, names, level)

    op = t.op
    if op == "var":
        return str(t["name"])
    if op == "lit":
        value = t["value"]
        return _literal(value)
    if op == "bcast" and t["like"]:
        return sub(t.args[0], outer)
    if op == "ew":
        return _elementwise(t, sub, outer)
    if op == "fold":
        head = "sigma" if t["kind"] == "sum" else "maxi"
        return f"{head}({t['idx']} < {t['bound']}, {sub(t.args[0])})"
    if op == "stack":
        inside = [f"{t['idx']} < {t['bound']}", sub(t.args[0]), *t["over"], *t["beside"]]
        return f"stack({', '.join(inside)})"
    name, rest = _call(t)
    return f"{name}({', '.join([*map(sub, t.args), *rest])})"


def _elementwise(t: Term, sub: Callable[..., str], outer: int) -> str:
    f = t["f"]
    if f in OPERATORS and len(t.args) == 2:
        level = _PRECEDENCE[f]
        out = f"{sub(t.args[0], level)} {OPERATORS[f]} {sub(t.args[1], level + 1)}"
        return f"({out})" if level < outer else out
    if f == "neg" and t.args[0].op != "lit":
        out = f"-{sub(t.args[0], _PRECEDENCE['neg'])}"
        return f"({out})" if outer > _PRECEDENCE["neg"] else out
    if f == "select_n" and len(t.args) == 3:
        return f"where({sub(t.args[0])}, {sub(t.args[2])}, {sub(t.args[1])})"
    params = [str(v) for _, v in t["params"]]
    return f"{TEXT_NAME.get(f, f)}({', '.join([*map(sub, t.args), *params])})"


def _call(t: Term) -> tuple[str, list[str]]:
    """Function name and role arguments of a structural op."""
    op, over = t.op, list(t.get("over", ()))
    if op in ("iota", "bcast", "segsum"):
        return op, list(t["size"])
    if op == "lay":
        return op, list(t["order"])
    if op == "split":
        ((_, (size,)),) = t["win"]
        return op, [over[0], over[1], f"{over[2]}({expr(size)})"]
    calls = [f"{r}({', '.join(map(expr, _given(op, values)))})" for r, values in windows(t)]
    kind = t.get("kind", "")
    names = {"red": kind, "cum": _PREFIX.get(kind, ""), "win": f"w{kind}", "expand": "bcast"}
    return names.get(op, op), over + calls


def _given(op: str, values: tuple[TokenExpr | None, ...]) -> list[TokenExpr]:
    """Attributes up to the last one that differs from its default."""
    defaults = WINDOW_DEFAULTS.get(op, ())
    n = len(values)
    while n > 1 and defaults and values[n - 1] == (None if defaults[n - 1] is None else ("n", defaults[n - 1])):
        n -= 1
    return [e for e in values[:n] if e is not None]


# -- index notation


def equation(rule: Rule) -> str:
    """Both sides in index notation, one line per root."""
    return "\n".join(
        f"{index_notation(rule, a)}   =   {index_notation(rule, b)}" for a, b in zip(rule.lhs, rule.rhs, strict=True)
    )


def index_notation(rule: Rule, t: Term, at: dict[str, str] | None = None) -> str:
    """A term with the indices of its tensors written out; `at` maps a role to the expression of its index."""
    at = at or {}

    def sub(j: int = 0, changed: dict[str, str] | None = None) -> str:
        return index_notation(rule, t.args[j], {**at, **(changed or {})})

    def ix(r: str) -> str:
        return at.get(r, r)

    op = t.op
    if op == "var":
        tokens = rule.vars[t["name"]]
        return f"{t['name']}[{','.join(ix(stem(x)) for x in tokens)}]" if tokens else t["name"]
    if op == "lit":
        value = t["value"]
        return number(value[1]) if value[0] == "n" else f"|{value[1]}|" if value[0] == "prod" else _expr(value)
    if op in ("view", "lay", "bcast", "unit", "expand"):
        return sub()
    if op == "iota":
        return ix(t["over"][0])
    if op == "ew":
        sign = {**OPERATORS, "mul": "·"}.get(t["f"])
        operands = [*[sub(j) for j in range(len(t.args))], *[str(v) for _, v in t["params"]]]
        return f"({operands[0]} {sign} {operands[1]})" if sign else f"{t['f']}({', '.join(operands)})"
    if op == "dot":
        return f"Σ_{','.join(t['over'])} {sub(0)}·{sub(1)}"
    if op == "red":
        return f"{_sign(t['kind'])}_{','.join(t['over'])} {sub()}"
    if op == "concat":
        (along,) = t["over"]
        return "[" + f" ‖{along} ".join(sub(j) for j in range(len(t.args))) + "]"
    if op == "fold":
        return f"{_sign(t['kind'])}_{t['idx']}<{t['bound']} {sub()}"
    return _moved(rule, t, sub, ix)


def _sign(kind: str) -> str:
    return {"sum": "Σ", "prod": "Π"}.get(kind, kind)


def _moved(rule: Rule, t: Term, sub: Callable[..., str], ix: Callable[[str], str]) -> str:
    """Index notation of the ops that change indices."""

    def expr(e: TokenExpr, outer: int = 0) -> str:
        return _expr(e, outer, rule.sizes)

    op = t.op
    if op == "slice":
        return sub(0, {r: _affine(expr(a[2], 2), ix(r), expr(a[0], 1)) for r, a in t["win"]})
    if op == "at":
        return sub(0, {r: expr(a[0]) for r, a in t["win"]})
    if op == "dynslice":
        return sub(0, {r: _affine("1", ix(r), f"clip({expr(a[0])})") for r, a in t["win"]})
    if op == "dynupdate":
        there = ", ".join(f"{r}:clip({expr(a[0])})" for r, a in t["win"])
        return f"({sub(0)} <- {sub(1)} at {there})"
    if op == "pad":
        return f"pad_{','.join(f'{r}:{expr(a[0])}/{expr(a[1])}' for r, a in t['win'])}({sub(0)})"
    if op == "rev":
        return sub(0, {r: f"-{ix(r)}" for r in t["over"]})
    if op == "cum":
        (r,) = t["over"]
        return f"{_sign(t['kind'])}_{r}'<={ix(r)} {sub(0, {r: r + chr(39)})}"
    if op == "take":
        (r,) = t["over"]
        return sub(0, {r: sub(1)})
    if op in ("inverse", "solve"):
        over, (rows, columns) = {r: r for r in t["over"]}, halves(t)
        inner = {} if op == "inverse" else {r: r for r in rows}
        place = ",".join([*map(ix, columns), *(inner.get(r) or ix(r) for r in rows)])
        matrix = f"inv_{','.join(over)}({sub(0, over)})[{place}]"
        return matrix if op == "inverse" else f"Σ_{','.join(rows)} {matrix}·{sub(1, inner)}"
    if op == "segsum":
        *over, n = t["over"]
        rows = {r: f"{r}'" for r in over}
        return f"Σ_{','.join(rows.values())} [{sub(1, rows)}={ix(n)}]·{sub(0, rows)}"
    if op == "split":
        n, o, i = t["over"]
        return sub(0, {n: f"{expr(t['win'][0][1][0])}·{ix(o)}+{ix(i)}"})
    if op == "stack":
        (r,) = t["over"]
        return f"[{sub()}]_{t['idx']}={ix(r)}"
    if op == "ren":
        old, new = t["over"]
        return sub(0, {old: ix(new)})
    if op == "diag":
        i, j = t["over"]
        return f"[{ix(i)}={ix(j)}]·{sub()}"
    if op == "merge":
        o, i, n = t["over"]
        return sub(0, {o: f"{ix(n)}//|{i}|", i: f"{ix(n)}%|{i}|"})
    image: dict[str, str] = {}
    kernel: dict[str, str] = {}
    limits: list[str] = list(t.get("over", ()))
    for r, a in t["win"]:
        inner = f"{r}'"
        step, low = (a[0], a[1]) if op == "conv" else (a[1], a[2])
        moved = f"{expr(a[4], 2)}·{inner}" if op == "conv" and a[4] != ("n", 1) else inner
        image[r] = f"{_affine(expr(step, 2), ix(r), '0')}+{moved}" + ("" if low == ("n", 0) else f"-{expr(low, 2)}")
        kernel[r] = inner
        limits.append(inner if op == "conv" else f"{inner}<{expr(a[0])}")
    sign = "Σ" if op == "conv" else _sign(t["kind"])
    body = sub(0, image) + (f"·{sub(1, kernel)}" if op == "conv" else "")
    return f"{sign}_{','.join(limits)} {body}"


def _affine(scale: str, index: str, offset: str) -> str:
    out = index if scale == "1" else f"{scale}·{index}"
    return out if offset == "0" else f"{out}+{offset}"


_expr = expr
