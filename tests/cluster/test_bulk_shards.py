"""Bulk reads of nodes with many shards: each partition has nodes that answer without a hop, followers among them."""

import asyncio

import grpc
import pytest
from cluster.test_every_node import SHARDS, owners, three, world
from cluster.test_reads_memory import LONG, Client, client
from cluster.world import World

from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node import bulk
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import shard_of

__all__ = ["world"]

TOPIC = "t"


async def named(at: Client, topic: str, partition: int = 0) -> admin_pb.ListBulkReadersResponse:
    request = admin_pb.ListBulkReadersRequest(topic=topic, partition=partition)
    answer = await at.admin.ListBulkReaders(request)
    assert isinstance(answer, admin_pb.ListBulkReadersResponse)
    return answer


async def followed(at: Client, partition: int) -> admin_pb.ListBulkReadersResponse:
    """The nodes of a partition, once its shard has a follower that is caught up."""
    async with asyncio.timeout(20):
        while not (found := await named(at, TOPIC, partition)).readers:
            await asyncio.sleep(0.01)
    return found


async def test_bulk_reads_are_answered_by_followers_of_each_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(world, cluster_zone="z") as nodes, client(nodes["a"]) as at_a:
        by_port = {node.grpc_port: node for node in nodes.values()}
        names = {node.grpc_port: name for name, node in nodes.items()}
        await at_a.stub.PutTopic(pb.PutTopicRequest(topic=TOPIC, partition_count=SHARDS))
        for partition in range(SHARDS):
            request = pb.AppendRequest(topic=TOPIC, partition=partition)
            request.columns.data.extend([b"%d" % partition, *[LONG] * 100])
            await at_a.stub.Append(request, timeout=20)
        assert list((await named(at_a, "")).readers) == []

        served: dict[int, int] = {}
        for partition in range(4):
            shard = shard_of(TOPIC, partition, SHARDS)

            found = await followed(at_a, partition)
            followers = [reader.port for reader in found.readers]
            assert names[found.owner.port] == owners(world)[shard]
            assert found.owner.port not in followers
            assert {found.owner.zone, *(reader.zone for reader in found.readers)} == {"z"}

            answers = {}
            for port, node in by_port.items():
                before = node.statistics.follower_reads
                async with client(node) as at:
                    answers[port] = await at.frames(TOPIC, partition=partition, end_seq=101)
                served[port] = node.statistics.follower_reads - before
            assert [served[port] for port in followers] == [1] * len(followers)
            assert served[found.owner.port] == 0
            assert answers[found.owner.port][-1].done
            assert {str(frames) for frames in answers.values()} == {str(answers[found.owner.port])}

        partition = 0
        found = await followed(at_a, partition)
        follower = by_port[found.readers[0].port]
        async with client(follower) as at:
            stream = aiter(at.stream(TOPIC, partition=partition, end_seq=101, frame_bytes=1))
            frames = [await anext(stream)]

            async def replaced(*_: object) -> None:
                raise TopicsError(Reason.NOT_READY, "the node is replacing its rows of the shard")

            monkeypatch.setattr("topics_server.node.local.LocalTopics.bulk", replaced)
            frames += [frame async for frame in stream]
            assert sum(sum(frame.records.run_count) for frame in frames) == 101
            assert len(frames) > 3
            monkeypatch.undo()

            monkeypatch.setattr(bulk, "BULK_SECONDS", 0.05)
            config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_EPHEMERAL)
            await at_a.stub.PutTopic(pb.PutTopicRequest(topic="memory", config=config))
            await at_a.append("memory", b"1", b"2")
            for node in nodes.values():
                async with client(node) as other:
                    assert await other.seqs("memory", end_seq=2) == [1, 2]
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await other.frames(TOPIC, partition=SHARDS)
                    assert error.value.code() is grpc.StatusCode.NOT_FOUND
