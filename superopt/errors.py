"""Errors that users meet: each names the request, the actual value and acceptable ones.

Every error has a stable `code` (printed by the command line and kept in reports) and may carry a one-line
`hint`.  The command line maps an error to its exit status through `exit_status`; nothing else decides it.
"""

from __future__ import annotations


class SuperoptError(Exception):
    """Base of all errors that superopt raises on purpose.

    Attributes:
        code: stable identifier, `SO` and three digits by family.
        hint: one line of advice for the user; `usual_hint` of the class where the call site has none.
    """

    code: str = "SO000"
    exit_status: int = 6
    usual_hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.usual_hint

    def __str__(self) -> str:
        text = f"[{self.code}] {_cut(super().__str__())}"
        return printable(f"{text}\n  hint: {self.hint}" if self.hint else text)


_LONGEST = 3000  # characters of a message: names in files have thousands


def _cut(text: str) -> str:
    """A text of bounded length: its begin and its end."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 500]} ... {text[-500:]}"


def printable(text: str) -> str:
    """A text without the control characters that names in files may have: a terminal would obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


class UsageError(SuperoptError):
    """An option or argument of a call that cannot be accepted (a budget of 0, an unknown suite)."""

    code = "SO100"
    exit_status = 1


class MissingExtraError(UsageError):
    """A use that needs a package of an extra which is not installed (`superopt.machine.extras`)."""

    code = "SO110"


class InputError(SuperoptError):
    """A model or example argument that cannot be accepted."""

    code = "SO200"
    exit_status = 2


class FileLimitError(InputError):
    """A file that exceeds a limit of size, depth, work or time (`superopt.files.reading.LIMITS`)."""

    code = "SO240"
    usual_hint = "files of this project's own making stay far below the limit; where does this one come from?"


class ModelFileError(InputError):
    """An ONNX file that cannot be read: truncated, not ONNX, unknown opset, missing external data."""

    code = "SO210"
    usual_hint = "give a complete ONNX file, as written by onnx.save"


class UnsupportedOpsetError(ModelFileError):
    """An ONNX file of an opset outside the supported range."""

    code = "SO211"


class ExternalDataError(ModelFileError):
    """External tensor data that is missing, too short, or outside the model's folder."""

    code = "SO212"
    usual_hint = "keep the external data files beside the model"


class ArgumentError(InputError):
    """Example arguments that do not fit the function or the model."""

    code = "SO220"
    usual_hint = "pass arrays of the shapes and dtypes that the function takes"


class ProgramError(SuperoptError):
    """A program that cannot be built or run as it is: nothing could be returned in its place."""

    code = "SO250"
    exit_status = 1
    usual_hint = "run it on its own first: a function under jax.jit, a model in another runtime"


class UnsupportedKernel(InputError):
    """A loop program that a code generator cannot turn into a kernel, with the reason; it is left to XLA."""

    code = "SO230"


class PackageError(InputError):
    """A program of which no package can be made, with the ops that are not ours; or a compiler that fails on one."""

    code = "SO260"


class ShapeError(SuperoptError):
    """Operand types that an op does not accept."""

    code = "SO300"
    exit_status = 2


class RuleError(SuperoptError):
    """A rule text that cannot be parsed or built; the message names rule, file and line."""

    code = "SO400"
    exit_status = 1


class VerificationError(SuperoptError):
    """A rule that must be proved and is not proved."""

    code = "SO410"
    exit_status = 3


DEFECT = "DEFECT OF THE PROVER: "


class ProverDefectError(VerificationError):
    """A proved statement that concrete values refute: the prover, or the meaning given to a value, is wrong."""

    code = "SO420"
    usual_hint = "the prover or the interpreter is wrong: please report this; believe nothing else that it proved"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{DEFECT}{message}", hint=hint)


class KernelDefectError(VerificationError):
    """Machine code of a kernel that is shown to be wrong: the code generator is."""

    code = "SO421"
    usual_hint = "please report this; kernels=False does without all of them"

    def __init__(self, message: str) -> None:
        super().__init__(f"DEFECT OF A KERNEL: {message}")


def one_line(error: BaseException, path: str) -> str:
    """An error of the user's code in one line, with the last line of this file on its traceback."""
    import traceback  # late: only where something failed

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return _in_one_line(error, f" in line {lines[-1]}" if lines else "")


def one_line_with_place(error: BaseException, packages: tuple[str, ...]) -> str:
    """An error of the user's code in one line, with the last line on its traceback outside of these folders."""
    import os  # late: as above
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*packages, "<frozen")) and f.filename != "<string>"]
    if not own:
        return _in_one_line(error, "")
    code = f" (`{own[-1].line}`)" if own[-1].line else ""
    return _in_one_line(error, f" in {os.path.basename(own[-1].filename)}:{own[-1].lineno}{code}")


def _in_one_line(error: BaseException, where: str) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}{where}{f': {first}' if first else ''}"
