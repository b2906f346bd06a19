"""Building ops with attributes per axis whose positions are values: iota, dynamic slices and updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rewrites.build.arrange import Built, arrange, atomic, broadcast, ordered, with_axes
from rewrites.language.named import Env, per_axis
from rewrites.language.term import Term
from rewrites.match.labels import Axis, Layout

if TYPE_CHECKING:
    from rewrites.build.terms import Builder


def per_axis_operand(
    b: Builder, t: Term, hint: Layout | None, env: Env, idle: tuple[Any, ...]
) -> tuple[Any, list[Any], Layout]:
    """Operand with the acted-on axes apart, attributes per physical axis (`idle` elsewhere), new layout."""
    acts = dict(per_axis(t, env))
    built = atomic(b.target, b.go(t.args[0], hint, env), acts, squeeze=False)
    busy = [x for x, values in acts.items() if values[: len(idle)] != idle]
    value, lay = with_axes(b.target, built, busy)
    sizes = b.sizes(t, env)
    values: list[Any] = []
    out: list[Axis] = []
    for axis in lay:
        label = axis[0][0] if len(axis) == 1 else None
        values.append(acts.get(label) if label is not None else None)
        out.append(axis if label is None or values[-1] is None else ((label, sizes[label]),))
    return value, values, tuple(out)


def build_iota(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """The index along an axis, in the rule's dtype."""
    ((label, size),) = b.sizes(t, env).items()
    return b.target.mk("iota", dtype=b.match.dtype, shape=(size,), dimension=0), (((label, size),),)


def build_expand(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """A broadcast to sizes given by expressions."""
    sizes = b.sizes(t, env)
    lay = ordered(sizes, hint)
    return broadcast(b.target, b.go(t.args[0], None, env), lay), lay


def _start(b: Builder, start: int) -> Any:
    return b.target.mk("literal", value=int(start), dtype="int32")


def build_slice(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """A slice at starts that are values; here they are literals."""
    value, acts, lay = per_axis_operand(b, t, hint, env, (None,))
    shape = b.target.shape(value)
    sizes = tuple(n if act is None else act[1] for n, act in zip(shape, acts, strict=True))
    starts = [_start(b, 0 if act is None else act[0]) for act in acts]
    return b.target.mk("dynamic_slice", value, *starts, slice_sizes=sizes), lay


def build_update(b: Builder, t: Term, hint: Layout | None, env: Env) -> Built:
    """One tensor written over another at starts that are values."""
    value, acts, lay = per_axis_operand(b, t, hint, env, (None,))
    sizes = b.sizes(t.args[1], env)
    want = tuple(
        axis if act is None else ((axis[0][0], sizes[axis[0][0]]),) for axis, act in zip(lay, acts, strict=True)
    )
    update, _ = arrange(b.target, b.go(t.args[1], None, env), want)
    starts = [_start(b, 0 if act is None else act[0]) for act in acts]
    return b.target.mk("dynamic_update_slice", value, update, *starts), lay
