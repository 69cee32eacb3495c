"""Live queries are the fold of their changes over random DML, restarts and readers that are slow."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api, ok
from support.live import Fold, Follower, Frame, GrpcFrames, SocketFrames, Source, SseFrames
from support.server import ServerProcess
from support.sql import Sql

QUERIES = (
    "SUBSCRIBE TO app.t",
    "SELECT id, n FROM app.t WHERE n % 3 = 1",
    "SELECT label, n * 2 AS twice FROM app.t WHERE id < 40 AND label IS NOT NULL",
)
ROUNDS = 3
STATEMENTS = 60


def write(server: ServerProcess, chance: random.Random) -> None:
    with Api(server.base) as api:
        sql = Sql(api)
        for _ in range(STATEMENTS):
            low, n = chance.randrange(80), chance.randrange(9)
            text = chance.choice(
                [
                    f"INSERT INTO app.t VALUES ({low}, {n}, 'l{n}') ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n",
                    f"INSERT INTO app.t SELECT id + 100, n, label FROM app.t WHERE id = {low} ON CONFLICT DO NOTHING",
                    f"UPDATE app.t SET n = n + 1 WHERE id BETWEEN {low} AND {low + n}",
                    f"UPDATE app.t SET label = NULL WHERE n = {n}",
                    f"DELETE FROM app.t WHERE id BETWEEN {low} AND {low + n}",
                    f"BEGIN; UPDATE app.t SET n = 4; DELETE FROM app.t WHERE id = {low}; COMMIT",
                ]
            )
            ok(sql.send(text))


class Slow:
    """A source whose reader pauses."""

    def __init__(self, source: Source, seconds: float) -> None:
        self._source = source
        self._seconds = seconds
        self.close = source.close

    def __iter__(self) -> Iterator[Frame]:
        for number, frame in enumerate(self._source):
            yield frame
            if not number % 20:
                time.sleep(self._seconds)  # being slow is what is tested


@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_live_queries_are_the_fold_of_their_changes(tmp_path: Path, durability: str, ends: str) -> None:
    chance = random.Random(f"{durability}{ends}")
    folds = [(query, Fold(), kind) for query in QUERIES for kind in ("sse", "grpc", "socket", "slow")]
    with ServerProcess(tmp_path) as server:
        with Api(server.base) as api:
            Sql(api).run(
                f"CREATE TABLE app.t (id BIGINT PRIMARY KEY, n INT, label TEXT) WITH (durability = '{durability}')"
            )
        for number in range(ROUNDS):
            writers = [threading.Thread(target=write, args=(server, random.Random(chance.random()))) for _ in range(2)]
            followers = []
            for query, fold, kind in folds:
                if kind == "grpc":
                    source: Source = GrpcFrames(server.grpc_target, query, fold.position)
                elif kind == "socket":
                    source = SocketFrames(server.base, {"sql": query, "after": fold.position})
                else:
                    source = SseFrames(server.base, {"sql": query, "after": fold.position})
                followers.append(Follower(Slow(source, 0.02) if kind == "slow" else source, fold))
            for writer in writers:
                writer.start()
            if number % 2:
                for follower in followers[::2]:
                    follower.close()  # in the middle of it
            for writer in writers:
                writer.join()
            with Api(server.base) as api:
                for (query, _, _), follower in zip(folds, followers, strict=True):
                    if not number % 2:
                        text = query.replace("SUBSCRIBE TO", "SELECT * FROM")
                        follower.until(Sql(api).rows(text), 60)
            for follower in followers:
                follower.close()
                names = {name for name, _ in follower.frames}
                assert "gap" not in names
                assert ("snapshot" in names) == (number == 0)
            if ends == "kill":
                server.kill()
            else:
                assert server.stop() == 0
            server.start()
        with Api(server.base) as api:
            for query, fold, _ in folds:
                rows = Sql(api).rows(query.replace("SUBSCRIBE TO", "SELECT * FROM"))
                with Follower(SseFrames(server.base, {"sql": query, "after": fold.position}), fold) as follower:
                    follower.until(rows)


def test_changes_that_are_gone_are_a_gap_and_a_fresh_snapshot(tmp_path: Path) -> None:
    fold = Fold()
    with ServerProcess(tmp_path, env={"TOPICS_SQL_CHANGES_BYTES": 20_000}) as server, Api(server.base) as api:
        sql = Sql(api)
        sql.run("CREATE TABLE app.t (id BIGINT PRIMARY KEY, label TEXT)")
        with Follower(SseFrames(server.base, {"sql": "SUBSCRIBE TO app.t"}), fold) as follower:
            follower.wait("caught-up")
        for _ in range(20):
            sql.run("INSERT INTO app.t VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label", "x" * 900)
            sql.run("INSERT INTO app.t VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label", "y" * 900)
        with Follower(SseFrames(server.base, {"sql": "SUBSCRIBE TO app.t", "after": fold.position}), fold) as follower:
            assert follower.wait("gap")["reason"] == "too_old"
            follower.until(sql.rows("SELECT * FROM app.t"))
            sql.run("DELETE FROM app.t")
            follower.until([])
