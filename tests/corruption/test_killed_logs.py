"""Harm to the write-ahead logs of a real server that was killed under mixed load. Either nothing starts, and the file
is named, or everything that was acknowledged is there; a repair makes explicit gaps, and no seq is given again."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from corruption.harness import cut, flip, verify, zero
from corruption.killed import Killed, check, copied, make_killed, started

from support.server import ServerProcess, StartFailedError
from topics_server.repair import RepairObserver, repair
from topics_service.storage.store import StoreOpenError
from topics_service.storage.wal import end_mark
from topics_service.storage.wal.batches import batches

ROUNDS = int(os.environ.get("TOPICS_HARMS", "60"))
REPAIRS = max(4, ROUNDS // 15)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    made = make_killed(tmp_path_factory.mktemp("killed"))
    assert len(made.logs) > 1
    return made


def harm(source: random.Random) -> Callable[[list[Path]], None]:
    """Something that a bad disk, or a bad hand, does to one of them."""

    def remove(path: Path, at: int, other: Path) -> None:
        path.unlink()

    def swap(path: Path, at: int, other: Path) -> None:
        mine, its = path.read_bytes(), other.read_bytes()
        path.write_bytes(its)
        other.write_bytes(mine)

    def without_middle(path: Path, at: int, other: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:at] + data[at + source.choice((1, 100, 32 << 10)) :])

    ways: list[Callable[[Path, int, Path], object]] = [
        lambda path, at, other: cut(path, at),
        lambda path, at, other: cut(path, source.choice([0, *(batch.stop for batch in batches(path.read_bytes()))])),
        lambda path, at, other: flip(path, min(at, path.stat().st_size - 1)),
        lambda path, at, other: zero(path, at, source.choice((1, 100, 5000, 1 << 20))),
        lambda path, at, other: path.write_bytes(path.read_bytes() + path.read_bytes()[:at]),
        lambda path, at, other: path.write_bytes(path.read_bytes() + source.randbytes(source.choice((3, 20, 300)))),
        lambda path, at, other: other.write_bytes(path.read_bytes()),
        remove,
        swap,
        without_middle,
    ]

    def do(logs: list[Path]) -> None:
        path, other = source.choice(logs), source.choice(logs)
        source.choice(ways)(path, source.randrange(path.stat().st_size), other)

    return do


def unchanged(killed: Killed, directory: Path) -> bool:
    copies = [directory / path.name for path in killed.logs]
    return all(
        path.exists() and path.read_bytes() == old.read_bytes() for path, old in zip(copies, killed.logs, strict=True)
    )


def test_nothing_acknowledged_is_lost_in_silence(killed: Killed, tmp_path: Path) -> None:
    refusals = []
    for number in range(ROUNDS):
        directory = copied(killed, tmp_path / "copy", harm(random.Random(number)))
        try:
            store, engine = started(directory)
        except StoreOpenError as error:
            refusals.append((str(error), unchanged(killed, directory)))
            continue
        try:
            check(engine, killed.acked, lost=False)
        finally:
            store.close()
    assert len(refusals) > ROUNDS // 2
    for text, whole in refusals:
        assert not whole, text
        assert any(path.name in text for path in killed.logs), text


@pytest.mark.parametrize("seed", range(REPAIRS))
def test_a_repair_tells_every_loss_and_gives_no_seq_again(seed: int, killed: Killed, tmp_path: Path) -> None:
    directory = copied(killed, tmp_path / "data", harm(random.Random(f"repair {seed}")))
    harmed = not unchanged(killed, directory)
    told: list[str] = []
    repair(
        directory,
        RepairObserver(
            note=told.append, problem=lambda found: told.append(found.text), action=lambda done: told.append(done.text)
        ),
        apply=True,
    )
    store, engine = started(directory)
    try:
        check(engine, killed.acked, lost=harmed)
    finally:
        store.close()


@pytest.mark.parametrize("which", [-2, -1], ids=["middle", "newest"])
def test_the_server_and_verify_name_the_log_and_the_byte_and_a_repair_lets_it_start(
    killed: Killed, tmp_path: Path, which: int
) -> None:
    """A log that is needed, cut in its middle. Rows of the newest are in no table; those of others can be."""
    path = killed.logs[which]
    size = path.stat().st_size // 2
    keep = max([0, *(batch.stop for batch in batches(path.read_bytes()) if batch.stop <= size)])
    directory = copied(killed, tmp_path / "data", lambda logs: cut(logs[which], size))
    (problem,) = verify(directory).problems
    assert problem["file"] == path.name
    server = ServerProcess(tmp_path / "server", data_dir=directory)
    with pytest.raises(StartFailedError):
        server.start()
    (line,) = (line for line in server.log.splitlines() if line.startswith("topics: "))
    assert path.name in line
    assert f"byte {keep}" in line or "is cut at byte" in line
    repair(directory, RepairObserver(note=str, problem=str, action=str), apply=True)
    assert verify(directory, "--deep").problems == []
    store, engine = started(directory)
    try:
        lost = sum(check(engine, killed.acked, lost=True).values())
    finally:
        store.close()
    assert lost or which == -2


def test_a_power_cut_takes_the_end_that_was_not_synced_and_no_more(killed: Killed, tmp_path: Path) -> None:
    """In another boot the newest log may end anywhere behind what was synced: `disk` topics go on above their ceiling,
    and what was acknowledged after an fsync is there."""
    mark = end_mark.read(killed.path)
    assert mark is not None
    newest = killed.logs[-1]
    ends = [batch.stop for batch in batches(newest.read_bytes())]
    synced = max(batch.stop for batch in batches(newest.read_bytes()) if batch.next_seq <= mark.synced)
    for size in (synced - 1, ends[len(ends) // 2]):
        directory = copied(killed, tmp_path / "copy", lambda logs, size=size: cut(logs[-1], size))
        with pytest.raises(StoreOpenError, match=f"{newest.name}.*synced"):
            started(directory, "another boot")
    for size in (synced, newest.stat().st_size - 1):
        directory = copied(killed, tmp_path / "copy", lambda logs, size=size: cut(logs[-1], size))
        store, engine = started(directory, "another boot")
        try:
            lost = check(engine, killed.acked, lost=True)
            assert lost["fsync"] == lost["quiet"] == 0
        finally:
            store.close()
        shutil.rmtree(directory)
