"""Seals of trusted cache files: only the key of this folder can make them.

Files in a folder may be damaged, or come from elsewhere (a folder that was unpacked, shared or shipped).  A seal is an
HMAC of the file's name and content under a key of 32 bytes beside it, which no other user may read.  A file without a
valid seal counts as absent.  Content in a file elsewhere, of a user, has a signature by the same key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path

KEY = "seal.key"
_BYTES = 32
_TRIES = 3


def sealed(path: Path, content: bytes) -> bytes:
    """Bytes of a sealed file: its content under the seal of its name in its folder."""
    return _seal(path, content).encode() + b"\n" + content


def unsealed(path: Path) -> bytes | None:
    """The content of a file; None where it is absent or its seal is not valid for this name and folder."""
    try:
        stated, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if hmac.compare_digest(stated, _seal(path, content).encode()) else None


def signature(folder: Path, purpose: str, content: bytes) -> str:
    """The seal of content that lies elsewhere, made for a purpose with the key of a folder."""
    return _seal(folder / purpose, content)


def is_signed(folder: Path, purpose: str, content: bytes, stated: str) -> bool:
    """Whether this is the signature of content for a purpose, by the key of a folder."""
    return hmac.compare_digest(stated.encode(), signature(folder, purpose, content).encode())


def _seal(path: Path, content: bytes) -> str:
    return hmac.new(_key(path.parent.absolute()), path.name.encode() + b"\0" + content, hashlib.sha256).hexdigest()


@functools.cache
def _key(folder: Path) -> bytes:
    """The key of a folder, created where there is none that only this user can read.

    Where no key can be stored, this process uses one of its own: no file of another process is then trusted.
    """
    path = folder / KEY
    for _ in range(_TRIES):
        known = _private(path)
        if known is not None:
            return known
        with contextlib.suppress(OSError):
            _make(path)
    return secrets.token_bytes(_BYTES)


def _private(path: Path) -> bytes | None:
    """The key in a file; None where others may read or write it."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        facts = os.fstat(handle)
        mine = not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o077)
        content = os.read(handle, _BYTES + 1) if stat.S_ISREG(facts.st_mode) and mine else b""
    finally:
        os.close(handle)
    return content if len(content) == _BYTES else None


def _make(path: Path) -> None:
    """Create a new key file; one that another process created first stays, and an invalid one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)  # for this user alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
        if path.is_symlink() or (path.exists() and _private(path) is None):
            os.replace(name, path)
        else:
            os.link(name, path)
    except FileExistsError:
        return
    finally:
        Path(name).unlink(missing_ok=True)
