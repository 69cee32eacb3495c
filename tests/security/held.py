"""Streams that stay open, one of each kind, and how they end."""

import threading
from contextlib import ExitStack
from typing import Any, Self

import grpc
import httpx
from protocols.conftest import with_key

from support.grpc_watch import subscription
from support.http import ok
from support.server import ServerProcess
from support.waiting import poll
from support.ws import WebSocket
from topics_proto.v1 import watch_service_pb2, watch_service_pb2_grpc


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a gRPC call, with a key or a whole header."""
    return (("authorization", key if " " in key else f"Bearer {key}"),)


class Held:
    """Streams of one key, or header `Authorization`, on a topic: server-sent events, a gRPC watch, a WebSocket."""

    def __init__(self, server: ServerProcess, key: str, topic: str) -> None:
        self._topic = topic
        self._opened = threading.Semaphore(0)
        self.got: dict[str, int] = dict.fromkeys(("sse", "grpc"), 0)
        self.ended: dict[str, str] = {}
        with ExitStack() as open_:
            self._api = open_.enter_context(with_key(server.base, None))
            self._api.client.headers["authorization"] = bearer(key)[0][1]
            self._socket = open_.enter_context(WebSocket(server.base, authorization=bearer(key)[0][1]))
            self._socket.subscribe(topic=topic)
            channel = open_.enter_context(grpc.insecure_channel(server.grpc_target))
            stub = watch_service_pb2_grpc.WatchServiceStub(channel)
            request = watch_service_pb2.WatchRequest(subscription=subscription(topic))
            self._call: Any = stub.Watch(request, metadata=bearer(key))
            open_.callback(self._call.cancel)
            self._url = ok(self._api.send("POST", "/v0/watch", {"topics": {topic: {}}}), 200, 201)["stream_url"]
            for run in (self._events, self._watch):
                threading.Thread(target=run, daemon=True).start()
                assert self._opened.acquire(timeout=30)
            self._open = open_.pop_all()

    def _events(self) -> None:
        try:
            with self._api.client.stream("GET", self._url, timeout=60) as events:
                self._opened.release()
                for line in events.iter_lines():
                    self.got["sse"] += line.startswith("event: record")
            self.ended["sse"] = "complete"
        except httpx.HTTPError as error:
            self.ended["sse"] = type(error).__name__

    def _watch(self) -> None:
        try:
            self._opened.release()
            for response in self._call:
                self.got["grpc"] += response.frame.WhichOneof("kind") == "records"
            self.ended["grpc"] = "OK"
        except grpc.RpcError as error:
            self.ended["grpc"] = error.code().name

    def ends(self) -> dict[str, str]:
        """How each ended; waits for it."""
        poll(lambda: len(self.ended) == 2, 20, "the ends of all streams")
        return self.ended | {"websocket": "cut" if self._is_cut() else "open"}

    def goes_on(self) -> bool:
        """Whether all are open, and have got a record of each."""
        poll(lambda: all(self.got.values()), 20, "a record on every stream")
        return not self.ended and self._socket.wait("record")["topic"] == self._topic

    def _is_cut(self) -> bool:
        self._socket.sock.settimeout(10)
        try:
            while self._socket.sock.recv(4096):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
