"""The sentences of verdicts and notes: reasons of the ledger in words, here and nowhere else."""

from __future__ import annotations

from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import ChoiceReason, Rejected, Why

ANSWERED = "answered from the store: optimised earlier on this machine with these versions"
IN_DOUBT = "the machine was too noisy to tell in the time how fast the programs are"
UNPRICED = "the search did not price kernels of our own: the weights of their model cannot be used"
HURRIED = "builds are too slow for the budget: one round was searched, and the contest is of what the check takes"

_ORIGINAL = {
    ChoiceReason.KEPT_WHOLE: "it is kept whole, since {cause}",
    ChoiceReason.NOTHING_TO_DO: "nothing can be done ahead, and no region can be a kernel",
    ChoiceReason.NO_TIME: "the time does not suffice for a search",
    ChoiceReason.NOTHING_CHEAPER: "the model finds nothing cheaper",
    ChoiceReason.NOTHING_TO_TRY: "the search found nothing cheaper",
    ChoiceReason.NONE_FASTER: "no candidate measured faster",
    ChoiceReason.PLAIN_SLOWER: "the plain program takes {after_ms:.3g} ms where it takes {before_ms:.3g}",
    ChoiceReason.ORIGINAL_LOST: "{cause}",
    ChoiceReason.ORIGINAL_UNTIMED: "it could not be timed ({cause})",
    ChoiceReason.CHECK_LATE: "the check of another program had not ended when the time was over",
    ChoiceReason.WRONG_RESULTS: "the program was refused: {cause}",
    ChoiceReason.STAGE_LOST: "{stage} {cause}",
    ChoiceReason.MEASURING_INTERRUPTED: "measuring was interrupted",
}
_OTHERS = {
    ChoiceReason.FASTER: "faster program returned{ours}",
    ChoiceReason.NOT_SLOWER: (
        "{kernels} kernels of our own returned; not slower than the original, nor faster beyond the noise"
    ),
    ChoiceReason.FASTER_WITH_OPTIONS: "original returned with compiler options",
    ChoiceReason.PREDICTED: (
        "program chosen by the performance model{ours}; times are predictions, nothing was measured"
    ),
    ChoiceReason.PLAIN_UNTIMED: "plain program returned, {kernels} of its kernels are our own; nothing was timed",
    ChoiceReason.PLAIN_UNSEARCHED: "plain program returned, {kernels} of its kernels are our own; nothing was searched",
    ChoiceReason.PLAIN_INTERRUPTED: "plain program returned; the search was interrupted and nothing was timed",
    ChoiceReason.PLAIN_CONTEST_LOST: "plain program returned; the contest failed and nothing was timed",
    ChoiceReason.PLAIN_CHOICE_LOST: "plain program returned; the choice failed, nothing was timed",
    ChoiceReason.CODE_WRONG: "program returned untimed, without {count} of its kernels: their machine code is wrong",
}


def verdict(candidate: Candidate, why: Why) -> str:
    """Return the sentence that says why a candidate is returned."""
    if why.reason in _ORIGINAL:
        return f"the original was returned: {_filled(_ORIGINAL[why.reason], candidate, why)}"
    return _filled(_OTHERS[why.reason], candidate, why)


def refusal(refused: Rejected) -> str:
    """Return the note on a candidate that is not returned."""
    return f"{refused.candidate.form}: {verdict(refused.candidate, refused.why)}"


def no_kernels(why: str) -> str:
    """Return the note on a search without kernels of our own."""
    return f"no kernels of our own: {why}"


def unproved(count: int) -> str:
    """Return the note on rules that were left out."""
    return f"{count} rules were not proved in the time, and not used"


def options_lost(candidate: Candidate) -> str:
    """Return the note on compiler options that paid in the rounds that chose, and not in the last ones."""
    return f"{candidate.name} did not hold on fresh rounds"


def _filled(sentence: str, candidate: Candidate, why: Why) -> str:
    count = len(candidate.kernels)
    return sentence.format(
        cause=why.cause, stage=why.stage, after_ms=why.after_ms, before_ms=why.before_ms, count=why.count,
        kernels=count, ours=f", {count} of its kernels are our own" if count else "",
    )  # fmt: skip
