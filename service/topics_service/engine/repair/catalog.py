"""The catalog and the states of logs, as far as readable, and substitutes for the rest."""

from contextlib import suppress
from itertools import count

from topics_service.engine import lives, names, snapshot
from topics_service.engine.deletes import CHUNK_BITS, Chunk, Deletes, decode_chunk
from topics_service.engine.lives import Ceiling, Lives, decode_ceiling
from topics_service.engine.model import TopicConfig
from topics_service.engine.placement import SINGLE, Place
from topics_service.engine.repair.actions import Rows, log_of
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.tables.catalog import NEXT_TABLE
from topics_service.engine.tables.messages import LAST_ID
from topics_service.engine.topic import TopicRow, decode_row
from topics_service.engine.verify.findings import DECODING, Part
from topics_service.storage import keys
from topics_service.storage.kafkablock import decode
from topics_service.storage.store import Family

_COUNTERS = {b"next_topic": "topics", b"next_log": "logs", b"next_producer": "Kafka producers", NEXT_TABLE: "tables"}
_MARGIN = 1 << 20  # margin of a lost counter above its known values
_BOOT = b"boot"


class Ledger:
    """The saved catalog: topics, parts by log id, those whose state was lost, and the ceilings."""

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self.topics: dict[int, TopicRow] = {}
        """All topics by number: also those that have no log here."""
        self.derived: set[int] = set()
        self.ceilings: dict[int, Ceiling] = {}
        self.lives = Lives()
        self.last_topic = 0
        self.last_log = 0
        self.last_producer = 0
        self.last_table = 0

    def see(self, log_id: int) -> None:
        """There is, or was, a log of this id."""
        self.last_log = max(self.last_log, log_id)

    def see_table(self, number: int) -> None:
        """There is, or was, a table of this number."""
        self.last_table = max(self.last_table, number)


def topics(rows: Rows, place: Place = SINGLE) -> Ledger:
    """Save the catalog rows, and read the states."""
    ledger = Ledger()
    found: dict[str, TopicRow] = {}
    numbers: list[int] = []
    for key, value in rows.family(Family.TOPICS):
        with suppress(*DECODING):
            numbers.append(keys.read_u64(key))
            ledger.last_topic = max(ledger.last_topic, numbers[-1])
        try:
            row = decode_row(value)
            numbered = tuple(zip(row.numbers, row.log_ids, strict=True))
        except DECODING as error:
            rows.report("lost", f"the catalog row {key.hex()} of a topic can't be read: {error}")
            continue
        if row.name in found or any(log_id in ledger.parts for log_id in row.log_ids):
            rows.report("lost", f'there are two topics "{row.name}", or they share a log: the older one stays')
            continue
        found[row.name] = row
        ledger.topics[numbers[-1]] = row
        for partition, log_id in numbered:
            ledger.parts[log_id] = Part(log_id=log_id, number=numbers[-1], partition=partition, row=row)
            ledger.see(log_id)
        rows.put(Family.TOPICS, key, value)
    for hole in rows.holes[Family.TOPICS]:
        rows.report("lost", f"catalog rows of topics can't be read: {hole.why}")
    _states(rows, ledger, place)
    with suppress(*DECODING):
        ledger.lives = lives.read(rows.source)
    for key, value in rows.family(Family.CEILINGS):
        ledger.see(log_of(key))
        if log_of(key) not in ledger.parts:
            rows.report("dropped", f"the ceiling of log {log_of(key)}, which belongs to no topic")
        else:
            part = ledger.parts[log_of(key)]
            try:
                ceiling = ledger.ceilings[part.log_id] = decode_ceiling(value)
                part.take_ceiling(ceiling, ledger.lives)
            except DECODING:
                rows.report("dropped", "a damaged ceiling", part)
    return ledger


def _states(rows: Rows, ledger: Ledger, place: Place) -> None:
    for key, value in rows.family(Family.LOGS):
        ledger.see(log_of(key))
        try:
            s = snapshot.decode(value)
        except DECODING:
            continue
        part = ledger.parts.get(log_of(key)) or _adopted(rows, ledger, log_of(key), place)
        part.s = s
    for log_id, part in ledger.parts.items():
        if part.s is None:
            ledger.derived.add(log_id)
            part.s = Snapshot()
            text = "its state is lost and rebuilt from its records; the last deleted or evicted ones can come back"
            rows.report("derived", text, part)


def _adopted(rows: Rows, ledger: Ledger, log_id: int, place: Place) -> Part:
    """A new topic for a log whose catalog row is lost, so that its records can be read; its home is this shard."""
    name = f"recovered:log-{log_id}"
    if not place.is_home(name):
        name = next(other for number in count(1) if place.is_home(other := f"{name}-{number}"))
    with suppress(*DECODING):
        ledger.last_topic = max(
            ledger.last_topic, keys.read_u64(rows.source.get(Family.META, b"next_topic") or b"") - 1
        )
    ledger.last_topic += 1
    row = TopicRow(
        name=name, topic_id=f"top_{log_id:026}", slug=names.slug(name), rrl=names.rrl(names.ResourcePrefix(), name),
        config=TopicConfig(), log_ids=[log_id], created_ts=0,
    )  # fmt: skip
    ledger.topics[ledger.last_topic] = row
    part = ledger.parts[log_id] = Part(log_id=log_id, number=ledger.last_topic, partition=0, row=row)
    rows.put(Family.TOPICS, keys.u64(part.number), row.encode())
    rows.report("lost", "the name and configuration of the topic (or partition) that these records are of", part)
    return part


def gaps_and_deletes(rows: Rows, ledger: Ledger, *, bring_back: bool) -> dict[int, list[tuple[int, int]]]:
    """Read these into the states. Returns by log the ranges of seqs whose deletes are unknown."""
    gaps: dict[int, list[Gap]] = {}
    for key, value in rows.family(Family.GAPS):
        ledger.see(log_of(key))
        with suppress(*DECODING):
            gap = Gap.of_row(keys.read_u64(key, 8), value)
            last = gaps.setdefault(log_of(key), [])
            if (last[-1].stop if last else 0) < gap.start <= gap.stop:
                last.append(gap)
    chunks: dict[int, dict[int, Chunk]] = {}
    damaged: dict[int, list[int]] = {}
    for key, value in rows.family(Family.DELETES):
        ledger.see(log_of(key))
        try:
            chunks.setdefault(log_of(key), {})[keys.read_u64(key, 8)] = decode_chunk(value)
        except DECODING:
            if len(key) == 16:
                damaged.setdefault(log_of(key), []).append(keys.read_u64(key, 8))
    for log_id in (gaps.keys() | chunks.keys()) - ledger.parts.keys():
        rows.report("dropped", f"deletes and gaps of log {log_id}, which belongs to no topic")
    lost: dict[int, list[tuple[int, int]]] = {}
    for log_id, part in ledger.parts.items():
        s = part.s
        assert s is not None, "every part has a state by now"
        s.gaps = tuple(gaps.get(log_id, ()))
        s.deletes = Deletes(chunks.get(log_id))
        found = _lost_deletes(rows, part, s, damaged.get(log_id, []), derived=log_id in ledger.derived)
        if not found:
            continue
        if bring_back or part.row.config.type == "queue":
            what = "jobs that were done can be given out again" if part.row.config.type == "queue" else "they come back"
            for first, last_seq in found:
                rows.report("derived", f"it is lost which of its records were deleted: {what}", part, first, last_seq)
        else:
            lost[log_id] = found
    return lost


def _lost_deletes(rows: Rows, part: Part, s: Snapshot, damaged: list[int], *, derived: bool) -> list[tuple[int, int]]:
    """Return the ranges in which delete marks are lost: in damaged bitmaps, and according to the state's counters."""
    first, last = s.earliest >> CHUNK_BITS, s.head >> CHUNK_BITS
    wanted = {number for number in damaged if first <= number <= last}
    fewer = not derived and not s.volatile_from and s.count < s.live_between(s.earliest, s.head + 1)
    if fewer and not wanted and _reaches_head(rows, part.log_id, s):
        numbers = range(first, last + 1)
        known = set(s.deletes.numbers())
        wanted = {number for number in numbers if number not in known} or set(numbers)
    return [
        (max(s.earliest, number << CHUNK_BITS), min(s.head, ((number + 1) << CHUNK_BITS) - 1))
        for number in sorted(wanted)
    ]


def _reaches_head(rows: Rows, log_id: int, s: Snapshot) -> bool:
    """Return whether there are records up to the head, as far as is known: else it is not deletes that are missing."""
    if s.gap_at(s.head) is not None:
        return True
    with suppress(*DECODING):
        row = rows.source.floor(Family.BLOCKS, keys.pair(log_id, s.head))
        if row is None or log_of(row[0]) != log_id:
            return False
        return decode(row[1], log_id, keys.read_u64(row[0], 8)).end_seq > s.head
    return True


def facts(rows: Rows, ledger: Ledger, *, end_lost: bool = False) -> None:
    """Save the facts about the directory; its counters are above everything that was seen, and far above if writes are
    lost that may have counted. Call it last."""
    found = dict(rows.family(Family.META))
    minimum = {
        b"next_topic": ledger.last_topic + 1,
        b"next_log": ledger.last_log + 1,
        b"next_producer": ledger.last_producer + 1,
        NEXT_TABLE: ledger.last_table + 1,
    }
    for name, what in _COUNTERS.items():
        value = found.pop(name, b"")
        if len(value) == 8 and keys.read_u64(value) >= minimum[name]:
            rows.put(Family.META, name, keys.u64(keys.read_u64(value) + _MARGIN) if end_lost else value)
        elif value or minimum[name] > 1 or rows.holes[Family.META]:
            rows.report("derived", f"the counter of {what}")
            rows.put(Family.META, name, keys.u64(minimum[name] + _MARGIN))
    if rows.holes[Family.META] and _BOOT not in found:
        found[_BOOT] = b"lost"
        rows.report(
            "derived", "the end of the last run: it counts as a power cut, topics continue above their ceilings"
        )
    ends = max((ceiling.life for ceiling in ledger.ceilings.values()), default=0)
    if ledger.lives.ends < ends or found.get(lives.KEY, Lives().encode()) != ledger.lives.encode():
        rows.report("derived", "the count of unclean ends: topics continue above their ceilings")
        found[lives.KEY] = Lives(ends + 1, ends + 1).encode()
    if len(found.get(LAST_ID, b"12345678")) != 8:
        del found[LAST_ID]
        rows.report("derived", "the last message id: ids continue above the times of the newest messages")
    found.pop(b"format", None)  # a new store has its own
    for name, value in found.items():
        rows.put(Family.META, name, value)
