"""Parser of the text form of a graph (see `superopt.ir.text`).

    graph     = { statement } "return" [ ref { "," ref } ]
    statement = ref "=" ( "input" word ":" type [ "frozen" ] [ "constant" [ "(" values ")" ] ]
                        | "literal" value ":" type
                        | word "(" refs ")" { word "=" value } ":" ( type | "(" types ")" ) )
    value     = number | string | None | True | False | type | "(" values ")" | "{" graph "}"
    type      = word "[" sizes "]"

Every node is made anew and typed by the op table; a printed type that disagrees is an error.  A text may come from an
untrusted source: any fault in it ends in one `InputError` with the line, and its size, depth and types have limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from superopt.errors import FileLimitError, InputError
from superopt.files.reading import LIMITS, Allowance, bytes_of, cause_of, shown
from superopt.ir.graph import Graph, Node, make_input, mk
from superopt.ir.scalar import DTYPE
from superopt.ir.types import ITEMSIZE_BYTES, LONG, TensorType

T = TypeVar("T")
_TOKEN = re.compile(
    r"""(?P<skip>(?:\s++|\#[^\n]*+)*+)
    (?: (?P<ref>%\d+)
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_.$-]*)
      | (?P<mark>[=:,(){}\[\]])
      | (?P<end>\Z)
      | (?P<bad>.))""",
    re.VERBOSE,
)
_STEP = 256  # tokens between two looks at the allowance
_WIDEST_BYTES = 16  # bytes of an element whose dtype is not in the table of types
_CONSTANT_WORDS = {"None": None, "True": True, "False": False}


def parse_graph(text: str, constants: Mapping[str, Any] | None = None, allowance: Allowance | None = None) -> Graph:
    """Parse the text of a graph.

    Args:
        text: the text that `print_graph` wrote.
        constants: values of the inputs marked `constant` whose values the text leaves out; those without one become
            ordinary frozen inputs.
        allowance: limits of the file that the text comes from; each token is a step.

    Raises:
        InputError: the text is not a graph, or a node in it is ill-typed; says the line.
        FileLimitError: it asks for more than is accepted.
    """
    parser = _Parser(text, constants or {}, allowance)
    graph = parser.graph()
    if parser.kind != "end":
        raise parser.wrong("the end of the text")
    return graph


class _Parser:
    """The tokens of a text and the position in them."""

    def __init__(self, text: str, constants: Mapping[str, Any], allowance: Allowance | None) -> None:
        self.text, self.constants, self.allowance = text, constants, allowance
        self.position: int = 0
        self.depth = self.nodes = self.spent = 0
        self.kind = self.token = ""
        self.start = 0
        self.advance()

    def advance(self) -> str:
        """Take the current token and move to the next."""
        taken, match = self.token, _TOKEN.match(self.text, self.position)
        assert match is not None  # `bad` takes any character
        self.spent += 1
        if self.allowance is not None and self.spent % _STEP == 0:
            self.allowance.spend(_STEP)
        self.kind, self.start, self.position = match.lastgroup or "", match.end("skip"), match.end()
        self.token = self.text[self.start : self.position]
        if self.kind == "bad":
            raise self.wrong("a token")
        return taken

    def wrong(self, expected: str) -> InputError:
        line = self.text.count("\n", 0, self.start) + 1
        return InputError(f"line {line}: expected {expected}, got {shown(self.token) or 'the end of the text'!r}")

    def take(self, token: str) -> None:
        if not self.at(token):
            raise self.wrong(repr(token))
        self.advance()

    def at(self, token: str) -> bool:
        return self.token == token  # that of a string begins with a quote

    def accept(self, token: str) -> bool:
        if self.at(token):
            self.advance()
            return True
        return False

    def word(self) -> str:
        if self.kind == "string":
            try:
                name = json.loads(self.token)
            except ValueError as error:
                raise self.wrong("a string") from error
            self.advance()
            return name
        if self.kind == "word" or self.token in ("inf", "nan"):
            return self.advance()
        raise self.wrong("a name")

    def items(self, close: str, item: Callable[[], T]) -> list[T]:
        """Parse items between commas up to a closing mark, which is taken."""
        items: list[T] = []
        while not self.accept(close):
            items.append(item())
            if not self.at(close):
                self.take(",")
        return items

    def integer(self) -> int:
        if self.kind != "number" or not self.token.lstrip("-").isdigit() or len(self.token) > LIMITS.digits:
            raise self.wrong("an integer")
        return int(self.advance())

    def type(self) -> TensorType:
        return self.shaped(self.word())

    def shaped(self, name: str) -> TensorType:
        """Return the type of this dtype with the sizes that follow."""
        self.take("[")
        kind = TensorType(tuple(self.items("]", self.integer)), LONG.get(name, name))
        self.sized(kind)
        return kind

    def sized(self, kind: TensorType) -> None:
        """Reject a type of too many axes or bytes."""
        bytes_of(kind.shape, ITEMSIZE_BYTES.get(kind.dtype, _WIDEST_BYTES), "a value")  # pyright: ignore[reportArgumentType]

    def inside(self, read: Callable[[], T]) -> T:
        """Parse one nesting level deeper."""
        self.depth += 1
        if self.depth > LIMITS.depth:
            raise FileLimitError(f"values and bodies are nested more than {LIMITS.depth} deep")
        item = read()
        self.depth -= 1
        return item

    def value(self) -> Any:
        if self.kind == "number":
            if self.token.lstrip("-").isdigit():
                return self.integer()
            return float(self.advance())
        if self.accept("("):
            return tuple(self.inside(lambda: self.items(")", self.value)))
        if self.accept("{"):
            body = self.inside(self.graph)
            self.take("}")
            return body
        if self.kind == "word" and self.token in _CONSTANT_WORDS:
            return _CONSTANT_WORDS[self.advance()]
        quoted = self.kind == "string"
        name = self.word()
        if self.at("["):
            return self.shaped(name)
        if not quoted:
            raise self.wrong(f"a value instead of {name!r}")
        return name

    def graph(self) -> Graph:
        """Read the statements and results of a program."""
        known: dict[str, Node] = {}
        inputs: list[Node] = []
        constants: dict[str, Any] = {}
        while not self.accept("return"):
            if self.kind != "ref":
                raise self.wrong("a statement or return")
            start = self.start
            name = self.advance()
            self.take("=")
            try:
                node = self.statement(known, constants)
            except InputError:
                raise
            except Exception as error:  # type rules of ops compute with attributes that may be anything
                line = self.text.count("\n", 0, start) + 1
                raise InputError(f"line {line}: {cause_of(error)}") from error
            if name in known:
                raise InputError(f"line {self.text.count(chr(10), 0, start) + 1}: {name} is defined twice")
            known[name] = node
            if node.op == "input":
                inputs.append(node)
        outputs: list[Node] = []
        while self.kind == "ref":
            outputs.append(self.ref(known))
            if not self.accept(","):
                break
        return Graph(tuple(inputs), tuple(outputs), constants)

    def ref(self, known: Mapping[str, Node]) -> Node:
        if self.token not in known:
            raise self.wrong("a node defined above")
        return known[self.advance()]

    def statement(self, known: Mapping[str, Node], constants: dict[str, Any]) -> Node:
        """Read the right side of a statement."""
        self.nodes += 1
        if self.nodes > LIMITS.nodes:
            raise FileLimitError(f"a program of more than {LIMITS.nodes} nodes")
        op = self.word()
        if op == "input":
            return self.input(constants)
        if op == "literal":
            value = self.value()
            self.take(":")
            return mk("literal", value=value, dtype=self.type().dtype)
        self.take("(")
        operands = self.items(")", lambda: self.ref(known))
        attrs: dict[str, Any] = {}
        while not self.accept(":"):
            name = self.word()
            self.take("=")
            attrs[name] = self.value()
        stated = tuple(self.items(")", self.type)) if self.accept("(") else (self.type(),)
        node = mk(op, *operands, **attrs)
        for kind in node.types:
            self.sized(kind)
        if node.types != stated:
            raise self.wrong(f"the types {', '.join(map(str, node.types))} of {op} before this point")
        return node

    def input(self, constants: dict[str, Any]) -> Node:
        name = self.word()
        self.take(":")
        kind = self.type()
        frozen = self.accept("frozen")
        if self.accept("constant"):
            if self.accept("("):
                values = self.items(")", self.value)
                constants[name] = np.array(values, DTYPE[kind.dtype]).reshape(kind.shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
            elif name in self.constants:
                constants[name] = self.constants[name]
        return make_input(name, kind.shape, kind.dtype, frozen=frozen)
