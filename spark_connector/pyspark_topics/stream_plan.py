"""Planning: from one offset of a stream to the next, and from two offsets to ranges."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark_topics.admission import Backlog, Limits, admit
from pyspark_topics.fetch import Gap, SeqRange
from pyspark_topics.heads import Life, Lives
from pyspark_topics.inventory import PartitionInfo
from pyspark_topics.stream_offsets import Position, Positions

RECREATED = "recreated"


@dataclass(frozen=True, slots=True)
class Loss:
    """A topic that was deleted, recreated or reset while a stream was reading it."""

    topic: str
    old: Position
    new_id: str | None = None  # None: the topic was deleted; the same id: it was reset
    head: int | None = None  # the seq to which it was reset
    partition: int = 0  # and in which partition

    def __str__(self) -> str:
        at = ", ".join(f"{seq} of partition {partition}" for partition, seq in sorted(self.old.seq.items()))
        if self.new_id is None:
            what = f"topic {self.topic} ({self.old.topic_id}) was deleted; the stream had read it up to seq {at}"
        elif self.new_id != self.old.topic_id:
            what = (
                f"topic {self.topic} was deleted and recreated: the stream had read {self.old.topic_id} up to seq"
                f" {at}, the topic is now {self.new_id}"
            )
        else:
            what = (
                f"topic {self.topic} ({self.old.topic_id}) has gone back: the stream had read partition"
                f" {self.partition} up to seq {self.old.seq[self.partition]}, its head is now {self.head}"
            )
        return what


def begin(life: Life) -> Position:
    """In front of the earliest record of every partition."""
    starts = {partition: at.earliest_seq - 1 for partition, at in life.partitions.items()}
    return Position(life.topic_id, starts, starts)


def carry(
    at: Positions, lives: Lives, target: Lives | None, subscribed: Callable[[str], bool]
) -> tuple[dict[str, Position], list[Loss]]:
    """The positions in the current topics, and the losses since.

    A new topic or partition begins at its earliest record, as does one that was recreated or reset; one that was
    deleted, or is no longer subscribed to, is left out. With a `target`, topics not in it wait, except that a recreated
    topic replaces the old one.
    """
    found: dict[str, Position] = {}
    losses: list[Loss] = []
    for topic, old in at.items():
        now = lives.get(topic)
        if now is None:
            if subscribed(topic):
                losses.append(Loss(topic, old))
        elif now.topic_id != old.topic_id:
            losses.append(Loss(topic, old, now.topic_id))
            found[topic] = begin(now)
        else:
            wanted = target.get(topic) if target is not None else now
            found[topic] = _carried(topic, old, now, wanted, losses)
    for topic, now in lives.items():
        if topic not in at and (target is None or _same(target.get(topic), now)):
            found[topic] = begin(now)
    return found, losses


def _same(one: Life | None, other: Life) -> bool:
    return one is not None and one.topic_id == other.topic_id


def _carried(topic: str, old: Position, now: Life, wanted: Life | None, losses: list[Loss]) -> Position:
    seqs, begun = dict(old.seq), dict(old.begun)
    for partition, info in now.partitions.items():
        seq = seqs.get(partition)
        if seq is None:
            if wanted is not None and partition in wanted.partitions:
                seqs[partition] = begun[partition] = info.earliest_seq - 1
        elif info.head_seq < seq:
            losses.append(Loss(topic, old, now.topic_id, info.head_seq, partition))
            seqs[partition] = begun[partition] = info.earliest_seq - 1
    return Position(old.topic_id, seqs, begun)


def advance(at: Positions, lives: Lives, target: Lives | None, limits: Limits, turn: int) -> dict[str, Position]:
    """Positions further on: at the heads (those of `target`, if there is one), or as far as the limits allow.

    Records removed by retention do not count towards a limit. No position goes back.
    """
    ways = list(_ways(at, lives, target))
    if limits:
        backlogs = [Backlog(way.topic, way.end - way.floor, way.record_bytes) for way in ways]
        admitted = admit(backlogs, limits, turn)
    else:
        admitted = [way.end - way.floor for way in ways]
    found = {topic: dict(position.seq) for topic, position in at.items()}
    for way, count in zip(ways, admitted, strict=True):
        found[way.topic][way.partition] = way.floor + count
    return {topic: Position(old.topic_id, found[topic], old.begun) for topic, old in at.items()}


@dataclass(frozen=True, slots=True)
class _Way:
    """From where to where a stream can go in one partition: behind `floor`, up to `end`."""

    topic: str
    partition: int
    floor: int
    end: int
    record_bytes: int


def _ways(at: Positions, lives: Lives, target: Lives | None) -> Iterator[_Way]:
    for topic in sorted(at):
        life = lives.get(topic)
        if life is None or life.topic_id != at[topic].topic_id:
            continue
        for partition, seq in sorted(at[topic].seq.items()):
            info = life.partitions.get(partition)
            if info is None:
                continue
            end = info.head_seq if target is None else min(info.head_seq, _aim(target.get(topic), life, partition))
            if end > seq:
                floor = min(max(seq, info.earliest_seq - 1), end)
                yield _Way(topic, partition, floor, end, mean_bytes(info))


def _aim(target: Life | None, life: Life, partition: int) -> int:
    """The end of a stream with a target in a partition of a topic's life."""
    if target is None or target.topic_id != life.topic_id or partition not in target.partitions:
        return 0
    return target.partitions[partition].head_seq


def mean_bytes(info: PartitionInfo) -> int:
    """Bytes of a record, by the mean of those that live; 0 if there is none."""
    return -(-info.bytes // info.count) if info.count else 0


def between(start: Positions, end: Positions) -> tuple[list[SeqRange], list[Gap]]:
    """The ranges between two offsets, by topic and partition, and the topic lives that ended between them.

    Depends on the two offsets alone.
    """
    ranges: list[SeqRange] = []
    gaps: list[Gap] = []
    for topic in sorted(end):
        old, new = start.get(topic), end[topic]
        if old is not None and old.topic_id != new.topic_id:
            gaps += [_ended(topic, partition, seq) for partition, seq in sorted(old.seq.items())]
            old = None
        for partition, last in sorted(new.seq.items()):
            begun = new.begun.get(partition, 0)
            behind = begun if old is None else old.seq.get(partition, begun)
            if last < behind:
                gaps.append(_ended(topic, partition, behind))
                behind = begun
            if last > behind:
                ranges.append(SeqRange(topic, new.topic_id, partition, behind + 1, last))
    return ranges, gaps


def _ended(topic: str, partition: int, seq: int) -> Gap:
    """The gap at the end of a topic's life: its records after the last seq read are unknown."""
    return Gap(topic, partition, seq + 1, seq, RECREATED, 0)
