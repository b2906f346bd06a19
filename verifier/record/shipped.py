"""Certificates of the library's rules that ship with the package, so that a first search need not prove them.

They are trusted like the sources of the prover, which ship the same way.  A certificate is used only under its key,
which changes with the rule, the denotations of its ops, the prover and the version of Z3 (`verifier.record.ledger`).  A
rule without a certificate under its key is proved as if nothing had shipped.  `superopt verify` and its recheck never
read this file.

    python -m verifier.record.shipped    # after an edit of a rule, an op's meaning or the prover: proves and writes
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewrites.library import load
from superopt.errors import InputError
from superopt.files.reading import json_of, text_file
from verifier.record import digests
from verifier.record.ledger import Ledger, require_proved

SHIPPED = Path(__file__).with_name("library.json")


@functools.cache
def shipped(path: Path = SHIPPED) -> Mapping[str, Mapping[str, Any]]:
    """Certificates by key; none where the file is missing or damaged."""
    try:
        rows: Any = json_of(text_file(path))
        return {str(row["key"]): row for row in rows}
    except (InputError, OSError, TypeError, KeyError):
        return {}


def write(path: Path = SHIPPED) -> int:
    """Write the digests of the sources, then prove the library and write its certificates, one a line.

    Returns:
        The number of certificates.
    """
    digests.write(load())
    _, certificates = require_proved(load(), Ledger())
    by_key = {
        certificate.key: certificate for certificate in certificates.values()
    }  # rules with the same text share one
    rows = [json.dumps(asdict(by_key[key]), sort_keys=True) for key in sorted(by_key)]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    return len(rows)


if __name__ == "__main__":
    print(f"{write()} certificates in {SHIPPED}")
