"""The seam to the package that reads statements."""

from collections.abc import Sequence
from typing import Any, Protocol

from topics_service.engine.tables.errors import Place
from topics_service.engine.tables.plans import Plan
from topics_service.engine.tables.schema import Schema
from topics_service.engine.tables.types import Type


class Statement(Protocol):
    """A statement that was parsed, not yet bound."""

    @property
    def place(self) -> Place:
        """Its first character in the text."""
        ...


class SqlReader(Protocol):
    """Reads SQL: implemented by `topics_sql`, given to the API by the composition root. Pure and synchronous."""

    def parse(self, text: str) -> Sequence[Statement]:
        """Split and parse a text. Raises `syntax_error` or `unsupported_sql` with `line`, `column` and `statement`."""
        ...

    def parse_live(self, text: str) -> Sequence[Statement]:
        """Parse the text of a live query, SUBSCRIBE or SELECT. Raises as `parse`."""
        ...

    def bind(self, statement: Any, schema: Schema, namespace: str, given: Sequence[Type | None] = ()) -> Plan:
        """Plan a statement that it has parsed. Raises the errors of docs/errors.md with their place.

        `given` are types of parameters in order, for those to which the text gives none.
        """
        ...
