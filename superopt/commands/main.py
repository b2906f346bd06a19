"""The command line.

Commands only parse options and print; each calls one function of the package and imports it when it runs, so that
`superopt --help` answers at once.  Shared helpers and exit codes are in `superopt.commands.console`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import click

from superopt import __version__
from superopt.certify.rule_files import (
    examine_preconditions,
    fuzz_rules,
    recheck_certificates,
    verify_files,
    verify_library,
)
from superopt.commands.console import (
    INTERNAL,
    NOTHING_FOUND,
    OK,
    UNVERIFIED,
    USAGE,
    check_folder,
    emit,
    guarded,
    progress,
    write,
    write_text,
)
from superopt.errors import UsageError
from superopt.lab.bench import keeping, run_suite
from superopt.report import check_report_path, json_text
from superopt.store import Store
from verifier.verdict import PROVED


def parse_dims(pairs: tuple[str, ...]) -> dict[str, int]:
    """`name=size` options as a mapping.

    Raises:
        UsageError: a pair has another form.
    """
    dims: dict[str, int] = {}
    for pair in pairs:
        name, _, size = pair.partition("=")
        if not name or not re.fullmatch(r"[0-9]{1,18}", size) or int(size) < 1:
            raise UsageError(f"--dims {pair!r} is not name=size with a size from 1 on", hint="write --dims batch=8")
        dims[name] = int(size)
    return dims


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="superopt")
def cli() -> None:
    """Optimise JAX functions and ONNX models with proved rewrites; verify rules; report speed-ups."""


_EXISTING = click.Path(exists=True, dir_okay=False)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@cli.command()
@click.argument("target")
@click.option("--budget", default="60s", show_default=True, help="Time for the search: 30s, 2min, or 5000steps.")
@click.option("--dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dimension of an ONNX model.")
@click.option("--seed", default=0, show_default=True, help="Seed of the search and of random inputs.")
@click.option("--deterministic", is_flag=True, help="Let the performance model alone decide; measure nothing.")
@click.option(
    "--numerics",
    type=click.Choice(["exact", "real", "range"]),
    default="real",
    show_default=True,
    help="Rules that may be used: exact keeps every bit; range may overflow where the original does not.",
)
@click.option("--kernels/--no-kernels", default=True, show_default=True, help="Try kernels of our own beside XLA's.")
@click.option("--search/--no-search", default=True, help="Without: every region a kernel of our own, checked, at once.")
@click.option(
    "--data-root", type=click.Path(file_okay=False), help="Follow links to a model's data inside this folder."
)
@click.option("--random-weights", is_flag=True, help="Replace the model's weights by random ones of the right scale.")
@click.option("--strict", is_flag=True, help="Exit 5 when nothing was measured to be faster, or an op was opaque.")
@click.option("--no-store", is_flag=True, help="Neither read nor write the store of earlier results.")
@click.option("--report", "report_path", type=click.Path(dir_okay=False), help="Write .html, .json or .txt.")
@click.option("--out", type=click.Path(dir_okay=False), help="Save the optimised program as a .superopt file.")
@_JSON
@guarded
def optimize(
    target: str,
    dims: tuple[str, ...],
    strict: bool,
    no_store: bool,
    report_path: str | None,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Optimise TARGET: an ONNX file, or FILE.py:NAME where NAME() returns (function, example arguments)."""
    if report_path:
        check_report_path(report_path)
    check_folder(report_path)
    check_folder(out)
    from superopt.pipeline.target import optimize_target  # late: jax and z3 take seconds to load

    result = optimize_target(target, dims=parse_dims(dims), store=not no_store, progress=progress(as_json), **options)
    report = result.report
    if report_path:
        write(report_path, report.save)
    if out:
        write(out, result.save)
    if as_json:
        emit(report.to_json())
    else:
        click.echo(str(report))
        if report_path:
            click.echo(f"  report  {report_path}")
    return NOTHING_FOUND if strict and (not report.speedup.is_gain or report.opaque_ops) else OK


@cli.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--library", is_flag=True, help="Prove the shipped rule library from scratch.")
@click.option("--rule", "names", multiple=True, help="Only rules whose name contains this text.")
@click.option("--program", type=click.Path(), help="Validate a saved .superopt file from its plan, without the search.")
@click.option("--original", metavar="MODEL", help="With --program: the ONNX file that it was made from.")
@click.option("--no-limit", is_flag=True, help="With --program: validate it however much memory and time it takes.")
@click.option(
    "--recheck", is_flag=True, help="Ask the questions behind certificates of all solvers, add up both sides again."
)
@click.option("--preconditions", is_flag=True, help="Drop each premise in turn: is every one needed?")
@click.option("--fuzz", type=click.IntRange(1), metavar="N", help="Try N mutants: is anything proved that is false?")
@click.option(
    "--kernels", is_flag=True, help="Prove schedules of kernels, and the lemmas behind them; refute wrong ones."
)
@click.option("--dims", multiple=True, metavar="NAME=SIZE", help="With two programs: size of a symbolic dimension.")
@click.option("--numerics", type=click.Choice(["exact", "real", "range"]), default="real", show_default=True,
              help="With two models: the widest class of rules that may be used.")  # fmt: skip
@_JSON
@guarded
def verify(
    program: str | None,
    original: str | None,
    no_limit: bool,
    dims: tuple[str, ...],
    numerics: str,
    as_json: bool,
    **asked: Any,
) -> int:
    """Prove or refute every rule and statement of the FILES, or of the library, or that two programs are equal.

    A file holds rule texts, or is Python with a RULES text (read) or with superopt.rule and superopt.statement (run).
    Two ONNX models A.onnx B.onnx are compared output by output: proved, refuted with inputs to paste, or open and why.
    So are two StableHLO modules A.mlir B.mlir, as text or as the bytes that jax.export writes.  So are two programs
    A.py:NAME B.py:NAME, where NAME() returns (function, arguments): for the sizes of the arguments, or for all sizes
    where arguments are shapes over names ("b 64").
    """
    kinds = {kind for kind in map(_kind_of, asked["files"]) if kind}
    if kinds:
        if len(kinds) != 1 or [bool(_kind_of(f)) for f in asked["files"]] != [True, True]:
            raise UsageError(
                "programs are compared two at a time, both of one kind",
                hint="superopt verify A.onnx B.onnx, A.mlir B.mlir or A.py:NAME B.py:NAME",
            )
        with Store() as store:
            pair = _compared(kinds.pop(), asked["files"], parse_dims(dims), {"numerics": numerics, "store": store})
        emit(pair.to_json()) if as_json else click.echo(str(pair))
        return OK if pair.status == PROVED else UNVERIFIED
    if dims:
        raise UsageError("--dims is for two ONNX models")
    if program:
        from superopt.returned.revalidate import validate_file  # late: as above

        with Store() as store:
            found = validate_file(program, original, store, limited=not no_limit)
        emit(found.to_json()) if as_json else click.echo(str(found))
        return OK if found.valid else UNVERIFIED
    summary, text, good = _verified(**asked)
    emit(summary) if as_json else click.echo(text)
    return OK if good else UNVERIFIED


def _kind_of(file: str) -> str:
    """Name of the module of `superopt.compare` for a file; empty where the file holds rules."""
    if ".py:" in file:
        return "functions"
    suffix = f".{file.rpartition('.')[2]}"
    return "models" if suffix == ".onnx" else "modules" if suffix in (".mlir", ".mlirbc", ".stablehlo") else ""


def _compared(kind: str, files: Sequence[str], dims: dict[str, int], options: dict[str, Any]) -> Any:
    """The verdict on the equality of two programs."""
    compare = import_module(f"superopt.compare.{kind}")
    if kind == "models":
        return compare.compare_models(*files, dims=dims, **options)
    if kind == "modules":
        return compare.compare_modules(*files, dims=dims, **options)
    (first, args, frozen), (second, _, _) = map(import_module("superopt.pipeline.target").made_by, files)
    found = compare.compare_functions(first, second, *args, frozen=frozen, sizes=dims, **options)
    # where some are frozen the text to paste would need to split these from the rest
    return found if frozen else replace(found, code=found.code.replace(compare.LOAD, compare.loading(*files)))


def _verified(
    *,
    files: Sequence[str],
    library: bool,
    names: Sequence[str],
    recheck: bool,
    preconditions: bool,
    fuzz: int | None,
    kernels: bool,
) -> tuple[dict[str, Any], str, bool]:
    """Verify the requested rules; return a summary, a text, and whether all are as they should be."""
    if kernels:
        from superopt.lab.corpora.schedules.command import verify_kernels  # late: loads the solver

        summary, text = verify_kernels(names)
        return summary, text, summary["ok"]
    if recheck:
        summary, text = recheck_certificates(files, library=library or not files, names=names)
        return summary, text, summary["sound"]
    if bool(files) == library:
        hint = "name files of rules, or give --library"
        raise UsageError("files and --library are two requests" if files else "nothing to verify", hint=hint)
    if fuzz:
        summary, text = fuzz_rules(files, names, fuzz)
        return summary, text, not summary["false_proofs"]
    if preconditions:
        summary, text = examine_preconditions(files, names)
        return summary, text, not summary["redundant"]
    summary, text = verify_library(names) if library else verify_files(files, names)
    return summary, text, summary["proved"] == summary["rules"]


@cli.command()
@click.option("--ops", help="Ops to combine; `bilinear`: fewer products; `powers`: by roots.  [default: those of TASO]")
@click.option("--size", default=3, show_default=True, type=click.IntRange(1, 4), help="Most ops on a side.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option("--budget", default="600s", show_default=True, help="Time; a later run of the same goes on from there.")
@click.option("--bare", is_flag=True, help="Do not use the rule library: find everything again.")
@click.option("--coverage", is_flag=True, help="Also count the substitutions of TASO's generator that are implied.")
@click.option("--folder", type=click.Path(file_okay=False), help="Where runs are kept.  [default: the user's cache]")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the rules found to this file.")
@click.option("--price", "priced", multiple=True, type=_EXISTING, help="Price the rules of a file on the suites.")
@click.option("--case", "cases", multiple=True, help="Only programs whose name contains this text.")
@click.option("--measure", is_flag=True, help="Also time what is priced as cheaper.")
@_JSON
@guarded
def discover(
    jobs: int,
    bare: bool,
    out: str | None,
    priced: tuple[str, ...],
    cases: tuple[str, ...],
    measure: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Enumerate equal terms over some ops, prove them as rules, and print those that the library does not imply."""
    check_folder(out)
    if priced:
        from superopt.lab.bench import price  # late: loads jax

        rows, figures, text = price.run(files=priced, cases=cases, jobs=jobs, measure=measure, say=progress(as_json))
        emit({"rows": rows, "summary": figures}) if as_json else click.echo(text)
        return OK
    from superopt.lab.discovery.command import run  # late: loads the verifier

    summary, text = run(jobs=jobs, library=not bare, say=progress(as_json), **options)
    if out:
        write_text(out, "\n\n".join(summary["texts"]) + "\n")
    emit(summary) if as_json else click.echo(text)
    return OK


@cli.command()
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1), help="Time of the run.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Number of the first program.")
@click.option("--programs", type=click.IntRange(0), help="Whole programs at most.  [default: as many as fit]")
@click.option(
    "--kernels", type=click.IntRange(0), help="Random kernels at most; 0 for none.  [default: as many as fit]"
)
@click.option("--store", help="Keep proofs here between runs.")
@_JSON
@guarded
def fuzz(seconds: float, seed: int, programs: int | None, kernels: int | None, store: str | None, as_json: bool) -> int:
    """Run random whole programs and kernels against oracles; reduce what fails to a few lines."""
    from superopt.lab.fuzz.cli import run  # late: jax and onnx take seconds to load

    found = run(seconds, seed, programs, kernels, store, progress(as_json))
    emit(found.summary()) if as_json else click.echo(str(found))
    return INTERNAL if found.failed else OK


@cli.command()
@click.option("--calibrate", is_flag=True, help="Time kernels for half a minute to fit the cost model to this machine.")
@_JSON
@guarded
def doctor(calibrate: bool, as_json: bool) -> int:
    """Check this installation: machine, libraries, store, calibration, a tiny program end to end."""
    from superopt.commands import doctor as parts  # late: loads all that it looks at

    if calibrate:
        parts.calibrated(progress(as_json))
    summary, text = parts.examine()
    emit(summary) if as_json else click.echo(text)
    return OK if summary["ok"] else INTERNAL


@cli.command()
@click.option("--budget", default="40s", show_default=True, help="Search time for each program.")
@click.option("--report", "report_path", default="report.html", show_default=True, type=click.Path(dir_okay=False))
@_JSON
@guarded
def demo(budget: str, report_path: str, as_json: bool) -> int:
    """Optimise real networks that ship with the onnx package and two JAX programs; print what was gained."""
    from superopt.lab.demo import run_demo  # late: loads jax, onnx and z3

    summary = run_demo(budget=budget, report_path=report_path, say=progress(False), quiet=as_json)
    if as_json:
        emit(summary)
    return OK


@cli.command()
@click.option(
    "--suite",
    default="core",
    show_default=True,
    help="aa, ablation, alternatives, budget, core, exports, faults, joint, kernels, memory, native, objective, "
    "onnx-nodes, onnx-types, options, pallas, peers, plain, rewrites, schedules, search or verifier.",
)
@click.option("--verifier", "suite", flag_value="verifier", help="The same as --suite verifier.")
@click.option("--kernels", "suite", flag_value="kernels", help="The same as --suite kernels.")
@click.option("--faults", "suite", flag_value="faults", help="The same as --suite faults.")
@click.option("--count", type=click.IntRange(1), help="Files of each kind that --faults reads.  [default: 200]")
@click.option("--budget", help="Search time for each case.  [default: that of the suite; core: 60s]")
@click.option("--case", "cases", multiple=True, help="Only cases whose name contains this text.")
@click.option("--no-watch", is_flag=True, help="verifier: the prover alone; nothing is evaluated beside its proofs.")
@click.option(
    "--no-search", is_flag=True, help="core, exports, native, peers, rewrites: programs as they are built at once."
)
@click.option(
    "--models", type=click.Path(file_okay=False), help="exports, peers: a folder that tests/upstream/exports.py filled."
)
@click.option(
    "--peer-python", type=click.Path(dir_okay=False), help="exports, peers: the Python that has the other frameworks."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the JSON object to a file.")
@click.option(
    "--keep",
    type=click.Path(dir_okay=False),
    help="Rows that take long (core, joint, native, pairs of the verifier, ...) go into this file as they come; those "
    "that it has are not measured again.",
)
@_JSON
@guarded
def bench(
    suite: str, out: str | None, keep: str | None, as_json: bool, no_search: bool, no_watch: bool, **options: Any
) -> int:
    """Run a benchmark suite and print its table."""
    check_folder(out)
    check_folder(keep)
    with keeping(keep) if keep else nullcontext():
        result = run_suite(suite, say=progress(as_json), search=not no_search, watch=not no_watch, **options)
    if out:
        write_text(out, json_text(result, indent=1) + "\n")
    emit(result) if as_json else click.echo(result["text"])
    return OK


def _add_group(name: str, module: str, about: str) -> None:
    """Add a group of commands whose module is loaded only when one of them is called, so that `--help` is fast."""

    @cli.command(name, help=about, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @guarded
    def run(arguments: tuple[str, ...]) -> int:
        group: click.Group = getattr(import_module(module), name)
        return _status(group, arguments, f"superopt {name}")


_add_group(
    "train", "superopt.lab.training.cli",
    "Collect labels for the cost model, fit it, evaluate it (see `superopt train --help`).",
)  # fmt: skip
_add_group(
    "kernels", "superopt.schedules.cli",
    "Tune one operator as our own kernel, show its loops and schedule (see `superopt kernels --help`).",
)  # fmt: skip


def _status(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """Run a command on arguments (None: those of the process); return the exit status."""
    try:
        command.main(None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return USAGE
    return OK


def main_with(arguments: Sequence[str] | None) -> None:
    """Run the command line on these arguments (None: those of the process)."""
    try:
        sys.exit(_status(cli, arguments, "superopt"))
    except click.Abort:
        sys.exit(130)


def main() -> None:
    """Entry point of the `superopt` command."""
    main_with(None)


if __name__ == "__main__":
    main()
