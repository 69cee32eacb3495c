"""Rows are the fold of their events: random transactions, refused ones among them, restarts and new partitions."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.routed_tables import Event, RoutedTables, SetClock, a_table, column
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Side
from topics_service.engine.tables.model import Op, PayloadMode

NAMES = ("id", "owner", "body", "score")
values = st.tuples(
    st.sampled_from([None, "ann", "bob"]), st.sampled_from([None, "", "é", '"quoted"']), st.sampled_from([None, 0, 1])
)
changes = st.tuples(st.sampled_from([1, 2]), st.integers(0, 7), st.one_of(st.none(), values))
steps = st.one_of(
    st.lists(changes, min_size=1, max_size=6),
    st.lists(changes, min_size=1, max_size=6),
    st.lists(changes, min_size=1, max_size=6),
    st.sampled_from(["restart", "grow", "clock back"]),
)
SMALL = 12  # records of the topic that may be full


def world(clock: SetClock) -> RoutedTables:
    at = RoutedTables(a_table(), a_table(2, "others"), clock=clock)
    at.create("full", 3)
    at.create("diff")
    at.create("small", discard="reject", cap_records=SMALL)
    for table in (1, 2):
        for op in Op:
            side = Side.OLD if op is Op.DELETE else Side.NEW
            at.route("full", op, table=table, partition_by=(column(1, side=side),))
            at.route("diff", op, PayloadMode.DIFF, table=table)
    at.route("small", Op.DELETE, PayloadMode.KEY)
    return at


def apply(at: RoutedTables, wanted: list[tuple[int, int, tuple[Any, ...] | None]]) -> None:
    """One transaction of the changes that make sense, on top of each other."""
    rows = {number: dict(held) for number, held in at.rows.items()}
    made: list[tuple[int, Any, Any]] = []
    for table, number, rest in wanted:
        old = rows[table].get((number,))
        new = None if rest is None else [number, *rest]
        if new == old:
            continue
        made.append((table, new, old))
        if new is None:
            del rows[table][(number,)]
        else:
            rows[table][(number,)] = new
    before = snapshot(at)
    try:
        at.write(*made)
    except TopicsError as error:
        if error.reason is not Reason.TOPIC_FULL:
            raise
        assert snapshot(at) == before, "a refused transaction changed nothing"
    else:
        assert at.rows == rows


def snapshot(at: RoutedTables) -> Any:
    return {topic: at.events(topic) for topic in ("full", "diff", "small")}, {n: dict(r) for n, r in at.rows.items()}


def folded(events: list[Event], table: str) -> dict[tuple[int], list[Any]]:
    rows: dict[tuple[int], list[Any]] = {}
    for event in events:
        if event.meta["source_table"] == table:
            key = (event.data["id"],)
            if event.meta["op"] == "Delete":
                assert rows.pop(key) == [event.data[name] for name in NAMES], "the last row"
            else:
                assert (event.meta["op"] == "Insert") == (key not in rows)
                rows[key] = [event.data[name] for name in NAMES]
    return rows


def unfolded(events: list[Event], table: str) -> dict[tuple[int], dict[str, Any]]:
    """The rows by the differences; each before is what was there."""
    rows: dict[tuple[int], dict[str, Any]] = {}
    for event in events:
        if event.meta["source_table"] == table:
            key, before, after = (event.data["key"]["id"],), event.data["before"], event.data["after"]
            held = rows.get(key)
            if held is None:
                assert before is None
                rows[key] = after
            elif after is None:
                assert rows.pop(key) == before
            else:
                assert before.keys() == after.keys()
                assert before.items() <= held.items()
                assert all(before[name] != after[name] for name in before)
                rows[key] = held | after
    return rows


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=14))
def test_rows_are_the_fold_of_their_events(script: list[Any]) -> None:
    clock = SetClock()
    at = world(clock)
    grown = 3
    for step in script:
        if step == "restart":
            at.restart()
        elif step == "clock back":
            clock.now -= 1000
        elif step == "grow":
            grown += 1
            at.define(plans.SetTopicOptions("diff", ConfigInput(), partitions=None))
            at.define(plans.SetTopicOptions("full", ConfigInput(), partitions=grown))
        else:
            apply(at, step)
    full, diff = at.events("full"), at.events("diff")
    ids = [int(event.meta["message_id"]) for event in full + diff + at.events("small")]
    assert len(set(ids)) == len(ids)
    assert len(full) == len(diff), "each change once"
    for number, table in ((1, "chat.messages"), (2, "chat.others")):
        assert unfolded(diff, table) == {
            key: dict(zip(NAMES, row, strict=True)) for key, row in at.rows[number].items()
        }
        if grown == 3:  # a row keeps its partition as long as there are as many
            assert folded(full, table) == at.rows[number]
    for partition in range(grown):
        events = at.events("full", partition)
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), "no holes"
        own = [int(event.meta["message_id"]) for event in events]
        assert own == sorted(own)
