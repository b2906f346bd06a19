"""Reading of untrusted files: limits on their size and work, and one typed error for any fault in them.

A file is data from a stranger until it is read.  All readers of files (saved programs, models, rows of the store,
weights, texts of rules) use the functions of this module:

    with typed("m.superopt", "write one with .save(path)"):      # Every fault below is one typed error.
        with plain_file("m.superopt") as handle:                  # No device, no pipe, no folder.
            archive = Archive(handle, allowed)                    # Known members, no bomb, digests bound to names.
            meta = archive.json("meta.json")                      # Bounded size and depth.
            archive.read_into("prepared/0", buffer)               # Weights go to their final place at stated size.
            size = bytes_of((8, 64), 4)                           # Bounded sizes, no overflow.
            allowance.spend()                                     # Bounded work and time.

`LIMITS` holds every bound with its reason.  Texts of a file that get into messages go through `shown`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from superopt.errors import FileLimitError, InputError, SuperoptError, printable
from superopt.machine.deadline import Deadline

DIGESTS = "digests.json"
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits on the size of a file's contents and on the work of reading it.

    Attributes:
        text_bytes: size of a program's text; the largest networks of the benchmarks print less than 1 MB.
        json_bytes: size of a JSON text, whose values take up to 25 times as much.
        inflated: bytes that a packed byte may become; programs inflate 10 to 30 times, a bomb 1,000 times.
        members: number of members of an archive.
        depth: nesting of lists or of bodies; control flow of real programs nests fewer than 10.
        nodes: number of nodes of a program with its bodies.
        work: steps of reading: tokens of a text, entries of a list.
        rank: axes of a tensor; NumPy's bound is 64, XLA's kernels are slow long before.
        value_bytes: size of one tensor.
        digits: digits of an integer.
        seconds, seconds_per_mb: time limit of reading, on top of the reading of weights.
    """

    text_bytes: int = 2**25
    json_bytes: int = 2**24
    inflated: int = 100
    members: int = 20_000
    depth: int = 50
    nodes: int = 200_000
    work: int = 5_000_000
    rank: int = 32
    value_bytes: int = 2**36
    digits: int = 40
    seconds: float = 5.0
    seconds_per_mb: float = 10.0


LIMITS = FileLimits()


class Allowance:
    """Work and time left for one file; its reader counts its steps here, and is stopped at the limit."""

    def __init__(self, what: str, size_bytes: int = 0, work: int = LIMITS.work, limits: FileLimits = LIMITS) -> None:
        """An allowance for a file of so many bytes: `work` steps and the time that its size allows."""
        self.what, self.left, self.work = shown(what), work, work
        self.seconds = limits.seconds + limits.seconds_per_mb * size_bytes / 1e6
        self.deadline = Deadline.within(self.seconds)

    def spend(self, work: int = 1) -> None:
        """Count steps of work.

        Raises:
            FileLimitError: not enough work or time is left.
        """
        self.left -= work
        if self.left < 0:
            raise FileLimitError(f"{self.what} asks for more than {self.work} steps of reading")
        if self.deadline.is_over:
            raise FileLimitError(f"{self.what} takes more than {self.seconds:.0f} s to read")


@contextlib.contextmanager
def typed(what: str, hint: str = "", error: type[SuperoptError] = InputError) -> Iterator[None]:
    """Turn any error while a file is read into one typed error that names the file and the cause.

    Args:
        what: the file and the failed expectation: "m.superopt is not a saved program".
        hint: advice for the user.
        error: the class of the error; one of a narrower class keeps its class and its own hint.
    """
    try:
        yield
    except error as cause:
        own = cause.hint if cause.hint != cause.usual_hint else ""
        raise type(cause)(f"{shown(what, 300)}: {cause.args[0]}", hint=own or hint) from cause
    except Exception as cause:
        raise error(f"{shown(what, 300)}: {cause_of(cause)}", hint=hint) from cause


@contextlib.contextmanager
def converting(name: str) -> Iterator[None]:
    """Turn any error while a model is converted into a typed error; typed ones pass unchanged."""
    try:
        yield
    except SuperoptError:
        raise
    except Exception as error:
        raise InputError(f"{name} cannot be converted: {cause_of(error)}") from error


def cause_of(error: BaseException) -> str:
    """An error in one printable line, with its class where the message alone says little (`KeyError: x`)."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    text = error.args[0] if isinstance(error, SuperoptError | KeyError) and error.args else error
    line = (str(text).strip().splitlines() or [""])[0]
    if isinstance(error, SuperoptError | OSError | ValueError) or (isinstance(error, KeyError) and " " in line):
        return shown(line, 200)
    return shown(f"{type(error).__name__}: {line}" if line else type(error).__name__, 200)


def shown(text: object, most: int = 80) -> str:
    """A text of a file for printing: control characters escaped, and cut where it is long."""
    plain = str(text)
    if len(plain) > most:
        plain = plain[: most - 3] + "..."
    return printable(plain).replace("\n", "\\n").replace("\t", "\\t")


@contextlib.contextmanager
def plain_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a regular file for reading; folders, devices and pipes are refused, as these may never end.

    Raises:
        InputError: it is not a regular file, or cannot be opened.
    """
    name = shown(os.fspath(path), 200)
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be opened: {cause_of(error)}"
        raise InputError(f"{name} {reason}") from error
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise InputError(f"{name} is {'a folder' if stat.S_ISDIR(mode) else 'not a plain file'}")
    with open(number, "rb") as handle:
        yield handle


def text_file(path: str | os.PathLike[str], most: int = LIMITS.text_bytes) -> str:
    """The text of a file in UTF-8.

    Raises:
        InputError: it is not a regular file, too large, or not text.
    """
    with plain_file(path) as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise FileLimitError(f"{shown(os.fspath(path), 200)} has more than {most} bytes")
    return text_of(data, shown(os.fspath(path), 200))


def text_of(data: bytes, what: str) -> str:
    """Bytes decoded as UTF-8, without the byte order mark that some editors write.

    Raises:
        InputError: they are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def json_of(data: bytes | str, what: str = "the object", limits: FileLimits = LIMITS) -> Any:
    """A JSON value of bounded size and depth; an object that names a key twice is refused.

    Raises:
        InputError: it is not JSON, too large, or nested too deep.
    """
    if len(data) > limits.json_bytes:
        raise FileLimitError(f"{what} has more than {limits.json_bytes} bytes")
    text = data if isinstance(data, str) else text_of(data, what)
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {cause_of(error)}") from error
    depth_of(value, what, limits.depth)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object names a key twice")
    return entries


def depth_of(value: Any, what: str = "the value", most: int = LIMITS.depth) -> int:
    """Nesting depth of lists and objects in plain data.

    Raises:
        FileLimitError: deeper than `most`.
    """
    level, depth = _containers((value,)), 0
    while level:
        depth += 1
        if depth > most:
            raise FileLimitError(f"{what} is nested more than {most} deep")
        level = [x for v in level for x in _containers(v.values() if isinstance(v, dict) else v)]
    return depth


def _containers(values: Iterable[Any]) -> list[Any]:
    return [v for v in values if isinstance(v, dict | list | tuple)]


def field(data: Any, name: str, kind: type | tuple[type, ...], low: float = -math.inf, high: float = math.inf) -> Any:
    """A field of a JSON object, checked to be of a type and (numbers) within a range.

    Raises:
        InputError: it is absent, of another type (a Boolean is no integer), or out of the range.
    """
    if not isinstance(data, dict) or name not in data:
        raise InputError(f"it has no {name!r}")
    value: Any = data[name]  # pyright: ignore[reportUnknownVariableType]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"its {name!r} is {shown(repr(value))}, not a {' or '.join(k.__name__ for k in kinds)}")
    if isinstance(value, int | float) and (low > -math.inf or high < math.inf) and not low <= value <= high:
        raise InputError(f"its {name!r} is {shown(value)}, outside of {low} to {high}")
    return value


def bytes_of(shape: Sequence[int], itemsize: int, what: str = "a tensor", limits: FileLimits = LIMITS) -> int:
    """Size of a tensor of some shape, in bytes.

    Raises:
        FileLimitError: too many axes or bytes.
        InputError: a negative size.
    """
    if len(shape) > limits.rank:
        raise FileLimitError(f"{what} has {len(shape)} axes; at most {limits.rank} are accepted")
    if any(n < 0 for n in shape):
        raise InputError(f"{what} has a negative size: {shown(list(shape))}")
    # arrays multiply the other sizes even where one is 0
    if math.prod(n for n in shape if n) * max(itemsize, 1) > limits.value_bytes:
        raise FileLimitError(f"{what} of shape {shown(list(shape))} has more than {limits.value_bytes >> 30} GiB")
    return math.prod(shape) * itemsize


def digest(name: str, data: bytes | memoryview) -> str:
    """Digest of a name and the bytes stored under it; the same bytes under another name have another digest."""
    hasher = _begun(name, len(data))
    hasher.update(data)
    return hasher.hexdigest()


def _begun(name: str, size: int) -> Any:
    return hashlib.sha256(f"{len(name.encode())}:{name}:{size}:".encode())


class Archive:
    """A zip file of known members, each read within limits and checked against its digest.

    Attributes:
        digests: member -> its digest, as the file states it.

    Args:
        handle: the file; it stays open as long as members are read.
        allowed: whether a member of this name is part of the format.

    Raises:
        InputError: it is not a zip file, or has members that are unknown, repeated, encrypted, or otherwise packed.
        FileLimitError: it would inflate to more than its size allows.
    """

    def __init__(self, handle: IO[bytes], allowed: Callable[[str], bool], limits: FileLimits = LIMITS) -> None:
        self.handle, self.limits = handle, limits
        self.size_bytes = os.fstat(handle.fileno()).st_size
        try:
            self.zip = zipfile.ZipFile(handle)
        except Exception as error:  # zipfile passes on any exception of its own reading
            raise InputError(f"it is not a zip file: {cause_of(error)}") from error
        self._members = self._checked(allowed)
        held = json_of(self._unpacked(DIGESTS), DIGESTS, limits)
        if not isinstance(held, dict) or set(held) != set(self._members) - {DIGESTS}:  # pyright: ignore[reportUnknownArgumentType]
            raise InputError("its list of digests names other members than it has")
        self.digests: dict[str, Any] = held  # pyright: ignore[reportUnknownMemberType]

    def _checked(self, allowed: Callable[[str], bool]) -> dict[str, zipfile.ZipInfo]:
        """Return the members of an archive by name; refuse unknown, repeated, encrypted and oversized ones."""
        rows = self.zip.infolist()
        if len(rows) > self.limits.members:
            raise FileLimitError(f"it has {len(rows)} members; at most {self.limits.members} are accepted")
        entries: dict[str, zipfile.ZipInfo] = {}
        for row in rows:
            name = shown(row.filename)
            if row.filename != DIGESTS and not allowed(row.filename):
                raise InputError(f"it holds {name!r}, which is no part of the format")
            if row.filename in entries:
                raise InputError(f"it holds {name!r} twice")
            if row.flag_bits & 1:
                raise InputError(f"its {name!r} is encrypted")
            if row.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"its {name!r} is packed in a way that is not accepted")
            entries[row.filename] = row
        if DIGESTS not in entries:
            raise InputError("it holds no digests")
        if sum(row.file_size for row in rows) > self.limits.inflated * self.size_bytes + 2**16:
            raise FileLimitError(
                f"its {self.size_bytes} bytes unpack to more than {self.limits.inflated} times as many"
            )
        return entries

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members, without the digests."""
        return tuple(name for name in self._members if name != DIGESTS)

    def size_of(self, name: str) -> int:
        """Size that a member states, in bytes; 0 where it is absent."""
        row = self._members.get(name)
        return 0 if row is None else row.file_size

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            InputError: it is absent, damaged, or does not match its digest.
            FileLimitError: it is larger than a text may be.
        """
        data = self._unpacked(name)
        self.check(name, data)
        return data

    def text(self, name: str) -> str:
        """A member as text."""
        return text_of(self.read(name), repr(name))

    def json(self, name: str) -> Any:
        """A member as JSON."""
        return json_of(self.read(name), repr(name), self.limits)

    def _unpacked(self, name: str) -> bytes:
        row = self._members.get(name)
        if row is None:
            raise InputError(f"it holds no {name!r}")
        if row.file_size > self.limits.text_bytes:
            raise FileLimitError(f"its {name!r} has more than {self.limits.text_bytes} bytes")
        try:
            with self.zip.open(row) as member:
                data = member.read(row.file_size + 1)
        except Exception as error:  # zipfile passes on any exception of its own reading and of zlib
            raise InputError(f"its {name!r} is damaged: {cause_of(error)}") from error
        if len(data) != row.file_size:
            raise InputError(f"its {name!r} has not the size that it states")
        return data

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fill a buffer with the bytes of a member that is stored unpacked and has its size.

        Raises:
            InputError: it is absent, packed, of another size, damaged, or does not match its digest.
        """
        begin, size = self.place(name)
        if size != len(buffer):
            raise InputError(f"its {name!r} has {size} bytes, the program needs {len(buffer)}")
        hasher, at = _begun(name, len(buffer)), 0
        self.handle.seek(begin)
        while at < len(buffer):
            block = buffer[at : at + _BLOCK]
            count = self.handle.readinto(block)  # pyright: ignore[reportAttributeAccessIssue]
            if not count:
                raise InputError(f"its {name!r} ends too soon")
            hasher.update(block[:count])
            at += count
        if hasher.hexdigest() != self.digests.get(name):
            raise InputError(f"its {name!r} is not what its digest says")

    def place(self, name: str) -> tuple[int, int]:
        """Offset and size in bytes of a member that is stored unpacked.

        Raises:
            InputError: it is absent, packed, or damaged.
        """
        row = self._members.get(name)
        if row is None:
            raise InputError(f"it holds no {name!r}")
        if row.compress_type != zipfile.ZIP_STORED or row.compress_size != row.file_size:
            raise InputError(f"its {name!r} is packed, and should not be")
        return self._begin(row), row.file_size

    def check(self, name: str, data: bytes | memoryview) -> None:
        """Compare the bytes of a member with its digest.

        Raises:
            InputError: they differ.
        """
        if digest(name, data) != self.digests.get(name):
            raise InputError(f"its {name!r} is not what its digest says")

    def _begin(self, row: zipfile.ZipInfo) -> int:
        """Offset in the file of a member's first byte, after its local header."""
        self.handle.seek(row.header_offset)
        head = self.handle.read(30)
        if head[:4] != b"PK\x03\x04":
            raise InputError(f"its {row.filename!r} is damaged: no header")
        return row.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")


class ArchiveWriter:
    """Writes archives that `Archive` reads; the file appears under its name, or a link's target, once complete.

    Attributes:
        digests: member -> its digest, of those written so far.

    Raises:
        OSError: the place cannot be written to, or is no regular file (a device, say).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        if self.path.exists() and not self.path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(path))
        self.digests: dict[str, str] = {}

    def __enter__(self) -> ArchiveWriter:
        self._beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        self._handle = open(self._beside, "xb")  # new: in a shared folder a link of that name may lead to another file
        self._zip = zipfile.ZipFile(self._handle, "w", zipfile.ZIP_DEFLATED)
        return self

    def text(self, name: str, content: str | bytes) -> None:
        """Write a packed member."""
        data = content.encode() if isinstance(content, str) else content
        self.digests[name] = digest(name, data)
        self._zip.writestr(_entry(name, zipfile.ZIP_DEFLATED), data)

    def json(self, name: str, value: Any) -> None:
        """Write plain data as JSON."""
        self.text(name, json.dumps(value, default=str))

    def aligned(self, name: str, data: memoryview) -> None:
        """Write a member unpacked, at a multiple of 64 bytes (so that it can be mapped)."""
        entry = _entry(name, zipfile.ZIP_STORED)
        begin = self._handle.tell() + 30 + len(name.encode()) + (20 if len(data) >= 2**31 - 1 else 0)
        pad = -(begin + 4) % 64
        entry.extra = b"\xfe\xca" + pad.to_bytes(2, "little") + bytes(pad)  # an unused field of the zip format
        entry.file_size = len(data)
        self.digests[name] = digest(name, data)
        with self._zip.open(entry, "w", force_zip64=len(data) >= 2**31 - 1) as member:
            for at in range(0, len(data), _BLOCK):
                member.write(data[at : at + _BLOCK])

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self._zip.writestr(_entry(DIGESTS, zipfile.ZIP_DEFLATED), json.dumps(self.digests))
                self._zip.close()
                self._handle.flush()
                os.fsync(self._handle.fileno())
                self._handle.close()
                os.replace(self._beside, self.path)
        finally:
            with contextlib.suppress(Exception):  # the caller gets the first error, such as a full disk
                self._zip.close()
            with contextlib.suppress(OSError):
                self._handle.close()
            with contextlib.suppress(OSError):
                os.unlink(self._beside)


def _entry(name: str, kind: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # equal programs are equal files
    entry.compress_type = kind
    entry.external_attr = 0o644 << 16
    return entry


__all__ = [
    "DIGESTS", "LIMITS", "Allowance", "Archive", "ArchiveWriter", "FileLimits", "bytes_of", "cause_of", "depth_of",
    "digest", "field", "json_of", "plain_file", "shown", "text_file", "text_of", "typed",
]  # fmt: skip
