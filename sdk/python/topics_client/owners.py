"""Owners of topics, groups and tables in a cluster, as answers name them.

An answer says where its call would not have been forwarded. That is remembered for calls on the same topic, partition
and group, and no rule of placement is known here: a hint that is out of date costs one forwarded call, whose answer
corrects it.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from topics_proto.v1 import sql_service_pb2

OWNER: Final = "x-topics-owner"
"""The metadata that names an owner, as host:port: initial metadata that of everything, trailing metadata that of calls
on the same topic, partition and group."""

Key = tuple[str, int, str]
"""The topic, partition and group of a call, as far as it names them."""

EVERYTHING: Final[Key] = ("", 0, "")
_SQL: Final[Key] = ("", -1, "")  # all tables are in one place

MAX_HINTS: Final = 10_000
MAX_AVOIDED: Final = 64
AVOID_SECONDS: Final = 30.0


def key_of(request: Message | None) -> Key:
    """The key of a call; EVERYTHING if it may concern several nodes."""
    if isinstance(request, sql_service_pb2.ExecuteRequest):
        return _SQL
    if request is None:
        return EVERYTHING
    topic, partition, group = _names_in(request.DESCRIPTOR)
    return (
        getattr(request, topic) if topic else "",
        getattr(request, partition) if partition else 0,
        getattr(request, group) if group else "",
    )


@cache
def _names_in(kind: Descriptor) -> tuple[str, str, str]:
    """The fields that name the topic, the partition and the group; empty for those that there are not."""
    has = kind.fields_by_name
    if "topic" not in has and "group" not in has:
        return "", "", ""
    group = "group" if "group" in has else "group_id" if "group_id" in has else ""
    return "topic" if "topic" in has else "", "partition" if "partition" in has else "", group


def owner_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The owner that metadata names; empty if there is none."""
    for name, value in metadata or ():
        if name == OWNER:
            return str(value)
    return ""


class Hints:
    """The owner of each key, for the keys used last, and the nodes that are not to be used for a while.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[Key, str] = OrderedDict()
        self._avoided: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, key: Key) -> str:
        """The owner to use for a key; empty if it is unknown or to be avoided."""
        owners = self._owners
        target = owners.get(key)
        if target is None:
            target = owners.get(EVERYTHING, "")
        else:
            owners.move_to_end(key)
        return "" if self._avoided and self.is_avoided(target) else target

    def learn(self, key: Key, target: str) -> None:
        """Remember an owner."""
        self._owners[key] = target
        self._owners.move_to_end(key)
        if len(self._owners) > MAX_HINTS:
            self._owners.popitem(last=False)

    def forget(self, key: Key, target: str) -> None:
        """Forget the owner of a key, and of everything if it is this one."""
        self._owners.pop(key, None)
        if self._owners.get(EVERYTHING) == target:
            del self._owners[EVERYTHING]

    def is_avoided(self, target: str) -> bool:
        """Return whether a node is not to be used now."""
        until = self._avoided.get(target)
        if until is None or time.monotonic() < until:
            return until is not None
        del self._avoided[target]
        return False

    def avoid(self, target: str) -> None:
        """Leave a node alone for half a minute."""
        self._avoided.pop(target, None)
        self._avoided[target] = time.monotonic() + AVOID_SECONDS
        if len(self._avoided) > MAX_AVOIDED:
            del self._avoided[next(iter(self._avoided))]
