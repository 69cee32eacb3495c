"""Bytes of clients that do not keep to the protocol: bounded, refused, and without an effect on others."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from random import Random

import psycopg
import pytest

from support.server import ServerProcess
from support.waiting import poll

HELLO = b"user\0ada\0database\0x\0\0"


def start(body: bytes, version: int = 3 << 16) -> bytes:
    """A StartupMessage."""
    return struct.pack(">II", len(body) + 8, version) + body


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.pg_port), timeout=30) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """Everything that the server sends until it closes."""
    found = b""
    while True:
        try:
            data = connection.recv(1 << 16)
        except ConnectionResetError:
            return found
        if not data:
            return found
        found += data


def until_ready(connection: socket.socket) -> bytes:
    """Everything that the server sends up to ReadyForQuery."""
    found = b""
    while not found.endswith((b"Z\0\0\0\5I", b"Z\0\0\0\5T", b"Z\0\0\0\5E")):
        data = connection.recv(1 << 16)
        assert data, found
        found += data
    return found


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (start(HELLO, version=2 << 16), b"C0A000"),
        (start(b"database\0x\0\0"), b"C28000"),
        (start(b"user\0ada"), b"C08P01"),
        (struct.pack(">I", 1 << 30), b"C08P01"),
        (struct.pack(">I", 3), b"C08P01"),
        (b"GET / HTTP/1.1\r\n\r\n", b"C08P01"),
        (start(HELLO) + message(b"?", b""), b"C08P01"),
        (start(HELLO) + b"Q" + struct.pack(">I", 1 << 31), b"C08P01"),
        (start(HELLO) + message(b"B", b"\0\0\0\1\0\0"), b"C08P01"),
        (start(HELLO) + message(b"Q", b"SELECT 1"), b"C08P01"),
        (struct.pack(">II", 8, 80877103) * 4, b"C08P01"),
    ],
)
def test_what_is_no_protocol_ends_the_connection(raw: socket.socket, sent: bytes, answer: bytes) -> None:
    raw.sendall(sent)
    assert answer in everything(raw)


def test_a_newer_minor_version_and_unknown_options_are_negotiated(raw: socket.socket) -> None:
    raw.sendall(start(b"user\0ada\0_pq_.later\0on\0\0", version=3 << 16 | 9))
    found = until_ready(raw)
    assert found.startswith(b"v" + struct.pack(">III", 4 + 8 + 11, 3 << 16, 1) + b"_pq_.later\0")


def test_a_query_may_come_with_the_start(raw: socket.socket) -> None:
    raw.sendall(start(HELLO) + message(b"Q", b"SELECT 1\0"))
    found = until_ready(raw)
    assert b"SELECT 1\0" in (found if b"SELECT 1\0" in found else until_ready(raw))


def test_encryption_is_declined_in_one_letter(raw: socket.socket) -> None:
    for code in (80877104, 80877103):
        raw.sendall(struct.pack(">II", 8, code))
        assert raw.recv(10) == b"N"
    raw.sendall(start(HELLO))
    until_ready(raw)


def test_a_wrong_cancel_key_is_ignored_in_silence(server: ServerProcess, raw: socket.socket) -> None:
    raw.sendall(start(HELLO))
    found = until_ready(raw)
    at = found.index(b"K\0\0\0\x0c") + 5
    pid, secret = found[at : at + 4], found[at + 4 : at + 8]
    for key in (pid + bytes(4), bytes(4) + secret, pid, pid + secret + b"more"):
        with socket.create_connection(("127.0.0.1", server.pg_port), timeout=30) as other:
            other.sendall(struct.pack(">II", len(key) + 8, 80877102) + key)
            assert everything(other) == b""
    raw.sendall(message(b"Q", b"SELECT 1\0"))
    assert b"SELECT 1" in until_ready(raw)


def test_after_an_error_messages_are_passed_over_until_sync(raw: socket.socket) -> None:
    raw.sendall(start(HELLO))
    until_ready(raw)
    parse = message(b"P", b"\0SELECT nope\0\0\0")
    fine = message(b"P", b"\0SELECT 1\0\0\0") + message(b"B", bytes(8)) + message(b"E", bytes(5))
    raw.sendall(parse + fine + message(b"c", b"") + message(b"d", b"late") + message(b"S", b""))
    first = until_ready(raw)
    assert first.count(b"C42703") == 1
    assert b"D\0" not in first
    raw.sendall(fine + message(b"S", b""))
    assert b"SELECT 1\0" in until_ready(raw)


@pytest.mark.parametrize("seed", range(6))
def test_random_messages_never_break_the_server(server: ServerProcess, where: str, seed: int) -> None:
    random = Random(seed)
    samples = [
        b"Q" + b"SELECT 1\0", b"P" + b"s\0SELECT $1\0\0\1\0\0\0\x17", b"B" + b"p\0s\0\0\1\0\1\0\1\0\0\0\4\0\0\0\5\0\0",
        b"E" + b"p\0\0\0\0\0", b"D" + b"Ss\0", b"D" + b"Pp\0", b"C" + b"Ss\0", b"S", b"H", b"F" + bytes(8),
        b"Q" + b"COPY t FROM STDIN\0", b"d" + b"1\tx\n", b"c", b"f" + b"no\0", b"Q" + b"BEGIN; SELECT 1; COMMIT\0",
    ]  # fmt: skip
    for _ in range(15):
        with (
            socket.create_connection(("127.0.0.1", server.pg_port), timeout=30) as connection,
            contextlib.suppress(ConnectionError),  # the server closes it at what is no message
        ):
            connection.sendall(start(HELLO))
            for _ in range(random.randrange(1, 30)):
                body = bytearray(random.choice(samples))
                for _ in range(random.choice((0, 0, 1, 3))):
                    if len(body) > 1:
                        body[random.randrange(1, len(body))] = random.randrange(256)
                connection.sendall(message(bytes(body[:1]), bytes(body[1:])))
            connection.shutdown(socket.SHUT_WR)
            everything(connection)
    with psycopg.connect(where, autocommit=True) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)
    assert "Traceback" not in server.log


def test_statements_and_portals_are_bounded(raw: socket.socket) -> None:
    raw.sendall(start(HELLO))
    until_ready(raw)
    raw.sendall(b"".join(message(b"P", b"s%d\0SELECT 1\0\0\0" % number) for number in range(1001)) + message(b"S", b""))
    assert until_ready(raw).count(b"C53400") == 1
    binds = b"".join(message(b"B", b"p%d\0s1\0" % number + bytes(6)) for number in range(17))
    raw.sendall(binds + message(b"S", b""))
    assert until_ready(raw).count(b"C53400") == 1


def test_a_client_that_reads_nothing_is_held_in_bounds(server: ServerProcess, where: str) -> None:
    with psycopg.connect(where, autocommit=True) as db:
        db.execute("CREATE TABLE wide (id BIGINT PRIMARY KEY, body TEXT)")
        with db.cursor().copy("COPY wide FROM STDIN") as copy:
            for number in range(4000):
                copy.write_row((number, "x" * 10_000))
        path = db.execute("SELECT current_schema()").fetchone()
        assert path is not None
        with socket.create_connection(("127.0.0.1", server.pg_port), timeout=30) as slow:
            slow.sendall(start(b"user\0ada\0search_path\0%b\0\0" % path[0].encode()))
            slow.sendall(message(b"Q", b"SELECT * FROM wide\0"))
            begun = time.monotonic()
            poll(lambda: len(db.execute("SELECT id FROM wide WHERE id < 50").fetchall()) == 50, 10, "other clients")
            assert time.monotonic() - begun < 10
            received = 0
            while received < 40_000_000:
                data = slow.recv(1 << 20)
                assert data, server.log[-2000:]
                received += len(data)
