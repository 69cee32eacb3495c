"""The batch read against a real server, driven as Spark drives it, but without a JVM: each option, each offset."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, StringStartsWith

from pyspark_topics.columns import DataLossError
from pyspark_topics.inventory import TopicInfo, find_topics
from pyspark_topics.offsets import OffsetError
from pyspark_topics.options import OptionError
from support.spark import Row, Server, put_topic
from support.spark_read import Read
from support.waiting import poll
from topics_client.connection import Connection
from topics_client.errors import AuthError, InvalidRequestError, NotFoundError
from topics_client.installation import install_line
from topics_proto.v1 import topics_service_pb2 as pb

Fill = Callable[..., int]
Rows = Callable[..., list[Row]]
COLUMNS = ("partition", "seq", "ts", "node", "tag", "meta", "data", "kind")


@pytest.fixture
def read(server: Server) -> Callable[..., Read]:
    """`read(subscribe="a", …)`: a planned read, options by their names."""

    def make(*, schema: str | None = None, filters: tuple[Filter, ...] = (), **options: object) -> Read:
        given = {"url": server.url, "pushFilters": "true"} | {k: str(v) for k, v in options.items()}
        return Read(given, schema=schema, filters=filters)

    return make


def later(connection: Connection, topic: str, fill: Fill, *, count: int = 10) -> list[int]:
    """Three writes, each at a later millisecond than the one before; their times in ms."""
    times = []
    for part in range(3):
        last = fill(topic, count, first=part * count)
        state = pb.GetTopicRequest(topic=topic, touch=False)
        times.append(connection.unary(connection.topics.GetTopic, state, repeatable=True).state.last_write_ts_ms)

        def passed(ts: int = times[-1], seq: int = last) -> bool:
            fill(topic + "-clock", 1)
            now = pb.GetTopicRequest(topic=topic + "-clock", touch=False)
            return connection.unary(connection.topics.GetTopic, now, repeatable=True).state.last_write_ts_ms > ts

        poll(passed, 20, "the clock")
    return times


def test_every_record_as_it_is(read: Callable[..., Read], fill: Fill, rows: Rows) -> None:
    fill(
        "all", 300, tag=lambda i: f"t{i % 3}" if i % 4 else None, node=lambda i: "n1" if i % 2 else None, meta='{"a":1}'
    )
    fill("all", 20, data=lambda i: bytes([i, 255]), kind="binary")
    found = read(subscribe="all", includeKind=True).rows()
    assert [tuple(row[name] for name in COLUMNS) for row in found] == [tuple(row) for row in rows("all")]
    assert {row["topic"] for row in found} == {"all"}


def test_several_topics_and_a_pattern(read: Callable[..., Read], fill: Fill) -> None:
    for name in ("many.b", "many.a", "many.c.x", "other"):
        fill(name, 3)
    assert read(subscribe="many.b, other,many.b").column("topic") == ["many.b"] * 3 + ["other"] * 3
    assert set(read(subscribePattern=r"many\.[ab]").column("topic")) == {"many.a", "many.b"}
    assert read(subscribePattern="none-such").rows() == []
    with pytest.raises(InvalidRequestError, match="regular expression"):
        read(subscribePattern="(")
    with pytest.raises(NotFoundError, match="no-such"):
        read(subscribe="other,no-such")


def test_partitions(read: Callable[..., Read], fill: Fill, rows: Rows, connection: Connection) -> None:
    put_topic(connection, "parted", partitions=3)
    for partition in (0, 2):
        fill("parted", 5 + partition, partition=partition)
    planned = read(subscribe="parted")
    assert [(task.ranges[0].partition, len(task.ranges)) for task in planned.tasks] == [(0, 1), (2, 1)]
    assert [(row["partition"], row["seq"]) for row in planned.rows()] == [(r.partition, r.seq) for r in rows("parted")]
    some = read(subscribe="parted", startingOffsets='{"parted": {"0": 3}}', endingOffsets='{"parted": {"2": 2}}')
    assert [(row["partition"], row["seq"]) for row in some.rows()] == [(0, 4), (0, 5), (2, 1), (2, 2)]
    latest = read(subscribe="parted", startingOffsets='{"parted": {"0": -1, "1": -2}}', endingOffsets="latest")
    assert {row["partition"] for row in latest.rows()} == {2}
    assert read(subscribe="parted", startingOffsets='{"parted": -1}').rows() == []
    for offsets, words in (
        ('{"parted": 3}', "3 partitions"),
        ('{"parted": {"3": 1}}', "partition 3"),
        ('{"parted": {"1": 1}}', "up to 0"),
        ('{"partedd": 1}', "topic partedd, which is not read"),
    ):
        with pytest.raises(OffsetError, match=words):
            read(subscribe="parted", startingOffsets=offsets)


def test_from_and_to_a_seq(read: Callable[..., Read], fill: Fill) -> None:
    fill("seqs", 20)
    assert read(subscribe="seqs", startingOffsets='{"seqs": 5}', endingOffsets='{"seqs": 8}').column() == [6, 7, 8]
    assert read(subscribe="seqs", startingOffsets='{"seqs": 0}', endingOffsets='{"seqs": 2}').column() == [1, 2]
    assert read(subscribe="seqs", startingOffsets="latest").rows() == []
    assert read(subscribe="seqs", startingOffsets='{"seqs": 20}').rows() == []
    assert read(subscribe="seqs", endingOffsets="earliest").rows() == []
    with pytest.raises(OffsetError) as caught:
        read(subscribe="seqs", startingOffsets='{"seqs": 9}', endingOffsets='{"seqs": 8}')
    for word in ("topic seqs", "ends with seq 8", "begins after seq 9", "endingOffsets", "startingOffsets"):
        assert word in str(caught.value)
    for side in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OffsetError, match=f"{side}: partition 0 of topic seqs has seqs up to 20, not 21"):
            read(subscribe="seqs", **{side: '{"seqs": 21}'})


def test_from_and_to_a_time(read: Callable[..., Read], fill: Fill, connection: Connection, rows: Rows) -> None:
    fill("timed-other", 1)
    first, second, third = later(connection, "timed", fill)
    assert read(subscribe="timed", startingTimestamp=second).column() == list(range(11, 31))
    assert read(subscribe="timed", endingTimestamp=third).column() == list(range(1, 21))
    assert read(subscribe="timed", startingTimestamp=first + 1, endingTimestamp=second + 1).column() == list(
        range(11, 21)
    )
    assert read(subscribe="timed", startingTimestamp=rows("timed")[10].ts.isoformat()).column() == list(range(11, 31))
    assert read(subscribe="timed", startingTimestamp=third + 3_600_000).rows() == []
    assert read(subscribe="timed", startingTimestamp=0, endingTimestamp="1970-01-02").rows() == []
    by_topic = json.dumps({"timed": {"0": second}})
    assert read(subscribe="timed,timed-other", startingOffsetsByTimestamp=by_topic).column() == [*range(11, 31), 1]
    assert read(subscribe="timed", endingOffsetsByTimestamp=json.dumps({"timed": second})).column() == list(
        range(1, 11)
    )


def test_what_is_written_while_a_read_is_planned(
    read: Callable[..., Read], fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time is looked for after the heads were, and may be found behind them."""
    fill("growing", 10)

    def found(*given: Any) -> list[TopicInfo]:
        topics = find_topics(*given)
        fill("growing", 5)
        return topics

    monkeypatch.setattr("pyspark_topics.ranges.find_topics", found)
    assert read(subscribe="growing", startingTimestamp="2100-01-01").rows() == []
    assert read(subscribe="growing", endingTimestamp="2100-01-01").column() == list(range(1, 16))


def test_nodes_and_tags(read: Callable[..., Read], fill: Fill) -> None:
    fill("marked", 12, tag=lambda i: ("a", "ab", "b", None)[i % 4], node=lambda i: (None, "n1", "n2")[i % 3])
    assert read(subscribe="marked", nodes="n1,n2").column() == [1, 4, 7, 10]
    assert read(subscribe="marked", tag="a").column() == [1, 5, 9]
    assert read(subscribe="marked", tagPrefix="a").column() == [1, 2, 5, 6, 9, 10]
    assert read(subscribe="marked", tagPrefix="").column("tag").count(None) == 0


def test_how_it_is_split(read: Callable[..., Read], fill: Fill) -> None:
    fill("split", 25_000)
    assert len(read(subscribe="split", minPartitions=7).tasks) == 7
    assert len(read(subscribe="split", maxRecordsPerPartition=1000).tasks) == 25
    planned = read(subscribe="split", minPartitions=3, schema="seq bigint")
    assert sorted(row["seq"] for task in reversed(planned.tasks) for row in planned.run(task)) == list(range(1, 25_001))


def test_columns(read: Callable[..., Read], fill: Fill) -> None:
    fill("columns", 3, meta='{"m":1}', tag="t")
    names = ["topic", "seq", "ts", "node", "tag", "data", "partition"]
    assert read(subscribe="columns", includeMeta=False).schema.names == names
    assert "data" not in read(subscribe="columns", includeData=False).schema.names
    typed = read(subscribe="columns", dataSchema="id bigint, amount double").rows()
    assert [(row["id"], row["amount"], row["_corrupt"]) for row in typed] == [(i, i + 0.25, None) for i in range(3)]
    assert read(subscribe="columns", schema="amount double, tag string").rows() == [
        {"amount": i + 0.25, "tag": "t"} for i in range(3)
    ]
    with pytest.raises(OptionError, match="exclude each other"):
        read(subscribe="columns", dataSchema="id bigint", schema="id bigint")
    with pytest.raises(OptionError, match="seq is of type int64"):
        read(subscribe="columns", schema="seq string")
    with pytest.raises(OptionError, match="column SEQ: that of the record itself is spelled seq"):
        read(subscribe="columns", schema="SEQ bigint")


def test_what_does_not_fit_the_schema(read: Callable[..., Read], fill: Fill) -> None:
    fill("corrupt", 4, data=[b'{"id":1}', b'{"id":"x"}', b"[1]", b'{"id":4}'])
    fill("corrupt", 1, data=b'{"id":5}', kind="binary")
    found = read(subscribe="corrupt", dataSchema="id bigint").rows()
    assert [row["id"] for row in found] == [1, None, None, 4, None]
    assert [row["_corrupt"] for row in found] == [
        None,
        'Expected `bigint`, got `"x"` - at `$.id`',
        "Expected `object`, got `array`",
        None,
        "a binary record",
    ]
    assert [row["data"] for row in found][1] == b'{"id":"x"}'


def test_empty_topics(read: Callable[..., Read], connection: Connection, fill: Fill) -> None:
    put_topic(connection, "empty")
    for options in ({}, {"startingOffsets": "latest"}, {"startingOffsets": '{"empty": 0}'}, {"startingTimestamp": 5}):
        assert read(subscribe="empty", minPartitions=3, **options).rows() == []
    fill("emptied", 5)
    delete(connection, "emptied", before_seq=6)
    assert read(subscribe="emptied").rows() == []
    assert read(subscribe="emptied", startingOffsets='{"emptied": 0}').rows() == []


def delete(connection: Connection, topic: str, **what: object) -> None:
    request = pb.DeleteRecordsRequest(topic=topic, **what)  # type: ignore[arg-type]
    connection.unary(connection.topics.DeleteRecords, request, repeatable=True)


def test_deleted_records_are_no_loss(read: Callable[..., Read], fill: Fill, connection: Connection) -> None:
    fill("deleted", 30, tag=lambda i: "x" if i % 3 == 0 else "y")
    delete(connection, "deleted", before_seq=6)
    delete(connection, "deleted", match={"eq": "x"})
    expected = [seq for seq in range(6, 31) if seq % 3 != 1]
    for options in ({}, {"startingOffsets": '{"deleted": 0}'}, {"includeGaps": True, "minPartitions": 4}):
        assert read(subscribe="deleted", **options).column() == expected


def test_lost_records(read: Callable[..., Read], fill: Fill, connection: Connection) -> None:
    put_topic(connection, "capped", cap_records=10)
    fill("capped", 100)
    assert read(subscribe="capped").column() == list(range(91, 101)), "earliest is what is there"
    start = {"subscribe": "capped", "startingOffsets": '{"capped": 50}', "minPartitions": 3}
    with pytest.raises(DataLossError) as caught:
        read(**start).rows()
    for word in ("topic capped", "seq 51 to 90", "cap"):
        assert word in str(caught.value)
    assert read(**start, failOnDataLoss=False).column() == list(range(91, 101))
    found = read(**start, failOnDataLoss=False, includeGaps=True).rows()
    nothing = dict.fromkeys(("ts", "node", "tag", "meta", "data"))
    gap = {"topic": "capped", "partition": 0, "seq": 51, "gap_to": 90, "gap_reason": "cap"}
    assert found[0] == gap | nothing
    assert [row["seq"] for row in found[1:]] == list(range(91, 101))
    assert {row["gap_to"] for row in found[1:]} == {None}
    # Wholly in what is gone.
    gone = {"subscribe": "capped", "startingOffsets": '{"capped": 5}', "endingOffsets": '{"capped": 20}'}
    rows = read(**gone, failOnDataLoss=False, includeGaps=True, minPartitions=5).rows()
    assert [(row["seq"], row["gap_to"]) for row in rows] == [(6, 20)]
    with pytest.raises(OffsetError, match=r"ends with seq 5 .* and begins after seq 20"):
        read(subscribe="capped", startingOffsets='{"capped": 20}', endingOffsets='{"capped": 5}')
    # The read begins with what is there and has its end in what is gone: nothing is left of it.
    assert read(subscribe="capped", endingOffsets='{"capped": 20}').rows() == []
    # Lost between planning and reading.
    planned = read(subscribe="capped")
    fill("capped", 5)
    with pytest.raises(DataLossError, match="seq 91 to 95 are lost"):
        planned.rows()


def test_a_filter_leaves_out_what_it_can_and_no_more(
    read: Callable[..., Read], fill: Fill, connection: Connection, rows: Rows
) -> None:
    put_topic(connection, "filtered", partitions=2)
    later(
        connection, "filtered", lambda topic, count, first=0: fill(topic, count, first=first, tag=lambda i: f"t{i % 2}")
    )
    fill("filtered", 5, partition=1)
    time = rows("filtered")[10].ts
    every = read(subscribe="filtered,filtered-clock").rows()
    cases: list[tuple[tuple[Filter, ...], Callable[[dict], bool]]] = [  # type: ignore[type-arg]
        (
            (GreaterThan(("seq",), 25), EqualTo(("topic",), "filtered")),
            lambda r: r["topic"] == "filtered" and r["seq"] > 25,
        ),
        ((In(("partition",), (1,)),), lambda r: r["partition"] == 1),
        ((EqualTo(("partition",), 0), LessThan(("seq",), 3)), lambda r: r["partition"] == 0 and r["seq"] < 3),
        ((GreaterThanOrEqual(("ts",), time),), lambda r: r["ts"] >= time),
        ((GreaterThan(("ts",), time),), lambda r: r["ts"] > time),
        ((LessThan(("ts",), time),), lambda r: r["ts"] < time),
        ((EqualTo(("ts",), time),), lambda r: r["ts"] == time),
        ((GreaterThan(("ts",), time + timedelta(days=1)),), lambda r: False),
        ((EqualTo(("tag",), "t1"),), lambda r: r["tag"] == "t1"),
        ((StringStartsWith(("tag",), "t"),), lambda r: r["tag"] is not None),
        ((StringStartsWith(("topic",), "filtered-"),), lambda r: r["topic"] == "filtered-clock"),
        ((EqualTo(("tag",), "none"),), lambda r: False),
        ((EqualTo(("topic",), "none"),), lambda r: False),
        ((GreaterThan(("seq",), 5), LessThan(("seq",), 5)), lambda r: False),
    ]
    for filters, keeps in cases:
        assert read(subscribe="filtered,filtered-clock", filters=filters).rows() == [r for r in every if keeps(r)], (
            filters
        )


def test_a_filter_says_nothing_unless_it_may(read: Callable[..., Read], fill: Fill) -> None:
    fill("unpushed", 9)
    above = (GreaterThan(("seq",), 5),)
    assert read(subscribe="unpushed", filters=above).column() == [6, 7, 8, 9]
    assert read(subscribe="unpushed", filters=above, pushFilters=False).column() == list(range(1, 10))


def test_a_filter_on_time_hides_no_loss(
    read: Callable[..., Read], fill: Fill, connection: Connection, rows: Rows
) -> None:
    put_topic(connection, "late", cap_records=10)
    later(connection, "late", fill)
    start = {"subscribe": "late", "startingOffsets": '{"late": 5}'}
    after = (GreaterThanOrEqual(("ts",), rows("late")[0].ts),)
    with pytest.raises(DataLossError, match="seq 6 to 20 are lost"):
        read(**start, filters=after).rows()
    assert read(**start, filters=after, failOnDataLoss=False).column() == list(range(21, 31))
    assert read(**start, filters=(GreaterThan(("seq",), 20), *after)).column() == list(range(21, 31))


def test_a_topic_made_again_is_not_read_for_the_old_one(
    read: Callable[..., Read], fill: Fill, connection: Connection
) -> None:
    fill("again", 10)
    planned = read(subscribe="again")
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="again"), repeatable=True)
    fill("again", 50)
    with pytest.raises(NotFoundError, match="topic again, seq 1 to 10"):
        planned.rows()
    assert len(read(subscribe="again").rows()) == 50
    with pytest.raises(OffsetError, match="another topic of that name"):
        read(subscribe="again", startingOffsets='{"again": 70}')


def test_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    keys = "ops-key,orders-key:read:orders,writer-key:write:"
    with Server(tmp_path_factory.mktemp("keys"), env={"TOPICS_API_KEYS": keys}) as server:
        with server.connect("ops-key") as connection:
            for topic in ("orders", "other"):
                put_topic(connection, topic)
        given = {"url": server.url, "subscribe": "orders"}
        assert Read(given | {"apiKey": "ops-key"}).rows() == []
        planned = Read(given | {"url": server.url.replace("//", "//orders-key@")})
        assert planned.rows() == []
        assert "orders-key" not in repr(planned.tasks)
        seen = Read({"url": server.url, "apiKey": "orders-key", "subscribePattern": ".*"})
        assert seen.rows() == []
        for wrong in (
            {},
            {"apiKey": "wr0ng"},
            {"apiKey": "writer-key"},
            {"apiKey": "orders-key", "subscribe": "other"},
        ):
            with pytest.raises(AuthError, match=r"topics (orders|other) at topics://127") as caught:
                Read(given | wrong)
            assert wrong.get("apiKey", "?") not in str(caught.value)


def test_a_missing_package_fails_no_other_source() -> None:
    """Spark imports DefaultSource when it looks for any source at all."""
    code = (
        "import sys\n"
        "for name in ('msgspec', 'pyarrow', 'grpc'): sys.modules[name] = None\n"
        "import pyspark_topics\n"
        "assert hasattr(pyspark_topics, 'DefaultSource')\n"
        "try: pyspark_topics.DefaultSource({}).schema()\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=_path())
    assert done.returncode == 0, done.stderr
    line = install_line("spark")
    assert re.search(rf"the format topics needs \w+: {re.escape(line)}, with the Python of each worker", done.stdout)


def _path() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
