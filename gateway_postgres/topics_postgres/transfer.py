"""COPY: rows of the client into a table, in one transaction, and rows of a query to the client."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_postgres import decoding, oids, wire
from topics_postgres.connection import Message
from topics_postgres.copying import Field, Options, Row, RowWriter, options_of, reader
from topics_postgres.encoding import encoders
from topics_postgres.errors import FatalError, MalformedError, PgError
from topics_postgres.portals import next_page
from topics_postgres.statements import Copy
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.tables.types import Kind, Value

if TYPE_CHECKING:
    from topics_postgres.session import Session

_BATCH_ROWS: Final = 128
_ROWS_A_LOOK: Final = 32
_SLICE_SECONDS: Final = 0.002
_DATA, _DONE, _FAIL = b"dcf"
_PASSED_OVER: Final = b"HS"

Decoder = Callable[[bytes], Any]


class CopyTransfer:
    """One COPY of a session."""

    def __init__(self, session: "Session", statement: Copy) -> None:
        self._session = session
        self._statement = statement
        self._options = options_of(statement.options, is_in=statement.is_in)

    async def run(self) -> int:
        """Copy everything; return the number of rows. Raises PgError: nothing was written then."""
        return await (self._receive() if self._statement.is_in else self._send())

    # ----------------------------------------------------------------------------------------------------------- in

    async def _receive(self) -> int:
        session, options = self._session, self._options
        columns = await self._columns()
        names = [column.name for column in columns]
        for wanted in (options.force_null | options.force_not_null) - {"*", *names}:
            raise PgError("42703", f'column "{wanted[:80]}" is not among those that are copied')
        places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        insert = f"{self._statement.query} VALUES ({places})"
        await session.guarded(session.sql.describe(insert))  # refused before the client sends anything
        session.connection.send(wire.copy_response(b"G", options.code, len(columns)))
        decoders = [_decoder(column, options) for column in columns]
        rows, count = reader(options, names), 0
        try:
            while (message := await self._message()).kind != _DONE:
                if message.kind == _FAIL:
                    reason = wire.Reading(message.body).text()
                    raise PgError("57014", f"COPY from stdin failed: {reason[:500]}")
                count += await self._insert(insert, rows.feed(message.body), decoders)
            count += await self._insert(insert, rows.finish(), decoders)
            if session.sql.is_implicit:
                await session.guarded(session.sql.finish_batch())
        except BaseException:
            session.sql.fail()
            raise
        return count

    async def _columns(self) -> Sequence[ResultColumn]:
        """The columns of the table, those that the statement names or all."""
        statement, sql = self._statement, self._session.sql
        query = statement.query.replace("INSERT INTO ", "", 1)
        names = ", ".join(_quoted(name) for name in statement.columns) or "*"
        table = query[: query.rindex(" (")] if statement.columns else query
        found = await self._session.guarded(sql.describe(f"SELECT {names} FROM {table}"))
        columns: Sequence[ResultColumn] = found.columns or ()
        return columns

    async def _message(self) -> Message:
        """The next message of the COPY. Raises FatalError when the client sends nothing for too long, or is gone."""
        session, connection = self._session, self._session.connection
        while True:
            message = connection.take()
            if message is None:
                connection.flush()
                connection.deadline = session.server.now() + session.server.settings.transaction_idle_seconds
                try:
                    message = await session.guarded(connection.receive())
                finally:
                    connection.deadline = 0.0
            if message is None:
                raise FatalError("08006", "the client is gone")
            if message.kind in (_DATA, _DONE, _FAIL):
                return message
            if message.kind not in _PASSED_OVER:
                raise MalformedError("a message that is none of COPY comes during one")

    async def _insert(self, insert: str, rows: Iterable[Row], decoders: Sequence[Decoder]) -> int:
        """Insert rows, a batch at a time; return their number."""
        count, batch = 0, list[list[Any]]()
        for row in rows:
            batch.append([None if value is None else decode(value)
                          for value, decode in zip(row, decoders, strict=True)])  # fmt: skip
            if len(batch) == _BATCH_ROWS:
                count += await self._write(insert, batch)
                batch = []
        return count + (await self._write(insert, batch) if batch else 0)

    async def _write(self, insert: str, batch: Sequence[Sequence[Any]]) -> int:
        session = self._session
        written: int = await session.guarded(session.sql.insert(insert, batch))
        await asyncio.sleep(0)
        return written

    # ---------------------------------------------------------------------------------------------------------- out

    async def _send(self) -> int:
        session, options, connection = self._session, self._options, self._session.connection
        answer = await session.guarded(session.sql.execute(self._statement.query, in_batch=True, paged=True))
        columns = answer.result.columns
        if not columns:
            raise PgError("0A000", "COPY takes a query that has rows")
        writer = RowWriter(options, [column.name for column in columns])
        makers = encoders([column.type for column in columns], (options.code,) * len(columns))
        connection.send(wire.copy_response(b"H", options.code, len(columns)))
        head, count = writer.begin(), 0
        if head and not options.code:
            connection.send(wire.copy_data(head))
            head = b""
        pages = answer.pages
        rows: Sequence[Sequence[Value]] = answer.result.rows
        try:
            while rows:
                count += len(rows)
                await self._write_rows(rows, makers, writer, head)
                head = b""
                rows = [] if pages is None else await next_page(session, pages)
        finally:
            if pages is not None:
                pages.close()
        if tail := head + writer.end():
            connection.send(wire.copy_data(tail))
        connection.send(wire.COPY_DONE)
        return count

    async def _write_rows(
        self, rows: Sequence[Sequence[Value]], makers: Sequence[Callable[[Any], bytes]], writer: RowWriter, head: bytes
    ) -> None:
        """Send rows in slices, each as a message of its own, which drivers count on; `head` precedes the first."""
        connection = self._session.connection
        ends = time.perf_counter() + _SLICE_SECONDS
        for number, row in enumerate(rows, 1):
            fields: list[Field] = [
                None if value is None else make(value) for value, make in zip(row, makers, strict=True)
            ]
            connection.send(wire.copy_data(head + writer.row(fields)))
            head = b""
            if number % _ROWS_A_LOOK:
                continue
            if connection.must_wait:
                await self._session.guarded(connection.drain())
            elif time.perf_counter() > ends:
                await asyncio.sleep(0)
            else:
                continue
            if connection.is_lost:
                raise FatalError("08006", "the client is gone")
            ends = time.perf_counter() + _SLICE_SECONDS


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _decoder(column: ResultColumn, options: Options) -> Decoder:
    """The function that makes a value of a field."""
    if options.form == "binary":
        return decoding.decoder(oids.oid_of(column.type), 1)
    if column.type is not None and column.type.kind is Kind.BYTES:
        return decoding.bytea_text
    return decoding.text
