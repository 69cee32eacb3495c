"""Sessions of SQL whose statements run at the owner of the shard: what it keeps of them, and what a move takes."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from shards.sql_owner import SqlOwner, once, sql_owner

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED, Principal, Role, Scope
from topics_service.api.running import LostCallError
from topics_service.api.sql import held
from topics_service.api.sql.relaying import SessionState, SessionStatement
from topics_service.api.sql.session import PAGE_ROWS, Status
from topics_service.engine.errors import TopicsError
from topics_shards.sessions import RelayedSession

CALLED = ("describe", "execute", "query")
ANN = Principal("user:ann", frozenset({Scope.READ, Scope.WRITE}), None, Role.DBA, "c")


@pytest.fixture
async def owner() -> AsyncIterator[SqlOwner]:
    async with sql_owner() as owner:
        await owner.sessions.open(UNRESTRICTED).execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        yield owner


@pytest.fixture
def db(owner: SqlOwner) -> RelayedSession:
    return owner.sessions.open(UNRESTRICTED)


async def rows(session: RelayedSession, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """All rows of a query, page by page."""
    answer = await session.execute(sql, params, paged=True)
    found = list(answer.result.rows)
    while answer.pages is not None and (page := await answer.pages.next()):
        found += page
    return [tuple(row) for row in found]


async def sqlstate(session: RelayedSession, sql: str, **facts: Any) -> str:
    """The SQLSTATE of a statement that fails; the session notes it, as that of a connection does."""
    with pytest.raises(TopicsError) as caught:
        await session.execute(sql, **facts)
    session.fail()
    return str((caught.value.detail or {}).get("sqlstate"))


async def test_a_session_is_at_the_owner_only_during_a_transaction(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("INSERT INTO t VALUES ($1, $2)", (1, "one"))
    assert owner.held == 0
    await db.execute("BEGIN")
    await db.execute("INSERT INTO t VALUES (2, 'two')")
    assert (owner.held, db.status) == (1, Status.OPEN)
    other = owner.sessions.open(UNRESTRICTED)
    assert await rows(other, "SELECT id FROM t ORDER BY id") == [(1,)]
    assert await rows(db, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    await db.execute("SAVEPOINT s")
    assert await sqlstate(db, "SELECT nope FROM t") == "42703"
    assert db.status is Status.FAILED
    assert await sqlstate(db, "SELECT 1") == "25P02"
    await db.execute("ROLLBACK TO s")
    assert db.status is Status.OPEN
    assert (await db.execute("COMMIT")).result.message == "COMMIT"
    assert (owner.held, db.status, db.has_transaction) == (0, Status.IDLE, False)
    assert await rows(other, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]


async def test_a_batch_is_committed_as_a_whole(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("INSERT INTO t VALUES (1, 'one')", in_batch=True)
    assert (db.is_implicit, db.status, owner.held) == (True, Status.IDLE, 1)
    assert await sqlstate(db, "INSERT INTO t VALUES (1, 'again')", in_batch=True) == "23505"
    assert (db.is_implicit, owner.held) == (False, 0)
    assert await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "x" * 10) for number in range(5)]) == 5
    await db.finish_batch()
    assert (owner.held, await rows(db, "SELECT count(*) FROM t")) == (0, [(5,)])


async def test_rows_of_many_parameters_are_sent_in_parts(owner: SqlOwner, db: RelayedSession) -> None:
    before = owner.calls["execute"]
    await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "x" * (1 << 20)) for number in range(10)])
    assert owner.calls["execute"] - before == 4
    await db.finish_batch()
    assert await rows(db, "SELECT count(*) FROM t") == [(10,)]


async def test_values_of_every_type_are_carried_both_ways(db: RelayedSession) -> None:
    await db.execute("CREATE TABLE v (id BIGINT PRIMARY KEY, d DECIMAL(38, 0), x DOUBLE, b BYTES, j JSON, t TIMESTAMP)")
    given = [(1, 1 << 100, float("inf"), b"\xff", '{"a":[1]}', "2024-02-29T00:00:00Z"), (2, *[None] * 5)]
    await db.insert("INSERT INTO v VALUES ($1, $2, $3, $4, $5, $6)", given)
    await db.finish_batch()
    moment = 1_709_164_800_000_000
    found = await rows(db, "SELECT * FROM v WHERE d = $1 OR d IS NULL ORDER BY id", 1 << 100)
    assert found == [(1, Decimal(1 << 100), float("inf"), b"\xff", '{"a":[1]}', moment), (2, *[None] * 5)]
    assert await sqlstate(db, "SELECT d FROM v WHERE id = $1", params=(1 << 70,)) == "22003"


async def test_pages_are_of_one_moment_and_closed_with_their_end(owner: SqlOwner, db: RelayedSession) -> None:
    many = 2 * PAGE_ROWS + 10
    await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "n") for number in range(many)])
    await db.finish_batch()
    answer = await db.execute("SELECT id FROM t ORDER BY id", paged=True)
    assert answer.pages is not None
    await owner.sessions.open(UNRESTRICTED).execute("DELETE FROM t WHERE id >= 0")
    found = list(answer.result.rows)
    assert len(found) == PAGE_ROWS
    while page := await answer.pages.next():
        found += page
    assert [row[0] for row in found] == list(range(many))
    assert owner.held == 0


async def test_rows_that_are_in_memory_come_in_pages_too(owner: SqlOwner, db: RelayedSession) -> None:
    values = ", ".join(f"({number}, 'n')" for number in range(PAGE_ROWS + 5))
    answer = await db.execute(f"INSERT INTO t VALUES {values} RETURNING id", paged=True)
    assert (len(answer.result.rows), answer.result.row_count, owner.held) == (PAGE_ROWS, PAGE_ROWS + 5, 1)
    assert answer.pages is not None
    assert owner.shard.objects["HeldSessions"].own.transactions.nbytes > 0  # type: ignore[attr-defined]
    assert [row[0] for row in await answer.pages.next()] == list(range(PAGE_ROWS, PAGE_ROWS + 5))
    answer.pages.close()
    await until(lambda: owner.held == 0)
    assert owner.shard.objects["HeldSessions"].own.transactions.nbytes == 0  # type: ignore[attr-defined]


async def test_pages_that_nobody_wants_any_more_are_let_go(owner: SqlOwner, db: RelayedSession) -> None:
    await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "n") for number in range(2 * PAGE_ROWS)])
    await db.finish_batch()
    for end in ("close", "rollback"):
        answer = await db.execute("SELECT id FROM t", paged=True)
        assert answer.pages is not None
        assert owner.held == 1
        if end == "close":
            answer.pages.close()
        else:
            db.rollback()
        await until(lambda: owner.held == 0)
        db._pages.add(1)
        with pytest.raises(TopicsError):
            await db.page(db._lease, 1)


# ------------------------------------------------------------------------------------------------ moves and losses


async def test_an_idle_session_survives_a_move(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("INSERT INTO t VALUES (1, 'one')")
    await db.execute("CREATE NAMESPACE app")
    await db.execute("USE app")
    owner.move()
    assert await rows(db, "SELECT name FROM default.t WHERE id = $1", 1) == [("one",)]
    assert (db.namespace, owner.lost) == ("app", {})


@pytest.mark.parametrize("at", ["SELECT id FROM t", "INSERT INTO t VALUES (3, 'x')", "SAVEPOINT s", "COMMIT"])
async def test_a_move_ends_a_transaction(owner: SqlOwner, db: RelayedSession, at: str) -> None:
    await db.execute("BEGIN")
    await db.execute("INSERT INTO t VALUES (2, 'two')")
    owner.move()
    assert await sqlstate(db, at) == "40001"
    assert db.status is (Status.IDLE if at == "COMMIT" else Status.FAILED)
    if at != "COMMIT":
        assert await sqlstate(db, "SELECT 1") == "25P02"
        assert (await db.execute("ROLLBACK")).result.message == "ROLLBACK"
    assert (db.status, owner.held, owner.lost) == (Status.IDLE, 0, {"transaction": 1})
    assert await rows(db, "SELECT id FROM t") == []


async def test_a_rollback_of_a_transaction_that_a_move_has_ended_succeeds(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("BEGIN")
    await db.execute("SAVEPOINT s")
    owner.move()
    assert (await db.execute("ROLLBACK")).result.message == "ROLLBACK"
    assert (db.status, owner.held) == (Status.IDLE, 0)
    await db.execute("BEGIN")
    await db.execute("SAVEPOINT s")
    owner.move()
    assert await sqlstate(db, "ROLLBACK TO s") == "40001"
    assert await sqlstate(db, "ROLLBACK TO s") == "3B001"
    assert (await db.execute("COMMIT")).result.message == "ROLLBACK"


async def test_a_move_ends_a_batch_and_a_result(owner: SqlOwner, db: RelayedSession) -> None:
    await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "n") for number in range(2 * PAGE_ROWS)])
    owner.move()
    with pytest.raises(TopicsError) as caught:
        await db.finish_batch()
    assert (caught.value.detail or {})["sqlstate"] == "40001"
    assert not db.has_transaction
    await db.insert("INSERT INTO t VALUES ($1, $2)", [(number, "n") for number in range(2 * PAGE_ROWS)])
    await db.finish_batch()
    answer = await db.execute("SELECT id FROM t", paged=True)
    assert answer.pages is not None
    owner.move()
    with pytest.raises(TopicsError) as caught:
        await answer.pages.next()
    assert (caught.value.detail or {})["sqlstate"] == "40001"
    assert await rows(db, "SELECT count(*) FROM t") == [(2 * PAGE_ROWS,)]


async def test_the_outcome_of_a_statement_is_unknown_if_its_owner_is_lost(owner: SqlOwner, db: RelayedSession) -> None:
    owner.after = once("execute", LostCallError())
    assert await sqlstate(db, "INSERT INTO t VALUES (1, 'one')") == "40003"
    assert (db.status, await rows(db, "SELECT id FROM t")) == (Status.IDLE, [(1,)])
    await db.execute("BEGIN")
    await db.execute("INSERT INTO t VALUES (2, 'two')")
    owner.after = once("execute", LostCallError())
    assert await sqlstate(db, "COMMIT") == "40003"
    assert (db.status, await rows(db, "SELECT id FROM t ORDER BY id")) == (Status.IDLE, [(1,), (2,)])
    await db.execute("BEGIN")
    owner.after = once("execute", LostCallError())
    assert await sqlstate(db, "INSERT INTO t VALUES (3, 'three')") == "40001"
    assert db.status is Status.FAILED
    owner.after = once("execute", LostCallError())
    assert (await db.execute("ROLLBACK")).result.message == "ROLLBACK"
    assert owner.lost == {"statement": 2, "transaction": 1}
    assert await rows(db, "SELECT count(*) FROM t") == [(2,)]


async def test_a_call_that_comes_while_the_shard_leaves_is_made_at_the_new_owner(
    owner: SqlOwner, db: RelayedSession
) -> None:
    def leaving(name: str) -> None:
        if name in CALLED:
            owner.engine.draining = True  # as between two steps of a drain
            owner.before = arriving

    def arriving(name: str) -> None:
        if name in CALLED:
            owner.before = lambda name: None
            owner.move()

    owner.before = leaving
    await db.execute("INSERT INTO t VALUES (1, 'one')")
    owner.before = leaving
    assert (await db.describe("SELECT id FROM t")).kind == "Select"
    await db.execute("SELECT 1")
    owner.before = leaving
    assert await sqlstate(db, "CREATE TABLE u (id BIGINT PRIMARY KEY)") == "40003"
    owner.move()
    await db.execute("BEGIN")
    owner.before = leaving
    assert await sqlstate(db, "INSERT INTO t VALUES (2, 'two')") == "40001"
    assert await rows(owner.sessions.open(UNRESTRICTED), "SELECT id FROM t") == [(1,)]


async def test_reads_and_begin_are_made_again(owner: SqlOwner, db: RelayedSession) -> None:
    for sql in ("SELECT id FROM t", "SHOW TABLES", "EXPLAIN SELECT id FROM t", "BEGIN"):
        owner.after = once("query", LostCallError())
        await db.execute(sql)
    assert (db.status, owner.held) == (Status.OPEN, 1)
    owner.after = once("describe", LostCallError())
    assert (await db.describe("SELECT id FROM t")).kind == "Select"
    assert owner.lost == {}


async def test_what_may_run_twice_changes_nothing(owner: SqlOwner, db: RelayedSession) -> None:
    state = SessionState(lease=await owner.sessions.lease(), number=99, timeout_seconds=5)
    api: Any = owner.shard.objects["HeldSessions"]
    reply = await api.query(state, SessionStatement(sql="DELETE FROM t WHERE id > 0"), principal=UNRESTRICTED)
    assert reply.error.detail["sqlstate"] == "25006"


async def test_without_an_owner_a_transaction_ends_and_others_wait_for_it(owner: SqlOwner, db: RelayedSession) -> None:
    other = owner.sessions.open(UNRESTRICTED)
    await db.execute("BEGIN")
    owner.lose()
    assert await sqlstate(db, "INSERT INTO t VALUES (1, 'one')") == "40001"
    with pytest.raises(TopicsError) as caught:
        await other.execute("SELECT 1")
    assert caught.value.reason.code == "not_ready"
    owner.begin()
    assert await rows(other, "SELECT count(*) FROM t") == [(0,)]
    assert (await db.execute("ROLLBACK")).result.message == "ROLLBACK"


# ------------------------------------------------------------------------------------------------ cancelled calls


async def test_a_cancelled_call_leaves_nothing_behind(owner: SqlOwner, db: RelayedSession) -> None:
    async def cancelled(name: str, sql: str) -> None:
        owner.after = once(name, asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await db.execute(sql)
        db.fail()

    await cancelled("query", "BEGIN")
    await db.execute("INSERT INTO t VALUES (1, 'one')")
    assert (await rows(owner.sessions.open(UNRESTRICTED), "SELECT id FROM t"), db.status) == ([(1,)], Status.IDLE)
    await db.execute("BEGIN")
    await cancelled("execute", "COMMIT")
    assert (await db.execute("ROLLBACK")).result.message == "ROLLBACK"
    assert (db.status, owner.held) == (Status.IDLE, 0)
    await cancelled("query", "BEGIN")
    db.rollback()
    await until(lambda: owner.held == 0)


# ------------------------------------------------------------------------------------------------ bounds and access


async def test_sessions_end_with_their_node(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("BEGIN")
    await db.execute("INSERT INTO t VALUES (1, 'one')")
    nbytes = owner.shard.objects["HeldSessions"].own.transactions  # type: ignore[attr-defined]
    assert (owner.held, nbytes.nbytes > 0) == (1, True)
    await owner.sessions.close()
    assert (owner.held, nbytes.nbytes) == (0, 0)


async def test_a_session_is_of_one_node_and_one_caller(owner: SqlOwner, db: RelayedSession) -> None:
    await db.execute("BEGIN")
    await db.execute("INSERT INTO t VALUES (1, 'one')")
    api: Any = owner.shard.objects["HeldSessions"]
    good = db._state(db._lease, is_lost=False)
    commit = SessionStatement(sql="COMMIT")
    assert not (await api.execute(good, commit, principal=ANN)).is_known
    assert not (await api.page(good, 1, principal=ANN)).is_known
    await api.release(good.lease, good.number, [], principal=ANN)
    guessed = db._state("0" * 32, is_lost=False)
    assert not (await api.execute(guessed, commit, principal=UNRESTRICTED)).is_attached
    assert (owner.held, db.status) == (1, Status.OPEN)
    await db.execute("COMMIT")
    assert await rows(db, "SELECT id FROM t") == [(1,)]


async def test_sessions_are_bounded(owner: SqlOwner, db: RelayedSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MAX_SESSIONS", 1)
    await db.execute("BEGIN")
    other = owner.sessions.open(UNRESTRICTED)
    assert await sqlstate(other, "BEGIN") == "53300"
    assert other.status is Status.IDLE
    await db.execute("ROLLBACK")
    await other.execute("BEGIN")
    assert owner.held == 1


async def test_a_session_that_is_not_used_ends(
    owner: SqlOwner, db: RelayedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_LOOK_SECONDS", 0.01)
    owner.move()
    await db.execute("BEGIN")
    monkeypatch.setattr(held, "IDLE_SECONDS", 0.0)
    await until(lambda: owner.held == 0)
    assert await sqlstate(db, "SELECT 1") == "40001"
