"""`topics repair` of a data directory with shards: all that are damaged, in one call."""

from pathlib import Path
from typing import Any

import pytest
from corruption.harness import copied, listing, verify
from corruption.repairs import LAST
from engine_support import World
from sdk.cli.runner import Cli

from topics_server.repair import RepairObserver, repair
from topics_server.split import split
from topics_service.engine.placement import home_of
from topics_service.storage import shardfiles
from topics_service.storage.holding import Hold
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

SHARDS = 3
NAMES = [next(f"t-{n}" for n in range(100) if home_of(f"t-{n}", SHARDS) == shard) for shard in range(SHARDS)]
"""A topic of each shard."""
QUIET = RepairObserver(note=lambda _: None, problem=lambda _: None, action=lambda _: None)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with 20 records in two blocks each; the second block of shards 0 and 2 is damaged."""
    directory = tmp_path_factory.mktemp("shards") / "data"
    store: Any = RocksStore(directory)
    world = World(store)
    for name in NAMES:
        for block in range(2):
            world.append(*(f"{block}:{i}".encode() for i in range(10)), topic=name)
    world.engine.close()
    store.close()
    split(directory, SHARDS)
    for shard in (0, 2):
        store = RocksStore(shardfiles.directory(directory, shard))
        [_, (key, value)] = store.scan(Family.BLOCKS, b"", LAST)
        batch = store.batch()
        batch.put(Family.BLOCKS, key, value[:-1] + b"!")
        store.write(batch)
        store.close()
    return directory


def test_it_shows_what_it_would_do_and_does_it(damaged: Path, tmp_path: Path) -> None:
    directory, copy = copied(damaged, tmp_path / "data"), tmp_path / "copy"
    before = listing(directory)
    ran = Cli()("repair", "--data-dir", directory, code=1, lines=2)
    for shard in (0, 2):
        assert f"found: shard {shard}: damaged: {NAMES[shard]} seq 11..20: records can't be read" in ran.out
        assert f"repair: shard {shard}: gap: {NAMES[shard]} seq 11..20" in ran.out
        assert f"{shardfiles.directory(directory, shard)} is damaged, nothing was changed" in ran.err
    assert f"nothing to do: {shardfiles.directory(directory, 1)} is intact" in ran.out
    assert listing(directory) == before
    rows = Cli()("repair", "--data-dir", directory, "--apply", "--copy-to", copy, "--json", lines=0).rows
    totals = [row for row in rows if "applied" in row]
    assert [(row["shard"], row["applied"], row["records"]) for row in totals] == [
        (0, True, 10),
        (1, False, 0),
        (2, True, 10),
    ]
    assert verify(directory, "--deep").code == 0
    assert verify(copy, "--deep").code == 1, "the copy is as it was"
    assert shardfiles.count_of(copy) == SHARDS
    again = Cli()("repair", "--data-dir", directory, "--apply", "--no-copy", lines=0)
    assert again.out.count("nothing to do") == SHARDS


def test_one_that_was_interrupted_is_gone_on_from(damaged: Path, tmp_path: Path) -> None:
    """It ends what was begun, before it asks for another copy, and repairs the rest with it."""
    directory, copy = copied(damaged, tmp_path / "data"), tmp_path / "copy"

    def killed(step: str) -> None:
        if step == "begun":
            raise KeyboardInterrupt

    shardfiles.create(copy, SHARDS)
    own = shardfiles.directory(directory, 0)
    with pytest.raises(KeyboardInterrupt):
        repair(own, QUIET, apply=True, copy_to=shardfiles.directory(copy, 0), stepped=killed)
    assert (own / "topics-repair.json").exists()
    ran = Cli()("repair", "--data-dir", directory, "--apply", "--copy-to", copy, code=1)
    assert "found: shard 0: completed the interrupted repair" in ran.out
    assert f"{copy} is there already and not empty: name another place" in ran.err
    assert not (own / "topics-repair.json").exists()
    ran = Cli()("repair", "--data-dir", directory, "--apply", "--copy-to", tmp_path / "other", lines=0)
    assert f"nothing to do: {own} is intact" in ran.out
    assert verify(directory, "--deep").code == 0


def test_not_beside_a_server_and_not_without_the_number_of_shards(damaged: Path, tmp_path: Path) -> None:
    directory = copied(damaged, tmp_path / "data")
    hold = Hold(directory)  # as `topics serve --processes` has it, before it opens a shard
    told = Cli()("repair", "--data-dir", directory, "--apply", "--no-copy", code=1).err
    assert f"a server has {directory} open: stop it first" in told
    hold.release()
    store = RocksStore(shardfiles.directory(directory, 1))
    told = Cli()("repair", "--data-dir", directory, "--apply", "--no-copy", code=1).err
    assert "open: stop it first" in told
    store.close()
    (directory / shardfiles.NAME).write_text("{")
    told = Cli()("repair", "--data-dir", directory, code=1).err
    assert f"the file {directory / shardfiles.NAME} is damaged" in told
