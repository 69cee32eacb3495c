"""The handler of every API."""

from collections.abc import Mapping

from topics_kafka.handlers import (
    Handler,
    ServerContext,
    configs,
    fetch,
    groups,
    groups_admin,
    list_offsets,
    metadata,
    offsets,
    produce,
    producer_ids,
    records_admin,
    sasl,
    topics,
    versions,
)

_MODULES = (
    versions,
    sasl,
    metadata,
    produce,
    fetch,
    list_offsets,
    producer_ids,
    groups,
    groups_admin,
    offsets,
    topics,
    configs,
    records_admin,
)


def all_handlers(server: ServerContext) -> Mapping[int, Handler]:
    """The handlers of every module, made for `server`."""
    table: dict[int, Handler] = {}
    for module in _MODULES:
        table |= module.handlers(server)
    return table
