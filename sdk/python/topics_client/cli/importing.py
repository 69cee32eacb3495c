"""`topics import`: append the lines of a JSON file to a topic, and check that they read back as they were."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from topics_client.cli import server

if TYPE_CHECKING:
    from topics_client.cli.types import Commands
    from topics_client.connection import Connection

_BATCH_BYTES = 8 << 20


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "import",
        help="append a file of JSON lines to a topic",
        description="Append each line of FILE as one record, byte for byte, then read all of them back and compare.",
    )
    parser.add_argument("file", metavar="FILE", help="newline-delimited JSON; - is standard input")
    parser.add_argument("--topic", required=True, help="the topic; created if absent")
    parser.add_argument("--tag-field", metavar="NAME", help="tag each record with this top-level string field")
    parser.add_argument("--batch", type=int, default=500, metavar="N", help="records in a write (default: 500)")
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Import, read back and compare; 1 if a line is not JSON, the server refuses, or a record differs."""
    return server.told("import", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    with server.connected(arguments) as connection:
        return _import(connection, arguments)


def _import(connection: "Connection", arguments: argparse.Namespace) -> int:
    from topics.v1.record_pb2 import AppendRecord
    from topics.v1.topics_service_pb2 import AppendRequest, DiffRequest

    appended: list[tuple[int, bytes]] = []
    for lines in _batches(arguments.file, max(1, arguments.batch)):
        records = [AppendRecord(data=line, tag=_tag(line, arguments.tag_field, number)) for number, line in lines]
        request = AppendRequest(topic=arguments.topic, records=records, return_seqs=False)
        reply = connection.unary(connection.topics.Append, request, repeatable=False)
        appended += [(reply.first_seq + i, line) for i, (_, line) in enumerate(lines)]
    if not appended:
        raise ValueError(f"{arguments.file} holds no records")
    print(f"appended {len(appended)} records to {arguments.topic}: seq {appended[0][0]} to {appended[-1][0]}")
    expected = dict(appended)
    at, last = appended[0][0] - 1, appended[-1][0]
    while at < last:
        ask = DiffRequest(topic=arguments.topic, from_seq=at, limit=1000)
        page = connection.unary(connection.topics.Diff, ask, repeatable=True)
        for record in page.records:
            if record.data == expected.get(record.seq):
                del expected[record.seq]
        if page.next_from_seq <= at:
            break
        at = page.next_from_seq
    if expected:
        raise ValueError(f"{len(expected)} records did not read back as they were, the first is seq {min(expected)}")
    print(f"read back {len(appended)} records, byte for byte the same")
    return 0


def _batches(file: str, size: int) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines in groups of at most `size` records and about 8 MiB; blank lines are passed over."""
    with open(0 if file == "-" else file, "rb") as stream:  # 0 is standard input
        batch: list[tuple[int, bytes]] = []
        total = 0
        for number, line in enumerate(stream, 1):
            text = line.strip()
            if not text:
                continue
            if len(batch) == size or (batch and total + len(text) > _BATCH_BYTES):
                yield batch
                batch, total = [], 0
            batch.append((number, text))
            total += len(text)
        if batch:
            yield batch


def _tag(line: bytes, field: str | None, number: int) -> str | None:
    if field is None:
        return None
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    tag = value.get(field) if isinstance(value, dict) else None
    return tag if isinstance(tag, str) else None
