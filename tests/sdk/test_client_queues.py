"""Queues, routers and groups through both clients."""

import time
from typing import Any

import pytest

from support.waiting import poll
from topics_client import (
    ConflictError,
    InvalidRequestError,
    Job,
    NotFoundError,
    RouterConfig,
    Settled,
    TopicConfig,
    TopicsClient,
)

_QUEUE = TopicConfig(type="queue")

# ------------------------------------------------------------------------- queues


def test_a_job_is_claimed_extended_and_finished(client: TopicsClient, name: str) -> None:
    client.append(name, {"n": 1}, tag="a", meta={"h": 1}, config=_QUEUE)
    client.append(name, b"\x00", node="maker")
    before = int(time.time() * 1000)
    first, second = client.claim(name, "w", max=10, lease_ms=20_000)
    assert first == Job(
        name, 1, first.lease_id, first.deadline_ts_ms, first.ts_ms, b'{"n":1}', False, "a", 1, b'{"h":1}'
    )
    assert (first.value, first.meta, second.value, second.meta, second.tag, second.binary) == (
        {"n": 1},
        {"h": 1},
        b"\x00",
        {},
        None,
        True,
    )
    assert before + 15_000 < first.deadline_ts_ms < before + 40_000
    assert first.lease_id != second.lease_id
    assert client.claim(name, "other") == []
    assert client.extend(name, "w", [first, second], 60_000) == Settled(2, ())
    (flying, _) = client.list_jobs(name, "in_flight")
    assert (flying.record.seq, flying.record.value, flying.state, flying.deliveries) == (1, {"n": 1}, "in_flight", 1)
    assert (flying.node, flying.ready_at_ts_ms, flying.priority) == ("w", None, 0)
    assert flying.deadline_ts_ms is not None
    assert flying.deadline_ts_ms > before + 50_000
    assert client.ack(name, "w", [first]) == Settled(1, ())
    assert client.ack(name, "w", [first]) == Settled(0, (1,))
    assert client.ack(name, "other", [second]) == Settled(0, (2,))
    assert client.ack(name, "w", iter([second])) == Settled(1, ())
    queue = client.get_topic(name).queue
    assert queue is not None
    assert (queue.ready, queue.in_flight) == (0, 0)


def test_a_job_that_is_given_back_comes_again(client: TopicsClient, name: str) -> None:
    client.append_many(name, [1, 2, 3], config=_QUEUE)
    one, two, three = client.claim(name, "w", max=3)
    assert client.nack(name, "w", [one]) == Settled(1, ())
    assert client.nack(name, "w", [two], release=True) == Settled(1, ())
    assert client.nack(name, "w", [three], delay_ms=60_000) == Settled(1, ())
    (delayed,) = client.list_jobs(name, "delayed")
    assert (delayed.record.seq, delayed.state) == (3, "delayed")
    assert delayed.ready_at_ts_ms is not None
    again = client.claim(name, "w", max=3, ack=())
    assert [(job.seq, job.deliveries) for job in again] == [(1, 2), (2, 1)]
    assert client.nack(name, "w", [one]) == Settled(0, (1,))  # the lease of before
    assert [job.seq for job in client.claim(name, "w", max=3, ack=again)] == []
    assert [view.record.seq for view in client.list_jobs(name, "in_flight")] == []


def test_delayed_and_urgent_jobs(client: TopicsClient, name: str) -> None:
    client.append(name, "low", config=_QUEUE)
    client.append(name, "later", delay_ms=60_000)
    client.append(name, "high", priority=9)
    assert [client.claim(name, "w")[0].value for _ in range(2)] == ["high", "low"]
    (view,) = client.list_jobs(name, "delayed")
    assert (view.record.value, view.deadline_ts_ms) == ("later", None)
    assert view.ready_at_ts_ms is not None
    assert view.ready_at_ts_ms > time.time() * 1000 + 30_000
    with pytest.raises(InvalidRequestError, match="priority"):
        client.append(name, 1, priority=10)
    with pytest.raises(InvalidRequestError, match="state must be one of ready, in_flight, delayed"):
        list(client.list_jobs(name, "done"))  # type: ignore[arg-type]


def test_dead_letters_come_back(client: TopicsClient, name: str) -> None:
    dead = f"{name}.dead"
    client.put_topic(name, TopicConfig(type="queue", max_deliveries=1, dead_letter=dead))
    for tag in ("a", "b1", "b2"):
        client.append(name, tag, tag=tag)
    jobs = client.claim(name, "w", max=3)
    client.nack(name, "w", jobs)
    assert client.claim(name, "w", max=3) == []
    queue = client.get_topic(name).queue
    assert queue is not None
    assert queue.dead_lettered == 3
    assert client.redrive(name, tag="a") == 1
    assert client.redrive(name, tag_prefix="b", max=1) == 1
    assert client.redrive(name) == 1
    assert client.redrive(name) == 0
    assert sorted(job.value for job in client.claim(name, "w", max=9)) == ["a", "b1", "b2"]


def test_a_listing_of_jobs_has_every_page(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(2500), config=_QUEUE)
    assert [view.record.value for view in client.list_jobs(name)] == list(range(2500))


def test_what_is_no_queue(client: TopicsClient, name: str) -> None:
    with pytest.raises(NotFoundError):
        client.claim(name, "w")
    client.append(name, 1)
    for call in (
        lambda: client.claim(name, "w"),
        lambda: client.ack(name, "w", [Job(name, 1, "", 0, 0, b"1", False, None, 1, b"")]),
        lambda: client.redrive(name),
        lambda: list(client.list_jobs(name)),
    ):
        with pytest.raises(ConflictError) as refused:
            call()
        assert (refused.value.reason, refused.value.detail["topic"]) == ("not_a_queue", name)


# ------------------------------------------------------------------------ routers


def test_a_router_copies_and_is_told_of(client: TopicsClient, name: str) -> None:
    source, dest, router = f"{name}.a", f"{name}.b", f"{name}.r"
    client.append(source, 0, tag="x1")
    config = RouterConfig(source, dest, tag_prefix="x", guarantee="exactly_once", preserve_node=False)
    assert client.put_router(router, config, backfill=True) is True
    assert client.put_router(router, config) is False
    client.append(source, 1, tag="y")
    client.append(source, 2, tag="x2", node="n")
    info = client.get_router(router)
    assert (info.router, info.config, info.lag_records, info.last_error) == (router, config, 0, None)
    assert info.forwarded_total == 2
    assert [(record.value, record.tag, record.node) for record in client.read(dest)] == [
        (0, "x1", None),
        (2, "x2", None),
    ]
    (line,) = client.list_routers(f"{name}.")
    assert (line.router, line.source, line.dest, line.guarantee) == (router, source, dest, "exactly_once")
    assert (line.forwarded_total, line.lag_records) == (2, 0)
    assert [each.router for each in client.list_routers(source=source)] == [router]
    assert list(client.list_routers(dest=source)) == []
    with pytest.raises(ConflictError) as cycle:
        client.put_router(f"{router}2", RouterConfig(dest, source))
    assert cycle.value.reason == "router_cycle"
    assert client.delete_router(router) is True
    assert client.delete_router(router) is False
    with pytest.raises(NotFoundError) as gone:
        client.get_router(router)
    assert (gone.value.reason, gone.value.detail) == ("router_not_found", {"router": router})
    with pytest.raises(NotFoundError):
        client.put_router(router, RouterConfig(source, f"{name}.none"), create_dest=False)
    with pytest.raises(InvalidRequestError, match="mutually exclusive"):
        client.put_router(router, RouterConfig(source, dest, tag="a", tag_prefix="a"))
    assert client.put_router(router, RouterConfig(source, dest, tag="t", allow_cycle=True, preserve_tag=False)) is True
    assert client.get_router(router).config == RouterConfig(source, dest, tag="t", allow_cycle=True, preserve_tag=False)


# ------------------------------------------------------------------------- groups


def test_positions_of_a_group(client: TopicsClient, name: str) -> None:
    group, other = f"{name}.g", f"{name}.o"
    client.put_topic(name, partitions=2)
    client.append_many(name, [1, 2, 3])
    client.append_many(name, [1, 2], partition=1)
    client.append(other, 1)
    committed = client.commit_positions(group, {name: 2, f"{name}@1": 1}, metadata="m")
    assert [(each.topic, each.partition, each.from_seq, each.metadata) for each in committed] == [
        (name, 0, 2, "m"),
        (name, 1, 1, "m"),
    ]
    assert [(each.head_seq, each.earliest_seq, each.lag) for each in committed] == [(3, 1, 1), (2, 1, 1)]
    assert all(abs(each.commit_ts_ms - time.time() * 1000) < 60_000 for each in committed)
    client.commit_positions(group, {f"{other}@0": 1})

    def positions(found: Any) -> dict[tuple[str, int], int]:
        return {(each.topic, each.partition): each.from_seq for each in found}

    assert positions(client.fetch_positions(group)) == {(name, 0): 2, (name, 1): 1, (other, 0): 1}
    assert positions(client.fetch_positions(group, name)) == {(name, 0): 2, (name, 1): 1}
    assert positions(client.reset_positions(group, "earliest", topics=[other])) == {(other, 0): 0}
    assert positions(client.reset_positions(group, "latest", topics=[f"{name}@1"])) == {(name, 1): 2}
    assert positions(client.reset_positions(group, 1, topics=[f"{name}@0"])) == {(name, 0): 1}
    assert positions(client.reset_positions(group, to_ts_ms=0)) == {(name, 0): 0, (name, 1): 0, (other, 0): 0}
    (line,) = client.list_groups(f"{name}.")
    assert (line.group, line.members, line.positions) == (group, 0, 3)
    assert line.state
    assert line.last_commit_ts_ms is not None
    wrongs: list[dict[str, Any]] = [{}, {"to": 1, "to_ts_ms": 1}, {"to": "middle"}]
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError):
            client.reset_positions(group, **wrong)
    assert client.delete_group(group) is True
    assert client.delete_group(group) is False
    with pytest.raises(NotFoundError) as gone:
        client.fetch_positions(group)
    assert gone.value.reason == "group_not_found"


# -------------------------------------------------------------------------- admin


def test_readiness_and_metrics(client: TopicsClient, name: str) -> None:
    assert client.ready() is True
    client.append(name, 1)
    text = client.metrics()
    assert "\n# TYPE topics_" in text
    assert poll(lambda: "topics_" in client.metrics())
