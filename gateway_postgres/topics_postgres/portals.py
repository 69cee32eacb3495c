"""Prepared statements and portals of a session, each within its bound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_postgres import wire
from topics_postgres.encoding import Encoder
from topics_postgres.errors import PgError
from topics_postgres.statements import Statement
from topics_service.api.sql.requests import ResultColumn
from topics_service.api.sql.session import Rest
from topics_service.engine.tables.types import Type, Value

if TYPE_CHECKING:
    from topics_postgres.quick import QuickStatement
    from topics_postgres.session import Session

MAX_STATEMENTS: Final = 1000
MAX_STATEMENT_CHARS: Final = 8 << 20
MAX_PORTALS: Final = 16
_LIMIT: Final = "53400"


async def next_page(session: "Session", pages: Rest) -> Sequence[Sequence[Value]]:
    """The next rows of a query, after a notice of what its reader should know."""
    rows: Sequence[Sequence[Value]] = await session.guarded(pages.next())
    if text := pages.notice():
        session.connection.send(wire.notice(text))
    return rows


class Prepared:
    """A statement that was parsed. `statement` None is an empty one."""

    __slots__ = ("columns", "given", "kind", "oids", "quick", "runs", "sql", "statement")

    def __init__(self, sql: str, statement: Statement | None) -> None:
        self.sql = sql
        self.statement = statement
        self.kind = ""
        self.oids: tuple[int, ...] = ()
        """Those of its parameters."""
        self.given: tuple[Type | None, ...] = ()
        """The types that the client gives to those that have none in the text."""
        self.columns: tuple[ResultColumn, ...] | None = None
        self.runs = 0
        self.quick: QuickStatement | None = None
        """Its quick form, if it has one and runs for more than the second time."""


class Portal:
    """A statement with its values, and what is left of its rows."""

    __slots__ = ("encoders", "formats", "is_begun", "pages", "position", "prepared", "rows", "size", "tag", "values")

    def __init__(self, prepared: Prepared, values: Sequence[Any], formats: Sequence[int], size: int) -> None:
        self.prepared = prepared
        self.values = values
        self.formats = formats
        self.size = size
        self.is_begun = False
        self.encoders: Sequence[Encoder] = ()
        self.rows: Sequence[Sequence[Value]] = ()
        self.position = 0
        self.pages: Rest | None = None
        self.tag = ""

    def close(self) -> None:
        """Let go of the rows."""
        if self.pages is not None:
            self.pages.close()
            self.pages = None
        self.rows = ()


class Statements:
    """Prepared statements by name. The one without a name is replaced by the next."""

    def __init__(self) -> None:
        self.kept: Final[dict[str, Prepared]] = {}
        self._chars = 0

    def find(self, name: str) -> Prepared:
        """Find a statement. Raises PgError."""
        found = self.kept.get(name)
        if found is None:
            raise PgError("26000", f'prepared statement "{name[:80]}" does not exist')
        return found

    def check(self, name: str) -> None:
        """Raise PgError if a statement with the name is there, or if there are too many."""
        if not name:
            return
        if name in self.kept:
            raise PgError("42P05", f'prepared statement "{name[:80]}" already exists')
        if len(self.kept) >= MAX_STATEMENTS or self._chars > MAX_STATEMENT_CHARS:
            raise PgError(_LIMIT, f"a session has at most {MAX_STATEMENTS} prepared statements: deallocate some")

    def add(self, name: str, prepared: Prepared) -> None:
        """Add a statement."""
        self.remove(name)
        self.kept[name] = prepared
        self._chars += len(prepared.sql)

    def remove(self, name: str) -> bool:
        """Remove a statement; False if there is none."""
        found = self.kept.pop(name, None)
        if found is not None:
            self._chars -= len(found.sql)
        return found is not None

    def clear(self) -> None:
        """Remove all."""
        self.kept.clear()
        self._chars = 0


class Portals:
    """Portals by name."""

    def __init__(self) -> None:
        self.open: Final[dict[str, Portal]] = {}

    def find(self, name: str) -> Portal:
        """Find a portal. Raises PgError."""
        found = self.open.get(name)
        if found is None:
            raise PgError("34000", f'portal "{name[:80]}" does not exist')
        return found

    def add(self, name: str, portal: Portal) -> None:
        """Add a portal; one without a name replaces the one before. Raises PgError."""
        if name:
            if name in self.open:
                raise PgError("42P03", f'cursor "{name[:80]}" already exists')
            if len(self.open) >= MAX_PORTALS:
                raise PgError(_LIMIT, f"a session has at most {MAX_PORTALS} open portals: close some")
        else:
            self.remove(name)
        self.open[name] = portal

    def remove(self, name: str) -> bool:
        """Close a portal; False if there is none."""
        found = self.open.pop(name, None)
        if found is not None:
            found.close()
        return found is not None

    def clear(self) -> None:
        """Close all."""
        for portal in self.open.values():
            portal.close()
        self.open.clear()


def expanded(formats: Sequence[int], count: int) -> Sequence[int]:
    """The format of each column: none means text for all, one stands for all. Raises PgError."""
    if not formats:
        return (0,) * count
    if len(formats) == 1:
        return tuple(formats) * count
    if len(formats) != count:
        raise PgError("08P01", f"there are {len(formats)} formats for {count} columns")
    return formats
