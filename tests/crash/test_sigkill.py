"""SIGKILL under load, again and again: what was acknowledged is there, what was deleted stays away."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import grpc
import httpx
import pytest
from crash.oracle import Batch, Churned, Oracle, Subject

from support.http import Api, fresh, ok, path
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc

KILLS = 6
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))

Write = Callable[[Batch], tuple[int, int, bool]]


class GoneError(Exception):
    """The server is gone, as it should be."""


class HttpWriter:
    """Writes over HTTP, byte for byte."""

    def __init__(self, server: ServerProcess) -> None:
        self.api = Api(server.base)
        self.close = self.api.close

    def write(self, batch: Batch) -> tuple[int, int, bool]:
        """First seq, count and whether it was deduped."""
        records = ",".join(f'{{"data":{text.decode()},"tag":"{batch.tag}"}}' for text in batch.texts)
        body = f'{{"records":[{records}],"idempotency_key":{json.dumps(batch.key)}}}'
        try:
            reply = ok(self.api.send("POST", path(batch.topic.name), body.encode()), 200)
        except httpx.TransportError as error:
            raise GoneError from error
        return reply["first_seq"], reply["count"], reply["deduped"]


class GrpcWriter:
    """Writes over gRPC."""

    def __init__(self, server: ServerProcess) -> None:
        self._channel = grpc.insecure_channel(server.grpc_target, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = topics_service_pb2_grpc.TopicsServiceStub(self._channel)
        self.close = self._channel.close

    def write(self, batch: Batch) -> tuple[int, int, bool]:
        """First seq, count and whether it was deduped."""
        request = topics_service_pb2.AppendRequest(topic=batch.topic.name, idempotency_key=batch.key)
        for text in batch.texts:
            request.records.add(data=text, tag=batch.tag)
        try:
            reply = self._stub.Append(request, timeout=20)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise GoneError from error
            raise
        return reply.first_seq, reply.count, reply.deduped


class Load:
    """Writers over both protocols, and clients that delete; leaving the block kills the server under them."""

    def __init__(self, server: ServerProcess, oracle: Oracle, seed: int) -> None:
        self._server, self._oracle, self._seed = server, oracle, seed
        self._hot = random.Random(seed).choice(oracle.subjects)  # gets enough blocks to have them merged
        self._over = False
        self.acks = 0
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work, i))
            for i, work in enumerate([*(self._write_http, self._write_grpc) * 2, self._delete, self._churn])
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._over = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self, work: Callable[[int, random.Random], None], number: int) -> None:
        try:
            work(number, random.Random(f"{self._seed}:{number}"))
        except GoneError:
            pass
        except BaseException as error:
            self.failure, self._over = error, True

    def _write_http(self, number: int, rng: random.Random) -> None:
        self._write(HttpWriter(self._server), number, rng)

    def _write_grpc(self, number: int, rng: random.Random) -> None:
        self._write(GrpcWriter(self._server), number, rng)

    def _write(self, writer: HttpWriter | GrpcWriter, number: int, rng: random.Random) -> None:
        try:
            while not self._over:
                topic = self._hot if rng.random() < 0.5 else rng.choice(self._oracle.subjects)
                batch = self._oracle.sending(topic, f"w{number}", rng.choice((1, 1, 2, 17)), keyed=rng.random() < 0.3)
                first_seq, count, deduped = writer.write(batch)
                assert not deduped
                self._oracle.acked(batch, first_seq, count)
                self.acks += 1
        finally:
            writer.close()

    def _delete(self, _: int, rng: random.Random) -> None:
        with Api(self._server.base) as api:
            while not self._over:
                topic = rng.choice([topic for topic in self._oracle.subjects if topic.deletes or topic.trims])
                try:
                    if topic.trims:
                        if before := self._oracle.trim(topic):
                            api.rm(topic.name, before_seq=before)
                            topic.trim_acked = before
                    elif batch := self._oracle.victim(topic):
                        match = batch.tag if rng.random() < 0.5 else ["tag", "Glob", batch.tag + "*"]
                        assert api.rm(topic.name, match=match)["deleted"] == len(batch.texts)
                        batch.gone = True
                except httpx.TransportError as error:
                    raise GoneError from error
                time.sleep(0.005)

    def _churn(self, _: int, rng: random.Random) -> None:
        """Create, configure, delete and create topics again."""
        with Api(self._server.base) as api:
            while not self._over:
                topic = rng.choice(self._oracle.churned)
                try:
                    if topic.asked is not None and rng.random() < 0.4:
                        topic.asked = None
                        assert ok(api.drop(topic.name))["deleted"]
                    else:
                        topic.asked = rng.randrange(1 << 39, 1 << 40)
                        ok(api.put(topic.name, ttl_ms=topic.asked), 200, 201)
                        topic.acked = topic.asked
                        assert api.append(topic.name, 1, 2)["count"] == 2
                except httpx.TransportError as error:
                    raise GoneError from error
                topic.acked = topic.asked


def subjects() -> list[Subject]:
    """Every durability class as it comes; and with caps, deletes and trims where records survive."""
    return [
        *(Subject(f"plain-{cls}", cls) for cls in ("disk", "fsync", "memory", "ephemeral")),
        *(Subject(f"capped-{cls}", cls, cap=100) for cls in ("disk", "fsync", "ephemeral")),
        *(Subject(f"deleted-{cls}", cls, deletes=True) for cls in ("disk", "fsync")),
        *(Subject(f"trimmed-{cls}", cls, trims=True) for cls in ("disk", "fsync")),
    ]


def kill_and_check(server: ServerProcess, seed: int, until: Callable[[int], bool]) -> int:
    """Load, kill, start and check as long as `until(kills)` says no; returns the kills."""
    rng = random.Random(seed)
    oracle = Oracle(subjects())
    oracle.churned = [Churned(f"churned-{i}") for i in range(10)]
    kills = 0
    server.start()
    with Api(server.base) as api:
        for topic in oracle.subjects:
            ok(api.put(topic.name, **topic.config), 201)
    while not until(kills):
        with Load(server, oracle, rng.randrange(1 << 30)) as load:
            target = rng.choice((20, 200, 900, 1500)) + rng.randrange(50)
            poll(lambda load=load, target=target: load.acks >= target or load.failure, 30, f"{target} acks")
        kills += 1
        server.start()
        with Api(server.base) as api:
            oracle.check(api)
            retry_keys(server, oracle, rng)
            check_trims(api, oracle)
    assert server.stop() == 0
    server.start()
    with Api(server.base) as api:
        oracle.check(api)
    return kills


def retry_keys(server: ServerProcess, oracle: Oracle, rng: random.Random) -> None:
    """A retry of an acknowledged write gives its seqs; of one that left no trace, it is the first write."""
    writer = GrpcWriter(server) if rng.random() < 0.5 else HttpWriter(server)
    for topic in oracle.subjects:
        if not topic.keeps:
            continue
        keyed = [batch for batch in topic.batches if batch.key and batch.acked]
        for batch in rng.sample(keyed, min(5, len(keyed))):
            assert writer.write(batch) == (batch.first_seq, len(batch.texts), True), batch
        for batch in [batch for batch in topic.batches if batch.key and batch.gone and not batch.acked]:
            first_seq, count, deduped = writer.write(batch)
            assert not deduped
            batch.gone = False
            oracle.acked(batch, first_seq, count)
            assert writer.write(batch) == (first_seq, count, True)
    writer.close()


def check_trims(api: Api, oracle: Oracle) -> None:
    for topic in oracle.subjects:
        assert api.state(topic.name)["earliest_seq"] >= topic.trim_acked


@pytest.mark.timeout(120)
def test_sigkill_under_load(make_server: Callable[..., ServerProcess]) -> None:
    assert kill_and_check(make_server(), 1, lambda kills: kills == KILLS) == KILLS


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_sigkill_soak(make_server: Callable[..., ServerProcess]) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    kills = kill_and_check(make_server(), seed, lambda _: time.monotonic() > end)
    print(f"{kills} kills with TOPICS_SOAK_SEED={seed}")


# ------------------------------------------------------------------ the quieter ends


def test_sigterm_drains_with_a_parked_read_and_an_open_connection(server: ServerProcess) -> None:
    with Api(server.base) as api:
        name = api.make(durability="disk")
        replies: list[httpx.Response] = []

        def park() -> None:
            with Api(server.base) as own:
                replies.append(own.diff(name, wait_ms=30_000))

        reader = threading.Thread(target=park)
        reader.start()
        poll(lambda: api.state(name)["last_read_ts"])
        api.append(name, *range(10)) if replies else None
        started = time.monotonic()
        assert server.stop(10) == 0
        assert time.monotonic() - started < 10
        reader.join(10)
    [reply] = replies
    assert reply.status_code in (200, 503), reply.text
    assert "Traceback" not in server.log
    server.start()
    with Api(server.base) as api:
        assert api.state(name)["count"] == 0


def test_sigint_is_sigterm(server: ServerProcess) -> None:
    server.signal(signal.SIGINT)
    assert server.wait(30) == 0


def test_a_second_process_is_refused_and_the_first_unharmed(
    server: ServerProcess, make_server: Callable[..., ServerProcess]
) -> None:
    with Api(server.base) as api:
        name = api.make(durability="fsync")
        api.append(name, 1)
        second = make_server(data_dir=server.data_dir)
        second.spawn()
        assert second.wait(20) == 1
        last = second.log.strip().splitlines()[-1]
        assert str(server.data_dir) in last
        assert "it is in use by another server (process " in last
        assert "Traceback" not in second.log
        assert api.append(name, 2)["seqs"] == [2]
        server.kill()
        server.start()
    with Api(server.base) as api:
        assert [record["data"] for record in api.read_all(name)] == [1, 2]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TOPICS_HOST": "0.0.0.0"}, "loopback"),
        ({"TOPICS_HOST": "no.such.host.invalid"}, "no.such.host.invalid"),
        ({"TOPICS_PORT": "99999999"}, "port"),
        ({"TOPICS_DATA_DIR": "/dev/null/data"}, "/dev/null/data"),
    ],
)
def test_refusals_to_start(make_server: Callable[..., ServerProcess], env: dict[str, str], says: str) -> None:
    server = make_server(env=env)
    server.spawn()
    assert server.wait(20) == 1
    assert says in server.log


def test_a_taken_port_is_refused_before_the_data_is_touched(
    server: ServerProcess, make_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    data_dir = tmp_path / "untouched"
    second = make_server(data_dir=data_dir, env={"TOPICS_PORT": server.http_port})
    second.spawn()
    assert second.wait(20) == 1
    assert not data_dir.exists()
    second = make_server(data_dir=data_dir, env={"TOPICS_GRPC_PORT": server.grpc_target.rpartition(":")[2]})
    second.spawn()
    assert second.wait(20) == 1
    assert "Traceback" not in second.log


def test_restarts_keep_everything(server: ServerProcess) -> None:
    """Configs, identities, records, deletes, floors, dedupe state and sizes, over clean and unclean ends."""
    configs = {
        "plain": {"durability": "disk"},
        "fsync": {"durability": "fsync", "priority": 7, "auto_priority": False, "idempotency_window_ms": 1 << 40},
        "capped": {"cap_records": 3, "durability": "memory"},
        "bytes": {"cap_bytes": 30},
        "full": {"cap_records": 2, "discard": "reject"},
        "queue": {"type": "queue", "dead_letter": "dlq", "lease_ms": 1234, "max_deliveries": 3, "leases_durable": True},
        "expired": {"ttl_ms": 1},
    }
    with Api(server.base) as api:
        names = {stem: api.make(stem, **config) for stem, config in configs.items()}
        for name in names.values():
            ok(api.write(name, [{"data": i, "tag": f"t{i}", "node": "n", "meta": {"é": i}} for i in range(1, 3)]))
        for stem in ("capped", "bytes", "plain", "fsync"):
            for i in range(3, 8):
                api.append(names[stem], i, idempotency_key=f"k{i}")
        api.rm(names["plain"], match="t2")
        api.rm(names["fsync"], before_seq=4)
        poll(lambda: api.state(names["expired"])["count"] == 0)
        gone = fresh("gone")
        api.append(gone, 1)
        ok(api.drop(gone))
        before = picture(api, names)
    for how in (server.stop, server.kill, server.kill, server.stop):
        how()
        server.start()
        with Api(server.base) as api:
            assert picture(api, names) == before
            assert api.get(gone).status_code == 404
            assert ok(api.send("GET", "/v0/ready"))["topics"] == len(names)
            for stem in ("plain", "fsync"):
                again = api.append(names[stem], "other", idempotency_key="k5")
                assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [5], 5)
            assert api.write(names["full"], [{"data": 1}]).status_code == 422
            assert api.rm(names["plain"], match="t2")["deleted"] == 0


def picture(api: Api, names: dict[str, str]) -> list[object]:
    """All that a client can see of the topics, but for what reading them changes."""
    seen: list[object] = []
    for name in names.values():
        state = api.state(name)
        page = api.read(name, include_tags=True)
        for volatile in ("performance", "last_read_ts", "effective_priority"):
            state.pop(volatile)
        page.pop("performance")
        seen += [state, page]
    return seen


def test_ephemeral_keeps_its_config_and_head(server: ServerProcess) -> None:
    """Its records go with the process, and every reader is told; a clean stop does not burn a seq."""
    with Api(server.base) as api:
        name = api.make("resident", durability="ephemeral", ttl_ms=1 << 40)
        last = api.append(name, 1, 2, 3, idempotency_key="k")["last_seq"]
        assert len(api.read_all(name)) == 3
    for end, exact in ((server.stop, True), (server.stop, True), (server.kill, False), (server.kill, False)):
        end()
        server.start()
        with Api(server.base) as api:
            state, page = api.state(name), api.read(name)
            assert (state["config"]["durability"], state["config"]["ttl_ms"]) == ("ephemeral", 1 << 40)
            assert (state["count"], state["bytes"], state["earliest_seq"]) == (0, 0, state["head_seq"] + 1)
            assert state["head_seq"] == last if exact else state["head_seq"] >= last
            assert (page["records"], page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == (
                [],
                "cap",
                state["head_seq"],
            )
            reply = api.append(name, 1, idempotency_key="k")
            assert not reply["deduped"]
            assert reply["first_seq"] == state["head_seq"] + 1
            last = reply["last_seq"]
