"""superopt: a tensor-graph superoptimizer.

`optimize` takes a JAX function or an ONNX model, explores equivalent programs with proved rewrites, chooses by a
calibrated performance model, measures the finalists against the original and returns the winner with a report.
Public names are loaded on first use (PEP 562), so importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from superopt.machine.import_guard import claim_packages
from superopt.machine.interrupts import heard

if TYPE_CHECKING:
    from superopt.certify.proving import rule, statement, verify
    from superopt.errors import SuperoptError
    from superopt.machine.memory import keep_memory
    from superopt.machine.speedup import Speedup
    from superopt.pipeline.jitted import jit
    from superopt.pipeline.optimizer import optimize
    from superopt.report.data import Report
    from superopt.returned.loaded import load
    from superopt.returned.optimized import Optimized

__version__ = "0.1.0"

_HOME = {
    "SuperoptError": "superopt.errors",
    "optimize": "superopt.pipeline.optimizer",
    "jit": "superopt.pipeline.jitted",
    "Optimized": "superopt.returned.optimized",
    "keep_memory": "superopt.machine.memory",
    "load": "superopt.returned.loaded",
    "Report": "superopt.report.data",
    "Speedup": "superopt.machine.speedup",
    "verify": "superopt.certify.proving",
    "rule": "superopt.certify.proving",
    "statement": "superopt.certify.proving",
}

claim_packages()

__all__ = [
    "Optimized",
    "Report",
    "Speedup",
    "SuperoptError",
    "__version__",
    "jit",
    "keep_memory",
    "load",
    "optimize",
    "rule",
    "statement",
    "verify",
]


if not TYPE_CHECKING:  # which sees the names above alone: a typo is an error

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'superopt' has no attribute {name!r}")
        with heard():  # JAX is loaded, whose callbacks of the garbage collector swallow a Ctrl-C
            value = getattr(import_module(home), name)
        globals()[name] = value  # submodules share names with functions (superopt.optimize): the function wins
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
