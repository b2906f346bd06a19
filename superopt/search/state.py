"""A state of the search: one option and one physical layout per class, with its cost kept up to date.

A class is *materialised* when it is an output, its op ends a kernel (product, convolution, window, reduction,
concatenation ...), a heavy op reads it, or it is read more than once and is not a mere view.  All other classes are
inlined into their readers.  An override bit per class changes that: FORBID computes a class again in every reader,
FORCE materialises one.  On XLA:CPU only FORBID on a costly op (exp, tanh ...) is a real choice, since lowering can keep
the copies apart.  The compiler recomputes cheap ops and joins kernels as it likes, so the search proposes nothing else.
A *kernel* is a materialised class with its inlined closure.  The cost of a state is the sum of its kernels, plus the
transposes of outputs that do not lie in the order in which they are returned.

Where the program is to be made of our kernels (`Problem.in_kernels`), the rule is theirs.  A class that one kernel
alone reads, directly or through values that the kernel computes, is part of it: ops after a product, reductions of
rows, both products of attention.  Such a kernel is priced as the regions that it is cut into.  Three kinds of classes
are materialised: those that several kernels read; those that a product or window reads, directly or through views; and
those that none of our kernels computes or that such a class reads.  FORCE, a cut, is then the choice.

A flip changes options and layouts of a few classes.  Classes whose readers, option or layout changed are *touched*;
the kernels to price again are those of touched classes and of the first materialised readers above them.  A flip is
undone by the reverse flip.  The chosen map is kept acyclic over all classes, unused ones included, so a flip needs a
check only inside one strongly connected component.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rewrites.egraph import perm
from superopt.ir.graph import Node
from superopt.search.emit import Wants, kernel_node, transpose_node
from superopt.search.pricing import UNIT_S, Memo, Pricer
from superopt.search.snapshot import SHIFT, Option, Selection, Snapshot

RULE, FORCE, FORBID = 0, 1, 2  # override bits
MARGIN = 1.2  # of drafts: 350 moves lowered the cost of BERT-base or ResNet-50, none had more, six more than 1.1
_SEVERAL, _NOT_IN_USE = -1, -2  # in place of the one kernel that computes a class
KernelSignature = tuple[int, ...]  # structure of a kernel
Record = tuple[int, "list[int]", "list[int]", "list[int]"]  # cost, options, layouts, override bits


ClassPlace = tuple[int, int, bool, bool]  # class, home, materialised, below


class Undo(NamedTuple):
    """Record of a flip: what it replaced, in the order of the changes.

    Attributes:
        options, layouts, bits: (class, previous value).
        places: (class, previous home, whether it was materialised, whether it was below a product).
        prices: (slot of `kernel_cost`, previous price, whether that was unknown, previous key).
    """

    options: list[tuple[int, int]]
    layouts: list[tuple[int, int]]
    bits: list[tuple[int, int]]
    places: list[ClassPlace]
    prices: list[tuple[int, int, bool, KernelSignature | None]]


class Problem:
    """Data that the states of one search share.

    Attributes:
        candidates: per class, the layouts worth trying; `home` is the first of each.
        wants, memo: the orders that options want, and the costs of kernels.
        choices, movable: classes with several options, with several layouts.
        fusible: classes that a fusion override may concern.
        in_kernels: whether programs are made of our kernels, which fuse more than XLA does.
    """

    def __init__(
        self, snapshot: Snapshot, pricer: Pricer, layouts: Sequence[Sequence[int]], *, in_kernels: bool = False
    ) -> None:
        self.snapshot, self.pricer, self.candidates, self.in_kernels = snapshot, pricer, layouts, in_kernels
        self.memo = Memo(pricer, snapshot.forms)
        self.wants = Wants(snapshot)
        self.home = [row[0] for row in layouts]
        self.choices = [c for c in range(snapshot.size) if len(snapshot.options[c]) > 1]
        self.movable = [c for c in range(snapshot.size) if len(layouts[c]) > 1]
        self.fusible = [
            c
            for c, row in enumerate(snapshot.options)
            if c not in snapshot.returned and any(self._may_override(o) for o in row)
        ]

    def _may_override(self, option: Option) -> bool:
        if self.in_kernels:
            return not (option.view or option.apart or option.form.op == "input")
        return not (option.cheap or option.ends or option.control)


class State:
    """A selection with layouts and cost; `cost` is in `pricing.UNIT_S` seconds and exact once nothing is unknown.

    Without a selection it is the program as imported.

    Attributes:
        selection, layouts, bits: per class, the option's number, the layout, the override.
        readers: per class, reader -> number of its reads; outputs count as readers -1, -2, ...
        materialised, kernel_cost: per class; costs of output transposes follow after the classes.
        keys: per slot of `kernel_cost`, the signature of its kernel; None where it has none.
        homes: per class, with our kernels, the materialised class whose kernel computes it, if it is one alone.
        below: per class, with our kernels, whether it is an index map through which a product reads from memory.
        unknown: classes whose kernels have no price yet (then `cost` is too low; see `settle`).
    """

    def __init__(
        self,
        problem: Problem,
        selection: Sequence[int] | None = None,
        layouts: Sequence[int] | None = None,
        bits: Sequence[int] | None = None,
    ) -> None:
        snapshot = problem.snapshot
        self.problem, self.snapshot, self.memo = problem, snapshot, problem.memo
        self.options = snapshot.options
        self.selection = list(selection) if selection is not None else snapshot.original()
        self.layouts = list(layouts) if layouts is not None else list(problem.home)
        self.bits = list(bits) if bits is not None else [RULE] * snapshot.size
        self.readers: list[dict[int, int]] = [{} for _ in range(snapshot.size)]
        self.materialised = [False] * snapshot.size
        self.homes = [_NOT_IN_USE] * snapshot.size
        self.below = [False] * snapshot.size
        self.kernel_cost = [0] * (snapshot.size + len(snapshot.roots))
        self.keys: list[KernelSignature | None] = [None] * len(self.kernel_cost)
        self.cost = 0
        self.unknown: set[int] = set()
        for i, root in enumerate(snapshot.roots):
            if root.cls >= 0:
                self._reference(root.cls, -1 - i, set())
        if problem.in_kernels:
            for c in self._downwards():
                self._settle_home(c, [])
        else:
            for c, users in enumerate(self.readers):
                if users:
                    self.materialised[c] = self._is_materialised(c)
        for c, users in enumerate(self.readers):
            if users:
                self._price(c)
        self.settle()

    @classmethod
    def at(cls, problem: Problem, selection: Selection) -> State:
        """The state of a selection."""
        return cls(problem, selection.options, selection.layouts, selection.bits)

    def choice(self) -> Selection:
        """The selection of this state."""
        return Selection(tuple(self.selection), tuple(self.layouts), tuple(self.bits), tuple(self.materialised))

    @property
    def seconds(self) -> float:
        """Cost in seconds."""
        return self.cost * UNIT_S

    def active(self) -> list[int]:
        """Classes that the program uses."""
        return [c for c, users in enumerate(self.readers) if users]

    def chosen(self, c: int) -> Option:
        """The option chosen for a class."""
        return self.options[c][self.selection[c]]

    def settle(self) -> None:
        """Request every unknown price; afterwards `cost` is exact."""
        while not self.reprice():
            self.memo.flush()

    def reprice(self) -> bool:
        """Look up unknown prices again and ask for those that are missing; return whether `cost` is exact now."""
        for slot in list(self.unknown):
            key = self.keys[slot]
            if key is None:
                self._price(slot)
            else:
                self._set(slot, self.memo.price(key, lambda c=slot: self.kernel(c)))
        return not self.unknown

    def reset(self, selection: Sequence[int], layouts: Sequence[int], bits: Sequence[int]) -> None:
        """Start over from another selection."""
        State.__init__(self, self.problem, selection, layouts, bits)

    def record(self) -> Record:
        """A record from which `restore` can return to this state."""
        return self.cost, list(self.selection), list(self.layouts), list(self.bits)

    def restore(self, record: Record) -> None:
        """Return to a recorded state; starts over where flipping options one by one would pass through cycles."""
        _, selection, layouts, bits = record
        change = self.flip(
            [(c, i) for c, i in enumerate(selection) if self.selection[c] != i],
            [(c, layout) for c, layout in enumerate(layouts) if self.layouts[c] != layout],
            [(c, bit) for c, bit in enumerate(bits) if self.bits[c] != bit],
        )
        if change is None:
            self.reset(selection, layouts, bits)
        self.settle()

    # ---- flips

    def flip(
        self,
        options: Iterable[tuple[int, int]] = (),
        layouts: Iterable[tuple[int, int]] = (),
        bits: Iterable[tuple[int, int]] = (),
    ) -> Undo | None:
        """Choose options, layouts and override bits for classes; None (and no change) if that closes a cycle."""
        touched: set[int] = set()
        undo = Undo([], [], [], [], [])
        for c, i in options:
            old = self.selection[c]
            if i == old:
                continue
            if self._closes_cycle(c, i):
                for back, previous in reversed(undo.options):
                    self._choose(back, previous, touched)
                return None
            self._choose(c, i, touched)
            undo.options.append((c, old))
        for c, layout in layouts:
            if self.layouts[c] != layout:
                undo.layouts.append((c, self.layouts[c]))
                self.layouts[c] = layout
                touched.add(c)
        for c, bit in bits:
            if self.bits[c] != bit:
                undo.bits.append((c, self.bits[c]))
                self.bits[c] = bit
                touched.add(c)
        self._update(touched, undo)
        return undo

    def undo(self, change: Undo) -> None:
        """Take a flip back (the latest first): what it replaced is put back, and nothing is priced."""
        for c, i in reversed(change.options):
            self._choose(c, i, set())
        for c, layout in reversed(change.layouts):
            self.layouts[c] = layout
        for c, bit in reversed(change.bits):
            self.bits[c] = bit
        for c, home, flag, below in reversed(change.places):
            self.homes[c], self.materialised[c], self.below[c] = home, flag, below
        for slot, price, unknown, key in reversed(change.prices):
            self.keys[slot] = key
            self._set(slot, None if unknown else price)

    def is_hopeless(self, change: Undo, rise: float = 0.0, optimism: float = 1.0) -> bool | None:
        """Whether drafts of its kernels say that a flip raises the cost by more than `rise`; None until all are known.

        The draft of the new kernels is held against the draft or the price of those that they replace, whichever is
        larger.

        Args:
            change: the flip, which was the last.
            rise: units of cost by which it may be worse.
            optimism: the factor by which the new kernels may be overrated.
        """
        new, drafted, priced, known = 0, 0, 0, True
        for slot, price, _, key in change.prices:
            now = self.keys[slot]
            if now == key and price == self.kernel_cost[slot]:
                continue
            later = self.kernel_cost[slot] if now is None else self.memo.draft(now)
            before = price if key is None else self.memo.draft(key)
            priced += price
            if later is None or before is None:
                known = False
            else:
                new, drafted = new + later, drafted + before
        return new > optimism * (MARGIN * max(drafted, priced) + rise) if known else None

    def _choose(self, c: int, i: int, touched: set[int]) -> None:
        if self.readers[c]:
            old = self.options[c][self.selection[c]].kids
            for k in self.options[c][i].kids:
                self._reference(k, c, touched)
            self.selection[c] = i
            for k in old:
                self._release(k, c, touched)
            touched.add(c)
        else:
            self.selection[c] = i

    def _reference(self, c: int, reader: int, touched: set[int]) -> None:
        users = self.readers[c]
        fresh = not users
        users[reader] = users.get(reader, 0) + 1
        touched.add(c)
        stack = [c] if fresh else []
        while stack:
            x = stack.pop()
            for k in self.options[x][self.selection[x]].kids:
                users = self.readers[k]
                if not users:
                    stack.append(k)
                users[x] = users.get(x, 0) + 1
                touched.add(k)

    def _release(self, c: int, reader: int, touched: set[int]) -> None:
        stack = [(c, reader)]
        while stack:
            c, reader = stack.pop()
            users = self.readers[c]
            touched.add(c)
            if users[reader] == 1:
                del users[reader]
            else:
                users[reader] -= 1
            if not users:
                stack.extend((k, c) for k in self.options[c][self.selection[c]].kids)

    def _closes_cycle(self, c: int, i: int) -> bool:
        component = self.snapshot.component
        here = component[c]
        if self.snapshot.component_size[here] == 1:
            return False
        stack = [k for k in self.options[c][i].kids if component[k] == here]
        seen = set(stack)
        while stack:
            x = stack.pop()
            if x == c:
                return True
            for k in self.options[x][self.selection[x]].kids:
                if component[k] == here and k not in seen:
                    seen.add(k)
                    stack.append(k)
        return False

    # ---- kernels

    def _is_materialised(self, c: int) -> bool:
        if c in self.snapshot.returned:
            return True
        options, selection = self.options, self.selection
        option = options[c][selection[c]]
        bit, users = self.bits[c], self.readers[c]
        if option.control or option.form.op == "input" or bit == FORCE:
            return True
        if bit == FORBID:
            return any(options[u][selection[u]].control for u in users)
        if option.ends:
            return True
        for u in users:
            if options[u][selection[u]].heavy:
                return True
        return not option.view and len(users) > 1

    def _downwards(self) -> Iterable[int]:
        """Classes in use, readers first."""
        waiting = {c: sum(u >= 0 for u in users) for c, users in enumerate(self.readers) if users}
        ready = [c for c, n in waiting.items() if not n]
        for c in ready:  # grows while it is walked
            yield c
            for k in set(self.chosen(c).kids):
                waiting[k] -= 1
                if not waiting[k]:
                    ready.append(k)

    def _settle_home(self, c: int, places: list[ClassPlace]) -> bool:
        """Find again which of our kernels computes a class; add the place to `places` and return True if it changes."""
        home, users, option = _NOT_IN_USE, self.readers[c], self.chosen(c)
        if users:
            homes = {_SEVERAL if u < 0 else self.homes[u] for u in users}
            home = homes.pop() if len(homes) == 1 else _SEVERAL
            if self._is_stored(c, option, alone=home != _SEVERAL):
                home = c
        below = option.indexes and home != c and any(u >= 0 and self._is_lying(u) for u in users)
        if (home, below) == (self.homes[c], self.below[c]):
            return False
        places.append((c, self.homes[c], self.materialised[c], self.below[c]))
        self.homes[c], self.materialised[c], self.below[c] = home, home == c, below
        return True

    def _is_lying(self, u: int) -> bool:
        """Whether what a class reads lies in memory: it is a product of one of our kernels, or an index map below."""
        reader = self.chosen(u)
        return (reader.heavy and not reader.chains) or self.below[u]

    def _is_stored(self, c: int, option: Option, *, alone: bool) -> bool:
        """Whether a class is stored in memory between our kernels.

        Args:
            alone: whether one kernel alone reads it.
        """
        if option.apart or option.form.op == "input" or c in self.snapshot.returned or self.bits[c] == FORCE:
            return True
        readers = [self.chosen(u) for u in self.readers[c]]
        if any(reader.apart for reader in readers):
            return True
        if option.view:
            return False
        return not alone or any(self._is_lying(u) for u in self.readers[c])

    def overridable(self, c: int) -> bool:
        """Whether an override has an effect on class `c` as it is chosen.

        With our kernels, fused classes may be cut.  With XLA, costly classes that fusing ops alone read twice may be
        computed again.
        """
        if self.problem.in_kernels:
            return self.bits[c] != RULE or not (self.materialised[c] or self.chosen(c).view)
        users = self.readers[c]
        if len(users) < 2 or c in self.snapshot.returned:
            return False
        option = self.chosen(c)
        if option.cheap or option.ends or option.control:
            return False
        return not any(self.chosen(u).heavy for u in users)

    def _update(self, touched: set[int], undo: Undo) -> None:
        """Set materialised flags and prices around touched classes, and record those that they replace."""
        readers, materialised = self.readers, self.materialised
        settle = self._settle_homes if self.problem.in_kernels else self._set_flags
        kernels = settle(touched, undo.places)
        stack = list(kernels)
        seen = set(kernels)
        while stack:
            for u in readers[stack.pop()]:
                if u < 0:
                    continue
                if materialised[u]:
                    kernels.add(u)
                elif u not in seen:
                    seen.add(u)
                    stack.append(u)
        slots = [*kernels, *(self.snapshot.size + i for c in kernels for i in self.snapshot.returned.get(c, ()))]
        undo.prices.extend((slot, self.kernel_cost[slot], slot in self.unknown, self.keys[slot]) for slot in slots)
        for c in kernels:
            self._price(c)

    def _set_flags(self, touched: set[int], places: list[ClassPlace]) -> set[int]:
        """Set materialised flags around touched classes; return these and those whose flag has changed."""
        readers, materialised = self.readers, self.materialised
        changed = set(touched)
        for c in [*touched, *(k for u in touched for k in self.chosen(u).kids)]:
            if readers[c] and (flag := self._is_materialised(c)) != materialised[c]:
                places.append((c, self.homes[c], materialised[c], False))
                materialised[c] = flag
                changed.add(c)
        return changed

    def _settle_homes(self, touched: set[int], places: list[ClassPlace]) -> set[int]:
        """Find homes again from touched classes downwards; return these and those that have others now."""
        changed = set(touched)
        queue = [*touched, *(k for c in touched for k in self.chosen(c).kids)]
        for c in queue:  # grows while it is walked
            if self._settle_home(c, places):
                changed.add(c)
                queue += self.chosen(c).kids
        return changed

    def signature(self, c: int) -> KernelSignature:
        """The structure of the kernel of `c`: the key under which its price is cached.

        The key has the wants of each inlined class, and for each leaf its identity and layout.
        """
        options, selection, layouts, materialised = self.options, self.selection, self.layouts, self.materialised
        wants, compose, inverse = self.problem.wants, perm.compose, perm.inverse
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
                number_of_form = plain.get(option.fid << SHIFT | d)
                number, orders = number_of_form if number_of_form is not None else wants.fixed(option.fid, d)
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

    def _set(self, slot: int, price: int | None) -> None:
        if price is None:
            self.unknown.add(slot)
            price = 0
        elif slot in self.unknown:
            self.unknown.discard(slot)
        self.cost += price - self.kernel_cost[slot]
        self.kernel_cost[slot] = price

    def _price(self, c: int) -> None:
        if c >= self.snapshot.size:  # an output transpose that was unknown
            self._price_root(c - self.snapshot.size)
            return
        self.keys[c] = None
        if not self.readers[c] or not self.materialised[c]:
            self._set(c, 0)
        else:
            self.memo.lookups += 1
            option = self.options[c][self.selection[c]]
            if option.form.op == "input":
                self._set(c, 0)
            elif option.control:
                self._set(c, self._operand_transposes(option))
            else:
                key = self.keys[c] = self.signature(c)
                self._set(c, self.memo.known(key))
        for i in self.snapshot.returned.get(c, ()):
            self._price_root(i)

    def _price_root(self, i: int) -> None:
        root = self.snapshot.roots[i]
        self._set(self.snapshot.size + i, self._transpose_price(root.cls, root.perm) if self.readers[root.cls] else 0)

    def _operand_transposes(self, option: Option) -> int | None:
        """Cost of transposing operands of ops without a layout (their own work is the same in every state)."""
        total = 0
        for _, k, p in option.live:
            if self.snapshot.dtypes[k] == "tuple":
                continue
            price = self._transpose_price(k, p)
            if price is None:
                return None
            total += price
        return total

    def _transpose_price(self, c: int, order: int) -> int | None:
        """Price of reading class `c` in an order of its axes."""
        lies = self.layouts[c]
        if lies == order:
            return 0
        key = ("transpose", self.snapshot.shapes[c], self.snapshot.dtypes[c], lies, order)
        return self.memo.price(key, lambda: transpose_node(self.snapshot, c, lies, order))

    # ---- queries
    def kernel(self, c: int) -> Node | None:
        """Output node of the kernel of a materialised class, made anew; None when it moves nothing."""
        return kernel_node(self.problem.wants, Selection(self.selection, self.layouts, self.bits, self.materialised), c)

    def kernels(self) -> list[tuple[int, Node]]:
        """(class, output node) of every kernel with a cost."""
        out: list[tuple[int, Node]] = []
        for c, cost in enumerate(self.kernel_cost[: self.snapshot.size]):
            if cost and (node := self.kernel_of(c)) is not None:
                out.append((c, node))
        return out

    def kernel_of(self, c: int) -> Node | None:
        """Output node of the kernel of a materialised class; None where that kernel costs nothing."""
        return None if self.chosen(c).control else self.memo.nodes.get(self.signature(c))

    def key(self) -> tuple[Any, ...]:
        """Identity of the state's program, without unused classes."""
        return tuple(
            (c, self.selection[c], self.layouts[c] if self.materialised[c] else 0, self.bits[c]) for c in self.active()
        )
