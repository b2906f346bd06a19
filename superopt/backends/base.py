"""What every backend gives: a program turned into something that can be called and timed.

A backend offers `build(program, frozen_values) -> Executable`.  Building runs the `prepare` part once; a call runs the
`hot` part only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from superopt.ir.program import Program


@runtime_checkable
class Executable(Protocol):
    """A built program.

    Attributes:
        program: what was built.
        prepared: the prepared tensors of the frozen values given to `build`, in the order of the hot inputs.
        frozen_bytes: size of the frozen values.
        prepared_bytes: size of the prepared tensors.
        added_bytes: the part of `prepared_bytes` that is new memory: tensors that are not frozen values themselves.
    """

    program: Program
    prepared: tuple[Any, ...]
    frozen_bytes: int
    prepared_bytes: int
    added_bytes: int

    def __call__(self, *live: Any) -> tuple[Any, ...]:
        """Results for these live inputs, with the prepared tensors of `build`."""
        ...

    def prepare(self, frozen: Sequence[Any]) -> tuple[Any, ...]:
        """Prepared tensors for other frozen values (constants of the program excluded)."""
        ...

    def hot(self, live: Sequence[Any], prepared: Sequence[Any]) -> tuple[Any, ...]:
        """Results for these live inputs and prepared tensors."""
        ...
