"""Files with the native program: what this store made and validated is used as it is, all else is made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.arrays.placing import release
from superopt.backends import made, stored
from superopt.backends.stored import StoredExecutable
from superopt.errors import InputError, SuperoptError, UnsupportedKernel, VerificationError
from superopt.files.reading import Archive
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.jit import CompileError
from superopt.returned.facts import FORMAT, OLDEST
from tests.support.saved_files import edited, without_native

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")

RNG = np.random.default_rng(0)
W, V, X = [RNG.standard_normal(shape).astype(np.float32) for shape in ((64, 96), (96, 32), (24, 64))]


def network(w: Any, v: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ w) @ v, axis=-1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fast = superopt.optimize(network, W, V, X, frozen=(0, 1), search=False, store=False)
    folder = tmp_path_factory.mktemp("native")
    np.save(folder / "want.npy", np.asarray(fast(W, V, X)))
    np.save(folder / "x.npy", X)
    return fast.save(folder / "n.superopt")


def is_native(loaded: Any) -> bool:
    return isinstance(loaded._executable, StoredExecutable)


def agrees(loaded: Any) -> bool:
    want = network(*map(jnp.asarray, (W, V, X)))
    return all(np.allclose(loaded(W, V, X), want, rtol=1e-4, atol=1e-6) for _ in range(3))


FRESH = """
import sys
import jax, numpy as np
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
import superopt
from superopt.kernels.llvm import jit
jit._build = None
folder = sys.argv[1]
loaded = superopt.load(f"{folder}/n.superopt")
skipped = [jax.ShapeDtypeStruct(s, "float32") for s in ((64, 96), (96, 32))]
first = np.asarray(loaded(*skipped, np.load(f"{folder}/x.npy")))
assert not [event for event in compiled if "compile" in event or "trace" in event], compiled
assert not {"superopt.returned.rebuilt", "superopt.backends.xla", "z3"} & set(sys.modules)
want = np.load(f"{folder}/want.npy")
assert np.array_equal(first, want)
assert np.array_equal(np.asarray(loaded(*skipped, np.load(f"{folder}/x.npy"))), want)
assert compiled, "the second call is a jitted one"
"""


def test_a_fresh_process_makes_nothing_of_a_file_of_this_store(saved: Path) -> None:
    """No code is generated or compiled, by LLVM or XLA, nothing traced, and the results have every bit."""
    command = [sys.executable, "-c", FRESH, str(saved.parent)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr


def test_the_native_program_does_all_that_the_rebuilt_one_does(saved: Path) -> None:
    one, other = superopt.load(saved), superopt.load(without_native(saved))
    assert is_native(one)
    assert not is_native(other)
    assert agrees(one)
    assert one.code == other.code
    assert one.kernels == other.kernels != ()
    assert (one.refused, one.compiler_options, one.names) == (other.refused, other.compiler_options, other.names)
    assert str(one.report) == str(other.report)
    with pytest.raises(SuperoptError, match="the program was made for"):
        superopt.load(saved)(W, V, X[:3])


@pytest.mark.parametrize(
    "of", [jax.jit, jax.vmap, jax.grad, lambda f: jax.jit(jax.vmap(f)), lambda f: jax.jit(jax.grad(f))]
)
def test_transformations_of_a_native_program(saved: Path, of: Callable[..., Any]) -> None:
    """They come first, before any call: what is made inside of a trace is used outside of it as well."""
    x = np.stack([X, X + 1])
    results: list[Any] = []
    for path in (saved, without_native(saved)):
        loaded = superopt.load(path)
        results.append(of(lambda x, loaded=loaded: (loaded(W, V, x[0] if x.ndim == 3 else x) * X[:, :32]).sum())(x))
        assert agrees(loaded)
        np.testing.assert_allclose(jax.vmap(lambda x, loaded=loaded: loaded(W, V, x))(x)[0], loaded(W, V, X), atol=1e-5)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)


def test_weights_are_those_of_the_file_in_memory(saved: Path) -> None:
    """Mapped, so that processes have them once, also as arrays of JAX."""
    executable = superopt.load(saved)._executable
    assert isinstance(executable, StoredExecutable)
    for x, held in zip(executable.prepared, executable.program.weights, strict=False):
        assert x.unsafe_buffer_pointer() == held.ctypes.data
        before = np.asarray(x).copy()
        release(held)  # pages of other memory would be zero from here on
        np.testing.assert_array_equal(held, before)
        assert not held.flags.writeable


@pytest.mark.parametrize("member", ["native/weights/0", "native/objects", "native/program.json", "native/signature"])
def test_a_damaged_native_program_is_refused(saved: Path, tmp_path: Path, member: str) -> None:
    data = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive, open(saved, "rb") as handle:
        row = archive.getinfo(member)
        begin = Archive(handle, lambda _: True)._begin(row)
    data[begin + row.compress_size // 2] ^= 1
    path = tmp_path / "damaged.superopt"
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a saved program"):
        superopt.load(path)


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _moved(data: bytes) -> bytes:
    plan = json.loads(data)
    plan["plan"]["arena_bytes"] = 64
    return json.dumps(plan).encode()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"native": _flipped}, id="every part"),
        pytest.param({"native": lambda data: _moved(data) if data[:1] == b"{" else data}, id="plan"),
        pytest.param({"hot": lambda data: data + b"\n"}, id="a part beside it"),
        pytest.param({"native": lambda data: b"[" if data[:1] == b"{" else data}, id="no data"),
    ],
)
def test_a_native_program_that_a_stranger_wrote_is_never_used(
    saved: Path, tmp_path: Path, changes: dict[str, Callable[[bytes], bytes]]
) -> None:
    """Digests are right, and the signature is of other ones."""
    loaded = superopt.load(edited(saved, tmp_path / "s.superopt", **changes))
    assert not is_native(loaded)
    assert agrees(loaded)


def test_the_native_program_of_another_store_is_made_anew(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = superopt.load(saved)
    assert not is_native(loaded)
    assert agrees(loaded)


def test_a_native_program_for_another_processor_or_by_other_sources_is_made_anew(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = made.surroundings()
    for number in range(len(around)):
        other = [*around[:number], "another", *around[number + 1 :]]
        monkeypatch.setattr(made, "surroundings", lambda other=other: other)
        assert not is_native(superopt.load(saved))
    assert agrees(superopt.load(saved))


@pytest.mark.parametrize("error", [UnsupportedKernel, VerificationError, CompileError])
def test_a_native_program_that_cannot_run_here_is_made_anew(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: type[SuperoptError]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error("no memory for an arena")

    monkeypatch.setattr(stored, "NativeProgram", fails)
    loaded = superopt.load(saved)
    assert not is_native(loaded)
    assert agrees(loaded)


def test_files_of_before_are_read_or_refused_with_the_command(saved: Path, tmp_path: Path) -> None:
    def of_format(number: int) -> Path:
        def change(data: bytes) -> bytes:
            return json.dumps(json.loads(data) | {"format": number}).encode()

        return edited(saved, tmp_path / f"{number}.superopt", meta=change, native=None)

    assert agrees(superopt.load(of_format(OLDEST)))
    for number in (OLDEST - 1, FORMAT + 1):
        with pytest.raises(InputError, match=f"format {number}") as raised:
            superopt.load(of_format(number))
        assert "superopt optimize" in raised.value.hint


def test_programs_that_leave_something_to_xla_have_none(tmp_path: Path) -> None:
    def solved(a: Any, x: Any) -> Any:
        return jnp.tanh(jnp.linalg.cholesky(a @ a.T + 9 * jnp.eye(24)) @ x)

    a = X[:, :24]
    path = superopt.optimize(solved, a, X, search=False, store=False).save(tmp_path / "c.superopt")
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.startswith("native/")]
    np.testing.assert_allclose(superopt.load(path)(a, X), solved(a, X), rtol=1e-4, atol=1e-5)
