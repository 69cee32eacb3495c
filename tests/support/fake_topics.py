"""A gRPC server that says of appends what a test wants: answers that are lost, wrong, or never come."""

import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NoReturn, Self

import grpc

from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topic_pb2 import TopicConfig, TopicState
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceServicer, add_TopicsServiceServicer_to_server

Answer = Callable[[pb.AppendRequest, int, Any], pb.AppendResponse]


class FakeTopics(TopicsServiceServicer):
    """Answers Append by calling `answer` with the request, the number of the attempt, from 1, and gRPC's context."""

    def __init__(self, answer: Answer, windows: Sequence[int | None] = ()) -> None:
        """`windows` are what GetTopic finds, one call after the other, in ms; None: the topic is not there."""
        self.attempts = list[pb.AppendRequest]()
        self._answer = answer
        self._windows = list(windows)
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        add_TopicsServiceServicer_to_server(self, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendResponse:  # noqa: N802
        self.attempts.append(request)
        return self._answer(request, len(self.attempts), context)

    def GetTopic(self, request: pb.GetTopicRequest, context: Any) -> pb.GetTopicResponse:  # noqa: N802
        window = self._windows.pop(0)
        if window is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "not there")
        config = TopicConfig(idempotency_window_ms=window)
        return pb.GetTopicResponse(state=TopicState(topic=request.topic, config=config))

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()


def hang(context: Any) -> pb.AppendResponse:
    """No answer comes."""
    while context.is_active():
        time.sleep(0.01)
    return pb.AppendResponse()


def lose(context: Any, what: str = "broken") -> NoReturn:
    """The answer is lost on its way."""
    context.abort(grpc.StatusCode.UNAVAILABLE, what)
    raise AssertionError


def stored(request: pb.AppendRequest, first: int) -> pb.AppendResponse:
    """The records are stored from this seq on."""
    count = len(request.columns.data)
    return pb.AppendResponse(first_seq=first, last_seq=first + count - 1, head_seq=first + count - 1, count=count)
