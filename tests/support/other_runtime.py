"""A package that stands in for ONNX Runtime: it has its interface, and does with a model what its text says."""

from __future__ import annotations

from pathlib import Path

import pytest

_TEXT = """
import os, time
__version__ = "9.9.9"
class SessionOptions: pass
class _Input:
    name, type = "x", "tensor(float)"
class InferenceSession:
    def __init__(self, path, options, providers):
        assert options.intra_op_num_threads >= 1 and providers == ["CPUExecutionProvider"]
        self.does = DOES
        if self.does == "refuses":
            raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED\\n" + 1000 * "long ")
    def get_inputs(self): return [_Input()]
    def run(self, names, feeds):
        assert names is None and list(feeds) == ["x"] and str(feeds["x"].dtype) == "float32"
        if self.does == "dies": os._exit(3)
        time.sleep(60.0 if self.does == "hangs" else 0.002)
"""


def stand_in(folder: Path, does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process and those that it starts find a runtime that `runs`, `refuses` a file, `dies` or `hangs`."""
    package = folder / f"{does} runtime" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_TEXT.replace("DOES", repr(does)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
