"""The shape of a write body (docs/contract.md, 4), as msgspec decodes it.

What a record holds stays text (`Raw`); UNSET marks an absent member where null is allowed too. An absent `Raw` is
empty, which no JSON value is: msgspec takes no unions with `Raw`.
"""

from typing import ClassVar, Final

from msgspec import UNSET, Raw, Struct, UnsetType

Text = str | UnsetType | None

RECORD_MEMBERS: Final = frozenset({"data", "tag", "node", "meta"})
BODY_MEMBERS: Final = frozenset(
    {
        "records", "node", "idempotency_key", "create", "config", "disable_backpressure", "delay_ms", "priority",
        "partition",
    }
)  # fmt: skip


class Record(Struct, gc=False):
    """One record as written."""

    data: Raw
    tag: Text = UNSET
    node: Text = UNSET
    meta: Raw = Raw()


class Body(Struct):
    """A whole write body. `members` are the names of its members."""

    members: ClassVar[frozenset[str]] = BODY_MEMBERS

    records: list[Record]
    node: Text = UNSET
    idempotency_key: Text = UNSET
    create: bool | UnsetType | None = UNSET
    config: Raw = Raw()
    disable_backpressure: bool | UnsetType = UNSET
    delay_ms: Raw = Raw()
    priority: Raw = Raw()
    partition: Raw = Raw()

    @property
    def envelope_size(self) -> int:
        """The compact size of the members that are not of a write but around it."""
        return 0


class Publish(Body, kw_only=True, tag_field="op", tag="publish"):
    """A write as a command on a WebSocket."""

    members: ClassVar[frozenset[str]] = BODY_MEMBERS | {"op", "request_id", "topic", "return_seqs"}

    topic: str
    request_id: Raw = Raw()
    return_seqs: bool | UnsetType = UNSET

    @property
    def envelope_size(self) -> int:
        """See Body."""
        size = len(b'"op":"publish",') + text_size(len(b'"topic":,'), self.topic)
        if self.request_id:
            size += len(b'"request_id":,') + len(self.request_id)
        if self.return_seqs is not UNSET:
            size += len(b'"return_seqs":,') + (4 if self.return_seqs else 5)
        return size


class Outline(Struct):
    """A write body with its records left alone."""

    records: Raw


def text_size(frame: int, value: Text) -> int:
    """The compact size of a member whose name and punctuation take `frame` bytes; an absent one has none."""
    if isinstance(value, str):
        return frame + 2 + (len(value) if value.isascii() else len(value.encode()))
    return 0 if value is UNSET else frame + 4
