"""An optimised function: called as the original was, with its measured speed-up and its report.

`save` writes a zip file with the program as text, the prepared tensors and the report; `load` makes it callable
again without the original function (derivatives then go through the optimised program itself).
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import ArgumentError, InputError
from superopt.result import Report, Speedup

if TYPE_CHECKING:
    from collections.abc import Callable

    from superopt.backends.xla import XlaExecutable
    from superopt.frontends.jaxpr import Imported
    from superopt.ir.program import Program

FORMAT = 1


class Optimized:
    """What `optimize` returns: a callable with `.speedup`, `.report` and `.save`."""

    def __init__(self, imported: Imported, program: Program, executable: XlaExecutable, report: Report) -> None:
        from superopt.frontends.jaxpr import wrap_like_original  # late: jax is loaded by whoever made the program

        self.imported = imported
        self.program = program
        self.executable = executable
        self.report = report
        self._call: Callable[..., Any] = wrap_like_original(imported, executable)
        self.__wrapped__ = imported.fn
        self.__name__ = getattr(imported.fn, "__name__", "optimized")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the pytrees of the original function."""
        return self._call(*args, **kwargs)

    @property
    def speedup(self) -> Speedup:
        """Measured ratio, original over optimised, with its 95 % interval."""
        return self.report.speedup

    def save(self, path: str | Path) -> Path:
        """Write program, prepared tensors and report to a `.superopt` file.

        Raises:
            InputError: the program holds opaque operations, which exist only in the process that imported them.
        """
        import numpy as np  # late: see the module docstring of superopt
        from jax import tree_util  # late: see above

        from superopt.ir.text import print_graph  # late: see above
        from superopt.measure.compare import serialisable  # late: see above

        if not serialisable(self.program):
            raise InputError(
                f"{self.report.program} holds opaque operations and cannot be saved",
                hint="save is for programs whose ops are all in the op table; the report can be saved as it is",
            )
        target = Path(path)
        arrays = io.BytesIO()
        np.savez(arrays, *[np.asarray(x) for x in self.executable.prepared])
        meta = {
            "format": FORMAT,
            "names": [self.imported.names[i] for i in self.imported.live],
            "live": list(self.imported.live),
            "report": self.report.to_json(),
            "arguments": len(self.imported.names),
        }
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("meta.json", json.dumps(meta, default=str))
            archive.writestr("hot.txt", print_graph(self.program.hot))
            archive.writestr("prepared.npz", arrays.getvalue())
            archive.writestr("in_tree", _tree_bytes(self.imported.in_tree, tree_util))
            archive.writestr("out_tree", _tree_bytes(self.imported.out_tree, tree_util))
        return target


class Loaded:
    """A saved program: callable like the original, with the report of its making as plain data."""

    def __init__(self, path: str | Path) -> None:
        import jax  # late: see the module docstring of superopt
        import numpy as np  # late: see above

        from superopt.backends.xla import to_jax  # late: see above
        from superopt.ir.text import parse_graph  # late: see above

        try:
            with zipfile.ZipFile(path) as archive:
                meta = json.loads(archive.read("meta.json"))
                if meta.get("format") != FORMAT:
                    raise InputError(f"{path} has format {meta.get('format')}, this version reads {FORMAT}")
                self.graph = parse_graph(archive.read("hot.txt").decode())
                with np.load(io.BytesIO(archive.read("prepared.npz")), allow_pickle=False) as arrays:
                    self.prepared = tuple(jax.numpy.asarray(arrays[k]) for k in arrays.files)
                registry = jax.tree_util.default_registry
                read = jax.tree_util.PyTreeDef.deserialize_using_proto
                self.in_tree = read(registry, archive.read("in_tree"))
                self.out_tree = read(registry, archive.read("out_tree"))
        except (OSError, zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
            raise InputError(f"{path} is not a saved program: {error}", hint="write one with .save(path)") from error
        self.live: list[int] = meta["live"]
        self.report: dict[str, Any] = meta["report"]
        self._hot = jax.jit(to_jax(self.graph))
        self._tree = jax.tree_util

    @property
    def speedup(self) -> Speedup:
        """The speed-up measured when the program was made."""
        return Speedup(**self.report["speedup"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the pytrees of the original function; frozen arguments are taken as they were when saved.

        Raises:
            ArgumentError: another structure.
        """
        leaves, tree = self._tree.tree_flatten((args, kwargs))
        if tree != self.in_tree:
            raise ArgumentError(f"the arguments have the structure {tree}, the program was made for {self.in_tree}")
        results = self._hot(*[leaves[i] for i in self.live], *self.prepared)
        return self._tree.tree_unflatten(self.out_tree, results)


def _tree_bytes(tree: Any, tree_util: Any) -> bytes:
    try:
        return tree.serialize_using_proto()
    except ValueError as error:
        raise InputError(
            f"the structure {tree} holds types of its own and cannot be saved",
            hint="save functions of tuples, lists and dictionaries",
        ) from error


def load(path: str | Path) -> Loaded:
    """A program saved by `Optimized.save`.

    Raises:
        InputError: not such a file, or of another format.
    """
    return Loaded(path)
