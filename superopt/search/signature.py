"""The structure of a kernel as a tuple of integers: the key under which its price is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewrites.egraph import perm

if TYPE_CHECKING:
    from superopt.search.state import State

SHIFT = perm.PERM_BITS


def signature(state: State, c: int) -> tuple[int, ...]:
    """Structure of the kernel of `c`: per inlined class what it wants, per leaf which and how it lies."""
    options, selection, layouts, materialised = state.options, state.selection, state.layouts, state.materialised
    wants, compose, inverse = state.problem.wants, perm.compose, perm.inverse
    plain = wants.plain
    out: list[int] = []
    leaves: dict[int, int] = {}
    inlined = {c << SHIFT | layouts[c]: 0}
    queue = [(c, layouts[c])]
    for c, order in queue:  # grows while it is walked: -1 announces the next entry, -2 - i refers to entry i
        option = options[c][selection[c]]
        back = option.out_inverse
        d = compose(back, order) if back else order
        if option.needs_current:
            number, orders = wants.following(option, d, layouts)
        else:
            found = plain.get(option.fid << SHIFT | d)
            number, orders = found if found is not None else wants.fixed(option.fid, d)
        out.append(number)
        for position, k, p in option.live:
            o = orders[position]
            if p:
                o = compose(p, o)
            if materialised[k]:
                leaf = leaves.get(k)
                if leaf is None:
                    leaf = leaves[k] = len(leaves)
                lies = layouts[k]
                out.append(leaf << SHIFT | (0 if lies == o else compose(inverse(lies), o)))  # 0: lies as wanted
            else:
                key = k << SHIFT | o
                known = inlined.get(key)
                if known is None:
                    inlined[key] = len(queue)
                    queue.append((k, o))
                    out.append(-1)
                else:
                    out.append(-2 - known)
    return tuple(out)
