"""Batches of records, and the limits of a producer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from topics_client.errors import InvalidRequestError
from topics_client.producer.delivery import Outcome, Receipt

MAX_RECORDS: Final = 10_000  # accepted by the server in one append
RECORD_OVERHEAD: Final = 100  # bytes of memory of a record beside its parts
_MAX_BYTES: Final = 32 << 20  # half of the server's limit

TopicPartition = tuple[str, int]  # topic and partition
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-][A-Za-z0-9._:-]{0,254}")


def check_topic_partition(topic_partition: TopicPartition) -> None:
    """Check a topic's name and a partition's number. Raises InvalidRequestError."""
    topic, partition = topic_partition
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise InvalidRequestError("invalid_request", f"{topic!r} is no topic's name: 1 to 255 of A-Z a-z 0-9 . _ : -")
    if not isinstance(partition, int) or not 0 <= partition < 1 << 32:
        raise InvalidRequestError("invalid_request", f"a partition is a number from 0 on, not {partition!r}")


class Parts(NamedTuple):
    """The parts of a record other than its data."""

    binary: bool
    tag: str | None
    node: str | None
    meta: bytes
    size: int  # of tag, node and meta, in bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """The batching limits of a producer. Raises ValueError for values out of range."""

    linger_ms: float = 5.0  # wait of a record for others; behind an append in flight, records always wait
    max_batch_records: int = MAX_RECORDS
    max_batch_bytes: int = 2 << 20  # of records, each with 100 bytes of overhead; a single one may exceed it
    max_in_flight: int = 8  # appends without a response, of all topics; each partition has one at a time
    max_buffered_bytes: int = 32 << 20  # of records without an outcome, counted alike

    def __post_init__(self) -> None:
        for name, minimum, maximum in (
            ("linger_ms", 0, 3_600_000),
            ("max_batch_records", 1, MAX_RECORDS),
            ("max_batch_bytes", 1, _MAX_BYTES),
            ("max_in_flight", 1, 1000),
            ("max_buffered_bytes", 1, 1 << 40),
        ):
            if not minimum <= getattr(self, name) <= maximum:
                raise ValueError(f"{name} is {minimum} to {maximum}, not {getattr(self, name)}")


class Batch:
    """Records of one topic partition for one append, in order, under one idempotency key."""

    __slots__ = (
        "data",
        "key",
        "lost_at",
        "nbytes",
        "number",
        "of",
        "opened",
        "parts",
        "receipt",
        "start",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, key: str, number: int, receipt: Receipt, opened: float) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.number = number  # in order of opening
        self.receipt = receipt
        self.start = 0  # index of its first record in the receipt
        self.of = 0  # number of records of the receipt, if this batch is only a part of it
        self.opened = opened
        self.data: list[bytes] = []
        self.parts: dict[int, Parts] = {}  # by index
        self.nbytes = 0
        self.lost_at: float | None = None  # time of the first send without a response: may be stored

    def __len__(self) -> int:
        return len(self.data)

    def __str__(self) -> str:
        topic, partition = self.topic_partition
        where = f"{topic}@{partition}" if partition else topic
        return f"{len(self.data)} record{'' if len(self.data) == 1 else 's'} for {where}"

    def settle(self, outcome: Outcome) -> list[Callable[[], None]]:
        """Set the outcome of the deliveries. Returns the callbacks to call now."""
        if self.of:
            return self.receipt.settle_part(self.start, len(self.data), self.of, outcome)
        return self.receipt.settle(outcome)

    def part(self, begin: int, end: int, key: str) -> "Batch":
        """The records from index `begin` to `end`, as a separate batch."""
        part = Batch(self.topic_partition, key, self.number, self.receipt, self.opened)
        part.start, part.of = self.start + begin, self.of or len(self.data)
        part.data = self.data[begin:end]
        part.parts = {index - begin: parts for index, parts in self.parts.items() if begin <= index < end}
        part.nbytes = sum(map(len, part.data)) + RECORD_OVERHEAD * len(part)
        part.nbytes += sum(parts.size for parts in part.parts.values())
        return part
