"""A world of shards with topics that retain records for groups, and short ways to call it."""

from typing import Any

from shards.world import ShardsWorld

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.offsets.positions import CommitItem
from topics_service.engine.placement import home_of, shard_of
from topics_service.storage.store import Family

SHARDS = 3


def away_from(topic: str, partition: int = 0, count: int = 1) -> tuple[str, ...]:
    """Names of groups whose shards are not that of the partition."""
    there = shard_of(topic, partition, SHARDS)
    return tuple(name for name in map("g{}".format, range(99)) if home_of(name, SHARDS) != there)[:count]


GROUP, OTHER = away_from("t", count=2)
HERE = shard_of("t", 0, SHARDS)  # the shard of the records


class Retention:
    """A world of shards, and short ways to call it."""

    def __init__(self, world: ShardsWorld) -> None:
        self.world = world

    async def put(self, *groups: str, name: str = "t", count: int | None = None, **config: Any) -> None:
        placement = {"placement": config.pop("placement")} if "placement" in config else {}
        given = ConfigInput(retain_until_acked_by=groups or (GROUP,), **({"cap_records": 2} | config))
        await self.world.api.put_topic(name, given, principal=UNRESTRICTED, partition_count=count, **placement)

    async def append(self, count: int = 1, name: str = "t", partition: int = 0) -> int:
        request = AppendRequest(topic=name, partition=partition, batch=Batch([b"x"] * count))
        return (await self.world.api.append(request, principal=UNRESTRICTED)).head_seq

    async def is_full(self, name: str = "t", partition: int = 0) -> bool:
        """Write, and return whether that is refused for room."""
        try:
            await self.append(1, name, partition)
        except TopicsError as error:
            if error.reason.code != "topic_full":
                raise
            return True
        return False

    async def commit(self, from_seq: int, group: str = GROUP, name: str = "t", partition: int = 0) -> None:
        items = [CommitItem(name, partition, from_seq)]
        await self.world.api.groups.commit(group, items, principal=UNRESTRICTED)

    async def told(self) -> None:
        """Return once all shards know what groups have let go of."""
        await until(lambda: not self.world.untold)

    def hold(self, name: str = "t", partition: int = 0) -> int | None:
        engine = self.world.engines[self.world.located.shard(name, partition)]
        topic = engine.catalog.find(name)
        log = None if topic is None else topic.find_log(partition)
        return 0 if log is None else log.hold  # one without a record is made by the first call on it

    def mirror_rows(self, shard: int) -> int:
        """The rows of mirrors, and their positions, in the store of a shard."""
        engine = self.world.engines[shard]
        numbers = {group.number for group in engine.groups.index.mirrors.values()}
        rows = [key for key, _ in engine.writer.store.scan(Family.GROUPS, b"", b"\xff" * 9) if key[8:] == b"\x02"]
        assert {int.from_bytes(key[:8], "big") for key in rows} == numbers
        return len(rows)
