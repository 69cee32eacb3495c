"""Backups of one of several shards, which has only some of a topic's partitions."""

from pathlib import Path

import msgspec

from topics_backup import inventory
from topics_backup.manifest import Topic
from topics_backup.reaching import Put, Reaching, stood
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.placement import Place, home_of
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

NAME = next(name for name in "abcdefgh" if home_of(name, 3) == 0)


def test_a_backup_of_a_part(tmp_path: Path) -> None:
    stores = [RocksStore(tmp_path / str(shard)) for shard in range(2)]
    home, other = (Engine(store, SystemClock(), place=Place(shard, 3)) for shard, store in enumerate(stores))
    for _ in range(3):  # the numbers of the two differ
        home.put_topic(NAME, ConfigInput(), 5)
        home.delete_topic(NAME)
    home.put_topic(NAME, ConfigInput(), 5)
    home.sync()
    other.parts.adopt(home.parts.register(NAME, 1))
    home.sync()
    other.sync()
    for _ in range(3):
        other.append(AppendRequest(topic=NAME, partition=4, batch=Batch([b"1"])))
    puts = [Put(family, *row) for family in Family for row in stores[1].scan(family, b"", b"\xff" * 40)]
    for engine, store in zip((home, other), stores, strict=True):
        engine.close()
        store.close()
    topics = [inventory.read(tmp_path / str(shard)).topics for shard in range(2)]
    assert [topic.numbers for each in topics for topic in each] == [[0, 3], [1, 4]]
    assert [topic.epoch for each in topics for topic in each] == [home.catalog.topics[NAME].number] * 2
    found = stood(topics[1], NAME, 4)
    assert found is not None
    assert (found.head_seq, found.count) == (3, 3)
    assert stood(topics[1], NAME, 0) is None
    assert msgspec.json.decode(msgspec.json.encode(topics[1]), type=list[Topic]) == topics[1]
    inventory.settle(tmp_path / "1")
    assert inventory.read_everything(tmp_path / "1", topics[1]) == 3
    assert Reaching(NAME, 4, 3, None).take(puts)
    assert not Reaching(NAME, 1, 3, None).take(puts)


def test_a_manifest_of_a_server_without_shards_names_no_numbers() -> None:
    assert "numbers" not in msgspec.json.decode(msgspec.json.encode(Topic("t", "top_x", 1, "log", "disk", [])))
