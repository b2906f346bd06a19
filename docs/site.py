"""Parts of the site beside the pages of this folder: files of the project, help of commands, tables, captions, colours.

A code block says in its first line what it is and, behind that, the file that it changes or why it does not run:
```text a formula.  On the site that is its caption.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

from superopt.commands.main import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}  # fmt: skip
COMMANDS = "<!-- commands -->"
LEXERS = {"file": "python", "rule": "text"}
_TABLE = re.compile(r"^\[table\]\((data/[\w-]+\.csv)\)$", re.M)
_FENCE = re.compile(r"^( *)```(\w+)(?: (.+))?$", re.M)


def on_config(config: Any) -> None:
    """List the pages of a folder where the navigation names the folder."""
    docs = Path(config["docs_dir"])
    for section in config["nav"]:
        for entry in (x for pages in section.values() if isinstance(pages, list) for x in pages if isinstance(x, dict)):
            for title, name in entry.items():
                entry[title] = [
                    f"{name}/README.md",
                    *sorted(f"{name}/{p.name}" for p in (docs / name).glob("[0-9]*.md")),
                ]


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the project that are pages; their links are written from the project's folder."""
    for page, name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, source in PAGES.items():
            text = text.replace(f"]({source})", f"]({other})")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write captions of code blocks as the site's Markdown has them, and the help of the commands behind its mark."""

    def fence(found: re.Match[str]) -> str:
        space, kind, caption = found.groups()
        return f"{space}```{LEXERS.get(kind, kind)}" + (f' title="{caption}"' if caption else "")

    for page, name in PAGES.items():
        markdown = markdown.replace(f"](../{name})", f"]({page})")
    markdown = _TABLE.sub(lambda found: table(ROOT / "docs" / found[1]), _FENCE.sub(fence, markdown))
    return markdown.replace(COMMANDS, "\n".join(helps(cli, "superopt"))) if COMMANDS in markdown else markdown


def table(path: Path) -> str:
    """Return a file of values as a table of a page."""
    with path.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """Headings and help of a command and of those below it."""
    context = click.Context(command, parent, info_name=name.rpartition(" ")[2], terminal_width=100)
    yield f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from helps(found, f"{name} {sub}", context)


def on_post_build(config: Any) -> None:
    """Write the colours of code."""
    style = HtmlFormatter(style="friendly").get_style_defs(".highlight")
    (Path(config["site_dir"]) / "css" / "code.css").write_text(style + _STYLE, encoding="utf-8")


_STYLE = """
.wy-nav-content { max-width: 1100px; }
.highlight .filename { display: block; font: italic 0.85em sans-serif; color: #666; }
.rst-content div.highlight { border: 0; padding: 0; }
.rst-content .highlight pre { padding: 12px; line-height: 1.4; overflow-x: auto; background: #f7f7f7; }
.rst-content table td, .rst-content table th { white-space: normal; }
"""
