"""`topics verify` on a directory with shards: parts agree with the homes of their topics."""

from collections.abc import Callable
from pathlib import Path

import pytest

from topics_server.verify import verify
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput
from topics_service.engine.placement import Place, home_of
from topics_service.storage import shardfiles
from topics_service.storage.rocks import RocksStore

NAME = next(name for name in "abcdefgh" if home_of(name, 2) == 0)


def delete_home(home: Engine, _: Engine) -> None:
    home.delete_topic(NAME)
    home.parts.done(NAME, home.parts.pending[NAME])


def delete_without_a_word(home: Engine, _: Engine) -> None:
    home.delete_topic(NAME)


def change_home(home: Engine, _: Engine) -> None:
    home.put_topic(NAME, ConfigInput(cap_records=9))
    home.parts.done(NAME, home.parts.pending[NAME])


def recreate(home: Engine, _: Engine) -> None:
    delete_home(home, _)
    home.put_topic(NAME, ConfigInput(), 4)


def drop_part(_: Engine, other: Engine) -> None:
    other.parts.drop(NAME, other.catalog.topics[NAME].topic_id)


CASES: dict[Callable[[Engine, Engine], None], list[tuple[str, str]]] = {
    lambda _home, _other: None: [],
    delete_without_a_word: [],  # it is pending
    drop_part: [],  # one that is made again when it is needed
    delete_home: [("orphan", "shard 1 has a part of it, and no shard is its home")],
    change_home: [("mismatch", "its part in shard 1 has another config than its home, shard 0")],
    recreate: [("mismatch", "its part in shard 1 has another topic_id than its home, shard 0")],
}


@pytest.mark.parametrize(("change", "problems"), CASES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_parts_and_homes(
    change: Callable[[Engine, Engine], None], problems: list[tuple[str, str]], tmp_path: Path
) -> None:
    shardfiles.create(tmp_path, 2)
    stores = [RocksStore(path) for path in shardfiles.directories(tmp_path)]
    engines = [Engine(store, SystemClock(), place=Place(shard, 2)) for shard, store in enumerate(stores)]
    home, other = engines
    home.put_topic(NAME, ConfigInput(), 4)
    home.sync()
    other.parts.adopt(home.parts.register(NAME, 1))
    home.sync()
    other.sync()
    change(home, other)
    for engine, store in zip(engines, stores, strict=True):
        engine.close()
        store.close()
    found: list[tuple[str, str]] = []
    report = verify(tmp_path, lambda problem: found.append((problem.kind, problem.text)))
    assert found == problems
    assert report.problems == len(problems)
    assert report.topics == int(change not in (delete_home, delete_without_a_word))
