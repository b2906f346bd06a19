"""superopt: a tensor-graph superoptimizer.

`optimize` takes a JAX function or an ONNX model, explores equivalent programs with proved rewrites, chooses by a
calibrated performance model, measures the finalists against the original and returns the winner with a report.
Public names are loaded on first use (PEP 562), so importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from superopt.siblings import claim_packages

if TYPE_CHECKING:
    from superopt.errors import SuperoptError
    from superopt.jitted import jit
    from superopt.memory import keep_memory
    from superopt.optimized import Optimized, load
    from superopt.optimizer import optimize
    from superopt.proving import rule, statement, verify
    from superopt.result import Report, Speedup

__version__ = "0.1.0"

_HOME = {
    "SuperoptError": "superopt.errors",
    "optimize": "superopt.optimizer",
    "jit": "superopt.jitted",
    "Optimized": "superopt.optimized",
    "keep_memory": "superopt.memory",
    "load": "superopt.optimized",
    "Report": "superopt.result",
    "Speedup": "superopt.result",
    "verify": "superopt.proving",
    "rule": "superopt.proving",
    "statement": "superopt.proving",
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
        value = getattr(import_module(home), name)
        globals()[name] = value  # submodules share names with functions (superopt.optimize): the function wins
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
