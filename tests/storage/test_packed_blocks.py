"""Blocks in compressed sections: the same records; damage is found without inflating; bombs take no memory."""

import random
import struct
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64

from support.kafka_batches import CODECS, Rec, aiokafka_batch, events, recompressed
from topics_service.storage import block as columnar
from topics_service.storage import kafkablock, recordbatch, sections
from topics_service.storage.block import Block, CorruptBlockError, build, decode, encode, merge
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.sections import DamagedSectionError, Packed
from topics_service.storage.varbinary import Column

HEADER = columnar._HEADER.size
SECTIONS = columnar.SECTIONS.size
PLAIN, PACKED, BATCHES, PACKED_BATCHES = 2, 3, 16, 17


def json(i: int, size: int) -> bytes:
    return b'{"id":%d,"kind":"page_view","pad":"%s"}' % (i, b"x" * size)


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def made(count: int, size: int, *, tagged: bool = True, metas: bool = True, kinds: bool = True) -> Block:
    """A block that shrinks, of records with every part that is asked for."""
    tags: Column = [None if i % 7 == 3 else b"octocat/repository-%d" % (i % 5) for i in range(count)]
    return build(
        9,
        7,
        1000,
        [json(i, size) for i in range(count)],
        tags if tagged else None,
        [b"web-1"] * count if tagged else None,
        [None if i % 3 else b'{"source":"a","seq":%d}' % i for i in range(count)] if metas else None,
        bytes(i % 2 for i in range(count)) if kinds else None,
        3,
    )


def rows(block: Block) -> list[tuple[object, ...]]:
    """Every record with everything that belongs to it."""
    return [
        (
            block.base_seq + i,
            block.ts_at(i),
            block.size_at(i),
            block.record_data(i),
            *(None if column is None else column[i] for column in (block.tags, block.nodes, block.metas)),
            0 if block.kinds is None else block.kinds[i],
        )
        for i in range(block.count)
    ]


def forged(value: bytes) -> bytes:
    """The block with a checksum that is right whatever else is wrong with it."""
    digest = xxh3_64(value[: HEADER - 8] + bytes(8) + value[HEADER:]).intdigest()
    return value[: HEADER - 8] + struct.pack("<Q", digest) + value[HEADER:]


def with_header(value: bytes, **changes: int) -> bytes:
    head = columnar.Head(*columnar._HEADER.unpack_from(value))._replace(**changes)
    return forged(columnar._HEADER.pack(*head) + value[HEADER:])


def with_payload(block: Block, payload: bytes, *, codec: int = 3) -> bytes:
    """The stored form of a block of one section with another one in its place."""
    value = encode(block)
    at = HEADER + SECTIONS + 4 * block.count
    assert columnar.SECTIONS.unpack_from(value, HEADER) == (0, 3, 0, 0), "no texts"
    return forged(value[:HEADER] + columnar.SECTIONS.pack(0, codec, 0, 0) + value[HEADER + SECTIONS : at] + payload)


cells = st.none() | st.binary(max_size=40)


@st.composite
def anything(draw: st.DrawFn) -> Block:
    """Blocks of few and of many records, that shrink and that don't, around the sizes where it is tried."""
    count = draw(st.sampled_from([1, 2, 15, 16, 17, 64, 300]))
    size = draw(st.sampled_from([0, 1, 10, 255, 256, 257, 600, 9000 if count < 20 else 30]))
    shrinks = draw(st.booleans())
    datas = [json(i, size) if shrinks else noise(i, size) for i in range(count)]

    def column() -> Column | None:
        pool = draw(st.none() | st.lists(cells, min_size=1, max_size=5))
        return None if pool is None else [pool[i % len(pool)] for i in range(count)]

    kinds = draw(st.sampled_from([None, bytes(count), bytes(i % 2 for i in range(count))]))
    return build(9, 7, 5, datas, column(), column(), column(), kinds, 3)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(anything(), anything(), st.randoms(use_true_random=False))
def test_what_is_decoded_is_what_was_encoded(block: Block, other: Block, rng: random.Random) -> None:
    value = encode(block)
    assert value[0] in (PLAIN, PACKED)
    found = decode(value, 9, 7)
    assert (found.count, found.nbytes, found.cum_bytes) == (block.count, block.nbytes, block.cum_bytes)
    assert [found.sizes_upto(i) for i in range(block.count + 1)] == [
        block.sizes_upto(i) for i in range(block.count + 1)
    ]
    assert rows(found) == rows(block)
    assert encode(found) == encode(decode(value, 9, 7)) == value
    positions = sorted(rng.sample(range(block.count), rng.randint(1, block.count)))
    for some in (positions, range(positions[0], positions[-1] + 1)):
        assert rows(decode(value, 9, 7).picked(some)) == rows(block.picked(some))
    moved = decode(value, 9, 7).moved(4, 2, 8, 1)
    assert rows(moved) == rows(block.moved(4, 2, 8, 1))
    assert rows(decode(encode(moved), 4, 2)) == rows(moved)
    behind = other.moved(9, block.end_seq, 6, block.cum_bytes + block.nbytes)
    joined = merge([decode(value, 9, 7), decode(encode(behind), 9, block.end_seq)])
    assert rows(decode(encode(joined), 9, 7)) == rows(block) + rows(behind)


def test_small_blocks_and_those_that_do_not_shrink_are_stored_as_before() -> None:
    for block in (
        build(9, 7, 5, [json(1, 100)], [b"tag"], None, None, None, 0),
        build(9, 7, 5, [noise(i, 164) for i in range(1000)], None, None, None, None, 0),
        build(9, 7, 5, [noise(i, 100) for i in range(20)], None, None, None, None, 0),
    ):
        assert encode(block)[0] == PLAIN
    block = made(1000, 100)
    assert encode(block)[0] == PACKED
    assert len(encode(block)) < block.nbytes / 4


def test_a_section_that_shrinks_is_enough() -> None:
    unlike, alike = [noise(i, 100) for i in range(100)], [json(i, 10) for i in range(100)]
    texts_only = build(9, 7, 5, unlike, [b"octocat"] * 100, None, None, None, 0)
    data_only = build(9, 7, 5, alike, [each[:60] for each in unlike], None, None, None, 0)
    for block, codecs in ((texts_only, (3, 0)), (data_only, (0, 3)), (made(100, 10), (3, 3))):
        value = encode(block)
        assert columnar.SECTIONS.unpack_from(value, HEADER)[:2] == codecs
        found = decode(value, 9, 7)
        assert (found.payload is None) is (codecs[1] == 0)
        assert rows(found) == rows(block)


def test_tags_sizes_and_times_are_known_without_inflating(monkeypatch: pytest.MonkeyPatch) -> None:
    block = made(500, 20)
    found = decode(encode(block), 9, 7)
    with monkeypatch.context() as patched:
        patched.setattr(columnar.StoredBlock, "inflate", lambda _self: pytest.fail("it was inflated"))
        assert (found.tags, found.nodes, found.kinds) == (block.tags, block.nodes, block.kinds)
        assert found.packed_tags() is None
        assert found.positions_of(b"octocat/", prefix=True) == block.positions_of(b"octocat/", prefix=True)
        assert [found.size_at(i) for i in range(500)] == [block.size_at(i) for i in range(500)]
        assert found.fit(3, 1000) == block.fit(3, 1000)
        assert (found.nbytes, found.max_ts, list(found.ts_runs)) == (block.nbytes, 1000, [(500, 1000)])
        assert found.tagged() is found
    assert found.payload is not None
    assert found.data == block.data
    assert found.payload is None


def test_the_weight_of_a_block_is_that_of_what_it_holds() -> None:
    block = made(1000, 100)
    found = decode(encode(block), 9, 7)
    light = found.weight
    assert light < block.weight - block.nbytes * 3 // 4
    assert found.columns() is found
    assert found.weight == block.weight
    found.inflate()
    assert found.weight == block.weight


def parts(value: bytes, count: int) -> dict[str, range]:
    """Where each part of a stored block of many times lies."""
    runs = HEADER + 4 + 12 * struct.unpack_from("<I", value, HEADER)[0]
    _, _, stored, _ = columnar.SECTIONS.unpack_from(value, runs)
    borders = [
        0,
        HEADER,
        runs,
        runs + SECTIONS,
        runs + SECTIONS + 4 * count,
        runs + SECTIONS + 4 * count + stored,
        len(value),
    ]
    return dict(
        zip(
            ("header", "ts", "lengths", "ends", "texts", "payload"), (range(*p) for p in pairwise(borders)), strict=True
        )
    )


@pytest.mark.parametrize("part", ["header", "ts", "lengths", "ends", "texts", "payload"])
def test_a_damaged_byte_in_any_part_is_found_without_inflating(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = merge([made(20, 30), made(20, 30).moved(9, 27, 1001, 0)])
    value = encode(block)
    assert value[0] == PACKED
    where = parts(value, 40)[part]
    assert len(where) > 4
    monkeypatch.setattr(Packed, "inflated", lambda _self: pytest.fail("it was inflated"))
    for at in where[:: max(1, len(where) // 50)]:
        for bit in (0x01, 0x80, 0xFF):
            damaged = bytearray(value)
            damaged[at] ^= bit
            with pytest.raises(CorruptBlockError):
                decode(bytes(damaged), 9, 7)
    for stop in (where[0], where[len(where) // 2]):
        with pytest.raises(CorruptBlockError):
            decode(value[:stop], 9, 7)


def test_versions_to_come_are_damage() -> None:
    value = encode(made(100, 30))
    for version in (0, 4, 15, 18, 255):
        if version:
            with pytest.raises(CorruptBlockError, match=f"version {version}"):
                kafkablock.decode(with_header(value, version=version), 9, 7)
    with pytest.raises(CorruptBlockError, match="compression 4"):
        decode(with_payload(made(100, 30, tagged=False, metas=False, kinds=False), b"x" * 50, codec=4), 9, 7).inflate()


def taken(value: bytes) -> int:
    """The memory that a bomb takes until it is found."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBlockError):
            kafkablock.decode(value, 9, 7).inflate()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_is_a_damaged_block_and_takes_no_memory() -> None:
    block = made(100, 30, tagged=False, metas=False, kinds=False)
    value, size = encode(block), block.nbytes
    for nbytes in (size - 1, size + 1, 1 << 32, 1 << 63, 0):
        assert taken(with_header(value, nbytes=nbytes)) < 1 << 20
    bomb = bytes(cramjam.lz4.compress_block(bytes(100 << 20), store_size=False))
    assert len(bomb) < 1 << 20
    assert taken(with_payload(block, bomb)) < 4 << 20, "no more than the header says, and what was read"
    for payload in (b"", b"\xff" * 100, bomb[:-1]):
        assert taken(with_payload(block, payload)) < 2 << 20
    texts = bytearray(encode(made(100, 30)))
    first, second, stored, length = columnar.SECTIONS.unpack_from(texts, HEADER)
    for wrong in ((first, second, stored, 0xFFFFFFFF), (first, second, 0xFFFFFFFF, length), (first, second, stored, 0)):
        columnar.SECTIONS.pack_into(texts, HEADER, *wrong)
        assert taken(forged(bytes(texts))) < 1 << 20


def test_a_forged_payload_is_found_when_it_is_inflated() -> None:
    plain = made(100, 30, tagged=False, metas=False, kinds=False)
    found = decode(with_payload(plain, encode(plain)[HEADER + SECTIONS + 400 : -9]), 9, 7)
    assert found.sizes_upto(100) == plain.nbytes
    for look in (found.inflate, found.columns, lambda: found.data, lambda: found.record_data(0)):
        with pytest.raises(CorruptBlockError, match="block 9/7: "):
            look()
    with pytest.raises(CorruptBlockError, match="end at"):
        decode(with_header(encode(plain), data_len=plain.nbytes - 1), 9, 7)
    with_metas = made(100, 30, tagged=False)
    value = bytearray(encode(with_metas))
    with pytest.raises(CorruptBlockError):
        decode(with_header(bytes(value), nbytes=with_metas.nbytes - 1), 9, 7).inflate()


def test_a_section_knows_its_length() -> None:
    plain = b"abc" * 1000
    stored = sections.compressed(plain)
    assert stored is not None
    assert stored == sections.compressed(memoryview(plain))
    assert len(stored) < 40
    packed = Packed(3, stored, 3000)
    assert packed.inflated() == plain
    for wrong in (packed._replace(size=2999), packed._replace(size=3001), packed._replace(size=-1)):
        with pytest.raises(DamagedSectionError):
            wrong.inflated()
    with pytest.raises(DamagedSectionError, match="can't hold"):
        packed._replace(size=1 << 62).inflated()
    for raw in (b"", noise(1, 255), noise(2, 256), noise(3, 8 << 10), noise(4, 100_000)):
        assert sections.compressed(raw) is None
        assert Packed(0, raw, len(raw)).inflated() == raw
    with pytest.raises(DamagedSectionError):
        Packed(0, b"abc", 4).inflated()


def kafka(*batches: bytes) -> KafkaBlock:
    """A block of these batches."""
    made, seq, total = list[KafkaBlock](), 7, 3
    for i, batch in enumerate(batches):
        header = recordbatch.headers(batch)[0][1]
        made.append(kafkablock.build(9, seq, 5 + i, batch, header, total))
        seq, total = seq + header.count, total + len(batch)
    return made[0] if len(made) == 1 else kafkablock.merge(made)


def small(count: int, seed: int = 0) -> list[Rec]:
    return [Rec(b"k%d" % i, json(i + seed, 10), (("h", b"v"),)) for i in range(count)]


@pytest.mark.parametrize("counts", [[1000], [1, 30, 200], [3] * 40])
def test_batches_that_came_uncompressed_come_back_byte_for_byte(counts: Sequence[int]) -> None:
    batches = [aiokafka_batch(small(count, seed)) for seed, count in enumerate(counts)]
    block = kafka(*batches)
    value = kafkablock.encode(block)
    assert value[0] == PACKED_BATCHES
    assert len(value) < block.nbytes / 2
    found = kafkablock.decode(value, 9, 7)
    assert isinstance(found, KafkaBlock)
    assert found.weight < block.weight
    assert found.parts == block.parts
    assert (found.count, found.nbytes, found.cum_bytes, found.max_ts) == (sum(counts), block.nbytes, 3, block.max_ts)
    assert [found.sizes_upto(i) for i in range(found.count + 1)] == [
        block.sizes_upto(i) for i in range(block.count + 1)
    ]
    assert found.payload is not None, "all of that without inflating"
    assert found.body == b"".join(batches)
    assert found.weight == block.weight
    assert [bytes(found.batch(part)) for part in found.parts] == batches
    assert rows(found.columns()) == rows(block.columns())
    assert kafkablock.encode(found) == value
    again = kafkablock.decode(value, 9, 7)
    assert rows(again.columns()) == rows(block.columns())


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_batches_that_came_compressed_are_stored_unchanged(codec: str) -> None:
    batch = recompressed(aiokafka_batch(small(300)), codec)
    value = kafkablock.encode(kafka(batch))
    assert value[0] == BATCHES
    assert value.endswith(batch)
    mixed = kafka(batch, aiokafka_batch(small(2000)))
    found = kafkablock.decode(kafkablock.encode(mixed), 9, 7)
    assert isinstance(found, KafkaBlock)
    assert found.body == mixed.body


def test_batches_that_do_not_shrink_are_stored_unchanged() -> None:
    batch = aiokafka_batch([Rec(None, noise(i, 200)) for i in range(100)])
    assert kafkablock.encode(kafka(batch))[0] == BATCHES
    assert kafkablock.encode(kafka(aiokafka_batch(small(1))))[0] == BATCHES


def test_damaged_batches_are_damage() -> None:
    value = kafkablock.encode(kafka(*[aiokafka_batch(events(20)) for _ in range(9)]))
    assert value[0] == PACKED_BATCHES
    for at in range(0, len(value), 7):
        damaged = bytearray(value)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBlockError):
            kafkablock.decode(bytes(damaged), 9, 7)
    head = columnar.Head(*columnar._HEADER.unpack_from(value))
    assert taken(with_header(value, nbytes=1 << 50)) < 1 << 20
    assert taken(with_header(value, nbytes=head.nbytes - 1)) < 1 << 20
    with pytest.raises(CorruptBlockError, match="180 records, not 181"):
        kafkablock.decode(with_header(value, records=181), 9, 7)
    empty = columnar.SECTIONS.pack(0, 0, 0, 0)
    runs = HEADER + 4 + 12 * struct.unpack_from("<I", value, HEADER)[0]
    assert taken(forged(value[:runs] + empty)) < 1 << 20


def version_1(block: Block) -> bytes:
    """The block as the first version stored it: without `max_ts` in its header."""
    block.max_ts = block.last_ts
    value = columnar.sealed(block, 1, 0, len(block.data), [block.ends.tobytes(), block.data])
    head = columnar.Head(*columnar._HEADER.unpack_from(value))._replace(checksum=0)
    fields = columnar._HEADER_1.pack(*head[:7], *head[8:])
    digest = xxh3_64(fields + value[HEADER:]).intdigest()
    return fields[:-8] + struct.pack("<Q", digest) + value[HEADER:]


def test_the_versions_before_are_read() -> None:
    block = made(100, 30, tagged=False, metas=False, kinds=False)
    first = version_1(block)
    assert first[0] == 1
    assert rows(decode(first, 9, 7)) == rows(block)
    assert decode(first, 9, 7).max_ts == block.last_ts
    second = columnar.sealed(block, PLAIN, 0, len(block.data), [block.ends.tobytes(), block.data])
    assert rows(decode(second, 9, 7)) == rows(block)
    assert encode(decode(first, 9, 7)) == encode(decode(second, 9, 7)) == encode(block)
    assert encode(block)[0] == PACKED
