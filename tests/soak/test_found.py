"""What the soak has found, each in a test of its own that does not take ten minutes."""

import asyncio
import socket
from pathlib import Path

import pytest

from support.waiting import poll
from topics_net.send_timeout import SendTimeouts, undrained
from topics_service.storage import tombstone_compaction
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

TOPICS = 40


class Closed:
    """A transport whose socket was closed, as it is between the reset of a peer and the word of it."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.close()

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def get_write_buffer_size(self) -> int:
        return 7


class Sender:
    """A response on such a transport."""

    def __init__(self) -> None:
        self.given_up = asyncio.Event()
        self._transport = Closed()

    def undrained(self) -> object:
        return undrained(self._transport)

    def give_up(self) -> None:
        self.given_up.set()


async def test_a_closed_socket_does_not_end_the_watch_over_slow_clients() -> None:
    """It raised ValueError in the timer, and from then on slow clients were never disconnected."""
    timeouts, sender = SendTimeouts(0.3), Sender()
    timeouts.enter(sender)
    async with asyncio.timeout(10):
        await sender.given_up.wait()


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    return RocksStore(tmp_path / "data", write_buffer_bytes=4 << 20)


def test_tables_of_deletions_do_not_pile_up(store: RocksStore) -> None:
    """Topics that come and go left a table each time a memtable was written: descriptors grew without end."""
    family = store._families[Family.GAPS]

    def tables() -> list[dict[str, object]]:
        return [table for table in store._db.live_files() if table["level"]]

    for number in range(TOPICS):
        batch = store.batch()
        batch.delete_range(Family.GAPS, b"%08d" % number, b"%08d" % (number + 1))
        store.write(batch)
        family.flush(True)
    batch = store.batch()
    batch.put(Family.BLOCKS, b"%08d" % 3, b"kept")
    batch.put(Family.GAPS, b"%08d" % (TOPICS + 1), b"kept")
    store.write(batch)
    for each in (Family.BLOCKS, Family.GAPS):
        store._families[each].flush(True)
    poll(lambda: len(tables()) >= tombstone_compaction.FEW, 10, "RocksDB moves them to the lowest level")
    janitor = tombstone_compaction.TombstoneCompaction(store)
    poll(lambda: janitor.run() == 0, 10)
    assert len(tables()) < tombstone_compaction.FEW
    assert store.get(Family.BLOCKS, b"%08d" % 3) == b"kept"
    assert store.get(Family.GAPS, b"%08d" % (TOPICS + 1)) == b"kept"
    janitor.stop()
    store.close()
    assert janitor.run() == 0, "nothing after the end"


def test_deletions_over_much_data_are_left_to_rocksdb(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compacting them would rewrite all of that, every half minute."""
    monkeypatch.setattr(tombstone_compaction, "_MAX_NEIGHBOUR_BYTES", 10_000)
    family = store._families[Family.GAPS]
    for number in range(TOPICS):
        batch = store.batch()
        batch.delete_range(Family.GAPS, b"%08d" % number, b"%08d" % (number + 1))
        batch.put(Family.BLOCKS, b"%08d" % number, b"kept")
        store.write(batch)
        family.flush(True)
    dead = [table for table in store._db.live_files() if tombstone_compaction._is_dead(table)]
    wide = {"level": 5, "num_entries": 9, "num_deletions": 0, "size": 10_000, "start_key": b"0", "end_key": b"9"}
    assert len(dead) >= tombstone_compaction.FEW
    assert len(list(tombstone_compaction._dead_ranges(dead))) == len(dead), "neighbours are small"
    assert list(tombstone_compaction._dead_ranges([*dead, wide])) == []
    store.close()


def test_the_log_of_rocksdb_is_bounded(tmp_path: Path) -> None:
    """It grew by 6 MB a minute under load, for as long as the server ran."""
    RocksStore(tmp_path / "data").close()
    options = max((tmp_path / "data").glob("OPTIONS-*"))
    found = dict(line.strip().split("=", 1) for line in options.read_text().splitlines() if "=" in line)
    assert 0 < int(found["max_log_file_size"]) * int(found["keep_log_file_num"]) <= 16 << 20
