"""Reads with a tag filter: the same pages as a slow reader would pick, at a cost that grows with the matches."""

from collections import Counter
from collections.abc import Iterator

import pytest
from engine_support import CrashStore, World, gap, runs, seqs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics_service.engine.model import DiffReply, TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family

TAGS = (None, None, b"", b"a", b"a\x00", b"a\xff", b"ab", b"abc", b"b", b"b", b"\xff")
NODES = (None, b"n", b"m")
HUGE = 1 << 30


def eq(tag: bytes) -> TagMatch:
    return TagMatch("Eq", tag)


def glob(prefix: bytes) -> TagMatch:
    return TagMatch("Glob", prefix)


def hits(match: TagMatch, tag: bytes | None) -> bool:
    if tag is None:
        return False
    return tag == match.value if match.op == "Eq" else tag.startswith(match.value)


def view(world: World) -> Snapshot:
    topic = world.engine.catalog.topics["t"]
    return topic.log.visible(topic.config, world.clock.now)


def walk(world: World, match: TagMatch, **request: int) -> list[int]:
    """The seqs that a reader from the beginning gets, page by page."""
    found: list[int] = []
    cursor = 0
    while True:
        page = world.diff(cursor, filter=match, **request)
        found += seqs(page)
        assert page.next_from_seq > cursor or page.caught_up, "a reader gets on"
        cursor = page.next_from_seq
        if page.caught_up:
            return found


# ---------------------------------------------------------------------- basics


@pytest.mark.parametrize("sealed", [False, True])
def test_only_matches_come_and_the_cursor_passes_the_others(world: World, sealed: bool) -> None:
    world.append(*[1] * 6, tags=[b"x", None, b"y", b"x", b"xy", b"y"])
    if sealed:
        world.seal()
    page = world.diff(filter=eq(b"x"))
    assert (seqs(page), page.next_from_seq, page.caught_up, page.tombstone) == ([1, 4], 6, True, None)
    assert seqs(world.diff(filter=glob(b"x"))) == [1, 4, 5]
    assert seqs(world.diff(filter=glob(b""))) == [1, 3, 4, 5, 6], "an untagged record never matches"
    assert seqs(world.diff(1, filter=eq(b"x"))) == [4]
    page = world.diff(filter=eq(b"none"))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 6, True)
    assert seqs(world.diff(filter=eq(b"x*"))) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_limits_and_budgets_count_matches(world: World, sealed: bool) -> None:
    world.append(*[4] * 8, tags=[b"x", b"y"] * 4)
    if sealed:
        world.seal()
    page = world.diff(filter=eq(b"x"), limit=2)
    assert (seqs(page), page.next_from_seq, page.lag, page.caught_up) == ([1, 3], 3, 5, False)
    page = world.diff(filter=eq(b"x"), limit=4)
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([1, 3, 5, 7], 7, False)
    assert world.diff(7, filter=eq(b"x"), limit=4).caught_up
    page = world.diff(filter=eq(b"x"), max_batch_bytes=9)
    assert (seqs(page), page.next_from_seq) == ([1, 3], 4)
    assert seqs(world.diff(filter=eq(b"y"), max_batch_bytes=1)) == [2], "a page has at least one record"


@pytest.mark.parametrize("sealed", [False, True])
def test_nodes_and_tags_are_both_asked(world: World, sealed: bool) -> None:
    world.append(*[1] * 6, tags=[b"x", b"x", b"y", b"x", b"x", b"y"], nodes=[b"n", None, None, b"m", b"n", b"n"])
    if sealed:
        world.seal()
    page = world.diff(filter=eq(b"x"), nodes=(b"n",))
    assert (seqs(page), page.caught_up) == ([2, 4], True)
    page = world.diff(filter=eq(b"x"), nodes=(b"n",), limit=1)
    assert (seqs(page), page.next_from_seq) == ([], 1), "what a node filter drops was examined"


def test_tombstones_are_those_of_any_read(world: World) -> None:
    world.put(cap_records=4)
    for i in range(8):
        world.append(1, tags=[b"x" if i % 2 else b"y"])
    page = world.diff(filter=eq(b"x"))
    assert (gap(page), seqs(page)) == ((1, 4, "cap"), [6, 8])
    page = world.diff(filter=eq(b"none"))
    assert (gap(page), seqs(page), page.caught_up) == ((1, 4, "cap"), [], True)
    page = world.diff(99, filter=eq(b"y"))
    assert (gap(page), seqs(page)) == ((1, 8, "recreated"), [5, 7])


def test_start_by_time_and_by_count_are_of_all_records(world: World) -> None:
    world.append(*[1] * 4, tags=[b"x", b"y", b"x", b"y"])
    world.clock.advance(10)
    world.append(*[1] * 2, tags=[b"x", b"y"])
    assert seqs(world.diff(from_ts=world.clock.now, filter=eq(b"x"))) == [5]
    assert seqs(world.diff(last=4, filter=eq(b"x"))) == [3, 5]


def test_a_topic_that_was_ephemeral_for_a_while(world: World, small_steps: None) -> None:
    world.put()
    for durability in ("disk", "ephemeral", "disk", "ephemeral"):
        world.put(durability=durability)
        for _ in range(5):
            world.append(1, 1, tags=[b"x", b"y"])
            world.maintain()
    assert walk(world, eq(b"x"), limit=3) == list(range(1, 41, 2))
    assert walk(world, glob(b""), limit=3) == list(range(1, 41))


# --------------------------------------------------------------- against a model


def check_page(
    world: World, match: TagMatch, *, exact: bool, from_seq: int, limit: int, budget: int, node: bytes
) -> None:
    """One filtered page is what a reader of every record would keep; without `exact` it may end earlier."""
    plain = world.diff(from_seq, limit=1)
    page = world.diff(from_seq, filter=match, limit=limit, max_batch_bytes=budget, nodes=(node,))
    s = view(world)
    assert page.tombstone == plain.tombstone
    assert (page.head_seq, page.earliest_seq) == (s.head, s.earliest)
    at = from_seq + 1
    if page.tombstone is not None:
        at = s.earliest if from_seq > s.head else page.tombstone.gap_to + 1
    following = [lost.start for lost in s.gaps if lost.start >= at]
    end = min(following) - 1 if following else s.head
    taken: list[int] = []
    examined = nbytes = last = 0
    low = high = end
    for seq, tag, origin, size in live_records(world, at, end):
        if not hits(match, tag):
            continue
        if examined == limit:
            low = high = last
            break
        if origin != node:
            if taken and nbytes + size > budget:
                low, high = last, seq - 1
                break
            taken.append(seq)
            nbytes += size
        examined, last = examined + 1, seq
    else:
        if examined == limit:
            low = high = last
    if exact:
        assert seqs(page) == taken
        assert low <= page.next_from_seq <= high
        return
    found = seqs(page)
    assert found == taken[: len(found)]
    assert page.next_from_seq <= high
    assert page.next_from_seq >= at or page.next_from_seq >= end, "a page gets on"
    assert all(seq > page.next_from_seq for seq in taken[len(found) :]), "and loses nothing"


def live_records(world: World, at: int, end: int) -> Iterator[tuple[int, bytes | None, bytes | None, int]]:
    """Seq, tag, node and size of every live record in the range, read one by one."""
    s, log = view(world), world.engine.catalog.topics["t"].log
    for seq in range(max(at, s.earliest), end + 1):
        if s.is_live(seq):
            block = log.blocks.find(seq)
            i = seq - block.base_seq
            tags, nodes = block.tags, block.nodes
            size = block.sizes_upto(i + 1) - block.sizes_upto(i)
            yield seq, None if tags is None else tags[i], None if nodes is None else nodes[i], size


def change(world: World, data: st.DataObject) -> None:
    """Something happens to the topic."""
    what = data.draw(st.sampled_from(("append", "append", "append", "seal", "delete", "put", "crash", "time")))
    if what == "append":
        count = data.draw(st.integers(1, 6))
        draw = lambda values: data.draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))  # noqa: E731
        tags = data.draw(st.sampled_from(("some", "none", "same")))
        world.append(
            *draw((1, 2, 30)),
            tags=draw(TAGS) if tags == "some" else None if tags == "none" else [b"a"] * count,
            nodes=draw(NODES) if data.draw(st.booleans()) else None,
            sync=data.draw(st.booleans()),
        )
    elif what == "seal":
        world.seal() if data.draw(st.booleans()) else world.maintain()
    elif what == "delete":
        head = world.state().head_seq
        match = data.draw(st.sampled_from((None, *MATCHES)))
        before = data.draw(st.none() | st.integers(0, head + 1))
        if before is None and match is None:
            before = head // 3
        kind = {} if match is None else {"eq" if match.op == "Eq" else "glob": match.value}
        world.delete(before, **kind)  # type: ignore[arg-type]
    elif what == "put":
        world.put(
            cap_records=data.draw(st.sampled_from((0, 0, 0, 10))),
            ttl_ms=data.draw(st.sampled_from((0, 0, 500))),
            durability=data.draw(st.sampled_from(("disk", "disk", "ephemeral", "fsync"))),
        )
    elif what == "time":
        world.clock.advance(data.draw(st.sampled_from((1, 200))))
    else:
        world.cut_power()


MATCHES = (eq(b"a"), eq(b"b"), eq(b""), eq(b"a\x00"), glob(b""), glob(b"a"), glob(b"ab"), glob(b"\xff"), eq(b"zz"))


@settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_pages_against_a_reader_of_everything(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics_service.engine.maintenance.SEAL_BLOCKS", 3)
        patch.setattr("topics_service.engine.maintenance._RECLAIM_SEQS", 2)
        patch.setattr("topics_service.engine.log.CEILING_STEP", 8)
        exact = data.draw(st.booleans())
        patch.setattr("topics_service.engine.reader.WORK", HUGE if exact else data.draw(st.integers(1, 40)))
        patch.setattr("topics_service.engine.reader.NEAR", data.draw(st.sampled_from((0, 5))))
        patch.setattr("topics_service.engine.tagrows.GLOB_ROWS", data.draw(st.sampled_from((2, HUGE))))
        patch.setattr("topics_service.engine.tagrows._STALE_ROWS", data.draw(st.sampled_from((1, 2, 8))))
        patch.setattr("topics_service.engine.tagruns.WIDE", HUGE if exact else data.draw(st.sampled_from((0, 1, 16))))
        patch.setattr("topics_service.engine.tagruns.FAN_IN", data.draw(st.sampled_from((2, 3, 32))))
        patch.setattr("topics_service.engine.tagruns._MERGE_POSITIONS", data.draw(st.sampled_from((1, 4096))))
        patch.setattr("topics_service.engine.tagruns.PRUNED", data.draw(st.sampled_from((1, 2, 64))))
        patch.setattr("topics_service.engine.tagruns.MAX_POSITIONS", limit := data.draw(st.sampled_from((1, 2, 4096))))
        patch.setattr("topics_service.storage.tagchunk.MAX_POSITIONS", limit)
        patch.setattr("topics_service.storage.tagchunk.CHUNK_BYTES", data.draw(st.sampled_from((1, 40, 16384))))
        patch.setattr("topics_service.engine.tagupkeep._SHARE", 1)
        world = World(CrashStore())
        world.put()
        world.engine.sync()
        for _ in range(data.draw(st.integers(3, 12))):
            change(world, data)
            world.engine.sync()
            head = world.state().head_seq
            for match in MATCHES:
                check_page(
                    world,
                    match,
                    exact=exact,
                    from_seq=data.draw(st.integers(0, head + 1)),
                    limit=data.draw(st.sampled_from((1, 2, 5, 1000))),
                    budget=data.draw(st.sampled_from((1, 31, 70, HUGE))),
                    node=data.draw(st.sampled_from((b"n", b"other"))),
                )


# ------------------------------------------------------------------------ cost


class CountingStore(MemoryStore):
    """Counts the rows that are read, by family."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[Family] = Counter()

    def get(self, family: Family, key: bytes) -> bytes | None:
        self.read[family] += 1
        return super().get(family, key)

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        self.read[family] += 1
        return super().floor(family, key)

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(family, start, stop):
            self.read[family] += 1
            yield row


RECORDS = 200_000
APPEND = 1000
RARE = 20_000
RUNS = 12  # of 17000 records each


@pytest.fixture(scope="module")
def large() -> World:
    """Many records, sealed: ten tags take turns, and every 20000th record is rare."""
    world = World(CountingStore(), cache_bytes=1)
    for first in range(1, RECORDS, APPEND):
        seqs_of = range(first, first + APPEND)
        tags = [b"tag:%d" % (i % 10) if i % RARE else b"rare:%d" % (i // RARE % 3) for i in seqs_of]
        world.append(*[1] * APPEND, tags=tags)
        world.maintain()
    world.seal()
    assert view(world).sealed_to == RECORDS
    assert len(runs(world)) == RUNS
    return world


def read_rows(world: World, from_seq: int, match: TagMatch, **request: int) -> tuple[DiffReply, int, int]:
    assert isinstance(world.store, CountingStore)
    world.store.read.clear()
    page = world.diff(from_seq, filter=match, **request)
    return page, world.store.read[Family.TAGS], world.store.read[Family.BLOCKS]


def test_a_rare_tag_costs_its_matches_and_not_the_log(large: World) -> None:
    page, index, blocks = read_rows(large, 0, eq(b"rare:1"))
    assert (seqs(page), page.caught_up) == ([20_000, 80_000, 140_000, 200_000], True)
    assert index <= 2 * RUNS + 5
    assert blocks <= 4
    page, index, blocks = read_rows(large, 150_000, eq(b"rare:1"))
    assert seqs(page) == [200_000]
    assert index <= RUNS / 2 + 5, "the runs before the cursor are not read"
    page, index, blocks = read_rows(large, 0, eq(b"no such tag"))
    assert (seqs(page), page.caught_up, blocks) == ([], True, 0)
    assert index <= 2 * RUNS + 5


def test_a_full_page_ends_the_walk(large: World) -> None:
    page, index, blocks = read_rows(large, 0, eq(b"tag:3"), limit=100)
    assert seqs(page) == list(range(3, 1000, 10))
    assert index <= 3
    assert blocks <= 2
    assert page.records_scanned == 100
    page, index, _ = read_rows(large, 100_000, eq(b"tag:3"), limit=100)
    assert (seqs(page)[0], index <= 4) == (100_003, True)


def test_a_prefix_of_few_tags_costs_its_tags_and_matches(large: World) -> None:
    page, index, blocks = read_rows(large, 0, glob(b"rare:"))
    assert (seqs(page), page.caught_up) == (list(range(RARE, RECORDS + 1, RARE)), True)
    assert index <= 40
    assert blocks <= 10
    page, index, _ = read_rows(large, 0, glob(b"tag:"), limit=50)
    assert seqs(page) == list(range(1, 51))
    assert index <= 150, "a few rows of each of the ten tags"


def test_a_page_of_blocks_that_each_hold_one_match_ends_in_time(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.reader.WORK", 600)
    page, _, blocks = read_rows(large, 0, glob(b"rare:"))
    assert (len(seqs(page)), blocks, page.caught_up) == (5, 5, False)
    assert page.next_from_seq == 100_000
    assert walk(large, glob(b"rare:")) == list(range(RARE, RECORDS + 1, RARE))


def test_a_prefix_of_too_many_tags_reads_the_log_in_slices(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.tagruns.WIDE", 0)
    page, index, blocks = read_rows(large, 0, glob(b"rare:"))
    assert (seqs(page), page.caught_up, page.records_scanned) == ([RARE], False, 1 << 14)
    assert page.next_from_seq == 17_000 + (1 << 14), "the first run has none of them"
    assert index <= 6
    assert blocks <= 17
    assert walk(large, glob(b"rare:")) == list(range(RARE, RECORDS + 1, RARE))


def test_large_records_end_a_slice_sooner() -> None:
    world = World()
    for _ in range(20):
        world.append(1 << 20, tags=[b"y"])
    page = world.diff(filter=eq(b"x"))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 16, False)
    assert world.diff(16, filter=eq(b"x")).caught_up


def test_deleted_matches_that_are_still_indexed_cost_no_block(large: World) -> None:
    world = World(CountingStore(), cache_bytes=1)
    for _ in range(40):
        world.append(*[1] * APPEND, tags=[b"x", b"y"] * (APPEND // 2))
    world.seal()
    world.delete(30_000, eq=b"x")  # with before_seq the index keeps its rows
    page, _, blocks = read_rows(world, 0, eq(b"x"), limit=5)
    assert (seqs(page), blocks, page.caught_up) == ([], 0, False)
    assert page.next_from_seq > 3000
    assert walk(world, eq(b"x"), limit=1000) == list(range(30_001, 40_000, 2))
