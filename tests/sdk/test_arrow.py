"""Records as Arrow out of the SDK."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from support.server import ServerProcess
from topics_client import AsyncTopicsClient, Gap, GapError, NewRecord, NotFoundError, RawJson, TopicConfig, TopicsClient
from topics_client.installation import install_line


@pytest.fixture
def client(shared: ServerProcess) -> Iterator[TopicsClient]:
    with TopicsClient(shared.grpc_target) as client:
        yield client


def _seqs(table: pa.Table) -> list[int]:
    return table["seq"].to_pylist()  # type: ignore[no-any-return]


def test_a_table_has_what_a_read_gives(client: TopicsClient, name: str) -> None:
    client.append_many(
        name, [NewRecord({"n": 1}, tag="eu", meta={"a": 1}), NewRecord(b"\xff", node="me"), RawJson(b"3.0")]
    )
    table = client.read_arrow(name).read_all()
    assert table.column_names == ["seq", "ts", "kind", "node", "tag", "meta", "data"]
    rows = table.to_pylist()
    for row, record in zip(rows, client.read(name), strict=True):
        assert (row["seq"], row["ts"], row["data"]) == (record.seq, record.time, record.data)
        assert (row["kind"] == 2, row["tag"], row["node"]) == (record.binary, record.tag, record.node)
        assert (row["meta"] or "").encode() == record.meta_data
    assert _seqs(client.read_arrow(name, 1, end_seq=2).read_all()) == [2]
    assert _seqs(client.read_arrow(name, last=1).read_all()) == [3]
    assert _seqs(client.read_arrow(name, tag="eu").read_all()) == [1]
    assert _seqs(client.read_arrow(name, node="me").read_all()) == [1, 3]
    empty = client.read_arrow(name, 3).read_all()
    assert (empty.num_rows, empty.schema) == (0, table.schema)
    with pytest.raises(NotFoundError):
        client.read_arrow(f"{name}.none").read_all()


async def test_asyncio_reads_it_too(shared: ServerProcess, name: str) -> None:
    async with AsyncTopicsClient(shared.grpc_target) as client:
        await client.append_many(name, range(3))
        stream = client.read_arrow(name)
        assert (await anext(stream)).num_rows == 3
        assert stream.position == 3
        assert _seqs(await client.read_arrow(name).read_all()) == [1, 2, 3]


def test_batches_lie_in_the_bytes_that_came(client: TopicsClient, name: str) -> None:
    client.append_many(name, [RawJson(b'"%b"' % (b"x" * 5000))] * 1000)
    before, batches = pa.total_allocated_bytes(), list(client.read_arrow(name))
    assert pa.total_allocated_bytes() == before, "Arrow has copied something"
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 1000
    assert all(len(each) == 5002 for batch in batches for each in batch["data"].to_pylist())


def test_other_libraries_take_a_stream_as_it_is(client: TopicsClient, name: str) -> None:
    client.append_many(name, [RawJson(b'"%b"' % (b"x" * 5000))] * 1000)
    assert _seqs(pa.table(client.read_arrow(name))) == list(range(1, 1001))
    reader = client.read_arrow(name).reader()
    assert reader.schema.names[0] == "seq"
    first = reader.read_next_batch()
    assert 0 < first.num_rows < 1000
    assert first.num_rows + reader.read_all().num_rows == 1000
    assert client.read_arrow(name, 1000).reader().read_all().num_rows == 0


def test_what_retention_took_is_raised_or_reported(client: TopicsClient, name: str) -> None:
    client.put_topic(name, TopicConfig(cap_records=2))
    client.append_many(name, range(5))
    stream = client.read_arrow(name)
    with pytest.raises(GapError) as lost:
        stream.read_all()
    assert (lost.value.gap.first_seq, lost.value.gap.last_seq) == (1, 3)
    assert _seqs(stream.read_all()) == [4, 5]
    with pytest.raises(GapError):
        client.read_arrow(name).reader()
    stream = client.read_arrow(name, gaps="report")
    assert stream.gaps == ()
    assert _seqs(stream.read_all()) == [4, 5]
    assert stream.gaps == (Gap(name, 0, 1, 3, "cap", 3, 4, 5),)


def test_a_gap_in_the_middle_loses_nothing_that_came_before(client: TopicsClient, name: str) -> None:
    client.append_many(name, [RawJson(b'"%b"' % (b"x" * 5000))] * 1000)
    stream = client.read_arrow(name)
    taken = next(stream).num_rows
    stream.close()
    stream = client.read_arrow(name)
    reading = iter(stream)
    assert next(reading).num_rows == taken
    del reading  # the call ends, and the next continues after it
    client.put_topic(name, TopicConfig(cap_records=10))
    with pytest.raises(GapError) as lost:
        stream.read_all()
    assert lost.value.gap.first_seq == taken + 1
    assert _seqs(stream.read_all()) == list(range(991, 1001))
    assert stream.position == 1000


def test_a_break_is_no_loss_and_no_repeat(restarted: Callable[[], ServerProcess]) -> None:
    with TopicsClient(restarted().grpc_target) as client:
        client.put_topic("t", TopicConfig(durability="fsync"))
        for _ in range(4):
            client.append_many("t", [RawJson(b'"%b"' % (b"x" * 5000))] * 1000)
        stream = client.read_arrow("t")
        seqs = next(stream)["seq"].to_pylist()
        restarted()
        for batch in stream:
            seqs += batch["seq"].to_pylist()
    assert seqs == list(range(1, 4_001))


def test_without_pyarrow_the_hint_names_it() -> None:
    program = """
    import sys
    sys.modules["pyarrow"] = None
    from topics_client import TopicsClient
    try:
        TopicsClient().read_arrow("t")
    except ModuleNotFoundError as error:
        print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ran.stdout == f"reading as Arrow takes pyarrow, which is not installed: {install_line('arrow')}\n"
