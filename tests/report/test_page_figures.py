"""Every figure of a page, of the text and of the JSON of real optimised programs is a value of one record.

A figure of the page carries the path of its value; all renderings of one value are one text, and values that mean one
thing are equal.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.report import json_text, to_summary, to_text
from superopt.report.data import Report, read_report
from superopt.report.figures import change, error, ms, number, percent, ratio, seconds, value_at, written
from superopt.report.html import to_html

VOID = {"meta", "br", "link", "img", "input", "hr", "circle", "line", "rect", "path"}
FIGURE = re.compile(r"(?<![\w.,%-])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:\s?(?:µs|ms|%|s(?!\w))|x(?!\w))")
SILENT = ("pre", "style", "title", "code")


class Figures(HTMLParser):
    """Texts of a page, those with the path of a figure apart."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.figures: list[tuple[str, str]] = []
        self.free: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("data-of") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        paths = [path for _, path in self.open if path]
        if paths:
            self.figures.append((paths[-1], data))
        elif not any(tag in SILENT for tag, _ in self.open) and data.strip():
            self.free.append(" ".join(data.split()).replace("95 % interval", "interval"))


def network(p: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Images that kernels lay out otherwise, a weight that is computed ahead, equal layers, a product to reorder."""
    y = jnp.tanh(jax.lax.conv(x, jnp.exp(p["a"]), (2, 2), "SAME"))
    for _ in range(3):
        y = jnp.maximum(jax.lax.conv(y, p["b"], (1, 1), "SAME") + y, 0.0)
    z = jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return (z.reshape(1, -1) @ p["c"]) @ p["d"]


def arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"a": (8, 3, 3, 3), "b": (8, 8, 1, 1), "c": (128, 64), "d": (64, 10)}
    p = {name: 0.1 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return p, rng.standard_normal((1, 3, 16, 16)).astype(np.float32)


def model_file(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    init = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in (("w", (8, 16)), ("b", (16,)))
    ]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, 8]), ("y", [4, 16]))]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:], init)
    path = folder / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


MADE: dict[str, Callable[[Path], Report]] = {
    "by prediction": lambda _: (
        superopt.optimize(network, *arguments(), frozen=0, budget="200steps", deterministic=True, store=False).report
    ),
    "without a search": lambda _: superopt.optimize(network, *arguments(), frozen=0, search=False, store=False).report,
    "nothing to gain": lambda _: (
        superopt.optimize(
            lambda x: x + 1.0, np.ones(4, np.float32), budget="1s", kernels=False, store=False, rules=[]
        ).report
    ),
    "a model": lambda folder: superopt.optimize(str(model_file(folder)), search=False, store=False).report,
}
LONG: dict[str, Callable[[Path], Report]] = {
    "measured": lambda _: superopt.optimize(network, *arguments(), frozen=0, budget="30s", store=False).report,
    "by XLA": lambda _: (
        superopt.optimize(network, *arguments(), frozen=0, budget="20s", kernels=False, store=False).report
    ),
    "squeezenet": lambda _: _of_case("squeezenet"),
    "mobilenet": lambda _: _of_case("mobilenet_v2"),
}


def _of_case(name: str) -> Report:
    from superopt.lab.bench.programs.programs import build_case

    case = build_case(name, seed=0)
    return superopt.optimize(case.fn, case.params, *case.inputs, frozen=0, budget="60s", store=False).report


_KNOWN: dict[str, Report] = {}


def made(name: str, folder: Path) -> Report:
    """The report of an optimisation, made once."""
    if name not in _KNOWN:
        _KNOWN[name] = {**MADE, **LONG}[name](folder)
    return _KNOWN[name]


@pytest.mark.parametrize("name", [*MADE, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_every_figure_is_a_value_of_the_record(name: str, tmp_path: Path) -> None:
    report = made(name, tmp_path)
    check_page(report)
    check_account(report)
    check_text(report)


def test_a_record_in_which_one_quantity_has_two_values_is_seen(tmp_path: Path) -> None:
    report = made("without a search", tmp_path)
    row = report.native[0]
    wrong = replace(report, native=(replace(row, predicted_ms=2.0 * (row.predicted_ms or 1.0)), *report.native[1:]))
    with pytest.raises(AssertionError):
        check_account(wrong)
    fewer = replace(report, implementation={**report.implementation, "kernels": 1})
    with pytest.raises(AssertionError):
        check_account(fewer)


def check_page(report: Report) -> None:
    """Figures of the page are those of the JSON, at their paths; what looks like another is a value or a text of it."""
    record, page = json.loads(json_text(report.to_json())), Figures()
    page.feed(to_html(report))
    shown = Counter(path for path, _ in page.figures)
    assert shown, "a page has figures"
    for path, text in page.figures:
        value = value_at(record, path)
        if path.startswith("drawing/"):
            side = record["drawing"][path.split("/")[1]]
            whole = sum(node["us"] or 0.0 for node in side)
            share = value / whole
            said = "<1 %" if share < 0.005 else percent(share, 0)
            assert text.endswith(f"{written(path, value)} · {said}")
        else:
            assert text == written(path, value), path
    told = known(record)
    for text in page.free:
        for figure in FIGURE.findall(text):
            assert figure.strip() in told or any(figure in said for said in strings(record)), (figure, text)
    for path in ("before_ms", "after_ms", "noise_floor"):
        assert (path in shown) == (record[path] is not None)
    made = [report.made[:10], str(report.environment["cpu"]), f"{report.environment['cores']} core"]
    assert all(any(part in text for text in page.free) for part in made), "date and machine"
    assert any(f"over {report.baseline}" in text for text in page.free)
    assert report.program in page.free, "a title"


def check_text(report: Report) -> None:
    """Figures of the text are values of the record, and those of the page where they mean one thing."""
    record = json.loads(json_text(report.to_json()))
    summary, text = to_summary(report), " ".join(to_text(report).split())
    assert len(summary.split("\n")) <= 15
    summary = " ".join(summary.split())
    told = known(record)
    for figure in FIGURE.findall(f"{text} {summary}".replace("95 % interval", "interval")):
        assert figure.strip() in told or any(figure in said for said in strings(record)), figure
    if report.speedup.basis == "measured":
        assert f"{report.speedup} over {report.baseline}" in summary
        assert f"{ms(record['before_ms'])} -> {ms(record['after_ms'])}" in summary
    for step in report.steps[:3]:
        assert str(step.ratio) in summary
    if report.measured.before_ms is not None:
        assert f"before {ms(record['before_ms'])} after {ms(record['after_ms'])}" in text
        assert f"{report.speedup} over {report.baseline}" in text
    for side, one in record["account"].items():
        assert f"account {side}: {one['kernels']} kernels" in text
    assert f"made {report.made[:10]}" in text
    assert read_report(record).to_json()["account"] == report.to_json()["account"], "the JSON holds all of it"


def check_account(report: Report) -> None:
    """Quantities that mean one thing are equal: kernels in the drawing, in the table, in the line and in the sum."""
    record = report.to_json()
    account, drawing = record["account"], record["drawing"]
    for side, one in account.items():
        nodes = drawing[side] if drawing else []
        boxes = [n for n in nodes if n["backend"] and n["kernel"] == n["id"]]
        if nodes:
            assert one["kernels"] == len(boxes), side
            assert all(n["us"] is None or n in boxes for n in nodes)
        drawn_us = sum(n["us"] or 0.0 for n in boxes)
        apart_ms = sum(k["ms"] for k in record["kernels"] if k["name"] == "outside of all regions")
        if nodes and one["kernels_ms"] is not None:
            assert 1e-3 * drawn_us + (apart_ms if side == "after" else 0.0) == pytest.approx(one["kernels_ms"])
        measured_ms = record[f"{side}_ms"]
        assert one["measured_ms"] == measured_ms
        parts = [one["kernels_ms"], one["between_ms"], one["beyond_ms"]]
        if measured_ms is not None and None not in (one["kernels_ms"], one["beyond_ms"]):
            assert sum(part or 0.0 for part in parts) == pytest.approx(measured_ms), "the account adds up"
            if abs(one["beyond_ms"]) > 0.1 * measured_ms:
                assert "what the models miss" in to_text(report), "explained where it is not consistent"
                assert f"{side}: " in to_html(report).partition("What a program takes beyond its prediction")[2]
    if "after" in account:
        assert account["after"]["kernels"] == sum(k["count"] for k in record["kernels"])
        assert account["after"]["kernels_ms"] == pytest.approx(sum(k["ms"] for k in record["kernels"]))
        assert sum(k["share"] for k in record["kernels"]) == pytest.approx(1.0)
    if report.native and not report.original_returned:
        assert sum(k.count for k in report.native) == report.implementation["regions"]
        assert sum(k.count for k in report.native if k.used) == report.implementation["kernels"]
        assert f"{report.implementation['kernels']} of its kernels are our own" in report.verdict or (
            f"{report.implementation['kernels']} kernels of our own" in report.verdict
        )
        if drawing:
            own = [n for n in drawing["after"] if n["kernel"] == n["id"] and n["backend"] not in ("", "xla")]
            assert len(own) == report.implementation["kernels"]
            each = Counter({round(1e3 * (k.takes_ms or 0.0), 6): 0 for k in report.native})
            for k in report.native:
                each[round(1e3 * (k.takes_ms or 0.0), 6)] += k.count
            drawn = [n for n in drawing["after"] if n["kernel"] == n["id"] and n["backend"] and n["us"] is not None]
            assert Counter(round(n["us"], 6) for n in drawn) == each, "a box has the figure of its row"
    names: dict[str, list[float | None]] = defaultdict(list)
    for f in report.finalists:
        names[f.name].append(f.measured_ms)
    returned = [name for name, found_ms in names.items() if record["after_ms"] in found_ms]
    if report.finalists and report.measured.before_ms is not None and not report.original_returned:
        assert returned, "the returned program is one of the candidates, with one time"
    if report.predicted_ms is not None and "after" in account:
        assert account["after"]["predicted_ms"] == report.predicted_ms


def known(record: Any) -> set[str]:
    """All numbers of a record in every form in which figures are written."""
    forms = (ms, percent, lambda v: percent(v, 0), change, seconds, number, error, ratio, lambda v: percent(abs(v)))
    values = [v for v in numbers(record) if math.isfinite(v)]
    samples = [v for row in record["samples_ms"].values() for v in row]
    told = {form(v) for v in values for form in forms} | {f"{v:.1f}" for v in values}
    told |= {ms(1e-3 * v) for v in values} | {f"{v / 1e6:.1f} MB" for v in values} | {ms(v) for v in samples}
    told |= {ms(-v) for v in values} | {f"{1 + v:.1f}" for v in values}
    if record["before_ms"] and record["after_ms"]:
        told.add(ratio(record["before_ms"] / record["after_ms"]))
    if record["speedup"]["basis"] == "predicted":
        told.add(ms(record["search"]["predicted_before_ms"] / record["speedup"]["ratio"]))
    return told


def numbers(value: Any) -> Iterator[float]:
    """The numbers of a record."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)


def strings(value: Any) -> Iterator[str]:
    """The texts of a record, names of entries included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from strings(part)
