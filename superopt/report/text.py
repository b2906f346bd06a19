"""The report as text with all details: verdict, stages, reasons for and against rules, proofs and checks.

No line is longer than `WIDTH`: longer ones continue on further, indented lines.
"""

from __future__ import annotations

import math
import textwrap

from superopt.machine.speedup import Speedup
from superopt.report.data import Account, NativeKernel, PeerTiming, Report, accounts
from superopt.report.figures import error, ms, percent, ratio, seconds
from superopt.report.steps import GainStep

WIDTH = 100
_MOST = 8
_EQUATIONS = 3
_FEW = 4
_APART = 0.02  # relative difference from the paired ratio above which the ratio of medians is shown
_LONG = 170  # characters of a rule's statement
_LITTLE = 0.005  # share of the kernels' time below which the time between them is not shown
_CONSISTENT = 0.1  # relative difference of measurement and prediction that needs no explanation
_BEYOND = {
    "more": "the call, threads that wake, operands in colder caches, what the models miss",
    "less": "operands in warmer caches, what the models miss",
}
_HANGING = " " * 10  # under the text that follows `  before ` and its like


def to_text(report: Report) -> str:
    """The report as lines of at most `WIDTH` characters."""
    lines = [f"{report.program}: {report.verdict}", _times_line(report)]
    lines += [f"  beside  {peer_line(peer)}" for peer in report.peers]
    sides = accounts(report)
    lines += [f"  step    {step_line(step)}" for step in report.steps]
    lines += [f"  account {side}: {account_line(one, report)}" for side, one in sides.items()]
    stages = "  ".join(f"{s.name} {seconds(s.seconds)}" for s in report.stages)
    lines.append(f"  time    {seconds(report.seconds)}: {stages}")
    lines += _search_lines(report)
    lines += _rewrite_lines(report)
    lines += _native_lines(report)
    lines += _not_done_lines(report)
    lines.append(f"  proof   {proof_line(report)}")
    if report.numerics is not None:
        lines.append(f"  checked {checked_line(report)}")
    if report.memory:
        frozen, prepared = report.memory.get("frozen_bytes", 0), report.memory.get("prepared_bytes", 0)
        added = report.memory.get("added_bytes")
        new = f", {added / 1e6:.1f} MB of it new" if added is not None else ""
        lines.append(f"  weights {frozen / 1e6:.1f} MB given, {prepared / 1e6:.1f} MB kept after preparation{new}")
    if report.opaque_ops:
        ops = ", ".join(f"{k} x{v}" for k, v in sorted(report.opaque_ops.items()))
        lines.append(f"  opaque  kept verbatim, never rewritten: {ops}")
    lines += [f"  note    {note}" for note in report.notes]
    if report.made or report.environment:
        lines.append(f"  made    {made_line(report)}")
    if report.command:
        lines.append(f"  command {report.command}")
    return "\n".join(piece for line in lines for piece in folded(line))


_NUMERICS = {
    "exact": "; numerics exact: only rules that keep every bit, results checked bit by bit",
    "real": "",
    "range": "; numerics range: rules that may overflow where the original does not were allowed",
}


def proof_line(report: Report) -> str:
    """The line on the returned program's proof: rules proved, machine code validated, class of numerics."""
    return _proof(report) + _NUMERICS[report.exactness]


def _proof(report: Report) -> str:
    kernels = report.implementation.get("kernels")
    schedules = f"; the schedules of {kernels} kernels of our own PROVED{_code(report)}" if kernels else ""
    if not report.rewrites:
        what = "the original was returned" if report.original_returned else "only frozen work is done ahead of time"
        what = schedules or ("" if report.loop_steps else f", {what}")
        return f"{_loops(report) or 'nothing was rewritten'}{what}; {report.rules_proved} proved rules were available"
    steps = sum(r.count for r in report.rewrites)
    exact = sum(1 for r in report.rewrites if r.exactness == "exact")
    return (
        f"{steps} rewrites by {len(report.rewrites)} rules, each PROVED by Z3 for all sizes"
        f" ({exact} bit-exact, {len(report.rewrites) - exact} over the reals){schedules}"
        f"{'; ' if report.loop_steps else ''}{_loops(report)}"
    )


_LOOPS = {
    "counted": "counters as rows", "body": "products changed", "hoisted": "values hoisted",
    "entered": "values made inside",
    "sunk": "ends of results behind", "summed": "sums", "powered": "powers", "projected": "products carried",
    "unrolled": "loops unrolled",
}  # fmt: skip


def _loops(report: Report) -> str:
    """The steps that took work out of loops; an empty text where there are none."""
    if report.original_returned or not report.loop_steps:
        return ""
    kinds = ", ".join(f"{n} x {_LOOPS[kind]}" for kind, n in report.loop_steps.items())
    return f"work was taken out of loops ({kinds}), each step PROVED at its place"


def _code(report: Report) -> str:
    """A count of kernel kinds whose machine code was validated, and the reasons for the others."""
    code = report.implementation.get("code")
    if code is None:
        return ""
    unknown = [f"{n} UNKNOWN: {why}" for why, n in code["unknown"].items()]
    count = code["validated"] + sum(code["unknown"].values())
    others = f" ({'; '.join(unknown)})" if unknown else ""
    return f", the machine code of {code['validated']} of their {count} kinds validated{others}"


def checked_line(report: Report) -> str:
    """The line on how far the returned program's results are from the original's, and both from float64."""
    n = report.numerics
    if n is None:
        return ""
    text = f"max relative error against the original {error(n.max_rel_error)}"
    if n.original_vs_f64 is not None and n.optimised_vs_f64 is not None:
        text += f"; against float64: original {error(n.original_vs_f64)}, returned {error(n.optimised_vs_f64)}"
    if not n.drawn:
        text += "; on the example alone, since loops and callbacks may not end or fail on inputs that nobody gave"
    return text


def step_line(step: GainStep) -> str:
    """The line on one step of the waterfall."""
    saved = f"{percent(step.gain_share)} of the time saved{'' if step.certain else ', not beyond the noise'}"
    return f"{step.words}: {saved}, {step.ratio} in all ({step.name})"


def unmeasured_line(report: Report) -> str:
    """Return the line on gains where there is no waterfall."""
    if report.original_returned:
        return "nothing: the original is returned"
    if report.speedup.basis != "measured":
        return "not told: no program was timed"
    return "not told: what the returned program has in place of the original's is not known"


def model_line(report: Report) -> str:
    """The line on how far the performance model can be trusted on this program."""
    figures = report.model
    if not figures:
        return ""
    timed = figures.get("kernels_timed", 0)
    parts = [f"{timed} kernel{'s' if timed > 1 else ''} timed" if timed else "no kernel was timed"]
    if figures.get("median_error") is not None:
        wrong = figures["median_error"]
        off = percent(wrong, 0) if wrong < 1 else f"a factor of {1 + wrong:.1f}"
        parts.append(f"the model was off by {off} on them (median)")
    if timed:
        parts.append(f"{percent(figures.get('timed_share', 0.0), 0)} of the time of its kernels is timed")
    outside = figures.get("outside_share")
    if outside is None:
        parts.append("no learned model")
    else:
        parts.append(f"{percent(outside, 0)} outside of what the learned model was trained on")
    return "; ".join(parts)


def near_misses(report: Report) -> list[tuple[str, str, int]]:
    """(rule, condition that failed, how often) for unused rules that stopped at a condition, most frequent first."""
    used = {r.rule for r in report.rewrites}
    nearest: dict[str, tuple[str, int]] = {}
    for key, count in report.growth.get("near_misses", {}).items():
        rule, _, reason = str(key).partition(": ")
        if "needs " in reason and rule not in used and count > nearest.get(rule, ("", 0))[1]:
            nearest[rule] = reason.removeprefix("not preferred: "), count
    return sorted(((r, reason, n) for r, (reason, n) in nearest.items()), key=lambda x: (-x[2], x[0]))


def peer_line(peer: PeerTiming) -> str:
    """The line on the returned program beside another runtime."""
    name = f"{peer.name} {peer.version}".strip()
    if peer.ratio is None:
        return f"{name}: not timed, {peer.failure}"
    return (
        f"{name}, {peer.threads} threads, own process: {ms(peer.ms)}, the returned program beside it"
        f" {ms(peer.returned_ms)}: {peer.ratio} over {peer.name}"
    )


def account_line(one: Account, report: Report) -> str:
    """The line on a program's time, from its kernels to the measurement."""
    parts = [f"{one.kernels} kernels"]
    if one.kernels_ms is not None:
        parts.append(f"take {ms(one.kernels_ms)} one by one")
    if one.between_ms and abs(one.between_ms) > _LITTLE * (one.kernels_ms or 0.0):
        parts.append(f"and {ms(one.between_ms)} between them by the models, {ms(one.predicted_ms)} in all")
    if one.measured_ms is not None and one.beyond_ms is not None:
        more = "more" if one.beyond_ms >= 0.0 else "less"
        because = beyond(one, report)
        why = f": {because}" if because else ""
        parts.append(f"; measured {ms(one.measured_ms)}, {ms(abs(one.beyond_ms))} {more}{why}")
    return " ".join(parts).replace(" ;", ";")


def beyond(one: Account, report: Report) -> str:
    """The reason why a program takes more or less than predicted; empty where both are about the same."""
    if one.measured_ms is None or one.beyond_ms is None or abs(one.beyond_ms) <= _CONSISTENT * one.measured_ms:
        return ""
    noise = report.measured.noise_floor
    busy = noise is not None and noise > _CONSISTENT
    return _BEYOND["more" if one.beyond_ms >= 0.0 else "less"] + (", other work on this machine" if busy else "")


def made_line(report: Report, *, versions: bool = True) -> str:
    """The line on when and where the figures were measured, and with which versions."""
    facts = report.environment
    known = facts.get("versions", {}) if versions else {}
    cores = facts.get("cores")
    parts = [
        report.made.replace("T", " ").replace("+00:00", " UTC"),
        f"{facts['cpu']}, {cores} {'core' if cores == 1 else 'cores'}" if facts.get("cpu") and cores else "",
        facts.get("system", ""),
        *(f"{name} {known[name]}" for name in ("superopt", "jax", "jaxlib") if name in known),
    ]
    return "; ".join(part for part in parts if part)


def _times_line(report: Report) -> str:
    noise = report.measured.noise_floor
    floor = "" if noise is None or not math.isfinite(noise) else f"   noise floor {percent(noise)}"
    if report.speedup.basis == "predicted":
        before, after = predicted_ms(report)
        return (
            f"  predicted, not measured: before {ms(before)}   after {ms(after)}   {ratio(report.speedup.ratio)}"
            f" over {report.baseline}"
        )
    over = f" over {report.baseline}" if report.speedup.basis == "measured" else ""
    return (
        f"  before {ms(report.measured.before_ms)}   after {ms(report.measured.after_ms)}   speed-up {report.speedup}"
        f"{over}{medians_line(report)}{floor}"
    )


def predicted_ms(report: Report) -> tuple[float | None, float | None]:
    """Predicted times before and after, where the report has no measured ones."""
    before = report.search.get("predicted_before_ms")
    return before, None if before is None else before / report.speedup.ratio


def medians_line(report: Report) -> str:
    """The ratio of the medians, where it differs from that of paired rounds; else empty."""
    if not (report.measured.before_ms and report.measured.after_ms) or report.speedup.basis != "measured":
        return ""
    medians = report.measured.before_ms / report.measured.after_ms
    apart = abs(medians / report.speedup.ratio - 1.0) if report.speedup.ratio > 0.0 else 0.0
    return f" in paired rounds (of medians {ratio(medians)})" if apart > _APART else ""


def _search_lines(report: Report) -> list[str]:
    """Return the lines on growth, search and model."""
    if not report.growth:
        return []
    grown, searched = report.growth, report.search
    rounds = len(grown.get("rounds", ())) or 1
    sizes = f"{grown['enodes_imported']} -> " if "enodes_imported" in grown else ""
    said_rounds = f"{rounds} round{'s' if rounds > 1 else ''}"
    line = f"  e-graph {sizes}{grown.get('enodes', 0)} e-nodes in {said_rounds} ({grown.get('stop', '')})"
    most = sorted(grown.get("unions", {}).items(), key=lambda item: -item[1])[:3]
    if most:
        line += "; grew most: " + ", ".join(f"{rule} {n}" for rule, n in most)
    search = f"  search  {searched.get('proposals', 0):,} proposals, {searched.get('kernels', 0):,} kernels priced"
    if "batches" in searched:
        search += f" in {searched['batches']} batches"
    if searched.get("price_cache_hits") is not None:
        search += f" ({percent(searched['price_cache_hits'])} of prices known already)"
    if searched.get("chains"):
        search += f", {searched['chains']} chains"
    lines = [line, f"{search}; objective {report.objective}"]
    if report.model:
        lines.append(f"  model   {model_line(report)}")
    if report.compiler_options or report.tuning:
        lines.append(f"  options {options_line(report)}")
    return lines


def options_line(report: Report) -> str:
    """The line on compiler options: those in use and their gain, or those tried in vain."""
    tuning = report.tuning
    if report.compiler_options:
        line = ", ".join(f"{k}={v}" for k, v in report.compiler_options.items())
        if tuning.get("choices"):
            line = f"{' + '.join(tuning['choices'])} ({line})"
        if tuning.get("gain"):
            line += f": {Speedup(**tuning['gain'])} over the default options"
        return line
    tried = ", ".join(
        f"{' + '.join(t['choices'])} {t['ratio']:.2f}x on {name}" for name, ts in tuning["tried"].items() for t in ts
    )
    return f"of the compiler are the default ones; tried: {tried}" if tried else "of the compiler: none was tried"


def _rewrite_lines(report: Report) -> list[str]:
    """Return a table of the rules used, the first of them with equation and place."""
    if not report.rewrites:
        return []
    timed = any(used.measured_gain_ms is not None for used in report.rewrites)
    heading = "   measured" if timed else ""
    lines = [f"  why     rule                          times  predicted{heading}  class  certificate"]
    for i, used in enumerate(report.rewrites[:_MOST]):
        measured = f"  {ms(used.measured_gain_ms):>9s}" if timed else ""
        lines.append(
            f"          {used.rule:28s} {used.count:6d}  {ms(used.predicted_gain_ms):>9s}{measured}"
            f"  {used.exactness:5s}  {used.certificate[:12]}"
        )
        if i >= _EQUATIONS:
            continue
        if used.statement:
            lines.append(f"            {textwrap.shorten(used.statement.splitlines()[0], _LONG, placeholder=' ...')}")
        if used.sites:
            first = next(iter(used.sites))
            others = len(used.sites) - 1
            more = f" and {others} other kind{'s' if others > 1 else ''}" if others else ""
            lines.append(f"            at {used.sites[first]} x {first}{more}")
    if len(report.rewrites) > _MOST:
        lines.append(f"          and {len(report.rewrites) - _MOST} more rules")
    return lines


def native_line(report: Report) -> str:
    """The line on our kernels: how many regions use them, or that none do."""
    figures = report.implementation
    if not figures.get("kernels"):
        return f"none of our own are used; {len(report.native)} kinds of regions were tried" if report.native else ""
    by = ", ".join(sorted({k.backend for k in report.native if k.used and k.backend}))
    made = f", made by {by}" if by else ""
    return f"{figures['kernels']} of {figures['regions']} regions ({figures['form']}) are our own{made}"


def _native_lines(report: Report) -> list[str]:
    line = native_line(report)
    if not line:
        return []
    lines = [f"  kernels {line}"]
    for k in report.native[:_MOST]:
        prices = _prices(k)
        if k.failure or not (k.used or k.gain):
            said_of = f"left to XLA: {k.failure or 'not tried'}{'; ours ' + prices if prices else ''}"
        elif k.gain is None:
            said_of = f"schedule {k.schedule}, {prices or 'not timed alone'}"
        else:
            searched = f", schedule {k.schedule}" if k.schedule.startswith("best") else ""
            said_of = f"{ms(k.xla_ms)} -> {ms(k.own_ms)}, {ratio(k.gain)}{searched}{'' if k.used else ', not used'}"
            said_of += f"; {prices}" if prices else ""
        lines.append(f"          {k.count} x {k.name}: {said_of}")
    if len(report.native) > _MOST:
        lines.append(f"          and {len(report.native) - _MOST} more kinds of regions")
    return lines


def _prices(k: NativeKernel) -> str:
    """Predicted and timed milliseconds of a region as our kernel and by XLA; empty without predictions."""
    if k.predicted_ms is None or k.by_xla_ms is None:
        return ""
    ours, by_xla = (
        f"predicted {ms(told)}" + ("" if timed is None else f", timed {ms(timed)}")
        for told, timed in ((k.predicted_ms, k.timed_ms), (k.by_xla_ms, k.by_xla_timed_ms))
    )
    return f"{ours}; by XLA {by_xla}"


def _not_done_lines(report: Report) -> list[str]:
    """Return the lines on what was slower, refused or nearly matched."""
    lines: list[str] = []
    for other in report.not_chosen[:_FEW]:
        lines.append(f"          {other.rule}: {loss_in_words(other.loss, report)} at {other.site}")
    if len(report.not_chosen) > _FEW:
        lines.append(f"          and {len(report.not_chosen) - _FEW} more rules that apply")
    for f in report.finalists:
        if f.ratio is not None and f.ratio.ratio < report.speedup.ratio and f.measured_ms is not None:
            lines.append(
                f"          built: {f.name}, predicted {ms(f.predicted_ms)}, measured {f.ratio} over {report.baseline}"
            )
    failures: dict[str, list[str]] = {}
    for f in report.finalists:
        if f.failure:
            failures.setdefault(f.failure, []).append(f.name)
    for failure, names in failures.items():
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        lines.append(f"          refused: {', '.join(names[:_FEW])}{more}: {failure}")
    for rule, reason, count in near_misses(report)[:_FEW]:
        lines.append(f"          near miss: {rule} {reason} ({count} times)")
    return ["  not done", *lines] if lines else []


def loss_in_words(loss: float, report: Report) -> str:
    """A predicted loss in words."""
    if abs(loss) < 0.0005:
        return "predicted equal"
    if loss > 0:
        return f"predicted {percent(loss)} slower"
    why = "no candidate with it measured faster" if report.original_returned else "seen only after the search"
    return f"predicted {percent(-loss)} faster, {why}"


def folded(line: str, most: int | None = None) -> list[str]:
    """The line in pieces of at most `WIDTH`, with control characters, which would reach the terminal, replaced.

    With `most`, what does not fit in so many pieces is cut.
    """
    line = clean(line)
    if len(line) <= WIDTH:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    wrapped = textwrap.wrap(
        line.strip(), WIDTH, initial_indent=indent, subsequent_indent=max(indent, _HANGING, key=len),
        max_lines=most, placeholder=" ...",
    )  # fmt: skip
    return wrapped or [line[:WIDTH]]


def clean(line: str) -> str:
    """The line with control characters replaced, which would reach the terminal."""
    return "".join(c if c.isprintable() else "?" for c in line.replace("\n", " "))
