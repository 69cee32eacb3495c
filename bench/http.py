"""Appends and reads over HTTP against Redis Streams: same payload, connections and batch size, C clients on both."""

from pathlib import Path

from bench.table import Row
from bench.tools import data_of, redis_benchmark, redis_server, write_body, wrk
from support.http import Api
from support.server import ServerProcess

SECONDS = 4


def run(directory: Path) -> list[Row]:
    """Every HTTP row."""
    with ServerProcess(directory / "topics") as server:
        url = f"{server.base}/v0/topics"
        quiet = "?return_seqs=false"
        single = wrk(f"{url}/b1", write_body(1), connections=16, seconds=SECONDS)
        alone = wrk(f"{url}/b1", write_body(1), connections=1, seconds=SECONDS)
        thousand = wrk(f"{url}/b1000{quiet}", write_body(1000), connections=4, seconds=SECONDS)
        hundred = wrk(f"{url}/b100{quiet}", write_body(100), connections=4, seconds=SECONDS)
        page = wrk(f"{url}/b1000/diff", '{"from_seq":5000,"limit":1000}', connections=4, seconds=SECONDS)
        with Api(server.base) as api:
            head = api.state("b1000")["head_seq"]
        tail = wrk(f"{url}/b1000/diff", f'{{"from_seq":{head - 1},"limit":1}}', connections=4, seconds=SECONDS)
        plain = wrk(f"{url}/plain{quiet}", write_body(1000, tagged=False), connections=4, seconds=SECONDS)
    with redis_server(_made(directory / "redis"), "everysec") as port:
        add = ["XADD", "stream", "*", "d", data_of(1)]
        peer_single = redis_benchmark(port, add, calls=150_000, clients=16, pipeline=1)
        peer_alone = redis_benchmark(port, add, calls=30_000, clients=1, pipeline=1)
        peer_thousand = redis_benchmark(port, add, calls=1_000_000, clients=4, pipeline=1000)
        peer_hundred = redis_benchmark(port, add, calls=600_000, clients=4, pipeline=100)
        peer_page = redis_benchmark(
            port, ["XRANGE", "stream", "-", "+", "COUNT", "1000"], calls=8000, clients=4, pipeline=1
        )
        peer_tail = redis_benchmark(
            port, ["XREVRANGE", "stream", "+", "-", "COUNT", "1"], calls=100_000, clients=4, pipeline=1
        )
    rows = [
        Row(
            "append, batches of 1000",
            thousand.calls_per_second * 1000,
            "rec/s",
            "800 k, 3x",
            peer_thousand.calls_per_second,
            "XADD -P 1000",
            "4 connections, tagged",
        ),
        Row(
            "append, batches of 100",
            hundred.calls_per_second * 100,
            "rec/s",
            "450 k",
            peer_hundred.calls_per_second,
            "XADD -P 100",
            "4 connections, tagged",
        ),
        Row(
            "append one by one",
            single.calls_per_second,
            "rec/s",
            "8 k",
            peer_single.calls_per_second,
            "XADD",
            "16 connections",
        ),
        Row("append one by one, p50", alone.p50_ms, "ms", "0.3 ms", peer_alone.p50_ms, "ms XADD", "1 connection"),
        Row(
            "read, limit 1000",
            page.calls_per_second * 1000,
            "rec/s",
            "2.5 M, 1.5x",
            peer_page.calls_per_second * 1000,
            "XRANGE COUNT 1000",
            "4 connections, cached",
        ),
        Row(
            "read, limit 1 at the tail",
            tail.calls_per_second,
            "calls/s",
            "8 k",
            peer_tail.calls_per_second,
            "XREVRANGE COUNT 1",
            "4 connections",
        ),
        Row(
            "untagged over tagged appends",
            plain.calls_per_second / thousand.calls_per_second,
            "x",
            "1.5x at most",
            note="batches of 1000, 1000 distinct tags",
        ),
    ]
    return rows + _durable(directory)


def _durable(directory: Path) -> list[Row]:
    """64 writers of single records: the cost of an fsync before every acknowledgement."""
    rates = {}
    with ServerProcess(directory / "durable") as server, Api(server.base) as api:
        for durability in ("disk", "fsync"):
            assert api.put(durability, durability=durability).status_code == 201
            url = f"{server.base}/v0/topics/{durability}"
            rates[durability] = wrk(url, write_body(1), connections=64, seconds=SECONDS)
    with redis_server(_made(directory / "redis-always"), "always") as port:
        add = ["XADD", "stream", "*", "d", data_of(1)]
        peer = redis_benchmark(port, add, calls=100_000, clients=64, pipeline=1)
    fsync, disk = rates["fsync"], rates["disk"]
    return [
        Row("fsync class, 64 writers", fsync.calls_per_second, "rec/s", "", peer.calls_per_second, "XADD, always"),
        Row("fsync over disk class, 64 writers", fsync.calls_per_second / disk.calls_per_second, "x", "0.8x"),
        Row(
            "fsync class, 64 writers, p99",
            fsync.p99_ms,
            "ms",
            "5 ms",
            peer.p99_ms,
            "ms XADD, always",
            f"p50 {fsync.p50_ms:.2f} ms; 64 callers wait in turn for one core",
        ),
    ]


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
