"""`superopt discover --from FILE.py:NAME`: rules that take programs as they are written to those that a person wants.

Rules are collected over all pairs: an equation that the library, or a rule found before, implies is none.  Every
program is then searched by the library alone and with the rules found, both by the model alone, and a rule pays where
the search with it ends cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewrites.language.parse import parse_many
from rewrites.language.term import Rule
from superopt.errors import ArgumentError, SuperoptError, UsageError
from superopt.frontends.jax.jaxpr import Imported
from superopt.lab.discovery.discover import Say
from superopt.lab.discovery.judge import IMPLIED, NEW, judge
from superopt.lab.discovery.pairs import PairLemma, WrittenPair, lemmas, pair
from superopt.pipeline.target import called

NOT_LIFTED = "NOT LIFTED"
_HINT = "NAME() returns {name: (as written, as wanted, arguments)}, or with the frozen positions as a fourth value"


@dataclass(frozen=True, slots=True)
class JudgedLemma:
    """The fate of one equation of a pair.

    Attributes:
        place: the operation of the program as it is written.
        status: that of `superopt.lab.discovery.judge`, or NOT LIFTED.
        rule: the widened rule, where it is new.
        reason: why there is none.
    """

    place: str
    status: str
    rule: str = ""
    reason: str = ""


def run_pairs(
    target: str, library: bool, price: Callable[[Imported, Sequence[Rule]], Mapping[str, Any]], say: Say
) -> tuple[dict[str, Any], str]:
    """Find rules for the pairs of a file; return the summary and its text.

    Args:
        target: `FILE.py:NAME`, where NAME() returns the pairs.
        library: leave out what the library implies.
        price: the predicted times of a program without and with rules, and those that gain alone.
        say: called with one line per pair.

    Raises:
        ArgumentError: the target gives no pairs, or a function of a pair does not take its arguments.
    """
    rules: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    pairs: dict[str, WrittenPair] = {}
    for name, given in _pairs(target).items():
        try:
            pairs[name] = pair(name, *given)
            judged = [_judged(one, f"{_plain(name)}-{k}", rules, library) for k, one in enumerate(lemmas(pairs[name]))]
        except (SuperoptError, ValueError) as error:
            rows.append({"pair": name, "failure": str(error.args[0]) if error.args else type(error).__name__})
            say(f"{name}: {rows[-1]['failure']}")
            continue
        rows.append({"pair": name, "lemmas": [asdict(x) for x in judged]})
        say(f"{name}: {len(judged)} lemmas, {sum(x.status == NEW for x in judged)} new rules")
    texts = "\n\n".join(rules.values())
    new = parse_many(texts, "discovered") if rules else ()
    for row in rows:
        if "failure" not in row:
            priced = price(pairs[row["pair"]].imported, new)
            row |= {key: priced[key] for key in ("original_ms", "library_ms", "found_ms", "ratio", "gains")}
            say(f"{row['pair']}: predicted {row['library_ms']:.4g} -> {row['found_ms']:.4g} ms")
    pays = {name: [row["pair"] for row in rows if name in row.get("gains", {})] for name in rules}
    summary = {
        "pairs": len(rows), "rules": len(rules), "paid": sum(bool(x) for x in pays.values()),
        "rows": rows, "texts": [_with_pairs(text, pays[name]) for name, text in rules.items()],
    }  # fmt: skip
    return summary, "\n".join([*summary["texts"], "", *map(_line, rows)])


def _pairs(target: str) -> dict[str, tuple[Any, ...]]:
    if not target.partition(".py:")[2]:
        raise UsageError(f"{target} names no pairs", hint=f"write FILE.py:NAME; {_HINT}")
    made = called(target, _HINT)
    if not isinstance(made, Mapping) or not made:
        raise ArgumentError(f"{target} gives no pairs", hint=_HINT)
    for name, given in made.items():
        whole = isinstance(given, tuple) and len(given) in (3, 4) and callable(given[0]) and callable(given[1])
        if not whole or not isinstance(given[2], tuple | list):
            raise ArgumentError(f"the pair {name!r} is none", hint=_HINT)
    return {str(name): given for name, given in made.items()}


def _judged(lemma: PairLemma, name: str, rules: dict[str, str], library: bool) -> JudgedLemma:
    """Judge the readings of a lemma until one is a rule; a new one is added to the rules."""
    fate = JudgedLemma(lemma.place, NOT_LIFTED, reason=lemma.reason)
    for draft in lemma.drafts:
        said = judge(draft.text(), draft, name, tuple(rules.values()), library)
        fate = JudgedLemma(lemma.place, said.status, said.text if said.status == NEW else "", said.text)
        if said.status == NEW:
            rules[name] = said.text
        if said.status in (NEW, IMPLIED):
            break
    return fate


def _plain(name: str) -> str:
    """A name that a rule may have."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-") or "pair"


def _with_pairs(text: str, names: list[str]) -> str:
    return f"# pays on {', '.join(names)}\n{text}" if names else f"# pays on none of the pairs\n{text}"


def _line(row: Mapping[str, Any]) -> str:
    if "failure" in row:
        return f"{row['pair']}: {row['failure']}"
    told = [
        x["status"] if x["status"] in (NEW, IMPLIED) else f"{x['place']}: {x['status']} {x['reason']}".strip()
        for x in row["lemmas"]
    ]
    gain = f"predicted {row['library_ms']:.4g} -> {row['found_ms']:.4g} ms"
    return f"{row['pair']}: {gain}; {'; '.join(told) or 'no equation between operations of both'}"
