"""The options of a read: `spark.read.format("topics").option(...)`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pyspark_topics.fetch import Parts
from pyspark_topics.offsets import EARLIEST, LATEST, Boundary, boundary
from topics_client.address import Address

READ_OPTIONS: Final = (
    "url",
    "topics.url",
    "apiKey",
    "topics.apiKey",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeMeta",
    "includeData",
    "includeKind",
    "includeGaps",
    "nodes",
    "tag",
    "tagPrefix",
    "dataSchema",
    "pushFilters",
)
"""Options of a batch read. A streaming read takes most of them too, and STREAM_OPTIONS besides."""

STREAM_OPTIONS: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger")
"""Options that only a streaming read takes."""

MAX_RECORDS_PER_PARTITION: Final = 500_000
_BATCH_ALONE: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters")
_SERVER_OPTIONS: Final = ("url", "topics.url", "apikey", "topics.apikey")


class OptionError(ValueError):
    """An option of a data frame that is missing, unknown or wrong. The text names it, and never holds a key."""


def text(options: Mapping[str, str], *names: str) -> str | None:
    """The value of an option that may be spelled in several ways, in upper or lower case; None if it is not given."""
    lower = {name.lower(): value for name, value in options.items()}
    found = {value for name in names if (value := lower.get(name.lower())) is not None}
    if len(found) > 1:
        raise OptionError(f"options {' and '.join(names)} differ: give one")
    return found.pop() if found else None


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """`true` or `false`."""
    value = text(options, name)
    if value is None:
        return default
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise OptionError(f"option {name} is true or false, not {value!r}")
    return known[value.strip().lower()]


def number(options: Mapping[str, str], name: str, default: int, *, minimum: int = 1) -> int:
    """A whole number, at least `minimum`."""
    value = text(options, name)
    if value is None:
        return default
    try:
        found = int(value)
    except ValueError:
        found = minimum - 1
    if found < minimum:
        raise OptionError(f"option {name} is a whole number from {minimum}, not {value!r}")
    return found


def names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(filter(None, (part.strip() for part in (text(options, name) or "").split(","))))


def check_names(options: Mapping[str, str], known: Collection[str]) -> None:
    """Reject unknown options, rather than ignore them."""
    lower = {name.lower() for name in known}
    for name in options:
        if name.lower() not in lower:
            if name.lower() in {each.lower() for each in STREAM_OPTIONS}:
                raise OptionError(f"option {name} is for streaming reads")
            if name.lower() in {each.lower() for each in READ_OPTIONS}:
                raise OptionError(f"option {name} is for batch reads")
            raise OptionError(f"unknown option {name}; known are {', '.join(known)}")


def server(options: Mapping[str, str]) -> Address:
    """The address of the server: option `url` (default: TOPICS_URL) and `apiKey` (default: the key in the URL, then
    TOPICS_API_KEY).

    The environment is that of the driver; the result goes to the executors inside the Address.
    """
    try:
        return Address.parse(text(options, "url", "topics.url"), key=text(options, "apiKey", "topics.apiKey"))
    except ValueError as error:
        raise OptionError(f"option url: {error}") from None


def settled(options: Mapping[str, str]) -> dict[str, str]:
    """The same options with the server and the key said, as the environment of this process has them.

    Parsing options again on an executor gives the same result as on the driver.
    """
    address = server(options)
    rest = {name: value for name, value in options.items() if name.lower() not in _SERVER_OPTIONS}
    return rest | {"url": str(address)} | ({"apiKey": address.key} if address.key else {})


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The columns of a data frame without a given schema."""

    meta: bool = True
    data: bool = True
    kind: bool = False
    gaps: bool = False
    data_schema: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Looks at no other options. Raises OptionError."""
        return cls(
            flag(options, "includeMeta", True),
            flag(options, "includeData", True),
            flag(options, "includeKind", False),
            flag(options, "includeGaps", False),
            text(options, "dataSchema"),
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The topics and range to read."""

    address: Address
    topics: tuple[str, ...]  # empty: those that match `pattern`
    pattern: str
    starting: Boundary
    ending: Boundary  # of a streaming read always LATEST
    columns: ColumnOptions
    fail_on_data_loss: bool
    min_partitions: int  # 0: as many as suit
    max_records_per_partition: int
    nodes: tuple[str, ...]
    tag: str | None
    tag_prefix: str | None
    push_filters: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> Self:
        """Names of options are compared without regard to case; an unknown one is an error. A batch read begins by
        default at the earliest record, a streaming read behind the latest. Raises OptionError."""
        known: tuple[str, ...] = READ_OPTIONS
        if streaming:
            known = (*(name for name in READ_OPTIONS if name not in _BATCH_ALONE), *STREAM_OPTIONS)
        check_names(options, known)
        topics, pattern = names(options, "subscribe"), text(options, "subscribePattern") or ""
        if bool(topics) == bool(pattern):
            raise OptionError("exactly one of the options subscribe and subscribePattern names the topics to read")
        tag, prefix = text(options, "tag"), text(options, "tagPrefix")
        if tag is not None and prefix is not None:
            raise OptionError("options tag and tagPrefix exclude each other")
        starting = _boundary(options, "starting", LATEST if streaming else EARLIEST)
        ending = _boundary(options, "ending", LATEST)
        times = (starting.default, ending.default)
        if isinstance(times[0], datetime) and isinstance(times[1], datetime) and times[0] > times[1]:
            raise OptionError(f"option {ending.option} is before {starting.option}")
        return cls(
            address=server(options),
            topics=topics,
            pattern=pattern,
            starting=starting,
            ending=ending,
            columns=ColumnOptions.parse(options),
            fail_on_data_loss=flag(options, "failOnDataLoss", True),
            min_partitions=number(options, "minPartitions", 0),
            max_records_per_partition=number(options, "maxRecordsPerPartition", MAX_RECORDS_PER_PARTITION),
            nodes=names(options, "nodes"),
            tag=tag,
            tag_prefix=prefix,
            push_filters=flag(options, "pushFilters", False),
        )

    def parts(self, *, tags: bool = True, meta: bool = True, data: bool = True) -> Parts:
        """The request options for the requested columns."""
        return Parts(self.nodes, self.tag, self.tag_prefix, tags, meta, data)


def _boundary(options: Mapping[str, str], side: str, default: int) -> Boundary:
    """One end of the read, which may be given in three ways."""
    ways = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    given = [name for name in ways if text(options, name) is not None]
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(given)} exclude each other")
    if not given:
        return Boundary(ways[0], default)
    try:
        return boundary(given[0], text(options, given[0]) or "")
    except ValueError as error:
        raise OptionError(f"option {given[0]}: {error}") from None
