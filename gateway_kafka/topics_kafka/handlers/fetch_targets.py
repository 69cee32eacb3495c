"""The partitions that a fetch asks for."""

from typing import Any

from topics_kafka.brokers import NOBODY
from topics_kafka.protocol import Message
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchReply


class Target:
    """A partition of a request: its offset, the records found, and its part of the response.

    `api` is the engine that has it; None if that is in another process.
    """

    __slots__ = ("answer", "api", "by_id", "cursor", "limit", "name", "number", "offset", "reader", "reply", "topic_id")

    def __init__(self, name: str, topic_id: str, partition: Message, api: TopicsApi | None, *, by_id: bool) -> None:
        self.name = name
        self.topic_id = topic_id
        self.by_id = by_id
        self.api = api
        self.number: int = partition["partition"]
        self.offset: int = partition["fetch_offset"]
        self.limit: int = partition["partition_max_bytes"]
        self.answer: dict[str, Any] = {"partition_index": self.number}
        self.reply: FetchReply | None = None
        self.cursor = 0  # after the records found
        self.reader = NOBODY  # the node in the zone of the client, where it is to read
