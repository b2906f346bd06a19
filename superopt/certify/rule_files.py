"""Files of rules and statements, and the library, for the command `superopt verify`.

A text file holds rules.  A Python file may hold rules as a text named RULES, which is read and not run.  It may also
make statements and rules by `superopt.statement` and `superopt.rule`.  Then it is run once, under the name
`superopt_verify` with its folder on the path, so that code under `__name__ == "__main__"` is left out.  Everything
given to those two functions is proved afterwards, so that the first failure does not hide the others.

Certificates are rechecked by replaying every solver query that a proof rests on.  Rules without a certificate are
proved first, and the certificate is kept.
"""

from __future__ import annotations

import ast
import functools
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rewrites.language.parse import Misread, parse_each
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.certify.proving import collected, statements
from superopt.errors import DEFECT, InputError, ProverDefectError, SuperoptError, VerificationError
from superopt.files.reading import text_file
from superopt.machine.deadline import Stopwatch
from superopt.machine.shared import parse_module
from superopt.store import Store
from verifier.record.checker import Checked, check
from verifier.record.ledger import Ledger, require_proved, summary
from verifier.record.recheck import recheck
from verifier.rules.fuzz import fuzz
from verifier.rules.preconditions import explained, report
from verifier.rules.process import Prover, each, shared
from verifier.verdict import PROVED, REFUTED, UNKNOWN, Verdict

_MAKERS = ("statement", "rule")
Named = TypeVar("Named", "Rule", "Proposition")


@dataclass(frozen=True, slots=True)
class Proposition:
    """A rule or statement of a file, to be judged.

    Attributes:
        made: the rule, the statement, or the text that is no rule.
        lift: whether a statement is to become a rule.
    """

    made: Any
    lift: bool = False

    @property
    def name(self) -> str:
        """The name of the rule or statement."""
        return self.made.name

    @property
    def where(self) -> str:
        """Its `file:line`."""
        return self.made.where

    def judged(self, known: Verdict | VerificationError | None = None) -> Verdict:
        """Return the verdict; any error is UNKNOWN with that cause.

        Args:
            known: the prover's verdict on a rule, or why it gave none; it is asked where that is None.
        """
        try:
            if isinstance(self.made, Misread):
                raise self.made.error
            if isinstance(self.made, Rule):
                return _tried(self.made, known or _asked(shared(), self.made))
            return statements().as_rule(self.made)[1] if self.lift else statements().check_statement(self.made)
        except ProverDefectError as defect:
            return Verdict(self.name, "", self.where, "", UNKNOWN, cause=str(defect.args[0]))
        except (Exception, SystemExit) as error:  # the others are still to be judged
            first = str(error).strip().partition("\n")[0]
            kind = "forward" if isinstance(self.made, Rule | Misread) else "statement"
            return Verdict(self.name, "", self.where, kind, UNKNOWN, cause=f"{type(error).__name__}: {first}")


@dataclass(frozen=True, slots=True)
class Verified:
    """Verdicts on rules and statements, in the order of their files.

    Attributes:
        verdicts: one for each.
        seconds: wall time.
        without_xla: reason why XLA did not evaluate what is proved; empty where it did.
    """

    verdicts: tuple[Verdict, ...]
    seconds: float
    without_xla: str

    @property
    def good(self) -> bool:
        """Whether all are proved."""
        return all(v.proved for v in self.verdicts)

    @property
    def defects(self) -> list[str]:
        """Names of rules that are proved and refuted at once."""
        return [v.rule for v in self.verdicts if v.cause.startswith(DEFECT)]

    def to_json(self) -> dict[str, Any]:
        """The totals, and a row for each verdict."""
        data = summary(self.verdicts, self.seconds)
        return {**data, "defects": self.defects, "without_xla": self.without_xla}

    def __str__(self) -> str:
        count = Counter(v.status for v in self.verdicts)
        lines = [v.told() for v in self.verdicts]
        lines.append(
            f"{len(self.verdicts)} rules: {count[PROVED]} proved, {count[REFUTED]} refuted, {count[UNKNOWN]} unknown"
            f" in {self.seconds:.1f} s"
        )
        if self.without_xla and count[PROVED]:
            lines.append(f"XLA did not evaluate what is proved: {self.without_xla}")
        if self.defects:
            lines.append(f"{DEFECT}{', '.join(self.defects)} proved and refuted; believe none of the proofs above")
        return "\n".join(lines)


def verify_library(names: Sequence[str] = ()) -> Verified:
    """Prove the shipped library from scratch.

    Raises:
        InputError: no rule has such a name.
    """
    return _judged([Proposition(rule) for rule in chosen_rules(load(), names)])


def verify_files(files: Sequence[str], names: Sequence[str] = ()) -> Verified:
    """Prove every rule and statement of some files.

    Raises:
        InputError: a file that cannot be read or run, or without rules and statements, or nothing of such a name.
        RuleError: no text among them is a rule; beside others one that is none is UNKNOWN.
    """
    chosen = chosen_rules([proposition for file in files for proposition in propositions(file)], names)
    misread = [proposition.made.error for proposition in chosen if isinstance(proposition.made, Misread)]
    if len(misread) == len(chosen):
        raise misread[0]
    return _judged(chosen)


def propositions(file: str) -> list[Proposition]:
    """Return the rules and statements of a file, unproved; a Python file that makes statements is run.

    Raises:
        InputError: the file cannot be read or run, or is Python without rules and statements.
    """
    made = _run(file) if _makes_statements(file) else []
    return [*map(Proposition, _read(file, needed=not made)), *(Proposition(x, lift) for x, lift in made)]


def _judged(chosen: Sequence[Proposition]) -> Verified:
    watch = Stopwatch()
    rules = {n: proposition.made for n, proposition in enumerate(chosen) if isinstance(proposition.made, Rule)}
    order, judged = list(rules), dict[int, Verdict]()
    for i, known in each(list(rules.values()), _asked, [shared()]):  # XLA evaluates one while the next is proved
        judged[order[i]] = chosen[order[i]].judged(known)
    verdicts = tuple([judged[n] if n in judged else proposition.judged() for n, proposition in enumerate(chosen)])
    tried = any(v.proved for v in verdicts)
    return Verified(verdicts, watch.elapsed_s, without_xla() if tried else "")


def examine_preconditions(files: Sequence[str], names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Test whether every premise of the rules of some files, or of the library, is needed; return summary and text.

    Raises:
        InputError: a file that cannot be read, or no rule of such a name.
    """
    return report(_rules(files, names))


def fuzz_rules(files: Sequence[str], names: Sequence[str] = (), count: int = 500) -> tuple[dict[str, Any], str]:
    """Return summary and text of the verdicts on mutants of the rules of some files, or of the library.

    Raises:
        InputError: a file that cannot be read, or no rule of such a name.
    """
    done = fuzz(_rules(files, names), count)
    return done.summary(), str(done)


def _rules(files: Sequence[str], names: Sequence[str]) -> list[Rule]:
    return chosen_rules(rules_of_files(files) if files else load(), names)


def _makes_statements(file: str) -> bool:
    """Whether a Python file mentions `superopt.statement` or `superopt.rule`, so that it has to be run."""
    if Path(file).suffix != ".py":
        return False
    return any(
        (isinstance(x, ast.Attribute) and x.attr in _MAKERS and isinstance(x.value, ast.Name))
        or (isinstance(x, ast.ImportFrom) and x.module == "superopt" and any(a.name in _MAKERS for a in x.names))
        for x in ast.walk(_parsed(file))
    )


def _run(file: str) -> list[tuple[Any, bool]]:
    """Run a file and return the unproved statements and rules that it makes by the functions of `superopt`."""
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)
    made: list[tuple[Any, bool]] = []
    try:
        with collected() as made:
            runpy.run_path(file, run_name="superopt_verify")
    except SuperoptError:
        raise
    except SystemExit as error:  # the end of the file, unless its status reports an error
        if error.code not in (None, 0):
            raise InputError(f"{file} ends itself: exit status {error.code}", hint="run it by itself") from error
    except Exception as error:  # a user's file may raise anything
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {error}", hint="run it by itself") from error
    finally:
        sys.path.remove(folder)
    return made


def _parsed(file: str) -> ast.Module:
    try:
        return parse_module(text_file(file))
    except SyntaxError as error:
        raise InputError(f"{file} is not Python: {error}", hint="give a text file of rules") from error


def rules_of_files(files: Sequence[str]) -> list[Rule]:
    """Return the rules that some files hold as text.

    Raises:
        InputError: a file that cannot be read, or without rules.
        RuleError: a text that is not a rule.
    """
    rules: list[Rule] = []
    for file in files:
        for read in _read(file):
            if isinstance(read, Misread):
                raise read.error
            rules.append(read)
    return rules


def _read(file: str, *, needed: bool = True) -> Iterator[Rule | Misread]:
    """Yield the rules that a file holds as text; with `needed`, there must be some."""
    if Path(file).suffix != ".py":
        yield from parse_each(text_file(file), where=f"{file}:1")
        return
    rules = _rules_text(file)
    if rules is None and needed:
        raise InputError(
            f"{file} defines no RULES text and makes no statement",
            hint='write RULES = """...""", or superopt.statement(...)',
        )
    text, first, aligned = rules or ("", 1, True)
    for read in parse_each(text, where=f"{file}:{first}"):
        yield read if aligned else replace(read, where=f"{file}:{first}")


def _rules_text(file: str) -> tuple[str, int, bool] | None:
    """Return the string that a Python file assigns to RULES, its first line, and whether its lines are the file's."""
    source = text_file(file).split("\n")
    for statement in _parsed(file).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="RULES")], value=ast.Constant(value=str(text)) as value):
                first = value.lineno + source[value.lineno - 1].endswith('"""\\')
                beyond = text.count("\n") - ((value.end_lineno or first) - first)
                return text, first, 0 <= beyond <= 1  # 1: strings side by side, one a line
            case _:
                pass
    return None


def chosen_rules(rules: Sequence[Named], names: Sequence[str] = ()) -> list[Named]:
    """Return the rules whose names contain one of some texts, or all where there is no text.

    Raises:
        InputError: there is none.
    """
    chosen = [rule for rule in rules if not names or any(text in rule.name for text in names)]
    if not chosen:
        hint = "a rule starts with `name: declarations` at the margin"
        raise InputError("no rule to verify", hint="no rule has such a name" if rules else hint)
    return chosen


def _asked(prover: Prover, rule: Rule) -> Verdict | VerificationError:
    """Return the prover's verdict on a rule, or why it gives none."""
    try:
        return prover.check(rule)
    except VerificationError as error:
        return error


def _tried(rule: Rule, known: Verdict | VerificationError) -> Verdict:
    """Return the verdict on a rule; a proved rule is also evaluated by XLA where that is installed."""
    if isinstance(known, VerificationError):
        raise known
    verdict = explained(rule, known)
    if verdict.domain is not None and not isinstance(reason := _xla(), ImportError):
        told = reason.by_xla(rule, verdict.domain)
        if told:
            raise ProverDefectError(f"{rule.name} is proved and yet refuted: {told}")
    return verdict


@functools.cache
def _xla() -> Any:
    """Return the module that evaluates rules by XLA, or the error of its import."""
    try:
        from superopt.certify import xla_rules  # late: JAX takes a second to load, and proofs do not need it
    except ImportError as error:
        return error
    return xla_rules


def without_xla() -> str:
    """Return the reason why XLA evaluates no proved rule; empty where it does."""
    return str(_xla()) if isinstance(_xla(), ImportError) else ""


# ---- certificates, looked at again


def recheck_certificates(
    files: Sequence[str] = (), *, library: bool = True, names: Sequence[str] = (), store: Store | None = None
) -> tuple[dict[str, Any], str]:
    """Replay the solver queries behind certificates of the library or of some files of rules; return summary and text.

    `sound` in the summary says that every rule has a certificate with its queries, that no solver contradicts one, and
    that the checker, which has none of the prover's code, refuses none.

    Raises:
        InputError: no rule has such a name, or a file cannot be read.
    """
    rules = chosen_rules([*(load() if library else ()), *rules_of_files(files)], names)
    watch = Stopwatch()
    opened = Store() if store is None else store
    try:
        ledger = Ledger(opened)
        kept, certificates = require_proved(rules, ledger)
        told = recheck([(c, ledger.asked(c)) for c in certificates.values()])
        added = Checked()
        for c in certificates.values():
            check(c, ledger.sums(c), added)
    finally:
        if store is None:
            opened.close()
    open_rules = sorted({r.name for r in rules} - {r.name for r in kept})
    sound = not open_rules and not told["disagreements"] and not told["without_queries"] and not added.refused
    data = {**told, "sums": asdict(added), "rules": len(rules), "not_proved": open_rules, "sound": sound}
    data["seconds"] = watch.elapsed_s
    return data, _rechecked(data)


def _rechecked(data: dict[str, Any]) -> str:
    lines = [f"{data['certificates']} certificates of {data['rules']} rules, {data['queries']} questions"]
    for name, counts in data["solvers"].items():
        figures = ", ".join(f"{counts[k]} {k}" for k in ("agree", "disagree", "unknown"))
        lines.append(f"  {name} {data['versions'][name]}: {figures}")
    if "cvc5" not in data["solvers"]:
        lines.append("  cvc5 is not installed: pip install 'superopt[cvc5]'")
    sums = data["sums"]
    lines.append(
        f"  checker: {sums['sums']} pairs of sums added up again, {sums['for_all_sizes']} for all sizes,"
        f" all at {sums['points']} points beside the rule's own values; {len(sums['refused'])} refused"
    )
    lines += [f"  REFUSED {why}" for why in sums["refused"]]
    lines += [
        f"  DISAGREE {d['rule']}: kept {d['kept']}, {d['solver']} says {d['says']}" for d in data["disagreements"]
    ]
    lines += [f"  no questions on record: {name}" for name in data["without_queries"]]
    lines += [f"  not proved: {name}" for name in data["not_proved"]]
    lines.append(f"{'sound' if data['sound'] else 'NOT SOUND'}, {data['seconds']:.1f} s")
    return "\n".join(lines)
