"""Clients that come back after a restore: those that had read beyond the backup learn of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backup.states import contents, everything, fill, records
from sdk.cli.runner import Cli

from support.server import ServerProcess
from topics_client import Gap, TopicConfig, TopicsClient

Restored = Callable[[Path], ServerProcess]
JUMP = 1_000_000


@pytest.fixture
def source(server: ServerProcess) -> Iterator[TopicsClient]:
    with TopicsClient(server.grpc_target) as client:
        yield client


def test_a_reader_beyond_the_backup_is_told_while_the_head_is_below_it(
    source: TopicsClient, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    source.append_many("a", range(10))
    cli("backup", "create", "--to", target)
    cursor = source.append_many("a", range(10, 15)).last_seq
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        page = client.diff("a", cursor)
        assert page.gap is not None
        assert page.gap.reason == "recreated"
        assert [record.value for record in page.records] == list(range(10))


def test_with_a_jump_no_seq_is_handed_out_twice_and_every_reader_is_told(
    source: TopicsClient, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    fill(source)
    source.put_topic("empty", TopicConfig(durability="fsync"), partitions=2)
    before = everything(source)
    cli("backup", "create", "--to", target)
    cursor = source.append_many("orders", range(5)).last_seq
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new", "--jump", JUMP)
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        after = everything(client)
        for name in (name for name in before if name.startswith("partition ")):
            (head, _, count, size, _), found = before[name]
            (new_head, _, new_count, new_size, _), new_found = after[name]
            assert (new_count, new_size) == (count, size), name
            assert records(new_found) == records(found), name
            if name != "partition copies@0":  # what its source jumped is in it too
                assert new_head == head + JUMP, name
                (gap,) = [each for each in new_found if isinstance(each, Gap) and each.last_seq > head]
                assert (gap.last_seq, gap.reason) == (head + JUMP, "cap"), name
        assert client.append("orders", "new", tag="eu:new").first_seq == cursor - 5 + JUMP + 1
        page = client.diff("orders", cursor)
        assert page.gap is not None
        assert (page.gap.first_seq, page.gap.last_seq) == (cursor + 1, cursor - 5 + JUMP)
        assert [record.value for record in page.records] == ["new"]
        client.get_router("copier")
        copies, orders = (records(contents(client, topic)) for topic in ("copies", "orders"))
        assert [each.value for each in copies] == [each.value for each in orders if str(each.tag).startswith("eu:")]
        jobs = {job.seq for job in client.claim("jobs", "another", max=100)}
        assert jobs == {seq for seq, _, _ in before["jobs jobs"]["ready"]}
        assert client.append("events", "once", idempotency_key="the key").deduped
