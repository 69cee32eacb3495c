"""Cases of topics with several partitions, and of what asks for one that is not there."""

from typing import Any

from protocols.cases.steps import Case, delete, diff, drop, fails, gap, get, listing, put, rec, recs, seqs, write


def _at(partition: int, count: int, nbytes: int, *, earliest: int = 1, head: int | None = None) -> dict[str, Any]:
    """The state of a partition, whose records are all of those it ever had unless `head` says more."""
    head = count if head is None else head
    return {
        "partition": partition, "head_seq": head, "earliest_seq": earliest, "next_seq": head + 1, "count": count,
        "bytes": nbytes, "last_write_ts": head > 0,
    }  # fmt: skip


def _none(partition: int, count: int = 1) -> dict[str, Any]:
    return fails("partition_not_found", topic="{t}", partition=str(partition), partition_count=str(count))


PARTITIONS = [
    Case("partitions", (
        put(config={}, partition_count=3, want={"created": True, "partition_count": 3}),
        write(records=recs("1", "2"), partition=2, want={"partition": 2, "seqs": [1, 2], "head_seq": 2}),
        write(records=recs("30"), partition=0, want={"partition": 0, "seqs": [1]}),
        write(records=recs("4"), want={"partition": 0, "seqs": [2]}),
        diff(partition=2, want={**seqs(1, 2), "$datas": ["1", "2"], "partition": 2, "caught_up": True}),
        diff(want={**seqs(1, 2), "$datas": ["30", "4"], "partition": 0}),
        diff(partition=1, want={**seqs(), "partition": 1, "earliest_seq": 1}),
        diff(partition=1, from_seq=5, want=gap(1, 0, "recreated")),
        get(touch=False, want={"partition": 0, "partition_count": 3, "head_seq": 2, "count": 2, "bytes": 3,
                  "partitions": [_at(0, 2, 3), _at(1, 0, 0), _at(2, 2, 2)]}),
        get(touch=False, partition=1, want={"partition": 1, "head_seq": 0, "next_seq": 1, "last_write_ts": False}),
        get(touch=False, partition=2, want={"partition": 2, "count": 2, "last_write_ts": True}),
        listing(prefix="{t}", want={"topics": [{"topic": "{t}", "head_seq": 2, "earliest_seq": 1, "count": 4,
            "bytes": 5, "durable": False, "effective_priority": 500, "partition_count": 3}]}),
        delete(partition=2, before_seq=2, want={"partition": 2, "deleted": 1, "earliest_seq": 2, "count": 1}),
        diff(partition=2, want=seqs(2)),
        diff(want=seqs(1, 2)),
        drop(want={"deleted": True}),
        write(records=recs("1"), want={"created": True, "partition": 0}),
        get(touch=False, want={"partition_count": 1, "partitions": []}),
    )),
    Case("partitions-grow", (
        write(records=recs("1")),
        get(touch=False, want={"partition_count": 1, "partitions": []}),
        put(config={"cap_records": 2}, partition_count=2, want={"created": False, "partition_count": 2}),
        put(config={"cap_records": 2}, want={"partition_count": 2}),
        put(config={}, partition_count=1, want=fails("topic_exists_incompatible", topic="{t}", partition_count="2")),
        write(records=recs("1", "2", "3"), partition=1, want={"seqs": [1, 2, 3]}),
        diff(partition=1, want={**seqs(2, 3), **gap(1, 1, "cap")}),
        diff(want={**seqs(1), "tombstone": None}),
        put(config={}, partition_count=4, want={"partition_count": 4}),
        get(touch=False, partition=3, want={
            "partitions": [_at(0, 1, 1), _at(1, 2, 2, earliest=2, head=3), _at(2, 0, 0), _at(3, 0, 0)]}),
    )),
    Case("partitions-unknown", (
        write(records=recs("1"), partition=1, want=fails(
            "partition_not_found", topic="{t}", partition="1", partition_count="1")),
        get(want=fails("topic_not_found", topic="{t}")),
        diff(partition=1, want=fails("topic_not_found", topic="{t}")),
        write(records=recs("1"), partition=0, want={"created": True}),
        write(records=recs("1"), partition=1, want=_none(1)),
        diff(partition=7, want=_none(7)),
        delete(partition=4294967295, before_seq=1, want=_none(4294967295)),
        get(touch=False, partition=1, want=_none(1)),
        put(config={}, partition_count=2),
        write(records=recs("1"), partition=2, want=_none(2, 2)),
        write(records=recs("1"), partition=1, want={"partition": 1, "seqs": [1]}),
    )),
    Case("partitions-idempotency", (
        put(config={}, partition_count=2),
        write(records=recs("1"), partition=1, idempotency_key="k", want={"deduped": False, "seqs": [1]}),
        write(records=recs("2", "3"), partition=0, idempotency_key="k", want={"deduped": False, "seqs": [1, 2]}),
        write(records=recs("4"), partition=1, idempotency_key="k", want={"deduped": True, "seqs": [1], "partition": 1}),
    )),
    Case("partitions-by-tag", (
        put(config={}, partition_count=2),
        write(records=[rec("1", tag="a"), rec("2", tag="b")], partition=0),
        write(records=[rec("3", tag="a"), rec("4", tag="b")], partition=1),
        delete(partition=1, match=("eq", "a"), want={"deleted": 1}),
        diff(partition=0, want=seqs(1, 2)),
        diff(partition=1, want=seqs(2)),
    )),
    Case("partitions-refused", (
        put(config={"type": "queue"}, partition_count=2, want={"error": "invalid_request"}),
        put(config={}, partition_count=1001, want={"error": "invalid_request"}),
        get(want=fails("topic_not_found", topic="{t}")),
        put("{u}", config={"type": "queue"}, partition_count=1, want={"partition_count": 1}),
        put("{u}", config={"type": "queue"}, partition_count=2, want={"error": "invalid_request"}),
    )),
    Case("partitions-limits", (
        put(config={}, partition_count=4, want={"error": "invalid_request"}),
        put(config={}, partition_count=3, want={"partition_count": 3}),
        put("{u}", config={}, partition_count=2, want=fails("throttled", limit="max_topics", max="4")),
        put("{u}", config={}, want={"created": True}),
        write("{v}", records=recs("1"), want=fails("throttled", limit="max_topics", max="4")),
        drop("{t}"),
        drop("{u}"),
    ), small=True),
]  # fmt: skip
