"""The prover's process: reads rules, writes verdicts (see `verifier.rules.process` for the parent).

Start it as `python -m verifier.rules.worker EVENT_FD MEMORY_BYTES`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from rewrites.language.parse import parse
from rewrites.language.show import rule_key
from superopt.errors import ProverDefectError, VerificationError
from superopt.measure.session import Event, resolve
from superopt.measure.worker import serve
from verifier.equal.solver import z3
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.verdict import encode


def _check(request: Mapping[str, Any]) -> Iterator[Event]:
    try:
        rule = parse(request["rule"], where="<worker>")
        if rule_key(rule) != request["key"]:
            raise VerificationError(f"{rule.name} reads differently from its own text")
        judge = prove if request["request"] == "prove" else check
        yield {"event": "verdict", "verdict": encode(judge(rule, request["direction"]))}
    except VerificationError as error:
        defect = isinstance(error, ProverDefectError)
        yield {"event": "defect" if defect else "error", "message": str(error.args[0]), "hint": error.hint}
    except RecursionError:
        yield {"event": "deep"}
    except ImportError as error:
        yield {"event": "absent", "message": str(error)}
    except Exception:  # a fault of the prover, which the parent raises with its cause
        yield {"event": "fault", "traceback": traceback.format_exc()}


def _call(request: Mapping[str, Any]) -> Iterator[Event]:
    """Serve a call: apply `module:function` to JSON values and send the JSON result."""
    try:
        yield {"event": "result", "result": resolve(request["target"], request.get("path"))(*request["arguments"])}
    except RecursionError:
        yield {"event": "deep"}
    except Exception:  # as above
        yield {"event": "fault", "traceback": traceback.format_exc()}


def main(event_fd: int, memory_bytes: int) -> None:
    """Serve requests to prove and to compute until the input closes."""
    z3.get_version_string()  # loaded before the first rule comes
    serve(event_fd, memory_bytes, {"check": _check, "prove": _check, "call": _call})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
