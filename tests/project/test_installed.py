"""What users meet after `pip install`: types for their checker, extras, folders of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import superopt

ROOT = Path(superopt.__file__).parents[1]


def python(code: str, folder: Path, *options: str, **added: str) -> subprocess.CompletedProcess[str]:
    """A program of the user's, in a folder of theirs."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), **added}
    command = [sys.executable, *options, "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


USER = """
import jax, jax.numpy as jnp, superopt

def f(x: jax.Array, n: int = 2) -> jax.Array:
    return x * n

fast = superopt.optimize(f, jnp.ones(3))
reveal_type(fast(jnp.ones(3)))
reveal_type(superopt.optimize("m.onnx"))

@superopt.jit
def g(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {"a": x + y}

@superopt.jit(budget="10s", static_argnames="n")
def h(x: jax.Array, n: int) -> jax.Array:
    return x * n

class A:
    @superopt.jit(static_argnums=0)
    def m(self, x: jax.Array) -> float:
        return 1.0

reveal_type(g(jnp.ones(3), jnp.ones(3)))
reveal_type(A().m(jnp.ones(3)))
reveal_type(superopt.verify(f, f, "m").status)
fast("no")
g(1.5)
h(jnp.ones(3), "3")
superopt.jit(f, budgte="10s")
superopt.optimise(f)
"""


def test_types_as_a_users_checker_sees_them(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}')
    checker = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "user.py"]
    said = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout
    assert re.findall(r'Type of ".*?" is "(.*)"', said) == [
        "Array", "Optimized[..., tuple[Array, ...]]", "dict[str, Array]", "float", "str",
    ], said  # fmt: skip
    first = USER.splitlines().index('fast("no")') + 1
    assert [int(line) for line in re.findall(r"user\.py:(\d+):\d+ - error", said)] == list(range(first, first + 5)), (
        said
    )


OPTIMISE = """
    import numpy as np, superopt
    if __name__ == "__main__":
        fast = superopt.optimize(lambda w, x: x @ (w @ w), np.ones((8, 8), np.float32), np.ones((2, 8), np.float32),
                                 frozen=0, budget="1s", rules=())
        assert fast.report.measured.before_ms is not None, fast.report
        print(fast(np.ones((8, 8), np.float32), np.ones((2, 8), np.float32)).sum())
"""


ABSENT = """
    import sys
    for name in ("onnx", "cvc5", "optax"):
        sys.modules[name] = None
"""


def test_folders_of_the_user_with_our_names(tmp_path: Path) -> None:
    """Beside a program and in the working directory, seen first by Python: workers and later imports take ours.

    The program needs none of the extras.
    """
    for name in ("verifier", "costmodel", "rewrites", "superopt"):
        (tmp_path / "there" / name).mkdir(parents=True)
        (tmp_path / "there" / name / "__init__.py").write_text("raise RuntimeError('taken for ours')")
    shutil.rmtree(tmp_path / "there" / "superopt")  # beside the program it would be what the program asks for
    done = python(textwrap.dedent(ABSENT) + textwrap.dedent(OPTIMISE), tmp_path / "there")
    assert (done.returncode, done.stdout.strip()) == (0, "1024.0"), done.stderr
    command = [Path(sys.executable).with_name("superopt"), "verify", "--library", "--rule", "dot-merge"]
    done = subprocess.run(command, cwd=tmp_path / "there", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_package_of_the_user_that_is_in_use_is_named(tmp_path: Path) -> None:
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "__init__.py").write_text("")
    done = python("import verifier\nimport superopt", tmp_path)
    assert done.returncode == 1
    assert re.search(r"ImportError: \S+verifier/__init__.py has the name", done.stderr.splitlines()[-1])
