"""Labels as a published set, and the judge of a model that somebody else fits to it.

A set has one row per kernel, its graph as nodes and edges, and the splits of the evaluation.  A model is fitted to the
training part of each split and predicts the other; figures, splits and the roofline beside it are those of
`superopt.lab.training.evaluate`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from costmodel.features.node_rows import OPCODES
from costmodel.model.encode import KernelEncoder, join, prior_seconds
from superopt.errors import UsageError
from superopt.ir.text import print_graph
from superopt.lab.training import fit, loader
from superopt.lab.training.corpus import Corpus, Split
from superopt.lab.training.evaluate import SplitResult, figures, labels_facts, splits_of, told
from superopt.lab.training.loader import Columns
from superopt.lab.training.settings import FitSettings
from superopt.machine import facts as machine

MEASURED = ("seconds", "noise", "again_s")  # columns that a model is not given of kernels that it is to predict


class GivenModel(Protocol):
    """A model of somebody else's; it is made anew for each split, without arguments."""

    def fit(self, train: Columns) -> None:
        """Learn from these kernels and their seconds."""
        ...

    def seconds(self, test: Columns) -> np.ndarray:
        """Predict the seconds of each of these kernels."""
        ...


def columns_of(labelled: Corpus) -> Columns:
    """Return all kernels of a file of labels as columns, in the order of the file."""
    labels = labelled.labels
    encoder = KernelEncoder()
    _, structures = encoder.encode([x.graph for x in labels])
    joined = join(structures, encoder.rows)
    links = np.array([s.links for s in structures])
    first = np.repeat(np.cumsum(joined.counts) - joined.counts, links)  # node of its kernel, of each edge
    texts = {x.key: print_graph(x.graph) for x in labels}
    return {
        "text": np.array([texts[x.key] for x in labels]),
        **{name: np.array([getattr(x, name) for x in labels]) for name in ("key", "family", "program", "task", "form")},
        "seconds": np.array([x.seconds for x in labels]),
        "noise": np.array([x.noise for x in labels]),
        "again_s": np.array([np.nan if x.again_s is None else x.again_s for x in labels]),
        "nodes": np.asarray(joined.counts, np.int32),
        "edges": links.astype(np.int32),
        "node_op": encoder.rows.ops[joined.rows],
        "node_row": encoder.rows.values[joined.rows],
        "edge_source": (joined.sources - first).astype(np.int32),
        "edge_reader": (joined.readers - first).astype(np.int32),
        "edge_position": joined.positions.astype(np.int32),
    }


def export(out: Path, sets: dict[str, Corpus], say: Callable[[str], None]) -> dict[str, Any]:
    """Write sets of labels, their card and the loader into a folder; return figures of what was written."""
    out.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {"path": str(out)}
    card = [_HEAD]
    for name, labelled in sets.items():
        with machine.taken(machine.from_dict(labelled.header.get("machine"))):
            columns = columns_of(labelled)
        columns["opcodes"] = np.array(OPCODES)
        splits = splits_of(labelled.labels)
        for split in splits:
            for side, at in zip(loader.SIDES, (split.train, split.test), strict=True):
                columns[f"{side}{split.name}"] = at.astype(np.int32)
        np.savez_compressed(out / f"{name}.npz", allow_pickle=False, **columns)
        card.append(_section(name, labelled, splits))
        written[name] = len(labelled.labels)
        say(f"{name}.npz: {len(labelled.labels)} kernels, {len(splits)} splits")
    (out / "load.py").write_text(inspect.getsource(loader), encoding="utf-8")
    (out / "README.md").write_text("\n".join([*card, _COLUMNS]), encoding="utf-8")
    return written


def _section(name: str, labelled: Corpus, splits: Sequence[Split]) -> str:
    """The part of the card that describes one set, in Markdown."""
    header = labelled.header
    about = header.get("machine") or {}
    versions = ", ".join(f"{tool} {number}" for tool, number in (header.get("versions") or {}).items())
    lines = [
        f"## {name}.npz",
        "",
        _SETS.get(name, "Labels of a file."),
        f"{len(labelled.labels)} kernels of {len({x.family for x in labelled.labels})} families,",
        f"timed {header.get('date', 'on an unknown date')} on {about.get('cpu', 'an unknown processor')},",
        f"{about.get('cores', '?')} cores; {versions}; digest {labelled.digest}.",
        "",
        "Splits: " + ", ".join(f"`{split.name}`" for split in splits) + ".",
        "",
    ]
    return "\n".join(lines)


_SETS = {"kernels": "Kernels as XLA compiles them; forms of one task compute the same function.",
         "regions": "Regions of programs as one kernel of superopt's own, with its default schedule."}  # fmt: skip
_HEAD = """# Times of tensor kernels on CPUs

What kernels take, for models that predict it. Written by `superopt train export`; licence: Apache-2.0, as superopt.
`superopt train eval --model FILE.py:NAME` judges a model on the same splits with the figures of superopt's own.
`load.py` reads a split with NumPy alone:

```python
from load import load

train, test = load("kernels.npz", "without mixer")
```
"""
_COLUMNS = f"""## Columns

One entry per kernel:

| column | unit | what |
| --- | --- | --- |
| `text` | | the graph, in the text form of superopt's programs |
| `key` | | digest of the text; no key is on both sides of a split |
| `family`, `program`, `task`, `form` | | its origin; kernels of one `task` of a `family` compute the same function |
| `seconds` | s | measured time of a call, dispatch taken off |
| `noise` | log s | standard deviation of the logarithm of the time |
| `again_s` | s | time of a second visit; NaN where there was none |
| `nodes`, `edges` | | how many the graph has |

One entry per node, kernel after kernel: `node_op` (a place in `opcodes`) and `node_row` (float32: sizes, types,
attributes; `costmodel/features/node_rows.py` of superopt names the columns). One entry per edge: `edge_source` and
`edge_reader` (nodes, counted in their kernel) and `edge_position` (which operand of the reader it is).

`{loader.SIDES[0]}NAME` and `{loader.SIDES[1]}NAME` are the places of the kernels of a split: a family that is held out
whole, or a fifth of the programs.
"""


def judge(
    labelled: Corpus,
    model: Callable[[], GivenModel],
    backend: str,
    families: Sequence[str] | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Fit and score a given model on every split, beside the roofline; the result is that of `evaluate.evaluate`.

    Raises:
        UsageError: its predictions are not one positive number per kernel.
    """
    begin = time.monotonic()
    with machine.taken(machine.from_dict(labelled.header.get("machine"))):
        splits = splits_of(labelled.labels, families)
        data, columns = fit.prepare(labelled.labels), columns_of(labelled)
        results: list[SplitResult] = []
        for split in splits:
            results.append(_scored(labelled, split, data, columns, model()))
            prior, (own,) = results[-1].prior, results[-1].learned
            progress(
                f"{split.name}: {len(split.test)} kernels, error {own['mape']:.3f}, roofline {prior['mape']:.3f}, tau "
                f"{own['tau']:.3f} ({prior['tau']:.3f}), {results[-1].fit_seconds:.0f} s"
            )
        return {**told(labelled, splits, results, backend), "seconds": round(time.monotonic() - begin, 1)}


def _scored(labelled: Corpus, split: Split, data: fit.Data, columns: Columns, model: GivenModel) -> SplitResult:
    """Fit the model and the roofline to one side of a split, and score both on the other."""
    train, test = (data.part(at) for at in (split.train, split.test))
    prior_s = prior_seconds(test.table, fit.fit_prior(train, FitSettings().prior_steps))
    begin = time.process_time()
    model.fit(loader.part(columns, split.train))
    given = {name: x for name, x in loader.part(columns, split.test).items() if name not in MEASURED}
    predicted_s = np.asarray(model.seconds(given), np.float64)
    seconds = time.process_time() - begin
    if predicted_s.shape != (len(split.test),) or not (np.isfinite(predicted_s) & (predicted_s > 0)).all():
        raise UsageError(
            f"{type(model).__name__}.seconds gave shape {predicted_s.shape} for {len(split.test)} kernels of "
            f"{split.name!r}, or numbers that are not positive",
            hint="one positive number of seconds for each kernel",
        )
    wanted = labels_facts([labelled.labels[i] for i in split.test])
    return SplitResult(
        split.name, len(split.train), len(split.test), split.shared, prior=figures(prior_s, wanted),
        learned=(figures(predicted_s, wanted),), outside=0.0, fit_seconds=seconds,
        predicted={"prior": prior_s.tolist(), "seed 0": predicted_s.tolist()},
    )  # fmt: skip
