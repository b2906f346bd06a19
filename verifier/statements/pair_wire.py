"""Statements on their way to the prover's process: two graphs over symbolic sizes as bytes, and what was proved back.

Hashes of sizes hold for one process only, and nodes are made through the table of nodes alone, so both are taken apart.
Nothing but the prover's own process reads these bytes.
"""

from __future__ import annotations

import base64
import copyreg
import io
import pickle
from typing import Any

from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.index import Form, Poly, Symbol
from verifier.equal.equality import Proof, Stop
from verifier.equal.solver import recorded
from verifier.rules.process import LimitExceededError, shared
from verifier.rules.wire import decode, encode
from verifier.statements.prove import Pair, prove_pair
from verifier.verdict import UNKNOWN, Query, ValidityDomain


def prove_elsewhere(pair: Pair, done: Proof) -> tuple[ValidityDomain, tuple[Query, ...]]:
    """What `prove_pair` says in the prover's process, and the questions that it asked.

    Raises:
        Stop: not proved; UNKNOWN where a limit was exceeded.
    """
    try:
        told = decode(shared().call("verifier.statements.pair_wire:prove_bytes", _written(pair)))
    except (LimitExceededError, RecursionError) as limit:
        raise Stop(UNKNOWN, str(limit) or "it is nested too deeply to be written down") from limit
    done.tiers = dict.fromkeys(told["tiers"])
    done.obligations += told["obligations"]
    done.queries += told["queries"]
    if told["domain"] is None:
        raise Stop(told["status"], told["cause"])
    return told["domain"], told["asked"]


def prove_bytes(text: str) -> Any:
    """The prover's side of `prove_elsewhere`."""
    done, domain, status, cause = Proof(), None, "", ""
    with recorded() as asked:
        try:
            domain = prove_pair(_read(text), done)
        except Stop as stop:
            status, cause = stop.status, stop.cause
    return encode(
        {
            "domain": domain,
            "status": status,
            "cause": cause,
            "tiers": tuple(done.tiers or ()),
            "obligations": done.obligations,
            "queries": done.queries,
            "asked": tuple(asked),
        }
    )


def _symbol(x: Symbol) -> Any:
    return Symbol, (x.name, x.low, x.high)


def _form(x: Form) -> Any:
    return Form, (x.op, x.args)


def _poly(x: Poly) -> Any:
    return Poly, (x.terms,)


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {Symbol: _symbol, Form: _form, Poly: _poly}


def _written(pair: Pair) -> str:
    sides = [_rows(graph) for graph in (pair.left, pair.right)]
    out = io.BytesIO()
    _Pickler(out).dump((sides, pair.sizes, pair.lowest, pair.premises, pair.compared))
    return base64.b64encode(out.getvalue()).decode()


def _rows(graph: Graph) -> Any:
    nodes = topological((*graph.inputs, *graph.outputs))
    at = {node: i for i, node in enumerate(nodes)}
    rows = [(node.op, [at[x] for x in node.inputs], node.attrs) for node in nodes]
    return rows, [at[x] for x in graph.inputs], [at[x] for x in graph.outputs], dict(graph.constants)


def _read(text: str) -> Pair:
    sides, sizes, lowest, premises, compared = pickle.loads(base64.b64decode(text))
    left, right = [_graph(*side) for side in sides]
    return Pair(left, right, sizes, lowest, premises, compared)


def _graph(rows: Any, inputs: list[int], outputs: list[int], constants: Any) -> Graph:
    nodes: list[Node] = []
    row: tuple[str, list[int], tuple[tuple[str, Any], ...]]
    for row in rows:
        op, operands, attrs = row
        nodes.append(mk(op, *[nodes[i] for i in operands], **dict(attrs)))
    return Graph(tuple(nodes[i] for i in inputs), tuple(nodes[i] for i in outputs), constants)
