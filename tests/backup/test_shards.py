"""Backups of a directory with shards, which several processes serve: each is of one moment over all shards."""

import asyncio
import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backup.load import Load, check_moment
from backup.restored import Restored, restoring
from backup.states import everything, fill
from sdk.cli.runner import Cli
from shards.test_processes import children, is_ready

from support.server import ServerProcess
from support.waiting import poll
from topics_backup import manifest, repository
from topics_backup.errors import BackupError, DamagedError
from topics_backup.target import Folder
from topics_client import TopicsClient
from topics_client.errors import TopicsError
from topics_proto.v1 import admin_service_pb2 as pb
from topics_server.processes.board import _MEETING, Board
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.observers import NO_OBSERVERS
from topics_service.engine.errors import Reason
from topics_service.engine.errors import TopicsError as Refused
from topics_service.engine.model import ReadyState
from topics_service.engine.placement import home_of
from topics_service.storage import checkpoint, shardfiles
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family
from topics_shards.checkpoints import CheckpointsApi, ShardedCheckpoints
from topics_shards.shards import LocalShards

SHARDS = 5
PROCESSES = 3
KEY = b"key"
READY = ReadyState(ready=True, reason="", topics=3, replay_progress=1.0)
ENV = {"TOPICS_PROCESSES": str(PROCESSES), "TOPICS_SHARDS": str(SHARDS)}
CLI = Cli()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Two processes; their log must hold no traceback."""
    with ServerProcess(tmp_path / "server", env=ENV) as server:
        yield server
    assert "Traceback" not in server.log, server.log[-3000:]


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    with restoring(tmp_path, ENV) as start:
        yield start


def has_come(load: Load, minimum: int) -> bool:
    return min(load.acked.values()) > minimum


def held(server: ServerProcess) -> list[Path]:
    directory = server.data_dir / "checkpoints"
    return list(directory.iterdir()) if directory.is_dir() else []


def fill_shards(client: TopicsClient) -> dict[str, int]:
    """Some records in topics of all shards."""
    names = {f"topic-{number}": number + 1 for number in range(4 * SHARDS)}
    assert {home_of(name, SHARDS) for name in names} == set(range(SHARDS))
    for name, count in names.items():
        client.append_many(name, [f"{name} {number}" for number in range(count)])
    return names


def test_a_backup_under_load_is_of_one_moment_over_all_shards(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """Pairs of writes to two processes, routers, groups and jobs between them: nothing is there without its cause."""
    for one, other in (("left", "right"), ("orders", "copies"), ("before", "group"), ("group", "behind")):
        assert home_of(one, SHARDS) % PROCESSES != home_of(other, SHARDS) % PROCESSES
    made = []
    with Load(server.grpc_target) as load:
        for number in range(2):
            poll(partial(has_come, load, 30 * (number + 1)), 60, "progress")
            at_least = dict(load.acked)
            backup = cli("backup", "create", "--to", target, "--json").row
            made.append((backup["id"], at_least, dict(load.sent)))
    with TopicsClient(server.grpc_target) as source:
        for backup_id, at_least, at_most in made:
            CLI("backup", "restore", backup_id, "--from", target, "--to", tmp_path / backup_id)
            assert CLI("verify", "--data-dir", tmp_path / backup_id, "--json").row["clean"]
            with TopicsClient(restored(tmp_path / backup_id).grpc_target) as client:
                check_moment(client, source, at_least, at_most)
    assert held(server) == []


def test_a_restored_server_answers_as_the_source_did(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        names = fill_shards(client)
        before = everything(client)
        first = cli("backup", "create", "--to", target, "--json").row
        assert first["records"] >= sum(names.values())
        client.append("topic-1", "later")
    second = cli("backup", "create", "--to", target, "--json").row
    assert second["topics"] == first["topics"]
    assert second["records"] == first["records"] + 1
    assert second["new_bytes"] < first["new_bytes"] / 2
    told = CLI("backup", "verify", "--from", target, "--deep", "--json").rows
    assert [(each["id"], each["intact"], each["records"]) for each in told] == [
        (each["id"], True, each["records"]) for each in (second, first)
    ]
    out = CLI("backup", "restore", first["id"], "--from", target, "--to", tmp_path / "new").out
    assert out.endswith(f"serve it with: topics serve --data-dir {tmp_path / 'new'} --processes 2\n")
    assert shardfiles.count_of(tmp_path / "new") == SHARDS
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before
    done = CLI("backup", "prune", "--from", target, "--keep", 1, "--grace", "0s", "--json").row
    assert done["backups"] == [first["id"]]
    assert CLI("backup", "verify", "--from", target, "--json").row["intact"]


def test_a_stopped_directory_is_backed_up_and_stays(
    server: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill_shards(client)
        before = everything(client)
    told = CLI("backup", "create", "--data-dir", server.data_dir, "--to", target, code=1).err
    assert "it is in use by another server" in told
    server.stop()
    assert CLI("backup", "create", "--data-dir", server.data_dir, "--to", target, "--json").row["topics"] == 4 * SHARDS
    assert not (server.data_dir / "checkpoints").exists()
    CLI("backup", "restore", "--from", target, "--to", tmp_path / "new", "--jump", 100)
    for directory, jump in ((tmp_path / "new", 100), (server.data_dir, 0)):
        with TopicsClient(restored(directory).grpc_target) as client:
            if not jump:
                assert everything(client) == before
            assert client.append("topic-3", "on").first_seq == 5 + jump


def test_checkpoints_are_made_and_released_at_any_process(server: ServerProcess) -> None:
    def call(ask: Callable[[TopicsClient], object]) -> object:
        with TopicsClient(server.grpc_target) as client:  # another connection, so maybe another process
            return ask(client)

    def create(client: TopicsClient) -> pb.CreateCheckpointResponse:
        connection = client.connection
        made: pb.CreateCheckpointResponse = connection.unary(
            connection.admin.CreateCheckpoint, pb.CreateCheckpointRequest()
        )
        return made

    for _ in range(2):
        made = [call(create) for _ in range(4)]
        with pytest.raises(TopicsError, match="there are 4 checkpoints already"):
            call(create)
        for each in made:
            path = Path(each.path)
            assert path.parent == server.data_dir / "checkpoints"
            assert shardfiles.count_of(path) == SHARDS
            assert all((own / "CURRENT").is_file() for own in shardfiles.directories(path))
            assert Cli(server.grpc_target)("backup", "release", each.checkpoint_id, "--json").row["released"]
        assert held(server) == []
    told = Cli(server.grpc_target)("backup", "release", "none", code=5).err
    assert "the server has no checkpoint none" in told


def begun(server: ServerProcess, target: Path) -> "subprocess.Popen[bytes]":
    """A backup whose checkpoint is being made: one that has come to the process that does not answer is given up."""
    for _ in range(12):
        command = Cli(server.grpc_target).start("backup", "create", "--to", target)
        with suppress(AssertionError):
            poll(lambda: held(server), 5)
            return command
        command.kill()
        command.wait()
    raise AssertionError("no backup has begun")


def test_a_process_that_does_not_answer_or_dies_costs_the_checkpoint_and_nothing_else(
    server: ServerProcess, target: Path
) -> None:
    with TopicsClient(server.grpc_target) as client:
        names = fill_shards(client)
    victim = children(server)[1]
    theirs = [name for name in names if home_of(name, SHARDS) % PROCESSES == 0]
    os.kill(victim, signal.SIGSTOP)
    try:
        command = begun(server, target)
    finally:
        os.kill(victim, signal.SIGKILL)
    assert command.wait(30) in (1, 3)
    poll(lambda: victim not in children(server) and len(children(server)) == PROCESSES and is_ready(server), 30)
    poll(lambda: held(server) == [], 10)
    with TopicsClient(server.grpc_target) as client:
        for name in theirs:
            assert client.get_topic(name).count == names[name]
    assert list(repository.ids(Folder(target))) == []
    assert Cli(server.grpc_target)("backup", "create", "--to", target, "--json").row["topics"] == len(names)


def test_damage_of_a_shard_is_found_and_named(server: ServerProcess, cli: Cli, target: Path, tmp_path: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill_shards(client)
    first = cli("backup", "create", "--to", target, "--json").row["id"]
    with TopicsClient(server.grpc_target) as client:
        client.append("topic-7", "later")
    last = cli("backup", "create", "--to", target, "--json").row["id"]
    folder = Folder(target)
    older = {file.key for each in repository.load(folder, first).databases for file in each.files}
    part = repository.load(folder, last).databases[home_of("topic-7", SHARDS)]
    file = next(file for file in part.files if file.key not in older and file.name.endswith(".sst"))
    (target / file.key).unlink()
    told = CLI("backup", "verify", "--from", target, code=1).out
    assert f"{file.name} ({file.key}) is missing" in told
    told = CLI("backup", "restore", "--from", target, "--to", tmp_path / "new", code=1).err
    assert file.name in told
    assert f"the newest intact one before it is {first}" in told
    assert not (tmp_path / "new").exists()
    CLI("backup", "restore", "--from", target, "--to", tmp_path / "new", "--fallback")
    assert CLI("verify", "--data-dir", tmp_path / "new", "--json").row["clean"]


def test_manifests_of_both_formats_and_ones_that_contradict_themselves(
    server: ServerProcess, cli: Cli, target: Path
) -> None:
    backup_id = cli("backup", "create", "--to", target, "--json").row["id"]
    path = target / "backups" / f"{backup_id}.json"
    body = json.loads(path.read_bytes())["backup"]
    assert (body["format"], len(body["shards"]), body["files"], body["topics"]) == (2, SHARDS, [], [])

    def decoded(**changes: object) -> manifest.Manifest:
        return manifest.decode(backup_id, manifest.seal(json.dumps(body | changes).encode()))

    assert len(decoded().databases) == SHARDS
    without = [{**part, "files": []} for part in body["shards"]]
    for changes in ({"shards": []}, {"shards": without}, {"format": 1}, {"shards": body["shards"] * 13}):
        with pytest.raises(DamagedError, match="contradicts itself"):
            decoded(**changes)
    with pytest.raises(BackupError, match="has the format 3, this version reads 1 and 2: use a later version"):
        decoded(format=3)


# ------------------------------------------------------------------ meeting


@pytest.mark.parametrize("misses", [1, 3])
async def test_a_meeting_that_fails_is_tried_again_without_what_it_has_left(tmp_path: Path, misses: int) -> None:
    """The first shard is captured at each attempt; the process of the second one comes late so many times."""
    stores = {shard: RocksStore(tmp_path / f"store-{shard}") for shard in range(2)}
    met: list[int] = []

    def meet(number: int) -> bool:
        assert number not in met, "a number is used once"
        met.append(number)
        return len(met) > misses

    class Two(LocalShards):
        process, processes = 0, 2

        async def call(self, shard: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
            assert shard == self.number_of(1)
            return await method(other, *args, **kwargs)

    shards = Two({})
    shards.count = 2
    own = CheckpointsApi({0: stores[0]}, lambda _: True)
    other = CheckpointsApi({1: stores[1]}, meet)
    made = ShardedCheckpoints(shards, own, NO_OBSERVERS)
    keeper = Checkpoints(tmp_path / "made", made.maker(), checkpoint.remove, lambda: READY)
    own.kept = keeper
    if misses < 3:
        held = await made.create()
        assert all((path / "CURRENT").exists() for path in shardfiles.directories(held.path))
        assert await made.release(held.checkpoint_id)
    else:
        with pytest.raises(Refused, match="did not pause together for a checkpoint: try again") as refused:
            await made.create()
        assert refused.value.reason is Reason.NOT_READY
    assert len(met) == min(misses + 1, 3)
    assert list((tmp_path / "made").iterdir()) == []
    for store in stores.values():
        store.close()


def meet(board: Board, count: int, number: int, seconds: float) -> list[bool]:
    """The outcome at each of so many processes, of which the last ones may not come."""
    found: dict[int, bool] = {}

    def run(process: int) -> None:
        time.sleep(0.02 * process)
        found[process] = board.meet(process, 3, number, seconds)

    threads = [threading.Thread(target=run, args=(process,)) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[process] for process in range(count)]


class Process(threading.Thread):
    """The event loop of one process with a shard: it writes what `take` gives, and stops to make its part."""

    def __init__(self, folder: Path, shard: int, meet: Callable[[int], bool], take: Callable[[], int]) -> None:
        super().__init__()
        self.store = RocksStore(folder / f"store-{shard}")
        self.stop = threading.Event()
        self.is_due = threading.Event()
        self.sent: queue.Queue[int] = queue.Queue()
        self.last = 0
        self._api = CheckpointsApi({shard: self.store}, meet)
        self._folder = folder
        self._take = take

    def run(self) -> None:
        while not self.stop.is_set():
            if self.is_due.is_set():
                self.is_due.clear()
                asyncio.run(self._api.capture(str(self._folder / "made"), 5))
            try:
                number = self._take()
            except queue.Empty:
                continue
            batch = self.store.batch()
            batch.put(Family.ROWS, KEY, b"%d" % number)
            self.store.write(batch)
            self.last = number
            self.sent.put(number)


def has_written(process: Process, number: int) -> bool:
    return process.last >= number


@pytest.mark.parametrize("meets", [True, False])
def test_no_effect_is_there_without_its_cause(tmp_path: Path, meets: bool) -> None:
    """The second process writes what it is told by the first one, which makes its part much earlier: without the
    meeting, that shows."""
    board, numbers = Board(2), itertools.count(1)
    shardfiles.create(tmp_path / "made", 2)

    def met(process: int) -> Callable[[int], bool]:
        return lambda number: board.meet(process, 2, number, 20) if meets else True

    one = Process(tmp_path, 0, met(0), lambda: next(numbers))
    other = Process(tmp_path, 1, met(1), lambda: one.sent.get(timeout=0.01))
    for each in (one, other):
        each.start()
    poll(partial(has_written, other, 100), 20)
    one.is_due.set()
    if meets:
        poll(lambda: board._values[_MEETING] == 5, 20)
        poll(one.sent.empty, 20)
    else:
        poll((tmp_path / "made" / "shards" / "0" / "CURRENT").exists, 20)
        poll(partial(has_written, other, one.last + 1), 20)
    other.is_due.set()
    poll(lambda: all((tmp_path / "made" / "shards" / str(shard) / "CURRENT").exists() for shard in (0, 1)), 20)
    for each in (one, other):
        each.stop.set()
        each.join()
        each.store.close()
    found = []
    for path in shardfiles.directories(tmp_path / "made"):
        store = RocksStore(path)
        found.append(int(store.get(Family.ROWS, KEY) or 0))
        store.close()
    assert (found[1] <= found[0]) is meets, found


def test_processes_meet_or_all_of_them_go_on_alone() -> None:
    board = Board(4)
    assert meet(board, 3, 7, 10) == [True] * 3
    began = time.monotonic()
    assert meet(board, 2, 8, 0.2) == [False] * 2
    assert time.monotonic() - began < 5
    assert board.meet(2, 3, 8, 10) is False, "one that comes later does not wait"
    assert [board.are_met(process, 3, 7) for process in range(3)] == [False] * 3
    assert [board.are_met(process, 3, 8) for process in range(3)] == [True] * 3, "they have given up"
    assert meet(board, 3, 9, 10) == [True] * 3
