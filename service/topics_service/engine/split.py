"""The rows of each shard of a data directory that had none: which of a whole copy stay, and which are others.

Every shard begins as a copy of the whole database. The numbers of topics and groups and the ids of logs stay the same:
each log is in one shard afterwards.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.offsets.positions import is_group_row, read_position_key
from topics_service.engine.placement import SQL_PLACEMENT, SQL_SHARD, Place, home_of, shard_of
from topics_service.engine.redirects import ROWS as REDIRECT_ROWS
from topics_service.engine.redirects import Redirect
from topics_service.engine.router.places import RouterPlace, place_key
from topics_service.engine.router.router import RouterRow
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.router.stretch import SourceIdentity
from topics_service.engine.tables.topic_catalog import ALIAS_ROWS, ROUTE_ROWS, decode_route
from topics_service.engine.topic import TopicRow, decode_row
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader, Store

_OF_LOGS: Final = (
    Family.LOGS,
    Family.CEILINGS,
    Family.BLOCKS,
    Family.TAGS,
    Family.DELETES,
    Family.GAPS,
    Family.IDEMPOTENCY,
    Family.ROUTER_COPIES,
    Family.LEASES,
    Family.JOBS,
    Family.PRODUCERS,
)
"""Families whose keys begin with the id of a log."""
_OF_TABLES: Final = (Family.ROWS, Family.INDEXES, Family.TABLES)
_BATCH_BYTES: Final = 1 << 20
_FIRST: Final = b""
_LAST: Final = b"\xff" * 32  # above all keys


class SplitTopic(Struct, frozen=True, kw_only=True):
    """A topic with its place: `home`, and the shard of each partition."""

    number: int
    row: TopicRow
    home: int
    shards: tuple[int, ...]


class Split:
    """The shard of each row of a database, for `count` shards. Reads the catalog; raises ValueError and
    MsgspecError for a row that can't be read."""

    def __init__(self, source: Reader, count: int, now_ms: int) -> None:
        self.count = count
        self._source = source
        self._now_ms = now_ms
        self._topics = {topic.number: topic for topic in self._read_topics()}
        self._by_name = {topic.row.name: topic for topic in self._topics.values()}
        self._groups = {
            keys.read_u64(key): decode_group(value).name for key, value in self._all(Family.GROUPS) if is_group_row(key)
        }
        self._known: dict[int, set[int]] = {}
        """The shards of groups with positions in a topic, by its number."""
        for key, _ in self._all(Family.POSITIONS):
            group, topic, _ = read_position_key(key)
            self._known.setdefault(topic, set()).add(home_of(self._groups[group], count))

    def topics(self, shard: int) -> int:
        """The number of topics whose home is the shard."""
        return sum(topic.home == shard for topic in self._topics.values())

    def apply(self, shard: int, store: Store) -> None:
        """Make the copy of the whole that is in `store` that of one shard. May be repeated after a crash."""
        self._store, self._shard, self._batch = store, shard, store.batch()
        self._place_topics()
        self._keep_logs()
        self._place_routers()
        self._keep_groups()
        if shard != SQL_SHARD:
            for family in _OF_TABLES:
                self._batch.delete_range(family, _FIRST, _LAST)
        self._write(at_least=0)
        store.sync()

    # -------------------------------------------------------------- reading

    def _all(self, family: Family) -> Iterator[tuple[bytes, bytes]]:
        return self._source.scan(family, _FIRST, _LAST)

    def _read_topics(self) -> Iterator[SplitTopic]:
        with_tables = {
            keys.read_u64(key, len(ALIAS_ROWS))
            for key, _ in self._source.scan(Family.TABLES, *keys.prefix_range(ALIAS_ROWS))
        } | {decode_route(value).topic for _, value in self._source.scan(Family.TABLES, *keys.prefix_range(ROUTE_ROWS))}
        for key, value in self._all(Family.TOPICS):
            number, row = keys.read_u64(key), decode_row(value)
            partitions = len(row.log_ids)
            if number in with_tables:
                row = replace(row, placement=SQL_PLACEMENT)
                yield SplitTopic(number=number, row=row, home=SQL_SHARD, shards=(SQL_SHARD,) * partitions)
            else:
                shards = tuple(
                    shard_of(row.name, partition, self.count, row.placement) for partition in range(partitions)
                )
                yield SplitTopic(number=number, row=row, home=shards[0], shards=shards)

    # -------------------------------------------------------------- writing

    def _write(self, at_least: int = _BATCH_BYTES) -> None:
        if self._batch.nbytes > at_least:
            self._store.write(self._batch)
            self._batch = self._store.batch()

    def _place_topics(self) -> None:
        for topic in self._topics.values():
            key, row = keys.u64(topic.number), self._row(topic)
            if row is None:
                self._batch.delete(Family.TOPICS, key)
            else:
                self._batch.put(Family.TOPICS, key, row.encode())
            name = topic.row.name
            if topic.row.placement and self._shard == home_of(name, self.count) != topic.home:
                redirect = Redirect(topic.home, topic.row.placement, 1)
                self._batch.put(Family.META, REDIRECT_ROWS + name.encode(), msgspec.msgpack.encode(redirect))
            self._write()

    def _row(self, topic: SplitTopic) -> TopicRow | None:
        """The row of a topic in this shard: of the whole, of a part, or none."""
        others = ({*topic.shards} | self._known.get(topic.number, set())) - {topic.home}
        if self._shard != topic.home and self._shard not in others:
            return None
        if not others:
            return topic.row
        row, shard = topic.row, self._shard
        spread = Place(shard, self.count).spread(row.name, len(row.log_ids), row.placement)
        log_ids = [row.log_ids[partition] for partition in spread.numbers]
        if shard == topic.home:
            return replace(row, log_ids=log_ids, spread=replace(spread, shards=tuple(sorted(others))))
        return replace(row, log_ids=log_ids, spread=replace(spread, epoch=topic.number))

    def _keep_logs(self) -> None:
        """Remove the rows of the logs of other shards, by ranges between those of this one."""
        own = sorted(
            log_id
            for topic in self._topics.values()
            for log_id, shard in zip(topic.row.log_ids, topic.shards, strict=True)
            if shard == self._shard
        )
        ends = [-1, *own, None]
        for family in _OF_LOGS:
            for before, after in pairwise(ends):
                start = _FIRST if before == -1 else keys.u64((before or 0) + 1)
                stop = _LAST if after is None else keys.u64(after)
                if start < stop:
                    self._batch.delete_range(family, start, stop)
            self._write()
        mine = set(own)
        for key, _ in self._all(Family.IDEMPOTENCY_EXPIRY):
            if keys.read_u64(key, 8) not in mine:
                self._batch.delete(Family.IDEMPOTENCY_EXPIRY, key)
                self._write()

    def _place_routers(self) -> None:
        """Leave the routers to topics of this shard, and note where those are whose names are of it."""
        for key, value in self._all(Family.ROUTERS):
            if key[8:] != b"\x00":
                continue
            number, row = keys.read_u64(key), decode_router(value)
            dest, source = self._by_name[row.config.dest], self._by_name[row.config.source]
            if dest.home != self._shard:
                self._batch.delete_range(Family.ROUTERS, *keys.log_range(number))
            elif source.home != self._shard:
                self._batch.put(Family.ROUTERS, key, self._with_foreign_source(row, source).encode())
            if home_of(row.name, self.count) == self._shard:
                place = RouterPlace(dest.home, self._now_ms)
                self._batch.put(Family.ROUTERS, place_key(row.name), msgspec.msgpack.encode(place))
            self._write()

    def _with_foreign_source(self, row: RouterRow, source: SplitTopic) -> RouterRow:
        return replace(row, foreign=SourceIdentity(source.row.topic_id, source.number))

    def _keep_groups(self) -> None:
        for number, name in self._groups.items():
            if home_of(name, self.count) != self._shard:
                self._batch.delete_range(Family.GROUPS, *keys.log_range(number))
                self._batch.delete_range(Family.POSITIONS, *keys.log_range(number))
                self._write()
