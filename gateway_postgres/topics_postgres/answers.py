"""Answers to statements that the engine does not know: queries of the catalog, cursors, PREPARE and EXECUTE."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from topics_postgres import decoding, oids
from topics_postgres.arrays import ArrayQuery
from topics_postgres.catalog.asking import asking
from topics_postgres.cursor_statements import Declare, Execute, Fetch, Prepare
from topics_postgres.encoding import encoders
from topics_postgres.errors import PgError
from topics_postgres.portals import Portal, Prepared
from topics_postgres.statements import CatalogQuery
from topics_service.api.sql.requests import SqlResult
from topics_service.api.sql.session import Answer, Status
from topics_service.engine.tables.types import Type, Value

if TYPE_CHECKING:
    from topics_postgres.session import Session

STATEMENTS: Final = ArrayQuery | CatalogQuery | Declare | Fetch | Prepare | Execute


async def perform(
    session: "Session", statement: Any, values: Sequence[Any], given: Sequence[Type | None], *, in_batch: bool
) -> Answer:
    """Run one of `STATEMENTS`. Raises PgError."""
    if session.sql.is_failed:
        raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
    match statement:
        case CatalogQuery():
            answering = session.server.catalogs.answer(
                session.sql, statement.piece, values, list(map(oids.oid_of, given)), asking(session)
            )
            answer: Answer = await session.guarded(answering, statement.piece)
            return answer
        case ArrayQuery():
            text, flat, types = statement.spread(values, given)
            (plain,) = session.server.splitter.split(text)
            return replace(await session.perform(plain, flat, types, in_batch=in_batch), notice="")
        case Declare():
            return await _declare(session, statement, values, given)
        case Fetch():
            return await _fetch(session, statement)
        case Prepare():
            session.statements.check(statement.name)
            prepared = Prepared(statement.sql, statement.statement)
            await session.describe_statement(prepared, statement.oids)
            session.statements.add(statement.name, prepared)
            return Answer("Done", SqlResult(message="PREPARE"))
        case _:
            return await _execute(session, statement, in_batch=in_batch)


async def describe(session: "Session", prepared: Prepared, given: Sequence[int]) -> None:
    """Note the parameters and the columns of one of `STATEMENTS`. Raises PgError."""
    statement: Any = prepared.statement
    match statement:
        case CatalogQuery():
            described = session.server.catalogs.describe(session.sql, statement.piece, given, asking(session))
            prepared.oids, prepared.columns = await session.guarded(described, statement.piece)
            prepared.given = tuple(map(oids.type_of_catalog, prepared.oids))
        case ArrayQuery():
            await _describe_arrays(session, statement, prepared, given)
        case Declare():
            query = Prepared("", statement.query)
            await session.describe_statement(query, given)
            prepared.oids, prepared.given = query.oids, query.given
        case Fetch() if not statement.is_move:
            prepared.columns = session.portals.find(statement.name).prepared.columns
        case Execute():
            prepared.columns = session.statements.find(statement.name).columns
        case _:
            pass


async def _describe_arrays(session: "Session", statement: ArrayQuery, prepared: Prepared, given: Sequence[int]) -> None:
    """Describe the statement with one element of each array."""
    (plain,) = session.server.splitter.split(statement.text({each: f"${each}" for each in statement.parameters}))
    single = Prepared("", plain)
    await session.describe_statement(single, [oids.ELEMENTS.get(each, each) for each in given])
    prepared.kind, prepared.columns, prepared.given = single.kind, single.columns, single.given
    listed = list(single.oids)
    for number in statement.parameters:
        declared = given[number - 1] if number <= len(given) else 0
        known = declared in oids.ELEMENTS
        listed[number - 1] = declared if known else oids.ARRAYS.get(listed[number - 1], oids.ARRAYS[oids.TEXT])
    prepared.oids = tuple(listed)


async def _declare(
    session: "Session", statement: Declare, values: Sequence[Any], given: Sequence[Type | None]
) -> Answer:
    if session.sql.status is Status.IDLE:
        raise PgError("25P01", "DECLARE CURSOR can only be used in transaction blocks")
    portal = Portal(Prepared("", statement.query), (), (), 0)
    session.portals.add(statement.name, portal)
    try:
        answer = await session.perform(statement.query, values, tuple(given), in_batch=True)
    except BaseException:
        session.portals.remove(statement.name)
        raise
    portal.prepared.columns = answer.result.columns
    portal.formats = (0,) * len(answer.result.columns)
    portal.rows, portal.pages, portal.is_begun = answer.result.rows, answer.pages, True
    portal.tag = f"SELECT {answer.result.row_count}"
    portal.encoders = encoders([each.type for each in answer.result.columns], portal.formats)
    return Answer("Done", SqlResult(message="DECLARE CURSOR"))


class _Rest:
    """Rows of a cursor up to the number that FETCH asks for, a page at a time."""

    def __init__(self, portal: Portal, left: int | None) -> None:
        self._portal = portal
        self._left = left

    async def next(self) -> Sequence[Sequence[Value]]:
        """The next rows; none at the end."""
        portal = self._portal
        if self._left == 0:
            return ()
        if portal.position >= len(portal.rows) and portal.pages is not None:
            portal.rows, portal.position = await portal.pages.next(), 0
        count = len(portal.rows) - portal.position
        count = count if self._left is None else min(count, self._left)
        rows = portal.rows[portal.position : portal.position + count]
        portal.position += count
        if self._left is not None:
            self._left -= count
        return rows

    def notice(self) -> str:
        """See Rest."""
        return "" if self._portal.pages is None else self._portal.pages.notice()

    def close(self) -> None:
        """Do nothing: the cursor stays open."""


async def _fetch(session: "Session", statement: Fetch) -> Answer:
    portal = session.portals.find(statement.name)
    rest = _Rest(portal, statement.count)
    if not statement.is_move:
        rows = await session.guarded(rest.next())
        result = SqlResult(columns=portal.prepared.columns or (), rows=rows, row_count=len(rows))
        return Answer("Fetch", result, pages=rest)
    moved = 0
    while rows := await session.guarded(rest.next()):
        moved += len(rows)
    return Answer("Done", SqlResult(message=f"MOVE {moved}"))


async def _execute(session: "Session", statement: Execute, *, in_batch: bool) -> Answer:
    prepared = session.statements.find(statement.name)
    if len(statement.values) != len(prepared.oids):
        message = f"the statement has {len(prepared.oids)} parameters, and {len(statement.values)} values are given"
        raise PgError("42601", message)
    if prepared.statement is None or isinstance(prepared.statement, Execute | Prepare):
        raise PgError("0A000", "this statement can't be run by EXECUTE")
    values = [
        None if value is None else decoding.decoder(oid, 0)(value.encode())
        for value, oid in zip(statement.values, prepared.oids, strict=True)
    ]
    answer = await session.perform(prepared.statement, values, prepared.given, in_batch=in_batch)
    return replace(answer, notice="")
