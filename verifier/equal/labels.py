"""Opaque functions as atoms: structural labels for plain arguments, class atoms for arguments with sums.

A function of plain polynomials in atoms becomes one atom whose label spells the polynomials without their indices and
whose coordinates are the indices, in a fixed order: exp(X[i] - M[j]) is the atom `exp(-1*M^1+1*X^1)[j, i]`.  The table
remembers how each label reads, so that an atom can be unfolded again (log of exp, a maximum of one entry).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verifier.equal.classes import ClassTable
from verifier.equal.monomial import NF, Atom, Monomial, Unsupported, atom_key, freshen, is_simple, subst
from verifier.equal.poly import Poly
from verifier.equal.solver import Context

INF = "inf"


@dataclass
class AtomLabels:
    """The opaque atoms of one proof."""

    ctx: Context
    classes: ClassTable = field(init=False)
    _patterns: dict[str, NF] = field(default_factory=dict[str, NF])

    def __post_init__(self) -> None:
        self.classes = ClassTable(self.ctx)

    def atom(self, fn: str, ps: Sequence[NF]) -> Atom:
        """The atom `fn(ps)`.

        Raises:
            Unsupported: an argument is infinite.
        """
        if any(infinite(p) for p in ps):
            raise Unsupported(f"{fn} of an infinity")
        if all(is_simple(p) for p in ps):
            return self._structural(fn, ps)
        return self.classes.atom(fn, ps)

    def _structural(self, fn: str, ps: Sequence[NF]) -> Atom:
        ordered = [sorted(map(self._piece, p), key=_piece_key) for p in ps]
        label = f"{fn}({';'.join('+'.join(text for text, _, _ in pieces) for pieces in ordered)})"
        if len(ps) == 1:
            self._patterns.setdefault(label, [m for _, _, m in ordered[0]])
        return Atom(label, tuple(x for pieces in ordered for _, coords, _ in pieces for x in coords))

    def _piece(self, m: Monomial) -> tuple[str, list[Poly], Monomial]:
        atoms = tuple(sorted(m.atoms, key=atom_key))
        coords = [x for a in atoms for x in a.args]
        text = f"{m.coef}*" + "*".join(f"{a.label}^{a.exp}" for a in atoms)
        for q, e in m.sizes:
            if q.vars <= self.ctx.dims:
                text += f"*({q})^{e}"
            else:
                text += f"*size^{e}"
                coords.append(q)
        return text, coords, replace(m, atoms=atoms)

    def unfold(self, fn: str, atom: Atom) -> NF | None:
        """The p of an atom `fn(p)` of power 1, or None where the label is no such function."""
        if atom.label.startswith(f"{fn}#"):
            for rep in self.classes.reps:
                if rep.label == atom.label:
                    sub = dict(zip(rep.params, atom.args, strict=True))
                    return [subst(freshen(self.ctx, m), sub) for m in rep.sums[0]]
        if not atom.label.startswith(f"{fn}("):
            return None
        pattern = self._patterns.get(atom.label)
        if pattern is None:
            return None
        left = list(atom.args)
        out: NF = []
        for m in pattern:
            atoms: list[Atom] = []
            for a in m.atoms:
                atoms.append(Atom(a.label, tuple(left[: len(a.args)]), a.exp))
                left = left[len(a.args) :]
            sizes: list[tuple[Poly, int]] = []
            for q, e in m.sizes:
                sizes.append((q, e) if q.vars <= self.ctx.dims else (left.pop(0), e))
            out.append(replace(m, atoms=tuple(atoms), sizes=tuple(sizes)))
        return out


def infinite(p: NF) -> bool:
    """Does an infinity occur?"""
    return any(a.label == INF for m in p for a in m.atoms)


def _piece_key(piece: tuple[str, list[Poly], Monomial]) -> tuple[str, tuple[str, ...]]:
    return (piece[0], tuple(map(str, piece[1])))
