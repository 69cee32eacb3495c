"""A user's program under `mypy --strict`: what is right passes, each mistake is found."""

import re
import subprocess
import sys
from pathlib import Path

RIGHT = """
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from topics_client import (
    Advice, Appended, AsyncProducer, AsyncTopicsClient, AsyncReadStream, CaughtUp, Codec, DecodeError, Event, Gap,
    GapError, Job, JsonCodec, NewRecord, Page, Producer, RawJson, ReadStream, Record, Retry, RouterConfig, TopicConfig,
    TopicDeleted, TopicsClient, TopicsError, TopicSummary, WatchStream,
)


@dataclass
class Order:
    id: int


class Shout:
    def encode(self, value: str) -> tuple[bytes, bool]:
        return value.upper().encode(), True

    def decode(self, data: bytes, binary: bool) -> str:
        return data.decode()


def resize(job: Job[Order]) -> None:
    print(job.value.id + 1)


def typed(client: TopicsClient) -> None:
    for record in client.read("orders", of=Order):
        number: int = record.value.id
    typed: ReadStream[Record[Order]] = client.read("orders", of=Order, follow=True, undecodable="yield")
    first: Record[Order] = next(typed)
    for item in client.read("orders", of=Order, gaps="yield"):
        number = item.first_seq if isinstance(item, Gap) else item.value.id
    for batch in client.read("orders", codec=Shout()).batches():
        words: list[str] = [each.value for each in batch]
    watch: WatchStream[Record[Order]] = client.watch(["orders"], of=Order)
    for event in client.watch("orders", codec=JsonCodec(Order), events=True):
        if isinstance(event, Record):
            number = event.value.id
    codec: Codec[Order] = JsonCodec(Order)
    client.worker("jobs", resize, of=Order, concurrency=2).run()
    client.worker("jobs", resize, codec=codec).run()
    client.worker("jobs", lambda job: print(job.value), until_empty=True).run()
    with client.producer(of=Order, linger_ms=1) as producer:
        producer.append("orders", Order(1))
        producer.append("orders", RawJson(b"{}"))
    plain: Producer = client.producer()
    plain.append("orders", {"id": 1})
    order: Order = client.claim("jobs", "me")[0].decode(Order)
    text: str = first.decode(Shout())
    client.read("orders", of=Order, undecodable=lambda error: print(error.record.seq, error.why))
    try:
        next(typed)
    except DecodeError as error:
        print(error.record.data)


async def typed_async(client: AsyncTopicsClient) -> None:
    async for record in client.read("orders", of=Order):
        number: int = record.value.id
    number = (await anext(client.watch("orders", of=Order))).value.id
    producer: AsyncProducer[Order] = client.producer(of=Order)
    await producer.append("orders", Order(1))


def use() -> None:
    with TopicsClient("topics://key@localhost:4001", timeout=5, retry=Retry(seconds=3)) as client:
        put = client.put_topic("t", TopicConfig(type="queue", durability="fsync"), partitions=1)
        given: Appended = client.append("t", {"a": [1, None]}, tag="x", meta={"k": 1})
        client.append_many("t", [NewRecord(1), 2, RawJson(b"3"), b"4"], config=TopicConfig(ttl_ms=5))
        page: Page = client.diff("t", given.last_seq, node="me", last=None)
        total: int = put.epoch + sum(record.seq for record in page.records)
        stream: ReadStream[Record] = client.read("t", follow=True, node=["me"])
        for record in stream:
            time: float = record.time.timestamp()
        mixed: ReadStream[Record | Gap] = client.read("t", gaps="yield")
        for item in mixed:
            if isinstance(item, Gap):
                reason: str = item.reason
            else:
                value: Any = item.value
        for batch in stream.batches():
            total += len(batch)
        position: int | None = stream.position
        plain: WatchStream[Record] = client.watch({"a": 0, "b*": "tail"}, cursor={"a": 1})
        cursor: dict[str, int] = plain.cursor
        event: Event
        for event in client.watch(["a"], events=True):
            match event:
                case Record():
                    print(event.tag)
                case Gap() | TopicDeleted() | CaughtUp():
                    print(event.topic)
                case Advice():
                    print(event.message)
        jobs: list[Job] = client.claim("t", "me", max=5)
        done: int = client.ack("t", "me", jobs).done
        client.put_router("r", RouterConfig("a", "b", guarantee="exactly_once"))
        topics: Iterator[TopicSummary] = client.list_topics()
        try:
            list(stream)
        except GapError as error:
            print(error.gap.first_seq)
        except TopicsError as error:
            print(error.reason, error.detail["topic"], error.retry_after_ms)


async def use_async() -> None:
    async with AsyncTopicsClient() as client:
        given: Appended = await client.append("t", 1)
        stream: AsyncReadStream[Record | Gap] = client.read("t", gaps="yield")
        async for item in stream:
            print(item.topic)
        async for batch in client.watch("t").batches():
            print(batch[0].seq)
        topics: AsyncIterator[TopicSummary] = client.list_topics()
        names = [topic.topic async for topic in topics]
"""

WRONG = """
from dataclasses import dataclass

from topics_client import AsyncTopicsClient, Job, JsonCodec, Record, TopicConfig, TopicsClient


@dataclass
class Order:
    id: int


def resize(job: Job[Order]) -> None: ...


def typed(client: TopicsClient) -> None:
    for record in client.read("orders", of=Order):
        print(record.value.nothing)  # E
    next(client.watch("orders", of=Order)).value + 1  # E
    client.producer(of=Order).append("orders", {"id": 1})  # E
    client.read("orders", of=Order, codec=JsonCodec(Order))  # E
    client.read("orders", of=Order, undecodable="skip")  # E
    client.worker("jobs", resize, of=int)  # E
    text: str = next(client.read("orders")).decode(Order)  # E


def use(client: TopicsClient) -> None:
    client.append("t")  # E
    client.put_topic("t", TopicConfig(durability="tape"))  # E
    for item in client.read("t", gaps="yield"):
        print(item.value)  # E
    client.read("t", gaps="skip")  # E
    for event in client.watch("t", events=True):
        print(event.seq)  # E
    client.watch(5)  # E
    text: str = client.append("t", 1).first_seq  # E
    client.close().nothing  # E


async def use_async(client: AsyncTopicsClient) -> None:
    for record in client.read("t"):  # E
        pass
    print(client.get_topic("t").head_seq)  # E
"""


def _mypy(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", "cache", "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_users_get_types_that_help(tmp_path: Path) -> None:
    right = _mypy(tmp_path, RIGHT)
    assert (right.stdout, right.returncode) == ("", 0)
    wrong = _mypy(tmp_path, WRONG)
    found = {int(number) for number in re.findall(r"program\.py:(\d+): error", wrong.stdout)}
    assert found == {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# E")}, wrong.stdout
