"""Reports: text within the width, a page that parses and escapes everything, strict JSON, the reader of the store."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from superopt.errors import UsageError
from superopt.report import json_text, to_text, write_report
from superopt.report.html import to_html
from superopt.report.text import WIDTH
from superopt.result import (
    Finalist,
    NumericCheck,
    Report,
    Speedup,
    Stage,
    UsedRewrite,
    read_report,
)

HOSTILE = '<script>alert("x")</script>&\'"\n\x1b[31m'
VOID = {"meta", "br", "link", "img", "input", "hr", "circle", "line", "rect"}


def make_report(text: str = "plain", *, returned: bool = True) -> Report:
    """A report whose every free text is `text`."""
    speedup = Speedup(2.5, 2.25, 2.75)
    return Report(
        program=text,
        verdict=f"faster program returned {text}",
        before_ms=12.5,
        after_ms=5.0,
        speedup=speedup,
        noise_floor=0.015,
        rewrites=(UsedRewrite(text, 3, "0123456789abcdef", "real", 1.25, f"{text} = {text}"),) if returned else (),
        numerics=NumericCheck(1e-6, 2e-7, 3e-7) if returned else None,
        opaque_ops={text: 2},
        stages=(Stage("import", 0.25), Stage(text, 3.0, text)),
        finalists=(Finalist(text, 4.0, 5.0, speedup), Finalist("broken", 4.5, None, None, f"crash: {text}")),
        growth={"enodes": 120, "iterations": 4, "stop": text, "unions": {text: 3}},
        search={"proposals": 1000, "kernels": 40, "interrupted": False},
        memory={"frozen_bytes": 4_000_000, "prepared_bytes": 5_000_000},
        objective=text,
        environment={"cpu": text, "features": ["avx2"], "versions": {"jax": text}},
        rules_proved=80,
        original_returned=False,
        notes=(text, 40 * f"{text} "),
        samples_ms={"original": (12.0, 12.5), text: (5.0, 5.25)},
        before_text=f"%0 = input x : f32[2]\n{text}",
        after_text=text,
    )


class Page(HTMLParser):
    """Open elements, attributes and text of a page; complains about elements closed in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(report: Report) -> Page:
    page = Page()
    page.feed(to_html(report))
    page.close()
    assert page.open == []
    return page


@pytest.mark.parametrize("text", ["resnet50", HOSTILE, "wide " * 60, "unbroken" * 40])
@pytest.mark.parametrize("returned", [True, False])
def test_text_fits_the_width(text: str, returned: bool) -> None:
    lines = to_text(make_report(text, returned=returned)).split("\n")
    assert max(map(len, lines)) <= WIDTH == 110
    assert all(line.isprintable() for line in lines), "no control character reaches the terminal"


def test_text_says_what_matters() -> None:
    text = to_text(make_report())
    for part in (
        "12.5 ms",
        "5 ms",
        "2.50x [2.25, 2.75]",
        "3 x plain",
        "PROVED by Z3",
        "1.0e-06",
        "0123456789ab",
        "4.0 MB",
    ):
        assert part in text


@pytest.mark.parametrize("returned", [True, False])
def test_the_page_is_well_formed_and_offline(returned: bool) -> None:
    page = parsed(make_report(returned=returned))
    assert page.tags.count("h1") == 1
    assert {"table", "svg", "details"} <= set(page.tags)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    outside = [value for _, value in page.attributes if "//" in value or value.startswith(("http", "data:"))]
    assert outside == []
    assert "url(" not in to_html(make_report())


def test_everything_on_the_page_is_escaped() -> None:
    quiet, hostile = parsed(make_report()), parsed(make_report(HOSTILE))
    assert hostile.tags == quiet.tags, "hostile text adds no element"
    assert [name for name, _ in hostile.attributes] == [name for name, _ in quiet.attributes]
    assert sum('<script>alert("x")</script>' in text for text in hostile.text) >= 10


def test_the_store_reads_back_what_was_kept() -> None:
    for report in (make_report(HOSTILE), make_report(returned=False)):
        assert read_report(json.loads(json.dumps(report.to_json()))) == report


def test_json_is_strict() -> None:
    report = replace(make_report(), speedup=Speedup(1.0, float("-inf"), float("nan")), noise_floor=float("inf"))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(json_text(report.to_json()), parse_constant=refuse)
    assert data["speedup"] == {"ratio": 1.0, "low": None, "high": None}
    assert data["noise_floor"] is None
    assert data["opaque_ops"] == 2


def test_files_by_ending(tmp_path) -> None:
    report = make_report()
    assert write_report(report, tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert json.loads(write_report(report, tmp_path / "r.json").read_text())["program"] == "plain"
    assert write_report(report, tmp_path / "r.txt").read_text() == to_text(report) + "\n"
    for path in ("r.pdf", "no/such/folder/r.html"):
        with pytest.raises(UsageError):
            write_report(report, tmp_path / path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "r.json", "r.txt"]
