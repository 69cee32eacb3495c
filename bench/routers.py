"""Routers: the throughput of one, and the cost of eight for the writers of their source."""

import time
from pathlib import Path
from typing import Any

import httpx

from bench.table import Row
from bench.tools import write_body, wrk
from support.http import JSON, ok
from support.server import ServerProcess

_SECONDS = 3
_ROUNDS = 3
_BACKLOG = 400  # batches of 1000
_ROUTERS = 8


def run(directory: Path) -> list[Row]:
    """Every row of the routers."""
    with (
        ServerProcess(directory / "topics") as server,
        httpx.Client(base_url=server.base, trust_env=False, headers=JSON, timeout=120) as client,
    ):
        plain = _backlog(client, "plain", tagged=False)
        tagged = _backlog(client, "tagged")
        stamped = _backlog(client, "stamped", guarantee="exactly_once")
        ratios, lags = [], []
        for round_ in range(_ROUNDS):
            alone = _append(server.base, f"alone{round_}")
            source = f"source{round_}"
            for i in range(_ROUTERS):
                _put(client, f"{source}.{i}", source=source, dest=f"{source}-dest{i}")
            ratios.append(_append(server.base, source) / alone)
            began = time.perf_counter()
            head = ok(client.get(f"/v0/topics/{source}"))["head_seq"]
            for i in range(_ROUTERS):
                assert ok(client.get(f"/v0/routers/{source}.{i}"))["forwarded_total"] == head
            lags.append(time.perf_counter() - began)
    middle = sorted(ratios)[_ROUNDS // 2]
    note = f"batches of 1000, 4 connections, median of {_ROUNDS}; all was forwarded {max(lags):.1f} s after the end"
    return [
        Row("one router, backlog in batches of 1000", plain, "rec/s", "200 k", note="untagged"),
        Row("one router, backlog in batches of 1000", tagged, "rec/s", "200 k", note="1000 distinct tags a batch"),
        Row("one exactly_once router, the same", stamped, "rec/s", "200 k", note="stamps the meta of each copy"),
        Row(f"appends with {_ROUTERS} routers over without", middle, "x", "0.8x", note=note),
    ]


def _backlog(client: httpx.Client, topic: str, *, tagged: bool = True, **config: Any) -> float:
    """Records a second of a router that starts at the beginning of a topic."""
    body = write_body(1000, tagged=tagged)
    for _ in range(_BACKLOG):
        ok(client.post(f"/v0/topics/{topic}?return_seqs=false", content=body), 200, 201)
    began = time.perf_counter()
    _put(client, topic, source=topic, dest=f"{topic}-dest", backfill=True, **config)
    state = ok(client.get(f"/v0/routers/{topic}"))
    assert state["forwarded_total"] == _BACKLOG * 1000, state
    return _BACKLOG * 1000 / (time.perf_counter() - began)


def _append(base: str, topic: str) -> float:
    url = f"{base}/v0/topics/{topic}?return_seqs=false"
    return wrk(url, write_body(1000), connections=4, seconds=_SECONDS).calls_per_second


def _put(client: httpx.Client, router: str, **body: Any) -> None:
    ok(client.put(f"/v0/routers/{router}", json=body), 201)
