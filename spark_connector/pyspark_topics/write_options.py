"""The options of a write: `df.write.format("topics").option(...)`, batch and streaming."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pyspark_topics.options import OptionError, flag, number, server, text
from topics_client import units
from topics_client.address import Address
from topics_proto.v1 import record_pb2, topic_pb2

WRITE_OPTIONS: Final = (
    "url",
    "topics.url",
    "apiKey",
    "topics.apiKey",
    "topic",
    "partition",
    "node",
    "dataKind",
    "writeId",
    "create",
    "partitions",
    "durability",
    "idempotencyWindow",
    "raiseWindow",
    "maxRecordsPerAppend",
    "maxBytesPerAppend",
    "maxInFlight",
    "retrySeconds",
)
KINDS: Final[Mapping[str, "record_pb2.RecordKind.ValueType"]] = {
    "json": record_pb2.RECORD_KIND_JSON,
    "binary": record_pb2.RECORD_KIND_BINARY,
}

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})  # handed on to the sink
_DURABILITIES: Final = ("ephemeral", "memory", "disk", "fsync")
_WRITE_ID: Final = re.compile(r"[\x20-\x7e]{1,128}")
_MAX_RECORDS: Final = 10_000  # the server's limit of one append
_MAX_BYTES: Final = 60 << 20  # the same, less the overhead around records
_NEW_WINDOW_MS: Final = 7 * 86_400_000
_SAFE_WINDOW_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. Sent to the tasks; its string form never contains the API key."""

    address: Address
    topic: str | None = None  # of all rows; wins over the column
    partition: int | None = None  # the same
    node: str | None = None  # the same
    data_kind: "record_pb2.RecordKind.ValueType" = record_pb2.RECORD_KIND_JSON  # where no column says it
    write_id: str | None = None
    create: bool = True
    partitions: int = 1  # of a topic that the write creates
    durability: str | None = None  # of a topic that the write creates; None: the server's default
    window_ms: int | None = None  # as given; see new_window_ms and min_window_ms
    raise_window: bool = False
    records_per_append: int = _MAX_RECORDS
    bytes_per_append: int = 4 << 20
    in_flight: int = 16  # appends of a task that have no ack yet
    retry_seconds: int = 60

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Names of options are compared without regard to case; an unknown one is an error. Raises OptionError."""
        known = {name.lower() for name in WRITE_OPTIONS} | _SPARKS_OWN
        for name in options:
            if name.lower() not in known:
                raise OptionError(f"unknown option {name} of a write; known are {', '.join(WRITE_OPTIONS)}")
        partition = text(options, "partition")
        return cls(
            address=server(options),
            topic=text(options, "topic") or None,
            partition=None if partition is None else number(options, "partition", 0, minimum=0),
            node=text(options, "node") or None,
            data_kind=KINDS[_one_of(options, "dataKind", tuple(KINDS)) or "json"],
            write_id=_write_id(options),
            create=flag(options, "create", True),
            partitions=number(options, "partitions", 1),
            durability=_one_of(options, "durability", _DURABILITIES),
            window_ms=_milliseconds(options, "idempotencyWindow"),
            raise_window=flag(options, "raiseWindow", False),
            records_per_append=_bounded(options, "maxRecordsPerAppend", _MAX_RECORDS, _MAX_RECORDS),
            bytes_per_append=_bounded(options, "maxBytesPerAppend", 4 << 20, _MAX_BYTES),
            in_flight=_bounded(options, "maxInFlight", 16, 64),
            retry_seconds=number(options, "retrySeconds", 60, minimum=0),
        )

    @property
    def new_window_ms(self) -> int:
        """The idempotency window for topics that the write creates, or whose window it raises."""
        return _NEW_WINDOW_MS if self.window_ms is None else self.window_ms

    @property
    def min_window_ms(self) -> int:
        """The minimum idempotency window of an existing topic for writes that may be repeated at any time."""
        return _SAFE_WINDOW_MS if self.window_ms is None else self.window_ms

    def config(self) -> topic_pb2.TopicConfig:
        """Of a topic that the write creates."""
        config = topic_pb2.TopicConfig(idempotency_window_ms=self.new_window_ms)
        if self.durability is not None:
            config.durability = topic_pb2.Durability.Value(f"DURABILITY_{self.durability.upper()}")
        return config


def _one_of(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str | None:
    value = text(options, name)
    if value is None:
        return None
    if value.lower() not in values:
        raise OptionError(f"option {name} is one of {', '.join(values)}, not {value!r}")
    return value.lower()


def _bounded(options: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    found = number(options, name, default)
    if found > maximum:
        raise OptionError(f"option {name} is at most {maximum}, not {found}")
    return found


def _milliseconds(options: Mapping[str, str], name: str) -> int | None:
    value = text(options, name)
    if value is None:
        return None
    try:
        return units.milliseconds(value.strip(), bare=None)
    except ValueError as error:
        raise OptionError(f"option {name} is {error}, not {value!r}") from None


def _write_id(options: Mapping[str, str]) -> str | None:
    value = text(options, "writeId")
    if value is not None and not _WRITE_ID.fullmatch(value):
        raise OptionError(f"option writeId is a text of 1 to 128 printable ASCII characters, not {value!r}")
    return value
