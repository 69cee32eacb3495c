"""The place of each name among the shards of a server: a function that any process can compute.

A *shard* is one engine with a store of its own. Their number is fixed when the data directory, or the cluster, is made.
A topic's *home* is the shard of its partition 0; it decides on its config and its life. Its other partitions follow in
the next shards, one by one.
"""

from functools import lru_cache
from typing import Annotated
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


def shard_of(name: str, partition: int, count: int) -> int:
    """The shard of a topic's partition among `count`."""
    return (home_of(name, count) + partition) % count


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
        """Return whether a topic's home is here: the shard of its placement group, or else that of its name."""
        if self.count == 1:
            return True
        home = shard_of_placement(placement, self.count) if placement else home_of(name, self.count)
        return home == self.shard

    def spread(self, name: str, partition_count: int, placement: str = "") -> Spread:
        """The partitions of a topic as this shard sees them: those of a placement group are all in one shard."""
        if placement:
            return Spread(partition_count, 0, 1 if self.is_home(name, placement) else 0)
        return Spread(partition_count, (self.shard - home_of(name, self.count)) % self.count, self.count)


SINGLE = Place()
"""The place of the only engine of a server."""
