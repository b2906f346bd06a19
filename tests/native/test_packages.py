"""Packages: the same bits without JAX, LLVM or superopt; what is refused; threads, processes and forks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from superopt.commands.console import OK, UNVERIFIED
from superopt.commands.verify import verify
from superopt.errors import InputError, MissingExtraError, PackageError, UsageError
from superopt.ir.types import TensorType
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Phase, build
from superopt.native.lowered import Lowered
from superopt.native.package import link, write
from superopt.native.package.certificates import check_package
from superopt.native.package.elf import renamed
from superopt.native.package.write import PackageLabels, write_package
from superopt.native.plan import ARGUMENT, OUTPUT, NativePlan, PlanSlot, PlanStep
from superopt.native.running import NativeProgram
from tests.support.native_programs import CASES, case

pytestmark = [
    pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512"),
    pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]
ALONE = (
    "import sys\n"
    "for name in ('jax', 'jaxlib', 'llvmlite', 'superopt', 'ml_dtypes'): sys.modules[name] = None\n"
    "import numpy as np\n"
)
"""First lines of a process that has NumPy alone."""

CODE = {"validated": 2, "unknown": {"odd": 1}, "by": "1"}
RECORD = {"rules": {"a-rule": "its proof"}, "code": CODE, "exactness": "real"}


def name_of(name: str) -> str:
    return name.replace(" ", "_")


def packaged(name: str, folder: Path) -> Path:
    """The package of a case."""
    _, program, arrays = case(name)
    outputs = tuple(f"y{i}" for i in range(len(program(*arrays))))
    labels = PackageLabels(name_of(name), name, tuple(f"x{i}" for i in range(len(arrays))), outputs, RECORD)
    return write_package(program, folder, labels)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("packages")
    return {name: packaged(name, place / name_of(name)) for name in CASES}


def alone(code: str, folder: Path, *paths: Path) -> subprocess.Popen[str]:
    """A process in a folder, with these folders among those of its modules."""
    places = f"sys.path[:0] = {[str(path) for path in paths]}\n"
    command = [sys.executable, "-I", "-c", f"{ALONE}{places}{code}"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0, wrong
    return said


def computed(name: str, package: Path, folder: Path, code: str = "results = program(*inputs)") -> list[np.ndarray]:
    """The results of a package in a process of its own."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "inputs.npz", *case(name)[2])
    lines = (
        f"import {name_of(name)} as package",
        "given = np.load('inputs.npz')",
        "inputs = [given[name] for name in given.files]",
        "program = package.load()",
        code,
        "np.savez('results.npz', *results)",
    )
    ended(alone("\n".join(lines), folder, package))
    with np.load(folder / "results.npz") as results:
        return [results[key] for key in results.files]


def same(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    assert [(a.shape, a.dtype, a.tobytes()) for a in got] == [(b.shape, b.dtype, b.tobytes()) for b in want]


@pytest.mark.parametrize("name", CASES)
def test_a_package_gives_the_bits_of_the_program(name: str, packages: dict[str, Path], tmp_path: Path) -> None:
    _, program, arrays = case(name)
    want = program(*arrays)
    same(computed(name, packages[name], tmp_path), want)
    same(computed(name, packages[name], tmp_path, "program.threads(1)\nresults = program(*inputs)"), want)


def test_two_packages_and_many_threads_in_one_process(packages: dict[str, Path], tmp_path: Path) -> None:
    _, program, (x,) = case("mlp")
    code = (
        "import threading, convolutions_and_concat, mlp\n"
        "one, other, x = mlp.load(), convolutions_and_concat.load(), np.load('x.npy')\n"
        "y = np.ones(other.inputs[0][1], np.float32)\n"
        "want, seen = other(y), []\n"
        "def many(k):\n"
        "    for _ in range(50):\n"
        "        same = all((a == b).all() for a, b in zip(other(y), want)) if k % 2 else True\n"
        "        seen.append((one(x + k)[0], same))\n"
        "threads = [threading.Thread(target=many, args=(k,)) for k in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert len(seen) == 200 and all(same for _, same in seen)\n"
        "np.save('y.npy', one(x)[0])\n"
        "print(len({y.tobytes() for y, _ in seen}))\n"
    )
    np.save(tmp_path / "x.npy", x)
    said = ended(alone(code, tmp_path, packages["mlp"], packages["convolutions and concat"]))
    assert said.split() == ["4"]  # one for each thread
    same([np.load(tmp_path / "y.npy")], program(x))


def test_a_program_that_is_closed_can_be_opened_again(packages: dict[str, Path], tmp_path: Path) -> None:
    code = "del program\nimport gc; gc.collect()\nresults = [y for _ in range(3) for y in package.load()(*inputs)]"
    got = computed("attention", packages["attention"], tmp_path, code)
    _, program, arrays = case("attention")
    same(got, 3 * program(*arrays))


def test_a_task_that_finds_no_memory_has_the_reserve(tmp_path: Path) -> None:
    module, count = Module(), 1 << 22
    f = module.function("last", [("ptr", "bufs"), ("i64", "task")], internal=False)
    room = f.room(count)
    given, result = [f.load("ptr", f.element("%bufs", i, "ptr")) for i in range(2)]
    f.store("float", f.load("float", given), f.element(room, count - 1, "float"))
    f.store("float", f.load("float", f.element(room, count - 1, "float")), result)
    f.ret()
    buffers = Buffer("x", (1,), "float32", "input"), Buffer("y", (1,), "float32", "output")
    kernel = build(Code(module, (Phase("last", 1),), buffers), pipeline="none", cache=tmp_path)
    slots = tuple(PlanSlot(kind, 0, TensorType((1,), "float32")) for kind in (ARGUMENT, OUTPUT))
    plan = NativePlan(slots, (PlanStep(kernel.digest, (0,), (1,)),), 0)
    program = NativeProgram(Lowered(plan, {kernel.digest: kernel}, (), ()), (), tuple)
    package = write_package(program, tmp_path / "roomy", PackageLabels("roomy", "roomy", ("x",), ("y",), RECORD))
    code = (
        "import resource, roomy\n"
        "program, x = roomy.load(), np.full(1, 3, 'f4')\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))\n"
        "y = program(x)[0]\n"
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "print(float(y[0]))\n"
    )
    assert ended(alone(code, tmp_path, package)).strip() == "3.0"


def test_several_processes_and_a_fork(packages: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import convolutions_and_concat as package, os\n"
        "program = package.load()\n"
        "x = np.ones(program.inputs[0][1], np.float32)\n"
        "want = program(x)[0]\n"
        "for _ in range(20): program(x)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if all((program(x)[0] == want).all() for _ in range(20)) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(want.tobytes().hex()[:64])\n"
    )
    running = [alone(code, tmp_path, packages["convolutions and concat"]) for _ in range(3)]
    assert len({ended(process) for process in running}) == 1


def test_a_program_of_c(packages: dict[str, Path], tmp_path: Path) -> None:
    _, program, arrays = case("passed on")
    files = [tmp_path / f"{i}.raw" for i in range(len(arrays))]
    for path, x in zip(files, arrays, strict=True):
        x.tofile(path)
    package = packages["passed on"]
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-o", str(tmp_path / "main"), str(package / "main.c")]
    subprocess.run([*command, f"-L{package}", "-lpassed_on", f"-Wl,-rpath,{package}"], check=True)
    weights = str(package / "passed_on.weights")
    done = subprocess.run(
        [tmp_path / "main", "-n", "3", "-w", weights, *files], capture_output=True, text=True, check=True
    )
    want = [f"output {i}: {checksum(y):016x}" for i, y in enumerate(program(*arrays))]
    assert done.stdout.splitlines()[-len(want) :] == want
    short = subprocess.run([tmp_path / "main", "-w", weights, __file__], capture_output=True, text=True, check=False)
    assert (short.returncode, "bytes of the input" in short.stderr) == (1, True)


def checksum(array: np.ndarray) -> int:
    total = 0xCBF29CE484222325
    for byte in array.tobytes():
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return total


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_the_cmake_file_builds(packages: dict[str, Path], tmp_path: Path) -> None:
    for command in (["cmake", "-S", packages["mlp"], "-B", tmp_path], ["cmake", "--build", tmp_path]):
        subprocess.run(command, check=True, capture_output=True)
    weights = packages["mlp"] / "mlp.weights"
    done = subprocess.run([tmp_path / "mlp_main", "-w", weights], capture_output=True, text=True, check=True)
    assert "output 0: " in done.stdout


def refusal(package: Path, folder: Path, code: str) -> str:
    """The message of the error that some lines raise, after its class."""
    lines = [f"    {line}" for line in code.splitlines()]
    told = "\n".join(["import mlp", "try:", *lines, "except Exception as error:", "    print(repr(error))"])
    return ended(alone(told, folder, package)).strip()


def test_weights_that_are_not_those_of_the_library_are_refused(packages: dict[str, Path], tmp_path: Path) -> None:
    package = shutil.copytree(packages["mlp"], tmp_path / "mlp")
    weights = package / "mlp.weights"
    content = weights.read_bytes()
    changed = bytearray(content)
    changed[100] ^= 1
    for wrong in (content[:-1], bytes(changed), content + b"\0", b""):
        weights.write_bytes(wrong)
        said = refusal(package, tmp_path, "mlp.load()")
        assert "RuntimeError" in said
        assert "mlp.weights: the file of the weights is damaged, or of another package" in said
    weights.unlink()
    assert "the file of the weights cannot be read" in refusal(package, tmp_path, "mlp.load()")
    weights.write_bytes(changed)
    assert "mlp.weights has changed since the package was made" in refusal(package, tmp_path, "mlp.check()")
    weights.write_bytes(content)
    assert refusal(package, tmp_path, "mlp.check(); mlp.load()") == ""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("program(np.ones((7, 25), 'f4'))", "ValueError('input x0 has the shape [7, 25], not [7, 24]')"),
        ("program(np.ones((7, 24)))", "TypeError('input x0 has the dtype float64, not float32')"),
        ("program()", "TypeError('these inputs are missing: x0')"),
        ("program(x1=1)", "there is no input x1"),
        ("program(1, x0=1)", "x0 is given twice"),
        ("program(1, 2)", "2 inputs are given, the program has 1: x0"),
        ("program.threads(-1)", "an argument is null or negative"),
        ("assert program(x0=np.ones((24, 7), 'f4').T)[0].shape == (7, 16)", ""),
    ],
)
def test_arguments_that_do_not_fit_are_refused(code: str, told: str, packages: dict[str, Path], tmp_path: Path) -> None:
    said = refusal(packages["mlp"], tmp_path, f"program = mlp.load()\n{code}")
    assert told in said if told else said == ""


def test_a_processor_without_a_feature_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "+fma4" not in host().features
    other = replace(host(), features=(*[f for f in host().features if f != "-fma4"], "+fma4"))
    monkeypatch.setattr(write, "host", lambda: other)
    package = packaged("mlp", tmp_path / "mlp")
    said = refusal(package, tmp_path, "mlp.load()")
    assert "the processor lacks fma4, which the library was built for" in said


def test_nothing_but_the_functions_of_the_header_is_exported(packages: dict[str, Path]) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm")
    command = [nm, "-D", "--defined-only", str(packages["mlp"] / "libmlp.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert names == {f"mlp_{x}" for x in ("open", "run", "threads", "close", "error")}


def test_the_facts_of_a_package(packages: dict[str, Path]) -> None:
    _, program, _ = case("mlp")
    facts = json.loads((packages["mlp"] / "mlp.json").read_text())
    assert facts["plan"] == json.loads(json.dumps(program.lowered.plan.to_json()))
    assert [x["at"] % 64 for x in facts["weights"]] == [0] * len(program.weights)
    assert facts["inputs"] == [{"name": "x0", "shape": [7, 24], "dtype": "float32", "bytes": 672}]
    assert {"processor", "versions", "record", "files"} <= facts.keys()


def changed_facts(package: Path, **changes: Any) -> None:
    path = package / "mlp.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def package(packages: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a package, to be changed."""
    return shutil.copytree(packages["mlp"], tmp_path / "mlp")


@pytest.mark.parametrize("name", CASES)
def test_a_package_is_as_its_certificates_say(name: str, packages: dict[str, Path]) -> None:
    found = check_package(packages[name])
    assert (found.valid, found.signed, found.differences) == (True, True, ())
    told = str(found)
    assert "checked: 6 files have the digests" in told
    assert "  signed by this store, which made it: the code of 2 kernels is validated" in told
    assert "that of 1 is not: odd" in told


@pytest.mark.parametrize("file", ["libmlp.so", "mlp.h", "mlp.weights", "mlp.py", "main.c", "CMakeLists.txt"])
def test_a_file_of_a_package_that_has_changed_is_named(file: str, package: Path) -> None:
    content = bytearray((package / file).read_bytes())
    content[len(content) // 2] ^= 1
    (package / file).write_bytes(content)
    assert check_package(package).differences == (f"{file} has changed since the package was made",)
    (package / file).unlink()
    assert check_package(package).differences == (f"{file} is missing",)


def test_certificates_that_have_changed_are_refused(package: Path) -> None:
    changed_facts(package, record={**RECORD, "code": {**CODE, "unknown": {}}})
    assert check_package(package).differences == ("mlp.json is not what this store has signed",)
    facts = json.loads((package / "mlp.json").read_text())
    (package / "mlp.weights").write_bytes(b"1")
    files = {**facts["files"], "mlp.weights": hashlib.sha256(b"1").hexdigest()}
    changed_facts(package, files=files)
    assert check_package(package).differences == ("mlp.json is not what this store has signed",)


def test_certificates_of_another_store_are_told_as_such(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(package.parent / "another"))
    found = check_package(package)
    assert (found.valid, found.signed) == (True, False)
    assert "not signed by this store, its author's word: the code of 2 kernels" in str(found)


def swapped(facts: dict[str, Any]) -> None:
    """Let the last step read what the first one reads."""
    facts["plan"]["steps"][-1]["reads"] = facts["plan"]["steps"][0]["reads"]


def moved(facts: dict[str, Any]) -> None:
    facts["plan"]["slots"][0]["at"] += 1000


def other_type(facts: dict[str, Any]) -> None:
    facts["inputs"][0]["dtype"] = "int32"


def overlapping(facts: dict[str, Any]) -> None:
    facts["weights"][1]["at"] = facts["weights"][0]["at"]


def other_buffers(facts: dict[str, Any]) -> None:
    kernel = next(iter(facts["kernels"].values()))
    kernel["buffers"][0][1] += 4


def fewer_kernels(facts: dict[str, Any]) -> None:
    facts["kernels"].popitem()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (swapped, "the plan: "),
        (moved, "the plan: "),
        (other_type, "its inputs are not those of the plan"),
        (overlapping, "weight 1 does not lie where the plan reads it"),
        (other_buffers, "the plan: "),
        (fewer_kernels, "the plan: "),
        (lambda facts: facts["weights"].pop(), "weights, the plan"),
        (lambda facts: facts["files"].popitem(), "it names other files than"),
    ],
)
def test_the_word_of_a_stranger_is_checked_where_it_can_be(change: Any, told: str, package: Path) -> None:
    """Its signature and digests may be those of what it wrote."""
    facts = json.loads((package / "mlp.json").read_text())
    change(facts)
    plan_sha256 = hashlib.sha256(json.dumps(facts["plan"], sort_keys=True).encode()).hexdigest()
    (package / "mlp.json").write_text(json.dumps({**facts, "plan_sha256": plan_sha256, "key": "another"}))
    found = check_package(package)
    assert not found.valid
    assert any(told in line for line in found.differences), found.differences
    (package / "mlp.json").write_text(json.dumps({**facts, "key": "another"}))
    if told == "the plan: " and change in (swapped, moved):
        assert "the plan has changed since the package was made" in check_package(package).differences


@pytest.mark.parametrize(
    "changes",
    [{"format": 1}, {"plan": []}, {"plan": {"slots": 1}}, {"weights": [3]}, {"kernels": {"a": 1}}, {"record": {}},
     {"signature": 5}, {"files": {"../x": "y"}, "inputs": None}, {"name": "other"}],
)  # fmt: skip
def test_what_is_no_certificate_is_refused_with_an_error(changes: dict[str, Any], package: Path) -> None:
    changed_facts(package, **changes)
    with pytest.raises(InputError, match="is no package that can be checked") as raised:
        check_package(package)
    assert "superopt build" in str(raised.value.hint)


def test_a_folder_of_no_package_or_of_two(package: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds 0 packages"):
        check_package(tmp_path)
    shutil.copy(package / "mlp.h", package / "other.h")
    shutil.copy(package / "mlp.json", package / "other.json")
    with pytest.raises(InputError, match="holds 2 packages"):
        check_package(package)


def test_the_command_verifies_packages(package: Path) -> None:
    done = CliRunner().invoke(verify, [str(package), "--json"])
    assert (done.exit_code, json.loads(done.output)["valid"]) == (OK, True)
    (package / "mlp.weights").write_bytes(b"1")
    done = CliRunner().invoke(verify, [str(package)], standalone_mode=False)
    assert done.return_value == UNVERIFIED
    assert "is refused:\n  mlp.weights has changed" in done.output


def test_a_package_replaces_another_one_under_a_process_that_runs_it(packages: dict[str, Path], tmp_path: Path) -> None:
    package = shutil.copytree(packages["mlp"], tmp_path / "mlp")
    before = (package / "mlp.weights").stat().st_ino
    held = os.open(package / "mlp.weights", os.O_RDONLY)  # as a process that has mapped it
    packaged("mlp", package)
    assert (package / "mlp.weights").stat().st_ino != before
    os.close(held)
    assert sorted(path.name for path in package.iterdir()) == sorted(path.name for path in packages["mlp"].iterdir())


def test_without_a_compiler_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "a_compiler_that_nobody_has")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(MissingExtraError, match="no C compiler `cc`") as raised:
        packaged("mlp", tmp_path / "mlp")
    assert raised.value.hint == "pip install 'superopt[build]'"
    assert list((tmp_path / "mlp").iterdir()) == []


@pytest.mark.skipif(find_spec("ziglang") is None, reason="the extra `build` is not installed")
def test_the_compiler_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "a_compiler_that_nobody_has")
    name = "convolutions and concat"
    package = packaged(name, tmp_path / "package")
    _, program, arrays = case(name)
    same(computed(name, package, tmp_path), program(*arrays))


def test_the_compiler_may_have_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -m64")
    assert link.compiler() == ["cc", "-m64"]


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(PackageError, match="false fails"):
        packaged("mlp", tmp_path / "mlp")


def test_templates_are_installed() -> None:
    here = Path(write.__file__).parent
    top = here.parents[1]
    project = tomllib.loads((top.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["superopt"]
    installed = {path for pattern in patterns for path in glob(str(top / pattern))}
    templates = {str(path) for path in here.iterdir() if path.is_file() and path.suffix != ".py"}
    assert len(templates) == 4
    assert templates <= installed


def test_names_of_libraries() -> None:
    assert link.library_name("", Path("some/mobile-net.v2")) == "mobile_net_v2"
    assert link.library_name("m1", Path("9")) == "m1"
    wrong: list[Any] = [("", "9"), ("a b", "x"), ("class", "x"), ("main", "x"), ("json", "x"), ("", "numpy")]
    for given, folder in wrong:
        with pytest.raises(UsageError):
            link.library_name(given, Path(folder))


def test_symbols_get_other_names_and_nothing_else_changes() -> None:
    content = case("mlp")[1].kernel.compiled.object
    other = renamed(content, {"handler": "a.longer.name", "nobody": "x"})
    assert b"\0a.longer.name\0" in other
    assert len(other) > len(content)

    with pytest.raises(PackageError, match="no ELF objects"):
        renamed(b"MZ" + content, {})
