"""Two programs over the same inputs proved equal piece by piece.

Nodes are hash-consed, so equal subprograms are one node from the start.  For the rest, the second program is walked
from its inputs.  A *window* is the part of both programs behind values that are already equal, up to a number of
contractions.  These values become fresh inputs (cuts): a statement that holds for all values of the cuts holds for
those that occur.  Labels of elements find equalities that need no rule.  Otherwise both parts are put into one e-graph,
which the proved rules grow.  Constants that one program stores and the other computes are compared by their values
(`superopt.equivalence.constants`).  An equality is accepted only when its plan is validated
(`superopt.certify.validate`), so neither the e-graph, nor the choice of windows, nor the search need be trusted.  A
proved node of the second program is replaced by that of the first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rewrites.egraph.graph import Ref
from rewrites.egraph.perm import PERM_BITS, PERM_MASK, compose, inverse, perm_of
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.grow.proof import ProvingEGraph
from rewrites.language.show import show
from superopt.certify.library import ProvedLibrary, ledger_of, proved_library
from superopt.certify.plan import Plan, RuleInstance
from superopt.certify.validate import Validation, validate
from superopt.equivalence.constants import MOVES, Constants
from superopt.equivalence.folding import Folded, fold, may_hold
from superopt.equivalence.openings import opened
from superopt.explore.trace import rule_instance
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.ops.table import CONTRACTIONS
from superopt.ir.program import Program, map_nodes
from superopt.machine.deadline import Deadline
from superopt.store import Store
from verifier.equal.equality import DEFINED
from verifier.programs.elements import ElementLabels
from verifier.programs.mixing import Ids
from verifier.record.ledger import Ledger
from verifier.rules.process import processor_s
from verifier.verdict import EXACTNESS

DEPTHS = (1, 2, 4)  # contractions of a window: one proves a fold into a kernel, two a product of products
_MATCHES = (300, 1_000)  # matches per growth of a window, about 1 ms each; a fold into a kernel needs a few dozen
_ELEMENTS = 2**26  # elements of a window whose labels are in memory together: half a gigabyte


@dataclass(slots=True)
class PairProof:
    """Result of a proof: the outputs of the second program, with proved nodes replaced.

    Attributes:
        outputs: outputs of the second program, with proved parts replaced by nodes of the first.
        image: node of the second program -> its replacement.
        exactness: the widest class of equality that was used.
        rules: names of the rules used.
        assumptions: assumptions of their certificates.
        folded: constants that were compared by value.
        windows: number of windows that were tried.
        stuck: nodes without a proved counterpart, with the reason.
    """

    outputs: tuple[Node, ...]
    image: dict[Node, Node]
    exactness: str = "exact"
    rules: dict[str, None] = field(default_factory=dict[str, None])
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    folded: dict[Node, Folded] = field(default_factory=dict[Node, Folded])
    windows: int = 0
    stuck: dict[Node, str] = field(default_factory=dict[Node, str])


@dataclass(frozen=True, slots=True)
class UsableRules:
    """Rules that a proof may use.

    Attributes:
        library: the rules, with their certificates.
        ledger: the ledger that holds the certificates.
        numerics: exact, real or range: the widest class that may be used.
    """

    library: ProvedLibrary
    ledger: Ledger
    numerics: str

    @classmethod
    def of(cls, store: Store | None, numerics: str) -> UsableRules:
        """Return the rules of the library up to a class; certificates are looked up in the store."""
        return cls(proved_library(store, numerics=numerics), ledger_of(store), numerics)

    def exact(self) -> UsableRules:
        """Return those of class exact alone."""
        certificates = self.library.certificates
        rules = tuple(rule for rule in self.library.rules if certificates[rule.name].exactness == "exact")
        return replace(self, library=replace(self.library, rules=rules), numerics="exact")


def prove(
    first: Graph, second: Graph, arrays: Mapping[str, np.ndarray], usable: UsableRules, end_s: float = float("inf")
) -> PairProof:
    """Replace values of the second program by nodes of the first, as far as their equality is proved.

    Args:
        first, second: over the same input nodes.
        arrays: values of the frozen inputs.
        usable: the rules, and the widest class that may be used.
        end_s: processor time (`verifier.rules.process.processor_s`) after which no further window is begun.
    """
    run = _Run(first, second, arrays, usable)
    proof = PairProof(second.outputs, {n: n for n in second.nodes()})
    while processor_s() < end_s:
        open_nodes = run.unproved(proof)
        if not open_nodes:
            break
        for depth, cheap in ((1, True), (2, True), *((depth, False) for depth in (*DEPTHS, None))):
            proof.windows += 1
            found = run.window(proof, open_nodes, depth, cheap)
            if found:
                run.replace(proof, found)
                break
        else:
            proof.stuck[open_nodes[0]] = run.reason or "nothing in the first program is proved equal to it"
    for i, want in enumerate(first.outputs):  # an output may have been taken for another node of the same value
        have = proof.outputs[i]
        if have is not want and have in run.known and have.types == want.types:
            proof.windows += 1
            if run.equal(proof, want, have):
                proof.outputs = (*proof.outputs[:i], want, *proof.outputs[i + 1 :])
    return proof


class _Run:
    """State of a proof over all windows, and the last cause of failure."""

    def __init__(self, first: Graph, second: Graph, arrays: Mapping[str, np.ndarray], usable: UsableRules) -> None:
        self.first, self.arrays, self.ledger, self.numerics = first, arrays, usable.ledger, usable.numerics
        self.rules = [rule for rule in usable.library.rules if rule.mode not in ("macro", "proof", "merge")]
        self.certificates = usable.library.certificates
        self.order = first.nodes()
        self.known = set(self.order)
        self.mine = {n for n in self.order if n.op == "input" and n["frozen"]}
        self.theirs = {n for n in second.nodes() if n.op == "input" and n["frozen"]}
        self.reason = ""
        self._live: dict[Node, bool] = {}

    def live(self, node: Node) -> bool:
        """Whether a node depends on an argument of the call."""
        known, stack = self._live, [node]
        while stack:
            top = stack[-1]
            missing = [] if top in known else [x for x in top.inputs if x not in known]
            if missing:
                stack += missing
                continue
            stack.pop()
            if top not in known:
                known[top] = any(known[x] for x in top.inputs) or (top.op == "input" and not top["frozen"])
        return known[node]

    def unproved(self, proof: PairProof) -> list[Node]:
        """Nodes of the second program that are not replaced yet, without those that depend on stuck ones."""
        lost = set(proof.stuck)
        out: list[Node] = []
        for node in topological(proof.outputs):
            if node in lost or any(x in lost for x in node.inputs):
                lost.add(node)
            elif node not in self.known and (self.live(node) or node in proof.outputs):
                out.append(node)
        return out

    def window(self, proof: PairProof, open_nodes: Sequence[Node], depth: int | None, cheap: bool) -> dict[Node, Node]:
        """Map nodes of the second program in the next window to equal ones of the first."""
        shared = self.known & set(topological(proof.outputs))
        theirs = _upto(open_nodes, shared, depth)
        rest = [n for n in self.order if n not in shared and (self.live(n) or n in self.first.outputs)]
        ours = _upto(rest, shared, depth)
        cuts = self._cuts([*theirs, *ours], set(theirs) | set(ours), depth)
        image = map_nodes([*theirs, *ours, *cuts], given=cuts)
        back = {image[x]: x for x in (*cuts, *shared, *ours) if x in image}
        island = _Island(self, proof, cuts.values(), [image[n] for n in ours], [image[n] for n in theirs],
                         {image[n] for n in _read_behind(theirs, proof.outputs)})  # fmt: skip
        found = island.prove({image[n] for n in theirs if len(n.types) == 1}, back, cheap)
        self.reason = island.reason
        return {n: found[image[n]] for n in theirs if image[n] in found}

    def equal(self, proof: PairProof, want: Node, have: Node) -> bool:
        """Whether two nodes over the first program's can be proved equal."""
        cuts = self._cuts([want, have], {want, have}, DEPTHS[1])
        image = map_nodes([want, have], given=cuts)
        theirs = [n for n in topological([image[have]]) if n.op != "input"] or [image[have]]
        island = _Island(self, proof, cuts.values(), [image[want]], theirs, {image[have]})
        return (
            island.prove({image[have]}, {image[want]: want}, False).get(image[have]) is want
        )  # and no transpose of it

    def _cuts(self, nodes: Sequence[Node], inside: set[Node], depth: int | None) -> dict[Node, Node]:
        """Fresh inputs for shared values; looks through movement, and for deeper windows through other ops."""
        cuts: dict[Node, Node] = {}
        seen: set[Node] = set()
        todo = [x for n in nodes for x in n.inputs]
        while todo:
            x = todo.pop()
            if x in seen or x in inside or not self.live(x):
                continue
            seen.add(x)
            through = x.op in MOVES or x.op == "result" or len(x.types) != 1
            if depth is None or (depth > 1 and x.op not in CONTRACTIONS):
                through = True
            if through and x.op != "input":
                todo += x.inputs
            elif x.op != "input":
                cuts[x] = make_input(f"cut{len(cuts)}", x.shape, x.dtype)
        return cuts

    def replace(self, proof: PairProof, found: Mapping[Node, Node]) -> None:
        """Substitute the proved nodes in the second program."""
        done = map_nodes(proof.outputs, given=found)
        self.known |= {n for image in found.values() for n in topological([image])}
        proof.outputs = tuple(done[n] for n in proof.outputs)
        proof.image = {n: done.get(x, x) for n, x in proof.image.items()}
        proof.stuck = {done.get(n, n): why for n, why in proof.stuck.items()}


def _upto(nodes: Sequence[Node], shared: set[Node], depth: int | None) -> list[Node]:
    """Those of some nodes, operands first, that are at most so many contractions away from shared ones."""
    if depth is None:
        return list(nodes)
    level: dict[Node, int] = {}
    for n in nodes:
        level[n] = max((level.get(x, 0) for x in n.inputs if x not in shared), default=0) + (n.op in CONTRACTIONS)
    return [n for n in nodes if level[n] <= depth]


def _read_behind(inside: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """Nodes of a window that are results, or operands of a node outside of the window."""
    within = set(inside)
    read = {x for n in topological(outputs) if n not in within for x in n.inputs}
    return [n for n in inside if n in read or n in outputs]


class _Island:
    """Both sides of a window in one e-graph."""

    def __init__(
        self,
        run: _Run,
        proof: PairProof,
        cuts: Iterable[Node],
        ours: Sequence[Node],
        theirs: Sequence[Node],
        results: Collection[Node],
    ) -> None:
        self.run, self.proof, self.ours, self.theirs, self.results = run, proof, ours, theirs, results
        self.eg = ProvingEGraph(exact=run.numerics == "exact")
        self.refs: dict[Node, Ref] = {}
        self.inputs = tuple(dict.fromkeys([*cuts, *(n for n in topological([*ours, *theirs]) if n.op == "input")]))
        for node in (*self.inputs, *topological([*ours, *theirs])):
            if node not in self.refs:
                self.refs[node] = self.eg.add_node(node.op, [self.refs[x] for x in node.inputs], node.attrs)
        self.eg.roots = [self.refs[n] for n in (*ours, *theirs) if len(n.types) == 1]
        self.eg.inputs = {node["name"]: self.refs[node] for node in self.inputs}
        self.eg.imported = list(self.refs.values())
        self.constants = Constants(run.arrays)
        self.folded: dict[Node, Folded] = {}
        self.reason = ""

    def prove(self, wanted: set[Node], back: Mapping[Node, Node], cheap: bool) -> dict[Node, Node]:
        """Map nodes of the second program to equal ones of the first, over the cuts' own nodes.

        A `cheap` attempt uses no rule, or only those that have explained a part of the program already.
        """
        saturating = [rule for rule in self.run.rules if rule.mode == "saturate"]
        useful = [rule for rule in self.run.rules if rule.name in self.proof.rules]
        self._fold()
        proof = self._validated(self._alike(wanted, back), back)
        if not proof:
            self._open()
        for rules, matches in ((useful, _MATCHES[0]), (saturating, _MATCHES[0]), (self.run.rules, _MATCHES[1])):
            if proof or not rules or (cheap and rules is not useful):
                continue
            limits = GrowthLimits(matches=matches)
            near = None if rules is saturating else self.eg.classes()
            grow(self.eg, rules, limits, near, Deadline())
            while self._fold():
                grow(self.eg, rules if rules is useful else saturating, limits, None, Deadline())
            proof = self._validated(self._equal(wanted, back), back)
        return proof

    def _alike(self, wanted: set[Node], back: Mapping[Node, Node]) -> dict[Node, Node]:
        """Map nodes of the second program to nodes of the first with equal labels in order, whatever their shapes."""
        order = topological([x for fold in self.folded.values() for x in (fold.term, fold.stored)])
        order = list(dict.fromkeys([*order, *topological([*self.ours, *self.theirs])]))
        if sum(math.prod(t.shape) for n in order for t in n.types) > _ELEMENTS:  # pyright: ignore[reportArgumentType]
            return {}
        labels = ElementLabels(b"candidates", exact=self.run.numerics == "exact")
        rows: dict[Node, tuple[Ids, ...]] = {}
        for node in order:
            rows[node] = labels.label(node, [rows[x] for x in node.inputs])
            fold = self.folded.get(node)
            if fold is not None and all(x in rows for x in topological([fold.term])):
                rows[node] = (labels.merges.unite(rows[fold.term][0], rows[node][0]),)
        places: dict[bytes, Node] = {}
        for node in rows:
            if node in back and len(node.types) == 1:
                places[_digest(node, rows[node][0])] = node
        out: dict[Node, Node] = {}
        for node in self.theirs:
            at = places.get(_digest(node, rows[node][0])) if node in wanted else None
            if at is not None:
                out[node] = at if at.shape == node.shape else mk("reshape", at, new_sizes=node.shape)
        return out

    def _equal(self, wanted: set[Node], back: Mapping[Node, Node]) -> dict[Node, Node]:
        """Map nodes of the second program to a node of the first in the same e-class."""
        eg = self.eg
        places: dict[int, tuple[int, Node]] = {}
        for node in self.refs:
            if node in back and len(node.types) == 1:
                ref = eg.find(self.refs[node])
                places[ref >> PERM_BITS] = ref & PERM_MASK, node  # the last one: an output, rather than it times one
        out: dict[Node, Node] = {}
        for node in self.theirs:
            if node not in wanted:
                continue
            ref = eg.find(self.refs[node])
            at = places.get(ref >> PERM_BITS)
            if at is not None:
                perm = perm_of(compose(inverse(at[0]), ref & PERM_MASK), len(node.shape))
                plain = perm == tuple(range(len(perm)))
                out[node] = at[1] if plain else mk("transpose", at[1], permutation=perm)
        return out

    def _validated(self, equal: Mapping[Node, Node], back: Mapping[Node, Node]) -> dict[Node, Node]:
        """Those pairs whose plan is validated, translated back to the nodes of the programs."""
        readers: dict[Node, list[Node]] = {}
        for node in self.theirs:
            for x in node.inputs:
                readers.setdefault(x, []).append(node)
        # a node that only proved nodes of the window read needs no proof of its own
        last = [n for n in equal if n in self.results or not readers.get(n) or any(r not in equal for r in readers[n])]
        if last and self._check({n: equal[n] for n in last}):
            chosen = last
        else:
            chosen = [n for n in last if len(last) > 1 and self._check({n: equal[n]})]
        whole = {x: y for x, y in back.items() if x is not y}
        return {n: map_nodes([equal[n]], given=whole)[equal[n]] for n in chosen}

    def _check(self, pairs: Mapping[Node, Node]) -> bool:
        """Validate the plan of some pairs; adds its rules and assumptions to the proof."""
        run, eg = self.run, self.eg
        plain = [(self.refs[a] >> PERM_BITS, self._ref(b) >> PERM_BITS) for a, b in pairs.items()]
        terms: dict[Node, int] = {}
        steps: list[RuleInstance] = []
        for step in eg.explain(plain):
            tensors = {v: eg.term(ref) for v, (ref, _) in step.match.vars.items()}
            steps.append(rule_instance(step.match, tensors, terms))
        used = {s.rule: next(r for r in run.rules if r.name == s.rule) for s in steps}
        read = set(topological([*pairs, *pairs.values()]))
        folds = [fold for leaf, fold in self.folded.items() if leaf in read]
        given = [(fold.stored, fold.term) for fold in folds]
        ours = Graph(self.inputs, tuple(pairs.values()))
        theirs = Graph(self.inputs, tuple(pairs))
        classes = [EXACTNESS.index(run.certificates[name].exactness) for name in used]
        rounded = any(fold.apart for fold in folds)
        least = max([*classes, EXACTNESS.index("real" if rounded else "exact")])
        for numerics in EXACTNESS[least : EXACTNESS.index(run.numerics) + 1]:
            graph = Graph(self.inputs, tuple(terms))
            plan = Plan(numerics, {name: show(rule) for name, rule in used.items()}, graph, tuple(steps))
            validation: Validation = validate(ours, Program(None, theirs), plan, run.ledger, given=given)
            if validation.valid:
                self._record(numerics, validation, given)
                return True
            self.reason = validation.cause
        return False

    def _record(self, numerics: str, found: Validation, given: Sequence[tuple[Node, Node]]) -> None:
        proof = self.proof
        proof.exactness = EXACTNESS[max(EXACTNESS.index(proof.exactness), EXACTNESS.index(numerics))]
        proof.rules.update(dict.fromkeys(found.rules))
        proof.assumptions.update(dict.fromkeys(map(self._named, found.assumptions)))
        proof.folded.update({stored: self.folded[stored] for stored, _ in given})

    def _named(self, text: str) -> str:
        """An assumption of a rule, prefixed with the rule where it mentions the rule's left side."""
        rules = self.run.certificates.items()
        names = [k for k, c in rules if text in c.assumptions and k in self.proof.rules]
        return f"{text} (in rule {', '.join(names)})" if text.startswith(DEFINED) and names else text

    def _open(self) -> None:
        """Add forms of nodes to the e-graph that are equal by labels alone."""
        for node, other in opened(topological([*self.ours, *self.theirs])).items():
            self.eg.union(self.refs[node], self._ref(other))
        self.eg.rebuild()

    # ---- constants

    def _fold(self) -> bool:
        """Merge tensors that one program stores with expressions of the other's tensors that have the same values."""
        eg, changed = self.eg, False
        run = self.run
        stored = [n for n in self.inputs if n["frozen"] and n not in self.folded and n not in run.mine & run.theirs]
        if not stored:
            return False
        terms = self._closed_terms()
        for leaf in stored:
            others = run.theirs if leaf in run.mine else run.mine
            theirs = (t for t, leaves in terms if leaves <= others and may_hold(leaf, t) and not self._known(t, leaf))
            moved = (t for t, leaves in terms if leaves == {leaf} and t is not leaf)
            folded = fold(leaf, run.arrays[leaf["name"]], list(theirs), list(moved), self.constants)
            if folded is not None:
                for one, two in ((leaf, folded.term), *folded.also):
                    eg.union(self._ref(one), self._ref(two))
                self.folded[leaf] = folded
                changed = True
        if changed:
            eg.rebuild()
        self.constants.forget()
        return changed

    def _known(self, term: Node, leaf: Node) -> bool:
        return self.eg.find_class(self._ref(term)) == self.eg.find_class(self.refs[leaf])

    def _ref(self, term: Node) -> Ref:
        """The e-graph reference of a term, which is added if it is new."""
        for node in topological([term]):
            if node not in self.refs:
                self.refs[node] = self.eg.add_node(node.op, [self.refs[x] for x in node.inputs], node.attrs)
        return self.refs[term]

    def _closed_terms(self) -> list[tuple[Node, frozenset[Node]]]:
        """Terms of constants alone, with the stored tensors that they read."""
        out: list[tuple[Node, frozenset[Node]]] = []
        for number in range(len(self.eg.births)):
            ref = number << PERM_BITS
            if self.eg.frozen(ref) and self.eg.scalar(ref) is None and len(self.eg.result_types(ref)) == 1:
                term = self.eg.term(ref)
                below = topological([term])
                out.append((term, frozenset(n for n in below if n.op == "input")))
        return out


def _digest(node: Node, ids: Ids) -> bytes:
    """Digest of the labels of a tensor in their order."""
    return hashlib.blake2b(f"{node.dtype}\0".encode() + np.ascontiguousarray(ids).tobytes(), digest_size=16).digest()


__all__ = ["DEPTHS", "PairProof", "UsableRules", "prove"]
