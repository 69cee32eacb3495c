"""The directory of one shard says which one it is."""

from pathlib import Path

import pytest

from topics_service.storage import shardfiles
from topics_service.storage.store import StoreOpenError


def test_the_place_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shardfiles.create(tmp_path / "data", 4)
    for shard in range(4):
        assert shardfiles.place_of(shardfiles.directory(tmp_path / "data", shard)) == (shard, 4)
    monkeypatch.chdir(tmp_path / "data" / "shards")
    assert shardfiles.place_of(Path("3")) == (3, 4)
    for other in (tmp_path / "data", tmp_path / "data/shards/4", tmp_path / "data/shards/old", tmp_path / "shards/1"):
        assert shardfiles.place_of(other) is None
    (tmp_path / "data" / shardfiles.NAME).write_bytes(b"{")
    with pytest.raises(StoreOpenError, match="is damaged"):
        shardfiles.place_of(tmp_path / "data/shards/1")
