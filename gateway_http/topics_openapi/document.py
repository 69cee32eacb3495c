"""The whole document: one operation for each route, shared components, and its text."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from google.api import annotations_pb2

from topics_gateway.routes import annotated_routes
from topics_openapi.calls import CALLS, EVENTS, EVERYWHERE, GUARDED, METRICS, WITH_BODY, Call
from topics_openapi.forms import TEXT, TOPIC_NAME, Schema
from topics_openapi.protos import Protos, Rpc
from topics_openapi.schemas import Schemas
from topics_proto.v1 import errors_pb2
from topics_service import __version__
from topics_service.api.access.authorizer import RULES

_JSON: Final = "application/json"
_PACKAGE: Final = "topics.v1."
_ALIASES: Final = {"/healthz": "getHealthz", "/readyz": "getReadyz"}
_PATHS: Final = {
    "topic": ("Name of the topic.", {"type": "string", "pattern": TOPIC_NAME}),
    "router": ("Name of the router.", {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"}),
    "group": ("Name of the group, percent-encoded.", {"type": "string", "minLength": 1, "maxLength": 255}),
    "wid": ("The session, from `createWatch`.", {"type": "string", "pattern": "^wid_[A-Za-z0-9_-]{22}$"}),
}  # fmt: skip
_INTRODUCTION: Final = """\
The /v0 API of a persistent event engine: topics that are logs or queues, routers between them, consumer groups, and \
streams of what is written.

Made from the protos by `make proto`; what each call is for is told in the guides beside this file.

- A GET can be a HEAD, too. A path that is not here is `not_found` (404), a method that is not `method_not_allowed` \
(405), a head that is too large 431 with `invalid_request`.
- Members of a request that are not known are ignored. A known member that comes twice is `invalid_request`. Further \
members may come to answers: clients ignore what they do not know.
- `data` and `meta` come back byte for byte as they were written. Numbers in them can be larger than 64 bits.
- Seqs, sizes and times are plain numbers of up to 64 bits, times in milliseconds since the Unix epoch.
- A boolean in a query is `true`, `1`, `false` or `0`; anything else there means the default, as does a `page_size` \
that is no number.
- Bodies may be compressed with gzip (`Content-Encoding`), and so are answers where `Accept-Encoding` asks for it.
- HTTP/1.1, and HTTP/2 with prior knowledge, on the same port.
"""
_STREAM: Final = """\
Server-sent events. The data of each is JSON; `x-events` names its schema by the name of the event. Comments are signs \
of life.
"""


def document(protos: Path) -> dict[str, Any]:
    """The OpenAPI document, of the protos in the folder. Raises ValueError for a route that `calls.py` lacks."""
    return _Writer(Protos(protos)).document()


def text(made: dict[str, Any]) -> str:
    """The document as YAML."""
    head = "# Made by gateway_http/topics_openapi from the protos; `make proto` makes it anew.\n"
    dumped: str = yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return head + dumped


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes out repeated parts."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _lines(dumper: _Dumper, value: str) -> yaml.Node:
    """A text of several lines keeps them."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _lines)


class _Writer:
    def __init__(self, protos: Protos) -> None:
        self._protos = protos
        self._schemas = Schemas(protos)
        rules = [
            value.GetOptions().Extensions[errors_pb2.rule] for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]
        ]
        self._statuses = {rule.code: rule.http_status for rule in rules}
        self._meanings = {
            value: said.partition(" HTTP ")[0] for value, said in protos.enums["ErrorReason"].values.items()
        }
        self._used: set[str] = {"not_found", "method_not_allowed"}
        self._responses: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = {}
        routes = list(annotated_routes())
        if unknown := {rpc.removeprefix(_PACKAGE) for rpc, _, _ in routes} ^ CALLS.keys():
            raise ValueError(f"calls.py and the routes do not agree on {sorted(unknown)}")
        for rpc, method, path in routes:
            paths.setdefault(path, {})[method.lower()] = self._operation(self._protos.rpcs[rpc], method, path)
        paths["/v0/ws"] = {"get": self._socket()}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "topics",
                "version": __version__,
                "summary": "Durable log, pub/sub and job queue over HTTP",
                "description": _INTRODUCTION,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "http://127.0.0.1:4000", "description": "A server as it starts without settings"}],
            "security": [{}, {"key": []}],
            "tags": self._tags(),
            "paths": paths,
            "components": {
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "A key of the server, where it has any (TOPICS_API_KEYS).",
                    },
                    "token": {
                        "type": "apiKey",
                        "in": "query",
                        "name": "token",
                        "description": "The same, for streams that a browser opens.",
                    },
                },
                "responses": dict(sorted(self._responses.items())),
                "schemas": self._components(),
            },
        }

    def _tags(self) -> list[dict[str, str]]:
        used = {rpc.split(".")[-2] for rpc, _, _ in annotated_routes()}
        return [{"name": name, "description": said} for name, said in self._protos.services.items() if name in used]

    # -------------------------------------------------------------------------------------------------- operations

    def _operation(self, rpc: Rpc, method: str, path: str) -> dict[str, Any]:
        name = rpc.proto.name
        call = CALLS[f"{rpc.service}.{name}"]
        made: dict[str, Any] = {
            "operationId": _ALIASES.get(path, name[0].lower() + name[1:]),
            "tags": [rpc.service],
            "summary": rpc.text.partition(". ")[0].rstrip("."),
            "description": rpc.text,
            "security": _security(rpc, call),
        }
        with_body = bool(rpc.proto.options.Extensions[annotations_pb2.http].body)
        if parameters := list(self._parameters(rpc, call, path, with_body=with_body)):
            made["parameters"] = parameters
        if with_body:
            without = frozenset({*call.query, *_variables(path)})
            schema = self._schemas.body(rpc.request, without=without)
            made["requestBody"] = {"required": not call.optional_body, "content": {_JSON: {"schema": schema}}}
        made["responses"] = self._successes(rpc, call) | self._refusals(self._codes(rpc, call, with_body=with_body))
        return made

    def _parameters(self, rpc: Rpc, call: Call, path: str, *, with_body: bool) -> Iterator[dict[str, Any]]:
        variables = _variables(path)
        for name in variables:
            said, schema = _PATHS[name]
            yield {"name": name, "in": "path", "required": True, "description": said, "schema": schema}
        for name, field in self._schemas.member_names(rpc.request):
            if name in variables or (with_body and name not in call.query) or name == "format":
                continue
            schema = self._schemas.parameter(rpc.request, field)
            said = schema.pop("description")
            required = self._schemas.is_required(rpc.request, field)
            yield {"name": name, "in": "query", "required": required, "description": said, "schema": schema}
        for name, schema in call.headers.items():
            plain = {key: value for key, value in schema.items() if key != "description"}
            yield {
                "name": name,
                "in": "header",
                "required": False,
                "description": schema["description"],
                "schema": plain,
            }

    def _successes(self, rpc: Rpc, call: Call) -> dict[str, Any]:
        if call.events:
            events = {name: {"$ref": f"#/components/schemas/{schema}"} for name, schema in call.events.items()}
            stream = {"text/event-stream": {"schema": TEXT, "x-events": events}}
            return {"200": {"description": _STREAM, "content": stream}}
        if rpc.response == "GetMetricsResponse":
            content = {"text/plain; version=0.0.4": {"schema": TEXT}, _JSON: {"schema": METRICS}}
            return {
                "200": {"description": "JSON if the Accept header names it, else Prometheus text.", "content": content}
            }
        content = {_JSON: {"schema": self._schemas.answer(rpc.response)}}
        made: dict[str, Any] = {}
        for status, said in ((200, "Done."), (201, "Done; it brought something into existence.")):
            if status == 200 or call.created:
                made[str(status)] = {"description": said, "content": content}
                if status in call.links:
                    made[str(status)]["links"] = call.links[status]
        return made

    def _codes(self, rpc: Rpc, call: Call, *, with_body: bool) -> set[str]:
        codes = {*EVERYWHERE, *call.errors, *self._named(rpc)}
        codes.update(() if call.probe else GUARDED)
        codes.update(WITH_BODY if with_body else ())
        codes.update(("not_acceptable",) if call.events else ())
        return codes

    def _named(self, rpc: Rpc) -> set[str]:
        """The codes that the comment of a call names after "Errors:", also by "as Ack"."""
        said = rpc.text.partition("Errors:")[2]
        if other := re.match(r" [Aa]s (?:for )?([A-Z]\w+)", said):
            return self._named(self._protos.rpcs[f"{_PACKAGE}{rpc.service}.{other[1]}"])
        return {word for word in re.findall(r"\b[a-z_]+\b", said) if word in self._statuses}

    def _refusals(self, codes: Iterable[str]) -> dict[str, Any]:
        by_status: dict[int, list[str]] = {}
        for code in sorted(codes):
            by_status.setdefault(self._statuses[code], []).append(code)
            self._used.add(code)
        return {str(status): self._refusal(status, by_status[status]) for status in sorted(by_status)}

    def _refusal(self, status: int, codes: list[str]) -> dict[str, Any]:
        """A reference to the answer with one of these codes, which many operations share."""
        name = "Or".join("".join(word.capitalize() for word in code.split("_")) for code in codes)
        lines = [f"- `{code}`: {self._meanings[code]}" for code in codes]
        made: dict[str, Any] = {
            "description": "\n".join(lines),
            "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            "x-error-codes": codes,
        }
        if status in (429, 503):
            seconds = {"type": "integer", "minimum": 1}
            made["headers"] = {"Retry-After": {"description": "Seconds until a retry can help.", "schema": seconds}}
        self._responses[name] = made
        return {"$ref": f"#/components/responses/{name}"}

    def _socket(self) -> dict[str, Any]:
        codes = {*EVERYWHERE, "forbidden", "throttled", "not_ready", "shutting_down"}
        said = (
            "Opens a WebSocket: JSON commands (subscribe, unsubscribe, publish, ping) one way, frames the other. See "
            "docs/watch.md for both. Only over HTTP/1.1; a request that is no upgrade is `invalid_request`."
        )
        return {
            "operationId": "openSocket",
            "tags": ["WatchService"],
            "summary": "Opens a WebSocket",
            "description": said,
            "security": [{}, {"key": []}],
            "responses": {"101": {"description": "The connection is a WebSocket now."}} | self._refusals(codes),
        }

    # -------------------------------------------------------------------------------------------------- components

    def _components(self) -> dict[str, Schema]:
        for name, (message, without) in EVENTS.items():
            self._schemas.answer(message, name=name, without=without)
        job = self._schemas.answer("Job")
        topic = {"type": "object", "properties": {"topic": TEXT | {"description": "Name of the queue."}}}
        components = self._schemas.components
        components["JobEvent"] = {
            "description": "One leased job, as a claim gives it, and its queue. The id of the event is its seq.",
            "allOf": [topic | {"required": ["topic"]}, job],
        }
        components["ErrorEvent"]["properties"]["topic"] = TEXT | {"description": "The queue, on its stream of work."}
        components["Error"] = self._error()
        return dict(sorted(components.items()))

    def _error(self) -> Schema:
        error = {
            "type": "object",
            "description": "Why the request was refused. A refused request changed nothing.",
            "properties": {
                "code": TEXT | {"description": "Stable; branch on this.", "enum": sorted(self._used)},
                "message": TEXT | {"description": "For people; may change between versions.", "minLength": 1},
                "detail": {"type": "object", "description": "Facts about it; docs/errors.md names them for each code."},
            },
            "required": ["code", "message"],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "properties": {"error": error, "performance": self._schemas.answer("Performance")},
            "required": ["error"],
        }


def _variables(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _security(rpc: Rpc, call: Call) -> list[dict[str, list[str]]]:
    scopes = sorted(
        scope.name.lower() for scope in RULES[f"{_PACKAGE}{rpc.service}.{rpc.proto.name}"].scopes if scope.name
    )
    return [{}, {"key": scopes}] + ([{"token": scopes}] if call.token else [])
