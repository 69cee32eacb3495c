"""A batch read while the server dies and comes back, and what a long range takes in memory; without a JVM."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_topics.options import OptionError
from support.spark import Server, fill, rows
from support.spark_read import Read
from support.tls_proxy import certificate, tls_proxy

RECORDS = 60_000  # of 500 B: several times what the channel and the server hold on the way
TEXT = b"x" * 450


def data(i: int) -> bytes:
    return b'{"id":%d,"text":"%s"}' % (i, TEXT)


@pytest.fixture
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has the same port after a restart."""
    with Server(tmp_path_factory.mktemp("fixed"), same_ports=True) as server:
        yield server


def test_a_server_that_dies_in_the_middle_of_a_task(fixed: Server) -> None:
    with fixed.connect() as connection:
        fill(connection, "long", RECORDS, data=data)
        expected = [(row.seq, row.ts, row.data) for row in rows(connection, "long")]
    planned = Read({"url": fixed.url, "subscribe": "long", "minPartitions": "1"})
    [task] = planned.tasks
    found: list[pa.RecordBatch] = []
    for batch in planned.batches(task):
        found.append(batch)
        if len(found) in (1, 12):
            fixed.kill()
            fixed.start()
    assert [(row["seq"], row["ts"], row["data"]) for batch in found for row in batch.to_pylist()] == expected


def test_memory_does_not_grow_with_the_range(server: Server) -> None:
    with server.connect() as connection:
        fill(connection, "wide", RECORDS, data=data)
    given = {"url": server.url, "subscribe": "wide", "dataSchema": "id bigint, text string", "minPartitions": "1"}
    planned = Read(given)
    pool = pa.default_memory_pool()
    before, count, maximum = pool.bytes_allocated(), 0, 0
    for batch in planned.batches(planned.tasks[0]):
        count += batch.num_rows
        maximum = max(maximum, pool.bytes_allocated() - before)
    assert count == RECORDS
    assert maximum < 8 << 20, "of 30 MB that were read"


def test_tls_at_a_proxy(server: Server, tmp_path: Path) -> None:
    with server.connect() as connection:
        fill(connection, "private", 5000)
    cert, key = certificate(tmp_path)
    with tls_proxy(server.grpc_target, cert, key) as port:
        url = f"topics+tls://localhost:{port}"
        assert len(Read({"url": f"{url}?ca={cert}", "subscribe": "private"}).rows()) == 5000
        with pytest.raises(OptionError, match="url"):
            Read({"url": f"{url}?cafile={cert}", "subscribe": "private"})
