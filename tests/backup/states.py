"""The whole visible state of a server, to be compared with that of another; and data of every kind."""

from dataclasses import replace
from typing import Any

from topics_client import Gap, NewRecord, RawJson, Record, RouterConfig, TopicConfig, TopicsClient

FOREVER = 1 << 40
QUEUE_STATES = ("ready", "delayed", "in_flight")


def fill(client: TopicsClient) -> None:
    """Topics of each class and type, with tags, deletes, losses, jobs, routers, groups and remembered writes."""
    client.put_topic("events", TopicConfig(idempotency_window_ms=FOREVER), partitions=3)
    for partition in range(3):
        for batch in range(20):
            records = [
                NewRecord({"n": [partition, batch, i]}, tag=f"kind:{i % 5}", node=f"n{i % 2}", meta={"b": batch})
                for i in range(30)
            ]
            client.append_many("events", records, partition=partition)
    client.append("events", RawJson(b'{"verbatim" : 1.50}'), partition=1)
    client.append("events", b"\x00\xff binary", partition=2)
    client.delete_records("events", tag="kind:3", partition=0)
    client.delete_records("events", before_seq=200, partition=1)
    client.append("events", "once", idempotency_key="the key")
    client.put_topic("capped", TopicConfig(cap_records=50))
    for number in range(120):
        client.append("capped", number)
    client.put_topic("orders", TopicConfig(durability="fsync", retain_until_acked_by=("billing",)))
    client.put_router("copier", RouterConfig("orders", "copies", tag_prefix="eu:", guarantee="exactly_once"))
    for number in range(100):
        client.append("orders", {"order": number}, tag=f"{'eu' if number % 3 else 'us'}:{number}")
    client.put_topic("volatile", TopicConfig(durability="memory", ttl_ms=FOREVER))
    client.append_many("volatile", range(500))
    client.commit_positions("billing", {"orders": 40, "events@2": 17})
    queue = TopicConfig(
        type="queue", leases_durable=True, lease_ms=3_600_000, max_deliveries=1, dead_letter="jobs:dead"
    )
    client.put_topic("jobs", queue)
    client.append_many("jobs", range(60))
    client.append_many("jobs", range(5), delay_ms=3_600_000)
    client.append_many("jobs", range(5), priority=7)
    claimed = client.claim("jobs", "worker", max=30)
    client.ack("jobs", "worker", claimed[:12])
    client.nack("jobs", "worker", claimed[12:16])  # that was the last delivery: dead letters, with the next claim
    client.nack("jobs", "worker", claimed[16:18], release=True)
    client.claim("jobs", "worker", max=1)
    client.get_router("copier")  # it has copied everything


def everything(client: TopicsClient) -> dict[str, Any]:
    """The whole state, but for what is about reading rather than about data (recency), by topic, router and group."""
    found: dict[str, Any] = {}
    for summary in client.list_topics():
        info = client.get_topic(summary.topic, touch=False)
        found[f"topic {summary.topic}"] = replace(info, effective_priority=0, last_read_ts_ms=None, partitions=())
        for partition in range(info.partition_count):
            state = client.get_topic(summary.topic, partition=partition, touch=False)
            found[f"partition {summary.topic}@{partition}"] = (
                (state.head_seq, state.earliest_seq, state.count, state.bytes, state.last_write_ts_ms),
                contents(client, summary.topic, partition),
            )
        if info.type == "queue":
            found[f"jobs {summary.topic}"] = {
                state: [
                    (job.record.seq, job.deliveries, job.priority) for job in client.list_jobs(summary.topic, state)
                ]
                for state in QUEUE_STATES
            }
    for router in client.list_routers():
        found[f"router {router.router}"] = client.get_router(router.router)
    for group in client.list_groups():
        found[f"group {group.group}"] = [
            (position.topic, position.partition, position.from_seq) for position in client.fetch_positions(group.group)
        ]
    return found | tables(client)


def tables(client: TopicsClient) -> dict[str, Any]:
    """Definitions of tables and routes, and all rows, by table."""
    found: dict[str, Any] = {}
    for name in ("tables", "columns", "indexes", "topic_routes"):
        found[f"definitions {name}"] = sorted(map(repr, client.sql(f"SELECT * FROM system.{name}").tuples))
    for table in client.sql("SELECT table_id FROM system.tables"):
        found[f"rows {table['table_id']}"] = client.sql(f"SELECT * FROM {table['table_id']}").tuples
    return found


def contents(client: TopicsClient, topic: str, partition: int = 0) -> list[Record | Gap]:
    """Every record of a partition, and the gaps between them."""
    with client.read(topic, partition=partition, gaps="yield") as stream:
        return list(stream)


def records(found: list[Record | Gap]) -> list[Record]:
    """Those that are no gaps."""
    return [each for each in found if isinstance(each, Record)]
