"""BulkDiff, LocateTime and the additive starts of Diff, over a socket on the real engine and store."""

import asyncio
import resource
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import given, settings
from hypothesis import strategies as st

from support.grpc_on_engine import GrpcService, column, open_service, rows
from support.http import Api
from support.server import ServerProcess
from support.waiting import until
from topics_proto.v1 import record_pb2, topic_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc.bulk_diff import bulk_frame, bulk_request
from topics_service.api.grpc.convert import diff_response
from topics_service.api.grpc.options import server_options
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, DiffRequest, TagMatch
from topics_service.storage.memory import MemoryStore

LARGE = b'"%b"' % (b"x" * ((1 << 20) - 2))
WITH_ALL = {"include_tags": True}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[GrpcService]:
    async with open_service(tmp_path / "data") as service:
        yield service


async def _append(service: GrpcService, *datas: bytes, config: Any = None, **columns: Any) -> pb.AppendResponse:
    batch = record_pb2.ColumnBatch(data=datas, **columns)
    return await service.stub.Append(pb.AppendRequest(topic="t", columns=batch, config=config))


async def _bulk(service: GrpcService, **request: Any) -> list[pb.BulkDiffResponse]:
    frames = [frame async for frame in service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", **request))]
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
    return frames


def _datas(frames: list[pb.BulkDiffResponse]) -> list[bytes]:
    return [record.data for frame in frames for record in rows(frame)]


async def _refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = await rpc_status.aio.from_call(call)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.reason


async def _broken(stream: Any) -> tuple[list[pb.BulkDiffResponse], grpc.StatusCode, str]:
    """The frames before the error, and the error."""
    frames: list[pb.BulkDiffResponse] = []

    async def read_on() -> None:
        while True:
            frame = await asyncio.wait_for(stream.read(), 20)
            assert frame is not grpc.aio.EOF
            frames.append(frame)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_on()
    status = await rpc_status.aio.from_call(stream)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return frames, caught.value.code(), info.reason


async def test_every_part_of_a_record(service: GrpcService) -> None:
    await _append(
        service,
        b"1",
        b"\xff",
        b"3",
        kinds=b"\1\2\1",
        tag=column(b"a", None, b""),
        node=record_pb2.Column(shared=b"n"),
        meta=column(None, b'{"k":1}', None),
    )
    page = await service.stub.Diff(pb.DiffRequest(topic="t", **WITH_ALL))
    (frame,) = await _bulk(service, **WITH_ALL)
    assert rows(frame) == list(page.records)
    assert (frame.next_from_seq, frame.head_seq, frame.earliest_seq, frame.done) == (3, 3, 1, True)
    assert frame.records.node == record_pb2.PackedColumn(data=b"n")
    page = await service.stub.Diff(pb.DiffRequest(topic="t", include_meta=False))
    (bare,) = await _bulk(service, include_meta=False)
    assert rows(bare) == list(page.records)
    assert not bare.records.HasField("tag")
    assert not bare.records.HasField("meta")


async def test_an_empty_topic_is_one_frame(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t"))
    assert await _bulk(service) == [pb.BulkDiffResponse(earliest_seq=1, done=True)]


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"from_seq": 3}, [4, 5]),
        ({"from_seq": 5}, []),
        ({"from_seq": 1, "end_seq": 3}, [2, 3]),
        ({"from_seq": 3, "end_seq": 3}, []),
        ({"from_seq": 4, "end_seq": 2}, []),
        ({"end_seq": 0}, []),
        ({"end_seq": 2**64 - 1}, [1, 2, 3, 4, 5]),
        ({"last": 2}, [4, 5]),
        ({"last": 2**32 - 1}, [1, 2, 3, 4, 5]),
        ({"last": 0}, []),
        ({"from_ts_ms": 0}, [1, 2, 3, 4, 5]),
        ({"from_ts_ms": 2**63 - 1}, []),
        ({"last": 3, "end_seq": 4}, [3, 4]),
    ],
)
async def test_where_it_begins_and_ends(service: GrpcService, asked: dict[str, int], got: list[int]) -> None:
    await _append(service, b"1", b"2")
    await _append(service, b"3", b"4", b"5")
    frames = await _bulk(service, **asked)
    assert [record.seq for frame in frames for record in rows(frame)] == got
    assert not any(frame.HasField("tombstone") for frame in frames)
    end = min(5, asked.get("end_seq", 5))
    assert frames[-1].next_from_seq == max(asked.get("from_seq", 0), end)


async def test_refusals(service: GrpcService) -> None:
    await _append(service, b"1")
    for asked in ({"from_seq": 1, "last": 1}, {"from_ts_ms": 1, "last": 1}, {"from_ts_ms": -1}):
        frames, code, reason = await _broken(service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", **asked)))
        assert (frames, code, reason) == ([], grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        call = service.stub.Diff(pb.DiffRequest(topic="t", **asked))
        assert await _refused(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    frames, code, reason = await _broken(service.stub.BulkDiff(pb.BulkDiffRequest(topic="no")))
    assert (frames, code, reason) == ([], grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    frames, code, reason = await _broken(service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", partition=1)))
    assert (frames, code, reason) == ([], grpc.StatusCode.NOT_FOUND, "PARTITION_NOT_FOUND")


async def test_locate_time_and_the_starts_of_diff(service: GrpcService) -> None:
    await _append(service, b"1")
    first = (await service.stub.Diff(pb.DiffRequest(topic="t"))).records[0].ts_ms
    await until(lambda: service.engine._clock.now_ms() > first)
    await _append(service, b"2", b"3")
    second = (await service.stub.Diff(pb.DiffRequest(topic="t", from_seq=1))).records[0].ts_ms
    for ts, seq in ((0, 1), (first, 1), (first + 1, 2), (second, 2), (second + 1, 4), (2**63 - 1, 4)):
        located = await service.stub.LocateTime(pb.LocateTimeRequest(topic="t", ts_ms=ts))
        assert (located.topic, located.seq, located.head_seq) == ("t", seq, 3)
        assert located.performance.server_total_ms > 0
        page = await service.stub.Diff(pb.DiffRequest(topic="t", from_ts_ms=ts))
        assert [record.seq for record in page.records] == list(range(seq, 4))
        assert [record.seq for frame in await _bulk(service, from_ts_ms=ts) for record in rows(frame)] == list(
            range(seq, 4)
        )
    for last, seqs in ((0, []), (1, [3]), (2, [2, 3]), (2**32 - 1, [1, 2, 3])):
        page = await service.stub.Diff(pb.DiffRequest(topic="t", last=last))
        assert [record.seq for record in page.records] == seqs
        assert page.caught_up
    for asked in ({"topic": "no"}, {"topic": "t", "ts_ms": -1}, {"topic": "t", "partition": 1}):
        await _refused(service.stub.LocateTime(pb.LocateTimeRequest(**asked)))


async def test_deletes_inside_are_silent_and_losses_are_told(service: GrpcService) -> None:
    await _append(
        service, *[b"%d" % n for n in range(1, 31)], tag=column(*[b"odd" if n % 2 else b"even" for n in range(1, 31)])
    )
    await service.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="t", match=record_pb2.TagMatch(eq="even")))
    frames = await _bulk(service, **WITH_ALL)
    assert _datas(frames) == [b"%d" % n for n in range(1, 31, 2)]
    assert list(frames[0].records.run_count) == [1] * 15
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=topic_pb2.TopicConfig(cap_records=5)))
    (frame,) = await _bulk(service)
    lost = frame.tombstone
    assert (lost.gap_from, lost.gap_to, lost.reason) == (1, 20, record_pb2.GAP_REASON_CAP)
    assert [record.seq for record in rows(frame)] == [21, 23, 25, 27, 29]
    (cut,) = await _bulk(service, from_seq=2, end_seq=10)
    lost = cut.tombstone
    assert (lost.gap_from, lost.gap_to, lost.missed_estimate, cut.next_from_seq) == (3, 10, 8, 10)
    assert not cut.HasField("records")
    (ahead,) = await _bulk(service, from_seq=99)
    assert ahead.tombstone.reason == record_pb2.GAP_REASON_RECREATED
    assert [record.seq for record in rows(ahead)] == [21, 23, 25, 27, 29]


async def test_nodes_are_left_out(service: GrpcService) -> None:
    await _append(service, b"1", b"2", b"3", node=column(b"me", None, b"you"))
    assert _datas(await _bulk(service, node=["me"])) == [b"2", b"3"]
    (frame,) = await _bulk(service, node=["me", "you"], from_seq=2)
    assert (frame.HasField("records"), frame.next_from_seq, frame.done) == (False, 3, True)


async def test_frames_have_the_size_asked_for(service: GrpcService) -> None:
    data = b'"%b"' % (b"x" * 998)
    for _ in range(5):
        await _append(service, *[data] * 1000, tag=record_pb2.Column(shared=b"t" * 256))
    for asked, size in ((1, 64 << 10), (0, 512 << 10), (1 << 18, 1 << 18), (2**32 - 1, 1 << 20)):
        frames = await _bulk(service, frame_bytes=asked, **WITH_ALL)
        assert len(_datas(frames)) == 5000
        assert all(size - 2000 < len(frame.records.data.data) <= size for frame in frames[:-1])


async def test_no_frame_is_more_than_clients_take(service: GrpcService) -> None:
    row = record_pb2.AppendRecord(data=b"1", kind=record_pb2.RECORD_KIND_JSON, node="n" * 128, meta=b"{}")
    for n in range(3):
        batch = pb.AppendRequest(topic="t", records=[row] * 10_000)
        for i, record in enumerate(batch.records):
            record.tag = f"{n}-{i}".ljust(256, "x")
            record.node = f"{n}-{i}".ljust(128, "x")
        await service.stub.Append(batch)
    frames = await _bulk(service, frame_bytes=1 << 20, **WITH_ALL)
    assert len(_datas(frames)) == 30_000
    assert 1 << 20 < max(frame.ByteSize() for frame in frames) < 4 << 20


async def test_large_records(service: GrpcService) -> None:
    for _ in range(3):
        await _append(service, LARGE, b"1")
    assert _datas(await _bulk(service)) == [LARGE, b"1"] * 3


async def test_follow_goes_on_with_what_is_written(service: GrpcService) -> None:
    await _append(service, b"1")
    stream = service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", follow=True, end_seq=4))
    assert [record.seq for record in rows(await stream.read())] == [1]
    await until(lambda: service.api._waiting)
    await _append(service, b"2", b"3")
    second = await stream.read()
    assert ([record.seq for record in rows(second)], second.done) == ([2, 3], False)
    await _append(service, b"4", b"5")
    third = await stream.read()
    assert ([record.seq for record in rows(third)], third.done) == ([4], True)
    assert await stream.read() is grpc.aio.EOF
    assert not service.api._waiting


async def test_a_deleted_topic_ends_it_also_when_it_is_made_again(service: GrpcService) -> None:
    await _append(service, b"1")
    stream = service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", follow=True))
    await stream.read()
    await until(lambda: service.api._waiting)
    service.engine.delete_topic("t")
    service.engine.put_topic("t", ConfigInput())
    service.engine.sync()
    assert (await _broken(stream))[1:] == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")


async def test_a_drain_and_a_cancelled_call_end_it(service: GrpcService) -> None:
    await _append(service, b"1")
    streams = [service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", follow=True)) for _ in range(4)]
    for stream in streams:
        await stream.read()
    await until(lambda: len(service.api._waiting) == 4)
    for stream in streams[:2]:
        stream.cancel()
    await until(lambda: len(service.api._waiting) == 2)
    service.api.drain()
    for stream in streams[2:]:
        assert (await _broken(stream))[1:] == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    await until(lambda: not service.api._waiting)


async def test_a_slow_reader_holds_little_memory_and_nobody_up(
    service: GrpcService, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(64):
        await _append(service, *[LARGE] * 4)
    frames = 0
    bulk = service.engine.bulk

    def counted(request: Any) -> Any:
        nonlocal frames
        frames += 1
        return bulk(request)

    service.engine.bulk = counted  # type: ignore[method-assign]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streams = [service.stub.BulkDiff(pb.BulkDiffRequest(topic="t")) for _ in range(3)]
    for stream in streams:
        await stream.read()
    seen = -1
    while seen != frames:  # until the server stands still
        seen = frames
        for _ in range(100):
            await service.stub.LocateTime(pb.LocateTimeRequest(topic="t"))
    assert frames < 3 * 40, "the flow control window, and a frame or two"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # in KiB
    for stream in streams[:2]:
        stream.cancel()
    rest = 0
    while await streams[2].read() is not grpc.aio.EOF:
        rest += 1
    assert rest == 255
    await until(lambda: not service.api.metrics.grpc.in_flight)
    assert not caplog.records, "a client that leaves is no error"


class _Clock:
    now = 1000

    def now_ms(self) -> int:
        return self.now


texts = st.none() | st.sampled_from([b"", b"a", b"ab", b"b"])
record = st.tuples(
    st.sampled_from([b"1", b'"xyz"', b"null"]), texts, texts, st.none() | st.just(b'{"k":1}'), st.booleans()
)
step = st.one_of(
    st.tuples(st.just("append"), st.lists(record, min_size=1, max_size=5)),
    st.tuples(st.just("match"), st.sampled_from([b"a", b"b"])),
    st.tuples(st.just("before"), st.integers(0, 12)),
    st.tuples(st.just("cap"), st.integers(1, 8)),
    st.tuples(st.just("later"), st.integers(1, 9)),
    st.tuples(st.just("upkeep"), st.just(None)),
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(step, max_size=12),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(1, 12),
    st.booleans(),
    st.sets(st.sampled_from([b"a", b"b"])),
)
def test_a_bulk_read_is_what_pages_are(
    steps: list[Any], from_seq: int, limit: int, budget: int, tags: bool, nodes: set[bytes]
) -> None:
    clock = _Clock()
    engine = Engine(MemoryStore(), clock)
    engine.put_topic("t", ConfigInput())
    engine.sync()
    for what, value in steps:
        if what == "append":
            datas, row_tags, row_nodes, metas, binary = (list(part) for part in zip(*value, strict=True))
            batch = Batch(datas=datas, tags=row_tags, nodes=row_nodes, metas=metas, kinds=bytes(binary))
            engine.append(AppendRequest(topic="t", batch=batch))
        elif what == "match":
            engine.sync()
            engine.delete_records(DeleteRequest(topic="t", match=TagMatch("Eq", value)))
        elif what == "before":
            engine.sync()
            engine.delete_records(DeleteRequest(topic="t", before_seq=value))
        elif what == "cap":
            engine.put_topic("t", ConfigInput(cap_records=value))
        elif what == "later":
            clock.now += value
        else:
            engine.maintain()
        engine.sync()
    by_page, tombstones = [], []
    request = DiffRequest(topic="t", from_seq=from_seq, limit=limit, nodes=tuple(nodes))
    while True:
        page = diff_response(reply := engine.diff(request), include_tags=tags, include_meta=True)
        by_page += page.records
        tombstones += [page.tombstone] if page.HasField("tombstone") else []
        if reply.caught_up:
            break
        request.from_seq = reply.next_from_seq
    message = pb.BulkDiffRequest(topic="t", from_seq=from_seq, include_tags=tags, node=[n.decode() for n in nodes])
    bulk = bulk_request(message, Limits())
    bulk.limit, bulk.max_batch_bytes = 3 * limit, budget
    engine.blocks.drop_log(1)  # now from what is stored
    by_frame, gaps = [], []
    while True:
        reply, bulk.epoch = engine.bulk(bulk)
        frame = bulk_frame(reply, done=False, include_tags=tags, include_meta=True)
        by_frame += rows(pb.BulkDiffResponse.FromString(frame.SerializeToString()))
        gaps += [frame.tombstone] if frame.HasField("tombstone") else []
        if reply.caught_up:
            break
        bulk.from_seq = reply.next_from_seq
    assert by_frame == by_page
    assert gaps == tombstones


@pytest.mark.parametrize("start", [{"from_ts": 0}, {"from_ts": 2**62}, {"last": 2}, {"last": 0}, {"last": 2**32 - 1}])
def test_both_protocols_start_alike(api: Api, server: ServerProcess, start: dict[str, int]) -> None:
    name = api.make()
    api.append(name, 1, 2, 3)
    over_http = api.read(name, **start)
    fields = {"from_ts_ms" if field == "from_ts" else field: value for field, value in start.items()}
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        over_grpc = stub.Diff(pb.DiffRequest(topic=name, **fields))
        frames = list(stub.BulkDiff(pb.BulkDiffRequest(topic=name, **fields)))
        acks = list(stub.AppendStream(iter([pb.AppendStreamRequest(append=pb.AppendRequest(topic=name))])))
    seqs = [record["$seq"] for record in over_http["records"]]
    assert [record.seq for record in over_grpc.records] == seqs
    assert [record.seq for frame in frames for record in rows(frame)] == seqs
    assert over_grpc.next_from_seq == over_http["next_from_seq"] == frames[-1].next_from_seq == 3
    assert [ack.HasField("error") for message in acks for ack in message.acks] == [True]


def test_a_client_may_ping_every_ten_seconds_also_without_a_call() -> None:
    options = dict(server_options(1 << 20))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 120_000


async def test_long_reads_take_turns_with_everyone_else(service: GrpcService) -> None:
    """A concurrent append waits for one page, however many readers and turns there are."""
    for _ in range(8):
        await _append(service, LARGE)
    turn, taken, bulk = 0, list[int](), service.engine.bulk

    def counted(request: Any) -> Any:
        taken.append(turn)
        return bulk(request)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    service.engine.bulk = counted  # type: ignore[method-assign]
    counting = asyncio.create_task(count())
    streams = await asyncio.gather(*[_bulk(service) for _ in range(3)])
    counting.cancel()
    assert [len(_datas(frames)) for frames in streams] == [8] * 3
    assert len(taken) == 3 * 8
    assert all(later - earlier >= 8 for earlier, later in pairwise(taken))
