"""Labels of regions: how long each takes as one of our kernels, and by XLA, timed in the same rounds.

    regions    Those of the training programs in their own form, images channels last; kernels of the search's corpus
               that are one region; those of forms that a rule makes of the training programs (`rewritten`).  They
               are distinct by their text.
    warm       Calls are repeated, so that everything is in the caches.
    cold       Calls take turns with copies of the frozen operands, as weights of a large program lie.

The sources of regions take turns, each with its own in a fixed shuffled order.  So the first slices have all rules in
them, and a longer one is a sample of all; an interrupted run resumes where it was.  Some chunks of each run are timed a
second time at its end, for the noise floor.

A further kind of processor has a file of its own.  It takes the regions of programs' own forms in the first file,
program by program, so that the order within programs can be judged (`superopt.lab.training.unseen`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from superopt.certify.library import proved_library
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.program import frozen_bytes
from superopt.ir.text import parse_graph
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import NATIVE
from superopt.kernels.llvm.cpu import without_avx512
from superopt.lab import Say
from superopt.lab.training import corpus, families
from superopt.lab.training.collect import TIMER_LIMITS, LabelFile, Row, label_of
from superopt.lab.training.corpus import OWN_FORM
from superopt.lab.training.rewritten import forms
from superopt.lab.training.tasks import canonical, key_of, make_form, read_lines, write_lines
from superopt.machine import facts as machine
from superopt.make.plain import in_regions, own_form
from superopt.measure import KernelTiming, rates, time_kernels
from superopt.measure.kernels import XLA, KernelSettings, copies
from superopt.workshop.job import Failure, JobWorker
from superopt.workshop.scheduler import LOCAL, Executor, Workers

SETTINGS = KernelSettings(chunk=1_000, rounds=6, sample_s=0.0025, max_calls=40, most_s=0.1)
FOOTPRINT = 128 << 20  # frozen operands that calls take turns with: more than the last cache of most machines
LEAST_FROZEN = 64 << 10  # bytes of frozen operands from which a region is timed cold, too
CHUNK = 8
AGAIN_EVERY = 20
KIND_AGAIN_EVERY = 3  # of a further kind, which has fewer
WRITE_EVERY_S = 30.0
SHIPPED = corpus.SHIPPED.with_name("regions.jsonl.gz")
_FOR_GOOD = contextlib.ExitStack()  # of a worker, for as long as it runs


def collect(out: Path, budget_s: float, say: Say, executor: Executor = LOCAL, kind: str = "") -> dict[str, Any]:
    """Time regions that are not in the file yet until the budget ends; return figures of the file.

    A worker of each host of the executor times.  Chunks whose worker is lost are left to the next run.  With the name
    of a kind of processor, the file is that of a further kind.
    """
    begin = time.monotonic()
    labels = LabelFile.read(out)
    known = {row["key"] for row in labels.rows} | set(labels.failed)
    order = by_program(read_lines(SHIPPED)[1:]) if kind else in_turns(listed(out.with_name("listed.jsonl.gz"), say))
    left = [row for row in order if row["key"] not in known]
    of_kind = {"kind": kind, "rates": asdict(rates.now())} if kind else {}
    labels.stamp(footprint=FOOTPRINT, **of_kind)
    end, written, again = begin + budget_s, time.monotonic(), list[Row]()
    every = KIND_AGAIN_EVERY if kind else AGAIN_EVERY
    loads = "" if machine.describe() == machine.own() else f"{__name__}:take_avx2"
    with Workers(1, executor).workshop(TIMER_LIMITS, inline=True, loads=loads) as workshop:
        begun = itertools.takewhile(lambda _: time.monotonic() <= end, range(0, len(left), CHUNK))
        for first, rows in workshop.dialogues(
            "time", begun, lambda seat, first: timed(left[first : first + CHUNK], seat.worker)
        ):
            if isinstance(rows, Failure):
                continue
            chunk = left[first : first + CHUNK]
            for row, one in zip(chunk, rows, strict=True):
                if isinstance(one, str):
                    labels.failed[row["key"]] = one
                else:
                    labels.rows.append(row | one)
            if first // CHUNK % every == 0:
                again += [row for row, one in zip(chunk, rows, strict=True) if not isinstance(one, str)]
            if time.monotonic() > written + WRITE_EVERY_S:
                labels.write()
                written = time.monotonic()
                say(f"{len(labels.rows)} labels of {len(order)} regions")
        at = {row["key"]: row for row in labels.rows}
        chunks = [again[first : first + CHUNK] for first in range(0, len(again), CHUNK)]
        for chunk, rows in workshop.dialogues("time", chunks, lambda seat, chunk: timed(chunk, seat.worker)):
            for row, one in () if isinstance(rows, Failure) else zip(chunk, rows, strict=True):
                if not isinstance(one, str):
                    at[row["key"]] |= {f"{k}_again": v for k, v in one.items() if k.endswith("_s")}
    labels.write()
    return summary(labels, len(order))


@contextlib.contextmanager
def avx2() -> Iterator[None]:
    """Time as on this processor without AVX-512: our kernels, and those of XLA in processes that start inside."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa=AVX2".strip()
    try:
        with machine.taken(without_avx512(machine.own())):
            yield
    finally:
        os.environ["XLA_FLAGS"] = flags


def take_avx2() -> None:
    """Make code for AVX2 from now on, in a worker."""
    _FOR_GOOD.enter_context(machine.taken(without_avx512(machine.own())))


def by_program(regions: Sequence[Row]) -> list[Row]:
    """Regions of programs' own forms, those of a program together, programs in a fixed shuffled order."""
    own = [{k: row[k] for k in ("family", "program", "key", "text", "rule") if k in row} for row in regions]
    own = [row for row in own if not row.get("rule")]
    return sorted(own, key=lambda row: place(row["program"], row["key"]))


def place(program: str, key: str) -> tuple[bytes, str]:
    """Place of a region in the order of `by_program`."""
    return hashlib.sha256(program.encode()).digest(), key


def in_turns(regions: Sequence[Row]) -> list[Row]:
    """Regions in a shuffled order that depends on their keys alone, one of each rule before the second of any."""
    turns = Counter[str]()
    rows: list[tuple[int, Row]] = []
    for row in sorted(regions, key=lambda r: hashlib.sha256(r["key"].encode()).digest()):
        rows.append((turns[row["rule"]], row))
        turns[row["rule"]] += 1
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def summary(labels: LabelFile, regions: int) -> dict[str, Any]:
    """Figures of a file of labels."""
    rows = labels.rows
    again = [abs(r["own_s_again"] / r["own_s"] - 1.0) for r in rows if r.get("own_s_again") and r["own_s"] >= 2e-5]
    own_s, xla_s = sum(r["own_s"] for r in rows), sum(r["xla_s"] for r in rows)
    best_s = sum(min(r["own_s"], r["xla_s"]) for r in rows)
    return {
        "labels": len(rows), "regions": regions, "failed": len(labels.failed),
        "families": len({r["family"] for r in rows}), "cold": sum("own_cold_s" in r for r in rows),
        "noise_floor_mean_long": sum(again) / len(again) if again else None,
        "own_faster": sum(r["own_s"] < r["xla_s"] for r in rows) / max(1, len(rows)),
        "xla_over_own": xla_s / own_s if rows else None, "own_over_best": own_s / best_s if rows else None,
    }  # fmt: skip


def corpus_of(path: Path = SHIPPED, backend: str = "own") -> corpus.Corpus:
    """The times on one backend, `own` or `xla`, as labels: each region is a task of its own, its form is its rule.

    Raises:
        CorpusError: the file is missing, or a line is not a label.
    """
    try:
        data = path.read_bytes()
        records = read_lines(path)
        header = records[0]["header"]
        labels = tuple(
            corpus.KernelLabel(
                row["family"], row["program"], row["key"], row.get("rule") or OWN_FORM, key=row["key"],
                graph=parse_graph(row["text"]),
                seconds=row[f"{backend}_s"], stderr=row[f"{backend}_stderr"], again_s=row.get(f"{backend}_s_again"),
            )
            for row in records[1:]
        )  # fmt: skip
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise corpus.CorpusError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not labels:
        raise corpus.CorpusError(f"{path.name} holds no labels")
    return corpus.Corpus(header, labels, hashlib.sha256(data).hexdigest()[:16])


def rotated_bytes(graph: Graph, header: Mapping[str, Any]) -> int:
    """Bytes of frozen operands that the cold calls of a region took turns with.

    Args:
        graph: the region.
        header: header of the file of labels.
    """
    size = frozen_bytes(graph)
    return size * copies(size, header["footprint"])


def cold_costs(path: Path = SHIPPED) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds per byte of frozen operands read from memory, by the names of `Boundary`; and errors of that cost.

    The cost minimises the mean relative error over regions of 20 us and more that were timed cold and warm, with copies
    that no cache can hold; it is a weighted median.  Errors are those of cold times predicted from warm ones:
    unchanged, with the cost, and with the cost of other families.
    """
    header, *rows = read_lines(path)
    header = header["header"]
    with machine.taken(machine.from_dict(header.get("machine"))):
        sizes = [(row, parse_graph(row["text"])) for row in rows if "own_cold_s" in row]
        some = [(row, frozen_bytes(g)) for row, g in sizes if machine.beyond_caches(rotated_bytes(g, header))]
    costs, figures = dict[str, float](), dict[str, float]()
    for backend, name in (("own", "cold_s"), ("xla", "cold_xla_s")):
        triples = [(row[f"{backend}_s"], row[f"{backend}_cold_s"], size, row["family"]) for row, size in some]
        warm, cold, size, families_ = (np.array(x) for x in zip(*[x for x in triples if x[1] >= 2e-5], strict=True))
        costs[name] = _byte_s(warm, cold, size)
        left_out = [np.abs((warm + _byte_s(warm[o], cold[o], size[o]) * size) / cold - 1)[~o]
                    for f in np.unique(families_) for o in [families_ != f]]  # fmt: skip
        figures |= {
            f"{name[:-2]}_error_warm": float(np.mean(np.abs(warm / cold - 1))),
            f"{name[:-2]}_error": float(np.mean(np.abs((warm + costs[name] * size) / cold - 1))),
            f"{name[:-2]}_error_lofo": float(np.mean(np.concatenate(left_out))),
        }
    return costs, figures | {"cold_regions": float(len(some))}


def _byte_s(warm: np.ndarray, cold: np.ndarray, size: np.ndarray) -> float:
    each, weight = (cold - warm) / size, size / cold
    order = np.argsort(each)
    total = np.cumsum(weight[order])
    return max(0.0, float(each[order][np.searchsorted(total, total[-1] / 2)]))


def listed(path: Path, say: Say) -> list[Row]:
    """The distinct regions, read from the file if there is one."""
    rows = read_lines(path)
    if rows:
        return rows
    by_case: dict[str, Row] = {}

    def add(family: str, program: str, region: Graph, rule: str = "") -> None:
        text = make_form("region", canonical(region)).text
        row = {"family": family, "program": program, "key": key_of(text), "text": text, "rule": rule}
        by_case.setdefault(key_of(text), row)

    for family, number in families.names():
        try:
            form = in_regions("own form", own_form(families.program(family, number).graph()))
        except SuperoptError as error:
            say(f"{family}/{number}: {error}")
            continue
        for region in form.regions:
            add(family, f"{family}/{number}", region.graph)
    programs = len(by_case)
    for label in corpus.load().labels:
        regions = partition(label.graph)
        if len(regions) == 1 and not regions[0].is_free and regions[0].root is label.graph.outputs[0]:
            add(label.family, label.program, regions[0].graph)
    searched = len(by_case)
    rules = proved_library(None).rules
    for family, number in families.names():
        for rule, form in forms(families.program(family, number).graph(), rules):
            for region in form.regions:
                add(family, f"{family}/{number}", region.graph, rule)
    say(
        f"{programs} regions of programs, {searched - programs} kernels of the search that are one region, "
        f"{len(by_case) - searched} regions of forms by rules"
    )
    write_lines(path, list(by_case.values()))
    return list(by_case.values())


def timed(chunk: Sequence[Row], worker: JobWorker) -> list[Row | str]:
    """Times of regions in both backends, interleaved; for a region without times, the reason."""
    graphs = [parse_graph(row["text"]) for row in chunk]
    warm = _pairs(graphs, worker, SETTINGS)
    cold = [i for i, g in enumerate(graphs) if frozen_bytes(g) >= LEAST_FROZEN and not isinstance(warm[i], str)]
    rows = [one if isinstance(one, str) else dict(one) for one in warm]
    for i, one in zip(
        cold, _pairs([graphs[i] for i in cold], worker, replace(SETTINGS, footprint=FOOTPRINT)), strict=True
    ):
        at = rows[i]
        if not isinstance(at, str) and not isinstance(one, str):
            at |= {"own_cold_s": one["own_s"], "xla_cold_s": one["xla_s"]}
    return rows


def _pairs(graphs: Sequence[Graph], worker: JobWorker, settings: KernelSettings) -> list[Row | str]:
    both = [g for g in graphs for _ in range(2)]
    timings = time_kernels(both, settings=settings, worker=worker, backends=[NATIVE, XLA] * len(graphs))
    rows: list[Row | str] = []
    for own, xla in zip(timings[::2], timings[1::2], strict=True):
        if not isinstance(own, KernelTiming):
            rows.append(f"own: {own.cause}: {own.detail}"[:200])
        elif not isinstance(xla, KernelTiming):
            rows.append(f"xla: {xla.cause}: {xla.detail}"[:200])
        else:
            (own_s, own_error), (xla_s, xla_error) = label_of(own), label_of(xla)
            rows.append({
                "own_s": _short(own_s), "own_stderr": own_error, "xla_s": _short(xla_s), "xla_stderr": xla_error,
            })  # fmt: skip
    return rows


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")
