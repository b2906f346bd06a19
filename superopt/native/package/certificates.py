"""Certificates of a package, and the check of a package against them.

`NAME.json` holds the digests of all other files and of the plan, and the buffers of every kernel.  It names the rules
that made the program, with the keys of their proofs, and the verdicts of validation on the code of the kernels.  All of
it is under a signature by the key of the store that made the package, and that key is named.

The check runs nothing of a package.  Digests and the plan are checked on any machine, the latter by `verifier.memory`.
A library cannot be validated, since the validator reads LLVM's text.  So verdicts on code and rules are the word of who
signed them, which this store knows of itself alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.errors import InputError
from superopt.files.reading import LIMITS, field, json_of, plain_file, shown, text_file, typed
from superopt.files.seals import is_signed, signature
from superopt.kernels.llvm.jit import cache_folder
from superopt.native.lowered import buffers_of
from superopt.native.plan import ARGUMENT, OUTPUT, WEIGHT, NativePlan, from_json
from superopt.native.planner import ALIGNED_BYTES
from superopt.native.running import NativeProgram
from verifier.memory.check import faults

FORMAT = 2
_PURPOSE = "certificates of a package"
_SIGNATURE, _KEY = "signature", "key"
_AGAIN = "make it again: superopt build MODEL -o FOLDER"


@dataclass(frozen=True, slots=True)
class CheckedPackage:
    """The result of checking a package.

    Attributes:
        package: its folder.
        differences: what is not as its certificates say; empty where all is.
        checked: what was checked here, a sentence each.
        told: what its certificates say of rules and code.
        signed: whether this store has signed them.
    """

    package: str
    differences: tuple[str, ...]
    checked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    signed: bool = False

    @property
    def valid(self) -> bool:
        """Whether all is as its certificates say."""
        return not self.differences

    def __str__(self) -> str:
        if not self.valid:
            return "\n".join([f"{self.package} is refused:", *[f"  {line}" for line in self.differences]])
        by = "signed by this store, which made it" if self.signed else "not signed by this store, its author's word"
        lines = [f"checked: {line}" for line in self.checked] + [f"{by}: {line}" for line in self.told]
        return "\n".join([f"{self.package} is as its certificates say", *[f"  {line}" for line in lines]])

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        lists = {name: list(getattr(self, name)) for name in ("differences", "checked", "told")}
        return {"package": self.package, "valid": self.valid, "signed": self.signed, **lists}


def files_of(name: str) -> list[str]:
    """Return the files of a package, without that of its certificates."""
    return [f"lib{name}.so", f"{name}.h", f"{name}.weights", f"{name}.py", "main.c", "CMakeLists.txt"]


def certified(facts: Mapping[str, Any], program: NativeProgram, folder: Path) -> dict[str, Any]:
    """Return the contents of a package's JSON file: these facts with the certificates, signed."""
    plan, kernels = program.lowered.plan.to_json(), program.lowered.kernels
    buffers = buffers_of(kernels)
    rows = {digest: {"name": kernel.name, "buffers": buffers[digest]} for digest, kernel in kernels.items()}
    files = {file: _digest(folder / file) for file in files_of(facts["name"])}
    whole = {"format": FORMAT, **facts, "files": files, "plan": plan, "plan_sha256": _plan_digest(plan)}
    whole |= {"kernels": rows, _KEY: _key()}
    return whole | {_SIGNATURE: signature(cache_folder(), _PURPOSE, _signed(whole))}


def check_package(folder: Path) -> CheckedPackage:
    """Check the files of a package and its plan against its certificates.

    Raises:
        InputError: the folder is no package, or one without certificates.
    """
    path = _certificates(folder)
    with typed(f"{shown(folder, 200)} is no package that can be checked", _AGAIN):
        facts = json_of(text_file(path, LIMITS.json_bytes))
        if field(facts, "format", int) != FORMAT or field(facts, "name", str) != path.stem:
            raise InputError(f"{path.name} has no certificates of this version")
        plan, told = from_json(field(facts, "plan", dict)), tuple(_told(facts))
        differences = [*_of_files(folder, facts), *_of_plan(facts, plan)]
        signed = is_signed(cache_folder(), _PURPOSE, _signed(facts), field(facts, _SIGNATURE, str))
        if not signed and facts.get(_KEY) == _key():
            differences.append(f"{path.name} is not what this store has signed")
    checked = (
        f"{len(facts['files'])} files have the digests that it names",
        f"the plan of {sum(1 for _ in plan.every_step())} steps reads what was written, and writes nothing else",
        f"{len(facts['weights'])} weights lie where the plan reads them",
    )
    return CheckedPackage(str(folder), tuple(differences), checked, told, signed)


def _certificates(folder: Path) -> Path:
    """Return the JSON file of a package.

    Raises:
        InputError: there is none, or several.
    """
    every = [x for x in sorted(folder.glob("*.json")) if any((folder / file).exists() for file in files_of(x.stem)[:4])]
    if len(every) != 1:
        raise InputError(f"{shown(folder, 200)} holds {len(every)} packages, not one", hint=_AGAIN)
    return every[0]


def _of_files(folder: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of files."""
    said, names = field(facts, "files", dict), files_of(facts["name"])
    if set(said) != set(names):
        yield f"it names other files than {', '.join(names)}"
    for file in names:
        if not (folder / file).exists():
            yield f"{file} is missing"
        elif _digest(folder / file) != said.get(file):
            yield f"{file} has changed since the package was made"


def _of_plan(facts: Mapping[str, Any], plan: NativePlan) -> Iterator[str]:
    """Yield the faults of the plan, and what does not fit it."""
    if _plan_digest(facts["plan"]) != facts.get("plan_sha256"):
        yield "the plan has changed since the package was made"
    buffers = {name: [(str(scope), int(size)) for scope, size in x["buffers"]] for name, x in facts["kernels"].items()}
    yield from (f"the plan: {fault}" for fault in faults(facts["plan"], buffers))
    for side, kind in (("inputs", ARGUMENT), ("outputs", OUTPUT)):
        slots = [[list(slot.type.shape), slot.type.dtype] for slot in plan.of_kind(kind)]
        if [[x["shape"], x["dtype"]] for x in facts[side]] != slots:
            yield f"its {side} are not those of the plan"
    end = 0
    for number, (row, slot) in enumerate(zip(facts["weights"], plan.of_kind(WEIGHT), strict=False)):
        if row["bytes"] != slot.size_bytes or row["at"] < end or row["at"] % ALIGNED_BYTES:
            yield f"weight {number} does not lie where the plan reads it"
        end = row["at"] + row["bytes"]
    if len(facts["weights"]) != len(plan.of_kind(WEIGHT)):
        yield f"it has {len(facts['weights'])} weights, the plan {len(plan.of_kind(WEIGHT))}"


def _told(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what certificates say of rules and code."""
    record = field(facts, "record", dict)
    rules, code = field(record, "rules", dict), field(record, "code", dict)
    yield f"{len(rules)} rules made the program, each proved; its results may differ as `{record['exactness']}` says"
    yield f"the code of {field(code, 'validated', int)} kernels is validated by version {shown(code['by'])}"
    for why, count in field(code, "unknown", dict).items():
        yield f"that of {shown(count)} is not: {shown(why)}"


def _plan_digest(plan: Any) -> str:
    return _sha256(json.dumps(plan, sort_keys=True).encode())


def _signed(facts: Mapping[str, Any]) -> bytes:
    """Return the text under the signature: all but that."""
    return json.dumps({name: x for name, x in facts.items() if name != _SIGNATURE}, sort_keys=True).encode()


def _key() -> str:
    """Return the name of this store's key."""
    return signature(cache_folder(), _PURPOSE, b"")[:16]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(path: Path) -> str:
    with plain_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType] (it can `readinto`)
