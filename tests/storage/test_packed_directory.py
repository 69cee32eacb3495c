"""Directories of earlier versions, of before blocks were compressed and of before large ones lay apart: they open, are
appended to, sealed and read, block by block as they are."""

from pathlib import Path

from support import kept_directory
from support.kafka_batches import Rec, aiokafka_batch
from topics_server.verify import verify
from topics_service.engine.batches import BatchRequest, FetchRequest
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, DiffRequest
from topics_service.engine.verify import Problem
from topics_service.storage import livetables, recordbatch
from topics_service.storage.rocks import RocksStore
from topics_service.storage.segment_upkeep import SegmentUpkeep
from topics_service.storage.store import Family

NEW = [b'{"n":%d,"kind":"page_view","of":"the same"}' % i for i in range(1000)]


def opened(path: Path) -> tuple[RocksStore, Engine]:
    store = RocksStore(path, boot_id="boot-2")
    return store, Engine(store, kept_directory.Clock(kept_directory.START + 100), boot_id="boot-2")


def datas(engine: Engine, topic: str) -> list[bytes]:
    found: list[bytes] = []
    cursor, head = 0, 1
    while cursor < head:
        page = engine.diff(DiffRequest(topic=topic, from_seq=cursor, limit=1000))
        found += [part.block.record_data(i) for part in page.slices for i in range(part.start, part.stop)]
        cursor, head = page.next_from_seq, page.head_seq
    return found


def versions(store: RocksStore) -> set[int]:
    return {value[0] for _, value in store.scan(Family.BLOCKS, b"", b"\xff" * 17)}


def test_an_old_directory_is_appended_to_and_read(tmp_path: Path) -> None:
    path = kept_directory.unpack(tmp_path)
    store, engine = opened(path)
    assert versions(store) == {2, 16}
    before = {topic: datas(engine, topic) for topic in ("plain", "small", "kafka", "parts")}
    assert all(before.values())
    batch = aiokafka_batch([Rec(b"k", data) for data in NEW])
    header = recordbatch.check(batch, max_bytes=1 << 20)
    for topic in ("plain", "small"):
        engine.append(AppendRequest(topic=topic, batch=Batch(datas=NEW)))
        for data in NEW[:300]:  # enough to be sealed, together with blocks of before
            engine.append(AppendRequest(topic=topic, batch=Batch(datas=[data])))
    engine.batches.append(BatchRequest(topic="kafka", partition=0, header=header, body=batch))
    engine.sync()
    while engine.maintain():
        engine.sync()
    assert versions(store) == {2, 3, 16, 17}
    for _ in range(2):
        for topic in ("plain", "small"):
            assert datas(engine, topic) == (before[topic] + NEW + NEW[:300])[-1000 if topic == "plain" else 0 :]
        assert datas(engine, "kafka") == before["kafka"] + NEW
        parts = engine.batches.fetch(FetchRequest(topic="kafka", partition=0, from_seq=3, max_bytes=1 << 20)).parts
        [found] = [part.block.batch(part.block.part_at(part.start)) for part in parts]  # type: ignore[attr-defined]
        assert found == batch
        engine.close()
        store.close()
        store, engine = opened(path)
    engine.close()
    store.close()
    problems: list[Problem] = []
    verify(path, problems.append, deep=True)
    assert problems == []


def test_large_blocks_of_the_second_format_move_apart(tmp_path: Path) -> None:
    path = kept_directory.unpack(tmp_path, kept_directory.KEPT_2)
    store, engine = opened(path)
    assert 3 in versions(store)
    before = {topic: datas(engine, topic) for topic in ("plain", "small", "kafka", "parts", "large")}
    assert [len(data) for data in before["large"]] == [4000] * 12
    assert livetables.of(store.families[Family.SEGMENTS]) == []
    upkeep = SegmentUpkeep(store)
    upkeep.run()
    upkeep.stop()
    store.families[Family.SEGMENTS].flush(True)
    assert sum(table.size for table in livetables.of(store.families[Family.SEGMENTS])) >= 12 * 4000
    engine.append(AppendRequest(topic="large", batch=Batch(datas=NEW)))
    for _ in range(2):
        assert datas(engine, "large") == before["large"] + NEW
        assert {topic: datas(engine, topic) for topic in before if topic != "large"} == {
            topic: found for topic, found in before.items() if topic != "large"
        }
        engine.close()
        store.close()
        store, engine = opened(path)
    engine.close()
    store.close()
    problems: list[Problem] = []
    verify(path, problems.append, deep=True)
    assert problems == []
