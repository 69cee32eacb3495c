"""Records as JSON: golden bytes, and every way to cut and cache a block gives the same."""

import base64
import json
from typing import Any

import pytest

from topics_gateway.render import Parts, RenderCache
from topics_service.engine.model import Slice
from topics_service.storage.block import Block, build, merge

ALL = Parts(tags=True, metas=True)
NONE = Parts(tags=False, metas=False)


def whole(block: Block) -> Slice:
    return Slice(block, 0, block.count)


def render(parts: Parts, *slices: Slice, cache: RenderCache | None = None) -> bytes:
    return b",".join((cache or RenderCache(1 << 20)).records(slices, parts))


def block(count: int = 20, base_seq: int = 95, **columns: Any) -> Block:
    """Seqs of two and three digits, data of all lengths."""
    given = {"tags": None, "nodes": None, "metas": None, "kinds": None} | columns
    return build(1, base_seq, 1748450001000, [b"%d" % 10**i for i in range(count)], **given, cum_bytes=0)


def test_golden_record() -> None:
    one = build(1, 7, 1748450001000, [b'{"b": 1.0}'], [b"tag"], [b"node"], [b'{"k" :1}'], None, 0)
    assert render(ALL, whole(one)) == (
        b'{"$seq":7,"$ts":1748450001000,"$node":"node","$tag":"tag","data":{"b": 1.0},"meta":{"k" :1}}'
    )
    assert render(NONE, whole(one)) == b'{"$seq":7,"$ts":1748450001000,"$node":"node","data":{"b": 1.0}}'
    assert render(Parts(tags=True, metas=False), whole(one)).endswith(b'"$tag":"tag","data":{"b": 1.0}}')


def test_golden_plain_records() -> None:
    two = build(1, 9, 5, [b"null", b"[]"], None, None, None, None, 0)
    assert render(ALL, whole(two)) == b'{"$seq":9,"$ts":5,"data":null},{"$seq":10,"$ts":5,"data":[]}'


def test_absent_members_are_absent() -> None:
    some = build(1, 1, 5, [b"1", b"2", b"3"], [None, b"", None], [b"n", None, None], [None, None, b"{}"], None, 0)
    assert render(ALL, whole(some)) == (
        b'{"$seq":1,"$ts":5,"$node":"n","data":1},{"$seq":2,"$ts":5,"$tag":"","data":2},'
        b'{"$seq":3,"$ts":5,"data":3,"meta":{}}'
    )


@pytest.mark.parametrize("gap", [True, False])
def test_texts_are_escaped(gap: bool) -> None:
    texts = ['"', "\\", "\n\0\x1f", "é😀\u2028", "", "plain"]
    column: list[bytes | None] = [text.encode() for text in texts]
    if gap:
        column[-1] = None
    odd = build(1, 1, 5, [b"1"] * 6, column, list(column), None, None, 0)
    got = json.loads(b"[%b]" % render(ALL, whole(odd)))
    want = [None if value is None else value.decode() for value in column]
    assert [record.get("$tag") for record in got] == [record.get("$node") for record in got] == want


def test_binary_data_is_base64_with_a_hint() -> None:
    raw = bytes(range(256))
    mixed = build(1, 1, 5, [raw, b"1", b""], None, [b"n"] * 3, [b"{}", b'{"a":1}', None], bytes([1, 0, 1]), 0)
    a, b, c = json.loads(b"[%b]" % render(ALL, whole(mixed)))
    assert list(a) == ["$seq", "$ts", "$encoding", "$node", "data", "meta"]
    assert (a["$encoding"], base64.b64decode(a["data"]), a["meta"]) == ("base64", raw, {})
    assert ("$encoding" in b, b["data"]) == (False, 1)
    assert (c["$encoding"], c["data"], "meta" in c) == ("base64", "", False)
    assert render(ALL, Slice(mixed, 1, 2)) == b'{"$seq":2,"$ts":5,"$node":"n","data":1,"meta":{"a":1}}'


def test_merged_blocks_keep_the_time_of_each_record() -> None:
    blocks = [build(1, seq, ts, [b"1", b"2"], None, None, None, None, 0) for seq, ts in ((1, 5), (3, 50), (5, 1000))]
    merged = merge(blocks)
    assert render(ALL, whole(merged)) == render(ALL, *map(whole, blocks))
    assert [r["$ts"] for r in json.loads(b"[%b]" % render(ALL, Slice(merged, 1, 5)))] == [5, 50, 50, 1000]


def mixed_block() -> Block:
    columns: dict[str, Any] = {
        "tags": [b"t%d" % i if i % 3 else None for i in range(20)],
        "nodes": [b"node"] * 20,
        "metas": [b'{"i":%d}' % i if i % 2 else None for i in range(20)],
        "kinds": bytes(i % 5 == 0 for i in range(20)),
    }
    return block(**columns)


@pytest.mark.parametrize("parts", [ALL, NONE, Parts(tags=True, metas=False), Parts(tags=False, metas=True)])
@pytest.mark.parametrize("given", [block(), mixed_block()], ids=["plain", "mixed"])
def test_every_slice_is_the_same_cached_and_not(given: Block, parts: Parts) -> None:
    warm = RenderCache(1 << 20)
    records = [render(parts, Slice(given, i, i + 1), cache=RenderCache(0)) for i in range(given.count)]
    assert [json.loads(record)["$seq"] for record in records] == list(range(95, 115))
    assert render(parts, whole(given), cache=warm) == b",".join(records)
    for start in range(given.count):
        for stop in range(start + 1, given.count + 1):
            want = b",".join(records[start:stop])
            assert render(parts, Slice(given, start, stop), cache=warm) == want
            assert render(parts, Slice(given, start, stop), cache=RenderCache(0)) == want


def test_empty_slices_leave_no_trace() -> None:
    given = block()
    assert RenderCache(1 << 20).records([Slice(given, 3, 3), Slice(given, 0, 0)], ALL) == []


def test_a_block_is_rendered_once_per_kind_of_view() -> None:
    cache = RenderCache(1 << 20)
    given = mixed_block()
    [first] = cache.records([whole(given)], ALL)
    assert cache.records([whole(given)], ALL)[0] is first
    [other] = cache.records([whole(given)], NONE)
    assert other != first
    plain = build(2, 1, 5, [b"1"], None, None, None, None, 0)
    [first] = cache.records([whole(plain)], ALL)
    assert cache.records([whole(plain)], NONE)[0] is first  # without tags and metas all views are one


def test_the_cache_is_bounded_and_forgets_the_least_recently_used() -> None:
    blocks = [build(log, 1, 5, [b"1" * 200], None, None, None, None, 0) for log in range(100)]
    cache = RenderCache(10_000)
    first = cache.records([whole(blocks[0])], ALL)[0]
    for one in blocks:
        cache.records([whole(one)], ALL)
        assert cache.size <= 10_000
        assert cache.records([whole(blocks[0])], ALL)[0] is first  # used all the time, so it stays
    again = cache.records([whole(blocks[1])], ALL)[0]
    assert again is not cache.records([whole(blocks[2])], ALL)[0]


def test_a_small_part_of_a_large_block_is_rendered_alone() -> None:
    cache = RenderCache(1 << 20)
    cache.records([Slice(block(), 0, 4)], ALL)
    assert cache.size == 0
    cache.records([Slice(block(), 0, 5)], ALL)
    assert cache.size > 0
