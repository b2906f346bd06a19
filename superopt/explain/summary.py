"""Assembles the report of one optimisation from the results of its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from costmodel.model.objective import Objective
from rewrites.language.show import statement
from superopt.candidates.candidate import Candidate, Provenance
from superopt.candidates.ledger import Chosen, Rejected, RunLedger, Validated
from superopt.certify.library import ProvedLibrary
from superopt.explain.drawing import draw
from superopt.explain.evidence import kernels, measured_by_finalists, model_figures, not_chosen, regions, sites
from superopt.explain.parts import parts_by_name, parts_of
from superopt.explain.regions import apart_of, draw_regions, named
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.text import print_graph
from superopt.machine import facts as machine
from superopt.machine.fallback import Fallback
from superopt.report.data import Drawing, KernelUse, NativeKernel, Report, UsedRewrite
from superopt.report.verdicts import refusal, verdict


def make_report(
    name: str,
    imported: Imported,
    found: Exploration | None,
    ledger: RunLedger,
    library: ProvedLibrary,
    request: Request,
    fallback: Fallback,
    rows: Callable[[Candidate], tuple[NativeKernel, ...]] = lambda candidate: (),
) -> Report:
    """Make the report of an optimisation; its stages and its memory are filled in once the last of them is over.

    Args:
        found: the result of the search; None where there was none.
        fallback: of each part of the report: one that fails is left out.
        ledger: what happened to the candidates.
        rows: the regions of a candidate for the report.
    """
    unknown: dict[str, str] = {}
    searched: dict[str, Any] = {}
    choice = ledger.chosen
    parts = fallback.around("the parts of candidates", lambda: parts_by_name(ledger, imported.graph, found), {})
    refusals = [refusal(event) for event in ledger.of(Rejected) if event.why is not choice.why]
    candidate = choice.candidate
    native = fallback.around("the regions tried as kernels", lambda: _native(choice, rows), ())
    if found is not None:
        searched = fallback.around(
            "what the search tells", lambda: _of_search(found, choice, library, request, fallback), searched
        )
    of_rules = searched.pop("notes", ())
    searched |= _of_program(imported, found, choice, native, request, fallback)
    return Report(
        program=name,
        baseline="jax.jit" if imported.weakness is not None else "jax.jit of the model",
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict(candidate, choice.why),
        measured=choice.measured,
        numerics=ledger.numerics(candidate),
        opaque_ops=dict(imported.opaque_ops),
        finalists=tuple(replace(f, parts=parts.get(f.name, ())) for f in choice.finalists),
        returned=candidate.name,
        parts=() if choice.returns_original and not candidate.options else parts_of(candidate, imported.graph, found),
        objective=fallback.around("the name of the objective", lambda: _described(request.objective), ""),
        environment=fallback.around("the description of the machine", _environment, unknown),
        rules_proved=len(library.certificates),
        original_returned=choice.returns_original,
        after_text="" if candidate.is_original else print_graph(candidate.program.hot),
        compiler_options=dict(candidate.options),
        tuning=choice.tuning,
        exactness=request.numerics,
        loop_steps=dict(Counter(step.kind for step in candidate.loops)),
        native=native,
        implementation=_implementation(candidate, ledger),
        notes=(
            *imported.notes,
            *(() if found is None else found.notes),
            *of_rules,
            *choice.notes,
            *refusals,
        ),
        before_text=print_graph(imported.graph),
        **searched,
    )


def _native(choice: Chosen, rows: Callable[[Candidate], tuple[NativeKernel, ...]]) -> tuple[NativeKernel, ...]:
    """The regions that were tried as kernels; unused where the original is returned."""
    listed = choice.listed or choice.candidate
    made = rows(listed) if listed.regions else ()
    return tuple(replace(row, used=False) for row in made) if choice.returns_original else made


def _implementation(candidate: Candidate, ledger: RunLedger) -> dict[str, Any]:
    """The form of a program in kernels, and the numbers of its regions and kernels; empty for other programs."""
    if candidate.is_original or not (candidate.regions or candidate.origin is Provenance.OWN_FORM):
        return {}
    code: dict[str, Any] = {}
    for one in ledger.about(candidate, Validated):
        code = {"code": {"validated": one.proved, "unknown": dict(one.unknown), "refuted": one.refuted}}
    return {
        "form": candidate.form, "regions": len(candidate.regions), "kernels": len(candidate.kernels),
        "apart_ms": 1e3 * candidate.apart_s,
    } | code  # fmt: skip


def _of_search(
    found: Exploration, choice: Chosen, library: ProvedLibrary, request: Request, fallback: Fallback
) -> dict[str, Any]:
    """Return the fields of the report that come from the search and its e-graph."""
    shown = found.finalist(choice.candidate.finalist) or found.result.original
    statistics = {**found.statistics, "predicted_before_ms": 1e3 * found.by_xla_s(found.result.original)}
    others, left_out = (), 0
    if not fallback.interrupted:
        others, left_out = fallback.around(
            "the rules that were not chosen", lambda: not_chosen(found, shown, request.deadline), (others, left_out)
        )
    more = f"{left_out} more rules apply to the returned program and were not priced"
    return {
        "rewrites": fallback.around("the table of rules", lambda: _used(found, choice, library, fallback), ()),
        "growth": found.growth,
        "search": statistics,
        "not_chosen": others,
        "notes": (more,) if left_out else (),
    }


def _of_program(
    imported: Imported,
    found: Exploration | None,
    choice: Chosen,
    native: Sequence[NativeKernel],
    request: Request,
    fallback: Fallback,
) -> dict[str, Any]:
    """The kernels of the returned program, drawn and in a table, with one figure for each."""
    candidate = choice.candidate
    winner = None if found is None else found.finalist(candidate.finalist)
    in_regions = bool(candidate.regions) and not candidate.is_original

    def table() -> tuple[KernelUse, ...]:
        if in_regions:
            return regions(native, len(apart_of(candidate.program)), 1e3 * candidate.apart_s)
        return () if found is None else kernels(found, winner or found.result.original)

    def drawing() -> Drawing | None:
        drawn = unnamed()
        return None if drawn is None else named(drawn, imported.graph, found, imported.scopes)

    def unnamed() -> Drawing | None:
        if fallback.hurried or fallback.interrupted or choice.interrupted:  # it takes longest
            return None
        if found is None or in_regions:
            return draw_regions(imported.graph, candidate, native, found, request.objective)
        return draw(found, winner, candidate.program.computes_ahead and not candidate.is_original)

    uses = fallback.around("the table of kernels", table, ())
    predicted_s = candidate.predicted_s
    if predicted_s is None and winner is not None:
        predicted_s = winner.predicted_s
    return {
        "kernels": uses,
        "drawing": fallback.around("the drawing", drawing, None),
        "predicted_ms": None if predicted_s is None else 1e3 * predicted_s,
        "model": {}
        if found is None
        else fallback.around("the figures of the model", lambda: model_figures(found, uses), {}),
    }


def _environment() -> dict[str, Any]:
    return {**machine.as_dict(), "versions": machine.versions()}


def _used(found: Exploration, choice: Chosen, library: ProvedLibrary, fallback: Fallback) -> tuple[UsedRewrite, ...]:
    """Return the rules of the winner, those with the largest gain by the model first."""
    winner = found.finalist(choice.candidate.finalist)
    if winner is None:
        return ()
    predicted = fallback.around("predicted gains of rules", lambda: found.gains_ms(winner), dict[str, float]())
    where = fallback.around("the places of rules", lambda: sites(found, winner), dict[str, dict[str, int]]())
    rows = {f.name: f.measured_ms for f in choice.finalists if f.measured_ms is not None}
    hedged = dict[str, float]()
    if winner is found.result.best:
        names = list(winner.rules)
        hedged = fallback.around(
            "gains of rules among finalists", lambda: measured_by_finalists(rows, winner.name, names), hedged
        )
    texts = fallback.around(
        "the texts of rules", lambda: {r.name: statement(r) for r in library.rules if r.name in winner.rules}, {}
    )
    out: list[UsedRewrite] = []
    for rule, count in winner.rules.items():
        certificate, gain = library.certificates[rule], choice.gains.get(rule)
        out.append(
            UsedRewrite(
                rule=rule,
                count=count,
                certificate=certificate.key,
                exactness=certificate.exactness,
                predicted_gain_ms=predicted.get(rule, 0.0),
                equation=certificate.equation,
                statement=texts.get(rule, ""),
                sites=where.get(rule, {}),
                measured_gain_ms=gain.milliseconds if gain else hedged.get(rule),
                measured=gain.ratio if gain else None,
            )
        )
    return tuple(sorted(out, key=lambda u: (-u.predicted_gain_ms, u.rule)))


def _described(objective: Objective) -> str:
    """Return name, version and, where it is known, the training data of the objective."""
    source = getattr(objective, "source", "")
    return f"{objective.name} {objective.version}" + (f" ({source})" if source else "")
