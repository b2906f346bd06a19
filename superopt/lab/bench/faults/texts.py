"""Mutations of bytes, texts and plain data, both random and malicious."""

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")
NUMBERS = (
    *("-1", "0", "1", "2", "7", "64", "-5", "255", "65536", "2147483647", "2147483648", "-2147483649", "4294967296"),
    *(
        "9223372036854775807",
        "9223372036854775808",
        "1000000000000",
        "100000",
        "1e308",
        "-1e308",
        "1e400",
        "nan",
        "inf",
    ),
    *("0.5", "-0.0", "9" * 30, "9" * 5000, "0x10", "1_000"),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, repeated, inserted, removed or moved."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not out:
            return bytes(rng.randbytes(8))
        at = rng.randrange(len(out))
        size = min(len(out) - at, rng.choice((1, 1, 2, 4, 64, 1024)))
        match rng.randrange(8):
            case 0 | 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                out[at : at + size] = rng.randbytes(size)
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = rng.randbytes(size)
            case 5:
                to = rng.randrange(len(out))
                out[to:to] = out[at : at + size]
            case 6:
                out[at : at + size] = bytes([rng.choice((0, 255))]) * size
            case _:
                del out[at:]
    return bytes(out)


def mutated_text(text: str, rng: random.Random, outside: Path) -> str:
    """A text with a number, word, line or nesting depth changed."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = _TEXTS[rng.randrange(len(_TEXTS))](text, rng, outside)
    return text


def _number(text: str, rng: random.Random, _: Path) -> str:
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    one, new = rng.choice(numbers), rng.choice(NUMBERS)
    if rng.random() < 0.3:  # everywhere, so that the rest of the text still agrees
        return re.sub(rf"(?<![\w.]){re.escape(one.group())}(?![\w.])", new, text)
    return text[: one.start()] + new + text[one.end() :]


def _word(text: str, rng: random.Random, _: Path) -> str:
    words = list(_WORD.finditer(text))
    if not words:
        return text
    one, new = rng.choice(words), rng.choice((*(m.group() for m in words), "__import__", "input", "opaque", "x" * 5000))
    return text[: one.start()] + new + text[one.end() :]


def rearranged(parts: dict[K, T], rng: random.Random) -> None:
    """Swap two parts, remove one, or replace one by a copy of another."""
    a, b = (rng.choice(list(parts)) for _ in range(2))
    match rng.randrange(3):
        case 0:
            parts[a], parts[b] = parts[b], parts[a]
        case 1:
            del parts[a]
        case _:
            parts[b] = parts[a]


def _line(text: str, rng: random.Random, _: Path) -> str:
    lines = text.split("\n")
    if rng.random() < 0.5:
        numbered = dict(enumerate(lines))
        rearranged(numbered, rng)
        return "\n".join(numbered.values())
    at = rng.randrange(len(lines))
    times = rng.choice((1, 2, 20, 1000 if len(text) < 100_000 else 2))
    return "\n".join(lines[: at + 1] * times + lines[at:])


def _letters(text: str, rng: random.Random, outside: Path) -> str:
    new = rng.choice((
        *("(", ")", "{", "}", "[", "]", ",", '"', "\\", "=", ":", "%", "%0", "\n", "\0", "\x1b[2J", "\ud800", "é"),
        *("\u202e", "(" * 200, "[" * 3000, "{" * 60, "{\n%0 = input x : f32[2]\n" * 100),
        *(str(outside / "x"), "/etc/passwd", "../x"),
    ))  # fmt: skip
    at = rng.randint(0, len(text))
    return text[:at] + new + text[at + rng.randrange(2) :]


def _cut(text: str, rng: random.Random, _: Path) -> str:
    a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[:a] + text[b:] if rng.random() < 0.5 else text[:b] + text[a:b] + text[b:]


_TEXTS = (_number, _number, _number, _word, _word, _line, _letters, _cut)


def encoded(text: str) -> bytes:
    """A text as bytes, whatever characters it has."""
    return text.encode(errors="surrogatepass")


def mutated_json(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """Plain data with a value replaced by another, removed, or moved."""
    try:
        root: list[Any] = [json.loads(data)]
    except (ValueError, RecursionError):  # mutated before
        return mutated_bytes(data, rng)
    if rng.random() < 0.25:
        return encoded(mutated_text(data.decode(), rng, outside))
    for _ in range(rng.choice((1, 1, 2, 3))):
        holders = _holders(root)
        holder, key = rng.choice(holders)
        match rng.randrange(6):
            case 0 if holder is not root:
                del holder[key]
                if isinstance(holder, list) and rng.random() < 0.5:
                    holder.clear()
            case 1:
                other, there = rng.choice(holders)
                with contextlib.suppress(RecursionError):
                    holder[key] = json.loads(json.dumps(other[there]))
            case 2 if isinstance(holder[key], str):
                holder[key] = mutated_text(holder[key], rng, outside)
            case _:
                holder[key] = _value(holder[key], rng, outside)
    try:
        return json.dumps(root[0]).encode()
    except RecursionError:  # nesting two deep values went too deep
        return mutated_bytes(data, rng)


def _holders(root: list[Any]) -> list[tuple[Any, Any]]:
    holders: list[tuple[Any, Any]] = []
    work: list[Any] = [root]
    while work:
        holder = work.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            holders.append((holder, key))
            if isinstance(value, dict | list):
                work.append(value)
    return holders


def _value(old: Any, rng: random.Random, outside: Path) -> Any:
    deep: Any = []
    for _ in range(rng.choice((60, 900))):
        deep = [deep]
    near = [old + 1, old - 1, -old, old * 1000, float(old)] if isinstance(old, int | float) and abs(old) < 1e300 else []
    return rng.choice((
        *near, None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, -(2**40), 0.5, 1e308, float("nan"), float("inf"),
        "", "x", "x" * 5000, "\x1b[2J\0", "\ud800", str(outside / "x"), "/etc/passwd", [], {}, [[]], {"x": None},
        [0] * 1000, deep, [old, old], {"xla_dump_to": str(outside / "dump")},
    ))  # fmt: skip


__all__ = ["NUMBERS", "encoded", "mutated_bytes", "mutated_json", "mutated_text", "rearranged"]
