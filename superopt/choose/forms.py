"""The forms of a program that may take kernels of our own.

    returned             the program that the judgement chose
    plain operations     the same with the operations themselves where it holds ways to compute them with XLA
    own form             the original, with what frozen inputs decide done ahead of time

each also with its images channels last.  What a rewrite gains with XLA it may lose with kernels: a depthwise
convolution as shifted sums is three times faster there, and twenty times slower than a kernel here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rewrites.build.expander import expand_macros, plain_op
from superopt.choose.trials import worth_trying
from superopt.contest.judgement import Judgement
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph
from superopt.ir.program import Program
from superopt.ir.text import print_graph
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.choose.relayout import channels_last
from superopt.search.search import Finalist


@dataclass(frozen=True, slots=True)
class ProgramForm:
    """A form of the program.

    Attributes:
        name: for the report.
        program: computes what the original does.
        finalist: of the search; None for the original as it was.
        regions: those that are worth trying as kernels.
        rest: those that are not.
    """

    name: str
    program: Program
    finalist: Finalist | None
    regions: tuple[Region, ...]
    rest: tuple[Region, ...] = ()


def forms_of(found: Exploration, judgement: Judgement) -> list[ProgramForm]:
    """The distinct forms, those first in which kernels promise most."""
    own = found.result.original
    programs: list[tuple[str, Program, Finalist | None]] = []
    if judgement.winner is not None:
        programs += _plain_form(found, judgement.winner)
    programs.append(("returned", judgement.program, judgement.winner))
    if judgement.winner is not own:
        programs.append(("own form", found.program(own), own))
    forms: list[ProgramForm] = []
    seen: set[str] = set()
    for name, program, finalist in programs:
        text = print_graph(program.hot)
        if text in seen:
            continue
        seen.add(text)
        moved = channels_last(program)
        if moved is not None:
            forms.append(_form(f"{name}, channels last", moved[0], finalist, partition(moved[0].hot, moved[1])))
        forms.append(_form(name, program, finalist, partition(program.hot)))
    return [form for form in forms if form.regions]


def forms_of_finalists(found: Exploration) -> list[tuple[str, Program, Finalist]]:
    """The distinct programs of the search, cheapest first by prediction, each without ways to compute with XLA."""
    forms: dict[str, tuple[str, Program, Finalist]] = {}
    for finalist in sorted(found.result.finalists, key=lambda f: f.predicted_s):
        if not finalist.original:
            plain = _plain_form(found, finalist)
            _, program, shown = plain[0] if plain else ("", found.program(finalist), finalist)
            assert shown is not None
            forms.setdefault(print_graph(program.hot), (finalist.name, program, shown))
    return list(forms.values())


def _plain_form(found: Exploration, finalist: Finalist) -> list[tuple[str, Program, Finalist | None]]:
    """A finalist with operations in place of the ways to compute them with XLA, where it holds such."""
    program = found.result.program(finalist, found.graph)
    ways = {node["rule"] for g in program.graphs for node in g.nodes() if node.op == "macro"}
    if not ways:
        return []
    rules = Counter({name: n for name, n in finalist.rules.items() if name not in ways})
    return [("plain operations", _plain(program), replace(finalist, rules=rules))]


def _form(name: str, program: Program, finalist: Finalist | None, regions: tuple[Region, ...]) -> ProgramForm:
    large = worth_trying(regions)
    roots = {r.root for r in large}
    return ProgramForm(name, program, finalist, tuple(large), tuple(r for r in regions if r.root not in roots))


def _plain(program: Program) -> Program:
    """A program with the op that it stands for in place of every macro."""
    prepare = None if program.prepare is None else _without_macros(program.prepare)
    return Program(prepare, _without_macros(program.hot))


def _without_macros(graph: Graph) -> Graph:
    return Graph(graph.inputs, expand_macros(graph.outputs, plain_op), graph.constants)
