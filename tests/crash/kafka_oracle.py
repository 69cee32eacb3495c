"""What Kafka producers and groups were told, and whether a server still stands by it.

Offsets are Kafka's: an acknowledged HTTP append of seq N is at offset N - 1.
"""

import itertools
import random
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from support.kafka_batches import CODECS, HEADER, Rec, aiokafka_batch, read_by_aiokafka, sealed
from support.kafka_wire import Wire
from topics_kafka.protocol import ApiKey, Message

GROUP = "workers"
LAST_SEQUENCE = (1 << 31) - 1
_CONTROL = 1 << 5
_ids = itertools.count(1)

Place = tuple[str, int]  # topic and partition
Number = tuple[int, int, int]  # producer id, epoch and first sequence number


@dataclass(eq=False)
class Sent:
    """One batch of an idempotent producer, sent once or more with the same number."""

    place: Place
    number: Number
    records: list[Rec] = field(repr=False)
    body: bytes = field(repr=False)
    offset: int | None = None
    """Where its first record is: told by an acknowledgement, or seen after a crash."""
    acked: bool = False

    @property
    def end(self) -> int:
        """The offset after its last record; only of a batch whose place is known."""
        assert self.offset is not None
        return self.offset + len(self.records)


class Found(NamedTuple):
    """A batch as a fetch gives it."""

    offset: int
    number: Number
    records: list[Rec]
    next_offset: int


@dataclass
class Producer:
    """An idempotent producer: its id, the next sequence number in each partition, and what has no answer yet."""

    producer_id: int
    epoch: int
    rng: random.Random
    sequences: dict[Place, int] = field(default_factory=dict)
    unanswered: list[list[Sent]] = field(default_factory=list)
    """Requests in the order in which they were sent, a batch for each of their partitions."""
    answered: dict[Place, list[Sent]] = field(default_factory=dict)

    def batch(self, place: Place, count: int) -> Sent:
        """The next batch to a partition. Every value is unique."""
        rng, sequence = self.rng, self.sequences.get(place, 0)
        self.sequences[place] = (sequence + count) & LAST_SEQUENCE
        mark = next(_ids)
        pad = b"p" * rng.choice((0, 10, 200, 1500))
        records = [Rec(b"k%d" % self.producer_id, b'{"n":%d,"i":%d,"pad":"%s"}' % (mark, i, pad)) for i in range(count)]
        number = self.producer_id, self.epoch, sequence
        fields = dict(zip(("producer_id", "producer_epoch", "base_sequence"), number, strict=True))
        body = sealed(aiokafka_batch(records, rng.choice(list(CODECS))), **fields)
        return Sent(place, number, records, body)


def batches_of(records: bytes | memoryview | None) -> list[Found]:
    """The batches in a fetch response, checksums verified; those without producer have number (-1, -1, -1)."""
    found, data, at = [], bytes(records or b""), 0
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        batch = data[at : at + size]
        base, _, _, _, _, attributes, delta, _, _, *number, _ = HEADER.unpack_from(batch)
        there = [] if attributes & _CONTROL else read_by_aiokafka(batch)
        assert [offset for offset, _ in there] == sorted({offset for offset, _ in there})
        producer_id, epoch, sequence = number
        rest = [record for _, record in there]
        found.append(Found(there[0][0] if there else base, (producer_id, epoch, sequence), rest, base + delta + 1))
        at += size
    assert at == len(data), "whole batches"
    return found


def produce_body(batches: Iterable[Sent], acks: int = -1) -> Message:
    """One request with these batches, at most one for a partition."""
    topics: dict[str, list[Message]] = {}
    for sent in batches:
        name, partition = sent.place
        topics.setdefault(name, []).append({"index": partition, "records": sent.body})
    data = [{"name": name, "partition_data": partitions} for name, partitions in topics.items()]
    return {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": data}


def answers_of(response: Message) -> dict[Place, tuple[int, int]]:
    """Error code and base offset by partition, of a Produce response."""
    return {
        (topic["name"], answer["index"]): (answer["error_code"], answer["base_offset"])
        for topic in response["responses"]
        for answer in topic["partition_responses"]
    }


def commit_body(offsets: Mapping[Place, int], metadata: str) -> Message:
    """An OffsetCommit of nobody's: positions of a group without members."""
    topics: dict[str, list[Message]] = {}
    for (name, partition), offset in offsets.items():
        position = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0}
        topics.setdefault(name, []).append({**position, "committed_metadata": metadata})
    return {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def committed(wire: Wire, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
    """Offset and metadata that the group has committed; offset -1 where there is none."""
    asked: dict[str, list[int]] = {}
    for name, partition in places:
        asked.setdefault(name, []).append(partition)
    topics = [{"name": name, "partition_indexes": partitions} for name, partitions in asked.items()]
    group = {"group_id": GROUP, "topics": topics, "member_id": None, "member_epoch": -1}
    response = wire.call(ApiKey.OFFSET_FETCH, 9, groups=[group], require_stable=False)["groups"][0]
    assert response["error_code"] == 0, response
    return {
        (topic["name"], position["partition_index"]): (position["committed_offset"], position["metadata"] or "")
        for topic in response["topics"]
        for position in topic["partitions"]
    }


def fetch(wire: Wire, place: Place, offset: int) -> Message:
    """The answer of a fetch for one partition."""
    name, partition = place
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topics = [{"topic": name, "partitions": [asked]}]
    response = wire.call(ApiKey.FETCH, 12, max_wait=0, min_bytes=1, max_bytes=8 << 20, topics=topics)
    answer: Message = response["responses"][0]["partitions"][0]
    return answer


class Oracle:
    """Keeps the books for concurrent clients; `check` compares them with a server that was started again."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.acks = 0
        self._lock = threading.Lock()
        self._sent: dict[Number, dict[Place, Sent]] = {}
        self._ends = dict.fromkeys(places, 0)  # after the last offset that is known to be handed out
        self._heads = dict.fromkeys(places, 0)  # high watermarks as the last start found them
        self._owners: dict[Place, dict[int, object]] = {place: {} for place in places}
        self._appended: dict[Place, dict[bytes, int | None]] = {place: {} for place in places}
        self._commits: list[tuple[dict[Place, int], str]] = [({}, "")]  # the last acknowledged one, and those after it
        self._producer_ids: set[int] = set()

    def new_producer(self, producer_id: int) -> None:
        """A client got an id."""
        with self._lock:
            assert producer_id not in self._producer_ids, f"id {producer_id} was given out twice"
            self._producer_ids.add(producer_id)

    def sending(self, batches: Iterable[Sent]) -> None:
        """A request is about to be sent."""
        with self._lock:
            for sent in batches:
                self._sent.setdefault(sent.number, {})[sent.place] = sent

    def acked(self, sent: Sent, offset: int) -> None:
        """The server says where a batch is."""
        with self._lock:
            if sent.offset is None:
                assert offset >= self._heads[sent.place], f"{sent}: {offset} was handed out in an earlier life"
                self._own(sent.place, range(offset, offset + len(sent.records)), sent)
                sent.offset = offset
            assert sent.offset == offset, f"{sent} is said to be at {offset}"
            sent.acked = True
            self.acks += 1

    def appending(self, place: Place, texts: Iterable[bytes]) -> None:
        """An HTTP append is about to be sent."""
        with self._lock:
            self._appended[place] |= dict.fromkeys(texts)

    def appended(self, place: Place, texts: Sequence[bytes], first_seq: int) -> None:
        """An HTTP append was acknowledged."""
        with self._lock:
            assert first_seq > self._heads[place]
            for offset, text in enumerate(texts, first_seq - 1):
                self._own(place, [offset], text)
                self._appended[place][text] = offset

    def end(self, place: Place) -> int:
        """After the last offset that is known to be handed out."""
        with self._lock:
            return self._ends[place]

    def committing(self, offsets: dict[Place, int], metadata: str) -> None:
        """A commit is about to be sent, by the one who commits."""
        self._commits.append((offsets, metadata))

    def has_committed(self) -> None:
        """It was acknowledged."""
        self._commits = self._commits[-1:]

    def check(self, wire: Wire) -> None:
        """Compare everything with the server. What a crash left open is settled for the next time."""
        for place in self.places:
            self._check_log(wire, place)
        self._check_commits(wire)

    def _own(self, place: Place, offsets: Iterable[int], owner: object) -> None:
        owners = self._owners[place]
        for offset in offsets:
            assert owners.setdefault(offset, owner) == owner, f"{place}: {offset} is of {owners[offset]} and {owner}"
            self._ends[place] = max(self._ends[place], offset + 1)

    def _check_log(self, wire: Wire, place: Place) -> None:
        position, seen, following = 0, set[Number](), dict[tuple[int, int], int]()
        texts = set[bytes]()
        while True:
            answer = fetch(wire, place, position)
            assert answer["error_code"] == 0, answer
            head = answer["high_watermark"]
            if position == head:
                break
            start = position
            for batch in batches_of(answer["records"]):
                assert batch.next_offset == batch.offset + len(batch.records), f"{place}: a hole in {batch}"
                if batch.next_offset <= start:
                    continue
                if batch.number[0] >= 0:
                    assert batch.offset == position, f"{place}: at {position} is {batch}"
                    assert batch.number not in seen, f"{place}: {batch} twice"
                    seen.add(batch.number)
                    self._check_batch(place, batch, following)
                else:
                    skip = position - batch.offset
                    assert 0 <= skip < len(batch.records), f"{place}: at {position} is {batch}"
                    for offset, record in enumerate(batch.records[skip:], position):
                        assert record.value is not None
                        assert record.value not in texts, f"{place}: {record.value!r} twice"
                        texts.add(record.value)
                        self._check_text(place, offset, record.value)
                position = batch.next_offset
            assert position > start, f"{place}: a consumer at {start} gets on"
        assert head >= self._heads[place]
        assert head == self._ends[place], f"{place}: the head is {head}, {self._ends[place]} were handed out"
        self._heads[place] = head
        lost = [sent for by in self._sent.values() for sent in by.values()
                if sent.place == place and sent.acked and sent.number not in seen]  # fmt: skip
        assert not lost, f"{place}: lost {lost[:3]}"
        gone = [text for text, offset in self._appended[place].items() if offset is not None and text not in texts]
        assert not gone, f"{place}: lost {gone[:3]}"

    def _check_batch(self, place: Place, batch: Found, following: dict[tuple[int, int], int]) -> None:
        sent = self._sent.get(batch.number, {}).get(place)
        assert sent is not None, f"{place}: made up {batch}"
        assert batch.records == sent.records, f"{place}: {batch} is not {sent}"
        producer_id, epoch, sequence = batch.number
        wanted = following.get((producer_id, epoch), 0)
        assert sequence == wanted, f"{place}: {sequence} of producer {producer_id} comes where {wanted} does"
        following[producer_id, epoch] = (sequence + len(sent.records)) & LAST_SEQUENCE
        assert sent.offset in (None, batch.offset), f"{sent} is at {batch.offset}"
        self._own(place, range(batch.offset, batch.next_offset), sent)
        sent.offset = batch.offset

    def _check_text(self, place: Place, offset: int, text: bytes) -> None:
        known = self._appended[place]
        assert text in known, f"{place}: made up {text!r}"
        assert known[text] in (None, offset), f"{place}: {text!r} is at {offset}, not {known[text]}"
        self._own(place, [offset], text)
        known[text] = offset

    def _check_commits(self, wire: Wire) -> None:
        found = committed(wire, self.places)
        told = {place: (offset, metadata) for place, (offset, metadata) in found.items() if offset >= 0}
        possible = [
            {place: (offset, metadata) for place, offset in offsets.items()} for offsets, metadata in self._commits
        ]
        assert told in possible, f"committed is {told}, not one of {possible}"
        self._commits = [self._commits[possible.index(told)]]
