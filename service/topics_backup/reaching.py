"""Following the rows that batches set, to find the batch with which a partition reached a seq. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from topics_backup.manifest import Partition, Topic
from topics_service.engine import snapshot
from topics_service.engine.topic import decode_row
from topics_service.storage import keys
from topics_service.storage.store import Family


class Put(NamedTuple):
    """A row that a batch sets."""

    family: Family
    key: bytes
    value: bytes


class Reaching:
    """The logs that a partition of this name has had behind a moment, and where their heads are."""

    def __init__(self, topic: str, partition: int, seq: int, stood: Partition | None) -> None:
        """`stood` is the partition at that moment; None if there was none."""
        self._topic = topic
        self._name = topic.encode()
        self._partition = partition
        self._seq = seq
        self._heads = {} if stood is None else {stood.log_id: stood.head_seq}

    def may_concern(self, rows: bytes) -> bool:
        """Return whether a batch that consists of these bytes may have to be taken."""
        return self._name in rows or any(keys.u64(log_id) in rows for log_id in self._heads)

    def take(self, puts: Iterable[Put]) -> bool:
        """Take a batch, and return whether the partition reached the seq with it.

        Raises ValueError, struct.error and MsgspecError for rows that can't be read.
        """
        found = [put for put in puts if put.family in (Family.TOPICS, Family.LOGS)]
        for put in found:
            if put.family is Family.TOPICS and self._name in put.value:
                made = decode_row(put.value)
                if made.name == self._topic and self._partition in made.numbers:
                    self._heads.setdefault(made.log_ids[made.numbers.index(self._partition)], 0)
        reached = False
        for put in found:
            if put.family is Family.LOGS and (log_id := keys.read_u64(put.key)) in self._heads:
                head = snapshot.decode(put.value).head
                reached = reached or self._heads[log_id] < self._seq <= head
                self._heads[log_id] = head
        return reached


def stood(topics: Iterable[Topic], topic: str, partition: int) -> Partition | None:
    """The partition among these; None if there is none."""
    for each in topics:
        if each.topic == topic:
            return next((found for number, found in each.numbered() if number == partition), None)
    return None


def shown(topic: str, partition: int) -> str:
    """The partition in words."""
    return f'"{topic}"' if partition == 0 else f'"{topic}" (partition {partition})'
