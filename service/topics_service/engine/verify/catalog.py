"""The catalog: topics, their logs, and the states of these."""

from collections.abc import Mapping
from typing import Final

from topics_client.units import counted
from topics_service.engine import lives, snapshot
from topics_service.engine.deletes import CHUNK_BITS, Chunk, Deletes, decode_chunk
from topics_service.engine.lives import Lives, decode_ceiling
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.topic import decode_row
from topics_service.engine.verify.findings import Findings, Part
from topics_service.storage import keys
from topics_service.storage.store import Family

_COUNTERS: Final = {b"next_topic": "topics", b"next_log": "logs"}


def parts(findings: Findings) -> dict[int, Part]:
    """Every log, by its id, with its state but for deletes and gaps (`load`). Checks the catalog."""
    found: dict[int, Part] = {}
    names: set[str] = set()
    last_topic = 0
    for key, value in findings.rows(Family.TOPICS):
        with findings.decoding(f"the catalog row {key.hex()}"):
            number = last_topic = keys.read_u64(key)
            row = decode_row(value)
            if row.name in names:
                findings.report("mismatch", f'there are two topics "{row.name}"')
            names.add(row.name)
            findings.topics[number] = row
            if len(row.numbers) != len(row.log_ids):
                raise ValueError(f"it has {len(row.log_ids)} logs for {len(row.numbers)} partitions")
            for partition, log_id in zip(row.numbers, row.log_ids, strict=True):
                if log_id in found:
                    findings.report("mismatch", f'topics "{row.name}" and "{found[log_id].row.name}" share a log')
                else:
                    found[log_id] = Part(log_id=log_id, number=number, partition=partition, row=row)
    _states(findings, found)
    counted = Lives()
    with findings.decoding("the count of unclean ends"):
        counted = lives.read(findings.source)
    for key, value in findings.rows(Family.CEILINGS):
        with findings.decoding(f"the ceiling {key.hex()}"):
            ceiling, part = decode_ceiling(value), found.get(keys.read_u64(key))
            if part is None:
                findings.report("orphan", f"the ceiling of log {keys.read_u64(key)} belongs to no topic")
            else:
                part.take_ceiling(ceiling, counted)
    highest = {b"next_topic": last_topic, b"next_log": max(found, default=0)}
    for key, value in findings.rows(Family.META):
        if key in highest:
            with findings.decoding(f"the counter of {_COUNTERS[key]}"):
                if keys.read_u64(value) <= highest[key]:
                    findings.report("mismatch", f"the counter of {_COUNTERS[key]} is not above {highest[key]}")
                del highest[key]
    for key, last in highest.items():
        if last:
            findings.report("missing", f"there is no counter of {_COUNTERS[key]}")
    return found


def _states(findings: Findings, found: Mapping[int, Part]) -> None:
    seen = set()
    for key, value in findings.rows(Family.LOGS):
        with findings.decoding(f"the state of log {key.hex()}"):
            log_id = keys.read_u64(key)
            part = found.get(log_id)
            if part is None:
                findings.report("orphan", f"the state of log {log_id} belongs to no topic")
                continue
            seen.add(log_id)
            with findings.decoding("its state", part):
                part.s = snapshot.decode(value)
    for log_id in found.keys() - seen:
        findings.report("missing", "there is no row of its state", found[log_id])


def load(findings: Findings, part: Part, s: Snapshot) -> None:
    """Read the deletes and gaps of a log into its state, and report contradictions."""
    start, stop = keys.log_range(part.log_id)
    whole = findings.holes
    chunks: dict[int, Chunk] = {}
    for key, value in findings.rows(Family.DELETES, start, stop):
        with findings.decoding("a delete bitmap", part, hole=True):
            chunks[keys.read_u64(key, 8)] = decode_chunk(value)
    gaps: list[Gap] = []
    for key, value in findings.rows(Family.GAPS, start, stop):
        with findings.decoding("a gap", part, hole=True):
            gaps.append(Gap.of_row(keys.read_u64(key, 8), value))
    s.deletes, s.gaps = Deletes(chunks), tuple(gaps)
    part.certain = findings.holes == whole
    _check_state(findings, part, s)


def _check_state(findings: Findings, part: Part, s: Snapshot) -> None:
    def wrong(text: str, first: int | None = None, last: int | None = None) -> None:
        findings.report("mismatch", text, part, first, last)

    if not 1 <= s.earliest <= s.head + 1:
        wrong(f"its first seq {s.earliest} does not lie between 1 and its head {s.head}")
    if s.evict_floor > s.earliest:
        wrong(f"its floor {s.evict_floor} lies above its first seq {s.earliest}")
    if s.reclaimed_to > s.earliest:
        wrong(f"records up to {s.reclaimed_to - 1} were removed, its first seq is {s.earliest}")
    if s.sealed_to > s.head:
        wrong(f"it is sealed up to {s.sealed_to}, its head is {s.head}")
    if part.settled is None:
        return
    below = 0
    for gap in s.gaps:
        if not below < gap.start <= gap.stop <= s.head:
            wrong(f"a gap does not lie between {below + 1} and the head {s.head}", gap.start, gap.stop)
        elif s.deletes.count(max(gap.start, s.earliest), gap.stop + 1):
            wrong("seqs of a gap are marked as deleted", gap.start, gap.stop)
        below = max(below, gap.stop)
    for number in s.deletes.numbers():
        first = number << CHUNK_BITS
        if s.deletes.count(max(first, s.head + 1), first + (1 << CHUNK_BITS)):
            wrong(f"seqs above the head {s.head} are marked as deleted", first, first + (1 << CHUNK_BITS) - 1)
    live = s.live_between(s.earliest, s.head + 1)
    if live != s.count:
        wrong(f"it counts {counted(s.count, 'record')}, and {live} are alive")
    if s.first_live(s.earliest) != s.earliest:
        wrong(f"its first seq {s.earliest} is not alive")
