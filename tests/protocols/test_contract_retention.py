"""Retention on a real server over HTTP: ttl, caps, full topics, and the gaps they leave to readers."""

import time

from support.http import Api, ok, refused
from support.waiting import poll


def test_ttl(api: Api) -> None:
    name = api.make(ttl_ms=2000)
    api.append(name, 1, 2)
    written = api.state(name)["last_write_ts"]
    while (state := api.state(name))["count"]:
        assert state["count"] == 2  # what came together goes together
        assert int(time.time() * 1000) - written < 10_000
    assert int(time.time() * 1000) - written > 2000  # strictly older
    assert (state["bytes"], state["earliest_seq"], state["next_seq"], state["last_write_ts"]) == (0, 3, 3, written)
    assert api.listing(prefix=name)["topics"][0]["count"] == 0
    api.append(name, 3)
    page = api.read(name)
    assert [r["$seq"] for r in page["records"]] == [3]
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 2, "reason": "ttl", "missed_estimate": 2, "earliest_seq": 3, "head_seq": 3
    }  # fmt: skip
    assert api.rm(name, before_seq=9)["deleted"] == 1  # the expired are not counted
    loosened = api.make(ttl_ms=20)
    api.append(loosened, 1)
    poll(lambda: api.state(loosened)["count"] == 0)
    ok(api.put(loosened, ttl_ms=1 << 40))  # what has expired does not come back
    assert api.state(loosened)["count"] == 0
    assert api.read(loosened)["tombstone"]["reason"] == "ttl"


def test_tightened_ttl_acts_at_once(api: Api) -> None:
    name = api.make()
    api.append(name, 1)
    ts = api.state(name)["last_write_ts"]
    poll(lambda: int(time.time() * 1000) - ts > 5)
    ok(api.put(name, ttl_ms=1))
    assert api.state(name)["count"] == 0


def test_expired_records_make_room_and_are_empty(api: Api) -> None:
    name = api.make(ttl_ms=60, cap_records=1, discard="reject")
    api.append(name, 1)
    poll(lambda: api.write(name, [{"data": 2}]).status_code == 200)
    assert api.state(name)["head_seq"] == 2
    poll(lambda: api.drop(name, if_empty="true").status_code == 200)
    assert ok(api.drop(name, if_empty="true"))["deleted"] is False


def test_mixed_and_deleted_in_one_gap(api: Api) -> None:
    name = api.make(cap_records=3)
    ok(api.write(name, [{"data": i, "tag": "x" if i in (4, 5) else "y"} for i in range(1, 7)]))
    api.rm(name, match="x")
    page = api.read(name)
    assert (page["tombstone"]["gap_to"], page["tombstone"]["reason"], page["earliest_seq"]) == (5, "cap", 6)
    assert api.read(name, 3)["tombstone"] is None  # above the floor: only deleted ones between
    ok(api.put(name, cap_records=3, ttl_ms=1))
    poll(lambda: api.state(name)["count"] == 0)
    page = api.read(name)
    assert (page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == ("mixed", 6)
    assert api.read(name, 3)["tombstone"]["reason"] == "ttl"


def test_cap_is_exact_and_keeps_all_seqs_in_the_reply(api: Api) -> None:
    name = api.make(cap_records=2)
    assert api.append(name, *range(5))["seqs"] == [1, 2, 3, 4, 5]
    state = api.state(name)
    assert (state["count"], state["earliest_seq"]) == (2, 4)
    alone = api.make(cap_bytes=5)
    assert api.append(alone, "too long")["seqs"] == [1]
    state = api.state(alone)
    assert (state["count"], state["bytes"], state["earliest_seq"], state["head_seq"]) == (0, 0, 2, 1)


def test_reject_never_drops(api: Api) -> None:
    name = api.make(cap_records=3, discard="reject")
    ok(api.write(name, [{"data": i, "tag": str(i)} for i in (1, 2, 3)]))
    api.rm(name, match="2")
    api.rm(name, match="3")
    api.append(name, 4)
    assert [r["$seq"] for r in api.read(name)["records"]] == [1, 4]
    ok(api.put(name, cap_records=1, discard="reject"))  # tighter than what is there
    assert api.state(name)["count"] == 2
    refused(api.write(name, [{"data": 1}]), 422, "topic_full")
    ok(api.put(name, cap_records=1, discard="old"))
    assert api.state(name)["count"] == 1
