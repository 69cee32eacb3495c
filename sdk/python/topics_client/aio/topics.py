"""Topics: create, inspect, list, delete."""

from collections.abc import AsyncIterator

from topics_client.aio.base import AsyncBase
from topics_client.decoding import config_of, topic_info_of, topic_summary_of
from topics_client.models import TopicConfig, TopicInfo, TopicPut, TopicSummary
from topics_client.requests import config_message
from topics_proto.v1 import topics_service_pb2 as pb


class AsyncTopics(AsyncBase):
    """Calls on topics as a whole."""

    async def put_topic(
        self,
        topic: str,
        config: TopicConfig | None = None,
        *,
        partitions: int = 0,
        placement: str = "",
        zone: str = "",
    ) -> TopicPut:
        """Create a topic, or replace the entire configuration of an existing one.

        Fields that `config` leaves unset take their defaults. `partitions` can be raised, never lowered; 0 means one
        for a new topic and no change for an existing one. New topics with the same `placement`
        lie in one shard, where the server has several; one with a `zone` lies in the shards of a cluster that prefer
        it. Raises ConflictError for another type, placement or zone, or fewer partitions, and NotFoundError for a zone
        that no shard prefers.
        """
        request = pb.PutTopicRequest(
            topic=topic, config=config_message(config), partition_count=partitions, placement=placement, zone=zone
        )
        reply = await self.connection.unary(self.connection.topics.PutTopic, request)
        return TopicPut(
            topic=reply.topic,
            created=reply.created,
            config=config_of(reply.config),
            topic_id=reply.topic_id,
            epoch=reply.epoch,
            partition_count=reply.partition_count,
            placement=reply.placement,
            zone=reply.zone,
        )

    async def get_topic(self, topic: str, *, partition: int = 0, touch: bool = True) -> TopicInfo:
        """Return the state of a topic. With `touch` the call counts as a read. Raises NotFoundError."""
        request = pb.GetTopicRequest(topic=topic, partition=partition, touch=touch)
        return topic_info_of((await self.connection.unary(self.connection.topics.GetTopic, request)).state)

    async def list_topics(self, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """List the topics whose name starts with `prefix`, in byte order."""
        request = pb.ListTopicsRequest(prefix=prefix, page_size=1000)
        while True:
            reply = await self.connection.unary(self.connection.topics.ListTopics, request)
            for summary in reply.topics:
                yield topic_summary_of(summary)
            if not reply.next_cursor:
                return
            request.cursor = reply.next_cursor

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> bool:
        """Delete a topic permanently, with its records and routers. Returns False if there was none. With `if_empty`,
        raises ConflictError for a topic that has records."""
        request = pb.DeleteTopicRequest(topic=topic, if_empty=if_empty)
        return (await self.connection.unary(self.connection.topics.DeleteTopic, request)).deleted
