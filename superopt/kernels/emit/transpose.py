"""Moves of elements between registers: transposes of square tiles, reversal, picking from several vectors."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.llvm.module import Function, vector


def shuffle(f: Function, a: str, b: str | None, lanes: Sequence[int], element: str, n: int) -> str:
    """Lanes of a (0..n-1) and b (n..2n-1), in this order."""
    type_ = vector(element, n)
    order = "<" + ", ".join(f"i32 {j}" for j in lanes) + ">"
    return f.value(f"shufflevector {type_} {a}, {type_} {b or 'poison'}, <{len(lanes)} x i32> {order}")


def reverse(f: Function, x: str, element: str, n: int) -> str:
    """The lanes from last to first."""
    return shuffle(f, x, None, list(range(n - 1, -1, -1)), element, n)


def square(f: Function, rows: Sequence[str], element: str, n: int) -> list[str]:
    """The columns of n rows of n lanes, n a power of 2: log2(n) rounds of n shuffles of two registers."""
    assert len(rows) == n
    assert n & (n - 1) == 0
    current = list(rows)
    width = n // 2
    while width:
        following = list(current)
        low = [k if not k & width else n + k - width for k in range(n)]
        high = [k + width if not k & width else n + k for k in range(n)]
        for j in range(n):
            if not j & width:
                a, b = current[j], current[j + width]
                following[j] = shuffle(f, a, b, low, element, n)
                following[j + width] = shuffle(f, a, b, high, element, n)
        current = following
        width //= 2
    return current


def pick(f: Function, chunks: Sequence[str], picks: Sequence[int], element: str, n: int) -> str:
    """Lane j is element `picks[j]` of the chunks laid end to end."""
    made, known = chunks[0], [p if p < n else -1 for p in picks]
    for c in range(1, len(chunks)):
        order: list[int] = []
        for j, p in enumerate(picks):
            here = c * n <= p < (c + 1) * n
            order.append(n + p - c * n if here else (j if c > 1 else known[j] if known[j] >= 0 else 0))
        made = shuffle(f, made, chunks[c], order, element, n)
    return made
