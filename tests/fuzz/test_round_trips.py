"""Written values are read back unchanged, for generated values."""

import json
from typing import Any

import pytest
from fuzz.targets.rows import DAMAGE
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_backup import manifest
from topics_cli.lines import json_value
from topics_gateway.append_decoder import read_append
from topics_gateway.watch_events import cursor_id, read_cursor_id
from topics_server import keys
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.engine import producers, snapshot
from topics_service.engine.deletes import Deletes, decode_chunk
from topics_service.engine.limits import Limits
from topics_service.engine.model import TagMatch, TopicConfig
from topics_service.engine.offsets.positions import GroupRow, Position, decode_position
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.placement import Spread
from topics_service.engine.queue import leases
from topics_service.engine.router.router import RouterConfig, RouterRow
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import TopicRow
from topics_service.engine.topic import decode_row as decode_topic
from topics_service.storage.recordbatch.varint import read_varint, varint

QUICK = settings(derandomize=True, database=None, deadline=None, max_examples=60)
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@QUICK
@given(I64)
def test_varints(number: int) -> None:
    written = varint(number)
    assert read_varint(b"x" + written + b"y", 1) == (number, 1 + len(written))


@QUICK
@given(st.lists(U64, min_size=11, max_size=11), I64, I64)
def test_rows_of_logs(numbers: list[int], last: int, most: int) -> None:
    fields: list[Any] = [*numbers, last, most]
    state = Snapshot(*fields)
    row = snapshot.encode(state)
    assert snapshot.decode(row) == state
    assert snapshot.figures(row) == (state.head, state.count, state.bytes, state.volatile_from)


@QUICK
@given(st.sets(st.integers(0, 1 << 18), min_size=1, max_size=200), st.integers(0, 1 << 40))
def test_delete_bitmaps(seqs: set[int], size: int) -> None:
    made, _ = Deletes().marked([(seq, size) for seq in sorted(seqs)])
    read = Deletes({number: decode_chunk(made.encode(number)) for number in made.numbers()})
    assert [seq for seq in range(max(seqs) + 2) if seq in seqs] == list(read.between(0, max(seqs) + 2))
    assert read.dead_bytes(0, 1 << 19, lambda _: size) == size * len(seqs)


@QUICK
@given(TEXT, TEXT, st.lists(U64, max_size=4), I64, st.dictionaries(TEXT, TEXT, max_size=3), st.none() | NAMES, U64)
def test_rows_of_topics(
    name: str, label: str, logs: list[int], ts: int, kafka: dict[str, str], dead: str | None, cap: int
) -> None:
    config = TopicConfig(dead_letter=dead, cap_records=cap, retain_until_acked_by=(name,), priority=-5)
    row = TopicRow(
        name=name,
        topic_id=label,
        slug=label,
        rrl=label,
        config=config,
        log_ids=logs,
        created_ts=ts,
        kafka_configs=kafka,
    )
    assert decode_topic(row.encode()) == row
    row.spread = Spread(len(logs) + 1, 0, 1, epoch=cap, shards=tuple(range(len(logs))))
    assert decode_topic(row.encode()) == row


@QUICK
@given(TEXT, NAMES, NAMES, st.binary(max_size=20), st.booleans(), I64)
def test_rows_of_routers(name: str, source: str, dest: str, tag: bytes, flag: bool, ts: int) -> None:
    config = RouterConfig(source=source, dest=dest, filter=TagMatch("Glob", tag) if flag else None, allow_cycle=flag)
    row = RouterRow(name=name, config=config, created_ts=ts)
    assert decode_router(row.encode()) == row


@QUICK
@given(TEXT, I64, I64, st.integers(0, (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
def test_rows_of_groups(text: str, created: int, active: int, seq: int, epoch: int) -> None:
    row = GroupRow(name=text, created_ts=created, active_ts=active)
    assert decode_group(row.encode()) == row
    position = Position(seq, epoch, text, active)
    assert decode_position(position.encode()) == position


@QUICK
@given(TEXT.filter(bool), st.binary(min_size=16, max_size=16), U64, U32, st.integers(0, 9))
def test_leases(node: str, token: bytes, deadline: int, deliveries: int, priority: int) -> None:
    held = leases.Delivery(node, "lease_" + token.hex(), deadline, deliveries, priority)
    assert leases.decode(leases.encode(held)) == held
    free = leases.Delivery(None, "", deadline, deliveries, priority)
    assert leases.decode(leases.encode(free)) == free


@QUICK
@given(I64, st.integers(-(1 << 15), (1 << 15) - 1), I64, st.lists(st.tuples(U32, U32, U64), max_size=5))
def test_rows_of_producers(number: int, epoch: int, ts: int, batches: list[tuple[int, int, int]]) -> None:
    known = tuple(producers.Known(first >> 1, last >> 1, seq) for first, last, seq in batches)
    producer = producers.Producer(number, epoch, ts, known)
    assert producers._decode(number, producer.encode()) == producer


@QUICK
@given(TEXT)
def test_cursors_of_listings(name: str) -> None:
    cursor = write_cursor(name)
    assert read_cursor(cursor) == name
    assert read_cursor(cursor.replace("+", " ")) == name


@QUICK
@given(st.dictionaries(NAMES, U64, min_size=1, max_size=6))
def test_ids_of_events(places: dict[str, int]) -> None:
    assert read_cursor_id(cursor_id(places)) == places


@QUICK
@given(
    st.lists(st.tuples(JSON, st.none() | TEXT, st.dictionaries(TEXT, JSON, max_size=3)), min_size=1, max_size=4),
    st.booleans(),
)
def test_writes_keep_every_byte(records: list[tuple[Any, str | None, dict[str, Any]]], ascii_only: bool) -> None:
    texts = [json.dumps(data, ensure_ascii=ascii_only) for data, _, _ in records]
    metas = [json.dumps(meta, ensure_ascii=ascii_only) for _, _, meta in records]
    tags = [json.dumps(tag) for _, tag, _ in records]
    rows = [
        f'{{"data":{text}, "tag":{tag},"meta": {meta} }}' for text, tag, meta in zip(texts, tags, metas, strict=True)
    ]
    batch = read_append("t", f'{{"records":[{", ".join(rows)}]}}'.encode(), Limits()).batch
    assert [bytes(data).decode() for data in batch.datas] == texts
    assert batch.metas is not None
    assert [meta is not None and meta.decode() for meta in batch.metas] == metas
    assert [json_value(bytes(data)) for data in batch.datas] == [data for data, _, _ in records]


@QUICK
@given(st.lists(st.tuples(NAMES, U64), max_size=3), I64.filter(lambda ms: ms >= 0))
def test_manifests(topics: list[tuple[str, int]], created: int) -> None:
    made = manifest.Manifest(
        format=1,
        id="20260101T000000000Z-abcdef",
        created_ms=created,
        server_version="v",
        store_format="1",
        source="s",
        bytes=1,
        new_bytes=1,
        files=[manifest.File("CURRENT", 3, "ab" * 32)],
        topics=[
            manifest.Topic(name, "top_x", 1, "log", "disk", [manifest.Partition(seq, 1, seq)]) for name, seq in topics
        ],
    )
    assert manifest.decode(made.id, manifest.encode(made)) == made


@QUICK
@given(st.lists(st.from_regex(r"[!-+\--9;-~]{1,12}", fullmatch=True), min_size=1, max_size=4, unique=True))
def test_lists_of_keys(secrets: list[str]) -> None:
    found = keys.from_text(",".join(f"{secret}:read:t." for secret in secrets))
    assert found is not None
    assert len(found) == len(secrets)
    for secret in secrets:
        principal = found.find(secret.encode())
        assert principal is not None
        assert principal.prefixes == ("t.",)


@pytest.mark.parametrize("value", [b"", b"\0" * 7, b"\0" * 8])
def test_a_bitmap_that_is_not_there_is_damage(value: bytes) -> None:
    """pyroaring has an IndexError for it, which recovery would have let through as it is."""
    with pytest.raises(DAMAGE):
        decode_chunk(value)
