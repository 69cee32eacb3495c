"""Topics over the shards of a directory: each part is one of a topic, as its home has it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from topics_service.engine.topic import TopicRow
from topics_service.engine.verify.findings import Problem

_SAME: Final = ("topic_id", "config", "kafka_configs", "partition_count", "placement")


class Catalog(NamedTuple):
    """The topics of one shard by number, and the names of those that parts have to learn something of."""

    topics: Mapping[int, TopicRow]
    pending: frozenset[str]


def check(shards: Sequence[Catalog], report: Callable[[Problem], None]) -> None:
    """Report parts without a topic, and such as differ from it. The shards must be of one moment."""
    homes: dict[str, tuple[int, TopicRow]] = {}
    for name, shard, row in _rows(shards, parts=False):
        if name in homes:
            report(Problem(kind="mismatch", topic=name, text=f"its home is shard {homes[name][0]}, and shard {shard}"))
        homes[name] = shard, row
    pending = {name for each in shards for name in each.pending}
    for name, shard, row in _rows(shards, parts=True):
        if name in pending:
            continue
        if name not in homes:
            report(Problem(kind="orphan", topic=name, text=f"shard {shard} has a part of it, and no shard is its home"))
            continue
        at, home = homes[name]
        other = next((field for field in _SAME if getattr(home, field) != getattr(row, field)), "")
        if other:
            text = f"its part in shard {shard} has another {other} than its home, shard {at}"
            report(Problem(kind="mismatch", topic=name, text=text))
        elif home.spread is None or shard not in home.spread.shards:
            text = f"its home, shard {at}, does not know of its part in shard {shard}"
            report(Problem(kind="mismatch", topic=name, text=text))


def _rows(shards: Sequence[Catalog], *, parts: bool) -> Iterable[tuple[str, int, TopicRow]]:
    for shard, catalog in enumerate(shards):
        for row in catalog.topics.values():
            if row.is_part == parts:
                yield row.name, shard, row
