"""The place of each name among the shards of a server: a function that any process can compute.

A *shard* is one engine with a store of its own. Their number is fixed when the data directory, or the cluster, is made.
A topic's *home* is the shard of its partition 0; it decides on its config and its life. Its other partitions follow in
the next shards, one by one.

A *placement*, fixed when a topic is made, says otherwise: it is the name of a group, whose topics lie in one shard, or
it is of a zone, with the shards that preferred that zone then. The partitions follow each other in these.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final, NamedTuple
from zlib import crc32

from msgspec import Meta, Struct

SQL_SHARD = 0
"""The shard of tables, of the topics that SQL creates, and of users."""
SQL_PLACEMENT = "sql"
"""The placement group of tables, unless their namespace has another."""


@lru_cache(maxsize=65536)
def home_of(name: str, count: int) -> int:
    """The shard of a name among `count`: of a topic's partition 0, of a consumer group, of a router."""
    return crc32(name.encode()) % count


def shard_of(name: str, partition: int, count: int, placement: str = "") -> int:
    """The shard of a topic's partition among `count`."""
    if not placement:
        return (home_of(name, count) + partition) % count
    zoned = _zoned(placement)
    if zoned is None:
        return shard_of_placement(placement, count)
    shards = zoned.shards
    return shards[(home_of(name, len(shards)) + partition) % len(shards)]


_IN_ZONE: Final = re.compile(r"zone=([^;=]+);(\d{1,2}(?:,\d{1,2})*)", re.ASCII)  # no name of a group has a "="


class _Zoned(NamedTuple):
    zone: str
    shards: tuple[int, ...]


def placement_in_zone(zone: str, shards: Iterable[int]) -> str:
    """The placement of a topic over these shards, which prefer the zone; at least one."""
    return f"zone={zone};{','.join(map(str, sorted(shards)))}"


def zone_of(placement: str) -> str:
    """The zone of a placement; empty for a group, or none."""
    zoned = _zoned(placement)
    return "" if zoned is None else zoned.zone


def group_of(placement: str) -> str:
    """The group of a placement; empty for a zone, or none."""
    return placement if _zoned(placement) is None else ""


def shards_of(name: str, count: int, placement: str = "") -> list[int]:
    """The shards of partitions 0, 1 and so on of a topic; further ones are in the same shards again, in that order."""
    zoned = _zoned(placement) if placement else None
    period = count if not placement else 1 if zoned is None else len(zoned.shards)
    return [shard_of(name, partition, count, placement) for partition in range(period)]


@lru_cache(maxsize=1024)
def _zoned(placement: str) -> _Zoned | None:
    """The parts of a placement of a zone; None for a group."""
    found = _IN_ZONE.fullmatch(placement)
    return None if found is None else _Zoned(found[1], tuple(map(int, found[2].split(","))))


def shard_of_placement(placement: str, count: int) -> int:
    """The shard of a placement group among `count`: that of tables is known to all."""
    return SQL_SHARD if placement == SQL_PLACEMENT else home_of(placement, count)


class Spread(Struct, frozen=True, array_like=True):
    """The partitions of a topic over several shards, as one of them knows it. New fields go to the end, with a default.

    The logs of this shard are those of every `step`th partition from `first` on; with 0 for `step` of none.
    """

    partition_count: Annotated[int, Meta(ge=1, lt=1 << 32)]
    first: Annotated[int, Meta(ge=0, lt=1 << 32)]
    step: Annotated[int, Meta(ge=0, lt=1 << 32)]
    epoch: int = 0
    """The topic's number at its home; 0 where this shard is the home."""
    revision: int = 0
    """The number of changes of config and partitions since there are parts, which home counts."""
    shards: tuple[int, ...] = ()
    """At home: the other shards that have, or may have, a part."""

    @property
    def numbers(self) -> range:
        """The partitions whose logs are in this shard."""
        return range(self.first, self.partition_count, self.step) if self.step else range(0)


class Place(Struct, frozen=True):
    """The place of one engine: shard number `shard` of `count`. A server without shards is the only one of one."""

    shard: int = 0
    count: int = 1

    def is_home(self, name: str, placement: str = "") -> bool:
        """Return whether a topic's home is here, the shard of its partition 0."""
        return self.count == 1 or shard_of(name, 0, self.count, placement) == self.shard

    def spread(self, name: str, partition_count: int, placement: str = "") -> Spread:
        """The partitions of a topic as this shard sees them."""
        if not placement:
            return Spread(partition_count, (self.shard - home_of(name, self.count)) % self.count, self.count)
        shards = shards_of(name, self.count, placement)
        if self.shard not in shards:
            return Spread(partition_count, 0, 0)
        return Spread(partition_count, shards.index(self.shard), len(shards))


SINGLE = Place()
"""The place of the only engine of a server."""
