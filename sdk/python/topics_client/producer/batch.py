"""What a producer gathers its records in, and how much of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from topics_client.errors import InvalidRequestError
from topics_client.producer.delivery import Outcome, Receipt

MAX_RECORDS: Final = 10_000  # that the server takes in one append
RECORD_OVERHEAD: Final = 100  # bytes of memory that a record takes beside its own parts
_MAX_BYTES: Final = 32 << 20  # half of what the server takes

Place = tuple[str, int]  # topic and partition
_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


def check_place(place: Place) -> None:
    """Raises InvalidRequestError for what is no topic's name, or no partition's number."""
    topic, partition = place
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise InvalidRequestError(
            "invalid_request", f"{topic!r} is no topic's name: 1 to 255 of A-Z a-z 0-9 . _ : - that begin with no sign"
        )
    if not isinstance(partition, int) or not 0 <= partition < 1 << 32:
        raise InvalidRequestError("invalid_request", f"a partition is a number from 0 on, not {partition!r}")


class Parts(NamedTuple):
    """What a record has beside its data, if it has any of it."""

    binary: bool
    tag: str | None
    node: str | None
    meta: bytes
    size: int  # of tag, node and meta, in bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """How records are gathered. Raises ValueError for what makes no sense."""

    linger_ms: float = 5.0  # how long a record waits for others; those whose topic has an append under way always do
    max_batch_records: int = MAX_RECORDS
    max_batch_bytes: int = 2 << 20  # of records, each counted with 100 bytes on top; one alone may have more
    max_in_flight: int = 8  # appends without an answer, over all topics; each topic partition has one at a time
    max_buffered_bytes: int = 32 << 20  # of records without an outcome, counted likewise

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
    """Records of one topic partition that go in one append, in order, under one idempotency key."""

    __slots__ = (
        "data",
        "key",
        "lost_at",
        "nbytes",
        "number",
        "of",
        "opened",
        "parts",
        "place",
        "receipt",
        "start",
    )

    def __init__(self, place: Place, key: str, number: int, receipt: Receipt, opened: float) -> None:
        self.place = place
        self.key = key
        self.number = number  # in the order in which they were opened
        self.receipt = receipt
        self.start = 0  # where in the receipt its records begin
        self.of = 0  # of how many records the receipt is, if these are only a part
        self.opened = opened
        self.data: list[bytes] = []
        self.parts: dict[int, Parts] = {}  # by index, of those that have some
        self.nbytes = 0
        self.lost_at: float | None = None  # when it was sent for the first time without an answer: may be stored since

    def __len__(self) -> int:
        return len(self.data)

    def __str__(self) -> str:
        topic, partition = self.place
        where = f"{topic}@{partition}" if partition else topic
        return f"{len(self.data)} record{'' if len(self.data) == 1 else 's'} for {where}"

    def settle(self, outcome: Outcome) -> list[Callable[[], None]]:
        """Tell the deliveries. Returns what is to be called now."""
        if self.of:
            return self.receipt.settle_part(self.start, len(self.data), self.of, outcome)
        return self.receipt.settle(outcome)

    def part(self, begin: int, end: int, key: str) -> "Batch":
        """The records from index `begin` to `end`, as a batch of their own."""
        part = Batch(self.place, key, self.number, self.receipt, self.opened)
        part.start, part.of = self.start + begin, self.of or len(self.data)
        part.data = self.data[begin:end]
        part.parts = {index - begin: parts for index, parts in self.parts.items() if begin <= index < end}
        part.nbytes = sum(map(len, part.data)) + RECORD_OVERHEAD * len(part)
        part.nbytes += sum(parts.size for parts in part.parts.values())
        return part
