"""Source code under construction: a Python function and the helpers that it calls."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SMALL = 17
"""Arrays of numbers shorter than this have a precompiled format."""


class Source:
    """The source of one function, `compiled`, written line by line."""

    def __init__(self, title: str, helpers: dict[str, Any]) -> None:
        self.title = title
        self._lines: list[str] = []
        self._indent = 0
        self._names = dict(helpers)

    def line(self, text: str) -> None:
        self._lines.append(" " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines written inside below `head`, which ends in a colon."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def format(self, purpose: str, codes: str) -> str:
        """The name, in the source, of `unpack_from` or `pack` (the purpose) of these big-endian format codes."""
        name = f"{purpose}_{codes.replace('?', 'o')}"
        if name not in self._names:
            self._names[name] = getattr(struct.Struct(">" + codes), purpose)
        return name

    def numbers(self, purpose: str, code: str) -> str:
        """The name of a list with that method for arrays of 0 to SMALL - 1 numbers."""
        name = f"{purpose}_many_{code}"
        if name not in self._names:
            self._names[name] = [getattr(struct.Struct(f">{count}{code}"), purpose) for count in range(SMALL)]
        return name

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def build(self) -> Callable[..., Any]:
        """Compile the source. It consists of the committed schema alone: nothing in it comes from the network."""
        exec(compile(self.text, f"<{self.title}>", "exec"), self._names)
        function: Callable[..., Any] = self._names["compiled"]
        return function
