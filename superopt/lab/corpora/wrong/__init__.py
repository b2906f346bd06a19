"""Wrong rewrites that people and tools have believed; each must be refuted with arrays.

Rule texts by module; the `source` of a text names who believed it.  Mistakes about the order of axes need pairs of JAX
functions: they are in `superopt.lab.corpora.statements.wrong`.
"""

from __future__ import annotations

import functools

from rewrites.language import texts
from rewrites.language.term import Rule


@functools.cache
def load() -> tuple[Rule, ...]:
    """All wrong rules, in order of module and text.

    Raises:
        RuleError: a text is no well-formed rule.
    """
    return tuple(rule for name in texts.modules(__name__) for rule in texts.read(__name__, name))
