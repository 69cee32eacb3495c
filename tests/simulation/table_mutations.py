"""Bugs planted into tables, as those of `mutations`; found in lives with tables."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from topics_service.engine.tables import payloads, routing
from topics_service.engine.tables.catalog import NEXT_TABLE
from topics_service.engine.tables.indexing import Builds
from topics_service.engine.tables.messages import MessageIds
from topics_service.engine.tables.pending import Pending
from topics_service.engine.tables.removal import Removals
from topics_service.engine.tables.routing import Events
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.staging import Staged
from topics_service.engine.tables.topic_catalog import TopicCatalog
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.transaction import Transaction
from topics_service.storage.memory import MemoryBatch
from topics_service.storage.store import Family

Planted = Callable[[], AbstractContextManager[Any]]
_apply, _put, _commit, _update = MemoryBatch.apply, MemoryBatch.put, TableTransaction.commit, TableTransaction.update
_load, _diff, _remove = Builds.load, payloads.Payloads.diff, Removals.step


def _never_written(family: Family, lost: Callable[[bytes, bytes | None], bool]) -> Planted:
    """Such changes of rows or entries never get into a batch."""

    def apply(self: MemoryBatch, to: Family, changes: Mapping[bytes, bytes | None]) -> None:
        kept = {key: value for key, value in changes.items() if to is not family or not lost(key, value)}
        _apply(self, to, kept)

    return lambda: patch.object(MemoryBatch, "apply", apply)


def _without_counter(self: MemoryBatch, family: Family, key: bytes, value: bytes) -> None:
    if key != NEXT_TABLE:
        _put(self, family, key, value)


def _acked_at_once(self: TableTransaction) -> int:
    _commit(self)
    return 0


_stage = Events.stage


def _without_the_last(self: Events, tx: Transaction, now: int) -> bool:
    for topic in self._topics.values():
        for part in topic.parts:
            if len(part.datas) > 2:
                del part.datas[-1], part.tags[-1], part.meta_ends[-1], part.places[-1]
    return _stage(self, tx, now)


def _any_update(self: TableTransaction, runtime: TableRuntime, key: bytes, stored: bytes, old: Any, new: Any) -> None:
    """An event also where nothing changes."""
    if new == old and runtime.is_routed:
        self.staged.replace(runtime, key, stored, old, new)
        self.events.change(runtime.table, routing.Op.UPDATE, new, old)
    _update(self, runtime, key, stored, old, new)


def _built_from_the_end(self: Builds) -> None:
    _load(self)
    self._running = dict.fromkeys(self._running, b"\xff" * 9)


def _removed_at_once(self: Removals) -> bool:
    self._due = dict.fromkeys(self._due, 0)
    return _remove(self)


def _turned_around(self: payloads.Payloads, new: Any, old: Any) -> bytes:
    return _diff(self, new, old) if new is None or old is None else _diff(self, old, new)


_BUGS: dict[str, Planted] = {
    "a row not written": _never_written(Family.ROWS, lambda key, _: key[-1] == 5),
    "a row not removed": _never_written(Family.ROWS, lambda key, value: value is None and key[-1] % 3 == 0),
    "an index entry not written": _never_written(Family.INDEXES, lambda key, value: value is not None and key[-1] == 5),
    "an index entry not removed": lambda: patch.object(Staged, "_remove_entry", lambda *_: None),
    "rows shown before their fsync": lambda: patch.object(Pending, "layer", lambda *_: None),
    "rows acknowledged before their fsync": lambda: patch.object(TableTransaction, "commit", _acked_at_once),
    "rows without their events": lambda: patch.object(Events, "stage", lambda *_: False),
    "the last event of a commit lost": lambda: patch.object(Events, "stage", _without_the_last),
    "an event of a row that stays the same": lambda: patch.object(TableTransaction, "update", _any_update),
    "events that a savepoint does not take back": lambda: patch.object(Events, "reset", lambda *_: None),
    "rows that a savepoint does not take back": lambda: patch.object(Staged, "reset", lambda *_: None),
    "a build that a start takes for finished": lambda: patch.object(Builds, "load", _built_from_the_end),
    "a build without a look for equal values": lambda: patch.object(Builds, "_is_taken", lambda *_: False),
    "a unique key that is not looked for": lambda: patch.object(Staged, "holder", lambda *_: None),
    "a number of a table used again": lambda: patch.object(MemoryBatch, "put", _without_counter),
    "rows that outlive their table": lambda: patch.object(Removals, "stage_table", lambda *_: None),
    "entries that outlive their index": lambda: patch.object(Removals, "stage_index", lambda *_: None),
    "removals that a start forgets": lambda: patch.object(Removals, "load", lambda _: None),
    "rows removed before that is durable": lambda: patch.object(Removals, "step", _removed_at_once),
    "routes that outlive their topic": lambda: patch.object(TopicCatalog, "stage_removal", lambda *_: None),
    "message ids given out again after a start": lambda: patch.multiple(
        MessageIds, load=lambda *_: None, start_after=lambda *_: None
    ),
    "a message id that is not stored": lambda: patch.multiple(
        MessageIds, stage=lambda *_: None, start_after=lambda *_: None
    ),
    "before and after exchanged": lambda: patch.object(payloads.Payloads, "diff", _turned_around),
}

_SEEDS = {
    "an index entry not written": 2,
    "a build that a start takes for finished": 6,
    "a build without a look for equal values": 26,
    "a unique key that is not looked for": 2,
    "entries that outlive their index": 4,
    "rows removed before that is durable": 4,
    "before and after exchanged": 20,
}

TABLE_MUTATIONS = {name: (planted, _SEEDS.get(name, 1)) for name, planted in _BUGS.items()}
"""Each with a seed that is known to find it: the first to try."""
