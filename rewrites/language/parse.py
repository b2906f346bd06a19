"""Parser of rule texts: text -> `Rule`.

    name: declarations
      left, left, ...  ==  right, right, ...
      with X = term            shared subterm of the right side (of both sides in mode proof)
      if condition, ...        premise: proved with the rule, checked again at every site
      prefer condition, ...    steers the engine; no part of the proof
      given term, ...          premise about values: Boolean terms that are true at every index
      dtype int                a rule about integers alone
      numerics range           a rule that may lose digits where terms cancel
      mode saturate|near|merge|macro|proof
      source where the equation comes from.

The grammar inside is Python's expression grammar, read with `ast` and never executed; names are resolved against the
declarations.  A line that starts with no clause word continues the line before.  Errors name the rule, the file and
the line.  This module reads the frame of a rule; `parse_terms` reads the terms inside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rewrites.language import direction
from rewrites.language.kinds import kinds
from rewrites.language.parse_terms import Declared, TermReader, fail
from rewrites.language.term import MODES, REDUCERS, Rule, Term, roles_of, stem, subterms
from superopt.errors import RuleError
from superopt.machine.shared import parse_expression

CLAUSES = ("with", "if", "given", "dtype", "numerics", "prefer", "mode", "source")
_DECLARATION = re.compile(
    r"\s*(?:(?P<var>[A-Za-z]\w*)\[(?P<tokens>[^\]]*)\]|(?P<f>[A-Za-z]\w*)/(?P<arity>\d)"
    r"|(?P<name>[A-Za-z]\w*)\s+in\s+(?P<values>[\w|]+)|extra(?P<extra>(?:\s+\*?[a-z]\w*(?![\w\[/])(?!\s+in\b))+))"
)


@dataclass
class _Section:
    """One clause of a rule: its text, and `file:line: rule name`."""

    kind: str
    context: str
    text: str

    def elements(self, reader: TermReader, text: str | None = None) -> list[ast.expr]:
        """Parse the expressions of the clause, or of a part of it; sets the reader's context for error messages."""
        reader.context = self.context
        return _elements(self.text if text is None else text, self.context)


@dataclass(frozen=True, slots=True)
class Misread:
    """A text among rules that is not a well-formed rule: its name, `file:line`, and the error message."""

    name: str
    where: str
    error: RuleError


def parse(text: str, where: str = "<text>") -> Rule:
    """Read one rule; `where` is `file:line` of its first line.

    Raises:
        RuleError: the text is no well-formed rule, with name, file and line.
    """
    name, where, declaration, sections = _frame(text, where)
    context = f"{where}: rule {name or '?'}"
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise RuleError(f"{context}: the first line must be `name: declarations`")
    declared = _declarations(declaration, context)
    reader = TermReader(context, declared)
    bodies = [s for s in sections if s.kind == "body"]
    if len(bodies) != 1 or bodies[0].text.count("==") != 1:
        raise RuleError(f"{context}: expected one equation `left == right`, got {[b.text for b in bodies]}")
    (body,) = bodies
    left_text, right_text = body.text.split("==")
    shared = [s for s in sections if s.kind == "with"]
    proof = any(s.kind == "mode" and s.text.strip() == "proof" for s in sections)
    if proof:  # nothing is matched: subterms may be shared by both sides
        _lets(reader, shared)
    lhs = tuple(reader.term(e) for e in body.elements(reader, left_text))
    reader.left_done(lhs)
    if not proof:
        _lets(reader, shared)
    rhs = tuple(reader.term(e) for e in body.elements(reader, right_text))
    read: dict[str, Callable[[ast.expr], Any]] = {
        "if": reader.condition, "prefer": reader.preference, "given": reader.premise
    }  # fmt: skip
    clauses: dict[str, list[Any]] = {kind: [] for kind in read}
    told = {"mode": "saturate", "source": "", "dtype": "", "numerics": ""}
    for section in sections:
        if section.kind in read:
            clauses[section.kind] += map(read[section.kind], section.elements(reader))
        elif section.kind in told:
            told[section.kind] = section.text.strip()
    if told["dtype"] not in ("", "int"):
        raise RuleError(f"{context}: dtype {told['dtype']!r} is not int; without the clause a rule is about floats")
    if told["numerics"] not in ("", "range"):
        raise RuleError(f"{context}: numerics {told['numerics']!r} is not range; without the clause it is computed")
    if told["mode"] not in MODES:
        raise RuleError(f"{context}: mode {told['mode']!r} is not one of {', '.join(MODES)}")
    rule = Rule(
        name=name, where=where, vars=declared.vars, roles=tuple(declared.roles),
        many=frozenset(declared.many), owner=declared.owner, sizes=frozenset(reader.sizes),
        indices=frozenset(reader.indices), metas=declared.metas, params=declared.params,
        extras=tuple(declared.extras), derived=reader.derived, kinds=kinds(declared.vars, lhs + rhs), lhs=lhs, rhs=rhs,
        cond=tuple(clauses["if"]), prefer=tuple(clauses["prefer"]), given=tuple(clauses["given"]),
        mode=told["mode"], source=told["source"], dtype=told["dtype"],
        numerics=told["numerics"],
    )  # fmt: skip
    _check(rule, context)
    return rule


def _lets(reader: TermReader, shared: list[_Section]) -> None:
    """Read the `with` clauses, which name shared subterms."""
    for section in shared:
        let, _, value = section.text.partition("=")
        trees = section.elements(reader, value)
        if len(trees) != 1:
            reader.fail(f"with {let.strip()}: one term expected, got {len(trees)}")
        reader.let(let.strip(), trees[0])


def parse_many(text: str, where: str = "<text>") -> tuple[Rule, ...]:
    """Read rules separated by blank lines; `where` is `file:line` of the first line of the text.

    Raises:
        RuleError: a text is no well-formed rule, or two rules share a name.
    """
    rules: list[Rule] = []
    for read in parse_each(text, where):
        if isinstance(read, Misread):
            raise read.error
        rules.append(read)
    return tuple(rules)


def parse_each(text: str, where: str = "<text>") -> Iterator[Rule | Misread]:
    """Read rules separated by blank lines, each by itself: an error in one leaves the others readable."""
    seen: dict[str, Rule] = {}
    for line, block in _blocks(text):
        here = _advance(where, line)
        try:
            rule = parse(block, here)
            if rule.name in seen:
                raise RuleError(f"{rule.where}: rule {rule.name} is already defined at {seen[rule.name].where}")
        except RuleError as error:
            name, at, *_ = _frame(block, here)
            yield Misread(name, at, error)
        else:
            seen[rule.name] = rule
            yield rule


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    start, lines = 0, list[str]()
    for i, line in enumerate([*text.split("\n"), ""]):
        if line.strip():
            if not lines:
                start = i
            lines.append(line)
        elif lines:
            if any(x.split("#")[0].strip() for x in lines):
                yield start, "\n".join(lines)
            lines = []


def _advance(where: str, lines: int) -> str:
    path, _, line = where.rpartition(":")
    return f"{path}:{int(line) + lines}" if path and line.isdigit() else f"{where}:{lines + 1}"


def _frame(text: str, where: str) -> tuple[str, str, str, list[_Section]]:
    """Name, `file:line`, declarations and clauses of a rule."""
    if not re.search(r":\d+$", where):
        where = f"{where}:1"
    kept = [(i, x.split("#")[0].strip()) for i, x in enumerate(text.split("\n"))]
    kept = [(i, x) for i, x in kept if x]
    if not kept:
        raise RuleError(f"{where}: empty rule text")
    name, _, declaration = kept[0][1].partition(":")
    name = name.strip()
    sections: list[_Section] = []
    for i, line in kept[1:]:
        word = line.split(None, 1)[0]
        context = f"{_advance(where, i)}: rule {name}"
        if word in CLAUSES:
            sections.append(_Section(word, context, line[len(word) :].strip()))
        elif sections and (sections[-1].kind != "body" or any(s.kind == "body" for s in sections)):
            sections[-1].text += " " + line
        else:
            sections.append(_Section("body", context, line))
    return name, _advance(where, kept[0][0]), declaration, sections


def _elements(text: str, context: str) -> list[ast.expr]:
    try:
        tree = parse_expression(f"({text.strip()},)")
    except SyntaxError as error:
        raise RuleError(f"{context}: {error.msg} in {text.strip()!r}") from error
    if not isinstance(tree, ast.Tuple):  # a parenthesis closed the one around the text
        raise RuleError(f"{context}: unmatched parentheses in {text.strip()!r}")
    return tree.elts


def _declarations(text: str, context: str) -> Declared:
    """Return the tensors, roles and attributes that the first lines of a rule declare."""
    d = Declared()

    def role(token: str) -> str:
        bare = token.lstrip("*")
        name = stem(bare)
        if not re.fullmatch(r"\*?[a-z][a-z_]*\d*", token):
            fail(context, f"{token!r} is no role: lower-case letters, digits at the end")
        if name in d.roles and (name in d.many) != token.startswith("*"):
            fail(context, f"role {name} is declared both with and without *")
        d.roles[name] = None
        if token.startswith("*"):
            d.many.add(name)
        return bare

    position = 0
    while position < len(text.rstrip()):
        found = _DECLARATION.match(text, position)
        if found is None:
            fail(context, f"cannot read the declaration {text[position:].strip()!r}")
        position = found.end()
        g = found.groupdict()
        if g["var"]:
            tokens = tuple(role(t) for t in g["tokens"].split())
            if len(set(map(stem, tokens))) != len(tokens):
                fail(context, f"{g['var']}[{g['tokens']}] holds a role twice")
            if g["var"] in d.vars:
                fail(context, f"{g['var']} is declared twice")
            if g["var"] == "inf":
                fail(context, "inf is a number, and no tensor can have its name")
            d.vars[g["var"]] = tokens
            d.owner.update((t, stem(t)) for t in tokens)
        elif g["f"]:
            d.metas[g["f"]] = int(g["arity"])
        elif g["name"]:
            values = g["values"].split("|")
            if values == ["int"]:
                d.params[g["name"]] = ()
            elif all(re.fullmatch("[0-9]{1,18}", v) for v in values):
                d.params[g["name"]] = tuple(map(int, values))
            elif set(values) <= set(REDUCERS):
                d.metas[g["name"]] = tuple(values)
            else:
                fail(
                    context, f"{g['name']} in {g['values']}: expected int, reducers ({', '.join(REDUCERS)}) or integers"
                )
        else:
            for token in g["extra"].split():
                bare = role(token)
                d.extras.append(stem(bare))
                d.owner[bare] = stem(bare)
    return d


def _check(rule: Rule, context: str) -> None:
    if len(rule.lhs) != len(rule.rhs):
        fail(context, f"{len(rule.lhs)} roots on the left and {len(rule.rhs)} on the right")
    for left, right in zip(rule.lhs, rule.rhs, strict=True):
        a, b = set(roles_of(rule.vars, left)), set(roles_of(rule.vars, right))
        if a != b:
            fail(context, f"the sides have different roles: {_set(a)} and {_set(b)}")
    reason = direction.unusable(rule)
    if reason is not None:
        fail(context, reason)
    if rule.mode == "merge" and len(rule.lhs) < 2:
        fail(context, "mode merge needs several roots")
    if rule.mode == "macro" and not is_macro(rule):
        fail(context, "mode macro needs a left side that is one op over distinct variables or literals")


def is_macro(rule: Rule) -> bool:
    """Whether the left side is one op over distinct variables or literals."""
    if len(rule.lhs) != 1:
        return False

    def leaf(t: Term) -> bool:
        return t.op in ("var", "lit") or (t.op == "bcast" and bool(t["like"]) and leaf(t.args[0]))

    variables = [t for a in rule.lhs[0].args for t in subterms((a,)) if t.op == "var"]
    return all(map(leaf, rule.lhs[0].args)) and len(set(variables)) == len(variables)


def _set(roles: set[str]) -> str:
    return "{" + " ".join(sorted(roles)) + "}"
