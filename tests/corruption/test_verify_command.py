"""`topics verify`: the command itself."""

import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from corruption.harness import copied, flip, listing, verify
from sdk.cli.runner import Cli, environment

from support import commands
from support.server import ServerProcess
from topics_client import TopicsClient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server") as server:
        yield server


def test_a_clean_directory_is_one_line_and_0(stopped: Path) -> None:
    ran = Cli()("verify", "--data-dir", stopped, "--deep")
    assert ran.out.startswith("clean: 10 topics, 12 partitions, ")
    assert (ran.out.count("\n"), ran.err) == (1, "")


def test_each_problem_is_a_line_with_its_place(stopped: Path, tmp_path: Path) -> None:
    directory = copied(stopped, tmp_path / "data")
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    flip(table, table.stat().st_size // 3)
    ran = Cli()("verify", "--data-dir", directory, code=1)
    first, last = ran.out.splitlines()
    assert first.startswith("unreadable: large seq ")
    assert table.name in first
    assert str(directory) in first, "RocksDB's words are of the directory itself"
    assert last.startswith("looked at 10 topics")
    assert "one problem" in ran.err
    (problem, total) = Cli()("verify", "--data-dir", directory, "--json", code=1).rows
    assert (problem["kind"], problem["topic"], problem["file"]) == ("unreadable", "large", table.name)
    assert f"seq {problem['first_seq']}..{problem['last_seq']}:" in first
    assert (total["clean"], total["problems"]) == (False, 1)


@pytest.mark.parametrize("name", ["absent", "empty", "other"])
def test_what_is_no_data_directory_is_wrong_usage(name: str, tmp_path: Path) -> None:
    directory = tmp_path / name
    if name != "absent":
        directory.mkdir()
    if name == "other":
        (directory / "notes.txt").write_text("nothing of ours")
    before = sorted(tmp_path.rglob("*"))
    ran = Cli()("verify", "--data-dir", directory, code=2)
    assert f"no data directory {directory}" in ran.err
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_directory_it_is_wrong_usage() -> None:
    assert "--data-dir" in Cli()("verify", code=2, lines=1).err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["verify", "--data-dir", "directory é", "--deep", "--json"], 0),
        (["verify", "--data-dir", "damaged"], 1),
        (["repair", "--data-dir", "damaged", "--json"], 1),
        (["verify", "--data-dir", "absent \udcff"], 2),
        (["verify"], 2),
        (["verify", "--help"], 0),
        (["backup", "create", "--to", "backups"], 3),
        (["backup", "verify", "--from", "backups"], 5),
    ],
)
def test_a_forked_command_does_what_one_by_exec_does(
    arguments: list[str], code: int, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(stopped, tmp_path / "directory é")
    damaged = copied(stopped, tmp_path / "damaged")
    table = max(damaged.glob("*.sst"), key=lambda path: path.stat().st_size)
    flip(table, table.stat().st_size // 3)
    monkeypatch.chdir(tmp_path)
    env = environment("topics://127.0.0.1:1", {"COLUMNS": "70"})
    ran = [run(arguments, env, timeout=60) for run in (commands.run_by_exec, commands.COMMANDS.run)]
    told = [(each.returncode, each.stdout, each.stderr) for each in ran]
    assert told[0] == told[1]
    assert told[0][0] == code, told


def test_a_directory_that_nobody_may_write_is_checked(stopped: Path, tmp_path: Path) -> None:
    directory = copied(stopped, tmp_path / "data")
    before = listing(directory)
    for path in (*directory.iterdir(), directory):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert verify(directory).code == 0
    finally:
        directory.chmod(0o755)
    assert listing(directory) == before


def test_beside_a_running_server_it_checks_one_moment(server: ServerProcess) -> None:
    """During writes, deletes and eviction; the output says that a server holds the directory."""
    stop = threading.Event()

    def write() -> None:
        with TopicsClient(server.grpc_target) as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.append_many("events", [f"{number}:{i}" for i in range(100)])
                client.append("tagged", number, tag=f"t{number % 3}")
                if not number % 20:
                    client.delete_records("tagged", tag="t1")
                    client.delete_records("events", before_seq=number * 50)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            ran = Cli()("verify", "--data-dir", server.data_dir, "--deep", "--json")
            assert ran.row["live"] is True
            assert ran.row["clean"] is True
    finally:
        stop.set()
        writer.join(30)
    with TopicsClient(server.grpc_target) as client:
        assert client.append("events", "still there").count == 1
    assert server.stop() == 0
    assert Cli()("verify", "--data-dir", server.data_dir, "--json").row["live"] is False


def test_a_torn_end_of_the_log_is_no_problem(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("events", range(1000))
    server.signal(signal.SIGKILL)
    server.wait(30)
    log = max(server.data_dir.glob("*.log"))
    with log.open("ab") as file:
        file.write(struct.pack("<IHB", 1, 500, 1) + b"begun")  # a record whose rest never came
    ran = Cli()("verify", "--data-dir", server.data_dir, "--json")
    assert (ran.row["records"], ran.row["problems"]) == (1000, 0)


def test_a_pipe_that_closes_ends_it_in_silence(stopped: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = Cli().start("verify", "--data-dir", stopped, "--json", stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as out:
        assert json.loads(out.readline())["clean"] is True
    assert process.wait(50) in (0, 141)
