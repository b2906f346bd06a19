"""Import guard for our packages, where a user's folder of the same name comes first on the path.

Processes of ours leave the working directory out of their path (`-P`).  The process of the user remains, in which a
folder `verifier/` beside the program hides the package of that name.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SIBLINGS = ("rewrites", "verifier", "costmodel")


def claim_packages() -> None:
    """Import those of our packages that would not be found otherwise.

    Raises:
        ImportError: a package of the user's that has such a name is in use.
    """
    for name in _SIBLINGS:
        own = _ROOT / name / "__init__.py"
        known = sys.modules.get(name)
        if known is not None:
            if Path(getattr(known, "__file__", None) or own).resolve() != own:
                raise ImportError(
                    f"{known.__file__} has the name of a package that superopt brings, and was imported before it; "
                    "rename it"
                )
            continue
        module_spec = importlib.machinery.PathFinder.find_spec(name)
        if module_spec is None or not module_spec.origin or Path(module_spec.origin).resolve() == own:
            continue
        spec = importlib.util.spec_from_file_location(name, own, submodule_search_locations=[str(own.parent)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
