"""Restores to moments between backups of a directory with shards, which several processes serve: all shards have one
clock, so a time is a moment over all of them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup.history import History, now_ms
from backup.load import Load, check_moment
from backup.restored import Restored, restoring
from backup.states import everything
from sdk.cli.runner import Cli

from support.server import ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_service.engine.placement import home_of
from topics_service.storage import shardfiles

SHARDS = 5
ENV = {"TOPICS_PROCESSES": "3", "TOPICS_SHARDS": str(SHARDS)}
CLI = Cli()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Three processes that keep their logs."""
    with ServerProcess(tmp_path / "server", env=ENV | {"TOPICS_WAL_ARCHIVE_SECONDS": "3600"}) as server:
        yield server
    assert "Traceback" not in server.log, server.log[-3000:]


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    with restoring(tmp_path, ENV) as start:
        yield start


@pytest.mark.timeout(600)
def test_any_moment_of_a_history_comes_back_as_it_was(
    server: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """Across backups, a kill of all processes, and archiving in between."""
    history = History(seed=5)
    archive = ("backup", "archive", "--to", target, "--data-dir", server.data_dir)

    def run(changes: int) -> None:
        with TopicsClient(server.grpc_target) as client:
            history.go_on(client, changes)

    with TopicsClient(server.grpc_target) as client:
        history.begin(client)
    Cli(server.grpc_target)("backup", "create", "--to", target)
    first = len(history.moments)
    run(8)
    server.kill()
    server.start()
    run(4)
    assert CLI(*archive).out.startswith("5 shards: ")
    Cli(server.grpc_target)("backup", "create", "--to", target)
    run(8)
    server.stop()
    rows = CLI(*archive, "--json").rows
    assert [row["shard"] for row in rows] == list(range(SHARDS))
    after = history.moments[first:]
    by_seq = next(moment for moment in reversed(after) if moment.seq is not None)
    assert by_seq.seq is not None
    chosen = [("--at", after[i].ms, after[i]) for i in (5, len(after) - 1)]
    chosen.append(("--at-seq", f"{by_seq.seq[0]}:{by_seq.seq[1]}", by_seq))
    for number, (flag, point, moment) in enumerate(chosen):
        new = tmp_path / f"new-{number}"
        told = CLI("backup", "restore", flag, point, "--from", target, "--to", new, "--json").row
        assert told["written_ms"] <= moment.ms
        assert [each["shard"] for each in told["shards"]] == list(range(SHARDS))
        assert CLI("verify", "--data-dir", new, "--json").row["clean"]
        with TopicsClient(restored(new).grpc_target) as client:
            found = everything(client)
        assert found.keys() == moment.state.keys(), (flag, point)
        for name, value in moment.state.items():
            assert found[name] == value, (flag, point, name)
    rows = CLI("backup", "verify", "--deep", "--from", target, "--json").rows
    assert all(row["intact"] for row in rows)
    assert sum(row["id"].startswith("log ") for row in rows) == SHARDS
    [found_range] = [row for row in CLI("backup", "list", "--from", target, "--json").rows if "from_ms" in row]
    assert found_range["from_ms"] <= after[0].ms
    assert found_range["until_ms"] >= after[-1].ms


@pytest.mark.timeout(600)
def test_a_moment_under_load_is_one_moment_over_all_shards(
    server: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """Also the end of what is archived, for which the shards are read one after the other."""
    cli = Cli(server.grpc_target)
    archive = ("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    with Load(server.grpc_target) as load:
        cli("backup", "create", "--to", target)
        first = dict(load.acked)
        poll(lambda: min(load.acked.values()) > 50, 60, "progress")
        at_least, ms = dict(load.acked), now_ms()
        at_most = dict(load.sent)
        poll(lambda: now_ms() > ms, 5)
        at = load.acked["right"]
        cli(*archive)
        end = dict(load.sent)
    latest = tmp_path / "latest"
    cli("backup", "restore", "--at", "latest", "--from", target, "--to", latest)
    with TopicsClient(server.grpc_target) as source:
        with TopicsClient(restored(latest).grpc_target) as client:
            check_moment(client, source, at_least, end)
        for number, arguments in enumerate((("--at", ms), ("--at-seq", f"right:{at}"))):
            new = tmp_path / f"new-{number}"
            cli("backup", "restore", *arguments, "--from", target, "--to", new)
            with TopicsClient(restored(new).grpc_target) as client:
                high = {topic: sent + 50 for topic, sent in at_most.items()}
                heads = check_moment(client, source, at_least if number == 0 else first, high)
                assert number == 0 or heads["right"] >= at


def test_moments_that_not_all_shards_have_are_refused(server: ServerProcess, target: Path, tmp_path: Path) -> None:
    cli = Cli(server.grpc_target)
    names = [next(f"t-{n}" for n in range(100) if home_of(f"t-{n}", SHARDS) == shard) for shard in range(SHARDS)]
    with TopicsClient(server.grpc_target) as client:
        for name in names:
            client.append(name, 1)
        before = now_ms() - 60_000
        cli("backup", "create", "--to", target)
        for name in names:
            client.append(name, 2)
    CLI("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    refused = CLI("backup", "restore", "--at", before, "--from", target, "--to", tmp_path / "x", code=1).err
    assert "can't be restored: the restorable moments are " in refused
    refused = CLI("backup", "restore", "--at-seq", f"{names[3]}:3", "--from", target, "--to", tmp_path / "x", code=5)
    assert f'the log does not show how "{names[3]}" reached seq 3' in refused.err
    body = json.loads(next((target / "backups").iterdir()).read_bytes())["backup"]
    line = body["shards"][2]["log"]["line"]
    newest = max((target / "log" / line).glob("*.wal"))
    data = newest.read_bytes()
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused = CLI(
        "backup", "restore", "--at-seq", f"{names[4]}:2", "--from", target, "--to", tmp_path / "x", code=1
    ).err
    assert refused.startswith("topics backup restore: shard 2: the archived log is damaged: log/")
    assert "writes until" in refused
    rows = CLI("backup", "verify", "--from", target, "--json", code=1).rows
    assert [row["id"] for row in rows if not row["intact"]] == [f"log {line}"]
    newest.unlink()
    shutil.rmtree(target / "log" / body["shards"][1]["log"]["line"])
    refused = CLI("backup", "restore", "--at", now_ms(), "--from", target, "--to", tmp_path / "x", code=1).err
    assert "can't be restored: the restorable moments are " in refused
    assert not (tmp_path / "x").exists()
    (server.data_dir / shardfiles.NAME).write_text("{")
    told = CLI("backup", "archive", "--to", target, "--data-dir", server.data_dir, code=1).err
    assert "is damaged" in told
