"""Reports: text within the width, a page that parses and escapes everything, strict JSON, the reader of the store."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from superopt.errors import UsageError
from superopt.ir.loop_steps import LOOP_STEPS
from superopt.machine.speedup import Speedup
from superopt.report import json_text, to_summary, to_text, write_report
from superopt.report.data import (
    Drawing,
    DrawnNode,
    JudgedFinalist,
    KernelUse,
    Measurement,
    NativeKernel,
    NotChosen,
    NumericCheck,
    Report,
    StageTime,
    UsedRewrite,
    read_report,
)
from superopt.report.graph import boxes_of, fold, svg
from superopt.report.html import to_html
from superopt.report.layers import place
from superopt.report.summary import MOST
from superopt.report.text import WIDTH, near_misses

HOSTILE = '<script>alert("x")</script>&\'"\n\x1b[31m'
VOID = {"meta", "br", "link", "img", "input", "hr", "circle", "line", "rect"}


def make_report(text: str = "plain", *, returned: bool = True) -> Report:
    """A report whose every free text is `text`."""
    speedup = Speedup(2.5, 2.25, 2.75)
    return Report(
        program=text,
        verdict=f"faster program returned {text}",
        measured=Measurement(
            before_ms=12.5,
            after_ms=5.0,
            speedup=speedup,
            noise_floor=0.015,
            samples_ms={"original": (12.0, 12.5), text: (5.0, 5.25)},
        ),
        rewrites=(
            UsedRewrite(
                text,
                3,
                "0123456789abcdef",
                "real",
                1.25,
                f"{text} = {text}",
                f"{text} == {text}",
                {text: 3},
                1.5,
                speedup,
            ),
            UsedRewrite("never timed", 1, "abcdef", "exact", 0.5),
        )
        if returned
        else (),
        numerics=NumericCheck(1e-6, 2e-7, 3e-7) if returned else None,
        opaque_ops={text: 2},
        stages=(StageTime("import", 0.25), StageTime(text, 3.0, text)),
        finalists=(
            JudgedFinalist(text, 4.0, 5.0, speedup),
            JudgedFinalist("slow", 4.25, 14.0, Speedup(0.9, 0.8, 0.95)),
            JudgedFinalist("broken", 4.5, None, None, f"crash: {text}"),
        ),
        growth={
            "enodes": 120,
            "iterations": 4,
            "stop": text,
            "unions": {text: 3},
            "rounds": [{"stop": text, "iterations": 4, "seconds": 0.5, "enodes": [100, 120]}],
            "near_misses": {f"{text}: not preferred: needs k <= 8": 7, "other: the walk found no way": 9},
        },
        search={"proposals": 1000, "kernels": 40, "interrupted": False},
        memory={"frozen_bytes": 4_000_000, "prepared_bytes": 5_000_000},
        objective=text,
        environment={"cpu": text, "features": ["avx2"], "versions": {"jax": text}},
        rules_proved=80,
        original_returned=not returned,
        notes=(text, 40 * f"{text} "),
        before_text=f"%0 = input x : f32[2]\n{text}",
        after_text=text,
        model={"kernels_timed": 3, "median_error": 0.25, "timed_share": 0.5, "outside_share": None},
        not_chosen=(NotChosen("dot-split-k", 2, 0.125, 0.04, text), NotChosen(text, 1, 0.0, 0.0, text)),
        kernels=(KernelUse(text, 2, 3.0, True), KernelUse("loop", 1, 0.5, False, True)),
        compiler_options={text: text},
        drawing=make_drawing(text),
    )


def make_drawing(text: str) -> Drawing:
    """Two inputs, a product with two operations fused into it, and a reader of its own."""

    def node(id: int, op: str, reads: tuple[int, ...], kernel: int, us: float | None, change: str) -> DrawnNode:
        rule = text if change != "same" else ""
        return DrawnNode(id, op, "f32[2,3]", reads, (text,), kernel, us, change, rule, "axes 1,0", text)

    before = (
        node(0, f"input {text}", (), 0, None, "same"),
        node(1, "dot_general", (0,), 1, 2.0, "other"),
        node(2, text, (1,), 3, None, "same"),
        node(3, "add", (2, 0), 3, 1.5, "same"),
    )
    after = (before[0], node(1, "dot_general", (0, 0), 1, 1.0, "other"), *before[2:])
    return Drawing(before, after)


def drawn(op: str, number: int, *reads: int) -> DrawnNode:
    """A kernel of one operation."""
    return DrawnNode(number, op, "f32[8]", reads, (), number, 1.0, "same")


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
    report = make_report(text, returned=returned)
    summary = to_summary(report).split("\n")
    lines = [*to_text(report).split("\n"), *summary]
    assert max(map(len, lines)) <= WIDTH == 100
    assert all(line.isprintable() for line in lines), "no control character reaches the terminal"
    assert len(summary) <= MOST == 15
    assert len(to_summary(report, 10).split("\n")) <= 10


def stepped() -> Report:
    """A report whose finalists have parts of what the returned program has."""
    rows = (
        JudgedFinalist("own form", 7.0, 8.0, Speedup(1.6, 1.5, 1.7), parts=("ahead", "kernels")),
        JudgedFinalist("slower own form", 7.0, 9.0, Speedup(1.4, 1.3, 1.5), parts=("ahead", "kernels")),
        JudgedFinalist("by XLA", 9.0, 11.0, Speedup(1.1, 1.0, 1.2), parts=("layouts",)),
        JudgedFinalist("other", 6.0, 6.5, Speedup(1.9, 1.8, 2.0), parts=("options",)),
        JudgedFinalist("untimed", 6.0, None, None, "crash", parts=("ahead",)),
        JudgedFinalist("best", 5.0, 5.0, Speedup(2.5, 2.25, 2.75), parts=("ahead", "rewrites", "kernels")),
    )
    return replace(make_report(), finalists=rows, returned="best", parts=("ahead", "rewrites", "kernels"))


def test_steps_are_candidates_that_were_timed_and_add_up() -> None:
    report = stepped()
    assert [(s.name, s.adds, s.ratio.ratio) for s in report.steps] == [
        ("own form", ("ahead", "kernels"), 1.6),
        ("best", ("rewrites",), 2.5),
    ]
    assert [s.gain_share for s in report.steps] == pytest.approx([(1 - 1 / 1.6) / 0.6, (1 / 1.6 - 0.4) / 0.6])
    assert sum(s.gain_share for s in report.steps) == pytest.approx(1.0)
    assert [s.certain for s in report.steps] == [True, True]
    near = replace(report.finalists[0], ratio=Speedup(2.4, 2.3, 2.6))
    assert [s.certain for s in replace(report, finalists=(near,)).steps] == [True, False]
    apart = replace(report, finalists=report.finalists[1:])
    assert [s.name for s in apart.steps] == ["slower own form", "best"]
    (whole,) = replace(report, finalists=()).steps
    assert (whole.adds, whole.gain_share) == (("ahead", "rewrites", "kernels"), 1.0), "told apart by nothing"
    assert replace(report, original_returned=True).steps == ()
    predicted = replace(report, measured=Measurement(speedup=Speedup(2.0, 1.0, 1.0, "predicted")))
    assert predicted.steps == ()
    assert read_report(json.loads(json_text(report.to_json()))).steps == report.steps


def test_the_summary_says_what_over_what_by_what_and_how_sure() -> None:
    text = re.sub(r"\n {10}", " ", to_summary(stepped()))
    for part in (
        "gained  2.50x [2.25, 2.75] over jax.jit: 12.5 ms -> 5 ms",
        "by      ahead-of-time work and our kernels: 62.5 % of the time saved, 1.60x [1.50, 1.70] in all (own form)",
        "by      rewrites: 37.5 % of the time saved, 2.50x [2.25, 2.75] in all (best)",
        "noise floor 1.5 %",
        "proved  4 rewrites by 2 rules, each PROVED by Z3",
        "checked max relative error against the original 1.0e-06",
        "next    --out FILE saves",
    ):
        assert part in text
    kept_report = make_report(returned=False)
    kept = to_summary(kept_report)
    assert "by      nothing: the original is returned" in kept
    assert "next    a longer --budget" in kept
    noisy = stepped()
    noisy = replace(noisy, measured=replace(noisy.measured, noise_floor=0.2))
    assert "next    run it again on a quiet machine" in to_summary(noisy)
    untimed = replace(kept_report, measured=Measurement(noise_floor=float("inf")))
    assert "noise floor" not in to_summary(untimed)
    assert "next    a longer --budget" in to_summary(untimed)


def test_a_record_whose_drawing_has_texts_for_numbers_is_refused() -> None:
    for field in ("id", "kernel", "reads"):
        data = json.loads(json_text(make_report().to_json()))
        data["drawing"]["before"][0][field] = [HOSTILE] if field == "reads" else HOSTILE
        with pytest.raises(TypeError):
            read_report(data)


def test_text_says_what_matters() -> None:
    text = to_text(make_report())
    for part in (
        "12.5 ms",
        "5 ms",
        "2.50x [2.25, 2.75] over jax.jit",
        "plain                             3    1.25 ms     1.5 ms  real   0123456789ab",
        "plain == plain",
        "at 3 x plain",
        "dot-split-k: predicted 4.0 % slower at plain",
        "built: slow, predicted 4.25 ms, measured 0.90x",
        "refused: broken: crash",
        "120 e-nodes in 1 round (plain); grew most: plain 3",
        "the model was off by 25 % on them (median)",
        "no learned model",
        "PROVED by Z3",
        "1.0e-06",
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


def test_a_program_that_is_faster_by_kernels_says_so() -> None:
    own = NativeKernel("dot, tanh", "contraction", 2, True, 1.0, 0.25, Speedup(4.0, 3.5, 4.5), 1000, "", "default")
    figures = {"form": "own form", "regions": 3, "kernels": 2}
    report = replace(
        make_report(), rewrites=(), native=(own,), implementation=figures, compiler_options={}, tuning={"tried": {}}
    )
    text, page = to_text(report), to_html(report)
    assert "proof   nothing was rewritten; the schedules of 2 kernels of our own PROVED; 80 proved rules" in text
    assert "No rule was used: regions of the program are kernels of our own." in page
    assert "only frozen work" not in text
    assert "ahead of time, once" not in page
    assert "Kernels of the returned program</h3>" not in page, "they are those of the table of our own"
    assert '2 of them <a href="#own">kernels of our own</a>' in page
    assert "Options of the compiler: none was tried." in page


def test_a_kernel_says_what_was_predicted_and_what_it_took() -> None:
    own = NativeKernel(
        "dot, tanh", "contraction", 2, True, flops=1000, schedule="default", predicted_ms=0.5, timed_ms=0.6,
        by_xla_ms=0.7, backend="native",
    )  # fmt: skip
    other = replace(own, timed_ms=None, by_xla_ms=0.8, by_xla_timed_ms=0.9)
    figures = {"form": "own form", "regions": 2, "kernels": 2}
    report = replace(make_report(), native=(own, other), implementation=figures)
    text = " ".join(to_text(report).split())
    assert "2 x dot, tanh: schedule default, predicted 0.5 ms, timed 0.6 ms; by XLA predicted 0.7 ms" in text
    assert "2 x dot, tanh: schedule default, predicted 0.5 ms; by XLA predicted 0.8 ms, timed 0.9 ms" in text
    left = replace(other, used=False, failure="faster there")
    searched = replace(own, xla_ms=0.9, own_ms=0.3, schedule="best of 7 searched")
    text = " ".join(to_text(replace(report, native=(left, searched))).split())
    assert "left to XLA: faster there; ours predicted 0.5 ms; by XLA predicted 0.8 ms, timed 0.9 ms" in text
    assert "3.00x, schedule best of 7 searched; predicted 0.5 ms, timed 0.6 ms; by XLA predicted 0.7 ms" in text
    page = to_html(report)
    for cells in (("0.6 ms timed", "0.5 ms", "0.7 ms", "-"), ("0.5 ms predicted", "0.5 ms", "0.8 ms", "0.9 ms")):
        assert any(all(cell in row for cell in cells) for row in rows_of(page, "default"))
    assert read_report(report.to_json()).native == (own, other)


def rows_of(page: str, word: str) -> list[list[str]]:
    """The rows of all tables that have a cell of this text, as the texts of their cells."""
    rows = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)] for row in rows
    ]
    return [row for row in cells if word in row]


@pytest.mark.parametrize("kind", LOOP_STEPS)
def test_every_step_of_loops_has_a_name(kind: str) -> None:
    assert "work was taken out of loops (2 x" in str(replace(make_report(), loop_steps={kind: 2}))


def test_near_misses_are_conditions_of_unused_rules() -> None:
    assert near_misses(make_report(returned=False)) == [("plain", "needs k <= 8", 7)]
    assert near_misses(make_report()) == [], "the rule was used"


def test_the_drawing_shows_kernels_shares_and_rules() -> None:
    page = to_html(make_report())
    for part in (
        'id="before-3"',
        'id="after-3"',
        'href="#after-1"',
        "introduced by plain",
        "2 µs · 57 %",
        "1 µs · 40 %",
    ):
        assert part in page
    assert 'id="after-3"' not in to_html(make_report(returned=False)), "one side where nothing changed"
    assert "There is no drawing" in to_html(replace(make_report(), drawing=None))


def test_boxes_hold_what_is_fused_and_come_after_their_operands() -> None:
    boxes = boxes_of(make_drawing("plain").before)
    assert [(box.id, [n.id for n in box.nodes], box.reads) for box in boxes] == [
        (0, [0], []),
        (1, [1], [0]),
        (3, [2, 3], [1, 0]),
    ]


def test_repeated_stretches_are_folded() -> None:
    """Eight blocks of two kernels with a skip connection over each, between a head and a tail."""
    nodes = [drawn("input x", 0), drawn("exp", 1, 0)]
    for k in range(8):
        a = 1 + 2 * k
        nodes += [drawn("dot_general", a + 1, a), drawn("add", a + 2, a + 1, a)]
    nodes.append(drawn("tanh", 18, 17))
    boxes = boxes_of(nodes)
    folded = fold(boxes)
    assert [box.id for box in folded] == [0, 1, 2, 3, 4, 18]
    assert (folded[4].folded, folded[4].times, folded[4].us) == (14, 7, 14.0)
    assert folded[4].reads == [3]
    assert folded[5].reads == [4], "readers of a folded kernel read the fold"
    assert fold(boxes[:5]) == boxes[:5], "nothing repeats"


@pytest.mark.parametrize("alike", [True, False])
def test_pages_of_large_networks_stay_small(alike: bool) -> None:
    """Hundreds of residual blocks of four kernels each."""
    blocks = 120 if alike else 300
    nodes = [drawn("input x", 0)]
    for k in range(blocks):
        a = 4 * k
        size = "8" if alike else str(k + 1)
        for i, op in enumerate(("conv_general_dilated", "max", "conv_general_dilated", "add"), start=1):
            reads = (a + i - 1, a) if op == "add" else (a + i - 1,)
            nodes.append(replace(drawn(op, a + i, *reads), type=f"f32[1,{size},56,56]", rule="conv-pointwise"))
    report = replace(make_report(), drawing=Drawing(tuple(nodes), tuple(nodes)))
    page = to_html(report)
    assert len(page) < 3_000_000
    assert ('id="every"' in page) == alike, "only repetitions are folded"
    assert len(fold(boxes_of(nodes))) == (6 if alike else 1201)


def test_a_drawing_is_cut_into_bands_that_show_all_of_it() -> None:
    """A chain of fifty boxes with an edge from the first to the last; a browser lays out only the bands in view."""
    boxes = boxes_of([drawn("exp", 0), *(drawn("exp", n, n - 1) for n in range(1, 49)), drawn("add", 49, 48, 0)])
    text = svg(boxes, "before", set(), "drawing")
    bands = text.split('<div class="band"')[1:]
    views = [[float(x) for x in re.findall(r'viewBox="([^"]*)"', band)[0].split()] for band in bands]
    assert len(bands) > 3
    assert all(y + h == above for (_, y, _, h), (_, above, _, _) in itertools.pairwise(views))
    for band, (_, y, _, h) in zip(bands, views, strict=True):
        tops = [float(top) for top in re.findall(r"translate\(\d+ (\d+)\)", band)]
        assert all(y <= top and top + boxes[0].height <= y + h for top in tops)
        assert re.search(r'<path class="edge" d="M\d+ 42[LC][^"]* 3528"', band), "the long edge"
    assert re.findall(r'id="before-(\d+)"', text) == [str(n) for n in range(50)]
    short = svg(boxes[:3], "before", set(), "drawing")
    assert short.count('class="band"') == 1


def test_an_input_is_drawn_right_above_the_first_kernel_that_reads_it() -> None:
    boxes = boxes_of([drawn("input x", 0), drawn("exp", 1, 0), drawn("input y", 2), drawn("add", 3, 1, 2)])
    text = svg(boxes, "before", set(), "drawing")
    tops = [float(top) for top in re.findall(r"translate\(\d+ (\d+)\)", text)]
    x, exp, y, _ = tops
    assert x < exp == y


def test_the_layout_keeps_operands_above_and_boxes_apart() -> None:
    edges = [(0, 2), (0, 3), (1, 3), (2, 4), (3, 4), (0, 5), (4, 5), (1, 5), (0, 6)]
    sizes = [(100.0, 30.0 + 10 * i) for i in range(7)]
    placed = place(sizes, edges)
    for (a, b), path in zip(edges, placed.edges, strict=True):
        assert placed.boxes[a][1] + sizes[a][1] < placed.boxes[b][1]
        assert path[0] == (placed.boxes[a][0] + 50, placed.boxes[a][1] + sizes[a][1])
        assert path[-1] == (placed.boxes[b][0] + 50, placed.boxes[b][1])
    for i, (x, y) in enumerate(placed.boxes):
        assert x >= -1e-9
        assert y >= 0
        assert x + 100 <= placed.width + 1e-9
        assert y + sizes[i][1] <= placed.height + 1e-9
        for j, (u, v) in enumerate(placed.boxes[:i]):
            assert v != y or abs(x - u) >= 100, f"{i} and {j} overlap"
    assert place(sizes, edges) == placed
    sizes, edges = [*sizes, (100.0, 30.0)], [*edges, (4, 7), (6, 7)]
    assert place(sizes, edges).boxes[6][1] == placed.boxes[2][1]
    sunk = place(sizes, edges, [6])
    assert sunk.boxes[6][1] == sunk.boxes[4][1], "as low as its reader allows"
    assert place([], []).boxes == ()


def test_everything_on_the_page_is_escaped() -> None:
    quiet, hostile = parsed(make_report()), parsed(make_report(HOSTILE))
    assert hostile.tags == quiet.tags, "hostile text adds no element"
    assert [name for name, _ in hostile.attributes] == [name for name, _ in quiet.attributes]
    assert sum('<script>alert("x")</script>' in text for text in hostile.text) >= 10


def test_refusals_are_said_once() -> None:
    late = [JudgedFinalist(f"beside {i}", 4.5, None, None, "timeout: not built") for i in range(6)]
    text = to_text(replace(make_report(), finalists=tuple(late)))
    assert "refused: beside 0, beside 1, beside 2, beside 3 and 2 more: timeout: not built" in text
    assert text.count("not built") == 1


def test_the_store_reads_back_what_was_kept() -> None:
    for report in (make_report(HOSTILE), make_report(returned=False)):
        assert read_report(json.loads(json.dumps(report.to_json()))) == report


def test_json_is_strict() -> None:
    report = replace(
        make_report(),
        measured=Measurement(speedup=Speedup(1.0, float("-inf"), float("nan")), noise_floor=float("inf")),
    )

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(json_text(report.to_json()), parse_constant=refuse)
    assert data["speedup"] == {"ratio": 1.0, "low": None, "high": None, "basis": "measured"}
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
