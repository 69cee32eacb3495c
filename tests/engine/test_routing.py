"""Events of changes of rows: payloads, filters, partitions, message ids, and one commit with the rows."""

from typing import Any

import pytest

from support.routed_tables import BIGINT, NOW, TEXT, RoutedTables, SetClock, a_table, binary, column
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Side
from topics_service.engine.tables.messages import EPOCH_MS
from topics_service.engine.tables.model import Op, PayloadMode, Route
from topics_service.engine.transaction import Transaction

ONE = [1, "ann", "hello", 5]


def refused(reason: Reason, call: Any, *arguments: Any) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        call(*arguments)
    assert caught.value.reason is reason, caught.value
    return caught.value


def test_payloads_of_each_mode_and_op() -> None:
    at = RoutedTables()
    changed = [1, "ann", "bye", 5]
    for mode in PayloadMode:
        at.create(mode.value)
        for op in Op:
            at.route(mode.value, op, mode)
    at.write((1, ONE, None))
    at.write((1, changed, ONE))
    at.write((1, None, changed))
    before, after = dict(zip(("id", "owner", "body", "score"), ONE, strict=True)), {"body": "bye"}
    gone = before | after
    assert [event.data for event in at.events("Key")] == [{"id": 1}] * 3
    assert [event.data for event in at.events("Full")] == [before, gone, gone]
    assert [event.data for event in at.events("Diff")] == [
        {"key": {"id": 1}, "before": None, "after": before},
        {"key": {"id": 1}, "before": {"body": "hello"}, "after": after},
        {"key": {"id": 1}, "before": gone, "after": None},
    ]
    for mode in PayloadMode:
        events = at.events(mode.value)
        assert [event.meta["op"] for event in events] == ["Insert", "Update", "Delete"]
        assert {event.tag for event in events} == {"1"}
        for event in events:
            assert list(event.meta) == ["message_id", "source_table", "op", "payload_mode"]
            assert (event.meta["source_table"], event.meta["payload_mode"]) == ("chat.messages", mode.value)


def test_filters_see_both_sides_and_only_true_matches() -> None:
    at = RoutedTables()
    for name, op, condition in (
        ("new", Op.UPDATE, binary(">", column(4), 10)),
        ("turned", Op.UPDATE, binary("and", binary(">", column(4), 10), binary("<", column(4, side=Side.OLD), 10))),
        ("gone", Op.DELETE, binary("=", column(2, TEXT), "ann")),
    ):
        at.create(name)
        at.route(name, op, PayloadMode.KEY, filter=condition)
    rows = [[n, "ann" if n % 2 else None, "", n] for n in range(1, 5)]
    at.write(*((1, row, None) for row in rows))
    for score in (20, 30, None, 5):
        row = at.rows[1][(1,)]
        at.write((1, [*row[:3], score], row))
    at.write(*((1, None, row) for row in list(at.rows[1].values())))
    assert len(at.events("new")) == 2
    assert len(at.events("turned")) == 1
    assert [event.data["id"] for event in at.events("gone")] == [1, 3]
    route = at.engine.topic_catalog.routes_of_topic(at.engine.catalog.topics["new"].number)[0]
    for _ in range(2):
        counts = at.engine.routing.counts(route)
        assert (counts.matched, counts.evaluated) == (2, 4)
        at.restart()
    at.define(plans.DropSource("new", at.tables[0], None))
    at.route("new", Op.UPDATE, PayloadMode.KEY)
    at.restart()
    counts = at.engine.routing.counts(route)
    assert (counts.matched, counts.evaluated) == (0, 0)


def test_an_error_in_a_filter_refuses_the_write_and_names_the_route() -> None:
    at = RoutedTables()
    at.create("t")
    at.route("t", Op.INSERT, filter=binary("=", binary("/", column(1), column(4), BIGINT), 1))
    at.write((1, ONE, None))
    error = refused(Reason.DIVISION_BY_ZERO, at.write, (1, [2, None, None, 2], None), (1, [3, None, None, 0], None))
    assert error.detail is not None
    assert (error.detail["topic"], error.detail["table"], error.detail["sqlstate"]) == ("t", "chat.messages", "22012")
    assert '"t"' in error.message
    assert "chat.messages" in error.message
    assert len(at.events("t")) == 0
    assert list(at.rows[1]) == [(1,)]
    (route,) = at.engine.topic_catalog.routes(1)
    assert at.engine.routing.counts(route).evaluated == 1, "of the row that was written"


def test_a_key_of_several_columns_is_json_and_a_long_one_is_no_tag() -> None:
    at = RoutedTables(a_table(key=(2, 1)))
    at.create("t")
    at.route("t", Op.INSERT, PayloadMode.KEY)
    at.write((1, ONE, None), (1, [2, "x" * 300, None, None], None))
    first, second = at.events("t")
    assert (first.tag, first.data) == ('{"owner":"ann","id":1}', {"owner": "ann", "id": 1})
    assert second.tag is None
    assert second.data["id"] == 2


def test_partitions_follow_the_key_or_the_expressions() -> None:
    at = RoutedTables()
    at.create("key", 4)
    at.create("owner", 4)
    for op in Op:
        at.route("key", op)
        at.route("owner", op, partition_by=(column(2, TEXT),))
    rows = [[n, f"o{n % 7}" if n % 7 else None, "", 0] for n in range(70)]
    at.write(*((1, row, None) for row in rows))
    at.write(*((1, [*row[:3], 1], row) for row in rows))
    at.write(*((1, None, row) for row in list(at.rows[1].values())))
    for topic, value in (("key", "id"), ("owner", "owner")):
        places: dict[Any, set[int]] = {}
        for event in at.events(topic):
            places.setdefault(event.data[value], set()).add(event.partition)
        assert all(len(found) == 1 for found in places.values())
        assert len(set.union(*places.values())) > 1
        ids = {int(event.meta["message_id"]): event.data["id"] for event in at.events(topic)}
        assert [ids[number] for number in sorted(ids)] == [*range(70)] * 3, "they grow over all partitions"
        for partition in range(4):
            events = at.events(topic, partition)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [(event.meta["op"], event.data["id"]) for event in events] == sorted(
                ((event.meta["op"], event.data["id"]) for event in events),
                key=lambda each: (["Insert", "Update", "Delete"].index(each[0]), each[1]),
            )


def test_partitions_that_are_added_count_for_the_next_transaction() -> None:
    at = RoutedTables()
    at.create("t")
    at.route("t", Op.INSERT)
    events = at.engine.routing.collect()
    events.change(at.catalog.tables[1], Op.INSERT, ONE, None)
    at.define(plans.SetTopicOptions("t", ConfigInput(), partitions=4))
    events.change(at.catalog.tables[1], Op.INSERT, [2, None, None, None], None)
    with Transaction(at.engine.writer) as tx:
        events.stage(tx, NOW)
        tx.commit()
    assert {event.partition for event in at.events("t")} == {0}
    at.write(*((1, [n, None, None, None], None) for n in range(50)))
    assert {event.partition for event in at.events("t")} == {0, 1, 2, 3}


def test_message_ids_grow_through_full_milliseconds_clock_steps_and_restarts() -> None:
    clock = SetClock()
    at = RoutedTables(clock=clock)
    at.create("t")
    at.route("t", Op.INSERT, PayloadMode.KEY)
    ids: list[int] = []

    def insert(count: int) -> None:
        first = len(at.rows[1])
        at.write(*((1, [first + n, None, None, None], None) for n in range(count)))

    insert(2)
    ids = [int(event.meta["message_id"]) for event in at.events("t")]
    assert [number >> 22 for number in ids] == [NOW - EPOCH_MS] * 2
    insert(9000)  # more than two milliseconds have
    at.restart()
    insert(2)  # in the same millisecond still
    clock.now -= 60_000
    insert(1)
    at.restart()
    insert(1)
    reply = [event for seq in range(0, 9006, 1000) for event in at.events("t", 0, seq)]
    ids = [int(event.meta["message_id"]) for event in reply]
    assert len(ids) == 9006
    assert ids == sorted(set(ids))
    assert [event.ts for event in reply] == [NOW] * 9006, "of the clock, which never goes back in a log"
    at.engine.routing.ids.next()
    at.define(plans.DropTopic("t"))
    at.write((1, [10_000, None, None, None], None))
    at.restart()
    assert at.engine.routing.ids.next() > ids[-1] + 1


def test_a_full_topic_refuses_row_and_event_of_all() -> None:
    at = RoutedTables()
    at.create("wide")
    at.create("small", discard="reject", cap_records=3)
    at.route("wide", Op.INSERT)
    at.route("small", Op.INSERT)
    at.write((1, ONE, None), (1, [2, None, None, None], None))
    error = refused(Reason.TOPIC_FULL, at.write, (1, [3, None, None, None], None), (1, [4, None, None, None], None))
    assert error.detail is not None
    assert error.detail["topic"] == "small"
    assert len(at.events("wide")) == len(at.events("small")) == len(at.rows[1]) == 2
    at.write((1, [5, None, None, None], None))
    assert len(at.events("wide")) == 3


def test_a_transaction_larger_than_a_cap_is_refused_before_it_evicts_its_own_events() -> None:
    at = RoutedTables()
    at.create("t", cap_records=3)
    at.route("t", Op.INSERT)
    rows: list[Any] = [(1, [n, None, None, None], None) for n in range(4)]
    error = refused(Reason.RECORD_TOO_LARGE, at.write, *rows)
    assert error.detail is not None
    assert error.detail["sqlstate"] == "54000"
    at.write(*rows[:3])
    at.write((1, [9, None, None, None], None))
    assert [event.data["id"] for event in at.events("t")] == [1, 2, 9]


def test_an_event_larger_than_a_record_is_refused() -> None:
    at = RoutedTables()
    at.create("t")
    at.route("t", Op.INSERT)
    refused(Reason.RECORD_TOO_LARGE, at.write, (1, [1, None, "x" * (1 << 20), None], None))
    at.write((1, [1, None, "x" * (1 << 19), None], None))
    assert len(at.events("t")) == 1


def test_tombstones_of_a_full_route() -> None:
    at = RoutedTables()
    at.create("t")
    for op in Op:
        at.route("t", op, tombstones=True)
    at.write((1, ONE, None))
    at.write((1, None, ONE))
    kept, gone = at.events("t")
    assert kept.data["id"] == 1
    assert (gone.data, gone.tag, gone.meta["op"]) == (None, "1", "Delete")
    at.create("key")
    route = Route(0, 1, Op.INSERT, PayloadMode.KEY, tombstones=True)
    refused(Reason.INVALID_VALUE, at.define, plans.AddSource("key", route))


def test_savepoints_forget_the_events_after_them() -> None:
    at = RoutedTables()
    at.create("t")
    at.create("u")
    at.route("t", Op.INSERT)
    at.route("u", Op.DELETE)
    table, events = at.catalog.tables[1], at.engine.routing.collect()
    events.change(table, Op.INSERT, ONE, None)
    mark = events.mark()
    size = events.nbytes
    events.change(table, Op.INSERT, [2, None, None, None], None)
    events.change(table, Op.DELETE, None, ONE)
    events.reset(mark)
    assert events.nbytes == size
    events.change(table, Op.INSERT, [3, None, None, None], None)
    with Transaction(at.engine.writer) as tx:
        assert events.stage(tx, NOW) is False
        tx.commit()
    assert [event.data["id"] for event in at.events("t")] == [1, 3]
    assert at.events("u") == []
    counted = [at.engine.routing.counts(route) for route in at.engine.topic_catalog.routes(1)]
    assert [(counts.matched, counts.evaluated) for counts in counted] == [(2, 2), (0, 0)]


def test_events_of_a_topic_that_was_deleted_meanwhile_are_left_out() -> None:
    at = RoutedTables()
    at.create("t")
    at.create("u", durability="fsync")
    at.route("t", Op.INSERT)
    at.route("u", Op.INSERT)
    events = at.engine.routing.collect()
    events.change(at.catalog.tables[1], Op.INSERT, ONE, None)
    at.define(plans.DropTopic("t"))
    at.create("t")
    with Transaction(at.engine.writer) as tx:
        assert events.stage(tx, NOW) is True
        tx.commit()
    assert at.events("t") == []
    assert len(at.events("u")) == 1
