"""One operation of the Python SDK, as `test_behaviours.py` wants it: driver.py OPERATION JSON.

Prints one JSON object a line. A line on stdin ends an endless scenario.
"""

import base64
import json
import os
import sys
import threading
import time
from typing import Any

from topics_client import (
    Backoff,
    CaughtUp,
    Gap,
    Job,
    NewRecord,
    Record,
    Retry,
    TopicDeleted,
    TopicsClient,
    TopicsError,
    UnavailableError,
)

_lock = threading.Lock()


def tell(**line: Any) -> None:
    with _lock:
        print(json.dumps(line), flush=True)


def tell_event(event: object) -> None:
    if isinstance(event, Record):
        tell(
            topic=event.topic,
            seq=event.seq,
            tag=event.tag,
            node=event.node,
            binary=event.binary,
            data=base64.b64encode(event.data).decode(),
            meta=event.meta,
        )
    elif isinstance(event, Gap):
        tell(gap=[event.first_seq, event.last_seq, event.reason])
    elif isinstance(event, CaughtUp):
        tell(caught_up=[event.topic, event.head_seq])
    elif isinstance(event, TopicDeleted):
        tell(deleted=event.topic)


def when_asked(call: Any) -> None:
    def wait() -> None:
        if sys.stdin.readline():
            call()

    threading.Thread(target=wait, daemon=True).start()


def payload(value: Any) -> Any:
    return base64.b64decode(value["$bytes"]) if isinstance(value, dict) and "$bytes" in value else value


def read(topics: TopicsClient, ask: dict[str, Any]) -> None:
    with topics.read(
        ask["topic"],
        ask.get("from", 0),
        last=ask.get("last"),
        follow=ask.get("follow", False),
        tag=ask.get("tag"),
        tag_prefix=ask.get("tag_prefix"),
        partition=ask.get("partition", 0),
        gaps="yield",
    ) as stream:
        when_asked(stream.close)
        for event in stream:
            tell_event(event)
        tell(end=stream.position)


def watch(topics: TopicsClient, ask: dict[str, Any]) -> None:
    with topics.watch(ask["topics"], cursor=ask.get("cursor"), events=True) as stream:
        when_asked(stream.close)
        for event in stream:
            tell_event(event)
        tell(end=stream.cursor)


def append(topics: TopicsClient, ask: dict[str, Any]) -> None:
    records = [
        NewRecord(payload(each["value"]), each.get("tag"), each.get("node"), each.get("meta"))
        for each in ask["records"]
    ]
    done = topics.append_many(ask["topic"], records, idempotency_key=ask.get("key"))
    tell(first=done.first_seq, last=done.last_seq, deduped=done.deduped)


def produce(topics: TopicsClient, ask: dict[str, Any]) -> None:
    with topics.producer() as producer:
        deliveries = []
        for number in range(ask["count"]):
            deliveries.append(producer.append(ask["topic"], {"n": number}))
            time.sleep(ask.get("pause_ms", 0) / 1000)
        producer.flush()
        tell(stored=[delivery.result() for delivery in deliveries])


def work(topics: TopicsClient, ask: dict[str, Any]) -> None:
    def handle(job: Job) -> None:
        tell(job=job.seq, deliveries=job.deliveries)
        ends = time.monotonic() + ask.get("busy_ms", 0) / 1000
        while time.monotonic() < ends:
            if worker.lost(job):
                tell(lost=job.seq)
                return
            time.sleep(0.01)
        if job.deliveries <= ask.get("fail_first", 0):
            raise ValueError("as it was asked for")
        tell(done=job.seq)

    worker = topics.worker(
        ask["queue"],
        handle,
        concurrency=ask.get("concurrency", 1),
        lease_ms=ask.get("lease_ms"),
        backoff=Backoff(first_seconds=ask.get("backoff_ms", 10) / 1000),
        on_error=lambda job, error: None,
    )
    when_asked(worker.stop)
    worker.run()
    did = worker.statistics()
    tell(acked=did.acked, retried=did.retried, released=did.released, lost_count=did.lost)


with TopicsClient(
    os.environ["TOPICS_ADDRESS"],
    key=os.environ.get("TOPICS_KEY"),
    retry=Retry(seconds=120),
    follow_owners="TOPICS_STAY" not in os.environ,
) as client:
    try:
        {"read": read, "watch": watch, "append": append, "produce": produce, "work": work}[sys.argv[1]](
            client, json.loads(sys.argv[2])
        )
    except TopicsError as error:
        transient = isinstance(error, UnavailableError)
        tell(error=error.reason, detail=error.detail, transient=transient)
