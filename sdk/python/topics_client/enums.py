"""Proto enums as the short strings of `/v0`: `TOPIC_TYPE_QUEUE` is `queue`."""

from functools import cache
from typing import Final

from topics_client.errors import InvalidRequestError
from topics_proto.v1.job_pb2 import JobState
from topics_proto.v1.record_pb2 import GapReason
from topics_proto.v1.router_pb2 import RouterGuarantee
from topics_proto.v1.topic_pb2 import TopicConfig

CONFIG_ENUMS: Final = {
    field.name: field.enum_type for field in TopicConfig.DESCRIPTOR.fields if field.enum_type is not None
}
_ENUMS: Final = {
    **CONFIG_ENUMS,
    "guarantee": RouterGuarantee.DESCRIPTOR,
    "state": JobState.DESCRIPTOR,
    "reason": GapReason.DESCRIPTOR,
}


@cache
def _texts(field: str) -> dict[str, int]:
    """Text to number, in the order of the numbers; the unspecified one is the first."""
    values = _ENUMS[field].values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in values}


@cache
def text_of(field: str, number: int) -> str:
    """The string for a value of the enum `field` (`type`, `durability`, …); `unspecified` if it is unknown."""
    return next((text for text, value in _texts(field).items() if value == number), "unspecified")


def number_of(field: str, text: str) -> int:
    """The number of an enum value on the wire. Raises InvalidRequestError for an unknown string."""
    number = _texts(field).get(text, 0)
    if not number:
        known = ", ".join(list(_texts(field))[1:])
        raise InvalidRequestError("invalid_request", f"{field} must be one of {known}, not {text!r}")
    return number
