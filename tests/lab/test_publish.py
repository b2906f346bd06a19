"""Published labels: their loader, their card, and the judge of a model that somebody else fits to them."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import runpy
import tempfile
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

FAMILIES = ("mixer", "prefix", "filters")


@functools.cache
def some() -> Corpus:
    """A few of the labels that ship, of three families."""
    header, *lines = gzip.decompress(corpus.SHIPPED.read_bytes()).splitlines(keepends=True)
    of = {family: [x for x in lines if f'"family": "{family}"'.encode() in x][:60] for family in FAMILIES}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl.gz"
        path.write_bytes(gzip.compress(b"".join([header, *itertools.chain.from_iterable(of.values())])))
        return corpus.load(path)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of these labels as they are published."""
    folder = tmp_path_factory.mktemp("published")
    publish.export(folder, {"kernels": some()}, lambda line: None)
    return folder


GIVEN: list[str] = []  # columns of the kernels that were to be predicted


class Perfect:
    """Knows the seconds of every text."""

    def fit(self, train: loader.Columns) -> None:
        assert {"seconds", "noise", "again_s"} <= set(train)

    def seconds(self, test: loader.Columns) -> np.ndarray:
        GIVEN[:] = test
        known = {x.key: x.seconds for x in some().labels}
        return np.array([known[key] for key in test["key"]])


def test_the_loader_gives_the_kernels_of_a_split_with_their_graphs(published: Path) -> None:
    load = runpy.run_path(str(published / "load.py"))["load"]
    for split in evaluate.splits_of(some().labels):
        train, test = load(published / "kernels.npz", split.name)
        assert not set(train["key"]) & set(test["key"])
        for side, at in ((train, split.train), (test, split.test)):
            labels = [some().labels[i] for i in at]
            assert side["seconds"].tolist() == [x.seconds for x in labels]
            assert side["key"].tolist() == [x.key for x in labels]
            assert len(side["node_op"]) == len(side["node_row"]) == side["nodes"].sum()
            assert len(side["edge_source"]) == len(side["edge_reader"]) == side["edges"].sum()


def test_edges_lead_from_operands_to_readers(published: Path) -> None:
    with np.load(published / "kernels.npz") as file:
        names = file["opcodes"]
    _, test = loader.load(published / "kernels.npz", "without mixer")
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


def test_the_card_names_what_was_timed_where(published: Path) -> None:
    card = (published / "README.md").read_text(encoding="utf-8")
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
