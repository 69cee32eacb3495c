"""Costs that must not grow with a log: a write, a read and a tag delete, from 10 k to 5 M records."""

import random
import time
from pathlib import Path
from statistics import median
from threading import Event, Thread

from bench.plot import Line, svg
from bench.table import PAGE, Row
from bench.tools import write_body, wrk
from support.http import Api, ok
from support.server import ServerProcess

_SIZES = (10_000, 100_000, 1_000_000, 5_000_000)
_MATCHES = (10, 100, 1000)
_PLOT = PAGE.with_name("benchmarks-length.svg")


def run(directory: Path) -> list[Row]:
    """Every row about the length of a log; draws the plot."""
    append, tail, cold, delete = (
        Line(name) for name in ("append of 1000", "read at the tail", "cold read", "delete of 10")
    )
    with ServerProcess(directory / "topics") as server, Api(server.base) as api:
        for size in _SIZES:
            head = grow(server, api, "log", size)
            append.add(size, _median_ms(api, "/v0/topics/log?return_seqs=false", [write_body(1000)] * 30))
            tail.add(size, _median_ms(api, "/v0/topics/log/diff", [_page(head - 1000)] * 30))
            places = random.Random(size).sample(range(head - 1000), 30)
            cold.add(size, _median_ms(api, "/v0/topics/log/diff", [_page(place) for place in places]))
            delete.add(size, _delete_ms(api, f"rare-{size}", 10))
        by_matches = [_delete_ms(api, f"many-{matches}", matches) for matches in _MATCHES]
        alone, beside = _beside_cold_reader(server, api)
    _PLOT.write_text(svg("server time (ms) over the records in the log", [append, tail, cold, delete]))
    rows = [
        Row(f"{line.name}, 5 M over 10 k records", line.last / line.first, "x", "flat", note=line.summary)
        for line in (append, tail, cold, delete)
    ]
    figures = ", ".join(f"{n}: {ms:.2f} ms" for n, ms in zip(_MATCHES, by_matches, strict=True))
    growth, slower = by_matches[-1] / by_matches[0], beside / alone
    what = "delete by tag in 5 M records, 1000 matches over 10"
    return [
        *rows,
        Row(what, growth, "x", "100x at most", note=figures),
        Row("append p99 beside a reader of cold data", slower, "x", "2x", note=f"{alone:.1f} and {beside:.1f} ms"),
    ]


def grow(server: ServerProcess, api: Api, topic: str, size: int) -> int:
    """Append batches of 1000 until the topic has `size` records or a few more; returns its head."""
    body = write_body(1000)
    url = f"/v0/topics/{topic}?return_seqs=false"
    head: int = api.send("POST", url, body).json()["head_seq"]
    while head < size:
        if size - head > 700_000:
            wrk(f"{server.base}{url}", body, connections=4, seconds=1)
        head = api.send("POST", url, body).json()["head_seq"]
    return head


def _page(from_seq: int) -> str:
    return f'{{"from_seq":{from_seq},"limit":1000}}'


def _median_ms(api: Api, path: str, bodies: list[str]) -> float:
    """The median of the server's time per call."""
    return median(ok(api.send("POST", path, body))["performance"]["server_total_ms"] for body in bodies)


def _delete_ms(api: Api, tag: str, matches: int) -> float:
    """The median of three deletes of the given number of records by tag, each written one by one between others."""
    took = []
    for attempt in range(3):
        name = f"{tag}-{attempt}"
        for start in range(0, matches, 100):
            ok(api.write("log", [{"data": i, "tag": name} for i in range(start, min(start + 100, matches))]))
        reply = ok(api.send("POST", "/v0/topics/log/delete", {"match": name}))
        assert reply["deleted"] == matches
        took.append(reply["performance"]["server_total_ms"])
    return median(took)


def _beside_cold_reader(server: ServerProcess, api: Api) -> tuple[float, float]:
    """The p99 of appends of 100, alone and while another client reads pages from all over the log."""
    body, url = write_body(100), f"{server.base}/v0/topics/beside?return_seqs=false"
    head = api.state("log")["head_seq"]
    alone = wrk(url, body, connections=2, seconds=4)
    done = Event()

    def read() -> None:
        places = random.Random(1)
        with Api(server.base) as reader:
            while not done.is_set():
                reader.send("POST", "/v0/topics/log/diff", _page(places.randrange(head)))
                time.sleep(0.005)  # a reader that thinks: 200 pages a second at most

    thread = Thread(target=read)
    thread.start()
    try:
        beside = wrk(url, body, connections=2, seconds=4)
    finally:
        done.set()
        thread.join()
    return alone.p99_ms, beside.p99_ms
