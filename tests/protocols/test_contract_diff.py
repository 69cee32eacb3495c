"""Reads on a real server over HTTP: types, pages and their keys, filters, byte budgets, long polls."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from protocols.cases.steps import U64

from support.http import NOT_INTEGERS, Api, fresh, member, ok, path, refused
from support.waiting import poll

# ------------------------------------------------------------------------ types


def test_diff_types(api: Api, topic: str) -> None:
    for field, text in (
        *itertools.product(["from_seq"], NOT_INTEGERS),
        *itertools.product(["limit", "wait_ms", "max_batch_bytes"], [t for t in NOT_INTEGERS if t != str(1 << 64)]),
        *itertools.product(["include_tags", "include_meta"], ["0", '"true"', "null", "[]"]),
        *itertools.product(["node"], ["5", "true", "{}", "[5]", '["a",null]', '[["a"]]']),
    ):
        refused(api.send("POST", path(topic, "/diff"), member(field, text)), 400, "invalid_request")
        refused(api.send("POST", path(fresh(), "/diff"), member(field, text)), 400, "invalid_request")
    for text in ("null", "[]", '""', '"a"', '["a","a"]', '["%s"]' % ("n" * 500)):
        ok(api.send("POST", path(topic, "/diff"), member("node", text)))


def test_diff_clamps_at_any_size(api: Api) -> None:
    name = api.make()
    api.append(name, *range(3))
    for huge in ("1001", str(1 << 32), str(1 << 63), str(U64), str(1 << 64), "9" * 40, "9" * 41, "9" * 6000):
        body = f'{{"limit":{huge},"wait_ms":{huge},"max_batch_bytes":{huge}}}'
        assert len(ok(api.send("POST", path(name, "/diff"), body))["records"]) == 3
    refused(api.send("POST", path(name, "/diff"), '{"limit":-%s}' % ("9" * 6000)), 400, "invalid_request")
    assert ok(api.send("POST", path(name, "/diff"), f'{{"from_seq":{U64}}}'))["tombstone"]["reason"] == "recreated"


# ------------------------------------------------------------------------ pages


def test_diff_reply_and_record_keys(api: Api) -> None:
    name = fresh()
    ok(api.write(name, [{"data": None}, {"data": 1, "tag": "t", "node": "n", "meta": {}}]), 201)
    page = api.read(name)
    assert list(page) == [
        "topic", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag", "performance"
    ]  # fmt: skip
    assert [set(record) for record in page["records"]] == [
        {"$seq", "$ts", "data"}, {"$seq", "$ts", "$node", "data", "meta"}
    ]  # fmt: skip
    bare = api.read(name, include_tags=True, include_meta=False)["records"]
    assert [set(record) for record in bare] == [{"$seq", "$ts", "data"}, {"$seq", "$ts", "$node", "$tag", "data"}]


def test_tombstone_has_exactly_its_fields(api: Api) -> None:
    name = api.make(cap_records=1)
    api.append(name, 1, 2)
    tombstone = api.read(name)["tombstone"]
    assert list(tombstone) == ["gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"]


def test_records_scanned(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": i, "node": "me" if i % 2 else "you", "tag": "x"} for i in range(10)]))
    api.rm(name, before_seq=3)
    for body, scanned, got in (
        ({}, 8, 8),
        ({"node": "me"}, 8, 4),
        ({"node": "me", "limit": 4}, 4, 2),
        ({"limit": 3}, 3, 3),
    ):
        page = api.read(name, **body)
        assert (page["performance"]["records_scanned"], len(page["records"])) == (scanned, got)


def test_node_filter_examines_at_most_limit(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": i, "node": "me"} for i in range(300)]))
    page = api.read(name, node="me")
    assert (page["next_from_seq"], page["caught_up"], page["records"]) == (256, False, [])
    page = api.read(name, 256, node="me")
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (300, True, 0)


def test_byte_budget_defaults_to_a_mebibyte(api: Api) -> None:
    name = api.make()
    size = (1 << 20) // 4
    ok(api.write(name, [{"data": "x" * (size - 2)} for _ in range(6)]))
    for budget, count in ((None, 4), (0, 4), ((1 << 20) - 1, 3), (1 << 20, 4), (8 << 20, 6), (1 << 60, 6)):
        page = api.read(name, limit=1000, **({} if budget is None else {"max_batch_bytes": budget}))
        assert (len(page["records"]), page["next_from_seq"], page["caught_up"]) == (count, count, count == 6)
    big = api.make()
    for _ in range(9):
        api.append(big, "x" * ((1 << 20) - 2))
    assert len(api.read(big, max_batch_bytes=1 << 40)["records"]) == 8  # clamped to 8 MiB


def test_a_page_that_is_full_ends_at_its_last_record_even_before_deleted_ones(api: Api) -> None:
    name = api.make()
    api.write(name, [{"data": 1}, {"data": 2, "tag": "x"}, {"data": 3, "tag": "x"}])
    api.send("POST", f"/v0/topics/{name}/delete", {"match": "x"})
    page = api.diff(name, from_seq=0, limit=1).json()
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (1, False, 2)
    page = api.diff(name, from_seq=1, limit=1).json()
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 3, True)


# ------------------------------------------------------------------- long polls


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


@pytest.fixture
def long_poll(api: Api) -> Iterator[Callable[..., Callable[[], tuple[httpx.Response, float]]]]:
    """Start a diff that waits; the result is a function that gives its response and how long it took."""
    threads: list[threading.Thread] = []

    def start(name: str, **body: Any) -> Callable[[], tuple[httpx.Response, float]]:
        def read() -> tuple[httpx.Response, float]:
            started = time.monotonic()
            with Api(api.base) as own:
                return own.diff(name, **{"wait_ms": 20_000, **body}), time.monotonic() - started

        touched = api.state(name)["last_read_ts"]
        poll(lambda: int(time.time() * 1000) > (touched or 0))
        thread, results = in_background(read)
        threads.append(thread)
        poll(lambda: api.state(name)["last_read_ts"] != touched)  # it is parked: its first read has been made

        def finish() -> tuple[httpx.Response, float]:
            thread.join(15)
            return results[0]

        return finish

    yield start
    for thread in threads:
        thread.join(25)


def test_long_poll(api: Api, long_poll: Callable[..., Callable[[], tuple[httpx.Response, float]]]) -> None:
    name = api.make()
    waiting = [long_poll(name), long_poll(name, node="me")]
    ok(api.write(name, [{"data": 1, "node": "me"}]))
    (woken, took), (filtered, filtered_took) = (finish() for finish in waiting)
    assert took < 12
    assert [r["$seq"] for r in ok(woken)["records"]] == [1]
    assert filtered_took < 12  # any append wakes it, and it answers although nothing passed its filter
    body = ok(filtered)
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 1, True)
    started = time.monotonic()
    page = api.read(name, 1, wait_ms=80)
    assert time.monotonic() - started >= 0.075
    assert (page["records"], page["caught_up"], page["tombstone"]) == ([], True, None)
    for body in ({"from_seq": 0}, {"from_seq": 9}, {"from_seq": 0, "limit": 1, "node": "me"}):
        started = time.monotonic()
        ok(api.diff(name, wait_ms=15_000, **body)) if body.get("node") is None else None
        assert time.monotonic() - started < 12


def test_long_poll_ends_with_its_topic(
    api: Api, long_poll: Callable[..., Callable[[], tuple[httpx.Response, float]]]
) -> None:
    name = api.make()
    finish = long_poll(name)
    ok(api.drop(name))
    reply, took = finish()
    assert took < 12
    assert refused(reply, 404, "topic_not_found")["detail"] == {"topic": name}
