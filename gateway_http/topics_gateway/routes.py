"""The route table, built from the `google.api.http` annotations of the services in `topics.v1`."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from google.api import annotations_pb2

from topics_gateway.errors import method_not_allowed, not_found
from topics_gateway.request import Handler, Request
from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)
from topics_service.api.access.authorizer import NO_GROUP_ROUTE, NO_ROUTE, NO_ROUTER_ROUTE, NO_TOPIC_ROUTE
from topics_service.engine.errors import TopicsError, invalid

_FILES: Final = (
    topics_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    group_service_pb2,
    watch_service_pb2,
    sql_service_pb2,
    admin_service_pb2,
)


_PACKAGE: Final = "topics.v1."
UNROUTED: Final = "unrouted"
"""Stands for the RPC of a request that met no route."""


_NO_ROUTES: Final = {"topic": NO_TOPIC_ROUTE, "router": NO_ROUTER_ROUTE, "group": NO_GROUP_ROUTE}
"""The pseudo RPC of an unknown path below a path variable, by the variable's name; NO_ROUTE elsewhere."""


class Route(NamedTuple):
    """The target of a request. `rpc` is its name in the access rules: the full name, or NO_ROUTE and its kin."""

    rpc: str
    handler: Handler


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
            node = self._root.descend(path)
            node.methods[method] = handlers.get(rpc)
            node.rpcs[method] = rpc.removeprefix(_PACKAGE)

    def find(self, request: Request) -> Route:
        """The route of `request`, whose `rpc` and `name`, the variable segment of the path, are set.

        A missing route is no error yet, since unauthorized callers must not learn of it: the handler then raises
        `not_found` or `method_not_allowed`, or `invalid_request` for a path that is not UTF-8.
        """
        node, nowhere = self._root, NO_ROUTE
        try:
            segments = split_path(request.scope["raw_path"])
        except TopicsError as error:
            return Route(nowhere, _raises(error))
        for segment in segments:
            child = node.literals.get(segment)
            if child is None and segment and node.variable is not None:
                child = node.variable
                request.name = segment
                nowhere = _NO_ROUTES.get(node.variable_name, NO_ROUTE)
            if child is None:
                return Route(nowhere, _raises(not_found()))
            node = child
        asked = request.scope["method"]
        method = "GET" if asked == "HEAD" else asked
        rpc, handler = node.rpcs.get(method), node.methods.get(method)
        if rpc is not None and handler is not None:
            request.rpc = rpc
            return Route(_PACKAGE + rpc, handler)
        if rpc is not None:
            return Route(_PACKAGE + rpc, _raises(not_found()))
        return Route(nowhere, _raises(method_not_allowed(asked) if any(node.methods.values()) else not_found()))

    def rpc_of(self, method: str, raw_path: bytes) -> str:
        """The full name of the RPC of a request, built or not; empty if there is none."""
        node = self._root
        try:
            segments = split_path(raw_path)
        except TopicsError:
            return ""
        for segment in segments:
            child = node.literals.get(segment) or (node.variable if segment else None)
            if child is None:
                return ""
            node = child
        rpc = node.rpcs.get("GET" if method == "HEAD" else method)
        return _PACKAGE + rpc if rpc is not None else ""


class _Node:
    __slots__ = ("literals", "methods", "rpcs", "variable", "variable_name")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.variable_name = ""
        self.methods: dict[str, Handler | None] = {}  # None: the RPC is not built yet
        self.rpcs: dict[str, str] = {}  # their names, short

    def descend(self, template: str) -> "_Node":
        """The node of a path template, made if there is none."""
        node = self
        for segment in template.split("/"):
            if segment.startswith("{"):
                if node.variable is None:
                    node.variable, node.variable_name = _Node(), segment.strip("{}")
                node = node.variable
            else:
                node = node.literals.setdefault(segment, _Node())
        return node


def _raises(error: TopicsError) -> Handler:
    async def handler(request: Request) -> NoReturn:
        raise error

    return handler


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
