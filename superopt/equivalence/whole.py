"""Small programs of given sizes as statements: each result is one question to the prover of statements.

The prover of section 3a (docs/trust.md) reads indices and counts where windows of an e-graph apply rules.  So it proves
facts that no rule states: an element of a concatenation, a product of quantised values less their zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.equivalence.sharing import Shared
from superopt.ir.graph import Graph
from verifier.rules.process import processor_s
from verifier.statements.prove import Pair, Proof, Stop, prove_elsewhere
from verifier.verdict import EXACTNESS, ValidityDomain

MOST = 60
"""Most operations of both programs together for one question to the prover; larger ones are proved node by node."""


def by_statements(shared: Shared, left: Sequence[int], numerics: str, end_s: float) -> dict[int, ValidityDomain]:
    """Map those of some results that are proved equal to the domain in which they are.

    Args:
        shared: the programs.
        left: numbers of the results.
        numerics: exact, real or range: the widest class of a proof that counts.
        end_s: processor time after which no further question is begun.
    """
    taken = tuple(dict.fromkeys((*shared.first.inputs, *shared.second.inputs)))
    proved: dict[int, ValidityDomain] = {}
    for i in left:
        pair = [Graph(taken, (graph.outputs[i],)) for graph in (shared.first, shared.second)]
        counted = [n for graph in pair for n in graph.nodes() if n.op not in ("input", "literal")]
        if len(counted) > MOST or processor_s() >= end_s:
            continue
        try:
            domain, _ = prove_elsewhere(Pair(*pair, sizes=(), lowest=1), Proof())
        except Stop:
            continue
        if EXACTNESS.index(domain.exactness) <= EXACTNESS.index(numerics):
            proved[i] = domain
    return proved


__all__ = ["MOST", "by_statements"]
