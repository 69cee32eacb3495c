"""Changes of a table as Spark's reader has them: each once, with the envelope of SQL consumers. No JVM."""

import json

from support.spark import Server
from support.spark_read import Read
from topics_client import TopicsClient


def test_each_change_is_read_once(server: Server) -> None:
    change(server.url)
    check_events(server.url)


def change(url: str) -> None:
    """Make a table with a topic of its changes, and 400 changes."""
    with TopicsClient(url) as topics:
        topics.sql_script(
            """
            CREATE TABLE lake.t (id INT PRIMARY KEY, body TEXT);
            CREATE TOPIC lake.events PARTITIONS 2;
            ALTER TOPIC lake.events ADD SOURCE lake.t ON INSERT WITH (payload = 'full');
            ALTER TOPIC lake.events ADD SOURCE lake.t ON DELETE WITH (payload = 'full');
            """
        )
        topics.sql_many("INSERT INTO lake.t VALUES ($1, $2)", [(n, f"b{n}") for n in range(300)])
        topics.sql("DELETE FROM lake.t WHERE id < 100")


def check_events(url: str) -> None:
    """Compare what Spark reads with what SQL's consumers do."""
    with TopicsClient(url) as topics:
        messages = [
            message
            for partition in (0, 1)
            for message in topics.consume("lake.events", group="all", start="earliest", limit=1000, partition=partition)
        ]
    assert len(messages) == 400
    rows = Read({"url": url, "subscribe": "lake.events"}).rows()
    found = [(row["partition"], row["seq"] - 1, row["tag"], row["data"], json.loads(row["meta"])) for row in rows]
    assert sorted(found, key=lambda each: each[:2]) == [
        (
            message.partition_id,
            message.offset,
            message.key,
            message.payload,
            {
                "message_id": message.message_id,
                "source_table": message.source_table,
                "op": message.op,
                "payload_mode": message.payload_mode,
            },
        )
        for message in messages
    ]
