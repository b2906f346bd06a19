"""Decides the fate of a candidate: implied, a new rule, refuted, or unknown; runs in the workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.errors import RuleError
from superopt.lab.discovery.draft import Draft
from superopt.lab.discovery.implied import equations, implied
from superopt.lab.discovery.widen import rule_of, widen

IMPLIED, NEW = "IMPLIED", "NEW"


@dataclass(frozen=True, slots=True)
class Judged:
    """The fate of one candidate.

    Attributes:
        key: its text.
        status: IMPLIED, NEW (proved), REFUTED, UNKNOWN, UNSUPPORTED, or UNUSABLE (binds in no direction).
        text: the widened rule when it is new, else the reason.
        exactness: exactness class of the new rule.
        seconds: processor time.
    """

    key: str
    status: str
    text: str = ""
    exactness: str = ""
    seconds: float = 0.0


@lru_cache(maxsize=4096)
def parsed(text: str) -> tuple[Rule, ...]:
    """The equations of a rule text."""
    return equations([parse(text, where="discovered")])


@lru_cache(maxsize=2)
def library_equations(use: bool) -> tuple[Rule, ...]:
    """The library as equations, without its laws of normal forms, which are built into the e-graph."""
    return equations(load()) if use else ()


def judge(key: str, draft: Draft, name: str, known: Sequence[str], library: bool = True) -> Judged:
    """The fate of a candidate, given the texts of the rules found so far."""
    begin = time.process_time()
    status, text, exactness = _judge(draft, name, known, library)
    return Judged(key, status, text, exactness, time.process_time() - begin)


def _judge(draft: Draft, name: str, known: Sequence[str], library: bool) -> tuple[str, str, str]:
    rule = rule_of(draft, name)
    if rule is None:
        return "UNUSABLE", "", ""
    if implied(rule, (*library_equations(library), *(r for text in known for r in parsed(text)))):
        return IMPLIED, "", ""
    try:
        wide, verdict = widen(draft, name)
    except RuleError as error:
        return "UNUSABLE", str(error), ""
    if not verdict.proved:
        return verdict.status, verdict.cause, ""
    made = rule_of(wide, name)
    assert made is not None
    assert verdict.domain is not None
    text = wide.text(name) if parses(wide.text(name)) else wide.swapped().text(name)
    return NEW, text, verdict.domain.exactness


def parses(text: str) -> bool:
    """Whether the text is a rule of the language."""
    try:
        parse(text, where="discovered")
    except RuleError:
        return False
    return True


def judge_many(tasks: Sequence[tuple[str, Draft, str]], known: Sequence[str], library: bool) -> list[Judged]:
    """The fates of several candidates in turn: each also sees the rules found before it here."""
    out: list[Judged] = []
    texts = list(known)
    for key, draft, name in tasks:
        out.append(judge(key, draft, name, texts, library))
        if out[-1].status == NEW:
            texts.append(out[-1].text)
    return out


def still_new(text: str, known: Sequence[str]) -> bool:
    """Whether a new rule is not implied by these others."""
    (rule, *_) = (parse(text, where="discovered"),)
    return not implied(rule, tuple(r for other in known for r in parsed(other)))
