"""Published labels: their loader, their card, and the judge of a model that somebody else fits to them."""

from __future__ import annotations

import dataclasses
import functools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from superopt.commands.main import cli
from superopt.errors import UsageError
from superopt.ir.text import parse_graph
from superopt.lab.training import corpus, evaluate, fitting, loader, publish
from superopt.lab.training.corpus import Corpus
from superopt.measure.kernels import XLA


@functools.cache
def some() -> Corpus:
    """A few labels of three families."""
    found = corpus.load()
    of = {family: [x for x in found.labels if x.family == family][:60] for family in ("mixer", "prefix", "filters")}
    return dataclasses.replace(found, labels=tuple(x for labels in of.values() for x in labels))


GIVEN: list[str] = []  # columns of the kernels that were to be predicted


class Perfect:
    """Knows the seconds of every text."""

    def fit(self, train: loader.Columns) -> None:
        assert {"seconds", "noise", "again_s"} <= set(train)

    def seconds(self, test: loader.Columns) -> np.ndarray:
        GIVEN[:] = test
        known = {x.key: x.seconds for x in some().labels}
        return np.array([known[key] for key in test["key"]])


def test_the_loader_gives_the_kernels_of_a_split_with_their_graphs(tmp_path: Path) -> None:
    publish.export(tmp_path, {"kernels": some()}, lambda line: None)
    load = runpy.run_path(str(tmp_path / "load.py"))["load"]
    for split in evaluate.splits_of(some().labels):
        train, test = load(tmp_path / "kernels.npz", split.name)
        assert not set(train["key"]) & set(test["key"])
        for side, at in ((train, split.train), (test, split.test)):
            labels = [some().labels[i] for i in at]
            assert side["seconds"].tolist() == [x.seconds for x in labels]
            assert side["key"].tolist() == [x.key for x in labels]
            assert len(side["node_op"]) == len(side["node_row"]) == side["nodes"].sum()
            assert len(side["edge_source"]) == len(side["edge_reader"]) == side["edges"].sum()


def test_edges_lead_from_operands_to_readers(tmp_path: Path) -> None:
    publish.export(tmp_path, {"kernels": some()}, lambda line: None)
    with np.load(tmp_path / "kernels.npz") as file:
        names = file["opcodes"]
    _, test = loader.load(tmp_path / "kernels.npz", "without mixer")
    nodes = edges = 0
    for text, n, e in zip(test["text"], test["nodes"], test["edges"], strict=True):
        graph = parse_graph(str(text))
        ops = names[test["node_op"][nodes : nodes + n]]
        assert sorted(ops) == sorted(node.op for node in graph.nodes())
        links = slice(edges, edges + e)
        ends = (ops[test[f"edge_{end}"][links]] for end in ("source", "reader"))
        drawn = zip(*ends, test["edge_position"][links], strict=True)
        wanted = ((x.op, node.op, min(k, 3)) for node in graph.nodes() for k, x in enumerate(node.inputs))
        assert sorted((a, b, int(k)) for a, b, k in drawn) == sorted(wanted)
        nodes, edges = nodes + n, edges + e


def test_the_card_names_what_was_timed_where(tmp_path: Path) -> None:
    publish.export(tmp_path, {"kernels": some()}, lambda line: None)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert some().header["machine"]["cpu"] in card
    assert some().digest in card
    for column in publish.columns_of(some()):
        assert f"`{column}`" in card, column


def test_a_given_model_is_judged_on_the_splits_of_the_evaluation() -> None:
    told = publish.judge(some(), Perfect, XLA, ["mixer"], lambda line: None)
    assert [row["name"] for row in told["families"]] == ["without mixer"]
    (row,) = told["families"]
    assert row["mean"]["mape"] == 0.0
    assert row["mean"]["regret"] == 0.0
    assert row["prior"]["mape"] > 0.0
    assert told["summary"]["mape_lofo"] == 0.0
    assert not {"seconds", "noise", "again_s"} & set(GIVEN)


@pytest.mark.parametrize("wrong", [0.0, np.nan, -1.0])
def test_predictions_that_are_no_times_are_refused(wrong: float) -> None:
    class Wrong(Perfect):
        def seconds(self, test: loader.Columns) -> np.ndarray:
            return np.full(len(test["key"]), wrong)

    with pytest.raises(UsageError, match=r"Wrong\.seconds"):
        publish.judge(some(), Wrong, XLA, ["mixer"], lambda line: None)


def test_the_command_judges_the_model_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "read_corpus", lambda path, backend=XLA: some())
    (tmp_path / "mean.py").write_text(
        "import numpy as np\n"
        "class Mean:\n"
        "    def fit(self, train): self.mean = np.exp(np.log(train['seconds']).mean())\n"
        "    def seconds(self, test): return np.full(len(test['text']), self.mean)\n"
    )
    ran = CliRunner().invoke(
        cli, ["train", "eval", "--model", f"{tmp_path / 'mean.py'}:Mean", "--families", "prefix", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.output[ran.output.index("{") :])
    assert told["families"][0]["name"] == "without prefix"
    assert "text" in told
