"""The catalog as the rows of a store have it: what a start makes of them, and a standby keeps up to date."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from sortedcontainers import SortedDict

from topics_service.engine.model import TopicConfig
from topics_service.engine.stored_logs import DAMAGE, StoredLogs, damaged
from topics_service.engine.topic import Topic, TopicRow
from topics_service.engine.topic_counts import TopicCounts
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader, StoreOpenError

_OF_LOGS: Final = (Family.LOGS, Family.CEILINGS, Family.DELETES, Family.GAPS)
FAMILIES: Final = frozenset((Family.TOPICS, *_OF_LOGS))
"""The families that a StoredCatalog is made of."""

_SLICE: Final = 64  # topics: a third of a millisecond
_ROWS_A_SLICE: Final = 256  # of logs, and of changes
_NAMES_A_SLICE: Final = 128
_ALMOST: Final = 0.999
_KNOWN_CONFIGS: Final = 4096
_MISSING: Final = KeyError("there is no state row")


class Change(NamedTuple):
    """A row that has a value now, or none; with a `stop`, all rows from the key up to there have none."""

    family: Family
    key: bytes
    value: bytes | None = None
    stop: bytes | None = None


class RowWithRawConfig(TopicRow, kw_only=True, array_like=True):
    """The catalog row of a topic with its config undecoded: most topics have the same few configs."""

    config: msgspec.Raw  # type: ignore[assignment]


decode_catalog_row = msgspec.msgpack.Decoder(RowWithRawConfig).decode
decode_config = msgspec.msgpack.Decoder(TopicConfig).decode


class StoredCatalog:
    """All topics of a store, dormant, with their counts and totals.

    `advance` reads the store in slices. `changed` gets the rows that are written to the store meanwhile or later, in
    their order, on any thread; the next calls of `advance` take them over.
    """

    def __init__(self, store: Reader) -> None:
        self.topics: SortedDict[str, Topic] = SortedDict()
        self.by_number: dict[int, Topic] = {}
        self.by_id: dict[str, Topic] = {}
        self.counts = TopicCounts()
        self.partitions = self.parts = self.counted = 0
        self.logs = StoredLogs()
        self._open_log = self.logs.open  # one object for all topics
        self.rows = 0
        """The number of rows that were taken over, from the store or as changes."""
        self._store = store
        self._unsorted: dict[str, Topic] = {}
        self._changes = deque[Iterable[Change]]()
        self._work: Iterator[None] | None = self._read()
        self._under_way: Iterator[None] | None = None
        self._gone: set[int] = set()  # logs of topics that the changes under way have removed
        self._configs: dict[bytes, TopicConfig] = {}

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def done(self) -> float:
        """The fraction of the store's topics that was read, by partitions; below 1."""
        return min(_ALMOST, self.partitions / max(1, len(self.logs)))

    def changed(self, changes: Iterable[Change]) -> None:
        """Note what one batch has changed in the store, of `FAMILIES` alone."""
        self._changes.append(changes)

    def advance(self) -> bool:
        """Do about a third of a millisecond of work. Return whether there is more."""
        if self._under_way is None and self._changes:
            self._under_way = self._take_over(self._changes.popleft())
        if self._under_way is not None:
            if next(self._under_way, self) is self:
                self._under_way = None
        elif self._work is not None:
            if next(self._work, self) is self:
                self._work = None
        elif self._unsorted:
            some = list(islice(self._unsorted, _NAMES_A_SLICE))
            for name in some:
                self.topics[name] = self._unsorted.pop(name)
        return self.is_behind or bool(self._work or self._unsorted)

    @property
    def is_complete(self) -> bool:
        """Return whether all that the store had at first was read: what changes since then is taken over at once."""
        return self._work is None and not self._unsorted

    @property
    def is_behind(self) -> bool:
        """Return whether changes wait for `advance`."""
        return self._under_way is not None or bool(self._changes)

    def complete(self) -> Iterator[None]:
        """Do all work that is left, in slices, and check that no row is damaged. No change may follow.

        Raises StoreOpenError, naming the row.
        """
        while self._work is not None or self.is_behind:
            self.advance()
            yield
        self.topics.update(self._unsorted)  # at once, which takes a sixth of the time that one after another does
        self._unsorted = {}
        self._configs.clear()
        for (family, key), error in self.logs.damaged.items():
            self._refuse(family, key, error)

    # --------------------------------------------------------------- the store

    def _read(self) -> Iterator[None]:
        for family in _OF_LOGS:
            for rows in self._slices(family, _ROWS_A_SLICE):
                self.logs.put(family, rows)
                yield
        for rows in self._slices(Family.TOPICS, _SLICE):
            found = [self._put(key, value) for key, value in rows]
            self.counts.add_all([topic.config for topic in found if topic is not None and not topic.is_part])
            yield

    def _slices(self, family: Family, count: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the rows of a family, up to `count` at a time, each slice as it is when it is asked for."""
        start = b""
        while rows := list(islice(self._store.scan(family, start, b"\xff" * 16), count)):
            self.rows += len(rows)
            start = rows[-1][0] + b"\x00"
            yield rows

    # ----------------------------------------------------------------- changes

    def _take_over(self, changes: Iterable[Change]) -> Iterator[None]:
        self._gone.clear()
        for number, change in enumerate(changes, 1):
            self._apply(*change)
            self.rows += 1
            if not number % _ROWS_A_SLICE:
                yield

    def _apply(self, family: Family, key: bytes, value: bytes | None, stop: bytes | None) -> None:
        if family is Family.TOPICS:
            if value is None:
                self._remove(key)
            elif (topic := self._put(key, value)) is not None and not topic.is_part:
                self.counts.add(topic.config)
        elif stop is not None:
            self.logs.delete_range(family, key, stop)
        elif value is not None:
            self.logs.put(family, ((key, value),))
        else:
            self.logs.delete(family, key)
            if family is Family.LOGS and keys.read_u64(key) not in self._gone:
                self.logs.damaged[family, key] = _MISSING

    def _put(self, key: bytes, value: bytes) -> Topic | None:
        """Take over a topic, which is counted next, in place of the one with the same number."""
        number = keys.read_u64(key)
        if number in self.by_number:
            self._forget(number)
        if self.logs.damaged:
            self.logs.damaged.pop((Family.TOPICS, key), None)
        try:
            row = decode_catalog_row(value)
            if row.spread is None:
                if not row.log_ids:
                    raise ValueError("it has no partition")
            elif len(row.numbers) != len(row.log_ids):
                raise ValueError(f"it has {len(row.log_ids)} logs for {len(row.numbers)} partitions")
            raw = bytes(row.config)
            config = self._configs.get(raw) or self._config(raw)
        except DAMAGE as error:
            self.logs.damaged[Family.TOPICS, key] = error
            return None
        name, logs = row.name, self.logs
        for log_id in row.log_ids:
            if log_id not in logs:
                logs.damaged[Family.LOGS, keys.u64(log_id)] = _MISSING
        topic = Topic.dormant(number, name, config, value, tuple(row.log_ids), self._open_log, row.spread)
        self.by_number[number] = self.by_id[row.topic_id] = topic
        if self._work is None:
            self.topics[name] = topic
        else:
            self._unsorted[name] = topic
        self.partitions += len(row.log_ids)
        if topic.is_part:
            self.parts += 1
        else:
            self.counted += topic.partition_count
        return topic

    def _config(self, raw: bytes) -> TopicConfig:
        if len(self._configs) == _KNOWN_CONFIGS:
            self._configs.clear()
        config = self._configs[raw] = decode_config(raw)
        return config

    def _remove(self, key: bytes) -> None:
        self.logs.damaged.pop((Family.TOPICS, key), None)
        topic = self._forget(keys.read_u64(key))
        if topic is not None:
            self._gone.update(topic.stored_log_ids)
            for log_id in topic.stored_log_ids:
                self.logs.damaged.pop((Family.LOGS, keys.u64(log_id)), None)

    def _forget(self, number: int) -> Topic | None:
        topic = self.by_number.pop(number, None)
        if topic is not None:
            self._unsorted.pop(topic.name, None)
            self.topics.pop(topic.name, None)
            self.by_id.pop(topic.topic_id, None)
            if topic.is_part:
                self.parts -= 1
            else:
                self.counted -= topic.partition_count
                self.counts.remove(topic.config)
            self.partitions -= len(topic.stored_log_ids)
        return topic

    # ------------------------------------------------------------------ damage

    def _refuse(self, family: Family, key: bytes, error: Exception) -> None:
        number = keys.read_u64(key)
        if family is Family.TOPICS:
            raise damaged(f"the catalog row {number}", error) from error
        if family in (Family.DELETES, Family.GAPS):
            what = "delete bitmap {1} of log {0}" if family is Family.DELETES else "gap at {1} of log {0}"
            raise damaged(f"the {what.format(number, keys.read_u64(key, 8))}", error) from error
        topic = self.of_log(number)
        if topic is None:
            return
        if error is _MISSING:
            raise StoreOpenError(f'the log of topic "{topic.name}" has no state row')
        what = "state row" if family is Family.LOGS else "ceiling"
        raise damaged(f'the {what} of topic "{topic.name}"', error) from error

    def of_log(self, log_id: int) -> Topic | None:
        """Return the topic that has a log. O(topics)."""
        return next((topic for topic in self.by_number.values() if log_id in topic.stored_log_ids), None)
