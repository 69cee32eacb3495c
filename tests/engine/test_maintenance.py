"""Background work: it changes rows, never what a reader sees."""

import pytest
from engine_support import CrashStore, World, gap, runs, seqs, tags_of

from topics_service.storage import keys
from topics_service.storage.store import Family

pytestmark = pytest.mark.usefixtures("small_steps")


def everything(world: World) -> list[object]:
    """All that readers can observe: state, and a page from every cursor with several limits and filters."""
    state = world.state()
    seen: list[object] = [(state.head_seq, state.earliest_seq, state.count, state.bytes, state.last_write_ts)]
    for cursor in range(state.head_seq + 2):
        for limit, nodes in ((1, ()), (3, (b"n",)), (100, ())):
            page = world.diff(cursor, limit=limit, nodes=nodes)
            columns = [
                (part.block.ts_at(i), *(c and c[i] for c in (part.block.tags, part.block.nodes, part.block.metas)))
                for part in page.slices
                for i in range(part.start, part.stop)
            ]
            seen.append((cursor, limit, seqs(page), columns, page.next_from_seq, gap(page), page.records_scanned))
    return seen


def busy(durability: str = "disk", **config: int) -> World:
    world = World(CrashStore())
    world.put(durability=durability, **config)
    for i in range(12):
        world.append(
            *range(1, 2 + i % 3),
            tags=[b"x" if i % 4 == 0 else b"y"] * (1 + i % 3) if i % 2 == 0 else None,
            nodes=[b"n"] * (1 + i % 3) if i % 3 == 0 else None,
            metas=[b"{}"] * (1 + i % 3) if i % 5 == 0 else None,
        )
        world.clock.advance(10)
    world.delete(eq=b"x")
    return world


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("config", [{}, {"cap_records": 9}, {"cap_bytes": 20}, {"ttl_ms": 60}])
def test_maintenance_changes_nothing_that_a_reader_sees(durability: str, config: dict[str, int]) -> None:
    world = busy(durability, **config)
    before = everything(world)
    world.maintain()
    world.seal()
    assert everything(world) == before
    log = world.engine.catalog.topics["t"].log
    log.cache.drop_log(log.log_id)
    assert everything(world) == before, "nor what is read back from the store"
    if durability != "ephemeral":
        for again in (world.kill, world.restart, world.maintain, world.kill):
            again()
            assert everything(world) == before
        world.engine.sync()
        if durability == "fsync":
            world.cut_power()
            assert everything(world) == before


def test_sealing_merges_small_blocks_and_indexes_them() -> None:
    world = World(CrashStore())
    for i in range(6):
        world.append(1, tags=[b"x" if i % 2 else None])
    assert (len(world.rows(Family.BLOCKS)), world.rows(Family.TAGS)) == (6, [])
    world.seal()
    assert (len(world.rows(Family.BLOCKS)), len(runs(world))) == (1, 1)
    for _ in range(3):
        world.append(1, tags=[b"x"])
    world.maintain()
    assert (len(world.rows(Family.BLOCKS)), len(runs(world))) == (2, 2)
    assert world.delete(eq=b"x").deleted == 6


@pytest.mark.parametrize("datas", [[1] * 1000, [1] * 64, [b"1" * 20_000]], ids=["many", "enough", "long"])
def test_blocks_that_are_not_small_are_not_rewritten(datas: list[object]) -> None:
    world = World(CrashStore())
    for _ in range(3):
        world.append(*datas)
    rows = world.rows(Family.BLOCKS)
    world.seal()
    assert world.rows(Family.BLOCKS) == rows


def test_small_blocks_between_larger_ones_are_merged_among_themselves() -> None:
    world = World(CrashStore())
    for datas in ([1], [2], [3] * 64, [4], [5], [6], [7] * 100, [8]):
        world.append(*datas)
    before = everything(world)
    world.seal()
    assert [row[0][8:] for row in world.rows(Family.BLOCKS)] == [keys.u64(base) for base in (1, 3, 67, 70, 170)]
    assert everything(world) == before


def test_only_what_is_visible_is_sealed() -> None:
    world = World(CrashStore())
    world.put(durability="fsync")
    for _ in range(4):
        world.append(1)
    for _ in range(4):
        world.append(1, sync=False)
    world.maintain()
    assert len(world.rows(Family.BLOCKS)) == 5
    assert world.seqs() == [1, 2, 3, 4]
    world.engine.sync()
    assert world.seqs() == list(range(1, 9))


def test_reclaim_drops_dead_rows_and_only_those() -> None:
    world = World(CrashStore())
    for i in range(8):
        world.append(1, tags=[b"t%d" % i])
    world.seal()
    for i in range(8, 14):
        world.append(1, tags=[b"t%d" % i])
    world.delete(12)
    world.maintain()
    assert [key[-1] for key, _ in world.rows(Family.BLOCKS)] == [12, 13, 14] or len(world.rows(Family.BLOCKS)) <= 2
    assert all(run.base >= 8 for run in runs(world))
    assert all(int(tag[1:]) >= 8 for tag in tags_of(world))
    assert world.seqs() == [12, 13, 14]


def test_an_emptied_topic_keeps_no_blocks() -> None:
    world = busy()
    world.delete(1 << 40)
    world.maintain()
    assert world.rows(Family.BLOCKS) == []
    assert world.append(1).first_seq == world.state().head_seq
    world.kill()
    assert world.state().count == 1


def test_delete_bitmaps_go_when_nothing_lives_below_them() -> None:
    world = World(CrashStore())
    for start in range(0, 70_000, 10_000):
        world.append(*[1] * 10_000, tags=[b"x" if (start + i) % 6000 == 5 else None for i in range(10_000)])
    world.delete(eq=b"x")
    assert len(world.rows(Family.DELETES)) == 2
    world.delete(66_000)
    assert len(world.rows(Family.DELETES)) == 1
    assert (world.state().count, world.state().bytes) == (4000, 4000)
    world.kill()
    assert len(world.seqs()) == 4000


def test_expiry_is_written_by_upkeep_and_not_told_twice() -> None:
    world = World(CrashStore())
    world.put(ttl_ms=100)
    world.append(1, 1)
    world.clock.advance(101)
    world.engine.sweep()
    world.maintain()
    world.kill()
    world.clock.advance(-50)  # only the stored row knows now
    assert world.seqs() == []
    assert gap(world.diff()) == (1, 2, "ttl")


def test_a_sweep_looks_at_every_topic_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.engine._TTL_LOGS_A_SWEEP", 2)
    world = World(CrashStore())
    for name in "abcde":
        world.put(name, ttl_ms=10)
        world.append(1, topic=name)
    world.clock.advance(11)
    for left in (3, 1, 0):
        world.engine.sweep()
        assert world.engine.writer.total_bytes == left


def test_a_power_cut_between_any_two_batches_of_upkeep_changes_nothing_either() -> None:
    world = busy("fsync", cap_records=15)
    assert isinstance(world.store, CrashStore)
    before, first = everything(world), world.store.writes
    world.maintain()
    last = world.store.writes
    assert last >= first + 2
    for writes in range(first, last + 1):
        again = busy("fsync", cap_records=15)
        again.maintain()
        again.cut_power(writes)
        assert everything(again) == before
        again.maintain()
        assert everything(again) == before
