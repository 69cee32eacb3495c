"""Restores to moments between backups, by time and by seq, on real servers with the real command."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import randbytes

import pytest
from backup.history import History, now_ms
from backup.load import Load, check_moment
from backup.states import contents, everything, records
from sdk.cli.runner import Cli

from support.http import Api
from support.server import ServerProcess
from support.waiting import poll
from topics_client import Gap, NewRecord, TopicConfig, TopicsClient
from topics_service.storage import checksummed

Restored = Callable[[Path], ServerProcess]
ARCHIVE = {"TOPICS_WAL_ARCHIVE_SECONDS": 3600}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that keeps its log, for all tests that leave it running; each has topics and a target of its own."""
    with ServerProcess(tmp_path_factory.mktemp("point-in-time") / "server", env=ARCHIVE) as server:
        yield server
    assert "Traceback" not in server.log, server.log[-3000:]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that keeps its log, to kill."""
    with ServerProcess(tmp_path / "own", env=ARCHIVE) as server:
        yield server
    assert "Traceback" not in server.log, server.log[-3000:]


@pytest.fixture
def archive(server: ServerProcess, cli: Cli, target: Path) -> Callable[[], dict[str, object]]:
    """Archives new data; returns the output of the command."""

    def archive() -> dict[str, object]:
        done: dict[str, object] = cli("backup", "archive", "--to", target, "--data-dir", server.data_dir, "--json").row
        return done

    return archive


def pieces(target: Path) -> list[Path]:
    return sorted((target / "log").rglob("*.wal"))


def count(client: TopicsClient) -> int:
    """How many records the server has in all."""
    return sum(topic.count for topic in client.list_topics())


def wait_for_the_next_ms() -> int:
    ms = now_ms()
    poll(lambda: now_ms() > ms, 5)
    return ms


def test_everything_deleted_by_accident_comes_back(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """By the time before, and by the seq that was written last before."""
    with TopicsClient(server.grpc_target) as client:
        client.put_topic("orders", TopicConfig(durability="fsync"))
        client.append_many("orders", [NewRecord(n, tag="order") for n in range(10)])
        cli("backup", "create", "--to", target)
        client.append_many("orders", [NewRecord(n, tag="order") for n in range(10, 25)])
        before, there, good = everything(client), count(client), wait_for_the_next_ms()
        client.delete_records("orders", tag="order")
        client.delete_topic("orders")
        client.append("orders", "another one")
    cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    for number, point in enumerate((("--at", good), ("--at-seq", "orders:25"))):
        told = cli("backup", "restore", *point, "--from", target, "--to", tmp_path / f"new-{number}", "--json").row
        assert told["records"] == there
        with TopicsClient(restored(tmp_path / f"new-{number}").grpc_target) as client:
            assert everything(client) == before
            assert client.append("orders", "on").first_seq == 26


def test_any_moment_of_a_history_comes_back_as_it_was(
    own: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """Across backups, kills of the server, and archiving in between."""
    cli = Cli(own.grpc_target)
    history = History(seed=5)

    def run(changes: int) -> None:
        with TopicsClient(own.grpc_target) as client:
            history.go_on(client, changes)

    with TopicsClient(own.grpc_target) as client:
        history.begin(client)
    cli("backup", "create", "--to", target)
    first = len(history.moments)
    run(8)
    own.kill()
    own.start()
    run(8)
    cli("backup", "archive", "--to", target, "--data-dir", own.data_dir)
    cli.url = own.grpc_target
    cli("backup", "create", "--to", target)
    run(8)
    own.kill()
    cli("backup", "archive", "--to", target, "--data-dir", own.data_dir)
    own.start()
    run(4)
    assert own.stop() == 0
    cli("backup", "archive", "--to", target, "--data-dir", own.data_dir)

    after = history.moments[first:]
    by_seq = [moment for moment in after if moment.seq is not None]
    chosen = [("--at", after[i].ms, after[i]) for i in (9, 20, len(after) - 1)]
    for moment in (by_seq[0], by_seq[-2]):
        assert moment.seq is not None
        chosen.append(("--at-seq", f"{moment.seq[0]}:{moment.seq[1]}", moment))
    for number, (flag, point, moment) in enumerate(chosen):
        new = tmp_path / f"new-{number}"
        told = cli("backup", "restore", flag, point, "--from", target, "--to", new, "--json").row
        assert told["written_ms"] <= moment.ms
        assert cli("verify", "--data-dir", new, "--deep", "--json").row["clean"]
        with TopicsClient(restored(new).grpc_target) as client:
            found = everything(client)
            assert found.keys() == moment.state.keys(), (flag, point)
            for name, value in moment.state.items():
                assert found[name] == value, (flag, point, name)
    told = cli("backup", "restore", "--at", "latest", "--from", target, "--to", tmp_path / "latest", "--json").row
    assert told["written_ms"] >= after[-1].ms - 60_000
    rows = cli("backup", "verify", "--deep", "--from", target, "--json").rows
    assert all(row["intact"] for row in rows)
    assert rows[-1]["id"].startswith("log ")
    assert rows[-1]["records"] == told["records"]


def test_a_cut_between_statements_has_rows_and_their_events_or_neither(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.sql_script(
            "CREATE NAMESPACE cut; CREATE TABLE cut.t (id BIGINT PRIMARY KEY, n BIGINT);"
            "CREATE INDEX t_n ON cut.t (n); CREATE TOPIC cut.events WITH (partitions = 1);"
            "ALTER TOPIC cut.events ADD SOURCE cut.t ON INSERT WITH (payload = 'full')"
        )
        cli("backup", "create", "--to", target)
        for number in range(6):
            client.sql_many("INSERT INTO cut.t VALUES ($1, $2)", [(3 * number + i, number) for i in range(3)])
    cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    for number, (seq, rows) in enumerate(((3, 3), (10, 12), (18, 18))):
        new = tmp_path / f"new-{number}"
        cli("backup", "restore", "--at-seq", f"cut.events:{seq}", "--from", target, "--to", new)
        assert cli("verify", "--data-dir", new, "--json").row["clean"]
        with TopicsClient(restored(new).grpc_target) as client:
            found = client.sql("SELECT id, n FROM cut.t").tuples
            assert found == [(each, each // 3) for each in range(rows)]
            events = [record.value for record in records(contents(client, "cut.events"))]
            assert [(event["id"], event["n"]) for event in events] == found
            assert client.sql("SELECT count(*) FROM cut.t WHERE n >= 0").scalar() == rows


def test_a_moment_under_load_is_one_moment(
    own: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """Clients of every kind write while backups are made and the log is archived: what a checkpoint holds of the log
    file that is being written is told exactly, and any batch is a moment across topics."""
    cli = Cli(own.grpc_target)
    archive = ("backup", "archive", "--to", target, "--data-dir", own.data_dir)
    with Load(own.grpc_target) as load:
        cli("backup", "create", "--to", target)
        first = dict(load.acked)
        poll(lambda: min(load.acked.values()) > 50, 40, "progress")
        cli(*archive)
        at_least, ms = dict(load.acked), now_ms()
        at_most = dict(load.sent)
        cli("backup", "create", "--to", target)
        at = (load.acked["right"] + first["right"]) // 2
    cli(*archive)
    point = json.loads(max((target / "backups").iterdir()).read_bytes())["backup"]["log"]["written_ms"]
    with TopicsClient(own.grpc_target) as source:
        for number, arguments in enumerate((("--at", ms), ("--at", point), ("--at-seq", f"right:{at}"))):
            new = tmp_path / f"new-{number}"
            cli("backup", "restore", *arguments, "--from", target, "--to", new)
            with TopicsClient(restored(new).grpc_target) as client:
                low = at_least if number == 0 else first
                high = {topic: sent + 50 for topic, sent in at_most.items()} if number == 0 else dict(load.sent)
                heads = check_moment(client, source, low, high)
                assert number < 2 or heads["right"] == at


def test_ephemeral_records_are_a_gap_and_no_seq_is_given_twice(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.put_topic("fleeting", TopicConfig(durability="ephemeral"))
        client.append_many("fleeting", range(20))
        cli("backup", "create", "--to", target)
        head = client.append_many("fleeting", range(30)).last_seq
        client.append("kept", 1)
        ms = wait_for_the_next_ms()
        client.append("kept", 2)
        client.delete_topic("fleeting")
    cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    cli("backup", "restore", "--at", ms, "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert [record.value for record in records(contents(client, "kept"))] == [1]
        assert all(isinstance(each, Gap) for each in contents(client, "fleeting"))
        assert client.append("fleeting", "on").first_seq > head


def test_only_what_is_new_is_archived(
    server: ServerProcess, cli: Cli, target: Path, archive: Callable[[], dict[str, int]]
) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("news", [bytes(10_000)] * 100)
        cli("backup", "create", "--to", target)
        assert archive()["bytes"] == 0
        client.append_many("news", [randbytes(10_000) for _ in range(20)])  # what does not shrink
        assert 200_000 < archive()["bytes"] < 210_000
        before = pieces(target)
        assert archive()["pieces"] == 0
        client.append("news", 1)
        assert 0 < archive()["bytes"] < 2000
    assert set(before) < set(pieces(target))
    assert not (target / "unneeded").exists()


def test_an_archive_loop_beside_a_server_that_is_killed_and_started(
    own: ServerProcess, target: Path, tmp_path: Path, restored: Restored
) -> None:
    cli = Cli(own.grpc_target)
    with TopicsClient(own.grpc_target) as client:
        client.append("lines", 0)
    cli("backup", "create", "--to", target)
    command = ("backup", "archive", "--to", target, "--data-dir", own.data_dir, "--every", "50ms", "--json")
    loop = cli.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert loop.stdout is not None
    first = loop.stdout.readline()  # it runs before the first life ends
    for life in range(3):
        with TopicsClient(own.grpc_target) as client:
            for number in range(60):
                client.append("lines", [life, number], meta={"pad": "x" * 500})
            state, ms = everything(client), now_ms()
        if life < 2:
            own.kill()
            own.start()
    until = target / "log"
    poll(lambda: any(checksummed.read(path)["ms"] > ms for path in until.rglob("until.json")), 20)
    loop.send_signal(signal.SIGTERM)
    out, err = loop.communicate(timeout=20)
    assert (loop.returncode, err) == (0, b"")
    assert len([first, *out.splitlines()]) > 3
    (row,) = (row for row in cli("backup", "list", "--from", target, "--json").rows if "line" in row)
    assert row["from_ms"] < ms <= row["until_ms"]
    cli("backup", "restore", "--at", "latest", "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == state


def test_a_log_that_is_damaged_or_has_a_hole(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, archive: Callable[[], dict[str, int]]
) -> None:
    """Is never restored; the moments before are, and are named."""
    times = []
    with TopicsClient(server.grpc_target) as client:
        client.append("torn", 0)
        there = count(client)
        cli("backup", "create", "--to", target)
        for number in range(1, 5):
            client.append("torn", number)
            times.append(wait_for_the_next_ms())
            archive()
    third = pieces(target)[-2]
    whole = third.read_bytes()

    third.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused = cli("backup", "restore", "--at", times[3], "--from", target, "--to", tmp_path / "new", code=1).err
    assert f"{third.name} has changed" in refused
    named = refused.split("--at ")[1].strip()
    refused = cli("backup", "restore", "--at-seq", "torn:5", "--from", target, "--to", tmp_path / "new", code=1).err
    assert refused.endswith(
        f"{third.name} has changed: its hash does not match; writes until {named} can be restored: --at {named}\n"
    )
    told = cli("backup", "restore", "--at", named, "--from", target, "--to", tmp_path / "named", "--json").row
    assert told["records"] == there + 2
    found = cli("backup", "verify", "--from", target, "--json", code=1)
    assert [row["intact"] for row in found.rows] == [True, False]
    assert third.name in found.rows[-1]["error"]

    third.unlink()
    refused = cli("backup", "restore", "--at", times[3], "--from", target, "--to", tmp_path / "new", code=1).err
    (row,) = (row for row in cli("backup", "list", "--from", target, "--json").rows if "line" in row)
    assert times[0] < row["until_ms"] <= times[1]
    assert "the restorable moments are" in refused
    assert not (tmp_path / "new").exists()
    told = cli("backup", "restore", "--at", row["until_ms"], "--from", target, "--to", tmp_path / "hole", "--json").row
    assert told["records"] == there + 2

    archive()  # the server still has it
    told = cli("backup", "restore", "--at", times[3], "--from", target, "--to", tmp_path / "new", "--json").row
    assert told["records"] == there + 4


def test_a_damaged_backup_gives_way_to_the_one_before(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path
) -> None:
    with TopicsClient(server.grpc_target) as client:
        made = []
        for number in range(2):
            client.append_many("twice", [bytes([number]) * 50_000] * 5)
            made.append(cli("backup", "create", "--to", target, "--json").row["id"])
        head = client.append("twice", "last").first_seq
        there = count(client)
    cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    files = [
        {file["sha256"] for file in json.loads((target / "backups" / f"{each}.json").read_text())["backup"]["files"]}
        for each in made
    ]
    for sha in files[1] - files[0]:
        (target / "files" / sha[:2] / sha).unlink()
    told = cli("backup", "restore", "--at-seq", f"twice:{head}", "--from", target, "--to", tmp_path / "seq", "--json")
    assert (told.row["id"], told.row["records"]) == (made[0], there)
    assert "using an older one" in told.err
    told = cli("backup", "restore", "--at", "latest", "--from", target, "--to", tmp_path / "time", "--json")
    assert (told.row["id"], told.row["records"]) == (made[0], there)


def test_the_archive_is_measured(tmp_path: Path, target: Path) -> None:
    with ServerProcess(tmp_path / "server", env=ARCHIVE) as server, TopicsClient(server.grpc_target) as client:
        assert (sample(server, "wal_archive_bytes"), sample(server, "wal_archive_oldest_time_seconds")) == (0, 0)
        client.append("news", "x" * 1000)
        Cli(server.grpc_target)("backup", "create", "--to", target)  # begins another log file
        poll(lambda: sample(server, "wal_archive_bytes") > 1000, 20, "the log in the archive")
        assert abs(sample(server, "wal_archive_oldest_time_seconds") - time.time()) < 60


def sample(server: ServerProcess, name: str) -> float:
    with Api(server.base) as api:
        text = api.send("GET", "/v0/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"topics_{name} "))


def test_a_log_that_was_gone_before_it_was_archived(tmp_path: Path, target: Path) -> None:
    """The hole is reported, and a new backup starts a new restorable range."""
    env = ARCHIVE | {"TOPICS_WAL_ARCHIVE_BYTES": 1}
    with ServerProcess(tmp_path / "server", env=env) as server, TopicsClient(server.grpc_target) as client:
        cli = Cli(server.grpc_target)
        client.append("news", 0)
        cli("backup", "create", "--to", target)
        client.append("news", 1)
        cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
        client.append("news", 2)
        kept = server.data_dir / "archive"
        cli("backup", "create", "--to", tmp_path / "elsewhere")  # begins another log file
        client.append("news", 3)
        poll(lambda: not list(kept.glob("*.log")), 20, "the archive's bound")
        command = ("backup", "archive", "--to", target, "--data-dir", server.data_dir)
        told = cli(*command)
        assert "was removed before it was archived: create a backup" in told.err
        assert cli(*command).err == ""  # once is enough
        cli("backup", "create", "--to", target)
        ranges = [row for row in cli("backup", "list", "--from", target, "--json").rows if "line" in row]
        assert len(ranges) == 2
        assert ranges[0]["until_ms"] < ranges[1]["from_ms"]
        between = ranges[0]["until_ms"] + 1
        refused = cli("backup", "restore", "--at", between, "--from", target, "--to", tmp_path / "new", code=1).err
        assert refused.count(" to 20") == 2
        last = ranges[0]["until_ms"]
        told = cli("backup", "restore", "--at", last, "--from", target, "--to", tmp_path / "old", "--json").row
        assert told["records"] == 2
        cli("backup", "restore", "--at-seq", "news:3", "--from", target, "--to", tmp_path / "new", code=5)


def test_prune_keeps_the_log_behind_the_backups_that_stay(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, archive: Callable[[], dict[str, int]]
) -> None:
    with TopicsClient(server.grpc_target) as client:
        for number in range(3):
            client.append("pruned", number)
            cli("backup", "create", "--to", target)
        client.append("pruned", "last")
        there = count(client)
    archive()
    before = len(pieces(target))
    cli("backup", "prune", "--keep", 2, "--from", target, "--grace", 0)
    assert 1 < len(pieces(target)) < before
    cli("backup", "restore", "--at-seq", "pruned:3", "--from", target, "--to", tmp_path / "third")
    cli("backup", "prune", "--keep", 1, "--from", target, "--grace", 0)
    archive()
    assert 0 < len(pieces(target)) < before - 1
    told = cli("backup", "restore", "--at", "latest", "--from", target, "--to", tmp_path / "new", "--json").row
    assert told["records"] == there
    cli("backup", "verify", "--deep", "--from", target)


def test_a_server_that_keeps_no_log_any_more(tmp_path: Path, target: Path) -> None:
    """Its line ends, and with it what is archived on its disk; another one begins."""
    server = ServerProcess(tmp_path / "server", env=ARCHIVE)
    with server, TopicsClient(server.grpc_target) as client:
        client.append("news", 1)
        Cli(server.grpc_target)("backup", "create", "--to", target)
        client.append("news", 2)
        assert list((server.data_dir / "archive").glob("*.log"))
        assert server.stop() == 0
    without = ServerProcess(tmp_path / "without", data_dir=server.data_dir)
    cli = Cli()
    with without:
        assert not list((server.data_dir / "archive").glob("*.log"))
        refused = cli("backup", "archive", "--to", target, "--data-dir", server.data_dir, code=1).err
        assert "start its server with TOPICS_WAL_ARCHIVE_SECONDS" in refused
        cli("backup", "create", "--to", target, "--server", without.grpc_target)
        assert without.stop() == 0
    with server:
        cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
        cli("backup", "create", "--to", target, "--server", server.grpc_target)
        with TopicsClient(server.grpc_target) as client:
            client.append("news", 3)
            ms = now_ms()
        cli("backup", "archive", "--to", target, "--data-dir", server.data_dir)
    rows = [row for row in cli("backup", "list", "--from", target, "--json").rows if "line" in row]
    assert len({row["line"] for row in rows}) == 2
    told = cli("backup", "restore", "--at", ms, "--from", target, "--to", tmp_path / "new", "--json").row
    assert told["records"] == 3


def test_an_older_state_put_back_is_not_mixed_up(tmp_path: Path, own: ServerProcess, target: Path) -> None:
    """As a snapshot of the file system would do. A restore, in contrast, starts a new line."""
    cli = Cli(own.grpc_target)
    import shutil

    with TopicsClient(own.grpc_target) as client:
        client.append("news", 1)
        cli("backup", "create", "--to", target)
    own.kill()
    shutil.copytree(own.data_dir, tmp_path / "snapshot")
    own.start()
    with TopicsClient(own.grpc_target) as client:
        client.append("news", 2)
    archive = ("backup", "archive", "--to", target, "--data-dir")
    cli(*archive, own.data_dir)
    assert own.stop() == 0
    with ServerProcess(tmp_path / "back", data_dir=tmp_path / "snapshot", env=ARCHIVE) as back:
        with TopicsClient(back.grpc_target) as client:
            client.append("news", "another")
        refused = cli(*archive, back.data_dir, code=1).err
        assert "an older state of the directory was put back" in refused
        assert back.stop() == 0
        (back.data_dir / "topics-log.json").unlink()
        back.start()
        cli("backup", "create", "--to", target, "--server", back.grpc_target)
        cli(*archive, back.data_dir)
    told = cli("backup", "restore", "--at", "latest", "--from", target, "--to", tmp_path / "new", "--json").row
    assert told["records"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--at", "1h"), 1, "can't be restored: no backup in the target is of a server with TOPICS_WAL_ARCHIVE"),
        (("--at", "latest"), 1, "there is no end of a log"),
        (("--at-seq", "news:1"), 5, "the log does not show"),
        (("--at", "soon"), 2, "is not a time"),
        (("--at-seq", "news"), 2, "is not TOPIC:SEQ"),
        (("--at-seq", "news@x:1"), 2, "is not TOPIC:SEQ"),
        (("--at", "1h", "--at-seq", "news:1"), 2, "not allowed with"),
        (("--at", "1h", "--fallback"), 2, "ID and --fallback are not allowed"),
    ],
)
def test_what_can_not_be_asked(target: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    refused = Cli()("backup", "restore", *arguments, "--from", target, "--to", tmp_path / "new", code=code).err
    assert says in refused
    assert not (tmp_path / "new").exists()
