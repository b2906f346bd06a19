"""Saved programs with faults: in the archive, and inside of its members with digests to match."""

from __future__ import annotations

import io
import random
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

import superopt
from superopt.backends import mixed, native
from superopt.files.reading import DIGESTS, ArchiveWriter
from superopt.ir.program import type_bytes
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import specs_of
from superopt.lab.bench.faults.texts import encoded, mutated_bytes, mutated_json, mutated_text, rearranged
from superopt.returned.loaded import Loaded
from superopt.returned.optimized import Optimized
from superopt.store import Store

_MOST_BYTES = 1_000_000  # of the arguments with which a loaded program is called
_OPTIONS: dict[str, Any] = {"budget": "30steps", "deterministic": True, "store": False}
_FOREIGN_OPTIONS = (
    "xla_dump_to",
    "xla_cpu_parallel_codegen_split_count",
    "xla_cpu_enable_fast_math",
    "xla_dump_hlo_as_text",
)


def corpus(folder: Path) -> None:
    """Write a program with frozen weights, one of a network, one with loops and one with our kernels."""
    rng = np.random.default_rng(0)

    def rand(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    scaled = superopt.optimize(_scaled, rand(8, 8), rand(4, 8), frozen=0, **_OPTIONS)
    scaled.save(folder / "scaled.superopt")
    network = superopt.optimize(
        _network, {"k": rand(3, 3, 3, 4), "w": rand(4, 5)}, rand(1, 6, 6, 3), frozen=0, **_OPTIONS
    )
    network.save(folder / "network.superopt")
    superopt.optimize(_loops, rand(3, 4), np.int32(3), **_OPTIONS).save(folder / "loops.superopt")
    _with_kernels(superopt.optimize(_rows, rand(16, 32), rand(32, 8), frozen=1, **_OPTIONS)).save(
        folder / "kernels.superopt"
    )


def _scaled(w: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ (w + w)) * 2, "z": (x, None)}


def _network(p: Any, x: Any) -> Any:
    y = jax.lax.conv_general_dilated(x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = jax.lax.reduce_window(jax.nn.relu(y), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.softmax(pooled.mean((1, 2)) @ p["w"])


def _loops(x: Any, n: Any) -> Any:
    total, rows = jax.lax.scan(lambda c, row: (c + row.sum(), jnp.sin(row) * c), 0.0, x)
    grown = jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (n, rows))
    return jax.lax.cond(total > 0, lambda v: v + jnp.arange(4.0), lambda v: v[:, ::-1], grown[1])


def _rows(x: Any, w: Any) -> Any:
    """Return a softmax over rows of a product, as a program to save."""
    return jax.nn.softmax(jnp.exp(x @ w) * 0.5 + 1.0)


def _with_kernels(result: Optimized) -> Optimized:
    regions = partition(result.program.hot)
    result.kernels = specs_of(result.program.hot, [(r, native.default_trace(r.graph)) for r in regions])
    result.executable = mixed.build(result.program, result.imported.frozen_values, kernels=result.kernels)
    return result


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """A changed file: damaged as a whole, or with other members."""
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    members = _members(data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        _MEMBERS[rng.randrange(len(_MEMBERS))](members, rng, outside)
    return _archive(members) if rng.random() < 0.97 else _bomb(members, rng)


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != DIGESTS}


def _archive(members: dict[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        with ArchiveWriter(path) as out:
            for name, content in members.items():
                if name.startswith(("prepared/", "native/weights/")):
                    out.aligned(name, memoryview(content))
                else:
                    out.text(name, content)
        return path.read_bytes()


def _bomb(members: dict[str, bytes], rng: random.Random) -> bytes:
    """An archive that packs well, or states other sizes than it has."""
    members["hot.txt"] = members.get("hot.txt", b"") + b"\n" * rng.choice((10_000, 30_000_000))
    data = bytearray(_archive(members))
    if rng.random() < 0.5:
        at = data.rfind(b"PK\x01\x02")
        struct.pack_into("<II", data, at + 20, rng.getrandbits(32), rng.getrandbits(31))
    return bytes(data)


def _edit(members: dict[str, bytes], rng: random.Random, outside: Path) -> None:
    name = rng.choice([n for n in members if not n.startswith("prepared/")])
    if name.endswith(".json"):
        members[name] = mutated_json(members[name], rng, outside)
    else:
        members[name] = encoded(mutated_text(members[name].decode(errors="replace"), rng, outside))


def _edit_program(members: dict[str, bytes], rng: random.Random, outside: Path) -> None:
    if "hot.txt" in members:
        members["hot.txt"] = encoded(mutated_text(members["hot.txt"].decode(errors="replace"), rng, outside))


def _edit_bytes(members: dict[str, bytes], rng: random.Random, _: Path) -> None:
    name = rng.choice(list(members))
    members[name] = mutated_bytes(members[name], rng)


def _move(members: dict[str, bytes], rng: random.Random, outside: Path) -> None:
    if rng.random() < 0.65:
        rearranged(members, rng)
    else:
        names = (
            "../x",
            str(outside / "x"),
            "prepared/99",
            "prepared/-1",
            "x",
            "kernels.json",
            "native/objects",
            "native/signature",
        )
        members[rng.choice(names)] = members[rng.choice(list(members))]


def _options(members: dict[str, bytes], rng: random.Random, outside: Path) -> None:
    name = rng.choice(_FOREIGN_OPTIONS)
    value = rng.choice((f'"{outside / "dump"}"', '"-5"', "true", "-5", "null", '"xla"'))
    if "meta.json" in members:
        members["meta.json"] = members["meta.json"].replace(
            b'"compiler_options": {', f'"compiler_options": {{"{name}": {value}'.encode()
        )


def _huge(members: dict[str, bytes], rng: random.Random, _: Path) -> None:
    """A program that a few words of text make large."""
    size = rng.choice((10**4, 10**6, 10**8, 10**9, 10**12))
    line = f'%900 = iota() dtype="float32" dimension=0 shape=({size},) : f32[{size}]\n'
    more = rng.choice((
        line + "%901 = reduce_sum(%900) axes=(0,) : f32[]\n",
        "".join(f"%{i} = literal {i}.5 : f32[]\n" for i in range(1000, 1000 + rng.choice((100, 20_000)))),
        "".join(f"%{i} = exp(%{i - 1 if i > 1000 else 0}) : f32[4,8]\n" for i in range(1000, 3000)),
    ))  # fmt: skip
    if "hot.txt" in members:
        text = members["hot.txt"].decode(errors="replace")
        body, mark, tail = text.rpartition("return ")
        members["hot.txt"] = encoded(body + more + mark + tail.replace("%", rng.choice(("%", "%901, %")), 1))


_MEMBERS = (_edit, _edit, _edit, _edit_program, _edit_program, _edit_bytes, _move, _options, _huge)


def read(path: Path, good: Path) -> str:
    """Load a program, call it, validate it."""
    del good
    loaded = superopt.load(path)
    arguments = _arguments(loaded)
    if arguments is not None:
        args, kwargs = arguments
        jax.block_until_ready(loaded(*args, **kwargs))
    with Store(Path("certificates.sqlite")) as store:
        told = str(loaded.validate(store=store))
    if any(not c.isprintable() and c != "\n" for c in told):
        raise ValueError(f"control characters are told: {told!r}")
    str(loaded.speedup)
    return ""


def _arguments(loaded: Loaded) -> Any:
    """Arguments of the types that the program states; None where they are large."""
    live = loaded.graph.inputs[: len(loaded.live)]
    if sum(type_bytes(node.type) for node in live) > _MOST_BYTES:
        return None
    leaves: list[Any] = [jax.ShapeDtypeStruct((), "float32")] * loaded.in_tree.num_leaves
    for i, node in zip(loaded.live, live, strict=True):
        leaves[i] = np.ones(node.shape, jnp.dtype(node.dtype))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return jax.tree_util.tree_unflatten(loaded.in_tree.tree(), leaves)


__all__ = ["corpus", "mutated", "read"]
