"""Compiles the schedules of the GPU benchmark with Triton, for a GPU that need not be present.

Every schedule of every case, at the sizes of the benchmark, is lowered to Triton code, which needs no GPU.  It is
compiled by the `triton` package (`pip install triton`; it is no dependency of ours) for a compute capability.  A row
has the number of schedules that compile.  For the first it has registers per thread, bytes of stack (spills), shared
memory, and whether products are matrix instructions of warp groups (`wgmma`), of warps (`mma`), or none.

    python -m superopt.lab.bench.pallas.ptx [--case TEXT ...] [--capability 90] [--json FILE]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jaxlib.mlir import ir
from jaxlib.triton import dialect

from superopt.errors import UsageError
from superopt.kernels.pallas import space
from superopt.kernels.pallas.lower import lower
from superopt.kernels.schedule.trace import apply
from superopt.lab.bench import table, wanted
from superopt.lab.bench.pallas.suite import loop_program
from superopt.lab.bench.programs.pallas_cases import CASES, PallasCase

_TARGET = "__gpu$xla.gpu.triton"
_CARD = AbstractDevice(device_kind="NVIDIA H100", num_cores=132, platform="gpu")
_COLUMNS = (
    ("case", "operator", ""),
    ("schedules", "schedules", "d"),
    ("compiled", "compile", "d"),
    ("spilling", "spill", "d"),
    ("registers", "registers", "d"),
    ("stack", "stack", "d"),
    ("shared", "shared", "d"),
    ("matrix", "matrix", ""),
)


def modules(case: PallasCase) -> list[tuple[Any, list[tuple[bytes, int, int]]]]:
    """Triton modules of every schedule of a case, as MLIR bytecode, with warps and pipeline stages."""
    program, _, _ = loop_program(case, [jax.ShapeDtypeStruct(s, jax.numpy.dtype(case.dtype)) for s in case.shapes])
    kinds = [jax.ShapeDtypeStruct(b.shape, jax.numpy.dtype(b.dtype)) for b in program.buffers if b.scope == "input"]
    listings: list[tuple[Any, list[tuple[bytes, int, int]]]] = []
    for trace in space.candidates(program, "out0", case.precision):
        module = lowered(lower(apply(program, trace), interpret=False), *kinds).compiler_ir()
        kernels: list[tuple[bytes, int, int]] = []
        assert module is not None
        for op in _calls(module.operation):
            settings = op.attributes["mhlo.backend_config"]
            code = settings["ir"].value_bytes
            kernels.append((code, settings["num_warps"].value, settings["num_stages"].value))
        listings.append((trace, kernels))
    return listings


def lowered(fn: Callable[..., Any], *kinds: Any) -> jax.stages.Lowered:
    """A function of arrays of these types, lowered for a GPU that need not be present."""
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=_CARD)):
        return jax.jit(fn).trace(*kinds).lower(lowering_platforms=("cuda",))


def _calls(operation: Any) -> list[Any]:
    """The calls of Triton kernels in a module."""
    calls: list[Any] = []
    for region in operation.regions:
        for block in region:
            for op in block:
                inner = op.operation
                if inner.name == "stablehlo.custom_call" and inner.attributes["call_target_name"].value == _TARGET:
                    calls.append(inner)
                calls += _calls(inner)
    return calls


def triton_text(code: bytes) -> str:
    """A Triton module as text, which is more portable between versions of Triton than bytecode."""
    with ir.Context() as context, ir.Location.unknown():
        dialect.register_dialect(context)
        context.load_all_available_dialects()
        return str(ir.Module.parse(code))


def compiled(code: bytes, warps: int, stages: int, capability: int) -> dict[str, Any]:
    """Resources of a kernel; `failure` where it does not compile."""
    import triton  # pyright: ignore[reportMissingImports] (optional: see the module)
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]

    target = GPUTarget("cuda", capability, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ttir")
        path.write_text(triton_text(code), encoding="utf-8")
        try:
            kernel = triton.compile(str(path), target=target, options={"num_warps": warps, "num_stages": stages})
        except (RuntimeError, triton.runtime.errors.OutOfResources) as reason:
            return {"failure": str(reason)[:300]}
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True)
    numbers = {k: int(v) for k, v in re.findall(r"(REG|STACK):(\d+)", usage.stdout)}
    ptx = kernel.asm["ptx"]
    matrix = "wgmma" if "wgmma.mma_async" in ptx else "mma" if "mma.sync" in ptx else "none"
    return {"registers": numbers["REG"], "stack": numbers["STACK"], "shared": kernel.metadata.shared, "matrix": matrix}


def row(case: PallasCase, capability: int) -> dict[str, Any]:
    """All schedules of a case."""
    results: list[dict[str, Any]] = []
    for trace, kernels in modules(case):
        parts = [compiled(*kernel, capability) for kernel in kernels]
        broken = next((p for p in parts if "failure" in p), None)
        worst = broken or max(parts, key=lambda p: (p["stack"], p["registers"]))
        results.append({"trace": trace, **worst})
    good = [r for r in results if "failure" not in r]
    return {
        "case": case.name,
        "schedules": len(results),
        "compiled": len(good),
        "spilling": sum(r["stack"] > 0 for r in good),
        **{k: results[0].get(k) for k in ("registers", "stack", "shared", "matrix")},
        "results": results,
    }


def main(arguments: Sequence[str]) -> int:
    """The command line; returns its exit status."""
    parser = ArgumentParser(prog="python -m superopt.lab.bench.pallas.ptx")
    parser.add_argument("--case", dest="cases", action="append", default=[])
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--json", dest="path", type=Path)
    given = parser.parse_args(arguments)

    if find_spec("triton") is None:
        raise UsageError("compiling Triton code needs the triton package", hint="pip install triton")

    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted(case.name, given.cases):
            rows.append(row(case, given.capability))
            print(f"{case.name}: {rows[-1]['compiled']} of {rows[-1]['schedules']} compile", flush=True)
    if given.path:
        given.path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows, _COLUMNS))
    return int(any(r["compiled"] < r["schedules"] for r in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
