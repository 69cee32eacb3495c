"""Definitions of topics: each one batch, names and aliases unique, and routes that go with their topic."""

from typing import Any

import pytest

from support.routed_tables import BIGINT, NOW, TEXT, RoutedTables, SetClock, a_table, binary, column
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.offsets.positions import CommitItem
from topics_service.engine.tables import plans, topics
from topics_service.engine.tables.expressions import Call, Parameter
from topics_service.engine.tables.model import Namespace, Op, PayloadMode, Route
from topics_service.engine.tables.types import Kind, Type
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreStalledError, WriteBatch

GIVEN = binary("=", column(1), Parameter(1, BIGINT))
STAMP = Type(Kind.TIMESTAMP)


def refused(at: RoutedTables, reason: Reason, definition: Any) -> TopicsError:
    """The definition is refused, and nothing is written."""
    written = at.engine.writer.written
    with pytest.raises(TopicsError) as caught:
        at.define(definition)
    assert caught.value.reason is reason, caught.value
    assert at.engine.writer.written == written
    return caught.value


def routes(at: RoutedTables, table: int = 1) -> list[tuple[str, Op]]:
    found = []
    for route in at.engine.topic_catalog.routes(table):
        topic = at.engine.topic_catalog.by_number(route.topic)
        assert topic is not None
        found.append((topic.name, route.op))
    return found


def insert(at: RoutedTables, *ids: int) -> None:
    at.write(*((1, [n, "ann", "", n], None) for n in ids))


def test_a_topic_its_alias_and_its_namespace_are_one_write() -> None:
    at = RoutedTables()
    before = at.engine.writer.written
    options = ConfigInput(ttl_ms=60_000, cap_bytes=1000, durability="fsync", discard="reject", cap_records=7)
    at.define(plans.CreateTopic("app.new_messages", options, 4, "app.news"))
    assert at.engine.writer.written == before + 1
    topic = at.engine.topic_catalog.find("app.news")
    assert topic is not None
    assert (topic.name, topic.partition_count, topic.config.ttl_ms, topic.config.cap_bytes) == (
        "app.new_messages", 4, 60_000, 1000,
    )  # fmt: skip
    assert (topic.config.durability, topic.config.discard, topic.config.cap_records) == ("fsync", "reject", 7)
    assert at.catalog.namespaces == {"app": Namespace("app", created_ms=NOW)}
    at.create("app.other")
    assert at.catalog.namespaces == {"app": Namespace("app", created_ms=NOW)}


def test_a_topic_is_found_once_its_creation_is_durable() -> None:
    at = RoutedTables()
    ticket = at.definitions.define(plans.CreateTopic("t", ConfigInput(), alias="a"))
    assert ticket > at.engine.writer.synced
    assert at.engine.topic_catalog.find("t") is at.engine.topic_catalog.find("a") is None
    at.engine.sync()
    assert at.engine.topic_catalog.find("t") is at.engine.topic_catalog.find("a") is not None


def test_names_and_aliases_are_unique_over_both() -> None:
    at = RoutedTables()
    at.define(plans.CreateTopic("a", ConfigInput(), alias="nick"))
    at.create("b")
    for bad in (
        plans.CreateTopic("a", ConfigInput()),
        plans.CreateTopic("nick", ConfigInput()),
        plans.CreateTopic("c", ConfigInput(), alias="nick"),
        plans.CreateTopic("c", ConfigInput(), alias="b"),
        plans.CreateTopic("c", ConfigInput(), alias="c"),
        plans.SetAlias("b", "nick"),
        plans.SetAlias("b", "a"),
        plans.SetAlias("b", "b"),
        plans.SetTopicOptions("b", ConfigInput(ttl_ms=5), alias="nick"),
    ):
        error = refused(at, Reason.ALREADY_EXISTS, bad)
        assert error.detail is not None
        assert error.detail["sqlstate"] == "42710"
    at.define(plans.CreateTopic("a", ConfigInput(ttl_ms=9), if_not_exists=True))
    assert at.engine.catalog.topics["a"].config.ttl_ms == 0
    at.define(plans.SetAlias("nick", None))
    assert at.engine.topic_catalog.find("nick") is None
    at.define(plans.SetAlias("b", "nick"))
    at.define(plans.SetAlias("b", "other"))
    at.create("nick")
    found = at.engine.topic_catalog.find("other")
    assert found is not None
    assert found.name == "b"


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (plans.CreateTopic("no spaces", ConfigInput()), Reason.INVALID_VALUE),
        (plans.CreateTopic("system.topics", ConfigInput()), Reason.INVALID_VALUE),
        (plans.CreateTopic("t2", ConfigInput(), alias="-"), Reason.INVALID_VALUE),
        (plans.CreateTopic("t2", ConfigInput(durability="stone")), Reason.INVALID_VALUE),
        (plans.CreateTopic("t2", ConfigInput(), 100_000), Reason.INVALID_VALUE),
        (plans.DropTopic("absent"), Reason.TOPIC_NOT_FOUND),
        (plans.ClearTopic("absent"), Reason.TOPIC_NOT_FOUND),
        (plans.SetAlias("absent", "x"), Reason.TOPIC_NOT_FOUND),
        (plans.SetTopicOptions("absent", ConfigInput()), Reason.TOPIC_NOT_FOUND),
        (plans.SetTopicOptions("t", ConfigInput(discard="new")), Reason.INVALID_VALUE),
        (plans.SetTopicOptions("t", ConfigInput(), partitions=0), Reason.INVALID_VALUE),
        (plans.AddSource("absent", Route(0, 1, Op.INSERT)), Reason.TOPIC_NOT_FOUND),
        (plans.AddSource("t", Route(0, 9, Op.INSERT)), Reason.TABLE_NOT_FOUND),
        (plans.AddSource("queue", Route(0, 1, Op.INSERT)), Reason.NOT_A_LOG),
        (plans.AddSource("memory", Route(0, 1, Op.INSERT)), Reason.INVALID_VALUE),
        (plans.AddSource("far.t", Route(0, 1, Op.INSERT)), Reason.CROSS_SHARD),
        (
            plans.AddSource("t", Route(0, 1, Op.INSERT, filter=GIVEN)),
            Reason.UNSUPPORTED_SQL,
        ),
        (plans.AddSource("t", Route(0, 1, Op.INSERT, partition_by=(Call("now", (), STAMP),))), Reason.UNSUPPORTED_SQL),
        (plans.DropSource("t", a_table(), Op.INSERT), Reason.ROUTE_NOT_FOUND),
        (plans.DropSource("t", a_table(), None), Reason.ROUTE_NOT_FOUND),
    ],
    ids=lambda each: each.name if isinstance(each, Reason) else type(each).__name__,
)
def test_a_bad_definition_changes_nothing(definition: Any, reason: Reason) -> None:
    at = RoutedTables()
    at.create("t")
    at.engine.put_topic("queue", ConfigInput(type="queue"))
    at.engine.put_topic("memory", ConfigInput(durability="ephemeral"))
    at.catalog.namespaces["far"] = Namespace("far", placement="elsewhere")
    at.create("far.t")
    error = refused(at, reason, definition)
    assert error.detail is not None
    assert error.detail["sqlstate"]


def test_sources_come_and_go() -> None:
    at = RoutedTables(a_table(), a_table(2, "others"))
    at.create("t")
    for op in (Op.INSERT, Op.DELETE):
        at.route("t", op)
    at.route("t", Op.INSERT, table=2)
    assert routes(at) == [("t", Op.INSERT), ("t", Op.DELETE)]
    refused(at, Reason.ALREADY_EXISTS, plans.AddSource("t", Route(0, 1, Op.INSERT, PayloadMode.KEY)))
    insert(at, 1)
    at.define(plans.DropSource("t", a_table(), Op.INSERT))
    insert(at, 2)
    at.write((1, None, at.rows[1][(1,)]))
    assert [(event.meta["op"], event.data["id"]) for event in at.events("t")] == [("Insert", 1), ("Delete", 1)]
    at.define(plans.DropSource("t", a_table(), None))
    assert routes(at) == []
    assert routes(at, 2) == [("t", Op.INSERT)]


def test_a_table_has_a_bounded_number_of_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_ROUTES", 2)
    at = RoutedTables()
    at.create("t")
    at.route("t", Op.INSERT)
    at.route("t", Op.UPDATE)
    error = refused(at, Reason.INVALID_VALUE, plans.AddSource("t", Route(0, 1, Op.DELETE)))
    assert error.detail is not None
    assert error.detail["sqlstate"] == "54011"


def test_a_topic_of_another_protocol_has_sources_and_an_alias() -> None:
    at = RoutedTables()
    at.engine.append(AppendRequest(topic="plain", batch=Batch(datas=[b"0"])))
    at.engine.sync()
    at.define(plans.SetAlias("plain", "p"))
    at.route("p", Op.INSERT, PayloadMode.KEY)
    insert(at, 1)
    assert [event.data for event in at.events("plain")] == [0, {"id": 1}]
    with pytest.raises(TopicsError, match="ephemeral"):
        at.engine.put_topic("plain", ConfigInput(durability="ephemeral"))
    at.define(plans.DropSource("plain", a_table(), None))
    at.engine.put_topic("plain", ConfigInput(durability="ephemeral"))


def test_a_deleted_topic_takes_its_routes_and_aliases_and_a_new_one_has_none() -> None:
    at = RoutedTables()
    for topic in ("t", "u"):
        at.define(plans.CreateTopic(topic, ConfigInput(), alias=f"{topic}.alias"))
        at.route(topic, Op.INSERT)
    before = at.engine.writer.written
    at.engine.delete_topic("t")
    assert at.engine.writer.written == before + 1
    at.create("t")
    insert(at, 1)
    assert at.events("t") == []
    assert len(at.events("u")) == 1
    assert at.engine.topic_catalog.find("t.alias") is None
    at.define(plans.DropTopic("u.alias"))
    at.restart()
    assert routes(at) == []
    assert not list(at.store.scan(Family.TABLES, b"", b"\xff"))
    insert(at, 2)


def test_options_that_are_not_set_stay() -> None:
    at = RoutedTables()
    at.create("t", cap_records=9, discard="reject")
    at.engine.put_topic("t", ConfigInput(cap_records=9, discard="reject", retain_until_acked_by=("g",)))
    before = at.engine.writer.written
    at.define(plans.SetTopicOptions("t", ConfigInput(ttl_ms=5000), partitions=3, alias="nick"))
    assert at.engine.writer.written == before + 1
    topic = at.engine.topic_catalog.find("nick")
    assert topic is not None
    config = topic.config
    assert (config.ttl_ms, config.cap_records, config.discard, config.retaining) == (5000, 9, "reject", ("g",))
    assert topic.partition_count == 3
    before = at.engine.writer.written
    at.define(plans.SetTopicOptions("t", ConfigInput(ttl_ms=5000), alias="nick"))
    assert at.engine.writer.written == before
    at.define(plans.SetTopicOptions("t", ConfigInput(), alias="name"))
    assert at.engine.writer.written == before + 1
    assert at.engine.topic_catalog.find("nick") is None


def test_clear_removes_messages_and_keeps_positions_and_seqs() -> None:
    at = RoutedTables()
    at.create("t", partitions=2)
    at.route("t", Op.INSERT)
    insert(at, *range(20))
    at.engine.sync()
    at.engine.groups.commit("g", [CommitItem("t", 0, 1)])
    heads = [log.state.head for log in at.engine.catalog.topics["t"].logs]
    before = at.engine.writer.written
    at.define(plans.ClearTopic("t"))
    assert at.engine.writer.written == before + 1
    assert at.events("t") == []
    at.define(plans.ClearTopic("t"))
    assert at.engine.writer.written == before + 1
    assert [log.state.head for log in at.engine.catalog.topics["t"].logs] == heads
    position = at.engine.groups.position("g", "t", 0)
    assert position is not None
    assert position.from_seq == 1
    insert(at, *range(20, 40))
    for partition, head in enumerate(heads):
        assert next(event.seq for event in at.events("t", partition)) == head + 1
    reply = at.engine.diff(DiffRequest(topic="t", from_seq=1))
    assert reply.tombstone is None, "a deletion is silent"


def test_routes_and_aliases_survive_a_restart() -> None:
    at = RoutedTables()
    at.define(plans.CreateTopic("t", ConfigInput(), 4, "nick"))
    at.route(
        "t", Op.INSERT, PayloadMode.DIFF, filter=binary("=", column(2, TEXT), "ann"), filter_text="owner = 'ann'",
        partition_by=(column(2, TEXT),), partition_text="owner",
    )  # fmt: skip
    at.route("t", Op.DELETE, tombstones=True)
    kept = at.engine.topic_catalog.routes(1)
    insert(at, 1)
    before = at.events("t")
    at.restart()
    assert sorted(at.engine.topic_catalog.routes(1), key=repr) == sorted(kept, key=repr)
    found = at.engine.topic_catalog.find("nick")
    assert found is not None
    assert found.name == "t"
    insert(at, 2)
    at.write((1, [3, "bob", None, None], None))
    after = at.events("t")
    assert [event.data["key"]["id"] for event in after] == [1, 2]
    assert {event.partition for event in after} == {before[0].partition}


class Stalling(MemoryStore):
    """Takes no write while `stalled`."""

    stalled = False

    def write(self, batch: WriteBatch) -> None:
        if self.stalled:
            raise StoreStalledError("stalled")
        super().write(batch)


def test_a_write_that_the_store_refuses_defines_nothing() -> None:
    store = Stalling()
    at = RoutedTables(store=store, clock=SetClock())
    at.create("t")
    at.route("t", Op.INSERT)
    store.stalled = True
    for definition in (
        plans.CreateTopic("n.u", ConfigInput(), alias="n.nick"),
        plans.SetAlias("t", "nick"),
        plans.AddSource("t", Route(0, 1, Op.UPDATE)),
        plans.DropSource("t", a_table(), None),
        plans.SetTopicOptions("t", ConfigInput(ttl_ms=1), 2, "nick"),
        plans.DropTopic("t"),
    ):
        with pytest.raises(TopicsError) as caught:
            at.define(definition)
        assert caught.value.reason is Reason.THROTTLED
    with pytest.raises(TopicsError):
        insert(at, 1)
    store.stalled = False
    assert routes(at) == [("t", Op.INSERT)]
    assert at.catalog.namespaces.keys() == {"default"}
    for name in ("n.u", "n.nick", "nick"):
        assert not at.engine.topic_catalog.is_taken(name)
    assert (at.engine.catalog.topics["t"].config.ttl_ms, at.engine.catalog.topics["t"].partition_count) == (0, 1)
    insert(at, 1)
    assert len(at.events("t")) == 1
