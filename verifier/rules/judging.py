"""Jobs of the prover's process: rules in, verdicts out (see `verifier.rules.process`)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from rewrites.language.parse import parse
from rewrites.language.show import rule_key
from superopt.errors import ProverDefectError, VerificationError
from superopt.workshop.job import Event, resolve
from verifier.equal.solver import z3
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.verdict import encode


def judge(request: Mapping[str, Any]) -> Iterator[Event]:
    """Judge a direction of a rule, by the prover alone or also by evaluation."""
    try:
        rule = parse(request["rule"], where="<worker>")
        if rule_key(rule) != request["key"]:
            raise VerificationError(f"{rule.name} reads differently from its own text")
        how = prove if request["alone"] else check
        yield {"event": "verdict", "verdict": encode(how(rule, request["direction"]))}
    except VerificationError as error:
        defect = isinstance(error, ProverDefectError)
        yield {"event": "defect" if defect else "error", "message": str(error.args[0]), "hint": error.hint}
    except RecursionError:
        yield {"event": "deep"}
    except ImportError as error:
        yield {"event": "absent", "message": str(error)}
    except Exception:  # a fault of the prover, which the parent raises with its cause
        yield {"event": "fault", "traceback": traceback.format_exc()}


def call(request: Mapping[str, Any]) -> Iterator[Event]:
    """Apply `module:function` to JSON values and send the JSON result."""
    try:
        yield {"event": "result", "result": resolve(request["target"], request.get("path"))(*request["arguments"])}
    except RecursionError:
        yield {"event": "deep"}
    except Exception:  # as above
        yield {"event": "fault", "traceback": traceback.format_exc()}


def load() -> None:
    """Load the solver."""
    z3.get_version_string()
