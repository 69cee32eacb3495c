"""Bulk reads in a cluster with several shards: from a follower's own rows, and the nodes to send them to."""

import logging
from collections.abc import Callable
from typing import Final

from topics_cluster.coordinator import Node
from topics_gateway.request import PassedOnError
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node.local import LocalTopics
from topics_server.node.reads import BULK_SECONDS
from topics_server.node.shard import NodeShard
from topics_server.node.views import Views, followers, owner
from topics_service.api.bulk import BulkTopics
from topics_service.api.grpc.admin_servicer import BulkReader, BulkReaders
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply
from topics_service.statistics import NodeStatistics

log: Final = logging.getLogger("topics.cluster")


class FollowerRead:
    """One bulk read, from the rows of a node that follows the shard, or else from the shard's owner.

    The first page waits until the rows have all that the owner had acknowledged. What the rows can't answer, at the
    first page or at a later one, the owner answers, and all that follows it.
    """

    def __init__(self, api: BulkTopics, shard: NodeShard, local: LocalTopics, statistics: NodeStatistics) -> None:
        self._api = api
        self._shard = shard
        self._local: LocalTopics | None = local
        self._statistics = statistics

    @property
    def limits(self) -> Limits:
        """See BulkTopics."""
        return self._api.limits

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """See BulkTopics."""
        local = self._local
        if local is not None:
            try:
                if not request.epoch:
                    await local.reach(await self._shard.ask_standpoint(), BULK_SECONDS)
                page = await local.bulk(request)
                if not request.epoch:
                    self._statistics.follower_reads += 1
                return page
            except (PassedOnError, TopicsError) as error:  # the owner may know better
                log.debug("a read of shard %d goes to the owner: %s", self._shard.number, error)
                self._local = None
        return await self._api.bulk(request)

    async def news(self, topic: str, partition: int = 0, after: int | None = None) -> None:
        """See BulkTopics."""
        await self._api.news(topic, partition, after)


class NodeBulk:
    """Finds what answers a bulk read at this node, and which nodes do so without a hop."""

    def __init__(
        self,
        api: BulkTopics,
        views: Views,
        shard_of: Callable[[str, int], int],
        shards: Callable[[int], NodeShard | None],
        statistics: NodeStatistics,
    ) -> None:
        """`shard_of` gives the shard of a partition, as far as the node knows, and `shards` that with a number."""
        self._api = api
        self._views = views
        self._shard_of = shard_of
        self._shards = shards
        self._statistics = statistics

    def topics(self, request: pb.BulkDiffRequest) -> BulkTopics:
        """The topics to read from: those of this node's rows, if it follows the shard and the read has an end."""
        shard = None if request.follow else self._shards(self._shard_of(request.topic, request.partition))
        if shard is None or shard.place.term is not None or shard.reads.topics is None:
            return self._api
        return FollowerRead(self._api, shard, shard.reads.topics, self._statistics)

    def readers(self, topic: str, partition: int) -> BulkReaders:
        """The owner of a partition, and the followers of its shard that are caught up."""
        if not topic:
            return BulkReaders()
        view, number = self._views.view, self._shard_of(topic, partition)
        found = owner(view, number)
        return BulkReaders(
            [bulk_reader(node) for node in followers(view, number)], None if found is None else bulk_reader(found)
        )


def bulk_reader(node: Node) -> BulkReader:
    """A node as ListBulkReaders names it."""
    host, _, port = node.addresses.grpc.rpartition(":")
    return BulkReader(host.strip("[]"), int(port), node.zone)
