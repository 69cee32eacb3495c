"""Callers of every kind: keys, users and tokens, on each interface."""

import struct
from base64 import b64encode
from typing import Any

import httpx
from protocols.conftest import Grpc
from protocols.test_grpc_web import TYPE, parsed

from support.http import Api
from support.kafka_wire import Wire
from support.server import ServerProcess
from support.tokens import SECRET, claims, hs256
from topics_proto.v1 import topics_service_pb2 as pb

KEY = "sekret-key"
USERS = {
    "alice": "alice:sekret-alice:user",
    "svc": "svc:sekret-svc:service:shop.|t.",
    "ops": "ops:sekret-ops:dba",
    "root": "root:sekret-root:system",
    "busy": "busy:sekret-busy:service",
    "ü": "ü:sekret-ü:dba",
    **{f"target{number}": f"target{number}:sekret-target:dba" for number in range(5)},
}
"""Wrong passwords are for the targets: of too many, the right one is refused too."""
ENV = {
    "TOPICS_API_KEYS": f"{KEY},sekret-read:read",
    "TOPICS_JWT_SECRET": SECRET,
    "TOPICS_SQL_USERS": ",".join(USERS.values()),
}


def basic(name: str | bytes, password: str | bytes | None = None) -> str:
    """The header of a user; its own password unless there is another."""
    raw = name if isinstance(name, bytes) else name.encode()
    if password is None:
        password = f"sekret-{raw.decode()}"
    return "Basic " + b64encode(raw + b":" + (password if isinstance(password, bytes) else password.encode())).decode()


def token(role: Any = "service", **more: Any) -> str:
    return f"Bearer {hs256(claims(role, **more))}"


def api(server: ServerProcess, authorization: str) -> Api:
    api = Api(server.base)
    if authorization:
        api.client.headers["authorization"] = authorization
    return api


def rpc(server: ServerProcess, authorization: str) -> Grpc:
    return Grpc(server.grpc_target, None, header=authorization or None)


def grpc_web(server: ServerProcess, authorization: str) -> str | None:
    """The status of a call as gRPC-Web."""
    request = pb.GetTopicRequest(topic="shop.a").SerializeToString()
    headers = {"content-type": TYPE} | ({"authorization": authorization} if authorization else {})
    frame = struct.pack(">BI", 0, len(request)) + request
    reply = httpx.post(
        f"{server.base}/topics.v1.TopicsService/GetTopic", content=frame, headers=headers, trust_env=False
    )
    return parsed(reply.content).trailers["grpc-status"]


def kafka(server: ServerProcess, user: str, password: str) -> Wire:
    """A connection that has authenticated. Raises AssertionError otherwise."""
    wire = Wire(server.kafka_port)
    try:
        answer = wire.authenticate(password, user)
        assert answer["error_code"] == 0, answer
    except BaseException:
        wire.close()
        raise
    return wire


def codes(answer: Any) -> list[int]:
    return [topic["error_code"] for topic in answer["topics"]]
