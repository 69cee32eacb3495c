"""The batch read in Spark itself."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as f

import pyspark_topics
from support.spark import Row, Server, fill, put_topic, rows
from support.waiting import poll
from topics_client.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fill = Callable[..., int]
PUSH = "spark.sql.python.filterPushdown.enabled"


def load(
    spark: "SparkSession", server: Server, topics: str, *, schema: str | None = None, **options: object
) -> "DataFrame":
    reader = spark.read.format("topics").option("url", server.url).option("subscribe", topics)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader if schema is None else reader.schema(schema)).load()


def plain(frame: "DataFrame", *names: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.select(*names).collect())


@pytest.fixture
def pushing(spark: "SparkSession") -> Iterator[None]:
    """Spark pushes filters."""
    spark.conf.set(PUSH, "true")
    yield
    spark.conf.unset(PUSH)


def test_the_format_is_known_and_gives_every_record(
    spark: "SparkSession", server: Server, fill: Fill, rows: Callable[..., list[Row]]
) -> None:
    fill("orders", 12_000, tag=lambda i: f"t{i % 3}" if i % 4 else None, node=lambda i: "n1" if i % 2 else None)
    fill("orders", 100, data=lambda i: bytes([i, 255]), kind="binary", meta='{"a":1}')
    frame = load(spark, server, "orders", includeKind=True, minPartitions=3)
    assert frame.columns == ["topic", "seq", "ts", "node", "tag", "meta", "data", "partition", "kind"]
    assert frame.rdd.getNumPartitions() == 3
    found = frame.select("partition", "seq", f.unix_micros("ts"), "node", "tag", "meta", "data", "kind").collect()
    expected = [(r.partition, r.seq, round(r.ts.timestamp() * 1e6), *r[3:]) for r in rows("orders")]
    assert sorted(tuple(row) for row in found) == expected
    assert frame.count() == 12_100
    pyspark_topics.register(spark)
    assert load(spark, server, "orders").count() == 12_100


def test_typed_columns(spark: "SparkSession", server: Server, fill: Fill) -> None:
    good = (
        b'{"id":%d,"at":"2026-11-28T09:00:00.5Z","price":"1.25","on":"2026-11-28","tags":["a",null],'
        b'"items":[{"sku":"x","n":1},null],"m":{"k":1.5},"raw":"YQ==","deep":{"d":{"e":true}}}'
    )
    fill("typed", 5, data=lambda i: good % i if i != 3 else b'{"id":"three"}')
    ddl = (
        "id bigint, at timestamp, price decimal(10,2), `on` date, tags array<string>, m map<string, double>,"
        " items array<struct<sku: string, n: int>>, raw binary, deep struct<d: struct<e: boolean>>, none float"
    )
    frame = load(spark, server, "typed", dataSchema=ddl)
    assert frame.columns[8:] == ["id", "at", "price", "on", "tags", "m", "items", "raw", "deep", "none", "_corrupt"]
    picked = frame.where("_corrupt is null").selectExpr("id", "deep.d.e", "items[0].n", "m['k']", "size(tags)", "none")
    assert sorted(tuple(row) for row in picked.collect()) == [(i, True, 1, 1.5, 2, None) for i in (0, 1, 2, 4)]
    times = frame.where("seq = 1").selectExpr("unix_micros(at)", "string(price)", "string(on)", "string(raw)").first()
    assert tuple(times) == (1_795_856_400_500_000, "1.25", "2026-11-28", "a")
    [(seq, reason, data)] = plain(frame.where("_corrupt is not null"), "seq", "_corrupt", "data")
    assert (seq, data) == (4, b'{"id":"three"}')
    assert "$.id" in str(reason)
    own = load(spark, server, "typed", schema="price decimal(10,2), seq bigint")
    assert own.columns == ["price", "seq"]
    assert own.selectExpr("count(price)", "count(seq)").first() == (4, 5)


def test_sql(spark: "SparkSession", server: Server, fill: Fill) -> None:
    fill("of.sql", 50)
    spark.sql(
        f"create or replace temporary view of_sql using topics options (url '{server.url}', subscribe 'of.sql',"
        " dataSchema 'id bigint, amount double', startingOffsets '{\"of.sql\": 10}')"
    )
    assert spark.sql("select count(*), min(seq), sum(id) from of_sql where amount > 0").first() == (
        40,
        11,
        sum(range(10, 50)),
    )


CONDITIONS: dict[str, Callable[[SparkRow], bool]] = {
    "topic = 'push.a' and partition = 0 and seq > 150 and seq <= 160": lambda r: (
        r.topic == "push.a" and r.partition == 0 and 150 < r.seq <= 160
    ),
    "topic like 'push.b%' and ts > timestamp '2020-01-01 00:00:00'": lambda r: r.topic == "push.b",
    "tag like 't%' and seq % 2 = 0": lambda r: r.tag is not None and r.seq % 2 == 0,
    "tag is null or tag = 't1'": lambda r: r.tag in (None, "t1"),
    "tag = 't1' and id = 7": lambda r: r.tag == "t1" and r.id == 7,
}


def test_pushed_filters_change_nothing_but_the_work(
    spark: "SparkSession", server: Server, fill: Fill, connection: Connection, pushing: None
) -> None:
    put_topic(connection, "push.a", partitions=2)
    fill("push.a", 200, tag=lambda i: f"t{i % 3}" if i % 5 else None)
    fill("push.a", 30, partition=1)
    fill("push.b", 20)
    kept = load(spark, server, "push.a,push.b", dataSchema="id bigint")
    every = kept.collect()
    for condition, keeps in CONDITIONS.items():
        expected = sorted((r.topic, r.partition, r.seq) for r in every if keeps(r))
        assert expected
        fresh = load(spark, server, "push.a,push.b", dataSchema="id bigint", pushFilters=True)
        assert plain(fresh.where(condition), "topic", "partition", "seq") == expected, condition
    # One frame for several queries: Spark uses what it planned for the first one again (see pyspark_topics.batch).
    assert kept.where("topic = 'push.b'").count() == 20
    assert kept.count() == len(every)


def test_pushed_filters_spare_work(spark: "SparkSession", server: Server, fill: Fill, pushing: None) -> None:
    fill("spared", 40_000)
    assert load(spark, server, "spared").rdd.getNumPartitions() == 4
    assert load(spark, server, "spared", pushFilters=True).where("seq > 39990").rdd.getNumPartitions() == 1


def test_gaps(spark: "SparkSession", server: Server, fill: Fill, connection: Connection) -> None:
    put_topic(connection, "gaps", cap_records=10)
    fill("gaps", 100)
    given = {"startingOffsets": '{"gaps": 50}', "includeGaps": True, "minPartitions": 2}
    with pytest.raises(PythonException) as caught:
        load(spark, server, "gaps", **given).collect()
    for word in ("topic gaps", "seq 51 to 90 are lost", "cap", "failOnDataLoss"):
        assert word in str(caught.value)
    frame = load(spark, server, "gaps", failOnDataLoss=False, **given)
    assert plain(frame.where("gap_reason is not null"), "seq", "gap_to", "gap_reason") == [(51, 90, "cap")]
    assert plain(frame.where("gap_reason is null"), "seq") == [(seq,) for seq in range(91, 101)]


def test_nothing_to_read(spark: "SparkSession", server: Server, connection: Connection) -> None:
    put_topic(connection, "nothing")
    assert load(spark, server, "nothing", minPartitions=5).collect() == []
    assert load(spark, server, "nothing", dataSchema="a int").count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such"}, ["no-such"]),
        ({"startingOffsets": "{"}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": '{"errors": 7}', "endingOffsets": '{"errors": 5}'}, ["topic errors", "7", "5"]),
        ({"endingOffsets": '{"errors": 70}'}, ["endingOffsets", "topic errors", "not 70"]),
        ({"startingofset": "latest"}, ["unknown option startingofset"]),
        ({"dataSchema": "seq int"}, ["dataSchema", "seq"]),
    ],
)
def test_errors_say_what_is_wrong(
    spark: "SparkSession", server: Server, fill: Fill, options: dict[str, str], words: list[str]
) -> None:
    fill("errors", 10)
    with pytest.raises(AnalysisException) as caught:
        load(spark, server, options.get("subscribe", "errors"), **options | {"apiKey": "sekret"}).collect()
    for word in words:
        assert word in str(caught.value)
    assert "sekret" not in str(caught.value)


def test_the_key_is_in_no_plan(spark: "SparkSession", server: Server, fill: Fill) -> None:
    fill("plans", 10)
    frame = load(spark, server, "plans", apiKey="sekret").where("seq > 5")
    assert frame.count() == 5
    execution = frame._jdf.queryExecution()
    for text in (execution.toString(), execution.stringWithStats(), repr(frame)):
        assert "sekret" not in text


def test_a_server_that_dies_in_the_middle_of_a_job(spark: "SparkSession", tmp_path: Path) -> None:
    """A stage behind the read stops in its first batch until the server has been killed and is back."""
    began, go = tmp_path / "began", tmp_path / "go"

    def held(read: Iterable[SparkRow]) -> Iterator[tuple[object, ...]]:
        for row in read:
            if not began.exists():
                began.touch()
                poll(go.exists, 60, "the word to go on")
            yield tuple(row)

    with Server(tmp_path / "server", same_ports=True) as server:
        with server.connect() as connection:
            fill(connection, "held", 60_000, data=lambda i: b'{"id":%d,"text":"%s"}' % (i, b"x" * 450))
            expected = [(row.seq, row.data) for row in rows(connection, "held")]
        frame = load(spark, server, "held", minPartitions=1, schema="seq bigint, data binary")
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(frame.rdd.mapPartitions(held).collect)
            poll(lambda: began.exists() or job.done(), 60, "the first batch")
            server.kill()
            server.start()
            go.touch()
            assert job.result(120) == expected
