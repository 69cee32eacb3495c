"""The reference of the API, from the protos: a page for each service with the messages that it is about."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    MethodDescriptorProto,
    MethodOptions,
)
from proto_files import ENUM, FIELD, MESSAGE, METHOD, SERVICE, VALUE, ProtoFile, compiled
from proto_text import Linker, cell, code, fields

from topics_proto.v1 import errors_pb2

_FOLDER: Final = "reference/api"
_PAGES: Final = {
    "topics": ("Topics", ("topics_service", "topic")),
    "records": ("Records", ("record",)),
    "watch": ("Watch", ("watch_service", "stream")),
    "queues": ("Queues", ("queue_service", "job")),
    "routers": ("Routers", ("router_service", "router")),
    "groups": ("Consumer groups", ("group_service", "group")),
    "sql": ("SQL", ("sql_service", "sql")),
    "admin": ("Health and metrics", ("admin_service", "performance")),
    "errors": ("Error reasons", ("errors",)),
}
"""Pages by file name: title, and the protos that are on each."""
_INTRODUCTION: Final = """\
# The API

One set of services, `topics.v1`, for gRPC and for HTTP. This reference is made from the protos, the files that both
protocols and every generated client come from. The guides show the calls in use, with examples;
[Security](../../security.md) has their scopes.

- Over gRPC a call is `topics.v1.<Service>/<Call>`.
- Over HTTP it has the method and path named here. Parts of the path, in braces, are fields of the request. A JSON body
  has the other fields as members, or is the message in the one field named. Fields that are in neither are query
  parameters. 64-bit numbers are plain JSON numbers, `data` and `meta` are JSON themselves, enums are short lower-case
  texts (`"fsync"`), and where the JSON name of a field is not its own the field says so.
- A field of a request that is left out takes its default. `optional` fields can be absent, which is then a value of its
  own; a `oneof` has one of its fields, or none.

| call | HTTP | what it does |
|---|---|---|
"""
_STATUSES: Final = re.compile(r" HTTP \d+, gRPC [A-Z_]+(, retryable)?\.$")
"""The part of an error reason's comment that repeats its rule."""
_REPEATING: Final = {
    MethodOptions.NO_SIDE_EFFECTS: "no side effects, may be repeated",
    MethodOptions.IDEMPOTENT: "idempotent, may be repeated",
    MethodOptions.IDEMPOTENCY_UNKNOWN: "",
}


def proto_pages(folder: Path) -> dict[str, str]:
    """Markdown by the address of the page. Raises ValueError for a .proto that has no page."""
    files = {file.name: file for file in compiled(folder)}
    placed = {name for _, names in _PAGES.values() for name in names}
    if files.keys() != placed:
        raise ValueError(f"protos without a page, or the other way round: {sorted(files.keys() ^ placed)}")
    links = Linker()
    for page, (_, names) in _PAGES.items():
        for name in names:
            links.add(files[name].descriptor, f"{page}.md")
    for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]:
        reason = value.GetOptions().Extensions[errors_pb2.rule].code
        links.add_word(reason, f"errors.md#{reason}")
    pages = {
        f"{_FOLDER}/{page}.md": _Page(f"{page}.md", links).text(title, [files[name] for name in names])
        for page, (title, names) in _PAGES.items()
    }
    pages[f"{_FOLDER}/index.md"] = _INTRODUCTION + "".join(
        _overview(files[name], f"{page}.md", links) for page, (_, names) in _PAGES.items() for name in names
    )
    return pages


def _overview(file: ProtoFile, page: str, links: Linker) -> str:
    rows = ""
    for i, service in enumerate(file.descriptor.service):
        rows += f"| **[{service.name}]({page}#{service.name.lower()})** | | |\n"
        for j, method in enumerate(service.method):
            first = " ".join(file.comment(SERVICE, i, METHOD, j)[:1]).partition(". ")[0].rstrip(".")
            routes = "<br>".join(code(f"{verb} {path}") for verb, path, _ in _routes(method))
            meaning = cell([first], links.within("index.md"))
            rows += f"| [{method.name}]({page}#{method.name.lower()}) | {routes} | {meaning}|\n"
    return rows


def _routes(method: MethodDescriptorProto) -> Iterator[tuple[str, str, str]]:
    """(verb, path, body) of each way to make a call over HTTP."""
    rule = method.options.Extensions[annotations_pb2.http]
    for binding in (rule, *rule.additional_bindings):
        yield from _route(binding)


def _route(rule: http_pb2.HttpRule) -> Iterator[tuple[str, str, str]]:
    if verb := rule.WhichOneof("pattern"):
        yield verb.upper(), getattr(rule, verb), rule.body


class _Page:
    """Writes one page."""

    def __init__(self, name: str, links: Linker) -> None:
        self._link = links.within(name)

    def text(self, title: str, files: Sequence[ProtoFile]) -> str:
        parts = [f"# {title}\n"]
        services = [(file, i) for file in files for i in range(len(file.descriptor.service))]
        written = set[str]()
        for file, i in services:
            parts += self._service(file, i, written)
        rest = [
            (file, i) for file in files for i, m in enumerate(file.descriptor.message_type) if m.name not in written
        ]
        enums = [(file, i) for file in files for i in range(len(file.descriptor.enum_type))]
        if services and (rest or enums):
            parts.append("## Types\n")
        level = "###" if services else "##"
        for file, i in enums:
            parts += self._enum(file, i, level)
        for file, i in rest:
            parts += self._message(file, i, level)
        return "\n".join(parts)

    def _service(self, file: ProtoFile, number: int, written: set[str]) -> Iterator[str]:
        service = file.descriptor.service[number]
        yield f"## {service.name} {{ #{service.name.lower()} }}\n"
        yield self._prose(file.comment(SERVICE, number))
        messages = {message.name: i for i, message in enumerate(file.descriptor.message_type)}
        for i, method in enumerate(service.method):
            yield from self._method(file, (SERVICE, number, METHOD, i), method)
            for name in (_short(method.input_type), _short(method.output_type)):
                if name in messages and name not in written:  # each has its own by the rules of the contract
                    written.add(name)
                    yield from self._message(file, messages[name], "####")

    def _method(self, file: ProtoFile, path: tuple[int, ...], method: MethodDescriptorProto) -> Iterator[str]:
        yield f"### {method.name} {{ #{method.name.lower()} .rpc }}\n"
        for verb, route, body in _routes(method):
            what = {"": "", "*": " with a JSON body"}.get(body, f" with `{body}` as its JSON body")
            yield f"{code(f'{verb} {route}')}{what}  "
        takes, gives = (self._link.to(_short(name)) for name in (method.input_type, method.output_type))
        takes = f"a stream of {takes}" if method.client_streaming else takes
        gives = f"a stream of {gives}" if method.server_streaming else gives
        traits = [f"takes {takes}", f"gives {gives}", _REPEATING[method.options.idempotency_level]]
        yield ", ".join(filter(None, traits)) + "\n{ .traits }\n"
        yield self._prose(file.comment(*path))

    def _message(self, file: ProtoFile, number: int, level: str) -> Iterator[str]:
        message = file.descriptor.message_type[number]
        path = (MESSAGE, number)
        yield f"{level} {message.name} {{ #{message.name.lower()} }}\n"
        yield self._prose(file.comment(*path))
        if not message.field:
            yield "It has no fields.\n"
            return
        rows = ["| | field | type | |", "|--:|---|---|---|"]
        for i, field in enumerate(message.field):
            text = cell(file.comment(*path, FIELD, i), self._link)
            rows.append(f"| {field.number} | {code(field.name)} | {self._type(message, field)} | {text}|")
        yield fields(rows)

    def _type(self, message: DescriptorProto, field: FieldDescriptorProto) -> str:
        entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        name = _short(field.type_name)
        if name in entries:
            key, value = entries[name].field
            return f"map of {self._plain(key)} to {self._plain(value)}"
        text = self._plain(field)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {text}"
        if field.proto3_optional:
            return f"optional {text}"
        if field.HasField("oneof_index"):
            return f"{text}, oneof `{message.oneof_decl[field.oneof_index].name}`"
        return text

    def _plain(self, field: FieldDescriptorProto) -> str:
        if field.type_name:
            return self._link.to(_short(field.type_name))
        return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()

    def _enum(self, file: ProtoFile, number: int, level: str) -> Iterator[str]:
        enum = file.descriptor.enum_type[number]
        yield f"{level} {enum.name} {{ #{enum.name.lower()} }}\n"
        yield self._prose(file.comment(ENUM, number))
        if enum.name == errors_pb2.ErrorReason.DESCRIPTOR.name:
            yield from self._reasons(file, number, enum)
            return
        rows = ["| | value | |", "|--:|---|---|"]
        for i, value in enumerate(enum.value):
            text = cell(file.comment(ENUM, number, VALUE, i), self._link)
            rows.append(f"| {value.number} | {code(value.name)} | {text}|")
        yield fields(rows)

    def _reasons(self, file: ProtoFile, number: int, enum: EnumDescriptorProto) -> Iterator[str]:
        """Each reason with a heading of its own, since calls link to it."""
        for i, value in enumerate(enum.value):
            rule = value.options.Extensions[errors_pb2.rule]
            if not rule.code:
                continue
            yield f"### {rule.code} {{ #{rule.code} }}\n"
            again = ", may be repeated" if rule.retryable else ""
            traits = f"HTTP {rule.http_status}, gRPC `{rule.grpc_status}`{again}, number {value.number}"
            yield f"{traits}\n{{ .traits }}\n"
            yield self._prose([_STATUSES.sub("", text) for text in file.comment(ENUM, number, VALUE, i)])

    def _prose(self, paragraphs: Sequence[str]) -> str:
        return "\n\n".join(self._link.words(text) for text in paragraphs) + "\n"


def _short(name: str) -> str:
    return name.rpartition(".")[2]
