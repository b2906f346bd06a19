"""Verdicts as JSON and back, tuples and special floats included: how they travel between processes."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any, cast

from verifier import verdict as _verdict


def encode(x: Any) -> Any:
    """A JSON value of plain data, tuples, and the records of `verifier.verdict`.

    Raises:
        TypeError: anything else is inside.
    """
    if x is None or isinstance(x, bool | str) or type(x) is int:
        return x
    if type(x) is float:
        return x if math.isfinite(x) else {"float": repr(x)}
    if isinstance(x, list):
        return [encode(v) for v in cast(list[Any], x)]
    if isinstance(x, tuple):
        return {"tuple": [encode(v) for v in cast(tuple[Any, ...], x)]}
    if isinstance(x, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in cast(dict[Any, Any], x).items()]}
    if is_dataclass(x) and type(x).__module__ == _verdict.__name__:
        return {"record": type(x).__name__, "of": {f.name: encode(getattr(x, f.name)) for f in fields(x)}}
    item = getattr(x, "item", None)  # a NumPy scalar
    if item is not None and getattr(x, "shape", None) == ():
        return encode(item())
    raise TypeError(f"a {type(x).__name__} in a verdict")


def decode(x: Any) -> Any:
    """What `encode` made the JSON value of."""
    if isinstance(x, list):
        return [decode(v) for v in cast(list[Any], x)]
    if not isinstance(x, dict):
        return x
    tagged = cast(dict[str, Any], x)
    if "float" in tagged:
        return float(tagged["float"])
    if "tuple" in tagged:
        return tuple([decode(v) for v in tagged["tuple"]])
    if "dict" in tagged:
        return {decode(k): decode(v) for k, v in tagged["dict"]}
    made = getattr(_verdict, tagged["record"])
    return made(**{name: decode(v) for name, v in tagged["of"].items()})
