"""What clients were told, and whether a server still stands by it."""

import itertools
import threading
from dataclasses import dataclass, field

import msgspec

from support.http import Api, ok

_ids = itertools.count(1)


@dataclass(eq=False)
class Batch:
    """One write: what was sent, and what is known about it."""

    topic: "Subject" = field(repr=False)
    texts: list[bytes] = field(repr=False)
    tag: str
    key: str | None
    first_seq: int = 0
    """Where it is, once that is known."""
    acked: bool = False
    """It was acknowledged, or seen after a crash: either way it is there for good."""
    deleting: bool = False
    """A delete of it was sent."""
    gone: bool = False
    """It was seen to be gone, or its delete was acknowledged: it must not come back."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.texts) - 1


@dataclass(eq=False)
class Subject:
    """A topic under test and everything that was done to it."""

    name: str
    durability: str
    cap: int = 0
    deletes: bool = False
    trims: bool = False
    batches: list[Batch] = field(default_factory=list)
    acked_seqs: set[int] = field(default_factory=set)
    trim_sent: int = 0
    trim_acked: int = 0
    earliest: int = 0
    floor: int = 0
    head: int = 0
    """The highest seq handed out before the present life of the server."""

    @property
    def config(self) -> dict[str, object]:
        return {"durability": self.durability, "cap_records": self.cap, "idempotency_window_ms": 1 << 40}

    @property
    def keeps(self) -> bool:
        """Whether an acknowledged record survives the death of the process (`memory` promises it to nobody)."""
        return self.durability != "ephemeral"


@dataclass(eq=False)
class Churned:
    """A topic that comes and goes: what was last asked for, and what was last acknowledged."""

    name: str
    asked: int | None = None
    """The ttl_ms of its config; None: that it be gone."""
    acked: int | None = None

    def check(self, api: Api) -> None:
        """It is as acknowledged or as asked; whichever it is, it stays."""
        reply = api.get(self.name, touch="false")
        found = None if reply.status_code == 404 else ok(reply)["config"]["ttl_ms"]
        assert found in (self.asked, self.acked), f"{self.name} is {found}: asked {self.asked}, acked {self.acked}"
        self.asked = self.acked = found


class Oracle:
    """Keeps the books for concurrent writers; `check` compares them with a server that was started again."""

    def __init__(self, subjects: list[Subject]) -> None:
        self.subjects = subjects
        self.churned: list[Churned] = []
        self._lock = threading.Lock()

    def sending(self, topic: Subject, writer: str, count: int, *, keyed: bool) -> Batch:
        """A new batch that is about to be sent. Every text is unique, and spelled as no encoder would."""
        number = next(_ids)
        pad = "é\\u00e9" * (number % 40)
        texts = [f'{{"batch" :{number},"i":{i}.50,"pad":"{pad}"}}'.encode() for i in range(count)]
        batch = Batch(topic, texts, tag=f"{writer}:{number}:", key=f"key-{number}" if keyed else None)
        with self._lock:
            topic.batches.append(batch)
        return batch

    def acked(self, batch: Batch, first_seq: int, count: int) -> None:
        """The server has acknowledged a batch."""
        assert count == len(batch.texts)
        seqs = range(first_seq, first_seq + count)
        with self._lock:
            assert first_seq > batch.topic.head, f"{batch.topic.name}: {first_seq} was handed out in an earlier life"
            assert batch.topic.acked_seqs.isdisjoint(seqs), f"{batch.topic.name}: {seqs} handed out twice"
            batch.topic.acked_seqs.update(seqs)
            batch.first_seq, batch.acked = first_seq, True

    def victim(self, topic: Subject) -> Batch | None:
        """An acknowledged batch to delete."""
        with self._lock:
            live = [batch for batch in topic.batches if batch.acked and not batch.deleting and not batch.gone]
            if len(live) < 5:
                return None
            live[len(live) // 2].deleting = True
            return live[len(live) // 2]

    def trim(self, topic: Subject) -> int | None:
        """A before_seq to delete up to: the start of an acknowledged batch, so that no batch is cut."""
        with self._lock:
            live = [batch for batch in topic.batches if batch.acked and batch.first_seq > topic.trim_sent]
            if len(live) < 5:
                return None
            topic.trim_sent = sorted(batch.first_seq for batch in live)[2]
            return topic.trim_sent

    def check(self, api: Api) -> None:
        """Compare everything with the server. What a crash left open is settled for the next time."""
        for topic in self.subjects:
            _Check(api, topic).run()
        for churned in self.churned:
            churned.check(api)


class _Page(msgspec.Struct):
    records: list[dict[str, msgspec.Raw]]
    next_from_seq: int
    earliest_seq: int
    head_seq: int
    caught_up: bool
    tombstone: dict[str, object] | None


class _Check:
    def __init__(self, api: Api, topic: Subject) -> None:
        self._topic = topic
        self._api = api

    def run(self) -> None:
        topic = self._topic
        state = self._api.state(topic.name)
        where: dict[bytes, int] = {}
        tombstones = []
        page = self._page(0)
        while True:
            for record in page.records:
                text = bytes(record["data"])
                assert text not in where, f"{topic.name}: {text!r} twice"
                where[text] = int(bytes(record["$seq"]))
            if page.tombstone is not None:
                tombstones.append(page.tombstone)
            if page.caught_up:
                break
            page = self._page(page.next_from_seq)
        seqs = list(where.values())
        assert seqs == sorted(set(seqs))
        self._state(state, seqs)
        self._tombstones(tombstones, page)
        known = {text for batch in topic.batches for text in batch.texts}
        assert where.keys() <= known, f"{topic.name}: made up {sorted(where.keys() - known)[:3]}"
        for batch in topic.batches:
            self._batch(batch, [where.get(text) for text in batch.texts], page.earliest_seq)

    def _page(self, from_seq: int) -> _Page:
        reply = self._api.diff(self._topic.name, from_seq=from_seq, limit=1000, max_batch_bytes=8 << 20)
        ok(reply)
        return msgspec.json.decode(reply.content, type=_Page)

    def _state(self, state: dict[str, object], seqs: list[int]) -> None:
        topic, head = self._topic, state["head_seq"]
        assert isinstance(head, int)
        assert state["count"] == len(seqs)
        assert state["earliest_seq"] == (seqs[0] if seqs else head + 1)
        handed_out = max(topic.acked_seqs, default=0)
        assert head >= max(topic.head, handed_out), f"{topic.name}: head {head} moved back"
        if topic.keeps and not topic.deletes and not topic.trims:
            assert head == max([topic.head, handed_out, *seqs]), f"{topic.name}: the head jumped to {head}"
        if topic.cap:
            assert len(seqs) <= topic.cap
            assert len(seqs) >= min(topic.cap, len(topic.acked_seqs)) or not topic.keeps
        assert int(str(state["earliest_seq"])) >= topic.earliest, f"{topic.name}: earliest moved back"
        topic.earliest, topic.head = int(str(state["earliest_seq"])), head

    def _tombstones(self, tombstones: list[dict[str, object]], page: _Page) -> None:
        topic = self._topic
        floor = 0
        for tombstone in tombstones:
            assert tombstone["reason"] == "cap"
            floor = int(str(tombstone["gap_to"]))
        if topic.keeps and not topic.cap:
            assert not tombstones, f"{topic.name}: {tombstones}"
        elif topic.keeps:
            assert len(tombstones) == (1 if page.earliest_seq > 1 else 0)
            assert not tombstones or floor == page.earliest_seq - 1
        assert floor >= topic.floor, f"{topic.name}: the floor moved back"
        topic.floor = floor

    def _batch(self, batch: Batch, found: list[int | None], earliest: int) -> None:
        topic = self._topic
        about = (
            f"{topic.name}: batch {batch.tag} acked={batch.acked} at {batch.first_seq}: {found}, earliest {earliest}"
        )
        present = [seq for seq in found if seq is not None]
        if present:
            assert not batch.gone, f"came back, {about}"
            last = present[-1]
            assert found[-1] is not None, about
            assert present == list(range(last - len(present) + 1, last + 1)), about
            assert len(present) == len(found) or (topic.cap and present[0] == earliest), f"torn, {about}"
            first = last - len(found) + 1
            assert not batch.acked or first == batch.first_seq, about
            if not batch.acked:  # the crash came between the write and its reply
                seqs = range(first, last + 1)
                assert topic.acked_seqs.isdisjoint(seqs), about
                topic.acked_seqs.update(seqs)
                batch.first_seq, batch.acked = first, True
            batch.deleting = False  # the delete was sent and is not there: it never happened
            return
        if batch.acked and topic.keeps and not batch.gone:
            evicted = topic.cap and batch.last_seq < earliest
            trimmed = batch.first_seq < topic.trim_sent
            assert batch.deleting or evicted or trimmed, f"lost, {about}"
        batch.gone = True
