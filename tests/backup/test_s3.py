"""Backups in S3 (SeaweedFS), by the command, and in a store in memory, by the same code."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backup.states import everything, fill
from pyarrow.fs import S3FileSystem
from sdk.cli.runner import Cli

from support.server import ServerProcess
from support.weed import Weed
from topics_client import TopicsClient

Restored = Callable[[Path], ServerProcess]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for the bucket `backups`."""
    with Weed(tmp_path_factory.mktemp("weed")) as weed:
        found = weed.properties
        environment = {
            "AWS_ENDPOINT_URL": found["s3.endpoint"],
            "AWS_ACCESS_KEY_ID": found["s3.access-key-id"],
            "AWS_SECRET_ACCESS_KEY": found["s3.secret-access-key"],
            "AWS_REGION": found["s3.region"],
            "AWS_ALLOW_HTTP": "true",
        }
        S3FileSystem(
            endpoint_override=found["s3.endpoint"],
            access_key=found["s3.access-key-id"],
            secret_key=found["s3.secret-access-key"],
            region=found["s3.region"],
            allow_bucket_creation=True,
        ).create_dir("backups")
        yield environment


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that keeps its log."""
    with ServerProcess(tmp_path / "server", env={"TOPICS_WAL_ARCHIVE_SECONDS": 3600}) as server:
        yield server


def test_a_bucket_as_target(
    server: ServerProcess, cli: Cli, s3: dict[str, str], tmp_path: Path, restored: Restored
) -> None:
    url = "s3://backups/some/where"
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        client.append_many("big", [bytes([i]) * 900_000 for i in range(40)])
        first = cli("backup", "create", "--to", url, "--json", env=s3).row
        client.append("big", "more")
        before = everything(client)
        second = cli("backup", "create", "--to", url, "--json", env=s3).row
        client.append("big", "of which the log knows")
    assert second["new_bytes"] < first["new_bytes"]
    assert cli("backup", "list", "--from", url, "--json", env=s3).rows[:2] == [first, second]
    assert all(row["intact"] for row in cli("backup", "verify", "--from", url, "--json", "--deep", env=s3).rows)
    cli("backup", "restore", "--from", url, "--to", tmp_path / "new", env=s3)
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before
    done = cli("backup", "prune", "--from", url, "--keep", 1, "--grace", 0, "--json", env=s3).row
    assert done["backups"] == [first["id"]]
    assert done["files"] > 0
    cli("backup", "archive", "--to", url, "--data-dir", server.data_dir, env=s3)
    backup, log = cli("backup", "verify", "--from", url, "--json", "--deep", env=s3).rows
    assert (backup["records"], log["records"]) == (second["records"], second["records"] + 1)


def test_a_bucket_that_refuses(server: ServerProcess, cli: Cli, s3: dict[str, str]) -> None:
    wrong = s3 | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    told = cli("backup", "create", "--to", "s3://backups/x", env=wrong, code=1).err
    assert told.startswith("topics backup create: s3://backups/x: ")
    assert "wrong" not in told
    for arguments in (("list", "--from"), ("create", "--to")):
        told = cli("backup", *arguments, "s3://not-there/x", env=s3, code=1).err
        assert "s3://not-there/x" in told
    assert not list((server.data_dir / "checkpoints").iterdir())
