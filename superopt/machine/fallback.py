"""Fallbacks for stages whose failure must not lose the program.

Once there is a program to return, the remaining stages either improve it (search, measuring, kernels) or describe it
(plan, drawing, explanation, report, store).  Such a stage runs with a fallback: when it fails, or is interrupted, a
plainer result replaces its own, and the failure is kept for the report and given as a warning.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from superopt.errors import ProgramError

T = TypeVar("T")
D = TypeVar("D")
_OURS = re.compile(r"^[\w.]*Error: \[SO\d+\] ")  # class and code of an error of ours


class StageWarning(RuntimeWarning):
    """A stage of an optimisation failed; the program was returned without that stage's improvement."""


class Fallback:
    """The stages of one optimisation that failed, with their causes.

    Attributes:
        lost: stage -> one line on its failure, in the order in which they were lost.
        interrupted: whether Ctrl-C ended a stage.
        hurried: whether the time is over, so that what only tells of the program is left out.
    """

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        self.interrupted = self.hurried = False

    def around(
        self, stage: str, work: Callable[[], T], otherwise: D, *, let: tuple[type[BaseException], ...] = ()
    ) -> T | D:
        """Return the result of a stage; `otherwise` where it fails or is interrupted (see `kept`)."""
        with self.kept(stage, let=let):
            return work()
        return otherwise

    @contextlib.contextmanager
    def kept(self, stage: str, *, let: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Go on behind the block of a stage where it fails or is interrupted.

        Errors of the classes `let` pass, and those that say that the program itself cannot be run: there is nothing to
        return then.
        """
        try:
            yield
        except (ProgramError, *let):
            raise
        except KeyboardInterrupt:
            self.interrupted = True
            self.lost[stage] = "was interrupted"
        except Exception as error:  # whatever it is: the program must not be lost with it
            self.lost[stage] = f"failed: {in_one_line(error)}{_place(error)}"
            warned(self.sentence(stage), StageWarning, stacklevel=6)

    def sentence(self, stage: str) -> str:
        """Return a sentence on the failure of a stage, for a note of the report."""
        return f"done without {stage}, which {self.lost[stage]}"

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each stage that was lost."""
        return tuple(map(self.sentence, self.lost))


def warned(text: str, kind: type[Warning], stacklevel: int) -> None:
    """Give a warning that is never raised, even where the user has Python turn warnings into errors."""
    with contextlib.suppress(kind):
        warnings.warn(text, kind, stacklevel=stacklevel)


def in_one_line(error: BaseException, most: int = 200) -> str:
    """Return class and message of an error, without line breaks."""
    return named(type(error).__name__, str(error), most)


def named(name: str, message: str, most: int = 200) -> str:
    """Return the class name and message of an error, without line breaks."""
    text = " ".join(message.split())
    return f"{name}{': ' if text else ''}{text if len(text) <= most else text[:most] + ' ...'}"


def cause_of_run(name: str, message: str, most: int = 200) -> str:
    """Return class name and message of an error of a program that ran, in one line.

    A message that is a traceback is reduced to its last line, and an error of ours to its text.
    """
    lines = [line for text in message.splitlines() if (line := text.strip()) and not line.startswith("hint:")]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        return _OURS.sub("", lines[-1])[:most]
    return _OURS.sub("", named(name, message, most))


def _place(error: BaseException) -> str:
    """Return the file and line that raised: a bug report needs them, and there is no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
