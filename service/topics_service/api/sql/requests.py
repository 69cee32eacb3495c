"""Requests and replies of the SQL calls."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.types import Type, Value

_MANY_VALUES: Final = 4096


class SqlRequest(Struct, kw_only=True):
    """Statements to run in order (D13). With `param_rows` there is one statement, run for each row in one commit.

    Parameters are values of JSON or protobuf; their types come from the statement. `size` is that of the request in
    bytes, which load is measured by.
    """

    sql: str
    params: Sequence[Any] | None = None
    param_rows: Sequence[Sequence[Any]] | None = None
    namespace: str = "default"
    size: int = 0


class ResultColumn(Struct, frozen=True):
    """A column of a result."""

    name: str
    type: Type | None


class SqlResult(Struct, kw_only=True):
    """The result of one statement. Values are those of `engine.tables.types`; a protocol renders them."""

    columns: tuple[ResultColumn, ...] = ()
    rows: Sequence[Sequence[Value]] = ()
    row_count: int = 0
    message: str | None = None
    gaps: Sequence[TopicGap] = ()


class SqlReply(Struct, kw_only=True):
    """The results of all statements; with `error`, of those before the one that failed."""

    results: list[SqlResult]
    error: TopicsError | None = None
    took_ms: float = 0.0

    @property
    def is_large(self) -> bool:
        """True if it should be rendered on a thread, which takes some milliseconds then."""
        return sum(len(result.rows) * len(result.columns) for result in self.results) > _MANY_VALUES


class ConsumeRequest(Struct, kw_only=True):
    """Read messages of a partition for a group; `group` None: without one, as CONSUME may. `start` is as in D5.

    `timeout_seconds` None: the default of the settings; 0 does not wait. The topic may be given by its alias.

    With `visibility_seconds` the messages are claimed: no other claim has them for so long.
    """

    topic: str
    group: str | None
    start: Literal["earliest", "latest"] | int = "latest"
    limit: int = 100
    partition: int = 0
    timeout_seconds: float | None = None
    visibility_seconds: int | None = None


class Message(Struct, frozen=True, kw_only=True):
    """A message, members in the order of the envelope. What is None is not known, or for `payload` a tombstone."""

    topic_id: str
    partition_id: int
    offset: int
    message_id: str | None
    source_table: str | None
    op: Literal["Insert", "Update", "Delete"] | None
    ts: int
    payload_mode: Literal["Key", "Full", "Diff"]
    payload: bytes | None
    key: str | None = None


class Gap(Struct, frozen=True, kw_only=True):
    """Offsets, both included, that retention removed before the group came; `reason` is a `GapReason`."""

    from_offset: int
    to_offset: int
    reason: str


class GrantedClaim(Struct, frozen=True, kw_only=True):
    """A range of offsets, both included, that a worker holds until it acknowledges them or the time is over."""

    claim_id: str
    from_offset: int
    to_offset: int
    visibility_seconds: int


class ConsumeReply(Struct, kw_only=True):
    """Messages in order; `next_offset` is the offset to continue from; `has_more` if a message follows already.

    `claim` is of the request that asked for one, unless there was nothing to claim.
    """

    messages: list[Message]
    next_offset: int
    has_more: bool
    gap: Gap | None = None
    claim: GrantedClaim | None = None


class AckRequest(Struct, kw_only=True):
    """Acknowledge everything up to an offset; with `claim_id` the range of a claim up to there (None: to its end)."""

    topic: str
    group: str
    upto_offset: int | None
    partition: int = 0
    claim_id: str | None = None
