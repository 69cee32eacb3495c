"""A pipeline killed at every step, and what another one makes of it: the table is the topic, row for row."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.lake_child import Children
from support.lake_runs import follow
from support.lake_truth import Lake
from support.spark import Server, fill, put_topic, rows
from topics_client.connection import Connection
from topics_lakehouse.config import load

_STEPS = ["files", "written", "errors", "gaps", "committed", "round"]
_SCHEMA = "id bigint, amount double"


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    with Children() as running:
        yield running


def _data(i: int) -> bytes:
    return b'{"id":"x"}' if i % 10 == 0 else b'{"id":%d,"amount":%d.5}' % (i, i)


def _overrides(server: Server, folder: Path, topic: str, **given: object) -> dict[str, Any]:
    topics = [{"name": topic, "schema": _SCHEMA}]
    return {"server": server.url, "warehouse": str(folder), "topics": topics, **given}


def _check(connection: Connection, lake: Lake, topic: str) -> None:
    """Nothing twice, nothing lost: each seq is in the table or in a gap; what is live in the topic is in the table, and
    what does not fit is in the errors, once."""
    there = lake.records(topic)
    live = rows(connection, topic)
    assert set(live) <= set(there)
    heads = {row.partition: row.seq for row in live}
    seqs = [(row.partition, row.seq) for row in there]
    lost = [(partition, seq) for partition, first, last in lake.gaps(topic) for seq in range(first, last + 1)]
    assert sorted(seqs + lost) == [(partition, seq) for partition, head in heads.items() for seq in range(1, head + 1)]
    errors = lake.errors(topic)
    assert len(errors) == len(set(errors))
    assert {(row.partition, row.seq) for row in there if row.data == b'{"id":"x"}'} <= set(errors)
    typed = {(row["partition"], row["seq"]): row["id"] for row in lake.rows(topic)}
    assert all(typed[row.partition, row.seq] == json.loads(row.data)["id"] for row in there if b"x" not in row.data)


@pytest.mark.parametrize(("step", "nth"), [*((step, 1) for step in _STEPS), ("files", 2), ("committed", 2)])
def test_a_kill_at_each_step_of_the_saga(
    server: Server, connection: Connection, children: Children, tmp_path: Path, step: str, nth: int
) -> None:
    topic = f"saga-{step}-{nth}"
    put_topic(connection, topic, partitions=2, cap_records=1500)
    for partition in (0, 1):
        fill(connection, topic, 2000, data=_data, partition=partition)
    overrides = _overrides(server, tmp_path, topic, max_records_per_round=1800)
    assert children.run(overrides, step, nth) == -signal.SIGKILL
    for partition in (0, 1):  # what was read but not committed may be gone when it is wanted again
        fill(connection, topic, 500, first=2000, data=_data, partition=partition)
    config = load(None, overrides)
    follow(config)
    _check(connection, Lake(config), topic)


@pytest.mark.parametrize("moment", ["catalog-before", "catalog-after"])
@pytest.mark.parametrize("nth", range(1, 5))  # errors, gaps, records; errors of the next round
def test_a_kill_on_either_side_of_each_commit(
    server: Server, connection: Connection, children: Children, tmp_path: Path, moment: str, nth: int
) -> None:
    topic = f"{moment}-{nth}"
    put_topic(connection, topic, cap_records=3000)
    fill(connection, topic, 4000, data=_data)
    overrides = _overrides(server, tmp_path, topic, max_records_per_round=1000)
    assert children.run(overrides, moment, nth) == -signal.SIGKILL
    fill(connection, topic, 1000, first=4000, data=_data)
    config = load(None, overrides)
    follow(config)
    _check(connection, Lake(config), topic)


def test_kills_again_and_again_at_any_moment(
    server: Server, connection: Connection, children: Children, tmp_path: Path
) -> None:
    """Each process follows a topic that grows, and is killed after a random time."""
    put_topic(connection, "often", partitions=2, cap_records=20_000)
    overrides = _overrides(server, tmp_path, "often", max_records_per_round=300)
    chance = random.Random(8)
    done = 0
    for _ in range(5):
        for partition in (0, 1):
            fill(connection, "often", 1500, first=done, data=_data, partition=partition)
        done += 1500
        children.run(overrides, "never", seconds=chance.random())
    config = load(None, {**overrides, "max_records_per_round": 5000})
    follow(config)
    _check(connection, Lake(config), "often")
