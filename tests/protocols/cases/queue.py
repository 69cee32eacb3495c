"""Cases of queues: claim, ack, nack, extend, redrive, jobs, delays and priorities of writes.

In `lease_ids`, `<7>` is the lease id from the last claim of job 7, `<7-1>` for the one before.
"""

from typing import Any

from protocols.cases.steps import U64, Case, Step, delete, diff, drop, fails, get, put, rec, recs, seqs, write

BAD = {"error": "invalid_request"}
NONE = {"claimed": [], "count": 0}


def _step(op: str) -> Any:
    def make(topic: str = "{t}", /, *, want: Any = None, until: Any = None, **request: Any) -> Step:
        return Step(op, topic, request, want or {}, until or {})

    return make


claim, ack, nack, extend = _step("claim"), _step("ack"), _step("nack"), _step("extend")
redrive, jobs = _step("redrive"), _step("jobs")


def queue(count: int = 0, /, topic: str = "{t}", **config: Any) -> tuple[Step, ...]:
    """A queue with `count` jobs, their data 1 to count."""
    made = put(topic, config={"type": "queue", **config}, want={"created": True})
    return (made, write(topic, records=recs(*map(str, range(1, count + 1))))) if count else (made,)


def got(*numbers: int, **rest: Any) -> dict[str, Any]:
    """A claim that gave exactly these jobs."""
    return {"$seqs": list(numbers), "count": len(numbers)} | rest


def counts(ready: int, in_flight: int, dead_lettered: int = 0) -> dict[str, Any]:
    """The queue object of a topic's state."""
    return {"queue": {"ready": ready, "in_flight": in_flight, "dead_lettered": dead_lettered}}


OPS = {
    "claim": (claim, {}), "ack": (ack, {"seqs": [1]}), "nack": (nack, {"seqs": [1]}),
    "extend": (extend, {"seqs": [1], "lease_ms": 1000}),
}  # fmt: skip

QUEUES = [
    Case("queue-claims", (
        *queue(lease_ms=20_000),
        claim(node="w", want=got(ready=0, topic="{t}")),
        write(records=[rec('{"b":1.0,"a":2}', tag="g", meta='{"k":"v"}', node="n"), rec("null"), *recs("3", "4", "5")]),
        claim(node="w", want=got(1, ready=4)),
        claim(node="v", max=2, want=got(2, 3, ready=2)),
        get(want=counts(2, 3)),
        claim(node="w", max=0, want=got(4, ready=1)),
        claim(node="w", max=100_000, want=got(5, ready=0)),
        claim(node="w", max=9, want=got(ready=0)),
        diff(include_tags=True, want=seqs(1, 2, 3, 4, 5)),
        get(want={"count": 5, **counts(0, 5)}),
    )),
    Case("queue-lease-lengths", (
        *queue(5, lease_ms=60_000),
        claim(node="w", want={"$held_ms": [60_000]}),
        claim(node="w", lease_ms=5000, want={"$held_ms": [5000]}),
        claim(node="w", lease_ms=U64, want={"$held_ms": [86_400_000]}),
        claim(node="w", lease_ms=0, want={"$held_ms": [100]}),
        extend(node="w", seqs=[1, 2], lease_ms=U64, want={"extended": 2, "$held_ms": [86_400_000] * 2}),
    )),
    Case("queue-acks", (
        *queue(5),
        claim(node="a", max=2, want=got(1, 2)),
        claim(node="b", max=2, want=got(3, 4)),
        ack(node="a", seqs=[3, 99, 1, 5], want={"acked": 1, "skipped": [3, 99, 5], "ready": 1, "in_flight": 3}),
        ack(node="a", seqs=[1, 2, 2], want={"acked": 1, "skipped": [1, 2], "ready": 1, "in_flight": 2}),
        get(want={"count": 3, "earliest_seq": 3, **counts(1, 2)}),
        diff(want={**seqs(3, 4, 5), "tombstone": None}),
        ack(node="b", seqs=[4, 0, U64], want={"acked": 1, "skipped": [0, U64]}),
        ack(node="b", seqs=[3], lease_ids=["<3>"], want={"acked": 1}),
        claim(node="a", want=got(5)),
        ack(node="a", seqs=[5], lease_ids=[""], want={"acked": 1, "ready": 0, "in_flight": 0}),
        get(want={"count": 0, "head_seq": 5, **counts(0, 0)}),
    )),
    Case("queue-durable-acks", (
        *queue(2, durability="fsync"),
        claim(node="w", max=2, want={"$timings": []}),
        ack(node="w", seqs=[1], want={"acked": 1, "$timings": ["fsync_ms"]}),
        nack(node="w", seqs=[2], want={"nacked": 1, "$timings": []}),
    )),
    Case("queue-claims-that-ack", (
        *queue(6, durability="fsync"),
        claim(node="w", max=2, want=got(1, 2)),
        claim(node="w", max=2, ack={"seqs": [1, 9, 2]}, want={
            **got(3, 4), "acked": 2, "skipped": [9], "ready": 2, "$timings": ["fsync_ms"],
        }),
        get(want={"count": 4, "earliest_seq": 3, **counts(2, 2)}),
        claim(node="w", ack={"seqs": [3], "lease_ids": ["lease_" + "0" * 32]}, want={
            **got(5), "acked": 0, "skipped": [3], "$timings": [],
        }),
        claim(node="v", ack={"seqs": [4]}, want={**got(6), "acked": 0, "skipped": [4]}),
        claim(node="v", max=9, ack={"seqs": [6]}, want={**got(), "acked": 1, "skipped": [], "ready": 0}),
        get(want={"count": 3, **counts(0, 3)}),
        *(claim(node="w", ack=bad, want=BAD) for bad in (
            {"seqs": []}, {"seqs": [3], "lease_ids": ["x"]}, {"seqs": [3], "lease_ids": ["", ""]},
        )),
        claim(node="", ack={"seqs": [3]}, want=BAD),
        claim(node="w", ack={"seqs": [3] * 1001}, want={"error": "batch_too_large"}),
        get(want={"count": 3, **counts(0, 3)}),
        claim(node="w", ack={"seqs": [3, 4, 5]}, want={**got(), "acked": 3}),
    )),
    Case("queue-nacks", (
        *queue(3),
        claim(node="w", max=2, want=got(1, 2)),
        nack(node="v", seqs=[1], want={"nacked": 0, "skipped": [1]}),
        nack(node="w", seqs=[2, 9], want={"topic": "{t}", "nacked": 1, "skipped": [9], "ready": 2, "in_flight": 1}),
        claim(node="v", max=5, want={**got(2, 3), "$deliveries": [2, 1]}),
        nack(node="v", seqs=[2], delay_ms=U64, want={"nacked": 1, "ready": 0, "in_flight": 2}),
        get(want={"count": 3, **counts(0, 2)}),
        claim(node="v", max=5, want=got(ready=0)),
        nack(node="v", seqs=[3], delay_ms=300, want={"ready": 0, "in_flight": 1}),
        get(until=counts(1, 1)),
        claim(node="v", want={**got(3), "$deliveries": [2]}),
        nack(node="v", seqs=[3], mode="release", want={"nacked": 1}),
        claim(node="v", want={**got(3), "$deliveries": [2]}),
        nack(node="v", seqs=[3], mode="retry", want={"nacked": 1}),
        claim(node="v", want={**got(3), "$deliveries": [3]}),
    )),
    Case("queue-expiry", (
        *queue(2),
        claim(node="w", max=2, lease_ms=100, want=got(1, 2)),
        get(until=counts(2, 0)),
        ack(node="w", seqs=[1], want={"acked": 0, "skipped": [1]}),
        extend(node="w", seqs=[1], lease_ms=1000, want={"extended": 0, "skipped": [1], "deadlines": {}}),
        claim(node="w", max=2, want={**got(1, 2), "$deliveries": [2, 2]}),
        *(op(node="w", lease_ids=["<1-1>"], **request, want={"skipped": [1]})
          for op, request in (OPS["ack"], OPS["nack"], OPS["extend"])),
        get(want=counts(0, 2)),
        extend(node="w", seqs=[2, 1, 7], lease_ids=["<2>", "<1>", ""], lease_ms=9000,
               want={"topic": "{t}", "extended": 2, "skipped": [7], "$deadlines": ["1", "2"]}),
        extend(node="w", seqs=[1, 2, 1, 7, 1], lease_ms=9000,
               want={"extended": 2, "skipped": [7], "$deadlines": ["1", "2"]}),
        ack(node="w", seqs=[1, 2], lease_ids=["lease_ffffffff", "<2>"], want={"acked": 1, "skipped": [1]}),
    )),
    Case("queue-dead-letters", (
        *queue(topic="{u}"),
        *queue(max_deliveries=1, dead_letter="{u}"),
        write(records=[rec('{"a":1}', tag="x:1", meta='{"k":"v"}'), rec("2", tag="x:2"), rec("3", tag="y")]),
        claim(node="w", max=3, want=got(1, 2, 3)),
        nack(node="w", seqs=[1, 2, 3]),
        claim(node="w", max=3, want=got(ready=0)),
        get(want={"count": 0, **counts(0, 0, 3)}),
        diff("{u}", include_tags=True, want={**seqs(1, 2, 3), "$tags": ["x:1", "x:2", "y"]}),
        redrive(match=("eq", "y"), want={"topic": "{t}", "dead_letter": "{u}", "redriven": 1}),
        redrive(match=("prefix", "x:"), max=1, want={"redriven": 1}),
        redrive(match=("eq", "no"), want={"redriven": 0}),
        get("{u}", want={"count": 1}),
        redrive(want={"redriven": 1}),
        redrive(want={"redriven": 0}),
        claim(node="w", max=9, want={"$deliveries": [1, 1, 1], "$tags": ["y", "x:1", "x:2"]}),
    )),
    Case("queue-jobs", (
        *queue(4),
        write(records=[rec("5", tag="t", node="n", meta='{"a":1}')], priority=7),
        write(records=recs("6", "7"), delay_ms=60_000),
        jobs(want={"topic": "{t}", "state": "ready", "$seqs": [1, 2, 3, 4, 5], "next_after": None}),
        jobs(state="delayed", want={"$seqs": [6, 7], "$deliveries": [0, 0]}),
        jobs(state="in_flight", want={"$seqs": []}),
        claim(node="w", max=2, want=got(1, 5)),
        jobs(state="in_flight", want={"$seqs": [1, 5], "$deliveries": [1, 1]}),
        jobs(state="ready", limit=2, want={"$seqs": [2, 3], "next_after": 3}),
        jobs(state="ready", limit=2, after=3, want={"$seqs": [4], "next_after": None}),
        jobs(state="ready", limit=0, want={"$seqs": [2], "next_after": 2}),
        jobs(state="ready", limit=100_000, want={"$seqs": [2, 3, 4]}),
        get(want=counts(3, 2)),
    )),
    Case("queue-delays", (
        *queue(),
        write(records=recs("1", "2"), delay_ms=2000),
        write(records=recs("3")),
        write(records=recs("4"), delay_ms=U64),
        diff(want=seqs(1, 2, 3, 4)),
        get(want={"count": 4, **counts(1, 0)}),
        claim(node="w", max=9, want=got(3, ready=0)),
        get(until=counts(2, 1)),
        claim(node="w", max=9, want=got(1, 2)),
    )),
    Case("queue-priorities", (
        *queue(2),
        write(records=recs("3", "4"), priority=9),
        write(records=recs("5"), priority=1),
        write(records=recs("6"), priority=9),
        *(claim(node="w", want=got(seq)) for seq in (3, 4, 6, 5, 1, 2)),
    )),
    Case("queue-bad-schedules", (
        *queue(),
        write(records=recs("1"), priority=10, want=BAD),
        write("{u}", records=recs("1"), priority=1, config={"type": "log"}, want=BAD),
        put("{v}", config={}),
        write("{v}", records=recs("1"), priority=1, want=BAD),
        write("{v}", records=recs("1"), delay_ms=1, want=BAD),
        write("{v}", records=recs("1"), delay_ms=0, priority=0, want={"seqs": [1]}),
        get(want={"head_seq": 0}),
    )),
    Case("queue-eviction", (
        *queue(cap_records=2),
        write(records=recs("1", "2", "3")),
        claim(node="w", want=got(2, ready=1)),
        write(records=recs("4", "5")),
        get(want={"count": 2, **counts(2, 0)}),
        claim(node="w", max=9, want=got(4, 5)),
    )),
    Case("queue-deletes", (
        *queue(4),
        delete(before_seq=3, want={"deleted": 2}),
        claim(node="w", max=9, want=got(3, 4)),
        drop(want={"deleted": True}),
        claim(node="w", want={"error": "topic_not_found"}),
        *queue(1),
        claim(node="w", want={**got(1), "$deliveries": [1]}),
    )),
    Case("queue-node-checks", (
        *queue(1),
        *(op(node=node, **request, want=BAD) for op, request in OPS.values() for node in ("", "n" * 129, "é" * 65)),
        *(op(node="n" * 128, **request, want={"topic": "{t}"}) for op, request in OPS.values()),
    )),
    *(Case(f"queue-{name}-refusals", (
        op(node="w", **request, want=fails("topic_not_found", topic="{t}")),
        put("{u}", config={}),
        op("{u}", node="w", **request, want=fails("not_a_queue", topic="{u}")),
        *((
            op(node="w", **request | {"seqs": []}, want=BAD),
            op(node="w", **request | {"seqs": [1] * 1001}, want=fails("batch_too_large", seqs=1001, max=1000)),
            op(node="w", **request | {"lease_ids": ["lease_1", "lease_2"]}, want=BAD),
            op(node="w", **request | {"lease_ids": ["lease_xyz"]}, want=BAD),
            op(node="w", **request | {"lease_ids": ["lease_"]}, want=BAD),
            op(node="w", **request | {"lease_ids": ["nonsense"]}, want=BAD),
        ) if name != "claim" else ()),
        get("{t}", want={"error": "topic_not_found"}),
    )) for name, (op, request) in OPS.items()),
    Case("queue-redrive-refusals", (
        redrive(want=fails("topic_not_found", topic="{t}")),
        put("{u}", config={}),
        redrive("{u}", want=fails("not_a_queue", topic="{u}")),
        *queue(),
        redrive(want=BAD),
        *queue(topic="{v}", dead_letter="{w}"),
        redrive("{v}", want={"redriven": 0}),
        jobs("{u}", want=fails("not_a_queue", topic="{u}")),
        jobs("{w}", want=fails("topic_not_found", topic="{w}")),
    )),
    Case("queue-jitter", (
        *queue(3, claim_jitter_ms=30),
        claim(node="w", max=2, want=got(1, 2, ready=1)),
    )),
]  # fmt: skip
