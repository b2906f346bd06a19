"""The command `superopt verify`: rules and statements of files, the library, saved programs, packages, pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from superopt.commands.ci import github, junit
from superopt.commands.console import JSON, OK, UNVERIFIED, check_folder, emit, parse_dims, write_text
from superopt.errors import UsageError
from superopt.returned import later
from superopt.store import Store
from verifier.verdict import PROVED

if TYPE_CHECKING:
    from superopt.certify.rule_files import Verified

FORMATS: Mapping[str, Callable[[Verified], str]] = {"github": github}
"""Format of annotations -> the function that writes them."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--library", is_flag=True, help="Prove the shipped rule library from scratch.")
@click.option("--rule", "names", multiple=True, help="Only rules whose name contains this text.")
@click.option(
    "--junit", "junit_path", type=click.Path(dir_okay=False), help="Write the verdicts on rules as JUnit XML."
)
@click.option("--annotations", type=click.Choice(list(FORMATS)), help="Also print what is not proved as annotations.")
@click.option("--program", type=click.Path(), help="Validate a saved .superopt file from its plan, without the search.")
@click.option("--original", metavar="MODEL", help="With --program: the ONNX file that it was made from.")
@click.option("--no-limit", is_flag=True, help="With --program: validate it however much memory and time it takes.")
@click.option(
    "--recheck", is_flag=True, help="Ask the questions behind certificates of all solvers, add up both sides again."
)
@click.option("--preconditions", is_flag=True, help="Drop each premise in turn: is every one needed?")
@click.option("--fuzz", type=click.IntRange(1), metavar="N", help="Try N mutants: is anything proved that is false?")
@click.option("--dims", multiple=True, metavar="NAME=SIZE", help="With two programs: size of a symbolic dimension.")
@click.option("--numerics", type=click.Choice(["exact", "real", "range"]), default="real", show_default=True,
              help="With two models: the widest class of rules that may be used.")  # fmt: skip
@JSON
def verify(files: Sequence[str], dims: tuple[str, ...], numerics: str, as_json: bool, **asked: Any) -> int:
    """Prove or refute every rule and statement of the FILES, or of the library, or that two programs are equal.

    A file holds rule texts, or is Python with a RULES text (read) or with superopt.rule and superopt.statement (run).
    Two ONNX models A.onnx B.onnx are compared output by output: proved, refuted with inputs to paste, or open and why.
    So are two StableHLO modules A.mlir B.mlir, as text or as the bytes that jax.export writes.  So are two programs
    A.py:NAME B.py:NAME, where NAME() returns (function, arguments): for the sizes of the arguments, or for all sizes
    where arguments are shapes over names ("b 64").

    A FOLDER that superopt build wrote is checked against its certificates: digests of its files, weights and plan, and
    the plan by a checker of its own.
    """
    kinds = {kind for kind in map(_kind_of, files) if kind}
    one = _request(files, asked, compared=bool(kinds))
    if kinds:
        if len(kinds) != 1 or [bool(_kind_of(f)) for f in files] != [True, True]:
            raise UsageError(
                "programs are compared two at a time, both of one kind",
                hint="superopt verify A.onnx B.onnx, A.mlir B.mlir or A.py:NAME B.py:NAME",
            )
        with Store() as store:
            pair = _compared(kinds.pop(), files, parse_dims(dims), {"numerics": numerics, "store": store})
        emit(pair.to_json()) if as_json else click.echo(str(pair))
        return OK if pair.status == PROVED else UNVERIFIED
    if dims:
        raise UsageError("--dims gives sizes of two programs, and none are named")
    if len(files) == 1 and Path(files[0]).is_dir() and not one:
        package = import_module("superopt.native.package.certificates").check_package(Path(files[0]))
        emit(package.to_json()) if as_json else click.echo(str(package))
        return OK if package.valid else UNVERIFIED
    if one == "--program":
        with Store() as store:
            validate_file = later.validation().validate_file
            validation = validate_file(asked["program"], asked["original"], store, limited=not asked["no_limit"])
        emit(validation.to_json()) if as_json else click.echo(str(validation))
        return OK if validation.valid else UNVERIFIED
    summary, text, good = _verified(one, files, as_json, **asked)
    emit(summary) if as_json else click.echo(text)
    return OK if good else UNVERIFIED


def _request(files: Sequence[str], asked: Mapping[str, Any], *, compared: bool) -> str:
    """Return the option that says what is done with the files or the library; empty: rules are verified.

    Raises:
        UsageError: two requests exclude each other, or an option belongs to another request.
    """
    wanted = [f"--{name}" for name in ("program", "recheck", "preconditions", "fuzz") if asked[name]]
    one = wanted[0] if wanted else ""
    for option, given, fits in (
        ("--library", asked["library"], one != "--program" and not compared),
        ("--rule", asked["names"], one != "--program" and not compared),
        ("--junit", asked["junit_path"], not one and not compared),
        ("--annotations", asked["annotations"], not one and not compared),
        ("--original", asked["original"], one == "--program"),
        ("--no-limit", asked["no_limit"], one == "--program"),
    ):
        if given and not fits:
            raise UsageError(f"{option} is not for {one or ('two programs' if compared else 'rules')}")
    wanted += ["two programs"] * compared
    if len(wanted) > 1:
        raise UsageError(f"{' and '.join(wanted)} are two requests", hint="give one at a time")
    if one == "--program" and files:
        raise UsageError(f"--program names the file to validate, and {files[0]} is another", hint="give one at a time")
    return one


def _kind_of(file: str) -> str:
    """Name of the module of `superopt.equivalence` for a file; empty where the file holds rules."""
    if ".py:" in file:
        return "functions"
    suffix = f".{file.rpartition('.')[2]}"
    return "models" if suffix == ".onnx" else "modules" if suffix in (".mlir", ".mlirbc", ".stablehlo") else ""


def _compared(kind: str, files: Sequence[str], dims: dict[str, int], options: dict[str, Any]) -> Any:
    """The verdict on the equality of two programs."""
    compare = import_module(f"superopt.equivalence.{kind}")
    if kind == "models":
        return compare.compare_models(*files, dims=dims, **options)
    if kind == "modules":
        return compare.compare_modules(*files, dims=dims, **options)
    (first, args, frozen), (second, _, _) = map(import_module("superopt.pipeline.target").made_by, files)
    verdict = compare.compare_functions(first, second, *args, frozen=frozen, sizes=dims, **options)
    # where some are frozen the text to paste would need to split these from the rest
    return verdict if frozen else replace(verdict, code=verdict.code.replace(compare.LOAD, compare.loading(*files)))


def _verified(
    one: str, files: Sequence[str], as_json: bool, *, library: bool, names: Sequence[str], **asked: Any
) -> tuple[dict[str, Any], str, bool]:
    """Verify the requested rules; return a summary, a text, and whether all are as they should be."""
    from superopt.certify import rule_files  # late: loads the solver, which `superopt verify --help` does not need

    if one == "--recheck":
        summary, text = rule_files.recheck_certificates(files, library=library or not files, names=names)
        return summary, text, summary["sound"]
    if bool(files) == library:
        hint = "name files of rules, or give --library"
        raise UsageError("files and --library are two requests" if files else "nothing to verify", hint=hint)
    if one == "--fuzz":
        summary, text = rule_files.fuzz_rules(files, names, asked["fuzz"])
        return summary, text, not summary["false_proofs"]
    if one == "--preconditions":
        summary, text = rule_files.examine_preconditions(files, names)
        return summary, text, not summary["redundant"]
    check_folder(asked["junit_path"])
    if asked["annotations"] and as_json:
        raise UsageError("--json and --annotations both print to the standard output", hint="give one of them")
    verified = rule_files.verify_library(names) if library else rule_files.verify_files(files, names)
    if asked["junit_path"]:
        write_text(asked["junit_path"], junit(verified))
    told = FORMATS[asked["annotations"]](verified) if asked["annotations"] else ""
    return verified.to_json(), "\n".join(filter(None, (str(verified), told))), verified.good
