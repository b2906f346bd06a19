"""Symbols of ELF objects: other names for some of them, so that objects of equal names can be linked together."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from superopt.errors import PackageError

_HEAD = struct.Struct("<16s2H I 3Q I 6H")
_SECTION = struct.Struct("<2I 4Q 2I 2Q")
_SYMBOL = struct.Struct("<I 2B H 2Q")
_SYMBOL_TABLE = 2  # SHT_SYMTAB


def renamed(content: bytes, names: Mapping[str, str]) -> bytes:
    """Return a relocatable object in which these symbols have other names.

    The new names stand in a longer string table at the end of the object.

    Raises:
        PackageError: it is no ELF object of 64 bits.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise PackageError("the kernels are no ELF objects of 64 bits", hint="packages are made on Linux")
    first, width, count = (_HEAD.unpack_from(content)[i] for i in (6, 11, 12))
    sections = [_SECTION.unpack_from(content, first + number * width) for number in range(count)]
    table = next(section for section in sections if section[1] == _SYMBOL_TABLE)
    text_number, (begin, size) = table[6], table[4:6]
    at, length = sections[text_number][4:6]
    texts, changed = bytearray(content[at : at + length]), bytearray(content)
    for place in range(begin, begin + size, _SYMBOL.size):
        symbol = _SYMBOL.unpack_from(content, place)
        name = bytes(texts[symbol[0] : texts.index(0, symbol[0])]).decode()
        if name in names:
            _SYMBOL.pack_into(changed, place, len(texts), *symbol[1:])
            texts += names[name].encode() + b"\0"
    moved = (*sections[text_number][:4], len(changed), len(texts), *sections[text_number][6:])
    _SECTION.pack_into(changed, first + text_number * width, *moved)
    return bytes(changed + texts)
