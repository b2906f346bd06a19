"""Scalar functions without a vector form: the C library lane by lane, so that generation is total.

One internal function per module, name and width loops over the lanes.
"""

from __future__ import annotations

from superopt.kernels.llvm.module import Value, mangled, type_of
from superopt.kernels.math.lanes import Lanes

NAMES = ("sin", "cos", "tan", "lgamma")


def per_lane(m: Lanes, name: str, *args: str) -> str:
    """The C library's function on each lane; of float32 its float32 version."""
    scalar = type_of(m.dtype)
    symbol = name + ("f" if m.dtype == "float32" else "")
    module, taken = m.f.module, [scalar] * len(args)
    if name == "lgamma":  # the plain one writes the sign to a variable of the process
        symbol, taken = f"{symbol}_r", [scalar, "ptr"]
    module.declare(f"declare {scalar} @{symbol}({', '.join(taken)}) nounwind")
    inner_name = f"lanes.{name}.{mangled(m.type)}"
    if inner_name not in module.functions:
        names = [f"x{j}" for j in range(len(args))]
        inner = module.function(
            inner_name, [(m.type, n) for n in names], returns=m.type, attributes="nounwind noinline"
        )
        room = [("ptr", inner.alloca(1, 8, "i32"))] if name == "lgamma" else []

        def one(lane: Value, done: list[Value]) -> list[Value]:
            xs = [inner.extract(m.type, f"%{n}", lane) if m.lanes else f"%{n}" for n in names]
            y = inner.call(scalar, symbol, *[(scalar, x) for x in xs], *room)
            return [inner.value(f"insertelement {m.type} {done[0]}, {scalar} {y}, i64 {lane}") if m.lanes else y]

        start = "poison" if m.lanes else m.const(0.0)
        inner.ret(m.type, str(inner.for_(0, max(m.lanes, 1), 1, one, [(m.type, start)])[0]))
    return m.f.call(m.type, inner_name, *[(m.type, x) for x in args])
