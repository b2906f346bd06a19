"""Building right sides: terms to physical tensors, in an e-graph or as IR nodes.

Bottom-up over the right side; a value is (node, layout).  Positions of labels *are* the dimension numbers, so products
and convolutions take operands in any order; elementwise ops adopt the layout of one operand; `sigma` and `maxi` are
unrolled over the axes of their role.  The layout of the root is passed down as a hint, the result is arranged to it
and must have exactly its type.  Ops with nothing to do are not emitted.

Products and convolutions carry precision and preferred_element_type of the matched ones; literals have the rule's
dtype at the site.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from rewrites.build.arrange import (
    BuildError,
    Built,
    arrange,
    atomic,
    axis_of,
    broadcast,
    extent,
    labels_in,
    ordered,
    place_beside,
    reshape,
    sizes_in,
    with_axes,
    without,
)
from rewrites.build.target import IRTarget, Target
from rewrites.language.kinds import adds_positions, bare, compares_positions
from rewrites.language.named import Env, labels_of, per_axis
from rewrites.language.shapes import shape
from rewrites.language.term import PHYSICAL, Rule, Term, halves, names_in, windows
from rewrites.match.labels import Axis, Layout
from rewrites.match.matching import Match, matches
from rewrites.match.space import IRSpace
from superopt.ir.graph import Node
from superopt.ir.types import FLOATS, POSITIONS


class Builder:
    """Builds terms of one match."""

    def __init__(self, match: Match, target: Target) -> None:
        self.match, self.target = match, target
        self.rule, self.env = match.rule, match.env
        self.precision, self.preferred = match.carried
        self._memo: dict[Any, Built] = {}
        self._depends: dict[Term, frozenset[str]] = match.rule.cache.setdefault("depends", {})

    def go(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """The value of a term, memoized; `hint` is the layout that its reader prefers."""
        used = self.depends(t)
        key = (t, tuple(env.attr[k] for k in sorted(env.attr, key=repr) if k[0] in used)) if used else t
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.make(t, hint, env)
        return found

    def make(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a term without looking it up in the memo."""
        return self._BY_OP[t.op](self, t, hint, env)

    def depends(self, t: Term) -> frozenset[str]:
        """Fold indices that a term mentions."""
        found = self._depends.get(t)
        if found is None:
            found = frozenset[str]().union(*[self.depends(a) for a in t.args])
            if self.rule.indices:
                own = [names_in(e) for _, exprs in windows(t) for e in exprs if e is not None]
                own += [names_in(t["value"])] if t.op == "lit" else []
                found |= frozenset[str]().union(*own) & self.rule.indices
            self._depends[t] = found
        return found

    def sizes(self, t: Term, env: Env) -> dict[int, int]:
        """Named shape of a term."""
        return shape(t, env, [])

    def literal(self, t: Term, env: Env) -> Any:
        """A scalar of the rule's dtype."""
        e, dtype = t["value"], self.match.dtype
        value = e[1] if e[0] == "n" else env.value(e)
        if isinstance(value, bool):
            return self.target.mk("literal", value=value, dtype="bool")
        return self.target.mk("literal", value=float(value) if dtype in FLOATS else int(value), dtype=dtype)

    def zero(self) -> Any:
        """The scalar 0 of the rule's dtype."""
        return self.target.mk("literal", value=0.0 if self.match.dtype in FLOATS else 0, dtype=self.match.dtype)

    # ---- leaves, elementwise ops, broadcasts, folds

    def _var(self, t: Term, hint: Layout | None, env: Env) -> Built:
        value, lay = self.match.vars[t["name"]]
        if lay and not self.target.shape(value):  # a scalar that stands for its broadcast
            sizes = tuple(math.prod([n for _, n in axis]) for axis in lay)
            value = self.target.mk("broadcast_in_dim", value, shape=sizes, broadcast_dimensions=())
        return value, lay

    def _lit(self, t: Term, hint: Layout | None, env: Env) -> Built:
        return self.literal(t, env), ()

    def _view(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build the operand alone: the op is the identity, or adds a role of size 1, which an absent label means."""
        return self.go(t.args[0], hint, env)

    def _ew(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Broadcast all operands to the layout of one: one that is in the hint's order if any is, else the largest."""
        target = self.target
        whole = compares_positions(self.rule.kinds, t) or adds_positions(t)

        def made(a: Term, hint: Layout | None) -> Built:
            return self._position(a, env, t) if whole and a.op in ("iota", "lit") else self.go(a, hint, env)

        kids = [None if a.op in ("bcast", "lit") else made(a, hint) for a in t.args]
        full = [kid for kid in kids if kid is not None]
        if full:
            lay = max(full, key=lambda kid: (_follows(kid[1], hint), math.prod(target.shape(kid[0]))))[1]
        else:
            sizes: dict[int, int] = {}
            for a in t.args:
                sizes.update(self.sizes(a, env))
            lay = ordered(sizes, hint)
        out: list[Any] = []
        for a, kid in zip(t.args, kids, strict=True):
            if kid is None:
                out.append(broadcast(target, made(bare(a), None), lay))
            else:
                out.append(arrange(target, kid, lay)[0])
        op, attrs = self.match.metas.get(t["f"], (t["f"], t["params"]))
        return target.mk(op, *out, **dict(attrs)), lay

    def _bcast(self, t: Term, hint: Layout | None, env: Env) -> Built:
        inner = self.go(t.args[0], None, env)
        sizes = self.sizes(t, env)
        if hint is not None:
            lay = ordered(sizes, hint)
        else:
            have = set(labels_in(inner[1]))
            lay = (*inner[1], *[((label, n),) for label, n in sizes.items() if label not in have])
        return broadcast(self.target, inner, lay), lay

    def _fold(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Unroll a `sigma` or `maxi` over the box of the role's axes."""
        op = "add" if t["kind"] == "sum" else "max"
        total: Built | None = None
        for part in self.unrolled(t, hint, env):
            if total is None:
                total = part
            else:
                value, lay = total
                total = self.target.mk(op, value, arrange(self.target, part, lay)[0]), lay
        if total is None:
            raise BuildError(f"rule {self.rule.name}: an empty {op} cannot be unrolled")
        return total

    def unrolled(self, t: Term, hint: Layout | None, env: Env) -> Iterator[Built]:
        """The body at every point of the box of the role's axes, row-major."""
        labels = env.labels[self.rule.owner[t["bound"]]]
        for point in itertools.product(*[range(env.look(t["bound"], label)) for label in labels]):
            at = {(t["idx"], label): k for label, k in zip(labels, point, strict=True)}
            yield self.go(t.args[0], hint, env.with_attrs(at))

    # ---- products, reductions, windows, movement; positions that are values; roles made and renamed

    def _dot(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Positions of labels are the dimension numbers; operands are swapped where the hint says so."""
        x, y = (self.go(a, hint, env) for a in t.args)
        contracted = labels_of(env, t["over"])
        miss = _only(x, y, contracted)
        x, y = without(x, miss), without(y, miss)
        in_x, in_y = sizes_in(x[1]), sizes_in(y[1])
        both = {label for label in in_x if label in in_y}
        blocks = _blocks(x[1], y[1], set(contracted))
        inside = {label for block in blocks for label, _ in block}
        x = self._apart(x, both - inside, blocks)
        y = self._apart(y, both - inside, blocks)
        wanted = labels_in(hint) if hint is not None else []
        free = [label for label in wanted if (label in in_x) != (label in in_y)]
        lead = next((label for label in free if {**in_x, **in_y}[label] != 1), None)
        if lead in in_y:
            x, y, in_x, in_y = y, x, in_y, in_x
        batch = [label for label in labels_in(x[1]) if label in both and label not in contracted]
        place = {label: i for i, label in enumerate(wanted)}
        batch.sort(key=lambda label: place.get(label, len(place)))
        later = {label for block in blocks for label, _ in block[1:]}
        over = [label for label in labels_in(x[1]) if label in both and label in contracted and label not in later]

        def at(built: Built, labels: Sequence[int]) -> tuple[int, ...]:
            return tuple(axis_of(built[1], label) for label in labels)

        numbers = ((at(x, over), at(y, over)), (at(x, batch), at(y, batch)))
        out: list[Axis] = [((label, in_x[label]),) for label in batch]
        for built in (x, y):
            out += [axis for axis in built[1] if not any(label in both for label, _ in axis)]
        value = self.target.mk(
            PHYSICAL["dot"], x[0], y[0], dimension_numbers=numbers, precision=self.precision,
            preferred_element_type=self.preferred,
        )  # fmt: skip
        return value, tuple(out)

    def _apart(self, built: Built, only: set[int], blocks: Sequence[Axis]) -> Built:
        """Split merged axes that hold a label of `only`, keep each block as one axis, and drop axes without a label."""
        first = {block[0]: block for block in blocks}
        inside = {e for block in blocks for e in block}
        want: list[Axis] = []
        for axis in built[1]:
            if not inside.isdisjoint(axis) or (len(axis) > 1 and any(label in only for label, _ in axis)):
                want += [first.get(e, (e,)) for e in axis if e in first or e not in inside]
            elif axis:
                want.append(axis)
        return arrange(self.target, built, want)

    def _conv(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a convolution; dimension numbers absorb the orders of axes.

        An operand whose groups of labels are one axis each already keeps its order; the result follows the hint.
        """
        if not any(env.labels[r] for r, _ in t["win"]):
            return self._dot(t, hint, env)  # a convolution without windows
        x, w = (self.go(a, hint, env) for a in t.args)
        features = labels_of(env, t["over"])
        miss = _only(x, w, features)
        x, w = without(x, miss), without(w, miss)
        in_x, in_w = sizes_in(x[1]), sizes_in(w[1])
        window = dict(per_axis(t, env))
        spatial = list(window)
        inner = [label for label in labels_in(x[1]) if label in features]
        busy = {*inner, *spatial}
        group = [label for label in in_x if label in in_w and label not in busy]
        batch = [label for label in in_x if label not in in_w and label not in busy]
        outer = [label for label in in_w if label not in in_x and label not in busy]

        def axis(labels: Sequence[int], size: dict[int, int]) -> Axis:
            return tuple((label, size[label]) for label in labels if label in size)

        xv, x_spec = self._place(x, [axis(s, in_x) for s in (batch, group + inner, *([label] for label in spatial))])
        wv, w_spec = self._place(w, [axis(s, in_w) for s in (group + outer, inner, *([label] for label in spatial))])
        sizes = self.sizes(t, env)
        out: list[Axis] = [axis(batch, in_x), axis(group + outer, in_w), *[((s, sizes[s]),) for s in spatial]]
        o_spec = _follow(out, hint) or x_spec
        lay: list[Axis] = [()] * len(out)
        for held, position in zip(out, o_spec, strict=True):
            lay[position] = held
        value = self.target.mk(
            PHYSICAL["conv"], xv, wv,
            window_strides=tuple(window[s][0] for s in spatial),
            padding=tuple((window[s][1], window[s][2]) for s in spatial),
            lhs_dilation=tuple(window[s][3] for s in spatial),
            rhs_dilation=tuple(window[s][4] for s in spatial),
            dimension_numbers=(x_spec, w_spec, o_spec),
            feature_group_count=math.prod([in_x[label] for label in group]),
            precision=self.precision, preferred_element_type=self.preferred,
        )  # fmt: skip
        return value, tuple(lay)

    def _place(self, built: Built, groups: Sequence[Axis]) -> tuple[Any, tuple[int, ...]]:
        """The tensor with one axis per group, and the axis of each group; the physical order is kept where possible."""
        lay = list(built[1])
        free = [i for i, axis in enumerate(lay) if not axis]
        if all(group in lay for group in groups if group):
            need = sum(not group for group in groups)
            while len(free) < need:
                free.append(len(lay))
                lay.append(())
            if len(lay) == len(groups):
                spec = tuple(lay.index(group) if group else free.pop(0) for group in groups)
                return reshape(self.target, built[0], tuple(map(extent, lay))), spec
        order = _as_it_lies(groups, labels_in(lay))
        value, _ = arrange(self.target, built, [groups[i] for i in order])
        return value, tuple(order.index(i) for i in range(len(groups)))

    def _red(self, t: Term, hint: Layout | None, env: Env) -> Built:
        over = set(labels_of(env, t["over"]))
        value, lay = atomic(self.target, self.go(t.args[0], None, env), over, squeeze=False)
        axes = tuple(i for i, axis in enumerate(lay) if axis and axis[0][0] in over)
        if not axes:
            return value, lay
        op, attrs = self.match.metas.get(t["kind"], (f"reduce_{t['kind']}", ()))
        kept = tuple(axis for i, axis in enumerate(lay) if i not in axes)
        return self.target.mk(op, value, **{**dict(attrs), "axes": axes}), kept

    def _cum(self, t: Term, hint: Layout | None, env: Env) -> Built:
        (label,) = labels_of(env, t["over"])
        value, lay = atomic(self.target, self.go(t.args[0], hint, env), {label}, squeeze=False)
        if label not in labels_in(lay):
            return value, lay
        return self.target.mk(f"cum{t['kind']}", value, axis=axis_of(lay, label), reverse=t["reverse"]), lay

    def _concat(self, t: Term, hint: Layout | None, env: Env) -> Built:
        (label,) = labels_of(env, t["over"])
        parts = [
            self._with_axis(atomic(self.target, self.go(a, hint, env), {label}, squeeze=False), label, hint)
            for a in t.args
        ]
        first, lay = parts[0]
        position = axis_of(lay, label)
        values = [first]
        total = sizes_in(lay)[label]
        for part in parts[1:]:
            n = sizes_in(part[1])[label]
            total += n
            values.append(arrange(self.target, part, (*lay[:position], ((label, n),), *lay[position + 1 :]))[0])
        value = self.target.mk("concatenate", *values, dimension=position)
        return value, (*lay[:position], ((label, total),), *lay[position + 1 :])

    def _with_axis(self, built: Built, label: int, hint: Layout | None) -> Built:
        """The tensor with an axis for a label: a new one behind the label before it in the hint, else in front."""
        value, lay = built
        if label in labels_in(lay):
            return built
        order = labels_in(hint or ())
        before = order[: order.index(label)] if label in order else []
        place = next((axis_of(lay, x) + 1 for x in reversed(before) if x in labels_in(lay)), 0)
        lay = (*lay[:place], ((label, 1),), *lay[place:])
        return reshape(self.target, value, tuple(map(extent, lay))), lay

    def _rev(self, t: Term, hint: Layout | None, env: Env) -> Built:
        over = set(labels_of(env, t["over"]))
        value, lay = atomic(self.target, self.go(t.args[0], hint, env), over, squeeze=False)
        dims = tuple(i for i, axis in enumerate(lay) if axis and axis[0][0] in over)
        return (self.target.mk("rev", value, dimensions=dims) if dims else value), lay

    def _lay(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Arrange a tensor in a given physical order; in an e-graph, where transposes are free, this adds no e-node."""
        size = self.sizes(t, env)
        want = tuple(((x, size[x]),) for x in labels_of(env, t["order"]) if x in size)
        return arrange(self.target, self.go(t.args[0], want, env), want)

    def _slice(self, t: Term, hint: Layout | None, env: Env) -> Built:
        value, acts, lay = self._per_axis_operand(t, hint, env, (0, 1, 1))
        shape = self.target.shape(value)
        starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
        for i, act in enumerate(acts):
            if act is not None:
                starts[i], limits[i], strides[i] = act[0], shape[i] if act[1] is None else act[1], act[2]
        return self._sliced(value, starts, limits, strides), lay

    def _sliced(self, value: Any, starts: list[int], limits: list[int], strides: list[int]) -> Any:
        if not any(starts) and limits == list(self.target.shape(value)) and all(s == 1 for s in strides):
            return value
        return self.target.mk(
            "slice", value, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides)
        )  # fmt: skip

    def _at(self, t: Term, hint: Layout | None, env: Env) -> Built:
        acts = dict(per_axis(t, env))
        value, lay = atomic(self.target, self.go(t.args[0], hint, env), acts, squeeze=False)
        shape = self.target.shape(value)
        starts, limits = [0] * len(shape), list(shape)
        out: list[Axis] = []
        for i, axis in enumerate(lay):
            act = acts.get(axis[0][0]) if len(axis) == 1 else None
            if act is not None:
                starts[i], limits[i] = act[0], act[0] + 1
            out.append(() if act is not None else axis)
        return self._sliced(value, starts, limits, [1] * len(shape)), tuple(out)

    def _pad(self, t: Term, hint: Layout | None, env: Env) -> Built:
        value, acts, lay = self._per_axis_operand(t, hint, env, (0, 0, 0))
        config = tuple((0, 0, 0) if act is None else act for act in acts)
        if not any(map(any, config)):
            return value, lay
        fill = self.go(t.args[1], None, env)
        return self.target.mk("pad", value, arrange(self.target, fill, ())[0], padding_config=config), lay

    def _win(self, t: Term, hint: Layout | None, env: Env) -> Built:
        value, acts, lay = self._per_axis_operand(t, hint, env, (1, 1, 0, 0))
        full = [(1, 1, 0, 0) if act is None else act for act in acts]
        if all(act == (1, 1, 0, 0) for act in full):
            return value, lay
        value = self.target.mk(
            f"reduce_window_{t['kind']}", value,
            window_dimensions=tuple(a[0] for a in full), window_strides=tuple(a[1] for a in full),
            padding=tuple((a[2], a[3]) for a in full),
            base_dilation=(1,) * len(full), window_dilation=(1,) * len(full),
        )  # fmt: skip
        return value, lay

    def _take(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Rows of a table, or of a batch of tables along the labels that the indices have as well."""
        (label,) = labels_of(env, t["over"])
        table, indices = self.go(t.args[0], None, env), self._indices(t.args[1], env)
        shared = {x for x in labels_in(table[1]) if x in labels_in(indices[1])}
        value, lay = with_axes(self.target, atomic(self.target, table, {label, *shared}, squeeze=True), [label])
        index, own = atomic(self.target, indices, shared, squeeze=True)
        index, _ = arrange(self.target, (index, own), (*own, ()))
        along = axis_of(lay, label)
        pairs = sorted((axis_of(lay, x), axis_of(own, x)) for x in shared)
        single = {along, *[i for i, _ in pairs]}
        rest = tuple(axis for i, axis in enumerate(lay) if i not in single)
        value = self.target.mk(
            "gather", value, index,
            offset_dims=tuple(range(len(own), len(own) + len(rest))), collapsed_slice_dims=(along,),
            start_index_map=(along,), operand_batching_dims=tuple(i for i, _ in pairs),
            start_indices_batching_dims=tuple(i for _, i in pairs), mode="clip",
            slice_sizes=tuple(1 if i in single else extent(axis) for i, axis in enumerate(lay)),
        )  # fmt: skip
        return value, (*own, *rest)

    def _inverse(self, t: Term, hint: Layout | None, env: Env) -> Built:
        value, lay = self._matrices(t, env)
        return self.target.mk("inverse", value), (*lay[:-2], lay[-1], lay[-2])

    def _solve(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Solve for all columns of the right side at once: its axes that are no axes of the matrix, as one."""
        value, lay = self._matrices(t, env)
        *batch, row, column = lay
        beside = {label for axis in (*batch, row) for label, _ in axis}
        y, own = atomic(self.target, self.go(t.args[1], None, env), beside, squeeze=True)
        right = tuple([entry for axis in own for entry in axis if entry[0] not in beside])
        values, _ = arrange(self.target, (y, own), (*batch, row, right))
        return self.target.mk("solve", value, values), (*batch, column, right)

    def _matrices(self, t: Term, env: Env) -> Built:
        """The first operand with one axis for each label of its batch, then one for all rows, one for all columns."""
        rows, columns = (labels_of(env, roles) for roles in halves(t))
        built = self.go(t.args[0], None, env)
        value, lay = atomic(self.target, built, labels_in(built[1]), squeeze=True)
        size = sizes_in(lay)
        batch = [axis for axis in lay if axis[0][0] not in (*rows, *columns)]
        ends = [tuple([(label, size[label]) for label in labels if label in size]) for labels in (rows, columns)]
        return arrange(self.target, (value, lay), (*batch, *ends))

    def _indices(self, t: Term, env: Env) -> Built:
        return self._counted(t, env, "int32") if t.op == "iota" else self.go(t, None, env)

    def _segsum(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Sums by segments: the axes of the segments lead in both operands."""
        *lead, segment = labels_of(env, t["over"])
        segments, own = atomic(self.target, self.go(t.args[1], None, env), lead, squeeze=True)
        rows = atomic(self.target, self.go(t.args[0], None, env), lead, squeeze=True)
        value, lay = with_axes(self.target, rows, labels_in(own))
        rest = tuple(axis for axis in lay if not any(label in lead for label, _ in axis))
        value, _ = arrange(self.target, (value, lay), (*own, *rest))
        count = self.sizes(t, env)[segment]
        return self.target.mk("segment_sum", value, segments, segments=count), (((segment, count),), *rest)

    def _per_axis_operand(
        self, t: Term, hint: Layout | None, env: Env, idle: tuple[Any, ...]
    ) -> tuple[Any, list[Any], Layout]:
        """The operand with acted-on axes split off, attributes per physical axis (None elsewhere), and the layout."""
        acts = dict(per_axis(t, env))
        built = atomic(self.target, self.go(t.args[0], hint, env), acts, squeeze=False)
        busy = [x for x, values in acts.items() if values[: len(idle)] != idle]
        value, lay = with_axes(self.target, built, busy)
        sizes = self.sizes(t, env)
        values: list[Any] = []
        out: list[Axis] = []
        for axis in lay:
            label = axis[0][0] if len(axis) == 1 else None
            values.append(acts.get(label) if label is not None else None)
            out.append(axis if label is None or values[-1] is None else ((label, sizes[label]),))
        return value, values, tuple(out)

    def _iota(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build an iota along one axis, in the rule's dtype."""
        return self._counted(t, env, self.match.dtype)

    def _counted(self, t: Term, env: Env, dtype: str) -> Built:
        ((label, size),) = self.sizes(t, env).items()
        return self.target.mk("iota", dtype=dtype, shape=(size,), dimension=0), (((label, size),),)

    def _position(self, t: Term, env: Env, beside: Term) -> Built:
        """One side of a comparison of positions: its integers are those of the index that is compared, else int32."""
        indices = [self.match.vars[a["name"]][0] for a in map(bare, beside.args) if a.op == "var"]
        dtype = self.target.dtype(indices[0]) if indices else "int32"
        if dtype not in POSITIONS:
            raise BuildError(f"rule {self.rule.name}: {dtype} may not hold the positions along an axis")
        if t.op == "iota":
            return self._counted(t, env, dtype)
        e = t["value"]
        value = int(e[1] if e[0] == "n" else env.value(e))
        return self.target.mk("literal", value=value, dtype=dtype), ()

    def _expand(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """A broadcast to sizes given by expressions."""
        sizes = self.sizes(t, env)
        lay = ordered(sizes, hint)
        return broadcast(self.target, self.go(t.args[0], None, env), lay), lay

    def _start(self, start: int) -> Any:
        return self.target.mk("literal", value=int(start), dtype="int32")

    def _dynslice(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a `dynamic_slice`; the starts, values known at run time in a program, are literals here."""
        value, acts, lay = self._per_axis_operand(t, hint, env, (None,))
        shape = self.target.shape(value)
        sizes = tuple(n if act is None else act[1] for n, act in zip(shape, acts, strict=True))
        starts = [self._start(0 if act is None else act[0]) for act in acts]
        return self.target.mk("dynamic_slice", value, *starts, slice_sizes=sizes), lay

    def _dynupdate(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Build a `dynamic_update_slice`: one tensor written over another, at starts that are literals here."""
        value, acts, lay = self._per_axis_operand(t, hint, env, (None,))
        sizes = self.sizes(t.args[1], env)
        want = tuple(
            axis if act is None else ((axis[0][0], sizes[axis[0][0]]),) for axis, act in zip(lay, acts, strict=True)
        )
        update, _ = arrange(self.target, self.go(t.args[1], None, env), want)
        starts = [self._start(0 if act is None else act[0]) for act in acts]
        return self.target.mk("dynamic_update_slice", value, update, *starts), lay

    def _split(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Axis n of size o * q becomes the axes o and i."""
        whole, outer, inner = (env.labels[r] for r in t["over"])
        value, lay = atomic(self.target, self.go(t.args[0], None, env), set(whole), squeeze=False)
        sizes = self.sizes(t, env)
        parts = {n: (o, i) for n, o, i in zip(whole, outer, inner, strict=True)}
        out: list[Axis] = []
        for axis in lay:
            pair = parts.get(axis[0][0]) if len(axis) == 1 else None
            out += [axis] if pair is None else [((label, sizes[label]),) for label in pair]
        return reshape(self.target, value, tuple(map(extent, out))), tuple(out)

    def _merge(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Axes o and i become the axis n, index n = o * size(i) + i."""
        outer, inner, whole = (env.labels[r] for r in t["over"])
        busy = {*outer, *inner}
        inside = {n: (o, i) for o, i, n in zip(outer, inner, whole, strict=True)}
        sizes = self.sizes(t.args[0], env)
        near: list[Axis] = []
        for axis in hint or ():  # the parts of the axis, side by side
            split = [x for label, _ in axis for x in inside.get(label, (label,))]
            near += [((x, sizes[x]),) for x in split] if len(split) > len(axis) else [axis]
        held = {label for axis in near for label, _ in axis}
        near += [((x, sizes[x]),) for pair in inside.values() if pair[1] not in held for x in pair if x not in held]
        built = self.go(t.args[0], tuple(near), env)
        size = sizes_in(built[1])
        value, lay = atomic(self.target, built, busy, squeeze=False)
        want: list[Axis] = []
        named: list[Axis] = []
        pairs = {o: (o, i, n) for o, i, n in zip(outer, inner, whole, strict=True)}
        for axis in lay:
            label = axis[0][0] if len(axis) == 1 else None
            if label in pairs:
                o, i, n = pairs.pop(label)
                want.append(tuple((x, size[x]) for x in (o, i) if x in size))
                named.append(((n, math.prod([size.get(x, 1) for x in (o, i)])),))
            elif label is None or label not in busy:
                want.append(axis)
                named.append(axis)
        for o, i, n in pairs.values():  # o is absent (size 1)
            want.append(tuple((x, size[x]) for x in (o, i) if x in size))
            named.append(((n, math.prod([size.get(x, 1) for x in (o, i)])),))
        return arrange(self.target, (value, lay), want)[0], tuple(named)

    def _ren(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Rename labels; the tensor stays the same."""
        old, new = (env.labels[r] for r in t["over"])
        names = dict(zip(old, new, strict=True))
        value, lay = self.go(t.args[0], None, env)
        return value, tuple(tuple((names.get(label, label), n) for label, n in axis) for axis in lay)

    def _diag(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Put a tensor on a diagonal: select by the equality of two iotas, zero elsewhere."""
        value, lay = self.go(t.args[0], None, env)
        sizes = sizes_in(lay)
        for old, new in zip(*(env.labels[r] for r in t["over"]), strict=True):
            if sizes.get(old, 1) == 1:
                continue  # the new label has size 1 too
            n = sizes[old]
            position = axis_of(lay, old)
            lay = (*lay[:position], ((new, n),), *lay[position:])
            value = broadcast(self.target, (value, lay[:position] + lay[position + 1 :]), lay)
            shape = (n, n)
            rows, columns = (self.target.mk("iota", dtype="int32", shape=shape, dimension=d) for d in (0, 1))
            same = self.target.mk("eq", rows, columns)
            mask = broadcast(self.target, (same, (((old, n),), ((new, n),))), lay)
            zero = broadcast(self.target, (self.zero(), ()), lay)
            value = self.target.mk("select_n", mask, zero, value)
        return value, lay

    def _stack(self, t: Term, hint: Layout | None, env: Env) -> Built:
        """Concatenate along the physical axis of the role in `beside`, or along a new first axis."""
        bounds = env.labels[self.rule.owner[t["bound"]]]
        new = tuple(
            (label, env.look(t["bound"], axis)) for label, axis in zip(labels_of(env, t["over"]), bounds, strict=True)
        )
        parts = list(self.unrolled(t, hint, env))
        if not parts:
            raise BuildError(f"rule {self.rule.name}: an empty stack cannot be unrolled")
        if not new:
            return parts[0]
        lay = parts[0][1]
        place = place_beside(lay, labels_of(env, t["beside"])) if t["beside"] else None
        if place is None:
            lay, place = ((), *lay), 0
        values = [arrange(self.target, part, lay)[0] for part in parts]
        value = values[0] if len(values) == 1 else self.target.mk("concatenate", *values, dimension=place)
        return value, (*lay[:place], (*new, *lay[place]), *lay[place + 1 :])

    _BY_OP: ClassVar[dict[str, Callable[[Builder, Term, Layout | None, Env], Built]]] = {
        "var": _var,
        "lit": _lit,
        "view": _view,
        "unit": _view,
        "ew": _ew,
        "bcast": _bcast,
        "fold": _fold,
        "dot": _dot,
        "conv": _conv,
        "red": _red,
        "cum": _cum,
        "concat": _concat,
        "rev": _rev,
        "lay": _lay,
        "slice": _slice,
        "at": _at,
        "pad": _pad,
        "win": _win,
        "take": _take,
        "segsum": _segsum,
        "iota": _iota,
        "expand": _expand,
        "dynslice": _dynslice,
        "dynupdate": _dynupdate,
        "split": _split,
        "merge": _merge,
        "ren": _ren,
        "diag": _diag,
        "stack": _stack,
        "inverse": _inverse,
        "solve": _solve,
    }


def _only(built: Built, other: Built, labels: Sequence[int]) -> list[int]:
    """Contracted labels that one operand lacks: they must have size 1."""
    a, b = sizes_in(built[1]), sizes_in(other[1])
    miss = [label for label in labels if (label in a) != (label in b)]
    if any({**a, **b}[label] != 1 for label in miss):
        raise BuildError("a contracted axis is missing in one operand")
    return miss


def _blocks(x: Layout, y: Layout, contracted: set[int]) -> list[Axis]:
    """Merged axes of one operand that are contracted as a whole, and lie in the other in the same order."""
    out: list[Axis] = []
    for one, other in ((x, y), (y, x)):
        where = {label: i for i, label in enumerate(labels_in(other))}
        for axis in one:
            labels = [label for label, _ in axis]
            if len(axis) < 2 or not contracted.issuperset(labels) or not all(label in where for label in labels):
                continue
            start = where[labels[0]]
            follow = all(where[label] == start + i for i, label in enumerate(labels))
            if follow and not any({*held} & {*axis} for held in out):
                out.append(axis)
    return out


def _as_it_lies(groups: Sequence[Axis], labels: Sequence[int]) -> list[int]:
    """Indices of the groups (batch or outputs, features, spatial axes) in the order in which their labels lie.

    Features stand where their last label is; a batch of one stands in front, a single feature at the end.
    """
    place = {label: float(i) for i, label in enumerate(labels)}

    def key(i: int) -> float:
        at = [place[label] for label, _ in groups[i]]
        if i == 1:
            return max(at, default=float(len(labels)))
        return min(at, default=-1.0 if i == 0 else -0.5)

    return sorted(range(len(groups)), key=key)


def _follow(out: Sequence[Axis], hint: Layout | None) -> tuple[int, ...] | None:
    """Position in the hint of every axis of a result, or None unless the hint holds exactly these axes."""
    if hint is None or len(hint) != len(out):
        return None
    if any(axis and axis not in hint for axis in out) or sum(not a for a in out) != sum(not h for h in hint):
        return None
    free = [i for i, axis in enumerate(hint) if not axis]
    return tuple(hint.index(axis) if axis else free.pop(0) for axis in out)


def _follows(lay: Layout, hint: Layout | None) -> bool:
    if hint is None:
        return False
    have = labels_in(lay)
    held = set(have)
    return have == [label for label in labels_in(hint) if label in held]


def build(match: Match, target: Target) -> tuple[Any, ...]:
    """The right sides at a site, one value per root, each of exactly the root's type.

    Raises:
        BuildError: a right side cannot be built here, or has another type than the root.
    """
    builder = Builder(match, target)
    out: list[Any] = []
    for t, (root, lay) in zip(match.rule.rhs, match.roots, strict=True):
        value, _ = arrange(target, builder.go(t, lay, match.env), lay)
        want, got = (target.shape(root), target.dtype(root)), (target.shape(value), target.dtype(value))
        if want != got:
            raise BuildError(f"rule {match.rule.name}: the root is {want}, the right side {got}")
        out.append(value)
    return tuple(out)


def expand_macro(rule: Rule, node: Node) -> Node:
    """The right side of a macro rule for one op node, in the node's physical layouts; same type.

    Raises:
        BuildError: the rule's left side does not match the node.
    """
    target = IRTarget()
    for match in matches(rule, IRSpace(verbatim=True), node, prefer=False):
        return build(match, target)[0]
    raise BuildError(f"rule {rule.name} does not match {node!r}")
