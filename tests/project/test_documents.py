"""The documentation: what every code block says it is, it is, and every file that a page names is there.

The first word of a block says what is done with it here:

    python, pycon    run, one after the other in one namespace per page; what pycon prints is compared
    rule             proved; with a name it is a file of the folder in which the blocks after it run
    console          a command and what it prints, run and compared; `console measured`: read alone, as `sh`
    sh               commands that exist, with options that they have
    json             data
    diff, file       changes, made by `test_recipes.py`
    text             nothing to run: what follows says what it is
"""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest
from markdown_it import MarkdownIt
from onnx import TensorProto, helper

import superopt
from superopt.commands.main import cli
from superopt.lab.bench import SUITES
from superopt.machine.budget import parse_budget

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ENTRIES = [f"superopt.{name}" for name in superopt.__all__ if not name.startswith("_")]


@dataclass(frozen=True)
class Block:
    """A code block of a page: its first word, what stands behind that, its text."""

    kind: str
    caption: str
    text: str


def blocks(page: str) -> list[Block]:
    """The code blocks of a page, in order."""
    found = (token for token in MarkdownIt().parse((ROOT / page).read_text()) if token.type in ("fence", "code_block"))
    return [Block(*[*token.info.split(" ", 1), "", ""][:2], token.content) for token in found]


RULES = {
    block.text.partition(":")[0]: block.text
    for page in PAGES
    for block in blocks(page)
    if block.kind == "rule" and not block.caption
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks(page):
        assert block.kind in READERS or block.kind in ("rule", "python", "pycon", "console", "diff", "file", "text"), (
            f"{page}: a block begins with {block.text.splitlines()[0]!r} and says {block.kind or 'nothing'}"
        )
        assert block.kind != "text" or block.caption, f"{page}: why is this not run? {block.text}"
        assert block.kind not in ("diff", "file") or page == "docs/recipes.md", "made by test_recipes.py"


def read_commands(text: str) -> None:
    """Read lines of a shell as far as they are ours: commands, options and arguments that exist."""
    for line in text.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words = words[1:]
        if words:
            _COMMANDS[words[0]](words[1:])


def _ours(words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli, info_name="superopt")
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    options = command.make_context(command.name, words).params
    assert options.get("suite", "core") in SUITES


def _make(words: list[str]) -> None:
    assert set(words) <= TARGETS, words


def _pip(words: list[str]) -> None:
    verb, *names = words
    assert verb == "install"
    assert {extra for name in names for extra in re.findall(r"\[(\w+)\]", name)} <= EXTRAS.keys()


def _python(words: list[str]) -> None:
    assert words[0] == "-m", words
    assert importlib.util.find_spec(words[1]) is not None, words[1]


_COMMANDS: dict[str, Callable[[list[str]], None]] = {"superopt": _ours, "make": _make, "pip": _pip, "python": _python}
READERS: dict[str, Callable[[str], object]] = {"sh": read_commands, "json": json.loads}


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/recipes.md"])
def test_commands_are_there_with_their_options(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("found.txt").write_text("")  # files that options want to be there
    (tmp_path / "docs").mkdir()
    Path("docs/costmodel.md").write_text("")
    for block in blocks(page):
        if block.kind == "console":
            read_commands("\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ ")))
        elif block.kind in READERS:
            READERS[block.kind](block.text)


@pytest.mark.parametrize(
    "line",
    [
        "superopt bench --sweet core",
        "superopt bench --suite all",
        "superopt tain",
        "make nothing",
        "python -m superopt.no",
    ],
)
def test_commands_that_are_not_there_are_seen(line: str) -> None:
    with pytest.raises((click.ClickException, AssertionError)):
        read_commands(line)


@pytest.mark.parametrize("name", RULES)
def test_rules_are_proved(name: str) -> None:
    verdict = superopt.verify(RULES[name])
    assert verdict.status == "PROVED", str(verdict)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models that pages speak of, and a second in place of every budget."""
    monkeypatch.setattr("superopt.pipeline.optimizer.parse_budget", lambda budget: parse_budget("1s"))
    monkeypatch.setattr(
        "superopt.machine.memory.keep_memory.__code__", (lambda: None).__code__
    )  # of this process, for good
    monkeypatch.chdir(tmp_path)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in "xy")
    for file, node in (
        ("model.onnx", helper.make_node("Relu", ["x"], ["y"])),
        ("m.onnx", helper.make_node("Foo", ["x"], ["y"], domain="com.acme", alpha=2.0)),
    ):
        graph = helper.make_graph([node], "g", [x], [y])
        sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.acme", 1)]
        Path(file).write_bytes(helper.make_model(graph, opset_imports=sets, ir_version=10).SerializeToString())
    return tmp_path


RUN = [page for page in PAGES if any(block.kind in ("python", "pycon", "console") for block in blocks(page))]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("page", RUN)
def test_examples_run_as_they_stand(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for i, block in enumerate(blocks(page)):
        place = f"{page}, block {i + 1}"
        if block.kind == "python":
            exec(compile(block.text, place, "exec"), names)
        elif block.kind == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, names, place, page, 0)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0, capsys.readouterr().out
            names |= test.globs
        elif block.kind == "rule" and block.caption:
            (folder / block.caption).write_text(block.text)
        elif block.kind == "console" and not block.caption:
            command, _, wanted = block.text.partition("\n")
            capsys.readouterr()
            with pytest.raises(SystemExit):
                cli.main(shlex.split(command)[2:], standalone_mode=False)
            said = capsys.readouterr().out
            assert wanted.strip() in said, said


NAMED = re.compile(r"`((?:superopt|rewrites|verifier|costmodel|tests|docs|examples)/[\w/.*-]+)`")


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = {name for name in NAMED.findall((ROOT / page).read_text()) if not any(ROOT.glob(name.rstrip("/")))}
    made = {block.caption for block in blocks(page) if block.kind == "file"}
    assert named - made == set()


def test_the_reference_has_every_public_name() -> None:
    named = set(re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(), re.M))
    assert set(ENTRIES) <= named


def _site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = _site().on_page_markdown((ROOT / "docs/cli.md").read_text())
    groups: list[tuple[str, click.Group]] = [("superopt", cli)]
    for path, group in groups:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            assert re.search(rf"^## {path} {name}$", page, re.M), name
            for option in (option for option in command.params if isinstance(option, click.Option)):
                assert max(option.opts, key=len) in page, (name, option.opts)
            groups += [(f"{path} {name}", command)] if isinstance(command, click.Group) else []
    assert len(groups) == 4, "superopt, kernels, store and train"


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {superopt.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_file_of_values_is_a_table_of_a_page() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"^\[table\]\((data/.*)\)$", (ROOT / page).read_text(), re.M)
    }
    assert named == {f"data/{path.name}" for path in (ROOT / "docs/data").iterdir()}
    for name in named:
        lines = _site().table(ROOT / "docs" / name).split("\n")
        assert len({line.count(" | ") for line in lines}) == 1, name


MOST_WORDS = 30_000


def test_the_pages_stay_short() -> None:
    """Histories of experiments go into decision records, which do not count."""
    pages = (ROOT / "docs").glob("*.md")
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS
