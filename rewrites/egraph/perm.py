"""Interned permutations, small enough to ride on a class reference.

A permutation p of the axes of a tensor is named by an integer below `2**PERM_BITS`; 0 is the identity of every rank.
It acts as `numpy.transpose` does: `transpose(x, p)` has axis i of the result where x had axis p[i].  Hence

    transpose(transpose(x, a), b)  =  transpose(x, compose(a, b)),      compose(a, b)[i] = a[b[i]].

All permutations up to rank 5 are interned beforehand in lexicographic order, so that their names do not depend on
the order in which programs were read; those of higher rank are interned as they are met.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from superopt.errors import SuperoptError

PERM_BITS = 12
PERM_MASK = (1 << PERM_BITS) - 1
CLASS_MASK = ~PERM_MASK
IDENTITY = 0

PERMS: list[tuple[int, ...]] = [()]  # name -> permutation; the entry of the identity is never read
_NAMES: dict[tuple[int, ...], int] = {}
_COMPOSED: dict[int, int] = {}
_INVERSE: dict[int, int] = {0: 0}
_LOCK = threading.Lock()


class PermutationLimitError(SuperoptError):
    """Raised when a process meets more distinct permutations than a class reference can name."""

    code = "SO420"


def intern(perm: Sequence[int]) -> int:
    """Name of a permutation; 0 for the identity of any rank.

    Raises:
        PermutationLimitError: more than `2**PERM_BITS` permutations were met in this process.
    """
    key = tuple(perm)
    name = _NAMES.get(key)
    if name is None:
        if sorted(key) != list(range(len(key))):
            raise ValueError(f"{key} is not a permutation")
        with _LOCK:  # two threads that name the next one would name two permutations alike
            name = _NAMES.get(key)
            if name is None:
                name = _named(key)
    return name


def _named(key: tuple[int, ...]) -> int:
    name = IDENTITY if key == tuple(range(len(key))) else len(PERMS)
    if name > PERM_MASK:
        raise PermutationLimitError(f"more than {PERM_MASK} permutations of axes in one process")
    if name != IDENTITY:
        PERMS.append(key)
    _NAMES[key] = name  # last: whoever finds a name finds its permutation
    return name


def compose(a: int, b: int) -> int:
    """The permutation that applies `a` first, then `b`."""
    if not a:
        return b
    if not b:
        return a
    key = a << PERM_BITS | b
    name = _COMPOSED.get(key)
    if name is None:
        first = PERMS[a]
        name = _COMPOSED[key] = intern([first[i] for i in PERMS[b]])
    return name


def inverse(a: int) -> int:
    """The permutation that undoes `a`."""
    name = _INVERSE.get(a)
    if name is None:
        name = _INVERSE[a] = intern(inverse_of(PERMS[a]))
    return name


def perm_of(a: int, rank: int) -> tuple[int, ...]:
    """The permutation named `a` as a tuple, for a tensor of this rank."""
    return PERMS[a] if a else tuple(range(rank))


def inverse_of(perm: Sequence[int]) -> tuple[int, ...]:
    """The inverse of a permutation given as a tuple."""
    out = [0] * len(perm)
    for i, axis in enumerate(perm):
        out[axis] = i
    return tuple(out)


for _rank in range(6):
    for _perm in itertools.permutations(range(_rank)):
        intern(_perm)
