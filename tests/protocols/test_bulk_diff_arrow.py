"""BulkDiff in Arrow: the records of the columns and of Diff, whatever was written, deleted and asked for."""

import asyncio
import subprocess
import sys
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.arrow import arrow_rows, batches_of, schema_of
from support.grpc_on_engine import GrpcService, open_service, rows
from support.kafka_batches import Rec, aiokafka_batch, samples
from topics_proto.v1 import record_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc import bulk_arrow
from topics_service.engine.batches import BatchRequest
from topics_service.storage import recordbatch
from topics_service.storage.varbinary import VarBinary, pack

ARROW = {"format": pb.BULK_FORMAT_ARROW}


async def frames_of(service: GrpcService, **request: Any) -> list[pb.BulkDiffResponse]:
    call = service.stub.BulkDiff(pb.BulkDiffRequest(**{"topic": "t", **request}), timeout=20)
    frames = [frame async for frame in call]
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
    return frames


async def write(
    service: GrpcService, records: list[record_pb2.AppendRecord], topic: str = "t", partition: int = 0
) -> None:
    await service.stub.Append(pb.AppendRequest(topic=topic, records=records, partition=partition))


async def produce(
    service: GrpcService, records: list[Rec], codec: str = "none", topic: str = "t", partition: int = 0
) -> None:
    """As a Kafka client does."""
    body = aiokafka_batch(records, codec)
    header = recordbatch.check(body, max_bytes=1 << 24)
    _, ticket = service.api.append_batch(BatchRequest(topic=topic, partition=partition, header=header, body=body))
    await service.api.settled(ticket)


def forget(service: GrpcService) -> None:
    """Make later reads come from the disk."""
    for log_id in list(service.engine.blocks._bases):
        service.engine.blocks.drop_log(log_id)


@pytest.fixture
async def service(tmp_path: Path) -> Any:
    async with open_service(tmp_path / "data") as service:
        yield service


def record(data: bytes = b"1", **parts: Any) -> record_pb2.AppendRecord:
    return record_pb2.AppendRecord(data=data, **{"kind": record_pb2.RECORD_KIND_JSON, **parts})


@pytest.mark.parametrize(("tags", "meta", "data"), list(product([False, True], repeat=3)))
async def test_the_schema_of_what_is_asked_for(service: GrpcService, tags: bool, meta: bool, data: bool) -> None:
    asked = {**ARROW, "include_tags": tags, "include_meta": meta, "include_data": data}
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t"))
    (empty,) = await frames_of(service, **asked)
    assert batches_of([empty]) == (schema_of(tags=tags, meta=meta, data=data), [None])
    await write(
        service, [record(tag="t", node="n", meta=b'{"k":1}'), record(b"\xff", kind=record_pb2.RECORD_KIND_BINARY)]
    )
    (frame,) = await frames_of(service, **asked)
    schema, (batch,) = batches_of([frame])
    assert batch is not None
    assert schema == schema_of(tags=tags, meta=meta, data=data) == batch.schema
    first, second = batch.to_pylist()
    assert (first["seq"], first["kind"], first["node"], second["kind"], second["node"]) == (1, 1, "n", 2, None)
    assert (first.get("tag"), second.get("tag")) == (("t", None) if tags else (None, None))
    assert (first.get("meta"), second.get("meta")) == (('{"k":1}', None) if meta else (None, None))
    assert (first.get("data"), second.get("data")) == ((b"1", b"\xff") if data else (None, None))
    assert not frame.HasField("records")


async def test_a_frame_without_records_has_no_bytes_but_the_first(service: GrpcService) -> None:
    for _ in range(4):
        await write(service, [record(tag="x")] * 10_000)
    frames = await frames_of(service, filter=record_pb2.TagMatch(prefix="y"), **ARROW)
    assert len(frames) > 1
    assert [bool(frame.arrow) for frame in frames] == [True] + [False] * (len(frames) - 1)
    assert batches_of(frames) == (schema_of(), [None] * len(frames))
    cursors = [frame.next_from_seq for frame in frames]
    assert cursors == sorted(set(cursors))
    assert cursors[-1] == 40_000


async def test_no_frame_is_more_than_clients_take(service: GrpcService) -> None:
    for n in range(3):
        records = [
            record(tag=f"{n}-{i}".ljust(256, "x"), node=f"{n}-{i}".ljust(128, "x"), meta=b"{}") for i in range(10_000)
        ]
        await write(service, records)
    for cold in (False, True):
        if cold:
            forget(service)
        frames = await frames_of(service, frame_bytes=1 << 20, include_tags=True, **ARROW)
        assert sum(map(len, arrow_rows(frames))) == 30_000
        assert 1 << 20 < max(frame.ByteSize() for frame in frames) < 4 << 20


async def test_large_records_and_small_frames(service: GrpcService) -> None:
    large = b'"%b"' % (b"x" * ((1 << 20) - 2))
    for _ in range(3):
        await write(service, [record(large), record(b"1")])
    frames = await frames_of(service, frame_bytes=1, **ARROW)
    assert [one.data for found in arrow_rows(frames) for one in found] == [large, b"1"] * 3


async def test_of_a_large_append_a_frame_costs_its_own_records(
    service: GrpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all of the append again for each frame, which would take ten times as long."""
    packed = list[int]()

    def counted(texts: list[bytes | None], size: int) -> VarBinary:
        packed.append(len(texts))
        return pack(texts, size)

    monkeypatch.setattr(bulk_arrow, "pack", counted)
    await write(service, [record(b'"%b"' % (b"x" * 900), tag=f"t{i}", node="n", meta=b"{}") for i in range(1000)])
    frames = await frames_of(service, frame_bytes=1, include_tags=True, **ARROW)
    assert len(frames) > 10
    assert [one.tag for found in arrow_rows(frames) for one in found] == [f"t{i}" for i in range(1000)]
    assert sum(packed) == 3 * 1000


async def test_what_kafka_clients_wrote(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t"))
    for codec in ("none", "gzip", "lz4"):
        await produce(service, samples(50), codec)
    await write(service, [record(b'"own"', tag="k", node="n")])
    page = await service.stub.Diff(pb.DiffRequest(topic="t", include_tags=True, limit=1000))
    assert {one.kind for one in page.records} == {1, 2}
    for cold in (False, True):
        if cold:
            forget(service)
        (frame,) = await frames_of(service, include_tags=True, **ARROW)
        assert arrow_rows([frame]) == [list(page.records)]


async def test_follow(service: GrpcService) -> None:
    await write(service, [record(b"1")])
    stream = service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", follow=True, end_seq=3, **ARROW))
    frames = [await stream.read()]
    await write(service, [record(b"2")])
    frames.append(await stream.read())
    await write(service, [record(b"3"), record(b"4")])
    frames.append(await stream.read())
    assert [[one.data for one in found] for found in arrow_rows(frames)] == [[b"1"], [b"2"], [b"3"]]
    assert frames[-1].done


async def test_runs_of_seqs_and_times_of_many_deletes(service: GrpcService) -> None:
    """Every second record is gone, and appends of one record each have a time each."""
    for i in range(3000):
        await write(service, [record(b"%d" % i, tag="even" if i % 2 else "odd", node="n" if i % 3 else None)])
    service.engine.maintain()
    await service.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="t", match=record_pb2.TagMatch(eq="even")))
    forget(service)
    by_arrow = arrow_rows(await frames_of(service, include_tags=True, **ARROW))
    by_column = [rows(frame) for frame in await frames_of(service, include_tags=True)]
    assert by_arrow == by_column
    assert [one.seq for found in by_arrow for one in found] == list(range(1, 3000, 2))


def test_the_server_needs_no_pyarrow() -> None:
    code = "import sys, topics_server.server; sys.exit(any(n.split('.')[0] == 'pyarrow' for n in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


# ---------------------------------------------------------------------------------------------- whatever comes

LARGE = b'"%b"' % (b"x" * 30_000)
texts = st.none() | st.sampled_from(["", "a", "ab", "b", "é"])
parts = st.tuples(
    st.sampled_from([b"1", b'"xyz"', b"null", LARGE]), texts, texts, st.none() | st.just(b'{"k":"\xc3\xa9"}'),
    st.booleans(),
)  # fmt: skip
kafka = st.tuples(
    st.none() | st.sampled_from([b"", b"a", b"ab", b"\xff"]), st.none() | st.sampled_from([b"1", b"?"])
).map(lambda pair: Rec(*pair))
partition = st.sampled_from([0, 0, 0, 1])
step = st.one_of(
    st.tuples(st.just("append"), partition, st.lists(parts, min_size=1, max_size=6)),
    st.tuples(st.just("produce"), partition, st.lists(kafka, min_size=1, max_size=4)),
    st.tuples(st.just("match"), partition, st.sampled_from(["a", "b"])),
    st.tuples(st.just("before"), partition, st.integers(0, 12)),
    st.tuples(st.just("cap"), partition, st.integers(3, 12)),
    st.tuples(st.just("upkeep"), partition, st.none()),
    st.tuples(st.just("forget"), partition, st.none()),
)
match = st.builds(lambda tag: record_pb2.TagMatch(eq=tag), st.sampled_from(["a", ""]))
prefix = st.builds(lambda tag: record_pb2.TagMatch(prefix=tag), st.sampled_from(["a", ""]))
request = st.fixed_dictionaries(
    {"include_tags": st.booleans(), "frame_bytes": st.sampled_from([0, 1])},
    optional={
        "from_seq": st.integers(0, 20),
        "end_seq": st.integers(0, 20),
        "node": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True),
        "filter": match | prefix,
        "partition": partition,
        "include_meta": st.booleans(),
        "include_data": st.booleans(),
    },
)


async def _take(service: GrpcService, topic: str, what: str, partition: int, value: Any) -> None:
    place = {"topic": topic, "partition": partition}
    if what == "append":
        kinds = (record_pb2.RECORD_KIND_JSON, record_pb2.RECORD_KIND_BINARY)
        made = [
            record_pb2.AppendRecord(data=data, kind=kinds[binary], tag=tag, node=node, meta=meta or b"")
            for data, tag, node, meta, binary in value
        ]
        await write(service, made, topic, partition)
    elif what == "produce":
        await produce(service, value, topic=topic, partition=partition)
    elif what == "match":
        await service.stub.DeleteRecords(pb.DeleteRecordsRequest(**place, match=record_pb2.TagMatch(eq=value)))
    elif what == "before":
        await service.stub.DeleteRecords(pb.DeleteRecordsRequest(**place, before_seq=value))
    elif what == "cap":
        await service.stub.PutTopic(pb.PutTopicRequest(topic=topic, config=topic_pb2.TopicConfig(cap_records=value)))
    elif what == "upkeep":
        service.engine.maintain()
    else:
        forget(service)


async def _by_pages(
    service: GrpcService, asked: dict[str, Any]
) -> tuple[list[record_pb2.Record], list[record_pb2.Tombstone]]:
    """The same records and tombstones by Diff, without an end."""
    fields = {name: value for name, value in asked.items() if name not in ("end_seq", "frame_bytes", "include_data")}
    records: list[record_pb2.Record] = []
    tombstones: list[record_pb2.Tombstone] = []
    while True:
        page = await service.stub.Diff(pb.DiffRequest(limit=3, **fields))
        records += page.records
        tombstones += [page.tombstone] if page.HasField("tombstone") else []
        if page.caught_up:
            return records, tombstones
        fields["from_seq"] = page.next_from_seq


async def _compare(service: GrpcService, topic: str, steps: list[Any], requests: list[dict[str, Any]]) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic=topic, partition_count=2))
    for what, partition, value in steps:
        await _take(service, topic, what, partition, value)
    for i, asked in enumerate(requests):
        if i == 1:
            forget(service)
        asked["topic"] = topic
        in_arrow = await frames_of(service, **asked, **ARROW)
        in_columns = await frames_of(service, **asked)
        by_arrow, by_column = arrow_rows(in_arrow), [rows(frame) for frame in in_columns]
        assert by_arrow == by_column
        for frame in (*in_arrow, *in_columns):
            frame.ClearField("records")
            frame.ClearField("arrow")
        assert in_arrow == in_columns
        records, tombstones = await _by_pages(service, asked)
        for one in records:
            if not asked.get("include_data", True):
                one.data = b""
        end = asked.get("end_seq", 1 << 40)
        assert [one for found in by_arrow for one in found] == [one for one in records if one.seq <= end]
        if end == 1 << 40:
            assert [frame.tombstone for frame in in_arrow if frame.HasField("tombstone")] == tombstones
    await service.stub.DeleteTopic(pb.DeleteTopicRequest(topic=topic))


def test_arrow_is_what_columns_and_pages_are(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        opened = open_service(tmp_path / "data")
        service, names = runner.run(opened.__aenter__()), count()

        @settings(max_examples=120, deadline=None)
        @given(st.lists(step, max_size=9), st.lists(request, min_size=1, max_size=4))
        def check(steps: list[Any], requests: list[dict[str, Any]]) -> None:
            runner.run(_compare(service, f"t{next(names)}", steps, requests))

        try:
            check()
        finally:
            runner.run(opened.__aexit__(None, None, None))
