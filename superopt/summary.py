"""Everything that one optimisation knows, put together as its report."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.objective import Objective
from rewrites.show import statement
from superopt import machine
from superopt.drawing import draw
from superopt.evidence import kernels, measured_by_finalists, model_figures, not_chosen, sites
from superopt.explore import Exploration
from superopt.frontends.jaxpr import Imported
from superopt.judgement import Judgement
from superopt.library import ProvedLibrary
from superopt.result import Report, Speedup, UsedRewrite


def make_report(
    name: str,
    imported: Imported,
    found: Exploration,
    judgement: Judgement,
    library: ProvedLibrary,
    objective: Objective,
    memory: Mapping[str, int],
    exactness: str = "real",
) -> Report:
    """The report of an optimisation; its stages are filled in once the last of them is over."""
    shown = judgement.winner or found.result.original
    uses = kernels(found, shown)
    return Report(
        program=name,
        verdict=judgement.verdict,
        before_ms=judgement.before_ms,
        after_ms=judgement.after_ms,
        speedup=judgement.speedup or Speedup(1.0, 1.0, 1.0),
        noise_floor=judgement.noise_floor,
        rewrites=_used(found, judgement, library),
        numerics=judgement.numerics,
        opaque_ops=dict(imported.opaque_ops),
        stages=(),
        finalists=judgement.finalists,
        growth=found.growth,
        search=found.statistics,
        memory=dict(memory),
        objective=_described(objective),
        environment={**machine.as_dict(), "versions": machine.versions()},
        rules_proved=len(library.certificates),
        original_returned=judgement.winner is None and not judgement.kernels,
        notes=(*found.notes, *judgement.notes),
        samples_ms=judgement.samples_ms,
        before_text=found.before_text,
        after_text=judgement.after_text,
        model=model_figures(found, uses),
        not_chosen=not_chosen(found, shown),
        kernels=uses,
        compiler_options=judgement.options,
        tuning=judgement.tuning,
        drawing=draw(found, judgement.winner),
        exactness=exactness,
        native=judgement.native,
        implementation=judgement.implementation,
    )


def _used(found: Exploration, judgement: Judgement, library: ProvedLibrary) -> tuple[UsedRewrite, ...]:
    """The rules of the winner, those that the model says gain most first."""
    winner = judgement.winner
    if winner is None:
        return ()
    predicted, where = found.gains_ms(winner), sites(found, winner)
    rows = {f.name: f.measured_ms for f in judgement.finalists if f.measured_ms is not None}
    hedged = measured_by_finalists(rows, winner.name, list(winner.rules)) if winner is found.result.best else {}
    rules = {rule.name: rule for rule in library.rules}
    out: list[UsedRewrite] = []
    for rule, count in winner.rules.items():
        certificate, gain = library.certificates[rule], judgement.gains.get(rule)
        out.append(
            UsedRewrite(
                rule,
                count,
                certificate.key,
                certificate.exactness,
                predicted.get(rule, 0.0),
                certificate.equation,
                statement(rules[rule]),
                where.get(rule, {}),
                gain.milliseconds if gain else hedged.get(rule),
                gain.ratio if gain else None,
            )
        )
    return tuple(sorted(out, key=lambda u: (-u.predicted_gain_ms, u.rule)))


def _described(objective: Objective) -> str:
    """Name, version and, where it says so, what the objective was fitted on."""
    source = getattr(objective, "source", "")
    return f"{objective.name} {objective.version}" + (f" ({source})" if source else "")
