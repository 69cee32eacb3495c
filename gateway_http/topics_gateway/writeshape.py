"""The shape of a write body (SPEC API 2), as msgspec decodes it.

What a record holds stays text (`Raw`); UNSET marks an absent member where null is allowed too. An absent `Raw` is
empty, which no JSON value is: msgspec takes no unions with `Raw`.
"""

from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

Text = str | UnsetType | None

RECORD_MEMBERS: Final = frozenset({"data", "tag", "node", "meta"})
BODY_MEMBERS: Final = frozenset({"records", "node", "idempotency_key", "create", "config", "disable_backpressure"})


class Record(Struct, gc=False):
    """One record as written."""

    data: Raw
    tag: Text = UNSET
    node: Text = UNSET
    meta: Raw = Raw()


class Body(Struct):
    """A whole write body."""

    records: list[Record]
    node: Text = UNSET
    idempotency_key: Text = UNSET
    create: bool | UnsetType | None = UNSET
    config: Raw = Raw()
    disable_backpressure: bool | UnsetType = UNSET


class Outline(Struct):
    """A write body with its records left alone."""

    records: Raw
