"""The handler of every API."""

from collections.abc import Mapping

from topics_kafka.handlers import Door, Handler, configs, metadata, records_admin, sasl, topics, versions
from topics_kafka.protocol import ApiKey

_MODULES = (versions, sasl, metadata, topics, configs, records_admin)


def all_handlers(door: Door) -> Mapping[ApiKey, Handler]:
    """The handlers of every module, made for `door`."""
    table: dict[ApiKey, Handler] = {}
    for module in _MODULES:
        table |= module.handlers(door)
    return table
