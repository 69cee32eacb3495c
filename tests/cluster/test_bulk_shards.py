"""Bulk reads of nodes with many shards: ListBulkReaders names nodes by partition, and followers read their own rows."""

from pathlib import Path

import grpc
import pytest
from cluster.test_every_node import SHARDS, owners, three, world
from cluster.test_reads_memory import LONG, Client, client
from cluster.world import World

from support.waiting import until
from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node import bulk
from topics_server.node.server import NodeServer
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import shard_of

__all__ = ["world"]

TOPIC = "t"


async def named(at: Client, topic: str, partition: int = 0) -> admin_pb.ListBulkReadersResponse:
    request = admin_pb.ListBulkReadersRequest(topic=topic, partition=partition)
    answer = await at.admin.ListBulkReaders(request)
    assert isinstance(answer, admin_pb.ListBulkReadersResponse)
    return answer


async def test_bulk_reads_are_answered_by_followers_of_each_partition(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(world, cluster_zone="z") as nodes, client(nodes["a"]) as at_a:
        by_port = {node.grpc_port: node for node in nodes.values()}
        names = {node.grpc_port: name for name, node in nodes.items()}
        await at_a.stub.PutTopic(pb.PutTopicRequest(topic=TOPIC, partition_count=SHARDS))
        for partition in range(SHARDS):
            request = pb.AppendRequest(topic=TOPIC, partition=partition)
            request.columns.data.extend([b"%d" % partition, *[LONG] * 400])
            await at_a.stub.Append(request, timeout=20)
        assert list((await named(at_a, "")).readers) == []

        for partition in range(SHARDS):
            shard = shard_of(TOPIC, partition, SHARDS)

            async def followed(partition: int = partition) -> NodeServer | None:
                found = await named(at_a, TOPIC, partition)
                return by_port[found.readers[0].port] if len(found.readers) == 1 else None

            await until(followed, seconds=20)
            found = await named(at_a, TOPIC, partition)
            assert names[found.owner.port] == owners(world)[shard]
            assert found.owner.port != found.readers[0].port
            assert (found.owner.zone, found.readers[0].zone) == ("z", "z")

            answers = {}
            for port, node in by_port.items():
                before = node.statistics.follower_reads
                async with client(node) as at:
                    answers[port] = await at.frames(TOPIC, partition=partition, end_seq=401)
                assert node.statistics.follower_reads - before == (port == found.readers[0].port)
            assert answers[found.owner.port][-1].done
            assert {str(frames) for frames in answers.values()} == {str(answers[found.owner.port])}

        partition = 0
        found = await named(at_a, TOPIC, partition)
        follower = by_port[found.readers[0].port]
        async with client(follower) as at:
            stream = at.stream(TOPIC, partition=partition, end_seq=401, frame_bytes=1)
            frames = [await stream.read()]

            async def replaced(*_: object) -> None:
                raise TopicsError(Reason.NOT_READY, "the node is replacing its rows of the shard")

            monkeypatch.setattr("topics_server.node.local.LocalTopics.bulk", replaced)
            frames += [frame async for frame in stream]
            assert sum(sum(frame.records.run_count) for frame in frames) == 401
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
