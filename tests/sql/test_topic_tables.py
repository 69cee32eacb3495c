"""Topics that queries read as tables: their records, what is pushed down, and what is told of losses."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from support.executor import Executor
from topics_service.api.access.auth import Principal, Role, Scope
from topics_service.api.sql.analysis.api import Analyses
from topics_service.engine.errors import Reason
from topics_service.engine.model import (
    BINARY_KIND,
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteRequest,
    DiffRequest,
    TagMatch,
)
from topics_service.engine.tables.topic_columns import document_of

PARTITIONS = 3
SCOPES = frozenset({Scope.READ, Scope.WRITE})
TAGS = (b"a", b"b", b"ab", b"abc", None)


class Record(NamedTuple):
    """A record as `/v0` reads it."""

    partition: int
    seq: int
    ts: int
    tag: str | None
    node: str | None
    data: str | None
    meta: str | None


def append(
    executor: Executor, topic: str, datas: Sequence[bytes], *, partition: int = 0, tags: Sequence[bytes | None] = ()
) -> None:
    """Append records, and make them durable."""
    batch = Batch(datas=list(datas), tags=list(tags) or None, nodes=None, metas=None)
    executor.engine.append(AppendRequest(topic=topic, partition=partition, batch=batch))
    executor.engine.sync()


def records(executor: Executor, topic: str, partition: int) -> tuple[list[Record], list[tuple[int, int]]]:
    """All records of a partition, and the ranges that were lost, page by page as a reader of `/v0` gets them."""
    found, lost, cursor = list[Record](), list[tuple[int, int]](), 0
    while True:
        page = executor.engine.diff(DiffRequest(topic=topic, partition=partition, from_seq=cursor, limit=301))
        if page.tombstone is not None:
            lost.append((page.tombstone.gap_from, page.tombstone.gap_to))
        for block, start, stop in ((each.block, each.start, each.stop) for each in page.slices):
            for place in range(start, stop):
                texts = [None if each is None else each[place] for each in (block.tags, block.nodes, block.metas)]
                tag, node, meta = (None if each is None else each.decode() for each in texts)
                kind = 0 if block.kinds is None else block.kinds[place]
                data = document_of(block.record_data(place), kind)
                found.append(Record(partition, block.base_seq + place, block.ts_at(place), tag, node, data, meta))
        if page.next_from_seq <= cursor:
            return found, lost
        cursor = page.next_from_seq


def change(executor: Executor, chance: random.Random) -> None:
    """Append to a partition, delete from it, or do upkeep."""
    engine, partition = executor.engine, chance.randrange(PARTITIONS)
    what = chance.random()
    if what < 0.7:
        count = chance.choice((1, 2, 5, 300))
        batch = Batch(
            datas=[b'{"n":%d}' % chance.randrange(100) if chance.random() < 0.9 else b"\xff" for _ in range(count)],
            tags=[chance.choice(TAGS) for _ in range(count)],
            nodes=[b"x"] * count if chance.random() < 0.5 else None,
            metas=[b'{"k":1}'] * count if chance.random() < 0.5 else None,
        )
        kinds = bytes(BINARY_KIND if data == b"\xff" else 0 for data in batch.datas)
        if any(kinds):
            batch.kinds = kinds
        engine.append(AppendRequest(topic="app.t", partition=partition, batch=batch))
    elif what < 0.9:
        head = engine.catalog.visible("app.t").partition(partition).view.head
        before = chance.randrange(1, head + 2) if chance.random() < 0.3 else None
        match = TagMatch(op=chance.choice(("Eq", "Glob")), value=chance.choice((b"a", b"ab")))
        request = DeleteRequest(topic="app.t", partition=partition, before_seq=before, match=match)
        if before is not None and chance.random() < 0.3:
            request = DeleteRequest(topic="app.t", partition=partition, before_seq=min(before, 5), match=None)
        engine.delete_records(request)
    else:
        while engine.maintain():
            pass
    engine.sync()


CONDITIONS: Sequence[tuple[str, Callable[[Record, int, int], bool]]] = (
    ("true", lambda r, a, b: True),
    ("seq > $1 AND seq <= $2", lambda r, a, b: a < r.seq <= b),
    ('"offset" >= $1 AND "offset" < $2', lambda r, a, b: a <= r.seq - 1 < b),
    ("seq IN ($1, $2, 0, -5)", lambda r, a, b: r.seq in (a, b)),
    ('"offset" = $1 AND seq > $2 - 1000', lambda r, a, b: r.seq - 1 == a and r.seq > b - 1000),
    ("partition = $1 % 3 AND seq < $2", lambda r, a, b: r.partition == a % 3 and r.seq < b),
    ("partition IN (0, 2, 9) AND seq > $1", lambda r, a, b: r.partition != 1 and r.seq > a),
    ("tag = 'a' AND seq >= $1 AND seq <= $2", lambda r, a, b: r.tag == "a" and a <= r.seq <= b),
    ("tag IN ('ab', 'b') AND seq > $1", lambda r, a, b: r.tag in ("ab", "b") and r.seq > a),
    ("tag LIKE 'ab%' AND seq < $1 + $2", lambda r, a, b: (r.tag or "").startswith("ab") and r.seq < a + b),
    ("tag LIKE 'a_c'", lambda r, a, b: r.tag == "abc"),
    ("tag IS NULL AND seq > $1", lambda r, a, b: r.tag is None and r.seq > a),
    ("tag = NULL AND seq > $1 AND seq > $2", lambda r, a, b: False),
    ("data ->> 'n' = '7' AND seq > $1", lambda r, a, b: r.data == '{"n":7}' and r.seq > a),
    ("seq = $1 AND tag = 'a'", lambda r, a, b: r.seq == a and r.tag == "a"),
    ("ts > now() AND seq > $1 AND seq > $2", lambda r, a, b: False),
)
ORDERS: Sequence[tuple[str, Callable[[Record], Any], bool]] = (
    ("partition, seq", lambda r: (r.partition, r.seq), False),
    ("partition DESC, seq DESC", lambda r: (r.partition, r.seq), True),
    ("seq, partition", lambda r: (r.seq, r.partition), False),
    ("seq DESC, partition DESC", lambda r: (r.seq, r.partition), True),
    ("ts, seq, partition", lambda r: (r.ts, r.seq, r.partition), False),
    ("ts DESC, seq DESC, partition DESC", lambda r: (r.ts, r.seq, r.partition), True),
    ('tag, "offset" DESC, partition', lambda r: (r.tag is None, r.tag or "", -r.seq, r.partition), False),
)


@pytest.mark.parametrize("seed", range(4))
async def test_queries_read_what_v0_reads(seed: int) -> None:
    """After random appends, deletes, evictions and upkeep, queries have the records and the losses of `/v0`."""
    chance = random.Random(seed)
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t PARTITIONS 3 WITH (cap_records = 2000)")
        for _ in range(25):
            for _ in range(chance.randrange(4)):
                change(executor, chance)
            read = [records(executor, "app.t", partition) for partition in range(PARTITIONS)]
            all_of_them = [record for found, _ in read for record in found]
            (condition, holds), (order, key, reverse) = chance.choice(CONDITIONS), chance.choice(ORDERS)
            low, high = sorted(chance.randrange(3000) for _ in range(2))
            wanted = sorted((each for each in all_of_them if holds(each, low, high)), key=key, reverse=reverse)
            wanted = wanted[: chance.choice((1, 10, 9000))]
            condition = f"{condition} AND $1::INT <= $2::INT"
            text = f'SELECT partition, seq, "offset", ts, tag, node, data, meta FROM topics."app.t" WHERE {condition}'
            reply = await executor.reply(f"{text} ORDER BY {order} LIMIT {len(wanted) or 10}", low, high)
            assert reply.error is None, (condition, reply.error)
            assert [list(row) for row in reply.results[0].rows] == [
                [r.partition, r.seq, r.seq - 1, r.ts * 1000, r.tag, r.node, r.data, r.meta] for r in wanted
            ], (condition, order)
            count = await executor.run(f'SELECT count(*) FROM topics."app.t" WHERE {condition}', low, high)
            assert count == [[sum(holds(each, low, high) for each in all_of_them)]], condition
            whole = await executor.reply('SELECT seq FROM topics."app.t"')
            told = [(each.partition, (each.from_seq, each.to_seq)) for each in whole.results[0].gaps]
            assert told == [(number, each) for number, (_, lost) in enumerate(read) for each in lost]


async def test_a_query_reads_one_moment_while_records_go() -> None:
    """Eviction and upkeep between the slices of a scan take nothing from it; afterwards the records go."""
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t WITH (cap_records = 1000)")
        append(executor, "app.t", [b"1"] * 1000)
        steps = executor.engine.tables.rows(await plan(executor, 'SELECT seq FROM topics."app.t"'))
        found = [next(row for row in steps if row is not None)[0]]
        for _ in range(3):
            append(executor, "app.t", [b"2"] * 1000)
            while executor.engine.maintain():
                pass
        found += [row[0] for row in steps if row is not None]
        assert found == list(range(1, 1001))
        log = executor.engine.catalog.visible("app.t").log
        assert log.view.reclaimed_to <= 1
        while executor.engine.maintain():
            pass
        assert log.view.reclaimed_to > 2000


async def plan(executor: Executor, text: str) -> Any:
    """The plan of a query."""
    script = executor.sql.plans.read(text)
    return executor.sql.plans.plan(script, 0, executor.engine.tables.schema, "default").action


async def test_a_topic_that_goes_during_a_scan_ends_it() -> None:
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t")
        for _ in range(20):
            append(executor, "app.t", [b"1"] * 200)
        steps = executor.engine.tables.rows(await plan(executor, 'SELECT seq, data FROM topics."app.t"'))
        next(steps)
        executor.engine.delete_topic("app.t")
        with pytest.raises(Exception, match="does not exist"):
            list(steps)


async def test_the_end_of_a_topic_reads_no_more_than_it_needs() -> None:
    """A LIMIT in the order of seqs reads the last block alone, and a count reads none."""
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t")
        for _ in range(50):
            append(executor, "app.t", [b"1"] * 100)
        executor.engine.blocks.drop_log(executor.engine.catalog.visible("app.t").log.log_id)
        statistics = executor.engine.blocks.statistics
        before = statistics.misses
        assert await executor.run('SELECT seq FROM topics."app.t" ORDER BY seq DESC LIMIT 2') == [[5000], [4999]]
        assert statistics.misses - before == 1
        assert await executor.run('SELECT count(*) FROM topics."app.t" WHERE seq > 10') == [[4990]]
        assert statistics.misses - before == 1
        assert await executor.run('SELECT seq FROM topics."app.t" WHERE "offset" = 7') == [[8]]
        assert statistics.misses - before == 2


EXPLAINED = {
    'SELECT seq FROM topics."app.t" WHERE seq > 3 AND tag = \'a\' ORDER BY seq DESC LIMIT 1': [
        'read topics."app.t"', "  range: seq > 3, tag = 'a', merged by seq, in reverse", "  columns: seq", "  limit: 1",
    ],
    "SELECT count(*) FROM topics.\"app.t\" WHERE partition = 1 AND ts >= '2026-01-01' AND data ->> 'x' = '1'": [
        'read topics."app.t"', "  range: partition = 1, ts >= '2026-01-01 00:00:00'", "  columns: data",
        "  filter: data ->> 'x' = '1'", "  count the rows",
    ],
    "SELECT * FROM topics.\"app.t\" WHERE tag LIKE 'a%' ORDER BY node": [
        'read topics."app.t"', "  range: tag like 'a%'", "  columns: partition, seq, offset, ts, tag, node, data, meta",
        "  filter: tag like 'a%'", "  sort in memory: node",
    ],
}  # fmt: skip


async def test_explain_says_what_is_pushed_down() -> None:
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t PARTITIONS 2")
        for text, lines in EXPLAINED.items():
            assert [line for (line,) in await executor.run(f"EXPLAIN {text}")] == lines


async def test_names_types_and_what_is_refused() -> None:
    async with Executor() as executor:
        executor.engine.put_topic("Orders.eu-1", ConfigInput())
        executor.engine.put_topic("jobs", ConfigInput(type="queue"))
        await executor.run("CREATE TOPIC t ALIAS app.other")
        executor.engine.sync()
        append(executor, "Orders.eu-1", [b' {"x": [1]}\n', b"null"])
        reply = await executor.reply('SELECT * FROM topics."Orders.eu-1"')
        assert [(each.name, each.type and each.type.name) for each in reply.results[0].columns] == [
            ("partition", "INTEGER"), ("seq", "BIGINT"), ("offset", "BIGINT"), ("ts", "TIMESTAMP"), ("tag", "TEXT"),
            ("node", "TEXT"), ("data", "JSON"), ("meta", "JSON"),
        ]  # fmt: skip
        assert [row[6] for row in reply.results[0].rows] == ['{"x": [1]}', None]
        read = "SELECT o.data -> 'x' ->> 0 FROM topics.\"Orders.eu-1\" o WHERE o.data IS NOT NULL"
        assert await executor.run(read) == [["1"]]
        for name in ("t", '"default.t"', '"app.other"'):
            assert await executor.run(f"SELECT count(*) FROM topics.{name}") == [[0]]
        assert (await executor.reply("DESCRIBE topics.t")).error is None
        await executor.refused(Reason.TOPIC_NOT_FOUND, "SELECT * FROM topics.nope")
        await executor.refused(Reason.NOT_A_LOG, "SELECT * FROM topics.jobs")
        for text in ("DELETE FROM topics.t", "INSERT INTO topics.t (seq) VALUES (1)", "UPDATE topics.t SET seq = 1"):
            await executor.refused(Reason.FORBIDDEN, text)
        await executor.refused(Reason.FORBIDDEN, "CREATE TABLE topics.x (id INT PRIMARY KEY)")


async def test_rows_of_a_topic_go_into_a_table() -> None:
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t")
        append(executor, "app.t", [b'{"n":5}', b'{"n":6}'])
        await executor.run("INSERT INTO t SELECT seq, CAST(data ->> 'n' AS INT) FROM topics.\"app.t\"")
        assert await executor.run("SELECT * FROM t") == [[1, 5], [2, 6]]
        again = 'BEGIN; SELECT count(*) FROM topics."app.t"; COMMIT'
        assert (await executor.reply(again)).results[1].rows == [(2,)]


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        (Principal("service", prefixes=("app.",), scopes=SCOPES, role=Role.SERVICE), True),
        (Principal("other", prefixes=("other.",), scopes=SCOPES, role=Role.SERVICE), False),
        (Principal("user", prefixes=None, role=Role.USER, scopes=frozenset()), False),
        (Principal("consumer", prefixes=None, role=Role.USER, scopes=frozenset({Scope.READ})), True),
        (Principal("key", prefixes=("app.",), scopes=frozenset({Scope.READ})), True),
        (Principal("writer", prefixes=None, scopes=frozenset({Scope.WRITE})), False),
    ],
)
async def test_reading_a_topic_needs_the_right_to_consume_it(principal: Principal, may: bool) -> None:
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t")
        for text in ('SELECT * FROM topics."app.t"', 'EXPLAIN SELECT * FROM topics."app.t"'):
            reply = await executor.reply(text, principal=principal)
            if may:
                assert reply.error is None
            elif not text.startswith("EXPLAIN"):
                assert reply.error is not None
                assert reply.error.reason is Reason.FORBIDDEN


JOINS: Sequence[tuple[str, list[str], list[list[Any]]]] = (
    (
        "SELECT tag, count(*), sum((data ->> 'n')::INT) FROM topics.\"app.t\" WHERE seq > 1 GROUP BY 1 ORDER BY 1",
        ["seq > 1", "columns: seq, tag, data"], [["a", 2, 8], ["b", 2, 6]],
    ),
    (
        'SELECT t.n, e.seq FROM topics."app.t" e JOIN t ON t.id = e.seq WHERE e.tag = \'b\' AND t.n > 0 ORDER BY 1',
        ["tag = 'b'", "columns: seq, tag"], [[40, 4]],
    ),
    (
        'SELECT id, seq FROM t LEFT JOIN topics."app.t" e ON id = seq AND e.partition = 0 AND e.seq < 3 ORDER BY 1',
        ["partition = 0, seq < 3", "columns: partition, seq"], [[1, 1], [4, None]],
    ),
    (
        'SELECT seq, rank() OVER (ORDER BY seq DESC) FROM (SELECT * FROM topics."app.t") q WHERE seq >= 4 ORDER BY 1',
        ["seq >= 4", "columns: seq"], [[4, 2], [5, 1]],
    ),
    (
        'SELECT count(*) FROM topics."app.t" a JOIN topics."app.t" b ON a.seq = b.seq + 1 WHERE b.tag LIKE \'a%\'',
        ["all records", "tag like 'a%'"], [[2]],
    ),
    (
        'WITH q AS (SELECT max(seq) m FROM topics."app.t" WHERE "offset" IN (0, 2)) SELECT m FROM q',
        ["offset in (0, 2)", "columns: seq, offset"], [[3]],
    ),
    ('SELECT count(*) + 0 FROM topics."app.t"', ["columns: none"], [[5]]),
    ('SELECT seq FROM topics."app.t" WHERE seq = (SELECT min(id) FROM t)', ["all records"], [[1]]),
    (
        'SELECT seq FROM topics."app.t" WHERE seq > 4 UNION SELECT seq FROM topics."app.t" WHERE seq < 2 ORDER BY 1',
        ["seq > 4", "seq < 2"], [[1], [5]],
    ),
    (
        'SELECT m FROM (SELECT max(seq) m, tag FROM topics."app.t" GROUP BY tag) q WHERE m > 4',
        ["all records"], [[5]],
    ),
    (
        'SELECT seq FROM (SELECT seq FROM topics."app.t" ORDER BY seq LIMIT 2) q WHERE seq > 1 AND true IN (true)',
        ["all records"], [[2]],
    ),
)  # fmt: skip


async def test_analytical_queries_read_what_they_need_of_topics() -> None:
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t")
        await executor.run("INSERT INTO t VALUES (1, 10), (4, 40)")
        append(executor, "app.t", [b'{"n":%d}' % n for n in range(1, 6)], tags=[b"a", b"b", b"a", b"b", b"a"])
        append(executor, "app.t", [b"null"], tags=[b"gone"])
        executor.engine.delete_records(DeleteRequest(topic="app.t", match=TagMatch(op="Eq", value=b"gone")))
        for text, pushed, rows in JOINS:
            expected = [list(map(_plain, row)) for row in await executor.run(text)]
            assert expected == rows, text
            lines = "\n".join(line for (line,) in await executor.run(f"EXPLAIN {text}"))
            for part in pushed:
                assert part in lines, (text, lines)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else int(value)


async def test_native_and_analytical_queries_of_a_topic_agree() -> None:
    """The same conditions, once as they are and once in a query that DuckDB answers, over random records."""
    chance = random.Random(7)
    async with Executor() as executor:
        await executor.run("CREATE TOPIC app.t PARTITIONS 3 WITH (cap_records = 1000)")
        for _ in range(30):
            change(executor, chance)
        for condition, _ in CONDITIONS:
            given = sorted(chance.randrange(1500) for _ in range(2))
            where = f"WHERE {condition} AND $1::INT <= $2::INT"
            native = await executor.reply(f'SELECT * FROM topics."app.t" {where} ORDER BY partition, seq', *given)
            joined = await executor.reply(
                f'SELECT e.* FROM topics."app.t" e JOIN (VALUES (1)) v(one) ON true {where} ORDER BY partition, seq',
                *given,
            )
            assert joined.error is None, (condition, joined.error)
            assert [tuple(row) for row in native.results[0].rows] == [tuple(row) for row in joined.results[0].rows]
            assert list(native.results[0].gaps) == list(joined.results[0].gaps), condition


async def test_all_topics_and_tables_of_a_query_are_of_one_moment() -> None:
    """A row and its event are one write: no query ever sees one without the other."""
    async with Executor() as executor:
        await executor.run("CREATE TABLE app.o (id INT PRIMARY KEY, n INT)")
        for name in ("app.one", "app.two"):
            await executor.run(f"CREATE TOPIC {name} PARTITIONS 2")
            await executor.run(f"ALTER TOPIC {name} ADD SOURCE app.o ON INSERT WITH (payload = 'full')")
        done = False

        async def write() -> None:
            for number in range(300):
                await executor.run("INSERT INTO app.o VALUES ($1, 1)", number)
                executor.engine.sync()
                await asyncio.sleep(0)

        await executor.run("SELECT 1 UNION SELECT 1")  # DuckDB is there
        writer = asyncio.create_task(write())
        seen = set()
        while not done:
            done = writer.done()
            counts = await executor.run(
                'SELECT (SELECT count(*) FROM app.o), (SELECT count(*) FROM topics."app.one"), '
                '(SELECT count(*) FROM topics."app.two" WHERE tag IS NOT NULL)'
            )
            assert len(set(counts[0])) == 1, counts
            seen.add(counts[0][0])
        await writer
        assert len(seen) > 1


async def test_topics_of_queries_are_within_the_bound_of_memory() -> None:
    """A query of too much is refused, one that needs other columns is not, and everything is given back."""
    async with Executor(analyses=Analyses(cache_bytes=100_000)) as executor:
        await executor.run("CREATE TOPIC app.t")
        for _ in range(20):
            append(executor, "app.t", [b'"' + b"x" * 5000 + b'"'] * 5)
        text = 'SELECT max({}) FROM topics."app.t" a JOIN (VALUES (1)) v ON true'
        error = await executor.refused(Reason.QUERY_TOO_LARGE, text.format("length(a.data ->> 0)"))
        assert "TOPICS_SQL_CACHE_BYTES" in error.message
        assert await executor.run(text.format("a.seq")) == [[100]]
        assert executor.sql.analyses._held.nbytes == 0
        assert executor.engine.catalog.visible("app.t").log.scans == 0
