"""`superopt doctor`: versions and hardware of this installation, and a test of each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from costmodel.model.load import load_objective
from superopt.certify.proving import verify
from superopt.commands.console import INTERNAL, JSON, OK, emit, progress
from superopt.ir.graph import Graph, make_input, mk
from superopt.kernels.llvm.cpu import host
from superopt.machine import facts as machine
from superopt.machine.deadline import Stopwatch
from superopt.measure import rates
from superopt.store import Store

CALIBRATION_S = 30.0  # the micro-suite times its 60 kernels at least in that time, on two cores


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure rates again, and fit the cost model to this machine (30 s).")
@JSON
def doctor(calibrate: bool, as_json: bool) -> int:
    """Check this installation: machine, libraries, store, calibration, a tiny program end to end."""
    if calibrate:
        calibrated(progress(as_json))
    summary, text = examine()
    emit(summary) if as_json else click.echo(text)
    return OK if summary["ok"] else INTERNAL


def examine() -> tuple[dict[str, Any], str]:
    """Check the parts one by one; return a summary with `ok`, and lines for a terminal."""
    facts = machine.as_dict()
    checks = [_check(name, run) for name, run in _CHECKS]
    lines = [
        f"cpu      {facts['cpu']}, {facts['cores']} cores usable",
        "versions " + ", ".join(f"{k} {v}" for k, v in machine.versions().items()),
    ]
    lines += [f"{'ok ' if c['ok'] else 'BAD'}  {c['name']:12s} {c['detail']} ({c['seconds']:.2f} s)" for c in checks]
    ok = all(c["ok"] for c in checks)
    lines.append("everything works" if ok else "something is broken, see above")
    return {"ok": ok, "machine": facts, "versions": machine.versions(), "checks": checks}, "\n".join(lines)


def calibrated(say: Callable[[str], None], seconds: float = CALIBRATION_S) -> str:
    """Measure the rates of this machine, fit the cost model to it if its fit is of another one, and return a line.

    Both are kept.  Nothing else calibrates: a search uses the model as it finds it.
    """
    rates.measure_again()
    store = Store()
    try:
        source = load_objective(store, adapt_s=seconds, progress=say).source
    finally:
        store.close()
    say(source)
    return source


def _check(name: str, run: Callable[[], str]) -> dict[str, Any]:
    watch = Stopwatch()
    try:
        detail, ok = run(), True
    except Exception as error:  # a part may raise anything; doctor reports it
        detail, ok = f"{type(error).__name__}: {error}", False
    return {"name": name, "ok": ok, "detail": detail, "seconds": watch.elapsed_s}


def _xla() -> str:
    import jax  # late: the point is to see whether it loads

    device = jax.devices()[0]
    total = float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64))))
    if total != 64.0**3:
        raise RuntimeError(f"a 64x64 product summed to {total}")
    return f"{device.platform}, jitted product correct"


def _prover() -> str:
    right = verify("right: A[*b *m *k]  B[*b *k *n]\n  dot(A, B + B, k)  ==  dot(A, B, k) + dot(A, B, k)")
    wrong = verify("wrong: A[*b *m *k]  B[*b *k *n]\n  dot(A, B + B, k)  ==  dot(A, B, k)")
    if right.status != "PROVED" or wrong.status != "REFUTED":
        raise RuntimeError(f"a true rule is {right.status}, a false one {wrong.status}")
    return "a true rule proved, a false one refuted"


def _store() -> str:
    store = Store()
    try:
        store.put("runs", "doctor", {"ok": True})
        record = store.get("runs", "doctor")
        store.delete("runs", "doctor")
        if record != {"ok": True}:
            raise RuntimeError("a value written was not read back")
        return str(store.summary())
    finally:
        store.close()


def _rates() -> str:
    measured = rates.measured()
    return (
        f"{1e-9 * measured.hertz:.2f} GHz, a vector multiply-add in {1e9 * measured.fma_s:.3f} ns, "
        f"{measured.from_l2:.0f}, {measured.from_l3:.0f}, {measured.from_memory:.0f} bytes a cycle from L2, L3, memory"
    )


def _model() -> str:
    store = Store()
    try:
        objective = load_objective(store)
        return f"{objective.name} {objective.version} ({objective.source})"
    finally:
        store.close()


def _kernels() -> str:
    from superopt.backends.protocol import for_device  # late: as jax

    backend = for_device()
    reason = backend.unavailable()
    if reason:
        return f"not used: {reason}"
    x = make_input("x", (33, 47))
    value = np.linspace(-3.0, 3.0, 33 * 47, dtype=np.float32).reshape(33, 47)
    call, operands, _ = backend.time(Graph((x,), (mk("exp", x),)), [value], {})
    (got,) = call(*operands)
    np.testing.assert_allclose(got, np.exp(value), rtol=1e-6)
    return f"{host().vector_bits}-bit vectors on {host().name}, a {backend.name} kernel called from XLA is correct"


def _end_to_end() -> str:
    from superopt.pipeline.optimizer import optimize  # late: as jax

    rng = np.random.default_rng(0)
    a, b, x = (rng.standard_normal(s).astype(np.float32) for s in ((256, 256), (256, 256), (256, 1)))
    result = optimize(lambda a, b, x: (a @ b) @ x, a, b, x, budget="2s", store=False)
    want = (a @ b) @ x
    if not np.linalg.norm(result(a, b, x) - want) <= 1e-2 * np.linalg.norm(want):  # some GPUs multiply in 10 bits
        raise RuntimeError("(A B) x is wrong")
    return f"(A B) x: {result.speedup}"


_CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("xla", _xla),
    ("prover", _prover),
    ("store", _store),
    ("rates", _rates),
    ("model", _model),
    ("kernels", _kernels),
    ("end to end", _end_to_end),
)
