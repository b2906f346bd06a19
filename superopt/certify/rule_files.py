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
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewrites.language.parse import Misread, parse_each
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.certify.proving import collected, statements
from superopt.certify.xla_rules import by_xla
from superopt.errors import DEFECT, InputError, ProverDefectError, SuperoptError
from superopt.files.reading import text_file
from superopt.machine.deadline import Stopwatch
from superopt.machine.shared import parse_module
from superopt.store import Store
from verifier.record.checker import Checked, check
from verifier.record.ledger import Ledger, require_proved, summary, verify_rules
from verifier.record.recheck import recheck
from verifier.rules.fuzz import fuzz
from verifier.rules.preconditions import explained, report
from verifier.verdict import UNKNOWN, Verdict

_MAKERS = ("statement", "rule")
_TEST_LINES = 40  # a longer test is not printed


def verify_library(names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Prove the shipped library from scratch; return summary and text.

    Raises:
        InputError: no rule has such a name.
    """
    return _verify(chosen_rules(load(), names))


def verify_files(files: Sequence[str], names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Prove every rule and statement of some files.

    Raises:
        InputError: a file that cannot be read or run, or without rules and statements, or nothing of such a name.
        RuleError: no text among them is a rule; beside others one that is none is UNKNOWN.
    """
    rules: list[Rule | Misread] = []
    made: list[tuple[Any, bool]] = []
    for file in files:
        made_here = _run(file) if _makes_statements(file) else []
        made += made_here
        rules += _read(file, needed=not made_here)
    wanted = [(x, lift) for x, lift in made if _is_named(x, names)]
    chosen = [r for r in rules if _is_named(r, names)]
    if not wanted and not chosen:
        raise _nothing(rules)
    misread = [r for r in chosen if isinstance(r, Misread)]
    if misread and len(misread) == len(chosen) and not wanted:
        raise misread[0].error
    return _verify(chosen, wanted)


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
    text, first = text_file(file), 1
    if Path(file).suffix == ".py":
        found = _rules_text(file)
        if found is None and needed:
            raise InputError(
                f"{file} defines no RULES text and makes no statement",
                hint='write RULES = """...""", or superopt.statement(...)',
            )
        text, first = found or ("", 1)
    yield from parse_each(text, where=f"{file}:{first}")


def _rules_text(file: str) -> tuple[str, int] | None:
    """Return the string that a Python file assigns to RULES, and the line on which it starts."""
    for statement in _parsed(file).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="RULES")], value=ast.Constant(value=str(text)) as value):
                return text, value.lineno
            case _:
                pass
    return None


def chosen_rules(rules: Sequence[Rule], names: Sequence[str]) -> list[Rule]:
    """Return the rules whose names contain one of some texts, or all where there is no text.

    Raises:
        InputError: there is none.
    """
    chosen = [r for r in rules if _is_named(r, names)]
    if not chosen:
        raise _nothing(rules)
    return chosen


def _is_named(x: Any, names: Sequence[str]) -> bool:
    return not names or any(text in x.name for text in names)


def _nothing(rules: Sequence[Any]) -> InputError:
    hint = "a rule starts with `name: declarations` at the margin"
    return InputError("no rule to verify", hint="no rule has such a name" if rules else hint)


def _verify(rules: Sequence[Rule | Misread], made: Sequence[tuple[Any, bool]] = ()) -> tuple[dict[str, Any], str]:
    watch = Stopwatch()
    texts = [*rules, *(x for x, _ in made if isinstance(x, Rule))]
    verdicts = [_barred(rule, _proved_and_tried) for rule in texts]
    for x, lift in made:
        if not isinstance(x, Rule):
            verdicts.append(_barred(x, _as_rule if lift else statements().check_statement))
    data = summary(verdicts, watch.elapsed_s)
    data["defects"] = [v.rule for v in verdicts if v.cause.startswith(DEFECT)]
    lines = [f"{v}{_as_test(v)}" for v in verdicts]
    lines.append(
        f"{data['rules']} rules: {data['proved']} proved, {data['refuted']} refuted, {data['unknown']} unknown"
        f" in {data['seconds']:.1f} s"
    )
    if data["defects"]:
        lines.append(f"{DEFECT}{', '.join(data['defects'])} proved and refuted; believe none of the proofs above")
    return data, "\n".join(lines)


def _proved_and_tried(rule: Rule | Misread) -> Verdict:
    """Return the verdict on a rule; a proved rule is also evaluated by XLA."""
    if isinstance(rule, Misread):
        raise rule.error
    verdict = explained(rule, verify_rules([rule])[0])
    if verdict.domain is not None:
        told = by_xla(rule, verdict.domain)
        if told:
            raise ProverDefectError(f"{rule.name} is proved and yet refuted: {told}")
    return verdict


def _as_rule(made: Any) -> Verdict:
    return statements().as_rule(made)[1]


def _barred(made: Any, judge: Callable[[Any], Verdict]) -> Verdict:
    """Return the verdict on one rule or statement; any error there is UNKNOWN with that cause."""
    try:
        return judge(made)
    except ProverDefectError as defect:
        return Verdict(made.name, "", made.where, "", UNKNOWN, cause=str(defect.args[0]))
    except (Exception, SystemExit) as error:  # the others are still to be judged
        first = str(error).strip().partition("\n")[0]
        kind = "statement" if hasattr(made, "specs") else "forward"
        return Verdict(made.name, "", made.where, kind, UNKNOWN, cause=f"{type(error).__name__}: {first}")


def _as_test(verdict: Verdict) -> str:
    """Return the pasteable test of a refutation, indented; for a long one, its place."""
    found = verdict.counterexample
    if found is None or not found.code:
        return ""
    lines = [line for line in found.code.splitlines() if line]
    if len(lines) > _TEST_LINES:
        return f"\n  as a test to paste ({len(lines)} lines): counterexample.code of --json"
    return "\n".join(["", "  as a test to paste:", *(f"    {line}" for line in lines)])


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
