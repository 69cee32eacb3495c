"""What came of a damaged data directory: exact data, an explicit error, or (what must not be) anything else."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backup.states import contents
from sdk.cli.runner import environment

from support import commands
from support.server import ServerProcess, StartFailedError
from topics_client import TopicsClient, TopicsError

Place = tuple[str, int]  # topic and partition
Truth = Mapping[Place, list[Any]]


def truth(client: TopicsClient) -> Truth:
    """Every record and gap by topic and partition, but for what is in memory only."""
    return {
        (summary.topic, partition): contents(client, summary.topic, partition)
        for summary in client.list_topics()
        if summary.topic != "ephemeral"
        for partition in range(summary.partition_count)
    }


class Verified(NamedTuple):
    """What `topics verify` said."""

    code: int
    problems: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """All of it."""
        return json.dumps(self.problems)


def verify(directory: Path, *arguments: str) -> Verified:
    """Run it; it must change nothing, and tell its findings as JSON lines."""
    before = listing(directory)
    done = commands.run(["verify", "--data-dir", str(directory), "--json", *arguments], environment(None, {}))
    assert listing(directory) == before
    assert b"Traceback" not in done.stderr, done.stderr
    *problems, total = map(json.loads, done.stdout.splitlines())
    assert done.returncode in (0, 1), done
    assert total["problems"] == len(problems) == 0 if done.returncode == 0 else problems, done
    return Verified(done.returncode, problems)


def listing(directory: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all files."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir() if path.is_file()}


class Outcome(NamedTuple):
    """Why the server refused to start (None: it runs), and by place why records could not be read."""

    refused: str | None
    failed: dict[Place, str]


def outcome(
    directory: Path,
    work_dir: Path,
    expected: Truth,
    look: Callable[[TopicsClient], None] = lambda _: None,
    *,
    made: str = "another",
) -> Outcome:
    """Start a server on the directory and read everything: what it gives must be exact. `look` may look further.

    The topic `made` is made, to see that it takes writes.
    """
    server = ServerProcess(work_dir, data_dir=directory)
    try:
        server.start()
    except StartFailedError:  # before or after the ports were open
        assert server.wait(30) == 1, server.log[-3000:]
        lines = [line for line in server.log.splitlines() if line.startswith("topics: ")]
        assert "Traceback" not in server.log, server.log[-3000:]
        assert len(lines) == 1, server.log[-3000:]
        return Outcome(lines[0], {})
    failed: dict[Place, str] = {}
    try:
        with TopicsClient(server.grpc_target) as client:
            for (topic, partition), content in expected.items():
                try:
                    found = contents(client, topic, partition)
                except TopicsError as error:
                    failed[topic, partition] = f"{error.reason}: {error}"
                else:
                    assert found == content, f"{topic}@{partition} is not what it was"
            look(client)
            assert client.append(made, "one").first_seq == 1
        assert "Traceback" not in server.log, server.log[-3000:]
    finally:
        server.kill()
    return Outcome(None, failed)


def copied(source: Path, target: Path) -> Path:
    """A copy of a directory of data."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))
    return target


def flip(path: Path, at: int, count: int = 1) -> None:
    """Change bytes in place."""
    with path.open("r+b") as file:
        file.seek(at)
        found = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0x5A for byte in found))


def zero(path: Path, at: int, count: int) -> None:
    """Zeros in place of what was there."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(min(count, path.stat().st_size - at)))


def cut(path: Path, size: int) -> None:
    """Only so much of it is left."""
    with path.open("r+b") as file:
        file.truncate(size)
