"""A program that cannot be built or run as it is ends in one typed error: nothing is returned in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from jax import numpy as jnp
from jax.experimental import io_callback

import superopt
from superopt.commands.main import cli
from superopt.contest.checks import OriginalRuns, check
from superopt.errors import ProgramError
from superopt.frontends.jax.jaxpr import import_function
from superopt.make.plain import own_form

X = np.ones((8, 8), np.float32)
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"search": False, "kernels": False},
    "predicted": {"deterministic": True, "budget": "5steps"},
    "measured": {"budget": "5steps", "kernels": False},
}
FILE = """
import jax, numpy as np

def unknown():
    call = jax.ffi.ffi_call("superopt_test_nobody", jax.ShapeDtypeStruct((4,), np.float32))
    return lambda x: call(x) + 1, (np.ones(4, np.float32),)
"""


def failing(x: Any) -> Any:
    def fail(_: Any) -> Any:
        raise ValueError("no value today")

    return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 1.0


def unknown(x: Any) -> Any:
    return jnp.tanh(jax.ffi.ffi_call("superopt_test_nobody", jax.ShapeDtypeStruct(x.shape, x.dtype))(x))


def unknown_with_effects(x: Any) -> Any:
    y = unknown(x)
    io_callback(lambda v: None, None, y, ordered=True)
    return y


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("fn", "cause"), [(failing, "no value today"), (unknown, "superopt_test_nobody")])
def test_a_program_that_cannot_be_run_is_refused(fn: Any, cause: str, way: str) -> None:
    with pytest.raises(ProgramError, match=cause) as refused:
        superopt.optimize(fn, X, store=False, rules=(), **WAYS[way])
    assert refused.value.hint
    assert len(str(refused.value).splitlines()) == 2


def test_the_check_says_that_it_is_the_original() -> None:
    imported = import_function(failing, (X,))
    program = own_form(imported.graph)
    with pytest.raises(ProgramError, match="no value today"):
        check(OriginalRuns.of(imported), program)


def test_a_program_with_effects_is_compiled_and_not_run() -> None:
    with pytest.raises(ProgramError, match="superopt_test_nobody"):
        superopt.optimize(unknown_with_effects, X, store=False, **WAYS["alone"])
    seen: list[Any] = []

    def told(x: Any) -> Any:
        io_callback(seen.append, None, x.sum(), ordered=True)
        return x + 1

    superopt.optimize(told, X, store=False, **WAYS["alone"])
    assert not seen


def test_jit_raises_what_the_function_itself_does() -> None:
    fast = superopt.jit(failing, store=False, rules=(), **WAYS["predicted"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="no value today"):
        jax.block_until_ready(fast(X))


def test_the_command_line_says_so_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    said = CliRunner().invoke(cli, ["optimize", f"{path}:unknown", "--no-search", "--no-kernels", "--no-store"])
    assert said.exit_code == 1, said.output
    (line,) = [text for text in said.stderr.splitlines() if "SO250" in text]
    assert "superopt_test_nobody" in line
    assert "Traceback" not in said.output
