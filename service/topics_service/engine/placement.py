"""The place of each name among the shards of a server: a function that any process can compute.

A *shard* is one engine with a store of its own. Their number is fixed when the data directory, or the cluster, is made.
A topic's *home* is the shard of its partition 0; it decides on its config and its life. Its other partitions follow in
the next shards, one by one.
"""

from functools import lru_cache
from zlib import crc32

from msgspec import Struct

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


class Place(Struct, frozen=True):
    """The place of one engine: shard number `shard` of `count`. A server without shards is the only one of one."""

    shard: int = 0
    count: int = 1

    def is_home(self, name: str) -> bool:
        """Return whether the name's home is here."""
        return self.count == 1 or home_of(name, self.count) == self.shard

    def has(self, name: str, partition: int) -> bool:
        """Return whether the partition of a topic that was not placed by its creator is here."""
        return self.count == 1 or shard_of(name, partition, self.count) == self.shard


SINGLE = Place()
"""The place of the only engine of a server."""
