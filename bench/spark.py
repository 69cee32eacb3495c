"""The Spark connector and the lakehouse: `local[2]`, on the cores that the server has as well.

TOPICS_BENCH_RECORDS is how many records are read (5 million). Reads come after one of the same topic as a warm-up.
The peer reads the same records, from one partition of a Kafka broker, with Spark's own source.
"""

import os
import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import spark_peer
from bench.kafka_broker import kafka_broker
from bench.spark_client import Appends, Background, Driver, appends, lateness_ms
from bench.table import Row
from pyspark_topics.fetch import Fetcher, Gap, SeqRange
from pyspark_topics.inventory import find_topic
from support.spark import Server, fill
from topics_client.address import Address
from topics_lakehouse.config import load
from topics_lakehouse.query import Lakehouse

RECORDS = int(os.environ.get("TOPICS_BENCH_RECORDS", 5_000_000))
WRITTEN = max(RECORDS // 5, 10_000)
SECONDS = float(os.environ.get("TOPICS_BENCH_SECONDS", 15))
_TAIL = 20_000
_READS = 3
_QUERIES = 9
_APPENDS_A_SECOND = 100
_SLEEP_SECONDS = 5.0
_OURS, _SPARKS = 0, 1  # cores
_LIVE_BATCHES_A_SECOND = 50
_LIVE_BATCH = 200
_FILLER = b"lorem ipsum " * 7


def data(i: int) -> bytes:
    """About 150 bytes of JSON."""
    return b'{"id":%d,"type":"k%d","amount":%d.25,"text":"%s","at":"2026-11-28"}' % (i, i % 7, i % 1000, _FILLER)


def run(directory: Path) -> list[Row]:
    """Every row of the group."""
    rows = []
    with Server(directory / "topics") as server:
        with server.connect() as connection:
            fill(connection, "bulk", RECORDS, data=data)
        with Driver(directory / "driver.log") as driver:
            rows += _reads(driver, server, directory)
            rows += _lakehouse(driver, server, directory)
    kept = directory / "topics" / "data"
    for readers in (0, 1):
        for apart in (False, True):
            where = directory / f"beside-{readers}-{apart}"
            prefix = ["taskset", "-c", str(_OURS)] if apart else []
            with Server(where, data_dir=kept, env={"TOPICS_BULK_READERS": readers}, prefix=prefix) as server:
                rows.append(_beside(where / "driver.log", server, readers, apart=apart))
    for readers in (0, 1, 2):
        with Server(directory / f"scale-{readers}", data_dir=kept, env={"TOPICS_BULK_READERS": readers}) as server:
            rows.append(_scale(server, readers))
    return rows


def _scale(server: Server, readers: int) -> Row:
    """Everything there is, read by one process, and by two that share it, without Spark."""
    with server.connect() as connection:
        info = find_topic(connection, "bulk")
    head, rates = info.partitions[0].head_seq, []
    for count in (1, 2):
        ends = [head * i // count for i in range(count + 1)]
        wanted = [SeqRange("bulk", info.topic_id, 0, first + 1, last) for first, last in pairwise(ends)]
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            list(pool.map(fetched, [server.url] * count, [SeqRange("bulk", info.topic_id, 0, 1, 1)] * count))  # start
            begun = time.perf_counter()
            found = sum(pool.map(fetched, [server.url] * count, wanted))
            rates.append(found / (time.perf_counter() - begun))
        if found != head:
            raise RuntimeError(f"{found} of {head} records were read")
    how = f"with --bulk-readers {readers}" if readers else "at the server itself"
    return Row(
        f"Connector, two processes that read a topic, {how}", rates[1], "rec/s", "", rates[0], "one process",
        "no Spark: batches of Arrow, not looked at",
    )  # fmt: skip


def fetched(url: str, wanted: SeqRange) -> int:
    """How many records came; in a process of its own."""
    with Fetcher(Address.parse(url)) as fetcher:
        return sum(each.num_rows for each in fetcher.read(wanted) if not isinstance(each, Gap))


def _options(server: Server, topic: str = "bulk") -> dict[str, str]:
    return {"url": server.url, "subscribe": topic}


def _best(driver: Driver, what: str, **arguments: Any) -> dict[str, Any]:
    """The best of a few after one that warms up; RuntimeError if one found something else."""
    driver.do(what, **arguments)
    found = min((driver.do(what, **arguments) for _ in range(_READS)), key=lambda answer: float(answer["seconds"]))
    if found["count"] != RECORDS:
        raise RuntimeError(f"{what} found {found['count']} of {RECORDS} records")
    return found


def _rate(answer: Mapping[str, Any]) -> float:
    return float(answer["count"]) / float(answer["seconds"])


def _reads(driver: Driver, server: Server, directory: Path) -> list[Row]:
    options = _options(server)
    text = _best(driver, "text", source="topics", options=options)
    every = _best(driver, "text", source="topics", options=options, every_column=True)
    typed = _best(driver, "typed", source="topics", options=options)
    streaming = options | {"startingOffsets": "earliest", "maxRecordsPerTrigger": "1000000"}
    driver.do("stream", options=streaming, name="warm")
    stream = driver.do("stream", options=streaming, name="measured")
    writing = {"url": server.url}
    driver.do("write", options=writing | {"topic": "warm"}, records=WRITTEN // 10)
    written = driver.do("write", options=writing | {"topic": "written"}, records=WRITTEN)
    peer, peer_name, absent = _peer(directory)
    million = f"{RECORDS / 1e6:g} M records of 150 B, local[2]; Python worker {text['rss'] / 1e6:,.0f} MB resident"
    return [
        Row(
            "Spark: batch read, data decoded as text", _rate(text), "rec/s", "1 M, 2x",
            _rate(peer["text"]) if peer else None, peer_name, million + absent,
        ),
        Row(
            "Spark: the same with every column handed to the JVM", _rate(every), "rec/s", "",
            _rate(peer["text"]) if peer else None, peer_name, "without .schema(...); the peer hands over what is used",
        ),
        Row(
            "Spark: batch read, a number of the JSON in data", _rate(typed), "rec/s", "",
            _rate(peer["typed"]) if peer else None, peer_name,
            "3 typed columns; from_json at the peer",
        ),
        Row(
            "Spark: streaming read, AvailableNow", _rate(stream), "rec/s", "300 k",
            note=f"{stream['batches']} batches of up to 1 M, start of the query included",
        ),
        Row(
            "Spark: write", _rate(written), "rec/s", "150 k",
            note=f"{WRITTEN:,} records made by Spark itself, exactly once, tagged",
        ),
    ]  # fmt: skip


def _peer(directory: Path) -> tuple[dict[str, Any] | None, str, str]:
    """The peer's results, its name, and the reason if there are none."""
    reason = spark_peer.missing()
    if not reason:
        with kafka_broker(directory / "kafka") as broker:
            address = f"127.0.0.1:{broker.port}"
            spark_peer.fill(address, "bulk", map(data, range(RECORDS)))
            options = {
                "kafka.bootstrap.servers": address,
                "subscribe": "bulk",
                "startingOffsets": "earliest",
                "endingOffsets": "latest",
                "minPartitions": "2",
            }
            settings = {"spark.jars": spark_peer.jars()}
            with Driver(directory / "peer.log", python=str(spark_peer.PYTHON), settings=settings) as driver:
                found = {what: _best(driver, what, source="kafka", options=options) for what in ("text", "typed")}
        return found, f"Spark {spark_peer.VERSION}'s Kafka source", ""
    lines = directory / "bulk.ndjson"
    with lines.open("wb") as out:
        out.writelines(data(i) + b"\n" for i in range(RECORDS))
    with Driver(directory / "peer.log") as driver:
        found = {what: _best(driver, what, source="json", options={}, path=str(lines)) for what in ("text", "typed")}
    lines.unlink()
    return found, "Spark, JSON lines", f"; {reason}"


def _lakehouse(driver: Driver, server: Server, directory: Path) -> list[Row]:
    config: dict[str, Any] = {
        "server": server.url,
        "warehouse": str(directory / "lake"),
        "topics": [{"name": "bulk"}],
    }
    with server.connect() as connection:
        fill(connection, "first", 200_000, data=data)
    driver.do("keep", config=config | {"warehouse": str(directory / "warm"), "topics": [{"name": "first"}]})
    kept = driver.do("keep", config=config)
    if kept["count"] != RECORDS:
        raise RuntimeError(f"the table has {kept['count']} of {RECORDS} records")
    with server.connect() as connection:
        fill(connection, "bulk", _TAIL, first=RECORDS, data=data)
    cold, warm = _queries(config)
    live = config | {"topics": [{"name": "live"}], "trigger": 0.1}
    how = {"seconds": SECONDS, "rate": _LIVE_BATCHES_A_SECOND, "records": _LIVE_BATCH}
    with Background(server.url, "live", **how) as background:
        followed = driver.do("follow", config=live, seconds=SECONDS)
    visible = _visible(background.found, followed["commits"])
    return [
        Row(
            "Lakehouse: topic to Iceberg table", _rate(kept), "rec/s", "500 k",
            note=f"files {kept['job']:.1f} s, commits {kept['commit']:.2f} s",
        ),
        Row(
            "Lakehouse: ack to visible in the table, live, median", statistics.median(visible), "ms", "1000",
            note=f"{_LIVE_BATCHES_A_SECOND * _LIVE_BATCH:,} rec/s, p95 "
            f"{statistics.quantiles(visible, n=20)[18]:,.0f} ms, {len(followed['commits'])} commits in {SECONDS:g} s",
        ),
        Row(
            "Lakehouse: fresh query of table and hot tail", warm, "ms", "150",
            note=f"count, max(ts) by node over {(RECORDS + _TAIL) / 1e6:g} M rows, {_TAIL:,} of them hot; median of "
            f"{_QUERIES}, the first one {cold:,.0f} ms",
        ),
    ]  # fmt: skip


def _queries(config: Mapping[str, Any]) -> tuple[float, float]:
    """Milliseconds of the first query, and the median of those behind it."""
    taken = []
    with Lakehouse(load(overrides=config)) as lake:
        for _ in range(1 + _QUERIES):
            begun = time.perf_counter()
            result = lake.query("select node, count(*) as n, max(ts) from bulk group by node")
            taken.append((time.perf_counter() - begun) * 1e3)
            if result["n"].to_pylist() != [RECORDS + _TAIL]:
                raise RuntimeError(f"the query found {result['n']}")
    return taken[0], statistics.median(taken[1:])


def _visible(sent: Appends, commits: list[tuple[float, int]]) -> list[float]:
    """Milliseconds from each ack to the first commit that has it, but for the first two commits, which start up."""
    seqs = [seq for _, seq in commits]
    found = []
    for at, seq in sent.done:
        index = bisect_left(seqs, seq)
        if 2 <= index < len(commits):
            found.append((commits[index][0] - at) * 1e3)
    return found


def _beside(log: Path, server: Server, readers: int, *, apart: bool) -> Row:
    """Appends alone, during a read by Spark, and during other work of Spark. With `apart` Spark has one core, and
    server, bulk reader and the appending client share the other.
    """
    if not apart:
        return _appended(log, server, f", --bulk-readers {readers}", None)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_OURS})
    try:
        return _appended(log, server, f" on a core of its own, --bulk-readers {readers}", _SPARKS)
    finally:
        os.sched_setaffinity(0, cores)


def _appended(log: Path, server: Server, how: str, core: int | None) -> Row:
    alone = appends(server.url, "single", seconds=SECONDS, rate=_APPENDS_A_SECOND)
    with Driver(log, core=core) as driver:
        driver.do("text", source="topics", options=_options(server))
        beside: dict[str, Appends] = {}
        read: dict[str, Any] = {}
        late = {"alone": lateness_ms(_SLEEP_SECONDS)}
        for what, options in (("read", _options(server)), ("count", None)):
            driver.do("busy", options=options)
            beside[what] = appends(server.url, "single", seconds=SECONDS, rate=_APPENDS_A_SECOND)
            late[what] = lateness_ms(_SLEEP_SECONDS)
            read[what] = driver.do("idle")
    p99 = {what: found.quantile_ms(99) for what, found in beside.items()}
    return Row(
        f"Append p99 while Spark reads{how}", p99["read"], "ms", "2x of alone", alone.quantile_ms(99), "alone",
        f"{_APPENDS_A_SECOND} appends/s of one record; Spark reads {_rate(read['read']):,.0f} rec/s; p50 "
        f"{beside['read'].quantile_ms(50):.2f}, alone {alone.quantile_ms(50):.2f}; beside Spark that counts "
        f"numbers p99 {p99['count']:.2f}; p99 of how late a process that only sleeps is woken: {late['read']:.2f} "
        f"while Spark reads, {late['count']:.2f} while it counts, {late['alone']:.2f} alone",
    )  # fmt: skip
