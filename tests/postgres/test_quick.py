"""Rows by their keys that are answered at once: the same bytes as in the ordinary way, and only where that holds."""

import asyncio
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import FrameType

import pytest

from support.executor import Executor
from topics_postgres.listener import PostgresServer
from topics_postgres.quick import QuickPath
from topics_postgres.settings import PostgresSettings
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.sql.sessions import OwnSessions
from topics_service.statistics import PostgresStatistics

START = struct.pack(">II", 8 + 10, 3 << 16) + b"user\0ada\0\0"
DESCRIBE = b"D\0\0\0\6P\0"
EXECUTE = b"E\0\0\0\x09" + bytes(5)
SYNC = b"S\0\0\0\4"
FLUSH = b"H\0\0\0\4"
INT8, TEXT = 20, 25
MAX_CALLS = 23
"""Python calls of the server for a row by its key, from the bytes that arrive to those of the answer."""


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def parse(name: bytes, sql: str, *oids: int) -> bytes:
    return message(b"P", name + b"\0" + sql.encode() + b"\0" + struct.pack(f">H{len(oids)}I", len(oids), *oids))


def bind(name: bytes, *values: bytes | None, formats: tuple[int, ...] = (), results: tuple[int, ...] = ()) -> bytes:
    given = b"".join(b"\xff" * 4 if each is None else struct.pack(">I", len(each)) + each for each in values)
    head = b"\0" + name + b"\0" + struct.pack(f">H{len(formats)}h", len(formats), *formats)
    return message(b"B", head + struct.pack(">H", len(values)) + given
                   + struct.pack(f">H{len(results)}h", len(results), *results))  # fmt: skip


class Client:
    """A connection that sends bytes as one packet and reads up to ReadyForQuery."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, data: bytes) -> bytes:
        self._writer.write(data)
        found = b""
        while True:
            head = await asyncio.wait_for(self._reader.readexactly(5), 20)
            body = await self._reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            found += head + body
            if head[:1] == b"Z":
                return found

    async def query(self, sql: str) -> bytes:
        return await self.ask(message(b"Q", sql.encode() + b"\0"))

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each call of the quick path whether it answered."""
    found: list[bool] = []
    answer = QuickPath.answer

    def noted(self: QuickPath, data: bytes) -> bytes | None:
        reply = answer(self, data)
        found.append(reply is not None)
        return reply

    monkeypatch.setattr(QuickPath, "answer", noted)
    return found


@pytest.fixture
async def open_client() -> AsyncIterator[Callable[[], "asyncio.Future[Client]"]]:
    async with Executor() as executor:
        await executor.run("CREATE TABLE p (id BIGINT PRIMARY KEY, name TEXT, n INT, x DECIMAL(9, 2))")
        await executor.run("INSERT INTO p VALUES (1, 'one', 10, 1.5), (2, NULL, NULL, NULL), (3, 'three', 30, -2.25)")
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sessions = OwnSessions(executor.sql)
        server = PostgresServer(
            sessions, Authorizer(), PostgresSettings(), PostgresStatistics(), Counter(), sock
        )  # fmt: skip
        await server.start()
        clients: list[Client] = []

        async def opened() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            clients.append(client)
            await client.ask(START)
            return client

        yield lambda: asyncio.ensure_future(opened())
        for client in clients:
            client.close()
        await server.stop(5)


@pytest.fixture
async def client(open_client: Callable[[], "asyncio.Future[Client]"]) -> Client:
    return await open_client()


async def prepared(client: Client, sql: str, *oids: int, values: tuple[bytes | None, ...] = (b"1",)) -> None:
    """Prepare a statement as `s`, and run it until it has its quick form."""
    await client.ask(parse(b"s", sql, *oids) + SYNC)
    for _ in range(3):
        await client.ask(bind(b"s", *values) + EXECUTE + SYNC)


ALL = "SELECT * FROM p WHERE id = $1"
BINARY = struct.pack(">q", 3)


@pytest.mark.parametrize(
    ("sql", "oids", "given"),
    [
        (ALL, (), bind(b"s", b"1") + DESCRIBE + EXECUTE),
        (ALL, (), bind(b"s", b"1") + EXECUTE),
        (ALL, (INT8,), bind(b"s", BINARY, formats=(1,), results=(1,)) + DESCRIBE + EXECUTE),
        (ALL, (INT8,), bind(b"s", BINARY, formats=(1,), results=(1, 0, 1, 1)) + EXECUTE),
        (ALL, (), bind(b"s", b"2") + DESCRIBE + EXECUTE),
        (ALL, (), bind(b"s", b"99") + DESCRIBE + EXECUTE),
        (ALL, (), bind(b"s", None) + DESCRIBE + EXECUTE),
        ("SELECT name, n + 1 AS m FROM p WHERE id = $1 AND n > 5 LIMIT 1", (), bind(b"s", b"3") + DESCRIBE + EXECUTE),
        ("SELECT name FROM p WHERE id = $1 AND n > 50", (), bind(b"s", b"3") + DESCRIBE + EXECUTE),
        ("SELECT $2 AS given, id FROM p WHERE id = $1", (INT8, TEXT), bind(b"s", b"3", b"x") + DESCRIBE + EXECUTE),
    ],
)
async def test_an_answer_at_once_has_the_bytes_of_any_other(
    client: Client, answered: list[bool], sql: str, oids: tuple[int, ...], given: bytes
) -> None:
    values = (b"1", b"x") if "$2" in sql else (b"1",)
    await prepared(client, sql, *oids, values=values)
    await client.ask(given + SYNC)  # its formats become known
    for _ in range(2):
        ordinary = await client.ask(given + FLUSH + SYNC)
        answered.clear()
        assert await client.ask(given + SYNC) == ordinary
        assert answered == [True]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (bind(b"s", b"x") + EXECUTE, b"C22P02\0"),
        (bind(b"s", b"99999999999999999999") + EXECUTE, b"C22003\0"),
        (bind(b"s") + EXECUTE, b"C08P01\0"),
        (bind(b"s", b"1", b"2") + EXECUTE, b"C08P01\0"),
        (bind(b"s", b"123", formats=(1,)) + EXECUTE, b"C22P03\0"),
        (bind(b"s", b"1", results=(0, 0)) + EXECUTE, b"C08P01\0"),
        (bind(b"s", b"1", results=(7,)) + EXECUTE, b"C08P01\0"),
        (bind(b"other", b"1") + EXECUTE, b"C26000\0"),
        (bind(b"s", b"0") + EXECUTE, b"C22012\0"),
    ],
)
async def test_what_is_wrong_has_its_usual_error(
    client: Client, answered: list[bool], given: bytes, error: bytes
) -> None:
    await client.query("INSERT INTO p VALUES (0, 'none', 0, 0)")
    await prepared(client, "SELECT 10 / n FROM p WHERE id = $1", INT8)
    answered.clear()
    for _ in range(2):
        assert error in await client.ask(given + SYNC)
    assert not any(answered)
    assert b"D\0\0\0" in await client.ask(bind(b"s", b"1") + EXECUTE + SYNC)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM p WHERE id > $1",
        "SELECT * FROM p WHERE id IN ($1, 2)",
        "SELECT * FROM p WHERE id = $1 LIMIT 0",
        "SELECT count(*) FROM p WHERE id = $1",
        "SELECT * FROM p WHERE id = $1 OFFSET 1",
        "DELETE FROM p WHERE id = $1 RETURNING id",
        "SELECT current_user, id FROM p WHERE id = $1",
    ],
)
async def test_other_statements_are_left_to_the_session(client: Client, answered: list[bool], sql: str) -> None:
    await prepared(client, sql)
    assert not any(answered)


async def test_a_transaction_sees_its_own_changes(client: Client, answered: list[bool]) -> None:
    await prepared(client, "SELECT name FROM p WHERE id = $1")
    asked = bind(b"s", b"1") + EXECUTE + SYNC
    await client.query("BEGIN")
    answered.clear()
    assert (await client.ask(asked)).endswith(b"one" + message(b"C", b"SELECT 1\0") + b"Z\0\0\0\5T")
    assert answered == [True]
    again = await client.ask(EXECUTE + SYNC)  # the portal is there until the transaction ends, at its end
    assert again == message(b"C", b"SELECT 0\0") + b"Z\0\0\0\5T"
    await client.query("UPDATE p SET name = 'mine' WHERE id = 1")
    answered.clear()
    assert b"mine" in await client.ask(asked)
    assert answered == [False]
    assert b"C22012\0" in await client.query("SELECT 1 / 0")
    assert b"C25P02\0" in await client.ask(asked)
    await client.query("ROLLBACK")
    answered.clear()
    assert b"one" in await client.ask(asked)
    assert answered == [True]


async def test_commits_and_definitions_of_others_are_seen(
    client: Client, open_client: Callable[[], "asyncio.Future[Client]"], answered: list[bool]
) -> None:
    other = await open_client()
    await prepared(client, "SELECT name FROM p WHERE id = $1")
    asked = bind(b"s", b"1") + EXECUTE + SYNC
    await other.query("UPDATE p SET name = 'theirs' WHERE id = 1")
    answered.clear()
    assert b"theirs" in await client.ask(asked)
    assert answered == [True]
    await other.query("ALTER TABLE p RENAME COLUMN name TO title")
    assert b"C42703\0" in await client.ask(asked)
    await other.query("ALTER TABLE p RENAME COLUMN title TO name")
    for _ in range(3):  # a new form, the formats of its messages, and at once
        assert b"theirs" in await client.ask(asked)
    assert answered[-1]
    await other.query("DROP TABLE p")
    assert b"C42P01\0" in await client.ask(asked)


async def test_messages_that_are_cut_anywhere_are_answered(client: Client) -> None:
    await prepared(client, ALL)
    asked = bind(b"s", b"1") + DESCRIBE + EXECUTE + SYNC
    whole = await client.ask(asked)
    for at in range(1, len(asked)):
        client._writer.write(asked[:at])
        await asyncio.sleep(0)
        assert await client.ask(asked[at:]) == whole
    found = await client.ask(asked + asked)
    assert found == whole
    assert await client.ask(b"") == whole


async def test_few_calls_are_made_for_a_row(client: Client, answered: list[bool]) -> None:
    await prepared(client, ALL)
    asked = bind(b"s", b"1") + DESCRIBE + EXECUTE + SYNC
    await client.ask(asked)
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/topics_" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        await client.ask(asked)
    finally:
        sys.setprofile(None)
    assert answered[-1]
    assert 10 < len(calls) <= MAX_CALLS, calls
