"""What tests of the Worker share: queues with jobs in them, and workers that run in a thread."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from support.waiting import poll
from topics_client.connection import Connection
from topics_client.models import Job
from topics_client.worker.api import Backoff, Worker
from topics_proto.v1 import queue_service_pb2 as qpb
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb

SOON = Backoff(first_seconds=0.01, longest_seconds=0.02)


def make_queue(connection: Connection, queue: str, count: int = 0, **config: Any) -> None:
    """A queue with the jobs 0 to count - 1."""
    made = topic_pb2.TopicConfig(type=topic_pb2.TOPIC_TYPE_QUEUE, **config)
    connection.unary(connection.topics.PutTopic, pb.PutTopicRequest(topic=queue, config=made))
    add(connection, queue, range(count))


def add(connection: Connection, queue: str, values: Any) -> None:
    """More jobs."""
    records = [{"data": json.dumps(value).encode()} for value in values]
    for start in range(0, len(records), 1000):
        request = pb.AppendRequest(topic=queue, records=records[start : start + 1000])  # type: ignore[arg-type]
        connection.unary(connection.topics.Append, request, repeatable=False)


def state(connection: Connection, topic: str) -> topic_pb2.TopicState:
    """The topic as it stands."""
    return connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic=topic, touch=False)).state


def jobs_in(connection: Connection, queue: str, state: int) -> list[Any]:
    """The views of the jobs in a state."""
    request = qpb.ListJobsRequest(topic=queue, state=state, limit=1000)  # type: ignore[arg-type]
    return list(connection.unary(connection.queues.ListJobs, request).jobs)


@contextlib.contextmanager
def running(connection: Connection, queue: str, handler: Callable[[Job], Any], **options: Any) -> Iterator[Worker]:
    """A worker that runs in a thread; it is stopped with the block, and its end without an error awaited."""
    worker = Worker(connection, queue, handler, **{"backoff": SOON, "drain_seconds": 5} | options)
    failures = list[BaseException]()

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def acked(worker: Worker, count: int, seconds: float = 30) -> None:
    """Wait until the given number of jobs is acked."""
    poll(lambda: worker.statistics().acked >= count, seconds, f"{count} acks: {worker.statistics()}")
