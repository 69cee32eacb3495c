"""The route table, built from the `google.api.http` annotations of the services in `topics.v1`."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from google.api import annotations_pb2

from topics.v1 import (
    admin_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)
from topics_gateway.call import Call, Handler
from topics_gateway.errors import method_not_allowed, not_found
from topics_service.engine.errors import invalid

_FILES: Final = (
    topics_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    watch_service_pb2,
    admin_service_pb2,
)


class RouteTable:
    """Finds the handler of a request in a tree of path segments, literal ones before the variable.

    `handlers` maps the full names of RPCs to handlers. An RPC without one is not built yet: its method and path
    answer `not_found`, and so does every method on a path without any built RPC.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._root = _Node()
        routes = list(annotated_routes())
        if unknown := handlers.keys() - {rpc for rpc, _, _ in routes}:
            raise ValueError(f"handlers for RPCs that have no route: {sorted(unknown)}")
        for rpc, method, path in routes:
            self._root.descend(path).methods[method] = handlers.get(rpc)

    def find(self, call: Call) -> Handler:
        """The handler for `call`, whose `name` becomes the variable segment of the path.

        Raises `not_found` or `method_not_allowed`, and `invalid_request` for a path that is not UTF-8.
        """
        node = self._root
        for segment in split_path(call.scope["raw_path"]):
            child = node.literals.get(segment)
            if child is None and segment:
                child = node.variable
                call.name = segment
            if child is None:
                raise not_found()
            node = child
        asked = call.scope["method"]
        method = "GET" if asked == "HEAD" else asked
        handler = node.methods.get(method)
        if handler is not None:
            return handler
        if method in node.methods or not any(node.methods.values()):
            raise not_found()
        raise method_not_allowed(asked)


class _Node:
    __slots__ = ("literals", "methods", "variable")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.methods: dict[str, Handler | None] = {}  # None: the RPC is not built yet

    def descend(self, template: str) -> "_Node":
        """The node of a path template, made if there is none."""
        node = self
        for segment in template.split("/"):
            if segment.startswith("{"):
                if node.variable is None:
                    node.variable = _Node()
                node = node.variable
            else:
                node = node.literals.setdefault(segment, _Node())
        return node


def annotated_routes() -> Iterator[tuple[str, str, str]]:
    """Every annotated route as (RPC full name, HTTP method, path template)."""
    for module in _FILES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for rpc in service.methods:
                rule = rpc.GetOptions().Extensions[annotations_pb2.http]
                for binding in (rule, *rule.additional_bindings):
                    pattern = binding.WhichOneof("pattern")
                    if pattern is not None:
                        yield rpc.full_name, pattern.upper(), getattr(binding, pattern)


def split_path(raw_path: bytes) -> list[str]:
    """The segments of a path. They are decoded after the split, so that `%2F` does not make two of one."""
    try:
        if b"%" not in raw_path:
            return raw_path.decode().split("/")
        return [unquote_to_bytes(segment).decode() for segment in raw_path.split(b"/")]
    except UnicodeDecodeError:
        raise invalid("the path is not valid UTF-8") from None
