"""Reading terms that make and rename roles: split, merge, ren, unit, diag.

A role that only such a term makes is declared `extra`; it is *derived*: it has as many axes as the role it comes from.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from rewrites.language.term import Term, roles_of, stem, term

if TYPE_CHECKING:
    from rewrites.language.parse_terms import Reader


def split(reader: Reader, x: Term, rest: list[ast.expr]) -> Term:
    """The term `split(A, n, o, i(q))`."""
    if len(rest) != 3 or not isinstance(rest[2], ast.Call):
        reader.fail("split is written split(A, n, o, i(q)), or split(A, n, n, i(q))")
    n, o, i = reader.words("split", [rest[0], rest[1], rest[2].func])
    reader.have("split", x, (n,))
    size = reader.expr(rest[2].args[0], None)
    for r in (o, i):
        if r != n:  # the outer part may keep the name of the whole
            _derive(reader, r, n)
    return term("split", x, over=(n, o, i), win=((n, (size,)),))


def iota(reader: Reader, args: list[ast.expr]) -> Term:
    """The term `iota(n)`: the index along a single-axis role."""
    (token,) = reader.words("iota", args, tokens=True)
    if token not in reader.sizes or stem(token) in reader.d.many:
        reader.fail(f"iota({token}): expected a size token of a single-axis role")
    return term("iota", over=(stem(token),), size=(token,))


def broadcast(reader: Reader, x: Term, rest: list[ast.expr]) -> Term:
    """The term `bcast(A, m, n(e))`: a role by name has the size of its token, `n(e)` is the role n at the size e."""
    tokens = reader.words("bcast", [r for r in rest if isinstance(r, ast.Name)], tokens=True)
    win = reader.windows("expand", [r for r in rest if not isinstance(r, ast.Name)])
    clash = {stem(t) for t in tokens} | {r for r, _ in win}
    if clash & set(roles_of(reader.d.vars, x)):
        reader.fail(f"bcast over {' '.join(sorted(clash))}: the operand has that role")
    for t in tokens:
        if t not in reader.sizes:
            reader.fail(f"bcast over {t}: no size token of that name")
    if tokens or not win:
        x = term("bcast", x, over=tuple(map(stem, tokens)), like=(), size=tokens)
    return term("expand", x, win=win) if win else x


def _merge(reader: Reader, x: Term, roles: tuple[str, ...]) -> Term:
    if len(roles) != 3:
        reader.fail("merge is written merge(A, o, i, n)")
    reader.have("merge", x, roles[:2])
    if roles[2] in reader.d.extras and roles[2] not in reader.derived:
        _derive(reader, roles[2], roles[0])
    return term("merge", x, over=roles)


def _rename(reader: Reader, x: Term, roles: tuple[str, ...]) -> Term:
    if len(roles) != 2:
        reader.fail("ren is written ren(A, old, new)")
    reader.have("ren", x, roles[:1])
    new_role(reader, "ren", x, roles[1], roles[0])
    return term("ren", x, over=roles)


def _unit(reader: Reader, x: Term, roles: tuple[str, ...]) -> Term:
    if len(roles) != 1:
        reader.fail("unit is written unit(A, role)")
    # as many axes as any other single-axis role has
    single = next((r for r in reader.d.roles if r not in reader.d.many and r not in reader.d.extras), roles[0])
    new_role(reader, "unit", x, roles[0], single)
    return term("unit", x, over=roles)


def _diag(reader: Reader, x: Term, roles: tuple[str, ...]) -> Term:
    if len(roles) != 2:
        reader.fail("diag is written diag(A, i, j)")
    reader.have("diag", x, roles[:1])
    new_role(reader, "diag", x, roles[1], roles[0])
    return term("diag", x, over=roles)


def new_role(reader: Reader, f: str, x: Term, role: str, of: str) -> None:
    """Fail unless the term can get the role; a new role has as many axes as `of`."""
    if role in roles_of(reader.d.vars, x):
        reader.fail(f"{f}: the operand already has the role {role}")
    if role in reader.d.extras and role != of:
        _derive(reader, role, of)
    elif (role in reader.d.many) != (of in reader.d.many):
        reader.fail(f"{role} and {of} must both be single-axis or both many-axis roles")


def _derive(reader: Reader, role: str, of: str) -> None:
    if role not in reader.d.extras:
        reader.fail(f"{role} is a new role: declare it as extra")
    if (role in reader.d.many) != (of in reader.d.many):
        reader.fail(f"{role} and {of} must both be single-axis or both many-axis roles")
    reader.derived.setdefault(role, of)


READERS: dict[str, Callable[[Reader, Term, tuple[str, ...]], Term]] = {
    "merge": _merge,
    "ren": _rename,
    "unit": _unit,
    "diag": _diag,
}
