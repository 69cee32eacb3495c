"""Options of a BulkDiff: a filter, one life of a topic, no data; and which processes serve it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from support.arrow import arrow_rows
from support.grpc_on_engine import GrpcService, open_service, rows
from support.waiting import until
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc.admin_servicer import BulkReader, BulkReaders
from topics_service.api.grpc.server import GrpcServer

FORMATS = (pb.BULK_FORMAT_COLUMNS, pb.BULK_FORMAT_ARROW)
DATA = b'"%b"' % (b"x" * 998)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[GrpcService]:
    async with open_service(tmp_path / "data") as service:
        yield service


async def _append(service: GrpcService, *datas: bytes, **columns: Any) -> None:
    batch = record_pb2.ColumnBatch(data=datas, **columns)
    await service.stub.Append(pb.AppendRequest(topic="t", columns=batch))


async def _read(service: GrpcService, **request: Any) -> tuple[list[pb.BulkDiffResponse], list[record_pb2.Record]]:
    """The frames, and their records."""
    frames = [frame async for frame in service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", **request))]
    assert frames[-1].done
    in_arrow = request.get("format") == pb.BULK_FORMAT_ARROW
    assert not any(frame.HasField("records") if in_arrow else frame.arrow for frame in frames)
    found = arrow_rows(frames) if in_arrow else [rows(frame) for frame in frames]
    return frames, [one for records in found for one in records]


async def _error(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, reason and message of a stream's end."""

    async def read_on() -> None:
        while await asyncio.wait_for(call.read(), 20) is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_on()
    status = await rpc_status.aio.from_call(call)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.reason, caught.value.details() or ""


async def _id(service: GrpcService) -> str:
    return str((await service.stub.GetTopic(pb.GetTopicRequest(topic="t"))).state.topic_id)


@pytest.mark.parametrize(
    "asked",
    [
        {"format": 3},
        {"format": -1},
        {"format": 2**31 - 1},
        {"filter": record_pb2.TagMatch()},
        {"format": pb.BULK_FORMAT_ARROW, "filter": record_pb2.TagMatch()},
        {"format": pb.BULK_FORMAT_ARROW, "from_seq": 1, "last": 1},
    ],
)
async def test_bad_requests(service: GrpcService, asked: dict[str, Any]) -> None:
    await _append(service, b"1")
    code, reason, message = await _error(service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", **asked)))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert message.startswith(("format: ", "filter: ", "from_seq"))


async def test_an_unknown_topic_is_not_found_in_arrow_too(service: GrpcService) -> None:
    code, reason, message = await _error(service.stub.BulkDiff(pb.BulkDiffRequest(topic="no", format=2)))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    assert '"no"' in message


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("cold", [False, True])
async def test_a_filter_is_that_of_diff(service: GrpcService, form: int, cold: bool) -> None:
    tags = [b"rare" if n % 9001 == 0 else b"r%d" % (n % 3) for n in range(40_000)]
    for start in range(0, 40_000, 10_000):
        some = tags[start : start + 10_000]
        await _append(service, *[b"%d" % n for n in range(start, start + 10_000)], tag=record_pb2.Column(value=some))
    if cold:
        service.engine.maintain()  # now with a tag index
        for log_id in list(service.engine.blocks._bases):
            service.engine.blocks.drop_log(log_id)
    for rule, matches in (
        (record_pb2.TagMatch(eq="rare"), lambda tag: tag == b"rare"),
        (record_pb2.TagMatch(prefix="r1"), lambda tag: tag.startswith(b"r1")),
        (record_pb2.TagMatch(prefix=""), lambda tag: True),
        (record_pb2.TagMatch(eq="none"), lambda tag: False),
    ):
        frames, records = await _read(service, format=form, filter=rule, end_seq=35_000, include_tags=True)
        want = [n for n in range(35_000) if matches(tags[n])]
        assert [(one.seq, one.data) for one in records] == [(n + 1, b"%d" % n) for n in want]
        assert {one.tag.encode() for one in records} == {tags[n] for n in want}
        assert frames[-1].next_from_seq == 35_000
        middle = frames[len(frames) // 2]  # any frame's cursor can be resumed from
        _, rest = await _read(service, format=form, filter=rule, end_seq=35_000, from_seq=middle.next_from_seq)
        assert [one.seq for one in rest] == [n + 1 for n in want if n + 1 > middle.next_from_seq]


@pytest.mark.parametrize("form", FORMATS)
async def test_follow_with_a_filter(service: GrpcService, form: int) -> None:
    await _append(service, b"1", b"2", tag=record_pb2.Column(value=[b"a", b"b"]))
    request = pb.BulkDiffRequest(
        topic="t", follow=True, end_seq=4, filter=record_pb2.TagMatch(eq="b"), format=form, include_tags=True
    )
    stream = service.stub.BulkDiff(request)
    first = await stream.read()
    await until(lambda: service.api._waiting)
    await _append(service, b"3", tag=record_pb2.Column(value=[b"a"]))
    second = await stream.read()
    await _append(service, b"4", tag=record_pb2.Column(value=[b"b"]))
    frames = [first, second, await stream.read()]
    read = arrow_rows(frames) if form == pb.BULK_FORMAT_ARROW else [rows(frame) for frame in frames]
    assert [[one.seq for one in found] for found in read] == [[2], [], [4]]
    assert [frame.next_from_seq for frame in frames] == [2, 3, 4]


@pytest.mark.parametrize("form", FORMATS)
async def test_one_life_of_a_topic(service: GrpcService, form: int) -> None:
    await _append(service, b"1")
    first = await _id(service)
    _, records = await _read(service, format=form, topic_id=first)
    assert [one.data for one in records] == [b"1"]
    await service.stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
    request = pb.BulkDiffRequest(topic="t", topic_id=first, format=form)
    code, reason, message = await _error(service.stub.BulkDiff(request))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    assert message == 'topic "t" does not exist'
    await _append(service, b"2")
    second = await _id(service)
    code, reason, message = await _error(service.stub.BulkDiff(request))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    assert all(part in message for part in ('"t"', "created again", second))
    _, records = await _read(service, format=form, topic_id=second)
    assert [one.data for one in records] == [b"2"]
    _, records = await _read(service, format=form)
    assert [one.data for one in records] == [b"2"]
    long = pb.BulkDiffRequest(topic="t", topic_id="x" * 100_000, format=form)
    assert (await _error(service.stub.BulkDiff(long)))[1] == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("form", FORMATS)
async def test_a_topic_that_is_made_again_under_a_stream(service: GrpcService, form: int) -> None:
    await _append(service, b"1")
    stream = service.stub.BulkDiff(pb.BulkDiffRequest(topic="t", follow=True, topic_id=await _id(service), format=form))
    await stream.read()
    await until(lambda: service.api._waiting)
    await service.stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
    await _append(service, b"2")
    code, reason, message = await _error(stream)
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    assert '"t"' in message


@pytest.mark.parametrize("form", FORMATS)
async def test_without_data(service: GrpcService, form: int) -> None:
    for _ in range(4):
        await _append(service, *[DATA] * 1000, tag=record_pb2.Column(shared=b"t"), meta=record_pb2.Column(shared=b"{}"))
    whole, want = await _read(service, format=form, include_tags=True)
    frames, records = await _read(service, format=form, include_tags=True, include_data=False)
    for one in want:
        one.data = b""
    assert records == want
    for one in want:
        one.ClearField("meta")
    few, bare = await _read(service, format=form, include_tags=True, include_data=False, include_meta=False)
    assert bare == want
    assert len(few) < len(frames) == len(whole)
    assert sum(frame.ByteSize() for frame in few) < 400_000
    assert not any(frame.records.HasField("data") for frame in (*frames, *few))
    same, _ = await _read(service, format=form, include_data=True, include_tags=True)
    assert same == whole


# ------------------------------------------------------------------------------------------------ bulk readers


async def test_a_server_without_bulk_readers_names_none(service: GrpcService) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        reply = await admin.ListBulkReaders(admin_service_pb2.ListBulkReadersRequest())
    assert reply == admin_service_pb2.ListBulkReadersResponse()


async def test_bulk_readers_of_now_are_named(service: GrpcService) -> None:
    readers: list[BulkReader] = []
    asked: list[tuple[str, int]] = []

    def find(topic: str, partition: int) -> BulkReaders:
        asked.append((topic, partition))
        return BulkReaders(readers, readers[0] if partition else None)

    server = GrpcServer(service.api, host="127.0.0.1", port=0, bulk_readers=find)
    address = f"127.0.0.1:{await server.start()}"
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            for known in ([], [("", 5001), ("10.0.0.7", 65535)], [("", 5001)]):
                readers[:] = [BulkReader(*each) for each in known]
                reply = await admin.ListBulkReaders(admin_service_pb2.ListBulkReadersRequest())
                assert [(reader.host, reader.port) for reader in reply.readers] == known
                assert not reply.HasField("owner")
            readers[:] = [BulkReader("10.0.0.7", 5001, "west")]
            reply = await admin.ListBulkReaders(admin_service_pb2.ListBulkReadersRequest(topic="t", partition=2))
            assert reply.owner == admin_service_pb2.BulkReader(host="10.0.0.7", port=5001, zone="west")
            assert asked == [("", 0)] * 3 + [("t", 2)]
    finally:
        await server.stop(0)
