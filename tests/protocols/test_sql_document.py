"""The validation checklist of the document about durable topics, a test for each item, and its examples as printed."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from support.http import Api, ok
from support.server import ServerProcess
from support.sql import ENVELOPE, Sql, error_of, payload
from support.waiting import poll

_numbers = iter(range(1, 1000))


class Names(NamedTuple):
    """The document's names in namespaces of a test's own."""

    sql: Sql
    app: str
    chat: str

    def text(self, text: str) -> str:
        """A statement of the document."""
        return text.replace("app.", f"{self.app}.").replace("chat.", f"{self.chat}.")

    def run(self, text: str) -> dict[str, Any]:
        return self.sql.run(self.text(text))

    @property
    def topic(self) -> str:
        return f"{self.app}.new_messages"

    def insert(self, *ids: int, channel: int = 42, visible: bool = True) -> None:
        rows = ", ".join(f"({n}, {channel}, 'u{n % 3}', 'hi', {visible})" for n in ids)
        self.run(f"INSERT INTO chat.messages (id, channel_id, user_id, body, is_visible) VALUES {rows}")

    def messages(self, group: str = "check", start: Any = "Earliest", **more: Any) -> list[dict[str, Any]]:
        return list(self.sql.consume(self.topic, group, start, **more)["messages"])


@pytest.fixture
def sql(server: ServerProcess) -> Iterator[Sql]:
    with Api(server.base) as api:
        yield Sql(api)


@pytest.fixture
def names(sql: Sql) -> Names:
    """A table, and no topic yet."""
    number = next(_numbers)
    names = Names(sql, f"app{number}", f"chat{number}")
    names.run(
        "CREATE TABLE chat.messages "
        "(id BIGINT PRIMARY KEY, channel_id BIGINT, user_id TEXT, body TEXT, is_visible BOOLEAN)"
    )
    return names


@pytest.fixture
def routed(names: Names) -> Names:
    names.run("CREATE TOPIC app.new_messages;")
    names.run("ALTER TOPIC app.new_messages\nADD SOURCE chat.messages\nON INSERT\nWITH (payload = 'key');")
    return names


# --------------------------------------------------------------------- the checklist


def test_system_tables_exist_and_are_queryable(routed: Names) -> None:
    routed.insert(1, 2)
    routed.sql.ack(routed.topic, "ai-service", 1)
    (topic,) = routed.sql.rows("SELECT * FROM system.topics WHERE name = $1", routed.topic)
    assert topic.keys() >= {
        "topic_id", "name", "alias", "partitions", "retention_seconds", "retention_max_bytes", "routes",
    }  # fmt: skip
    assert (topic["partitions"], topic["alias"], topic["retention_seconds"], topic["retention_max_bytes"]) == (
        1, None, None, None,
    )  # fmt: skip
    (route,) = topic["routes"]
    assert route.keys() >= {"table_id", "op", "payload_mode", "filter_expr", "partition_key_expr"}
    (offset,) = routed.sql.rows(
        "SELECT o.* FROM system.topic_offsets o JOIN system.topics t ON t.topic_id = o.topic_id WHERE t.name = $1",
        routed.topic,
    )
    assert offset.keys() >= {"topic_id", "group_id", "partition_id", "last_acked_offset", "updated_at"}
    assert (offset["topic_id"], offset["group_id"], offset["partition_id"], offset["last_acked_offset"]) == (
        topic["topic_id"], "ai-service", 0, 1,
    )  # fmt: skip
    assert "routes" in topic
    assert routed.sql.rows("SELECT op, payload_mode FROM system.topic_routes WHERE topic = $1", routed.topic) == [
        {"op": "Insert", "payload_mode": "Key"}
    ]


def test_create_topic_persists_metadata(names: Names, own: ServerProcess) -> None:
    with Api(own.base) as api:
        kept = Names(Sql(api), "app", "chat")
        kept.run(
            "CREATE TOPIC app.new_messages PARTITIONS 4 ALIAS app.nick "
            "WITH (retention_seconds = 60, retention_max_bytes = 1000000)"
        )
        (before,) = kept.sql.rows("SELECT * FROM system.topics WHERE name = $1", kept.topic)
    own.kill()
    own.start()
    with Api(own.base) as api:
        (after,) = Sql(api).rows("SELECT * FROM system.topics WHERE name = $1", kept.topic)
    assert after == before
    assert (after["alias"], after["partitions"], after["retention_seconds"], after["retention_max_bytes"]) == (
        "app.nick", 4, 60, 1_000_000,
    )  # fmt: skip


@pytest.fixture
def own(tmp_path: Any) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as server:
        yield server


def test_alter_topic_add_source_creates_a_route(names: Names) -> None:
    names.run("CREATE TOPIC app.new_messages")
    names.insert(1)
    assert names.messages() == []
    names.run(
        "ALTER TOPIC app.new_messages\nADD SOURCE chat.messages\nON INSERT\n"
        "WHERE (is_visible = true AND channel_id = 42)\nWITH (payload = 'key');"
    )
    names.insert(2)
    names.insert(3, channel=7)
    names.insert(4, visible=False)
    assert [payload(message) for message in names.messages()] == [{"id": 2}]
    (route,) = names.sql.rows("SELECT * FROM system.topic_routes WHERE topic = $1", names.topic)
    assert (route["table_id"], route["op"], route["payload_mode"]) == (names.text("chat.messages"), "Insert", "Key")
    assert (route["matched"], route["evaluated"]) == (1, 3)


def test_change_events_append_to_topic_logs(routed: Names) -> None:
    for op in ("UPDATE", "DELETE"):
        routed.run(f"ALTER TOPIC app.new_messages ADD SOURCE chat.messages ON {op} WITH (payload = 'full')")
    routed.insert(1, 2)
    routed.run("UPDATE chat.messages SET body = 'bye' WHERE id = 1")
    routed.run("DELETE FROM chat.messages WHERE id = 1")
    messages = routed.messages()
    assert [message["offset"] for message in messages] == [0, 1, 2, 3]
    assert [message["op"] for message in messages] == ["Insert", "Insert", "Update", "Delete"]
    assert [message["payload_mode"] for message in messages] == ["Key", "Key", "Full", "Full"]
    last = {"id": 1, "channel_id": 42, "user_id": "u1", "body": "bye", "is_visible": True}
    assert [payload(message) for message in messages] == [{"id": 1}, {"id": 2}, last, last]
    for message in messages:
        assert tuple(message)[: len(ENVELOPE)] == ENVELOPE
        assert (message["source_table"], message["partition_id"]) == (routed.text("chat.messages"), 0)
        assert abs(message["ts"] - time.time() * 1000) < 60_000
    ids = [int(message["message_id"]) for message in messages]
    assert ids == sorted(set(ids))


def test_consume_supports_earliest_latest_and_offset(routed: Names) -> None:
    statement = "CONSUME FROM app.new_messages\nGROUP 'ai-service'\nFROM {}\nLIMIT 100;"
    assert routed.run(statement.format("LATEST"))["rows"] == []
    routed.insert(*range(5))
    sql = routed.sql

    def offsets(start: str, group: str = "other") -> list[int]:
        text = routed.text(statement.format(start)).replace("ai-service", group)
        return [row["offset"] for row in sql.rows(text)]

    assert offsets("LATEST", "ai-service") == offsets("EARLIEST") == [0, 1, 2, 3, 4]
    assert offsets("OFFSET 3") == [3, 4]
    assert offsets("OFFSET 12345") == []
    (row,) = sql.rows(routed.text("CONSUME FROM app.new_messages GROUP 'x' FROM EARLIEST LIMIT 1"))
    assert tuple(row)[: len(ENVELOPE)] == ENVELOPE
    assert row["payload"] == '{"id":0}'
    for start, expected in (("Latest", []), ("Earliest", [0, 1, 2, 3, 4]), ({"Offset": 3}, [3, 4])):
        assert [message["offset"] for message in routed.messages(f"from {start}", start)] == expected


def test_ack_updates_offsets(routed: Names) -> None:
    routed.insert(*range(221))
    routed.run("ACK app.new_messages\nGROUP 'ai-service'\nPARTITION 0\nUPTO OFFSET 220;")
    assert routed.messages("ai-service") == []
    reply = ok(routed.sql.post("ack", topic=routed.topic, group_id="ai-service", partition_id=0, upto_offset=100))
    assert reply == {"success": True, "acknowledged_offset": 220}
    assert routed.sql.ack(routed.topic, "second", 99) == 99
    assert [message["offset"] for message in routed.messages("second")] == list(range(100, 221))
    error_of(routed.sql.post("ack", topic=routed.topic, group_id="second", upto_offset=221), "invalid_request", 400)


def test_retention_prunes_old_entries(names: Names) -> None:
    names.run("CREATE TOPIC app.new_messages WITH (retention_max_bytes = 5000)")
    names.run("ALTER TOPIC app.new_messages ADD SOURCE chat.messages ON INSERT WITH (payload = 'full')")
    names.insert(0)
    names.sql.ack(names.topic, "late", 0)
    for n in range(1, 100):
        names.insert(n)
    page = names.sql.consume(names.topic, "late")
    first = page["messages"][0]["offset"]
    assert 1 < first < 99
    assert page["messages"][-1]["offset"] == 99
    assert page["gap"] == {"from_offset": 1, "to_offset": first - 1, "reason": "cap"}
    (row,) = names.sql.rows(names.text("SELECT count(*) AS n FROM chat.messages"))
    assert row["n"] == 100, "the rows stay"
    names.run("ALTER TOPIC app.new_messages SET (retention_seconds = 1)")
    poll(lambda: not names.messages("late", timeout_seconds=0), 20, "the end of the messages", pause=0.05)
    assert names.messages("late") == []


# ------------------------------------------------------------- its calls, and its risks


def test_routes_of_the_document_as_printed(names: Names) -> None:
    names.run("CREATE TOPIC app.new_messages PARTITIONS 4;")
    names.run(
        "ALTER TOPIC app.new_messages\nADD SOURCE chat.messages\nON INSERT\n"
        "PARTITION BY (user_id)\nWITH (payload = 'key');"
    )
    names.insert(*range(30))
    places: dict[int, set[int]] = {}
    for partition in range(4):
        for message in names.messages(partition_id=partition):
            places.setdefault(payload(message)["id"] % 3, set()).add(partition)
    assert [len(found) for found in places.values()] == [1, 1, 1]


def test_consume_by_alias(routed: Names) -> None:
    routed.run("ALTER TOPIC app.new_messages SET ALIAS app.new_messages_alias")
    routed.insert(1)
    text = routed.text("CONSUME FROM app.new_messages_alias\nGROUP 'ai-service'\nFROM EARLIEST\nLIMIT 100;")
    assert len(routed.sql.rows(text)) == 1
    assert routed.sql.ack(routed.text("app.new_messages_alias"), "ai-service", 0) == 0
    assert routed.messages("ai-service") == []


def test_one_request_waits_for_messages(routed: Names) -> None:
    pages: list[dict[str, Any]] = []

    def wait() -> None:
        with Api(routed.sql.api.base) as api:
            body = {"topic": routed.topic, "group_id": "ai-service", "start": "Latest", "limit": 100}
            pages.append(ok(api.send("POST", "/v1/api/topics/consume", body | {"timeout_seconds": 20})))

    consumer = threading.Thread(target=wait)
    consumer.start()
    position = "SELECT group_id FROM system.topic_offsets WHERE group_id = 'ai-service' AND topic_id = $1"
    (topic,) = routed.sql.rows("SELECT topic_id FROM system.topics WHERE name = $1", routed.topic)
    poll(lambda: routed.sql.rows(position, topic["topic_id"]), 20, "the group, noted before the wait begins")
    routed.insert(7)
    consumer.join(20)
    (page,) = pages
    assert page.keys() >= {"messages", "next_offset", "has_more"}
    assert ([payload(message) for message in page["messages"]], page["next_offset"], page["has_more"]) == (
        [{"id": 7}], 1, False,
    )  # fmt: skip


def test_every_protocol_shows_each_change_once(routed: Names) -> None:
    routed.insert(*range(5))
    sql, topic = routed.sql, routed.topic
    records = sql.api.read(topic, include_tags=True, include_meta=True)["records"]
    messages = routed.messages()
    assert [record["$seq"] - 1 for record in records] == [message["offset"] for message in messages]
    assert [record["data"] for record in records] == [payload(message) for message in messages]
    assert [record["$tag"] for record in records] == [message["key"] for message in messages]
    for record, message in zip(records, messages, strict=True):
        assert record["meta"] == {name: message[name] for name in ("message_id", "source_table", "op", "payload_mode")}
        assert record["$ts"] == message["ts"]


def test_a_topic_deleted_over_http_takes_its_routes(routed: Names) -> None:
    routed.run("ALTER TOPIC app.new_messages SET ALIAS app.nick")
    assert routed.sql.api.drop(routed.topic).status_code == 200
    routed.insert(1)
    assert routed.sql.rows("SELECT topic FROM system.topic_routes WHERE topic = $1", routed.topic) == []
    error_of(routed.sql.post("consume", topic=routed.text("app.nick"), group_id="g"), "topic_not_found", 404)
    routed.run("CREATE TOPIC app.new_messages")
    routed.insert(2)
    assert routed.messages() == []


def test_a_consumer_that_hangs_up_is_left_at_once(tmp_path: Any) -> None:
    keys = {"TOPICS_API_KEYS": "secret,looking", "TOPICS_MAX_INFLIGHT_PER_KEY": 2}
    with ServerProcess(tmp_path, env=keys) as server, Api(server.base) as api:
        api.client.headers["authorization"] = "Bearer secret"
        Sql(api).run("CREATE TOPIC app.quiet")
        body = json.dumps({"topic": "app.quiet", "group_id": "g", "start": "Earliest", "timeout_seconds": 60}).encode()
        head = (
            b"POST /api/topics/consume HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )

        def others() -> int:
            """The requests under way but this one, which takes no slot of the consumers' key."""
            text = api.client.get("/v0/metrics", headers={"authorization": "Bearer looking"}).text
            (line,) = [each for each in text.splitlines() if each.startswith("topics_http_requests_in_flight ")]
            return int(float(line.split()[1])) - 1

        for _ in range(5):  # two calls may be open at a time
            with ExitStack() as open_sockets:
                for _ in range(2):
                    waiting = socket.create_connection(("127.0.0.1", server.http_port))
                    open_sockets.enter_context(waiting).sendall(head + body)
                poll(lambda: others() == 2, 10)
                assert api.get("app.quiet").status_code == 429
            poll(lambda: others() == 0, 10)
            assert api.get("app.quiet").status_code == 200
