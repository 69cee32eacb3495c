"""Long reads at followers, within one event loop: from their own rows, or at the owner where these don't do."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from cluster.test_node_memory import World
from security.callers import basic

from support.bulk import check_whole
from support.waiting import until
from topics_cluster import identity
from topics_cluster.bucket import BucketError
from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import (
    admin_service_pb2_grpc,
    record_pb2,
    sql_service_pb2_grpc,
    topic_pb2,
    topics_service_pb2_grpc,
)
from topics_proto.v1 import sql_service_pb2 as sql_pb
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node import reads
from topics_server.node.server import NodeServer
from topics_server.settings import load

LONG = b'"%b"' % (b"x" * 3000)


class Client:
    """Calls one node."""

    def __init__(self, channel: grpc.aio.Channel, authorization: str) -> None:
        self.stub: Any = topics_service_pb2_grpc.TopicsServiceStub(channel)  # type: ignore[no-untyped-call]
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        self.statements: Any = sql_service_pb2_grpc.SqlServiceStub(channel)  # type: ignore[no-untyped-call]
        self.metadata = [("authorization", authorization)] if authorization else []

    async def sql(self, text: str) -> None:
        await self.statements.Execute(sql_pb.ExecuteRequest(sql=text), metadata=self.metadata)

    async def append(self, topic: str, *datas: bytes, tag: bytes = b"") -> int:
        tags = record_pb2.Column(shared=tag) if tag else None
        batch = record_pb2.ColumnBatch(data=datas, tag=tags)
        reply = await self.stub.Append(pb.AppendRequest(topic=topic, columns=batch), timeout=20, metadata=self.metadata)
        return int(reply.head_seq)

    def stream(self, topic: str, **request: Any) -> Any:
        return self.stub.BulkDiff(pb.BulkDiffRequest(topic=topic, **request), timeout=20, metadata=self.metadata)

    async def frames(self, topic: str, **request: Any) -> list[pb.BulkDiffResponse]:
        return [frame async for frame in self.stream(topic, **request)]

    async def seqs(self, topic: str, **request: Any) -> list[int]:
        return [seq for frame in await self.frames(topic, **request) for seq in seqs_of(frame)]

    async def readers(self) -> list[tuple[str, int]]:
        reply = await self.admin.ListBulkReaders(admin_pb.ListBulkReadersRequest(), metadata=self.metadata)
        return [(reader.host, reader.port) for reader in reply.readers]


def seqs_of(frame: pb.BulkDiffResponse) -> Sequence[int]:
    columns = frame.records
    runs = zip(columns.run_first_seq, columns.run_count, strict=True)
    return [seq for first, count in runs for seq in range(first, first + count)]


@contextlib.asynccontextmanager
async def client(node: NodeServer, key: str = "", *, authorization: str = "") -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.grpc_port}") as channel:
        yield Client(channel, f"Bearer {key}" if key else authorization)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await identity.create(world.bucket)
    return world


async def no_answer(name: str) -> bytes | None:
    """An object store that is away."""
    raise BucketError(f"{name} can't be read")


@contextlib.asynccontextmanager
async def two(world: World, **settings: Any) -> AsyncIterator[tuple[NodeServer, NodeServer]]:
    """An owner, and a follower that is caught up."""
    async with world.node("a", **settings) as a, world.node("b", **settings) as b:
        await until(lambda: a.statistics.shards[0].followers == 1)
        yield a, b


async def test_what_the_owner_acknowledged_is_read_at_the_follower_from_its_own_rows(world: World) -> None:
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        for number in range(100):
            head = await at_a.append("t", b"%d" % number, tag=b"t%d" % number)
            assert await at_b.seqs("t", from_seq=head - 1, end_seq=head) == [head]
            if number % 3 == 2:
                match = record_pb2.TagMatch(eq=f"t{number - 1}")
                await at_a.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="t", match=match))
                assert await at_b.seqs("t", from_seq=head - 3) == [head - 2, head]
        assert b.statistics.follower_reads == 133
        assert b.statistics.forwarded["grpc"] == 0


async def test_records_of_the_disk_class_and_deletes_of_it_are_there_too(world: World) -> None:
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_DISK)
        await at_a.stub.PutTopic(pb.PutTopicRequest(topic="t", config=config))
        for number in range(50):
            head = await at_a.append("t", b"%d" % number)
            assert (await at_b.frames("t"))[-1].head_seq == head
            await at_a.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="t", before_seq=head + 1))
            assert await at_b.seqs("t") == []
        assert b.statistics.follower_reads == 100


async def test_frames_are_those_of_the_owner(world: World) -> None:
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        for number in range(20):
            await at_a.append("t", *[LONG] * 20, tag=b"t%d" % (number % 3))
        for form in (pb.BULK_FORMAT_COLUMNS, pb.BULK_FORMAT_ARROW):
            for request in (
                {"end_seq": 400},
                {"frame_bytes": 1},
                {"from_seq": 77, "end_seq": 300},
                {"last": 10},
                {"filter": record_pb2.TagMatch(eq="t1"), "include_tags": True},
                {"end_seq": 5, "from_seq": 9000},
            ):
                assert await at_b.frames("t", format=form, **request) == await at_a.frames("t", format=form, **request)
        assert b.statistics.follower_reads == 12


async def test_the_owner_names_its_followers_as_bulk_readers_to_any_node(world: World) -> None:
    async with world.node("a") as a, client(a) as at_a:
        assert await at_a.readers() == []
        async with world.node("b") as b, client(b) as at_b:
            await until(lambda: a.statistics.shards[0].followers == 1)
            assert await at_a.readers() == await at_b.readers() == [("127.0.0.1", b.grpc_port)]
        await until(lambda: a.statistics.shards[0].followers == 0)
        assert await at_a.readers() == []


async def test_what_a_follower_can_not_answer_is_answered_by_the_owner(world: World) -> None:
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_EPHEMERAL)
        await at_a.stub.PutTopic(pb.PutTopicRequest(topic="memory", config=config))
        await at_a.append("memory", b"1", b"2")
        assert await at_b.seqs("memory", end_seq=2) == [1, 2]
        await at_a.append("t", b"1")
        (frame,) = await at_b.frames("t", end_seq=2)
        assert (frame.next_from_seq, frame.done) == (1, True)
        following = at_b.stream("t", follow=True)
        assert list(seqs_of(await following.read())) == [1]
        await at_a.append("t", b"2")
        assert list(seqs_of(await following.read())) == [2]
        following.cancel()
        assert b.statistics.follower_reads == 0
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await at_b.frames("none")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await at_b.frames("t", partition=1)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_follower_that_is_behind_passes_the_read_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "BULK_SECONDS", 0.05)
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        await at_a.append("t", b"1")
        assert await at_b.seqs("t") == [1]
        with monkeypatch.context() as away:
            away.setattr(world.bucket, "get", no_answer)
            assert await at_a.append("t", b"2") == 2
            assert await at_b.seqs("t") == [1, 2]
        assert (b.statistics.follower_reads, b.statistics.forwarded["grpc"]) == (1, 1)
        await at_a.append("t", b"3")
        await until(lambda: b.statistics.shards[0].number == a.statistics.shards[0].number)
        assert await at_b.seqs("t") == [1, 2, 3]
        assert b.statistics.follower_reads == 2


async def test_a_read_goes_on_while_the_follower_becomes_the_owner(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(world.node("a"))
        async with world.node("b") as b, client(a) as at_a, client(b) as at_b:
            for _ in range(60):
                await at_a.append("t", *[LONG] * 100)
            await until(lambda: a.statistics.shards[0].followers == 1)
            reading = at_b.stream("t", frame_bytes=1)
            seqs = list(seqs_of(await anext(frames := aiter(reading))))
            await stack.aclose()
            await until(lambda: b.statistics.shards[0].role == "owning")
            await at_b.append("t", b"1")
            seqs += [seq async for frame in frames for seq in seqs_of(frame)]
            assert seqs == list(range(1, 6001))
            assert b.statistics.follower_reads == 1


async def test_a_read_of_a_node_whose_rows_go_is_refused_and_can_be_continued(world: World) -> None:
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        for _ in range(60):
            await at_a.append("t", *[LONG] * 100)
        reading = at_b.stream("t", frame_bytes=1)
        seqs = list(seqs_of(await anext(frames := aiter(reading))))
        running: Any = b._running
        running.shards[0].reads.end()
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for frame in frames:
                seqs += seqs_of(frame)
        assert await reading.code() is grpc.StatusCode.UNAVAILABLE
        seqs += await at_b.seqs("t", from_seq=seqs[-1])
        assert seqs == list(range(1, 6001))
        assert (b.statistics.follower_reads, b.statistics.forwarded["grpc"]) == (1, 1)


async def test_each_page_is_of_one_moment_while_large_objects_are_applied(world: World) -> None:
    """A slow read meets what is evicted in front of it: each seq is a record or in a tombstone."""
    async with two(world) as (a, b), client(a) as at_a, client(b) as at_b:
        config = topic_pb2.TopicConfig(cap_records=6000)
        await at_a.stub.PutTopic(pb.PutTopicRequest(topic="t", config=config))
        for _ in range(60):
            await at_a.append("t", *[LONG] * 100)
        for number in range(5):
            frames, first = [], number * 2000
            async for frame in at_b.stream("t", from_seq=first, frame_bytes=1):
                frames.append(frame)
                if len(frames) % 4 == 1:
                    await at_a.append("t", *[b"%d" % (first + len(frames))] * 10, *[LONG] * 90)
            check_whole(frames, first, frames[0].head_seq)
        assert (b.statistics.follower_reads, b.statistics.forwarded["grpc"]) == (5, 0)


async def test_callers_are_checked_at_the_follower_and_unknown_ones_by_the_owner(world: World) -> None:
    env = {"TOPICS_API_KEYS": "sekret-all, sekret-write:write, sekret-t42:read:t42:"}
    async with two(world, api_keys=load(env, {}).api_keys) as (a, b), client(a, "sekret-all") as full:
        await full.append("t42:a", b"1")
        await full.append("other", b"1")
        answers = {}
        for key in ("", "wrong", "sekret-write", "sekret-t42", "sekret-all"):
            async with client(b, key) as at_b:
                answers[key] = [await outcome(at_b, topic) for topic in ("t42:a", "other")]
        assert answers == {
            "": ["UNAUTHENTICATED", "UNAUTHENTICATED"],
            "wrong": ["UNAUTHENTICATED", "UNAUTHENTICATED"],
            "sekret-write": ["PERMISSION_DENIED", "PERMISSION_DENIED"],
            "sekret-t42": [[1], "PERMISSION_DENIED"],
            "sekret-all": [[1], [1]],
        }
        assert (b.statistics.follower_reads, b.statistics.forwarded["grpc"]) == (3, 4)


async def outcome(at: Client, topic: str) -> list[int] | str:
    """The seqs, or the status of the refusal."""
    try:
        return await at.seqs(topic, end_seq=1)
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def test_users_of_create_user_are_known_to_the_owner_only(world: World) -> None:
    users = load({"TOPICS_SQL_USERS": "root:sekret-root:system"}, {}).sql_users
    async with contextlib.AsyncExitStack() as stack:
        b = await stack.enter_async_context(world.node("b", sql_users=users))
        async with client(b, authorization=basic("root", "sekret-root")) as root:
            await root.sql("CREATE USER 'made' WITH PASSWORD 'sekret-made' ROLE service")
            await root.append("t", b"1")
        async with client(b, authorization=basic("made", "sekret-made")) as made:
            assert await made.seqs("t") == [1]
        a = await stack.enter_async_context(world.node("a", sql_users=users))
        await until(lambda: b.statistics.shards[0].followers == 1)
        async with client(b, authorization=basic("root", "sekret-root")) as root:
            await root.admin.MoveShard(admin_pb.MoveShardRequest(node="a"), metadata=root.metadata)
            await until(lambda: a.statistics.shards[0].followers == 1)
            async with client(b, authorization=basic("made", "sekret-made")) as made:
                assert await root.readers() == [("127.0.0.1", b.grpc_port)]
                assert await made.readers() == []
                assert await made.seqs("t") == await root.seqs("t") == [1]
                assert b.statistics.follower_reads == 1
                await root.sql("DROP USER 'made'")
                assert await outcome(made, "t") == "UNAUTHENTICATED"
        assert b.statistics.follower_reads == 1
