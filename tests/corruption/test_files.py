"""Damage to each kind of file of a data directory. What comes of it is exact data or an explicit error, always; only
what was damaged fails; nothing is removed; and `topics verify` finds it."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corruption.data import Originals
from corruption.harness import copied, cut, flip, outcome, verify, zero

from support.server import ServerProcess, StartFailedError
from topics_client import Record, TopicsClient, TopicsError
from topics_server.verify import verify as check
from topics_service.engine.topic import decode_row
from topics_service.engine.verify import Problem
from topics_service.storage import keys, manifest
from topics_service.storage.familyids import family_ids
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

Harm = Callable[[Path], None]


def tables(directory: Path) -> list[Path]:
    """The table files, largest first: the first one is that of the records."""
    return sorted(directory.glob("*.sst"), key=lambda path: -path.stat().st_size)


def table_of(family: Family, directory: Path) -> Path:
    """The largest table file of a family."""
    number = family_ids(directory)[family]
    facts = (each for each in manifest.read(directory).tables.values() if each.family == number)
    return directory / f"{max(facts, key=lambda each: each.size).number:06}.sst"


def harmed(original: Path, tmp_path: Path, pattern: str, harm: Harm) -> Path:
    """A copy whose newest file by this name is harmed. `*.sst` stands for the largest."""
    directory = copied(original, tmp_path / "data")
    harm(tables(directory)[0] if pattern == "*.sst" else sorted(directory.glob(pattern))[-1])
    return directory


def references_lost(original: Path, tmp_path: Path) -> tuple[Path, str, dict[str, Any]]:
    """A copy with a flip among the references to blocks of `large` alone: that directory, the table, what is lost."""
    name = table_of(Family.BLOCKS, original).name
    for percent in range(36, 80):
        directory = copied(original, tmp_path / str(percent))
        at(percent / 100, flip)(directory / name)
        problems = verify(directory).problems
        if [problem["topic"] for problem in problems] == ["large"]:
            return directory, name, problems[0]
    raise AssertionError("no block of the table has references to one topic only")


def at(share: float, change: Callable[..., None], *more: int) -> Harm:
    """The change, so far into the file."""
    return lambda path: change(path, int(path.stat().st_size * share), *more)


def remove(path: Path) -> None:
    path.unlink()


REFUSED: list[tuple[str, str, str, Harm]] = [
    ("killed", "*.log", "first record", lambda path: flip(path, 3)),
    ("killed", "*.log", "middle", at(0.3, flip)),
    ("killed", "*.log", "last block", at(0.999, flip)),
    ("killed", "*.log", "zeros", at(0.5, zero, 100)),
    ("killed", "*.log", "cut", at(0.6, cut)),
    ("killed", "*.log", "gone", remove),
    ("stopped", "*.log", "gone", remove),
    ("stopped", "MANIFEST-*", "flipped", at(0.5, flip)),
    ("stopped", "MANIFEST-*", "cut", at(0.5, cut)),
    ("stopped", "MANIFEST-*", "empty", lambda path: cut(path, 0)),
    ("stopped", "MANIFEST-*", "gone", remove),
    ("killed", "MANIFEST-*", "gone", remove),
    ("stopped", "CURRENT", "flipped", at(0.5, flip)),
    ("stopped", "CURRENT", "empty", lambda path: cut(path, 0)),
    ("stopped", "CURRENT", "gone", remove),
    ("killed", "CURRENT", "gone", remove),
    ("stopped", "*.sst", "cut", at(0.5, cut)),
    ("stopped", "*.sst", "gone", remove),
]
HARMLESS: list[tuple[str, Harm]] = [
    (name, harm)
    for name in ("OPTIONS-*", "IDENTITY", "LOG", "rocksdict-config.json")
    for harm in (at(0.5, flip), at(0.5, cut), remove)
]


@pytest.mark.parametrize(("state", "pattern", "what", "harm"), REFUSED, ids=lambda value: str(value)[:20])
def test_a_server_refuses_to_start_and_names_the_file(
    state: str, pattern: str, what: str, harm: Harm, originals: Originals, tmp_path: Path
) -> None:
    original = originals.killed if state == "killed" else originals.stopped
    directory = harmed(original, tmp_path, pattern, harm)
    files = {path.name for path in directory.iterdir()}
    if pattern == "*.sst":
        name = tables(original)[0].name
    else:
        name = sorted(original.glob(pattern))[-1].name
    found = verify(directory)
    assert found.code == 1
    assert [problem.get("file") for problem in found.problems] == [name]
    refused = outcome(directory, tmp_path / "server", originals.truth).refused
    assert refused is not None
    assert name in refused
    assert files <= {path.name for path in directory.iterdir()}, "a server that does not start removes nothing"


@pytest.mark.parametrize(("pattern", "harm"), HARMLESS[::3], ids=lambda value: str(value)[:20])
def test_files_that_nobody_reads_do_not_matter(pattern: str, harm: Harm, originals: Originals, tmp_path: Path) -> None:
    directory = harmed(originals.stopped, tmp_path, pattern, harm)
    assert verify(directory).code == 0
    assert outcome(directory, tmp_path / "server", originals.truth) == (None, {})


@pytest.mark.parametrize("change", [at(0.3, flip), at(0.6, zero, 4096), at(0.9, flip, 20_000)])
def test_a_damaged_table_fails_the_reads_of_its_ranges_only(change: Harm, originals: Originals, tmp_path: Path) -> None:
    directory = harmed(originals.stopped, tmp_path, "*.sst", change)
    name = tables(originals.stopped)[0].name
    found = verify(directory)
    assert found.code == 1
    (lost,) = found.problems
    assert (lost["kind"], lost["topic"], lost["partition"], lost["file"]) == ("unreadable", "large", 0, name)
    first, last = lost["first_seq"], lost["last_seq"]
    assert 1 < first <= last < 30_000
    assert last - first < 1000
    records = originals.truth["large", 0]

    def look(client: TopicsClient) -> None:
        """Before and behind the range every record is there; within it each read fails."""
        with client.read("large", 0, end_seq=first - 1) as stream:
            assert list(stream) == [record for record in records if record.seq < first]
        with client.read("large", last) as stream:
            assert list(stream) == [record for record in records if record.seq > last]
        with client.read("large", first - 3, end_seq=first - 1) as stream:
            assert list(stream) == [record for record in records if first - 3 < record.seq < first]
        for seq in (first, (first + last) // 2, last):
            text = rf'record {seq} of topic "large" .*damaged: {first}\.\.{last}.*{name}'
            with pytest.raises(TopicsError, match=text) as error:
                client.diff("large", seq - 1, limit=1)
            facts = {"topic": "large", "partition": "0", "first_seq": str(first), "last_seq": str(last)}
            assert error.value.detail == facts
        assert client.append("large", "more", tag="new").first_seq == 30_001

    refused, failed = outcome(directory, tmp_path / "server", originals.truth, look)
    assert refused is None
    assert list(failed) == [("large", 0)]
    assert name in failed["large", 0]
    assert (directory / name).exists()


def test_a_damaged_end_of_a_table_is_found_at_the_start_or_by_reads(originals: Originals, tmp_path: Path) -> None:
    """RocksDB looks at the ends of the first 16 tables only when it opens a database."""
    directory = harmed(originals.stopped, tmp_path, "*.sst", lambda path: flip(path, path.stat().st_size - 20))
    name = tables(originals.stopped)[0].name
    found = verify(directory)
    assert found.code == 1
    assert {problem["file"] for problem in found.problems} == {name}
    refused, failed = outcome(directory, tmp_path / "server", originals.truth)
    assert refused is None or name in refused
    assert refused is not None or ("large", 0) in failed  # others have small blocks, which are in other tables


def test_every_other_table_is_looked_at(originals: Originals, tmp_path: Path) -> None:
    """A flip in the first block of each: found by an audit, and a server gives no wrong record for any."""
    for number, table in enumerate(tables(originals.stopped)[1:]):
        work = tmp_path / str(number)
        work.mkdir()
        directory = copied(originals.stopped, work / "data")
        flip(directory / table.name, 10)
        found: list[Problem] = []
        check(directory, found.append)
        assert table.name in {problem.file for problem in found}, table.name
        if number < 3:  # a server takes a second each; the soak does them all
            outcome(directory, work / "server", originals.truth)


def test_a_compaction_that_meets_damage_stops_writes_once_and_then_no_more(
    originals: Originals, tmp_path: Path
) -> None:
    """A known limit: RocksDB takes no writes any more then. The next start does without compactions."""
    directory, name, lost = references_lost(originals.stopped, tmp_path)
    server = ServerProcess(tmp_path / "server", data_dir=directory)
    source, told = random.Random(1), ""
    for number in range(8):  # each stop leaves one more table
        try:
            server.start()
            with TopicsClient(server.grpc_target) as client:
                client.append_many("large", [source.randbytes(1000) for _ in range(50)])
                client.append_many(f"new:{number}", range(10))
            server.stop()
        except (TopicsError, StartFailedError) as error:
            told = str(error)
            server.kill()
        if (directory / "topics-damage.txt").exists():
            break
    assert name in (directory / "topics-damage.txt").read_text()
    assert "read-only" not in told or f"the file {name} is damaged" in told

    def look(client: TopicsClient) -> None:
        assert client.append("large", "more").count == 1
        with client.read("large", lost["last_seq"], end_seq=30_000) as stream:
            assert list(stream) == [record for record in originals.truth["large", 0] if record.seq > lost["last_seq"]]

    for number in range(2):
        others = {place: records for place, records in originals.truth.items() if place[0] != "large"}
        found = outcome(directory, tmp_path / f"again-{number}", others, look, made=f"another:{number}")
        assert found == (None, {})
        assert (directory / name).exists()
    assert [problem["topic"] for problem in verify(directory).problems] == ["large"]


def test_damaged_first_records_of_a_topic_that_expires_fail_their_reads_only(
    originals: Originals, tmp_path: Path
) -> None:
    """What is over can be told from the records behind them."""
    directory = copied(originals.stopped, tmp_path / "data")
    store = RocksStore(directory)
    rows = {decode_row(row).name: decode_row(row).log_ids[0] for _, row in store.scan(Family.TOPICS, b"", b"\xff" * 9)}
    batch = store.batch()
    for topic in ("volatile", "capped"):
        # Not the first block of all: there may be some in front without a live record.
        first = next(found.seq for found in originals.truth[topic, 0] if isinstance(found, Record))
        key, value = store.floor(Family.BLOCKS, keys.pair(rows[topic], first)) or (b"", b"")
        batch.put(Family.BLOCKS, key, value[:200] + b"?" + value[201:])
    store.write(batch)
    store.close()
    lost = verify(directory).problems
    assert {(problem["kind"], problem["topic"]) for problem in lost} == {("damaged", "volatile"), ("damaged", "capped")}

    def look(client: TopicsClient) -> None:
        assert {state.topic for state in client.list_topics()} >= {"volatile", "capped"}
        for topic in ("volatile", "capped"):
            head = client.append(topic, "more").head_seq
            assert [record.value for record in client.diff(topic, head - 1).records] == ["more"]

    failed = outcome(directory, tmp_path / "server", originals.truth, look).failed
    assert set(failed) == {("volatile", 0), ("capped", 0)}
    assert all(f'of topic "{topic}"' in text for (topic, _), text in failed.items())
    assert 'record 1 of topic "volatile" can\'t be read' in (tmp_path / "server" / "server.log").read_text()


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_damage_anywhere(originals: Originals, tmp_path: Path) -> None:
    """A random file, place and harm. Where an audit finds nothing, everything has to be exact."""
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 1_000_000))
    end, number = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"]), 0
    while time.monotonic() < end:
        number += 1
        source = random.Random(f"{seed}:{number}")
        original = source.choice([originals.killed, originals.stopped])
        names = sorted(path.name for path in original.iterdir() if path.is_file() and path.name != "LOCK")
        work = tmp_path / str(number)
        work.mkdir()
        directory = copied(original, work / "data")
        path = directory / source.choice(names)
        size = path.stat().st_size
        place, how = source.randrange(size + 1), source.choice(["flip", "zero", "cut", "remove"])
        print(f"seed {seed}:{number}: {how} {path.name} of {original.name} at {place} of {size}")
        if how == "remove":
            remove(path)
        elif how == "cut":
            cut(path, place)
        elif how == "flip":
            flip(path, place)
        else:
            zero(path, place, source.choice([1, 100, 5000]))
        if number > 1:
            shutil.rmtree(tmp_path / str(number - 1))
        clean = verify(directory, "--deep").code == 0
        refused, failed = outcome(directory, work / "server", originals.truth)
        if clean:
            assert (refused, failed) == (None, {})
